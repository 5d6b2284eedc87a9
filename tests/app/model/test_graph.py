import numpy as np
import pytest
from mindspore import Tensor

from app.model.graph import AllFinite, cross_entropy
from app.model.native_tower import LIBRARY, l2_loss
from tests.app.model.tensors import variable


def test_cross_entropy_is_the_weighted_sum_of_its_formula(cpu):
    """Logits far from 0 included, where exp overflows; an example of weight 0 counts nothing, whatever it holds."""
    logits = np.array([-200, -3, 0, 0.5, 200, 5], np.float32)
    labels = np.array([0, 1, 1, 0, 0, 1], np.float32)
    weights = np.array([0.2, 0.2, 0.2, 0.2, 0.2, 0], np.float32)
    wide = logits.astype(np.float64)
    expected = (weights * (np.logaddexp(0, wide) - labels * wide)).sum()
    found = cross_entropy(Tensor(logits), Tensor(labels), Tensor(weights)).asnumpy()
    assert found == pytest.approx(expected, rel=1e-6)


def test_l2_loss_halves_the_squared_norm():
    assert l2_loss(6.0, 0.5) == 1.5


@pytest.mark.parametrize("native", [True, False])
def test_all_finite_by_kernel_and_by_operators(cpu, monkeypatch, native):
    if not native:
        monkeypatch.setenv("DENSE_LAYER_LIBRARY", "none")
        monkeypatch.setattr(LIBRARY, "_loaded", None)
    elif not LIBRARY.is_available():
        pytest.skip("the library is not built")
    check = AllFinite(8.0)
    for value, fine in ((1.0, True), (-7.9, True), (8.5, False), (-np.inf, False), (np.nan, False)):
        arrays = variable((np.zeros((3, 4), np.float32), np.full(1, value, np.float32)))
        assert bool(check(arrays, Tensor(True))) == fine, value
        assert not bool(check(arrays, Tensor(False)))
