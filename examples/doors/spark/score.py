"""Score a Parquet folder with a bundle on Spark: score.py BUNDLE INPUT OUTPUT. INPUT has a column `id` to join by."""

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

bundle, source, target = sys.argv[1:]
SCORED = pa.schema([("id", pa.int64()), ("score", pa.float32())])


def predictor_of(path):
    """Open a bundle with the code inside it. The driver and each worker process must find the bundle at this path."""
    sys.path.append(f"{path}/code")
    from wide_deep_bundle.app.scoring.predictor import Predictor

    return Predictor.open(path)


def scored(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Score the batches of a partition. Spark takes columns by their place, so select and cast them by name."""
    predictor = predictor_of(bundle)
    for batch in batches:
        scores = pa.array(predictor.score(pa.Table.from_batches([batch])))
        result = pa.table({"id": batch["id"], "score": scores})
        yield from result.select(SCORED.names).cast(SCORED).to_batches()


spark = SparkSession.builder.getOrCreate()
rows = spark.read.parquet(source)
if missing := {"id", *dict(predictor_of(bundle).log_format.fields)} - {*rows.columns}:
    sys.exit(f"{source} lacks the columns {sorted(missing)}; it has {rows.columns}")
rows.mapInArrow(scored, from_arrow_schema(SCORED)).write.parquet(target)
