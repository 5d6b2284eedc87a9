"""The distinct numbers of arrays."""

import numpy as np
import pytest

from data_prep.prepared.data_files import union


@pytest.mark.parametrize("seed", range(10))
def test_a_union_is_that_of_sets(seed):
    rng = np.random.default_rng(seed)
    arrays = [np.sort(rng.integers(-5, 20, rng.integers(0, 15))) for _ in range(1 + seed % 3)]
    found = union(*arrays)
    assert found.tolist() == sorted({value for array in arrays for value in array.tolist()})
    assert found.dtype == np.int64
