"""Ids in words."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.evaluation.results import names_of_ids
from data_prep.prepared.schema import VOCABULARY_FILE, CategoricalField

FIELD = CategoricalField("C1", (10, 12), ((20, 23),))


def test_values_missing_out_of_vocabulary_and_unknown(tmp_path):
    table = {"field": ["C1"] * 3, "value": ["68fd1e64", "", "05db9164"], "count": [9, 5, 3], "id": [20, 21, 22]}
    pq.write_table(pa.table(table), tmp_path / VOCABULARY_FILE)
    names = ["05db9164", "(out of vocabulary) 1", "(missing)", "68fd1e64", "(id 99)"]
    assert names_of_ids(tmp_path, FIELD, np.array([22, 11, 21, 20, 99])) == names


def test_without_the_vocabulary_ids_are_shown(tmp_path):
    field = CategoricalField("C1", (10, 11), ())
    assert names_of_ids(tmp_path, field, np.array([10, 20])) == ["(out of vocabulary)", "(id 20)"]
