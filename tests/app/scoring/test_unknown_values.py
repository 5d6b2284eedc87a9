"""A log whose values are written in another form than the model knows is scored with a warning."""

import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.cli import predict as command
from app.scoring.batch_prediction import predict
from app.scoring.bundle_model import DISTRIBUTION
from app.scoring.distribution import Distribution
from app.scoring.predictor import Predictor
from data_prep.encoding.rows_to_score import arrow_table
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare_table

NUM_ROWS = 400
KINDS = {"code": "string", "tags": "list", "shop": "string", "user": "string", "age": "integer", "click": "label"}


@pytest.fixture(scope="module")
def table():
    generator = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "code": generator.integers(1, 40, NUM_ROWS),
            "tags": [list("xyz"[: generator.integers(4)]) for _ in range(NUM_ROWS)],
            "shop": generator.choice(["a", "b", *[None] * 8], NUM_ROWS),
            "user": [f"{number:x}" for number in generator.integers(0, 1 << 60, NUM_ROWS)],  # once each: none has an id
            "age": generator.integers(20, 60, NUM_ROWS),
            "click": generator.integers(0, 2, NUM_ROWS),
        }
    )


@pytest.fixture(scope="module")
def bundle(make_bundle, make_state, tiny_config, tmp_path_factory, table):
    """Makes a bundle of the table that has the counts of all its rows."""

    def make(model=(), **options):
        options = PrepareOptions(
            LogFormat(KINDS, separator=",", header=True), crosses=(("code", "shop"),), workers=1, **options
        )
        prepared, config = tmp_path_factory.mktemp("unknown") / "prepared", tiny_config(*model)
        schema = prepare_table(arrow_table(table), prepared, options)
        bundle = make_bundle(prepared, config, make_state(schema, config))
        predictor, counts = Predictor.open(bundle), Distribution(schema)
        rows = predictor.encoder.encode_rows(predictor.parsed(table))
        counts.add(rows, predictor.logits(table))
        counts.write(bundle)
        return bundle

    return make


@pytest.fixture(scope="module")
def counted(bundle):
    return bundle(min_count=2)


@pytest.fixture
def scored(table, tmp_path):
    """Scores the table with other columns, from a file in small chunks. Gives the fields that are unknown now."""

    def score(bundle, num_rows=NUM_ROWS, **columns):
        rows = pa.table(table.assign(**columns).head(num_rows))
        pq.write_table(rows, tmp_path / "log.parquet", row_group_size=100)
        inputs, output = [str(tmp_path / "log.parquet")], str(tmp_path / "scores.csv")
        return predict(bundle, inputs, output, overwrite=True, chunk_bytes=4_000).get("unknown_values", {})

    return score


def test_values_that_the_model_knew_in_its_held_out_rows_are_named_if_they_are_unknown_now(counted, scored, table):
    assert scored(counted) == {}
    padded = [f"0{code}" for code in table["code"]]
    assert scored(counted, code=padded) == {"code": {"unknown": NUM_ROWS, "rows": NUM_ROWS, "held_out_share": 0}}
    assert scored(counted, code=[*padded[:300], *table["code"].astype(str)[300:]]) == {}  # three in four


def test_a_few_rows_tell_nothing(counted, scored, table):
    assert scored(counted, 19, code="07") == {}
    assert list(scored(counted, 20, code="07")) == ["code"]


def test_a_missing_cell_is_not_an_unknown_value(counted, scored, table):
    assert scored(counted, code=None) == {}
    other = table["shop"].str.upper()
    assert scored(counted, shop=other)["shop"]["rows"] == other.notna().sum() < NUM_ROWS / 2
    assert scored(counted, shop=["A"] * 19 + [None] * (NUM_ROWS - 19)) == {}


def test_lists_are_compared_by_their_first_values(counted, scored, table):
    upper = [[tag.upper() for tag in tags] for tags in table["tags"]]
    assert scored(counted, tags=upper)["tags"]["rows"] == sum(map(bool, upper))


def test_a_field_that_knew_few_values_there_is_not_named(counted, scored):
    assert scored(counted, user="another") == {}


def test_a_field_that_no_part_of_the_model_sees_is_not_named(bundle, scored):
    of_model = ("model.wide_fields=['code*shop']", "model.deep_fields=['user']")
    new = {"code": "07", "shop": "A", "tags": [["X"]] * NUM_ROWS}
    assert list(scored(bundle(of_model, min_count=2), **new)) == ["code", "shop"]


def test_a_hashed_field_and_a_bundle_without_counts_have_none(bundle, counted, scored, tmp_path):
    assert scored(bundle(vocabulary="hash"), code="07") == {}
    before = shutil.copytree(counted, tmp_path / "before")
    (before / DISTRIBUTION).unlink()
    assert DISTRIBUTION not in Predictor.open(counted).manifest.files
    assert scored(before, code="07") == {}


def test_the_command_warns_and_ends_with_0(counted, table, tmp_path, caplog):
    log = tmp_path / "log.csv"
    table.assign(code="0" + table["code"].astype(str)).drop(columns="tags").assign(tags="x").to_csv(log, index=False)
    words = [str(counted), str(log), str(tmp_path / "scores.csv"), "--workers", "1"]
    assert command.main(command.add_arguments, "app.cli.predict", words) == 0
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "column code: 400 of 400 rows have values that the model does not know, as had 0.0 % of its held-out rows. Are "
        "they written as there (7, not 07)?"
    ]
