"""The running mean of rows, kept lazily, is the plain mean over all rows at every step, on every backend."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from app.config.optimizer_settings import AdamOptions
from app.tables.backends import make_host_tables
from app.tables.fields import NO_ROW, TableField
from app.tables.interface import DEEP, WIDE, MeanTable, RowGradients
from app.tables.optimizers import MOST_EXACT_STEPS, RunningMean, StepHistory
from tests.app.tables.tables_of_spec import DEEP_OPTIMIZERS, WIDE_OPTIMIZERS, constant_rates, load_state

DECAY, NUM_STEPS, V = 0.9, 12, 40
OPTIMIZERS = [
    {"deep": deep, "wide": wide, "l2_coef": 1e-2}
    for deep, wide in zip(DEEP_OPTIMIZERS, cycle(WIDE_OPTIMIZERS), strict=False)
]
every_optimizer = pytest.mark.parametrize("optimizers", OPTIMIZERS, ids=[each["deep"].name for each in OPTIMIZERS])


@pytest.fixture
def take_steps(random_ids, random_gradients):
    def take(tables, begin=0, end=NUM_STEPS):
        for step in range(begin, end):
            rng = np.random.default_rng(step)
            ids = random_ids(tables.spec, 4, rng)
            tables.update(tables.unique(ids), random_gradients(tables.spec, 4, rng, 0.3))
            yield

    return take


def all_rows(tables, means=False):
    """All V rows as they are after the last step, deep and wide, or their means."""
    rows = tables.lookup(tables.unique(np.arange(V)[:, None]), means)
    return rows.deep.copy(), rows.wide.copy()


@every_optimizer
def test_the_lazy_mean_is_the_mean_of_all_rows_at_every_step(make_tables, make_spec, take_steps, optimizers):
    tables = make_tables(make_spec(V, 3, num_fields=1, ema_decay=DECAY, **optimizers))
    sums = [0.0, 0.0]
    for step, _ in enumerate(take_steps(tables), start=1):
        for number, (rows, mean) in enumerate(zip(all_rows(tables), all_rows(tables, means=True), strict=True)):
            sums[number] = DECAY * sums[number] + (1 - DECAY) * rows.astype(np.float64)
            np.testing.assert_allclose(mean, sums[number] / (1 - DECAY**step), rtol=1e-5, atol=1e-7)
    assert not np.array_equal(*(all_rows(tables, means)[0] for means in (False, True)))


def test_before_the_first_step_the_means_are_the_rows(make_tables, make_spec):
    tables = make_tables(make_spec(V, 3, num_fields=1, ema_decay=DECAY))
    for rows, mean in zip(all_rows(tables), all_rows(tables, means=True), strict=True):
        np.testing.assert_array_equal(mean, rows)


@every_optimizer
def test_keeping_means_changes_no_bit_of_the_rows(make_tables, make_spec, take_steps, optimizers):
    with_mean, without = (make_tables(make_spec(V, 3, ema_decay=d, **optimizers)) for d in (DECAY, 0.0))
    for _ in zip(take_steps(with_mean), take_steps(without), strict=True):
        pass
    for table in (WIDE, DEEP):
        found, expected = (tables.state()[table] for tables in (with_mean, without))
        assert "mean" in set(found.arrays) - set(expected.arrays) <= {"mean", "mean_step"}
        for name, array in expected.arrays.items():
            np.testing.assert_array_equal(found.arrays[name], array)


@every_optimizer
def test_a_resumed_mean_has_the_bits_of_one_that_was_not_interrupted(
    make_tables, make_spec, take_steps, assert_same_state, optimizers
):
    spec = make_spec(V, 3, ema_decay=DECAY, **optimizers)
    straight, first, second = (make_tables(spec) for _ in range(3))
    list(take_steps(straight))
    list(take_steps(first, end=5))
    load_state(second, first.state(), first.step)
    list(take_steps(second, begin=5))
    assert_same_state(second, straight)


@every_optimizer
def test_a_saved_table_has_the_means_that_a_lookup_gives(make_tables, make_spec, take_steps, optimizers):
    spec = make_spec(V, 3, num_fields=1, ema_decay=DECAY, **optimizers)
    tables = make_tables(spec)
    list(take_steps(tables))
    history = None
    if spec.deep_optimizer.name == "adam":
        rate = constant_rates(spec)[DEEP]
        history = StepHistory.of_steps(spec.deep_optimizer, spec.l2_coef, rate, tables.step)
    deep, wide = all_rows(tables, means=True)
    for table, expected in ((DEEP, deep), (WIDE, wide[:, None])):
        saved = tables.state()[table]
        read = MeanTable(saved, RunningMean(DECAY), tables.step, history if table == DEEP else None)
        np.testing.assert_array_equal(read.read("rows", slice(None)), expected[saved.row_ids])


def test_a_row_that_missed_more_steps_than_are_taken_one_by_one(make_tables, make_spec):
    """Its mean ends at the row, which a decay of 0.9 forgets the way to."""
    missed = MOST_EXACT_STEPS + 50
    tables = make_tables(make_spec(V, 3, num_fields=1, ema_decay=DECAY, deep=AdamOptions(), l2_coef=1e-3))
    push = RowGradients(np.full((1, 3), 0.1, np.float32), np.ones(1, np.float32))
    for row in [3, *[0] * missed]:
        tables.update(tables.unique(np.array([[row]])), push)
    (rows, _), (means, _) = all_rows(tables), all_rows(tables, means=True)
    np.testing.assert_allclose(means[3], rows[3], rtol=0, atol=1e-4)
    assert not np.array_equal(means[0], rows[0])


def test_a_decay_near_1_keeps_its_digits():
    """Rows that move at every other step, against the weights written out in float64."""
    decay, steps = 0.99999, np.arange(1, 61)
    rows = np.repeat(np.random.default_rng(0).standard_normal((30, 4)), 2, axis=0).astype(np.float32)
    weights = (1 - decay) * decay ** (steps[-1] - steps) / (1 - decay ** steps[-1])
    one_by_one, still, means = np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32), RunningMean(decay)
    for step, row in zip(steps, rows, strict=True):
        means.reach(step)
        means.include(row[None], one_by_one, np.array([[step]]))
        if step % 2 == 0:
            still = means.of_still(row[None], still, np.array([[step - 2]]), step)
    expected = weights @ rows.astype(np.float64)
    np.testing.assert_allclose(one_by_one[0], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(still[0], expected, rtol=1e-4, atol=1e-6)


def test_lists_and_parts_look_up_means_as_they_look_up_rows(native_library, make_spec):
    """A list of the mean rows of its values; the wide part sees other fields than the deep one."""
    fields = TableField("a", deep=False), TableField("b", length=3, mean=True), TableField("c", wide=False)
    spec = replace(make_spec(V, 4, ema_decay=DECAY, deep=AdamOptions()), fields=fields)
    both = [make_host_tables(backend, spec, constant_rates(spec), 2) for backend in ("native", "reference")]
    rng = np.random.default_rng(1)
    for step in range(6):
        ids = rng.integers(0, V, (7, 5)).astype(np.int32)
        ids[rng.random(7) < 0.5, 3] = NO_ROW
        ids[ids[:, 2] % 2 == 0, 2:4] = NO_ROW
        looked_up = []
        for tables in both:
            unique = tables.unique(ids)
            rows = tables.lookup(unique, means=True)
            looked_up.append((rows.deep.copy(), rows.wide.copy()))
            gradients = np.random.default_rng(step)
            deep = gradients.standard_normal(rows.deep.shape).astype(np.float32)
            tables.update(unique, RowGradients(deep, gradients.standard_normal(7).astype(np.float32)))
        for found, expected in zip(*looked_up, strict=True):
            np.testing.assert_array_equal(found, expected)
    rows, means = (both[0].lookup(both[0].unique(ids), means) for means in (False, True))
    assert (rows.deep != means.deep).any() and (rows.wide != means.wide).any()
