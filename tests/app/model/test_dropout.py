"""Dropout masks: a function of seed, step, row, layer and unit, and the same one on every device."""

import numpy as np
import pytest

from app.model.dense_state import DropoutNoise, keep_mask

RATE = 0.25


def test_the_share_of_dropped_units_is_the_rate():
    mask = keep_mask(DropoutNoise(1, RATE, 3).of_step(7)[1], 2000, 500)
    assert mask.mean() == pytest.approx(1 - RATE, abs=5 * (RATE * (1 - RATE) / mask.size) ** 0.5)
    for axis, size in ((0, 2000), (1, 500)):
        assert np.abs(mask.mean(axis) - 0.75).max() < 5 * (RATE * (1 - RATE) / size) ** 0.5


def test_seed_step_and_layer_give_other_masks_and_nothing_else_does():
    def mask(seed=1, step=7, layer=0):
        return keep_mask(DropoutNoise(seed, 0.5, 2).of_step(step)[layer], 400, 100)

    np.testing.assert_array_equal(mask(), mask())
    for other in (mask(seed=2), mask(step=8), mask(layer=1)):
        assert np.mean(mask() == other) == pytest.approx(0.5, abs=0.02)


def test_a_rank_s_rows_have_their_place_in_the_global_batch():
    whole = keep_mask(DropoutNoise(1, RATE, 1).of_step(3)[0], 90, 40)
    slices = [keep_mask(DropoutNoise(1, RATE, 1).of_step(3, first)[0], 30, 40) for first in (0, 30, 60)]
    np.testing.assert_array_equal(np.concatenate(slices), whole)


def test_no_unit_is_dropped_at_rate_0():
    assert keep_mask(DropoutNoise(1, 0.0, 1).of_step(1)[0], 50, 50).all()


@pytest.mark.usefixtures("cpu")
def test_operators_drop_the_same_units():
    import mindspore as ms
    from mindspore import Tensor, nn, ops

    from app.model.dense_layer import dropout_multiplier

    class Multiplier(nn.Cell):
        def construct(self, noise: ms.Tensor) -> ms.Tensor:
            return dropout_multiplier(noise, noise[1] + ops.arange(300, dtype=ms.int32), ops.arange(70, dtype=ms.int32))

    noise, multiplier = DropoutNoise(2**62, RATE, 2).of_step(10**6, first_row=2**31 - 5), Multiplier()
    for layer in noise:
        found = multiplier(Tensor(layer)).asnumpy()
        np.testing.assert_array_equal(found, np.where(keep_mask(layer, 300, 70), np.float32(1 / 0.75), np.float32(0)))
