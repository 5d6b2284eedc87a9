import numpy as np
import pytest
from safetensors.numpy import save_file

from app.checkpoint.manifest import read_manifest, write_manifest
from app.checkpoint.read import dense_files, join
from app.checkpoint.write import ModelState, write_checkpoint
from common.files import FileRecord, checksum
from tests.checkpoints import load, plain_manifest


@pytest.fixture
def whole():
    rng = np.random.default_rng(1)
    return {"tower.matrix_0": rng.random((4, 6)), "tower.bias_0": rng.random(6), "beta1_power": np.array(0.9)}


@pytest.fixture
def slices(whole):
    """Those of two ranks, each with its half of the columns."""
    matrix, bias = whole["tower.matrix_0"], whole["tower.bias_0"]
    of_ranks = [
        {
            f"tower.matrix_0[0:4, {i}:{i + 3}] of [4, 6]": matrix[:, i : i + 3],
            f"tower.bias_0[{i}:{i + 3}] of [6]": bias[i : i + 3],
        }
        for i in (0, 3)
    ]
    of_ranks[0]["beta1_power"] = whole["beta1_power"]
    return of_ranks


def test_slices_join_to_the_whole_in_any_order(whole, slices):
    joined = join([*slices[1].items(), *slices[0].items()])
    assert joined.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(joined[name], array)
    with pytest.raises(ValueError, match=r"the slices of tower.matrix_0 have 12 values, the whole has 24"):
        join(slices[0].items())


def test_a_checkpoint_of_slices_is_read_whole(tmp_path, whole, slices):
    """Release 1.0.0 wrote such checkpoints with checkpoint.tower_slices=true."""
    path = write_checkpoint(tmp_path, ModelState(whole, {}), plain_manifest(3))
    manifest = read_manifest(path)
    manifest.files.pop("dense.safetensors")
    (path / "dense.safetensors").unlink()
    for rank, arrays in enumerate(slices):
        name = f"dense-{rank}-of-2.safetensors"
        save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, path / name)
        manifest.files[name] = FileRecord(size_bytes=(path / name).stat().st_size, checksum=checksum(path / name))
    write_manifest(path, manifest)
    _, state = load(path)
    assert state.dense.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(state.dense[name], array)


def test_dense_files_are_known_by_their_names():
    names = ["deep-0-of-2.safetensors", "dense.safetensors", "dense-1-of-4.safetensors", "dense-x-of-4.safetensors"]
    assert dense_files(names) == ["dense.safetensors", "dense-1-of-4.safetensors"]


def part(name, shape):
    return name, np.zeros(shape)


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ([part("a[0:99999999999] of [99999999999]", 3)], "the slices of a have 3 values, the whole has 99999999999"),
        ([part("a[0:2] of [4]", 2), part("a[0:2] of [4]", 2)], "the slices of a overlap"),
        ([part("a[0:2] of [4]", 2), part("a[3:5] of [4]", 2)], r"slice a\[3:5\] of \[4\] is float64 \[2\]; expected"),
        ([part("a[0:2] of [4]", 2), part("a[2:3] of [4]", 2)], r"the slice a\[2:3\]"),
        ([part("a[0:2] of [4]", 2), part("a[2:4] of [5]", 2)], r"the slice a\[2:4\] of \[5\]"),
        ([part("a[0:4] of [2, 2]", 4)], r"the slice a\[0:4\] of \[2, 2\]"),
        ([part("a[0:2] of [4]", 2), ("a[2:4] of [4]", np.zeros(2, "f4"))], "is float32"),
    ],
)
def test_slices_that_make_up_no_whole(slices, message):
    with pytest.raises(ValueError, match=message):
        join(slices)
