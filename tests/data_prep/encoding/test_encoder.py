"""The module that encodes rows. `kernels/test_third_voice.py` compares its rows with a plain reader's."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.encoding.from_values import mappings_to_chunk
from data_prep.encoding.vocabulary import FieldVocabulary, make_lookup, write_lookup_tables
from data_prep.kernels import native, numpy_kernels
from data_prep.kernels.numpy_kernels import bucket, encode_values
from data_prep.kernels.parsed import MISSING, Chunk
from data_prep.options.log_format import LogFormat, VectorForm
from data_prep.raw_log.json_lines import JsonChunk
from data_prep.raw_log.storage import FileState, LogFile
from tests.programs import run_python


def test_mindspore_is_not_imported():
    run_python("-c", "import sys, data_prep.encoding.encoder; sys.exit('mindspore' in sys.modules)")


def encode(field, values, present, dtype="int32"):
    return encode_values([field], np.array([values], np.uint32), np.array([present]), dtype)[:, 0].tolist()


def test_the_largest_ids_need_int64():
    vocabulary = FieldVocabulary("C1", (5, 6), ((2**33, 2**33 + 2),), np.array([MISSING, 0xFFFFFFFF]), np.array([2, 1]))
    assert encode(make_lookup(vocabulary), [2**32 - 1], [True], "int64") == [2**33 + 1]


@settings(max_examples=50)
@given(st.sets(st.integers(0, 9) | st.integers(0, 2**32 - 1), max_size=40), st.randoms())
def test_every_value_is_found_through_the_file(tmp_path_factory, values, random):
    values = [MISSING, *values]
    random.shuffle(values)
    half = len(values) // 2
    ranges = ((50, 50 + half), (1000, 1000 + len(values) - half))  # as after --extend
    vocabulary = FieldVocabulary("C1", (3, 4), ranges, np.array(values), np.ones(len(values), np.int64))
    tables = write_lookup_tables((vocabulary, vocabulary), tmp_path_factory.mktemp("lookup") / "lookup.bin")
    ids = dict(zip(values, vocabulary.value_ids.tolist(), strict=True))
    for field in tables.opened[0]:
        known = [value for value in values if value != MISSING]
        assert encode(field, known, [True] * len(known)) == [ids[value] for value in known]
        unknown = sorted({0, 1, 5, 77, 2**32 - 1} - set(known))
        assert encode(field, unknown, [True] * len(unknown)) == [3] * len(unknown)
        assert encode(field, [0], [False]) == [ids[MISSING]]
        # The directory leads to each word.
        for place, word in enumerate(field.words.tolist()):
            high = word >> 32 + field.shift
            assert field.starts[high] <= place < field.starts[high + 1]


def test_buckets_are_even_and_fixed():
    values = np.arange(70_000, dtype=np.uint32)
    assert (abs(np.bincount(bucket(values, 7), minlength=7) - 10_000) < 500).all()
    # MurmurHash3 makes 0x514e28b7 of 1. A changed hash would give the rows of tomorrow other ids.
    assert bucket(np.array([0, 1, 2, 2**32 - 1], np.uint32), 1000).tolist() == [0, 317, 191, 507]


FORMAT = LogFormat({"click": "label", "v": "vector"}, vectors={"v": VectorForm(2)}, separator=",", quotes=True)


def of_json(rows):
    lines = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    return JsonChunk(
        Chunk(0, len(rows), lines), FORMAT, LogFile("log.jsonl", "log.jsonl", FileState(len(lines), 0))
    ).load()


@pytest.mark.parametrize("kernels", [native, numpy_kernels])
@pytest.mark.parametrize("to_chunk", [of_json, lambda rows: mappings_to_chunk(rows, FORMAT)], ids=["JSON", "mappings"])
@pytest.mark.parametrize("good", [[1, 0.5], [0.5, 1.5], "0.5 1", []])
@pytest.mark.parametrize(
    "bad", [[True, 0.5], [0.5, True], [True, 1], [1, False], [True, False], [None, 0.5], [[1], 2], ["x", 1], [{}, ","]]
)
def test_lists_of_other_values_are_bad_vectors(kernels, to_chunk, good, bad):
    parsed = kernels.parse_chunk(to_chunk([{"click": 1, "v": good}, {"click": 0, "v": bad}]), FORMAT)
    assert parsed.rejects_by_reason == {"vector": 1}
    values, present = parsed.rows.columns["v"]
    assert present.tolist() == [good != []]
    assert np.array_equal(values, [[0.5, 1.0] if good == "0.5 1" else good or [0, 0]])
