import numpy as np
import pytest

from data_prep.prepared.writer import ArrayWriter


@pytest.mark.parametrize("lengths", [[], [0], [5], [1, 0, 70_000, 3]])
def test_the_bytes_are_those_of_numpy_s_save(tmp_path, lengths):
    parts = [np.arange(length) * 2**40 for length in lengths]
    writer = ArrayWriter(tmp_path / "numbers.npy")
    for part in parts:
        writer.write(part)
    assert not (tmp_path / "numbers.npy").exists()
    writer.finish()
    np.save(tmp_path / "expected.npy", np.concatenate([np.empty(0, np.int64), *parts]))
    assert (tmp_path / "numbers.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_numbers_need_not_lie_side_by_side(tmp_path):
    writer = ArrayWriter(tmp_path / "numbers.npy")
    writer.write(np.arange(10)[::3])
    writer.finish()
    assert np.load(tmp_path / "numbers.npy").tolist() == [0, 3, 6, 9]
