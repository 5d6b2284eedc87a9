from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.vocabulary import MISSING, ids_dtype, make_vocabulary, order_values, write_vocabulary


def oracle(columns, num_numeric, min_count):
    """{(field, text): (count, id)} of columns {field: cells}: the rule of ids in plain Python."""
    ids, next_id = {}, num_numeric + len(columns)
    for field, cells in columns.items():
        counts = Counter(cells)
        named = {value for value, count in counts.items() if count >= min_count} | {""}
        for value in sorted(named, key=lambda value: (-counts[value], value)):
            ids[field, value] = (counts[value], next_id)
            next_id += 1
    return ids


cells = st.lists(st.sampled_from(["", "00000000", "0000000a", "ffffffff", "80000000", "12345678"]), max_size=25)


@settings(max_examples=100, deadline=None)
@given(st.lists(cells, min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 6))
def test_ids_are_the_oracles(tmp_path_factory, columns, num_numeric, min_count):
    columns = {f"C{i}": cells for i, cells in enumerate(columns, 1)}
    ordered = []
    for cells in columns.values():
        counts = Counter(int(cell, 16) for cell in cells if cell)
        values = np.array(sorted(counts), np.int64)
        ordered.append(
            order_values(values, np.array([counts[v] for v in sorted(counts)], np.int64), cells.count(""), min_count)
        )
    vocabulary = make_vocabulary(list(columns), ordered, num_numeric)
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.parquet"
    write_vocabulary(vocabulary, path)

    written = pq.read_table(path).to_pylist()
    assert [field.oov_id for field in vocabulary] == list(range(num_numeric, num_numeric + len(columns)))
    expected = oracle(columns, num_numeric, min_count)
    assert {(row["field"], row["value"]): (row["count"], row["id"]) for row in written} == expected
    assert [row["id"] for row in written] == sorted(row["id"] for row in written)
    assert vocabulary[-1].end_id == num_numeric + len(columns) + len(expected)


def test_the_edge_of_min_count():
    values, counts = order_values(np.array([1, 2, 3]), np.array([9, 10, 11]), num_missing=0, min_count=10)
    assert values.tolist() == [3, 2, MISSING]
    assert counts.tolist() == [11, 10, 0]


def test_missing_goes_by_its_count_and_before_equal_counts():
    values, _ = order_values(np.array([0, 7]), np.array([5, 6]), num_missing=5, min_count=1)
    assert values.tolist() == [7, MISSING, 0]


@pytest.mark.parametrize(("size", "dtype"), [(2**31 - 1, "int32"), (2**31, "int64")])
def test_ids_dtype(size, dtype):
    assert ids_dtype(size) == dtype
