import dataclasses

import numpy as np
import pytest

from benchmarks.accuracy.real_tables import Table, _columns, interval, read_table
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import CategoricalField, NumericField


def test_a_table_is_joined_by_the_first_columns_of_others(tmp_path):
    (tmp_path / "log").write_text("user\titem\tlabel\nu1\ti1\t1\nu2\ti1\t0\nu1\ti9\t1\n")
    (tmp_path / "users").write_text("user\tage\nu1\t20\nu2\t30\n")
    (tmp_path / "items").write_text('item\ttitle\ni1\tthe "one"\n')
    header, lines = read_table(tmp_path, Table("log", None, ("users", "items")))
    assert header == "user\titem\tlabel\tage\ttitle\n"
    assert lines == ['u1\ti1\t1\t20\tthe "one"\n', 'u2\ti1\t0\t30\tthe "one"\n']  # i9 is in no file


def test_trees_see_numbers_codes_and_the_values_of_lists(tiny_schema):
    fields = (
        CategoricalField("a", (1, 2), ((5, 7),)),
        CategoricalField("g", (2, 3), ((7, 9),), (), 3),
        CategoricalField("x_bucket", (3, 4), ((9, 12),)),
    )
    schema = dataclasses.replace(tiny_schema, numeric=(NumericField("x", "x", "log1p", {}),), categorical=fields)
    ids = np.array([[1, 7, 8, -1, 9], [6, 2, -1, -1, 11]], np.int32)
    rows = Examples(ids, np.array([[0.5], [2.0]], np.float32), np.zeros(2, np.float32))
    features, categories = _columns(rows, schema)
    assert features.tolist() == [[0.5, 0, 1, 1], [2.0, 2, 0, 0]] and categories == [1]


def test_the_interval_is_students():
    mean, half = interval([0.1, 0.2, 0.3, 0.4, 0.5])
    assert mean == pytest.approx(0.3) and half == pytest.approx(2.776445 * 0.158114 / 5**0.5, rel=1e-4)
