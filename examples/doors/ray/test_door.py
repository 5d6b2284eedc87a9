"""Ray scores with a bundle, also after a filter that leaves no row in some blocks or in all."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

# The rows are sorted by id, so a filter for the smallest ids leaves only one block with rows, and the limit 0 none.
FILTERED = """
import ray.data
from score import scored

rows = ray.data.read_parquet("sorted.parquet").repartition(4)
for name, limit in (("some", {limit}), ("none", 0)):
    left = rows.filter(lambda row, limit=limit: row["id"] < limit)
    print(name, [block.num_rows for block in map(ray.get, left.to_arrow_refs())])
    scored(left, "bundle").write_parquet(name)
"""


@pytest.fixture
def many(folder):
    """The golden rows 250 times with ids, so that there are several of Ray's batches."""
    golden = pq.read_table("bundle/golden.parquet")
    rows = pa.concat_tables([golden] * 250)
    return rows.append_column("id", pa.array(random.Random(1).sample(range(10**12), rows.num_rows)))


def scores_of(rows):
    return dict(zip(rows["id"].to_pylist(), rows["score"].to_pylist(), strict=True))


def test_scores_are_those_of_the_bundle(commands, run, many):
    (score,) = commands("Ray")
    pq.write_table(many.drop_columns(["score", "logit", "tolerance"]), "rows.parquet")
    run(score, RAY_USAGE_STATS_ENABLED="0")
    scored = pq.read_table("scored")
    assert scored.schema.types == [pa.int64(), pa.float32()]
    assert scores_of(scored) == scores_of(many)


def test_blocks_may_be_empty(folder, run, many):
    many = many.sort_by("id")
    pq.write_table(many.drop_columns(["score", "logit", "tolerance"]), "sorted.parquet")
    Path("filtered.py").write_text(FILTERED.format(limit=many["id"][7].as_py()))
    command = f"PYTHONPATH={folder}/examples/doors/ray .venv-doors/ray/bin/python filtered.py"
    printed = run(command, RAY_USAGE_STATS_ENABLED="0").stdout
    (left,) = re.findall(r"(?m)^some \[(.*)\]$", printed)
    assert sorted(left.split(", ")) == ["0", "0", "0", "7"]
    some = pq.read_table("some")
    assert some.schema.types == [pa.int64(), pa.float32()] and scores_of(some) == scores_of(many.slice(0, 7))
    assert not Path("none").exists()  # The page says so.
