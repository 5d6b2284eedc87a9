"""Ray scores with a bundle, and gives the columns of the result even if no row is left."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def many(folder):
    """The golden rows 250 times with ids, so that there are several of Ray's batches."""
    golden = pq.read_table("bundle/golden.parquet")
    rows = pa.concat_tables([golden] * 250)
    return rows.append_column("id", pa.array(random.Random(1).sample(range(10**12), rows.num_rows)))


def test_scores_are_those_of_the_bundle(commands, run, many):
    (score,) = commands("Ray")
    pq.write_table(many.drop_columns(["score", "logit", "tolerance"]), "rows.parquet")
    run(score, RAY_USAGE_STATS_ENABLED="0")
    scored = pq.read_table("scored")
    assert scored.schema.types == [pa.int64(), pa.float32()]
    expected = dict(zip(many["id"].to_pylist(), many["score"].to_pylist(), strict=True))
    assert dict(zip(scored["id"].to_pylist(), scored["score"].to_pylist(), strict=True)) == expected


def test_a_batch_without_rows_has_the_columns(folder, many, monkeypatch):
    """Call the class of the program on no rows, as Ray does after a filter that leaves none."""
    source = (folder / "examples/doors/ray/score.py").read_text()
    program = source[: source.index("\nrows = ray.data")].replace("sys.argv[1:]", "'bundle', '', ''")
    space = {"__name__": "score"}
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    exec(program, space)
    none = space["Scorer"]("bundle")(many.slice(0, 0))
    assert none.num_rows == 0 and none.schema == pa.schema([("id", pa.int64()), ("score", pa.float32())])
