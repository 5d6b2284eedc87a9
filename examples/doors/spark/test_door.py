"""Spark scores with a bundle, and what Spark writes becomes prepared data without the loss of a row."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

TEXTS = ["plain", ' "quoted" text', "comma, and\ttab ", "back\\slash", 'ends with \\"', "", None, "Zürich 東京"]


@pytest.fixture
def rows(folder):
    """The golden rows 300 times with ids, so that there are several of Spark's batches, and their scores by id."""
    golden = pq.read_table("bundle/golden.parquet")
    many = pa.concat_tables([golden] * 300)
    many = many.append_column("id", pa.array(random.Random(1).sample(range(10**12), many.num_rows)))
    pq.write_table(many.drop_columns(["score", "logit", "tolerance"]), "rows.parquet", row_group_size=11_000)
    return dict(zip(many["id"].to_pylist(), many["score"].to_pylist(), strict=True))


def test_scores_are_those_of_the_bundle(commands, run, rows):
    score, *_ = commands("Spark")
    run(score)
    scored = pq.read_table("scored.parquet")
    assert scored.schema.types == [pa.int64(), pa.float32()]
    assert dict(zip(scored["id"].to_pylist(), scored["score"].to_pylist(), strict=True)) == rows
    lacking = pq.read_table("rows.parquet").drop_columns(["C5"])
    pq.write_table(lacking, "lacking.parquet")
    done = run(score.replace("rows.parquet", "lacking.parquet").replace("scored", "nothing"), status=1)
    assert "lacking.parquet lacks the columns ['C5']" in done.stderr


def test_what_spark_writes_is_prepared_whole(commands, run):
    draw = random.Random(2)
    table = pa.table(
        {
            "clicked": [draw.randrange(2) for _ in range(4000)],
            "title": pa.array([draw.choice(TEXTS) for _ in range(4000)], pa.string()),
            "price": [draw.choice([None, draw.random() * 100]) for _ in range(4000)],
            "date": [draw.choice(["2026-11-01", "2026-11-02"]) for _ in range(4000)],
        }
    )
    pq.write_table(table, "table.parquet")
    _, *rest = commands("Spark")
    for command in rest:
        run(command)
    (written,) = Path("csv_log").glob("*.csv")
    with written.open(newline="") as lines:
        texts = [row["title"] for row in csv.DictReader(lines)]
    assert sorted(texts) == sorted(text or "" for text in table["title"].to_pylist())
    assert len([*Path("parquet_log").glob("date=*")]) == 2
    titles = {}
    for name in ("parquet", "csv"):
        schema = json.loads(Path(f"prepared_{name}/schema.json").read_text())
        assert sum(split["rows"] for split in schema["splits"].values()) == table.num_rows
        assert sum(split["clicks"] for split in schema["splits"].values()) == sum(table["clicked"].to_pylist())
        vocabulary = pq.read_table(f"prepared_{name}/vocabulary.parquet").to_pylist()
        titles[name] = {row["value"] for row in vocabulary if row["field"] == "title"}
    # `describe` proposes `trim: true`, because some texts begin or end with blanks.
    assert titles["csv"] == titles["parquet"] and titles["csv"] >= {text.strip() for text in TEXTS if text}
