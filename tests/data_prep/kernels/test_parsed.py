import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.kernels import numpy_kernels
from data_prep.kernels.parsed import bucket_of
from tests.data_prep.kernels.generated_logs import generate_log
from tests.data_prep.kernels.test_parse import cells_of


@given(st.integers(3, 2**63 - 1) | st.integers(3, 10_000))
def test_large_integers_go_by_the_square_of_their_logarithm(integer):
    assert bucket_of(np.array([integer])).tolist() == [math.floor(math.log(integer) ** 2)]


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
    for name, cells in cells_of(rows.blanked(*names), log.log_format).items():
        assert cells == [
            value for each in names for value in ([None] * len(before[name]) if each == name else before[name])
        ]
