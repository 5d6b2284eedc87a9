import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.kernels import numpy_kernels
from data_prep.kernels.parse import parse_chunk
from data_prep.kernels.parsed import Chunk, bucket_of
from data_prep.options.columns import number_groups
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from tests.data_prep.kernels.generated_logs import generate_log
from tests.data_prep.kernels.test_parse import cells_of


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
    values, present = rows.number_columns(number_groups(PrepareOptions(integer_buckets=True).categorical_columns))
    assert values.shape == present.shape == (39, 2)
    assert np.array_equal(values[:26], [rows.columns[name].values for name in LogFormat().hex_fields])
    assert (values[26:, 0] == 2**31 - 3).all()
    assert present[26:].tolist() == [[True, False]] * 13
    assert np.array_equal(values[:26], rows.number_columns(number_groups(PrepareOptions().categorical_columns))[0])


@pytest.mark.parametrize("seed", range(20))
def test_a_blanked_field_is_missing_and_the_others_are_not_touched(seed):
    log = generate_log(seed, num_lines=60)
    (chunk,) = log.chunks(60)
    rows = numpy_kernels.parse_chunk(chunk, log.log_format).rows.with_lists(log.log_format, numpy_kernels)
    before = cells_of(rows, log.log_format)
    for name, _ in log.log_format.fields:
        expected = {**before, name: [None] * len(rows.labels)}
        blank = rows.blanked(name)
        assert not blank.lists.get(name) or not blank.lists[name].lengths.any()
        assert cells_of(blank, log.log_format) == expected
        assert cells_of(rows, log.log_format) == before
    names = ["", *(name for name, _ in log.log_format.fields), ""]
    copies = cells_of(rows.blanked(*names), log.log_format)
    for name, cells in copies.items():
        assert cells == [
            value for each in names for value in ([None] * len(before[name]) if each == name else before[name])
        ]
