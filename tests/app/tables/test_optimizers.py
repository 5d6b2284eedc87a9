import numpy as np
import pytest

from app.config.optimizer_settings import (
    AdagradOptions,
    AdamOptions,
    AdamWOptions,
    FtrlOptions,
    LazyAdamOptions,
    PartialRowwiseAdamOptions,
    RowwiseAdagradOptions,
    SgdOptions,
    StepSchedule,
)
from app.tables.optimizers import (
    adagrad_step,
    ftrl_step,
    lazy_adam_step,
    mean_square,
    partial_rowwise_adam_step,
    rowwise_adagrad_step,
    sgd_step,
)


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def test_ftrl_step_by_hand():
    # root 3 -> 5 as 9 + 4² = 25; linear 4 - (5 - 3) / 0.5 · 0.5 = 2; row (0.5 - 2) / (5 / 0.5 + 2 · 0.25) = -1 / 7
    rows, accumulator, linear = column(0.5), column(9), column(0)
    ftrl_step((rows, accumulator, linear), column(4), FtrlOptions(l1=0.5, l2=0.25), 0.5)
    assert accumulator[0, 0] == 25
    assert linear[0, 0] == 2
    assert rows[0, 0] == pytest.approx(-1 / 7, rel=1e-6)


@pytest.mark.parametrize("gradient", [0.5, -0.5, 0.0])
def test_ftrl_row_is_zero_where_linear_does_not_exceed_l1(gradient):
    rows, accumulator, linear = column(0), column(1), column(0)
    ftrl_step((rows, accumulator, linear), column(gradient), FtrlOptions(l1=0.5), 0.05)
    assert linear[0, 0] == gradient
    assert rows[0, 0] == 0


def test_ftrl_row_moves_against_the_gradient():
    rows, accumulator, linear = column(0, 0), column(1, 1), column(0, 0)
    ftrl_step((rows, accumulator, linear), column(1, -1), FtrlOptions(), 0.05)
    assert rows[0, 0] < 0 < rows[1, 0]
    assert rows[0, 0] == -rows[1, 0]


def test_a_fallen_rate_leaves_ftrl_s_rows_as_they_are():
    """A step without a gradient moves nothing, however the rate changes; one with a gradient moves by the new rate."""
    options = FtrlOptions(l1=0.25, l2=0.125, schedule=StepSchedule())
    states = column(0), column(9), column(0), column(0)
    ftrl_step(states, column(4), options, 0.5)
    # root 3 -> 5, linear 4 (the row was 0), row (0.25 - 4) / (5 / 0.5 + 0.25)
    assert states[0][0, 0] == pytest.approx(-3.75 / 10.25, rel=1e-6)
    for rate in (0.05, 2.0):
        ftrl_step(states, column(0), options, rate)
        assert states[0][0, 0] == pytest.approx(-3.75 / 10.25, rel=1e-5)
        assert states[3][0, 0] == np.float32(rate)


def test_lazy_adam_steps_by_hand():
    options = LazyAdamOptions(beta1=0.5, beta2=0.75, epsilon=1.0)
    rows, first_moment, second_moment = column(1), column(0), column(0)
    # step 1: m = 0.5 · 2, v = 0.25 · 2²; rate 0.25 · √(1 - 0.75) / (1 - 0.5) = 0.25; row 1 - 0.25 · 1 / (1 + 1)
    lazy_adam_step((rows, first_moment, second_moment), column(2), options, 0.25, step=1)
    assert (first_moment[0, 0], second_moment[0, 0], rows[0, 0]) == (1, 1, 0.875)
    # step 2: m = 0.5 + 0.5 · 3, v = 0.75 + 0.25 · 9 = 3; rate 0.25 · √(1 - 0.5625) / (1 - 0.25)
    lazy_adam_step((rows, first_moment, second_moment), column(3), options, 0.25, step=2)
    assert (first_moment[0, 0], second_moment[0, 0]) == (2, 3)
    assert rows[0, 0] == pytest.approx(0.875 - 0.25 * 0.4375**0.5 / 0.75 * 2 / (3**0.5 + 1), rel=1e-6)


def test_the_correction_tends_to_1():
    options = AdamOptions()
    assert options.correction(1) == pytest.approx(0.001**0.5 / 0.1)
    assert options.correction(100_000) == pytest.approx(1)
    assert options.uncorrected_epsilon(1) == pytest.approx(1e-8 * 0.001**0.5)


def test_sgd_step_by_hand():
    rows = column(1, 2)
    sgd_step((rows,), column(4, -8), 0.25)
    assert rows[:, 0].tolist() == [0, 4]


def test_adagrad_steps_by_hand():
    # accumulator 9 + 4² = 25: row 1 - 0.5 · 4 / (5 + 1); then 25 + 12² = 169: row - 0.5 · 12 / (13 + 1)
    rows, accumulator = column(1), column(9)
    options = AdagradOptions(epsilon=1.0)
    adagrad_step((rows, accumulator), column(4), options, 0.5)
    assert (accumulator[0, 0], rows[0, 0]) == (25, pytest.approx(2 / 3, rel=1e-6))
    adagrad_step((rows, accumulator), column(12), options, 0.5)
    assert (accumulator[0, 0], rows[0, 0]) == (169, pytest.approx(2 / 3 - 6 / 14, rel=1e-5))


def test_rowwise_adagrad_step_by_hand():
    # mean of 3² and 5² is 17, of 0 and 0 is 0: accumulators 8 + 17 = 25 and 9; rates 0.5 / (5 + 1) and 0.5 / (3 + 1)
    rows, accumulator = np.array([[1, 2], [3, 4]], np.float32), column(8, 9)
    gradient = np.array([[3, 5], [0, 0]], np.float32)
    rowwise_adagrad_step((rows, accumulator), gradient, RowwiseAdagradOptions(epsilon=1.0), 0.5)
    assert accumulator[:, 0].tolist() == [25, 9]
    np.testing.assert_allclose(rows, [[1 - 3 / 12, 2 - 5 / 12], [3, 4]], rtol=1e-6)


def test_partial_rowwise_adam_steps_by_hand():
    # Both moments decay by ½. Step 1: the mean of 3² and 5² is 17, so v = 8.5, corrected 17; m = 1.5, 2.5, so 3, 5.
    # Step 2 without a gradient: v = 4.25, corrected by 1 - ¼; m = 0.75 and 1.25, corrected likewise.
    options = PartialRowwiseAdamOptions(beta1=0.5, beta2=0.5, epsilon=1.0)
    states = rows, first, second = np.array([[1, 2]], np.float32), np.zeros((1, 2), np.float32), column(0)
    partial_rowwise_adam_step(states, np.array([[3, 5]], np.float32), options, 0.25, step=1)
    expected = np.array([[1 - 0.75 / (17**0.5 + 1), 2 - 1.25 / (17**0.5 + 1)]])
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    assert (second[0, 0], *first[0]) == (8.5, 1.5, 2.5)
    partial_rowwise_adam_step(states, np.zeros((1, 2), np.float32), options, 0.25, step=2)
    root = (4.25 / 0.75) ** 0.5 + 1
    np.testing.assert_allclose(rows, expected - [[0.25 / root, 0.25 * 5 / 3 / root]], rtol=1e-6)


@pytest.mark.parametrize("width", [1, 16, 17, 300])
def test_squares_are_averaged(width):
    gradient = np.random.default_rng(0).standard_normal((5, width)).astype(np.float32)
    expected = np.square(gradient.astype(np.float64)).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(mean_square(gradient), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: FtrlOptions(learning_rate=0.0), "learning_rate"),
        (lambda: FtrlOptions(l1=-1.0), "l1"),
        (lambda: FtrlOptions(l2=float("nan")), "l2"),
        (lambda: FtrlOptions(initial_accumulator=0.0), "initial_accumulator"),
        (lambda: AdamOptions(learning_rate=-1.0), "learning_rate"),
        (lambda: AdamOptions(beta1=1.0), "beta1"),
        (lambda: AdamOptions(beta2=-0.1), "beta2"),
        (lambda: AdamOptions(epsilon=0.0), "epsilon"),
        (lambda: LazyAdamOptions(beta1=1.0), "beta1"),
        (lambda: AdamWOptions(weight_decay=-1.0), "weight_decay"),
        (lambda: AdagradOptions(initial_accumulator=-1.0), "initial_accumulator"),
        (lambda: AdagradOptions(epsilon=0.0), "epsilon"),
        (lambda: RowwiseAdagradOptions(epsilon=0.0), "epsilon"),
        (lambda: SgdOptions(learning_rate=0.0), "learning_rate"),
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_name(make, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        make()
