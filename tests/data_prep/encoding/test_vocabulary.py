from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.encoding import vocabulary
from data_prep.encoding.vocabulary import FieldVocabulary, VocabularyWriter, ids_dtype, make_vocabulary, order_values
from data_prep.kernels.parsed import MISSING
from data_prep.options.columns import CategoricalColumn


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


def words(counts, min_count=1):
    """Words of (value, count), ascending, of {value: count}."""
    return np.array([v << 32 | c for v, c in sorted(counts.items()) if c >= min_count], np.uint64)


def write(path, vocabulary):
    writer = VocabularyWriter(
        path,
        [
            CategoricalColumn(field.name, "bucket" if field.name.endswith("_bucket") else "hex32", place)
            for place, field in enumerate(vocabulary)
        ],
    )
    for field in vocabulary:
        writer.add(field)
    writer.finish()


cells = st.lists(st.sampled_from(["", "00000000", "0000000a", "ffffffff", "80000000", "12345678"]), max_size=25)


@settings(max_examples=100)
@given(st.lists(cells, min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 6))
def test_ids_are_the_oracles(tmp_path_factory, columns, num_numeric, min_count):
    columns = {f"C{i}": cells for i, cells in enumerate(columns, 1)}
    ordered = [
        order_values(words(Counter(int(cell, 16) for cell in cells if cell), min_count), cells.count(""))
        for cells in columns.values()
    ]
    vocabulary = list(make_vocabulary(dict.fromkeys(columns, 1), ordered, num_numeric))
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.parquet"
    write(path, vocabulary)

    written = pq.read_table(path).to_pylist()
    assert [field.oov_ids for field in vocabulary] == [
        (i, i + 1) for i in range(num_numeric, num_numeric + len(columns))
    ]
    expected = oracle(columns, num_numeric, min_count)
    assert {(row["field"], row["value"]): (row["count"], row["id"]) for row in written} == expected
    assert [row["id"] for row in written] == sorted(row["id"] for row in written)
    assert vocabulary[-1].id_ranges[-1][1] == num_numeric + len(columns) + len(expected)


def test_missing_goes_by_its_count_and_before_equal_counts():
    values, counts, _ = order_values(words({0: 5, 7: 6, 2**32 - 1: 2**32 - 1}), num_missing=5)
    assert values.tolist() == [2**32 - 1, 7, MISSING, 0]
    assert counts.tolist() == [2**32 - 1, 6, 5, 5]


def test_the_most_frequent_values_stay_and_missing_too():
    values, _, _ = order_values(words({1: 9, 2: 8, 3: 8, 4: 7}), num_missing=3, max_size=2)
    assert values.tolist() == [1, 2, MISSING]


def test_fields_have_as_many_ids_out_of_vocabulary_as_asked_for():
    ordered = [order_values(words({}), 0), order_values(words({7: 1}), 0)]
    first, second = make_vocabulary({"C1": 10, "C2": 10}, ordered, num_numeric=5)
    assert (first.oov_ids, second.oov_ids) == ((5, 15), (15, 25))
    assert (first.id_ranges, second.id_ranges) == (((25, 26),), ((26, 28),))


def test_a_large_field_has_several_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "_GROUP_ROWS", 2)
    values = list(make_vocabulary({"C1": 1}, [order_values(words({1: 9, 2: 8, 3: 7}), 10)], 0))
    write(tmp_path / "v.parquet", values)
    assert pq.ParquetFile(tmp_path / "v.parquet").num_row_groups == 2
    assert pq.read_table(tmp_path / "v.parquet")["value"].to_pylist() == ["", "00000001", "00000002", "00000003"]


def test_buckets_are_written_as_numbers(tmp_path):
    field = FieldVocabulary(
        "I2_bucket", (0, 1), ((1, 4),), np.array([2**31 - 3, MISSING, 2**31 + 44]), np.array([3, 2, 1])
    )
    write(tmp_path / "v.parquet", [field])
    assert pq.read_table(tmp_path / "v.parquet")["value"].to_pylist() == ["-3", "", "44"]


@pytest.mark.parametrize(("size", "dtype"), [(2**31 - 1, "int32"), (2**31, "int64")])
def test_ids_dtype(size, dtype):
    assert ids_dtype(size) == dtype
