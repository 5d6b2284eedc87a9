import numpy as np
import pytest

from app.tables.optimizers import AdamOptions, FtrlOptions, ftrl_step, lazy_adam_step


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def test_ftrl_step_by_hand():
    # root 3 -> 5 as 9 + 4² = 25; linear 4 - (5 - 3) / 0.5 · 0.5 = 2; row (0.5 - 2) / (5 / 0.5 + 2 · 0.25) = -1 / 7
    rows, accumulator, linear = column(0.5), column(9), column(0)
    ftrl_step(rows, accumulator, linear, column(4), FtrlOptions(learning_rate=0.5, l1=0.5, l2=0.25))
    assert accumulator[0, 0] == 25
    assert linear[0, 0] == 2
    assert rows[0, 0] == pytest.approx(-1 / 7, rel=1e-6)


@pytest.mark.parametrize("gradient", [0.5, -0.5, 0.0])
def test_ftrl_row_is_zero_where_linear_does_not_exceed_l1(gradient):
    rows, accumulator, linear = column(0), column(1), column(0)
    ftrl_step(rows, accumulator, linear, column(gradient), FtrlOptions(l1=0.5))
    assert linear[0, 0] == gradient
    assert rows[0, 0] == 0


def test_ftrl_row_moves_against_the_gradient():
    rows, accumulator, linear = column(0, 0), column(1, 1), column(0, 0)
    ftrl_step(rows, accumulator, linear, column(1, -1), FtrlOptions())
    assert rows[0, 0] < 0 < rows[1, 0]
    assert rows[0, 0] == -rows[1, 0]


def test_lazy_adam_steps_by_hand():
    options = AdamOptions(learning_rate=0.25, beta1=0.5, beta2=0.75, epsilon=1.0)
    rows, first_moment, second_moment = column(1), column(0), column(0)
    # step 1: m = 0.5 · 2, v = 0.25 · 2²; rate 0.25 · √(1 - 0.75) / (1 - 0.5) = 0.25; row 1 - 0.25 · 1 / (1 + 1)
    lazy_adam_step(rows, first_moment, second_moment, column(2), options, step=1)
    assert (first_moment[0, 0], second_moment[0, 0], rows[0, 0]) == (1, 1, 0.875)
    # step 2: m = 0.5 + 0.5 · 3, v = 0.75 + 0.25 · 9 = 3; rate 0.25 · √(1 - 0.5625) / (1 - 0.25)
    lazy_adam_step(rows, first_moment, second_moment, column(3), options, step=2)
    assert (first_moment[0, 0], second_moment[0, 0]) == (2, 3)
    assert rows[0, 0] == pytest.approx(0.875 - 0.25 * 0.4375**0.5 / 0.75 * 2 / (3**0.5 + 1), rel=1e-6)


def test_corrected_rate_tends_to_the_learning_rate():
    options = AdamOptions(learning_rate=1e-3)
    assert options.corrected_rate(1) == pytest.approx(1e-3 * 0.001**0.5 / 0.1)
    assert options.corrected_rate(100_000) == pytest.approx(1e-3)


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
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_name(make, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        make()
