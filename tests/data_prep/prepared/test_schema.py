import json
from dataclasses import replace

import numpy as np
import pytest

from data_prep.options.log_format import LogFormat
from data_prep.options.options_file import REMOVED
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared import schema
from data_prep.prepared.data_files import all_files, block_sizes, union, write_schema

SCHEMA = schema.Schema(
    format_version=schema.FORMAT_VERSION,
    numeric=(schema.NumericField("I1", "I1", "quantile", {}, ((0.0, 0.5), (9.0, 1.0))),),
    categorical=(
        schema.CategoricalField("C1", (1, 2), ((2, 5), (7, 9))),
        schema.CategoricalField("C1*C2", (2, 3), ((9, 12),), cross=("C1", "C2")),
        schema.CategoricalField("genres", (3, 4), ((12, 15),), max_length=6, pool="sum"),
    ),
    vocabulary_size=15,
    ids_dtype="int32",
    block_rows=10,
    splits={
        "train": schema.Split(25, 5, (schema.DataFile("a", 10, 1, "xxh3:0"), schema.DataFile("b", 15, 1, "xxh3:1"))),
        "valid": schema.Split(0, 0, ()),
    },
    rejected_rows=0,
    options={"min_count": 10},
    source={"name": "train.txt"},
    other_files=(schema.DataFile("vocabulary.parquet", 0, 1, "xxh3:2"),),
)


def test_written_and_read_back(tmp_path):
    write_schema(SCHEMA, tmp_path)
    assert schema.read_schema(tmp_path) == SCHEMA
    assert [path.name for path in tmp_path.iterdir()] == [schema.SCHEMA_FILE]


def test_what_follows_from_the_fields():
    assert (SCHEMA.num_numeric, SCHEMA.num_categorical, SCHEMA.num_positions) == (1, 3, 8)
    assert SCHEMA.categorical[0].num_values == 5
    assert block_sizes(SCHEMA, "train") == [10, 10, 5]
    assert block_sizes(SCHEMA, "valid") == []
    assert [file.name for file in all_files(SCHEMA)] == ["a", "b", "vocabulary.parquet"]
    assert SCHEMA.splits["train"].click_rate == 0.2
    assert SCHEMA.splits["valid"].click_rate != SCHEMA.splits["valid"].click_rate  # NaN


def test_an_unfinished_or_missing_folder_says_what_to_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no schema.json.*data_prep prepare LOG"):
        schema.read_schema(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"the folder does not exist"):
        schema.read_schema(tmp_path / "none")


def test_a_file_in_place_of_a_folder_says_what_to_give(tmp_path):
    (tmp_path / "train.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"train.txt is a file, not .*: .*data_prep prepare .*train.txt "):
        schema.read_schema(tmp_path / "train.txt")
    write_schema(SCHEMA, tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"schema.json is a file, not .* give the folder .*: {tmp_path}$"):
        schema.read_schema(tmp_path / schema.SCHEMA_FILE)


@pytest.mark.parametrize("damage", ["cut", "no version", "no fields", "unknown field", "other version"])
def test_a_damaged_schema_is_an_error(tmp_path, damage):
    write_schema(SCHEMA, tmp_path)
    path = tmp_path / schema.SCHEMA_FILE
    content = json.loads(path.read_text())
    if damage == "no version":
        del content["format_version"]
    elif damage == "no fields":
        del content["categorical"]
    elif damage == "unknown field":
        content["colour"] = "red"
    elif damage == "other version":
        content["format_version"] = 99
    text = json.dumps(content)
    path.write_text(text[:50] if damage == "cut" else text)
    message = "version 99, this program reads 4; prepare the" if damage == "other version" else "is damaged"
    with pytest.raises(ValueError, match=message):
        schema.read_schema(tmp_path)


def test_removed_settings_of_an_earlier_release_are_ignored():
    data = LogFormat({"click": "label", "n": "integer", "site": "string"}, separator=",", header=True)
    options = {**PrepareOptions(data=data, integer_buckets=True).decisive(), "numeric_transform": "log1p"}
    now = replace(SCHEMA, options=options)
    removed = {name.rpartition(".")[2]: 1 for name in REMOVED if name.startswith("prepare.data.")}
    earlier = replace(now, options={**options, "block_rows": 64, "data": {**options["data"], **removed}})
    assert removed and earlier.log_format == now.log_format == data
    assert earlier.encoding == now.encoding
    assert [column.name for column in now.encoding.categorical_columns] == ["site", "n_bucket"]


@pytest.mark.parametrize("seed", range(10))
def test_a_union_is_that_of_sets(seed):
    rng = np.random.default_rng(seed)
    arrays = [np.sort(rng.integers(-5, 20, rng.integers(0, 15))) for _ in range(1 + seed % 3)]
    found = union(*arrays)
    assert found.tolist() == sorted({value for array in arrays for value in array.tolist()})
    assert found.dtype == np.int64
