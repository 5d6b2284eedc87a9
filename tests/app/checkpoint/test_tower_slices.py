import numpy as np
import pytest

from app.checkpoint.tower_slices import dense_files, join, slice_file, slice_name


def test_slices_join_to_the_whole_in_any_order():
    rng = np.random.default_rng(1)
    whole = {"tower.matrix_0": rng.random((4, 6)), "tower.bias_0": rng.random(6), "beta1_power": np.float32(0.9)}
    slices = [("beta1_power", whole["beta1_power"])]
    for start in (3, 0):
        columns = (slice(0, 4), slice(start, start + 3))
        slices.append((slice_name("tower.matrix_0", columns, (4, 6)), whole["tower.matrix_0"][columns]))
        slices.append((slice_name("tower.bias_0", columns[1:], (6,)), whole["tower.bias_0"][columns[1]]))
    assert slices[1][0] == "tower.matrix_0[0:4, 3:6] of [4, 6]"
    joined = join(slices)
    assert joined.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(joined[name], array)
    with pytest.raises(ValueError, match=r"the slices of tower.matrix_0 have 12 values, the whole has 24"):
        join(slices[:2])


def test_dense_files_are_known_by_their_names():
    names = ["deep-0-of-2.safetensors", "dense.safetensors", slice_file(1, 4), "dense-x-of-4.safetensors"]
    assert dense_files(names) == ["dense.safetensors", "dense-1-of-4.safetensors"]


def part(name, shape):
    return name, np.zeros(shape)


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ([part("a[0:99999999999] of [99999999999]", 3)], "the slices of a have 3 values, the whole has 99999999999"),
        ([part("a[0:2] of [4]", 2), part("a[0:2] of [4]", 2)], "the slices of a overlap"),
        (
            [part("a[0:2] of [4]", 2), part("a[3:5] of [4]", 2)],
            r"the slice a\[3:5\] of \[4\] is float64 \[2\]; expected",
        ),
        ([part("a[0:2] of [4]", 2), part("a[2:3] of [4]", 2)], r"the slice a\[2:3\]"),
        ([part("a[0:2] of [4]", 2), part("a[2:4] of [5]", 2)], r"the slice a\[2:4\] of \[5\]"),
        ([part("a[0:4] of [2, 2]", 4)], r"the slice a\[0:4\] of \[2, 2\]"),
        ([part("a[0:2] of [4]", 2), ("a[2:4] of [4]", np.zeros(2, "f4"))], "is float32"),
    ],
)
def test_slices_that_make_up_no_whole(slices, message):
    with pytest.raises(ValueError, match=message):
        join(slices)
