"""Ids in words."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.evaluation.results import names_of_ids
from data_prep.encoding.growing import added_file_name
from data_prep.prepared.schema import VOCABULARY_FILE, CategoricalField, DataFile

FIELD = CategoricalField("C1", (10, 12), ((20, 23),))


def write_values(path, first_id, *values):
    ids = range(first_id, first_id + len(values))
    pq.write_table(pa.table({"field": ["C1"] * len(ids), "value": values, "count": [1] * len(ids), "id": ids}), path)


def test_values_missing_out_of_vocabulary_and_unknown(tmp_path, tiny_schema):
    write_values(tmp_path / VOCABULARY_FILE, 20, "68fd1e64", "", "05db9164")
    names = ["05db9164", "(out of vocabulary) 1", "(missing)", "68fd1e64", "(id 99)"]
    assert names_of_ids(tmp_path, tiny_schema, FIELD, np.array([22, 11, 21, 20, 99])) == names


def test_without_the_vocabulary_ids_are_shown(tmp_path, tiny_schema):
    field = CategoricalField("C1", (10, 11), ())
    assert names_of_ids(tmp_path, tiny_schema, field, np.array([10, 20])) == ["(out of vocabulary)", "(id 20)"]


def test_added_values_are_those_that_schema_json_names(tmp_path, tiny_schema):
    """Values that were forgotten, as those of a part that is read again, leave a file that counts no more."""
    write_values(tmp_path / VOCABULARY_FILE, 20, "old")
    write_values(tmp_path / added_file_name(21), 21, "new", "newer")
    write_values(tmp_path / added_file_name(22), 22, "forgotten")
    files = (*tiny_schema.other_files, DataFile(added_file_name(21), 0, 1, "xxh3:0"))
    schema = replace(tiny_schema, other_files=files)
    assert names_of_ids(tmp_path, schema, FIELD, np.array([20, 21, 22])) == ["old", "new", "newer"]
