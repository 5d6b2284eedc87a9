"""Steps of `adam` that rows have missed. test_state_machine.py compares any order of steps with Adam in float64."""

import numpy as np
import pytest

from app.config.optimizer_settings import AdamOptions
from app.tables import optimizers
from app.tables.interface import DEEP, CaughtUpTable, RowGradients
from app.tables.native import library as native_history
from app.tables.native.library import NativeStepHistory
from app.tables.optimizers import MOST_EXACT_STEPS, RunningMean, StepHistory
from tests.app.tables.tables_of_spec import load_state, native_tables, reference_tables

OPTIONS = AdamOptions(learning_rate=1e-3)
L2 = 1e-2  # pulls hard enough to see in 300 steps


def learning_rate(step):
    """Warm-up, then steps down."""
    return 1e-3 * min(1.0, step / 20) * (0.1 if step > 200 else 1.0)


@pytest.mark.parametrize("last_step", [0, 5])
def test_the_steps_beyond_are_taken_in_segments(last_step):
    """By the formula of the module, in float64, from where the steps that are taken one by one leave a row."""
    rng, segments = np.random.default_rng(1), (32, 48, 72, 108, 40)
    newest = last_step + MOST_EXACT_STEPS + sum(segments)
    rows = rng.standard_normal((2, 3), np.float32)
    states = (rows, rows * np.float32(1e-3), np.full((2, 3), 1e-4, np.float32), np.full((2, 1), last_step, np.int32))
    exact, far = (tuple(state.copy() for state in states) for _ in range(2))
    StepHistory.of_steps(OPTIONS, L2, learning_rate, newest - sum(segments)).catch_up(exact)
    StepHistory.of_steps(OPTIONS, L2, learning_rate, newest).catch_up(far)
    row, _, second, end = (state.astype(np.float64) for state in exact)
    for steps in segments:
        begin, end = end, end + steps
        taken = range(int(begin[0, 0]) + 1, int(end[0, 0]) + 1)
        rate_sum = sum(learning_rate(step) * OPTIONS.correction(step) for step in taken)
        half, whole = OPTIONS.beta2 ** (steps // 2), OPTIONS.beta2**steps
        middle = half * second + (1 - half) * (L2 * row) ** 2
        share = L2 * rate_sum / (np.sqrt(middle) + OPTIONS.uncorrected_epsilon(taken[-1]))
        row = row / (1 + share + share**2 / 2)
        second = whole * second + (1 - whole) * (L2 * row) ** 2
    for found, expected in zip(far, (row, L2 * row, second, newest), strict=True):
        np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-5)
    assert (np.abs(row) < 0.99 * np.abs(exact[0])).all()


@pytest.mark.parametrize("gradient", [1e-6, 1e-5, 1e-4])
@pytest.mark.parametrize(("l2_coef", "rate"), [(1e-7, 3e-3), (1e-6, 3e-3), (1e-6, 3e-4), (1e-5, 3e-3), (4e-5, 2e-3)])
def test_rows_that_missed_thousands_of_steps_are_near_those_that_took_each(l2_coef, rate, gradient):
    """Moments as after 1 to 7 gradients of many sizes, and rates that fall by half, against Adam in float64."""
    rng, lags, num_rows = np.random.default_rng(0), (300, 1_000, 3_000, 10_000), 200
    start = rng.normal(0, 0.05, num_rows)
    last = gradient * np.exp(rng.normal(0, 1.5, num_rows)) * rng.choice([-1, 1], num_rows)
    states = (start, 0.1 * last, 0.001 * last**2 * rng.integers(1, 8, num_rows))
    row, first, second = states
    history = StepHistory(OPTIONS, l2_coef)
    for step in range(1, lags[-1] + 1):
        history.append(rate * (1 - step / (2 * lags[-1])))
        first = 0.9 * first + 0.1 * l2_coef * row
        second = 0.999 * second + 0.001 * (l2_coef * row) ** 2
        row = row - float(history.rates[step]) * first / (np.sqrt(second) + float(history.epsilons[step]))
        if step in lags:
            far = [state[:, None].astype(np.float32) for state in states]
            history.catch_up((*far, np.zeros((num_rows, 1), np.int32)))
            assert np.sqrt(np.mean((far[0][:, 0] - row) ** 2)) < 0.03 * np.sqrt(np.mean(start**2)), step


@pytest.mark.parametrize("width", [1, 3, 8, 12, 16, 17, 80])
def test_native_is_the_reference_whatever_is_looked_up_before_an_update(
    isa, make_spec, assert_same_state, monkeypatch, width
):
    """The late rows that a lookup has computed are for the next update of this very batch alone."""
    for module in (optimizers, native_history):
        monkeypatch.setattr(module, "MOST_EXACT_STEPS", 8)
    spec = make_spec(400, width, num_fields=2, l2_coef=L2, deep=OPTIONS)
    both = native_tables(spec, 2, deep=learning_rate), reference_tables(spec, deep=learning_rate)
    rng = np.random.default_rng(width)
    batches = [(rng.random((rng.integers(1, 150), 2)) ** 3 * 400).astype(np.int64) for _ in range(6)]
    uniques = [[tables.unique(ids) for ids in batches] for tables in both]  # kept: a batch may come again
    for _ in range(60):
        looked_up = rng.integers(6, size=rng.integers(4))
        updated = rng.choice([rng.integers(6), *looked_up])  # in one of the lookups before, the last one, or none
        for number in looked_up:
            found = [tables.lookup(unique[number]).deep.copy() for tables, unique in zip(both, uniques, strict=True)]
            np.testing.assert_array_equal(*found)
        num_rows = len(batches[updated])
        deep = rng.standard_normal((num_rows, 2 * width)).astype(np.float32)
        for tables, unique in zip(both, uniques, strict=True):
            tables.update(unique[updated], RowGradients(deep, np.zeros(num_rows, np.float32)))
        if rng.random() < 0.1:
            state = both[1].state()
            for tables in both:
                load_state(tables, state, tables.step)
    assert_same_state(*both)


def test_saved_rows_can_be_brought_to_the_newest_step(make_tables, make_spec, run_steps):
    """A checkpoint has rows as their last step left them, an export has them as a lookup has."""
    tables = make_tables(make_spec(40, 4, num_fields=1, l2_coef=L2, deep=OPTIONS), deep=learning_rate)
    run_steps(tables)
    saved, history = tables.state()[DEEP], StepHistory.of_steps(OPTIONS, L2, learning_rate, tables.step)
    rows = CaughtUpTable(saved, history).read("rows", slice(None))
    np.testing.assert_array_equal(rows, tables.lookup(tables.unique(saved.row_ids[:, None])).deep)
    assert (rows != saved.arrays["rows"]).any()


@pytest.mark.parametrize("width", [1, 7, 8, 16, 17, 80])
@pytest.mark.parametrize("with_means", [False, True])
def test_rows_in_arrays_catch_up_to_the_same_bits_natively(isa, monkeypatch, width, with_means):
    """Rows are up to date, never touched, and behind by less and by more than is taken one by one."""
    for module in (optimizers, native_history):
        monkeypatch.setattr(module, "MOST_EXACT_STEPS", 25)
    rng = np.random.default_rng(width)
    means = RunningMean(0.9) if with_means else None
    last = rng.choice([0, 1, 59, 60, *range(60)], (400, 1)).astype(np.int32)
    rows, first, mean = (rng.standard_normal((400, width)).astype(np.float32) for _ in range(3))
    first[:50] *= np.float32(1e-37)  # below SMALLEST_MOMENT: 0 after a step
    states = (rows, first, np.square(rng.standard_normal((400, width), np.float32)), *([mean] * with_means), last)
    found, expected = (tuple(state.copy() for state in states) for _ in range(2))
    StepHistory.of_steps(OPTIONS, L2, learning_rate, 60).catch_up(expected, means)
    NativeStepHistory.of_steps(OPTIONS, L2, learning_rate, 60).catch_up(found, means)
    for of_native, of_numpy in zip(found, expected, strict=True):
        np.testing.assert_array_equal(of_native, of_numpy)
    assert (found[0] != rows).any(axis=1).sum() > 300
