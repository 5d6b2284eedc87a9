import numpy as np
import pytest

from data_prep.prepared.reader import ids_of


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("form", ["bytes", "numbers"])  # of this format version, and of the first
def test_ids_are_read_from_bytes_and_from_numbers(dtype, form):
    ids = np.array([[1, 2, 3], [4, 5, np.iinfo(dtype).max]], dtype)
    stored = ids.ravel().view(np.uint8) if form == "bytes" else ids.ravel()
    read = ids_of(stored, 2, dtype)
    assert read.dtype == dtype
    assert np.array_equal(read, ids)
