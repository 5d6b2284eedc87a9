"""Compare each native kernel with its NumPy definition, on good and on dirty lines."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.encoding.vocabulary import FieldVocabulary, make_lookup, write_lookup_tables
from data_prep.kernels import native, numpy_kernels
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.parsed import MISSING
from data_prep.kernels.strings import Strings

# CI has a compiler, so there a missing library is a failure.
if not native.is_available() and "CI" not in os.environ:
    pytest.skip("the native log kernels are not built; run: make native", allow_module_level=True)

values = st.integers(0, 9) | st.integers(0, 2**32 - 1)


@settings(max_examples=100)
@given(st.lists(st.tuples(values, st.booleans(), st.booleans()), max_size=80))
def test_values_are_counted_alike(rows):
    column, present, chosen = (np.array([row[i] for row in rows], t) for i, t in enumerate((np.uint32, bool, bool)))
    ours, theirs = native.count_values(column, present, chosen), numpy_kernels.count_values(column, present, chosen)
    assert np.array_equal(ours, theirs)
    assert ours.dtype == theirs.dtype


@settings(max_examples=100)
@given(
    st.lists(st.sets(values, max_size=30), min_size=1, max_size=4),
    st.lists(st.tuples(values, st.booleans()), min_size=1, max_size=200),
    st.sampled_from(["int32", "int64"]),
    st.sampled_from([1, 7, 1_000_000]),
)
def test_values_are_encoded_alike(known, rows, dtype, num_oov):
    fields, base = [], 2**31 - 100 if dtype == "int32" else 2**40
    for of_field in known:
        of_field = np.array([*of_field, MISSING])
        half = len(of_field) // 2
        ids = ((base, base + half), (base + 40, base + 40 + len(of_field) - half))  # as after --extend
        fields.append(
            make_lookup(FieldVocabulary("C", (3, 3 + num_oov), ids, of_field, np.ones(len(of_field), np.int64)))
        )
    column = np.array([value for value, _ in rows] + [value for of_field in known for value in of_field], np.uint32)
    present = np.array([is_present for _, is_present in rows] + [True] * (len(column) - len(rows)))
    columns, presents = np.tile(column, (len(fields), 1)), np.tile(present, (len(fields), 1))
    arguments = (fields, columns, presents, dtype)
    ours, theirs = native.encode_values(*arguments), numpy_kernels.encode_values(*arguments)
    assert ours.dtype == theirs.dtype == dtype
    assert np.array_equal(ours, theirs)


def test_kernels_refuse_another_layout_or_length():
    columns, present = np.arange(12, dtype=np.uint32).reshape(3, 4), np.ones((3, 4), np.bool_)
    fields = [make_lookup(FieldVocabulary("C", (3, 4), ((4, 6),), np.array([MISSING, 1]), np.array([1, 1])))] * 3
    for changed in (np.asfortranarray(columns), columns.astype(">u4")):
        with pytest.raises(TypeError, match=r"needs uint32 \[3, 4\] in C order, found"):
            native.encode_values(fields, changed, present, "int32")
        with pytest.raises(TypeError, match="needs uint32"):
            native.count_values(changed[0], present[0], present[0])
        with pytest.raises(TypeError, match="needs int64"):
            native.count_bins(changed[0], present[0], present[0])
    values, present = np.arange(4, dtype=np.uint32), np.ones(4, np.bool_)
    with pytest.raises(TypeError, match=r"needs bool \[4\] in C order, found bool \[3\]"):
        native.count_values(values, present, present[:3])
    texts = Strings.of([b"a", b"b"])
    with pytest.raises(TypeError, match=r"needs int64 \[2\] in C order, found int64 \[1\]"):
        native.count_strings(Strings(texts.data, texts.starts, texts.lengths[:1]))


def test_the_native_kernels_are_chosen_if_they_are_built():
    assert choose_kernels("auto") is choose_kernels("native") is native
    assert choose_kernels("numpy") is numpy_kernels


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20), st.booleans(), st.booleans())))
def test_integers_are_binned_alike(rows):
    integers, present, chosen = (np.array(column) for column in zip(*rows, (0, False, False), strict=True))
    columns = integers.astype(np.int64), present, chosen
    assert np.array_equal(native.count_bins(*columns), numpy_kernels.count_bins(*columns))


uint64s, counts_of_keys = st.integers(0, 2**64 - 1), st.integers(0, 6) | st.integers(2**32 - 9, 2**40)


@settings(max_examples=100)
@given(
    st.integers(1, 40),  # keys share cells, all of them in one column
    st.integers(1, 5),
    st.lists(st.tuples(st.dictionaries(uint64s, counts_of_keys, max_size=50), st.integers(0, 1)), max_size=4),
    st.lists(uint64s, max_size=40),
)
def test_a_sketch_counts_alike(width, rows, parts, others):
    ours, theirs = np.zeros((2, 2, rows, width), np.uint32)
    for part, half in parts:
        keys, counts = np.array([*part], np.uint64), np.array([*part.values()], np.int64)
        native.add_to_sketch(ours[half], keys, counts)
        numpy_kernels.add_to_sketch(theirs[half], keys, counts)
        np.testing.assert_array_equal(ours, theirs)
        keys = np.concatenate([keys, np.array(others, np.uint64)])
        np.testing.assert_array_equal(native.sketch_counts(ours, keys), numpy_kernels.sketch_counts(theirs, keys))


# The last two differ in length alone for the table of the native kernel.
strings = st.sampled_from([b"", b"a", b"b", b"12345678", b"123456789", b"ab", b"ab\0\0\0\0\0\n"]) | st.binary(
    max_size=40
)


@settings(max_examples=100)
@given(st.lists(strings, max_size=60), st.sampled_from([2**64 - 1, 0, 3 << 40]))
def test_strings_are_counted_alike(some, key_mask):
    texts = Strings.of([*some, b"left out"]).take(slice(len(some)))
    ours, theirs = native.count_strings(texts, key_mask), numpy_kernels.count_strings(texts)
    found, expected = (dict(zip(part.texts.tolist(), part.counts.tolist(), strict=True)) for part in (ours, theirs))
    assert found == expected
    assert len(ours) == len(found)
    if key_mask == 2**64 - 1:
        for name in ("keys", "counts"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name))
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype
        assert ours.texts.tolist() == theirs.texts.tolist()


_IN_BRACKETS = st.builds(
    "{}{}{}".format, st.sampled_from("[{("), st.text("a1,;\"' \\[]", max_size=12), st.sampled_from("]})")
)


@settings(max_examples=300)
@given(
    st.lists(st.text("a;bc", max_size=9) | _IN_BRACKETS, max_size=20),
    st.sampled_from("; '"),
    st.integers(1, 4),
    st.booleans(),
)
def test_lists_are_split_alike(cells, separator, max_length, trim):
    texts = Strings.of([cell.encode() for cell in cells])
    native_lists, numpy_lists = (of.split_lists(texts, separator, max_length, trim) for of in (native, numpy_kernels))
    assert native_lists.values.tolist() == numpy_lists.values.tolist()
    assert native_lists.lengths.tolist() == numpy_lists.lengths.tolist()
    assert native_lists.cut.tolist() == numpy_lists.cut.tolist()


_WRITERS = {
    "python": (",", repr),
    "json": (",", json.dumps),
    "tuple": (",", lambda values: repr((*values,))),
    "postgres": (",", lambda values: f"{{{','.join(map(json.dumps, values))}}}"),
    "numpy": (" ", lambda values: f"[{' '.join(map(repr, values))}]"),
}


@given(st.lists(st.text("ab,;' []()", min_size=1, max_size=8), min_size=1, max_size=5), st.sampled_from([*_WRITERS]))
def test_written_lists_have_their_values(values, writer):
    separator, write = _WRITERS[writer]
    for kernels in (native, numpy_kernels):
        texts = Strings.of([write(values).encode(), write(["other"]).encode()])
        for of_kind in (separator, "|"):  # which none of the values has
            assert kernels.split_lists(texts, of_kind, 9).values.tolist() == [*map(str.encode, values), b"other"]


def test_cells_that_are_no_list_are_split_as_before():
    cells = ["(no genres listed)", "[a]|[b]", "[[1|2]|[3]]", "[", "a]"]
    for kernels in (native, numpy_kernels):
        values = kernels.split_lists(Strings.of([cell.encode() for cell in cells]), "|", 9).values.tolist()
        assert values == [part.encode() for cell in cells for part in cell.split("|")]


@settings(max_examples=100)
@given(
    st.sets(st.binary(min_size=1, max_size=20), max_size=20),
    st.lists(st.tuples(strings, st.booleans()), min_size=1, max_size=60),
    st.sampled_from([1, 7, 1_000_000]),
)
def test_strings_are_found_alike(known, asked, num_oov):
    texts = Strings.of([b"", *sorted(known)])
    numbers = np.array([MISSING, *range(1, len(texts))])
    ids = ((2**33, 2**33 + len(texts)),)
    field = FieldVocabulary("C", (3, 3 + num_oov), ids, numbers, np.ones_like(numbers), texts)
    with tempfile.TemporaryDirectory() as folder:
        looked_up = write_lookup_tables([field], Path(folder) / "lookup.bin").opened[1][0]
        cells = Strings.of([*(cell for cell, _ in asked), *known])
        present = np.array([is_present for _, is_present in asked] + [True] * len(known))
        ours, theirs = (find(looked_up, cells, present) for find in (native.find_strings, numpy_kernels.find_strings))
    assert ours.dtype == theirs.dtype
    assert np.array_equal(ours, theirs)
