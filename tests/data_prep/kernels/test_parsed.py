import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.kernels import numpy_kernels
from data_prep.kernels.parse import parse_chunk
from data_prep.kernels.parsed import Chunk, bucket_of
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from tests.data_prep.kernels.generated_logs import generate_log


@given(st.integers(3, 2**63 - 1) | st.integers(3, 10_000))
def test_large_integers_go_by_the_square_of_their_logarithm(integer):
    assert bucket_of(np.array([integer])).tolist() == [math.floor(math.log(integer) ** 2)]


@pytest.mark.parametrize(
    ("integer", "bucket"), [(-5, -5), (0, 0), (1, 1), (2, 2), (3, 1), (8, 4), (100, 21), (-(2**63), -(2**31))]
)
def test_buckets(integer, bucket):
    assert bucket_of(np.array([integer])).tolist() == [bucket]


def test_bucket_columns_come_after_the_others(make_line):
    lines = make_line(integer="-3") + "\n" + make_line(integer="") + "\n"
    rows = parse_chunk(Chunk(0, 2, lines.encode()), LogFormat()).rows
    assert len(PrepareOptions(integer_buckets=True).categorical_columns) == 39
    values, present = rows.number_columns(PrepareOptions(integer_buckets=True).categorical_columns)
    assert values.shape == present.shape == (39, 2)
    assert np.array_equal(values[:26], rows.values)
    assert (values[26:, 0] == 2**31 - 3).all()
    assert present[26:].tolist() == [[True, False]] * 13
    assert rows.number_columns(PrepareOptions().categorical_columns)[0] is rows.values


def cells_of(rows, log_format):
    """The cells of each field of parsed rows, None where they are missing."""
    cells = {}
    for name, kind in log_format.fields:
        if kind == "list":
            texts = iter(rows.lists[name].values.tolist())
            cells[name] = [[next(texts) for _ in range(length)] or None for length in rows.lists[name].lengths]
            continue
        if kind == "string":
            place = log_format.text_fields.index(name)
            values, present = rows.texts[place].tolist(), rows.strings_present[place]
        else:
            values, present = rows.numbers(*log_format.stored_in(name))
        cells[name] = [value if there else None for value, there in zip(values, present, strict=True)]
    return cells


@pytest.mark.parametrize("seed", range(20))
def test_a_blanked_field_is_missing_and_the_others_are_not_touched(seed):
    log = generate_log(seed, num_lines=60)
    (chunk,) = log.chunks(60)
    rows = numpy_kernels.parse_chunk(chunk, log.log_format).rows.with_lists(log.log_format, numpy_kernels)
    before = cells_of(rows, log.log_format)
    for name, _ in log.log_format.fields:
        expected = {**before, name: [None] * len(rows.labels)}
        assert cells_of(rows.blanked(log.log_format, name), log.log_format) == expected
        assert cells_of(rows, log.log_format) == before
