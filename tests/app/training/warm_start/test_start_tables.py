"""After a warm start the first step begins at the source's weights, whatever optimizer, schedule and backend take it.

`RowsOnTheirOwn` is the tables once more: a dictionary of rows, in float64, whose FTRL knows no linear term.
"""

import dataclasses
import functools
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from app.checkpoint.manifest import Manifest
from app.checkpoint.write import ModelState, write_checkpoint
from app.config.config import Config, LossOptions, ModelOptions
from app.config.optimizer_settings import (
    AdagradOptions,
    AdamOptions,
    FtrlOptions,
    LazyAdamOptions,
    RowwiseAdagradOptions,
    SgdOptions,
)
from app.config.schedules import ConstantSchedule, CosineSchedule, PlateauSchedule, StepSchedule
from app.distributed.sharded_tables import RowShard
from app.run.identity import data_identity
from app.tables.checks import load_state
from app.tables.fields import TableField
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, WIDE, RowGradients, TablesSpec, TableState
from app.tables.native.tables import NativeTables
from app.tables.reference import ReferenceTables
from app.training.learning_rates import LearningRate, LearningRates, table_learning_rates, table_spec
from app.training.warm_start import start_tables as warm_start_tables
from app.training.warm_start.source import InitialTable, Source, open_source
from app.training.warm_start.start_tables import take_rows
from common import settings
from data_prep.prepared.schema import CategoricalField, Schema, Split

V, D = 17, 5
SOURCE_STEPS = 30
EARLY, LATE, FRESH = np.arange(7), np.arange(7, 14), np.arange(14, V)  # touched at once, at step 151, by nobody before
FTRL = FtrlOptions(learning_rate=0.2, l1=1e-3, l2=1e-2, initial_accumulator=0.5)
DEEPS = [
    LazyAdamOptions(),
    AdamOptions(),
    AdagradOptions(),
    RowwiseAdagradOptions(initial_accumulator=0.25),
    SgdOptions(),
    FTRL,
]
WIDES = [FTRL, AdagradOptions(), SgdOptions()]
SCHEDULES = [
    schedule
    for warmup_steps in (0, 100)
    for schedule in (
        ConstantSchedule(warmup_steps=warmup_steps),
        CosineSchedule(warmup_steps=warmup_steps, decay_steps=60, final_factor=0.01),
        StepSchedule(warmup_steps=warmup_steps, every_steps=20),
        PlateauSchedule(warmup_steps=warmup_steps),
    )
]
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.name}-{s.warmup_steps}")
with_or_without_memory = pytest.mark.parametrize("init_optimizer", [False, True], ids=["rows", "memory"])


@pytest.fixture(params=["reference", "native"])
def make_tables(request, needs_native):
    """Makes tables of each backend in turn."""
    if request.param == "reference":
        return reference_tables
    needs_native()
    return lambda spec: with_rates(functools.partial(NativeTables, num_threads=2), spec)


def make_spec(wide, deep):
    return TablesSpec(V, D, (TableField("C1"),), 7, 0.01, 0.0, wide, deep)


def make_rates(spec):
    """Return the learning rates of the settings; plateaus drop after steps 2 and 120."""
    groups = {
        group: LearningRate(options.learning_rate, options.schedule)
        for group, options in ((WIDE, spec.wide_optimizer), (DEEP, spec.deep_optimizer))
    }
    for rate in groups.values():
        rate.plateau.drops = [2, 120]
    return LearningRates(groups)


def with_rates(make, spec, rates=None):
    """Tables with their learning rates, which `warm` finds in `tables.rates`."""
    rates = rates or make_rates(spec)
    tables = make(spec, table_learning_rates(rates, spec.deep_optimizer))
    tables.rates = rates
    return tables


def reference_tables(spec, rates=None):
    return with_rates(ReferenceTables, spec, rates)


def take_step(tables, row_ids, deep, wide):
    tables.update(tables.unique(row_ids.astype(np.int32)[:, None]), RowGradients(deep, wide))


def random_gradients(rng, count, scale=0.3):
    return rng.standard_normal((count, D), np.float32) * scale, rng.standard_normal(count, np.float32) * scale


def lookup(tables, row_ids):
    rows = tables.lookup(tables.unique(row_ids.astype(np.int32)[:, None]))
    return {WIDE: rows.wide[:, None].copy(), DEEP: rows.deep.copy()}


@functools.cache
def make_source(wide, deep):
    """Tables that were trained with these optimizers."""
    spec = make_spec(wide, deep)
    tables, rng = reference_tables(spec), np.random.default_rng(5)
    for _ in range(SOURCE_STEPS):
        row_ids = np.unique(rng.integers(0, FRESH[0], 12))
        take_step(tables, row_ids, *random_gradients(rng, row_ids.size))
    return tables


def as_source(state, steps=SOURCE_STEPS):
    return Source("source", ModelState({}, state), None, (TableField("C1"),), folded=True, steps=steps)


def warm(tables, source, init_optimizer):
    """`tables` after a warm start."""
    config = SimpleNamespace(
        train=SimpleNamespace(init_take="all", init_optimizer=init_optimizer),
        model=ModelOptions(),
    )
    schema = SimpleNamespace(num_numeric=0, vocabulary_size=V, categorical=(CategoricalField("C1", (0, V), ()),))
    take_rows(tables.loading, tables.spec, tables.rates, config, schema, source)
    return tables


def zero_step(tables, row_ids):
    take_step(tables, row_ids, np.zeros((row_ids.size, D), np.float32), np.zeros(row_ids.size, np.float32))


def skip_steps(tables, count):
    """Steps on the last fresh row alone, which only `adam` need be shown; all count for the learning rates."""
    if tables.spec.deep_optimizer.name != "adam":
        tables.step += count
        return
    for _ in range(count):
        zero_step(tables, FRESH[-1:])


class RowsOnTheirOwn:
    """A table after a warm start, stepped row by row in float64; FTRL from weight and accumulator alone."""

    def __init__(self, options, rows, memory, rate, steps_before):
        self.options, self.rate, self.step, self.before = options, rate, 0, steps_before
        self.rows = {row: values.astype(np.float64) for row, values in rows.items()}
        self.memory = {}
        for row, values in rows.items():
            fresh = {name: np.zeros_like(self.rows[row]) for name in ("first_moment", "second_moment", "linear")}
            fresh["accumulator"] = np.full(values.shape, getattr(options, "initial_accumulator", 0.0))
            self.memory[row] = fresh | {name: np.float64(array) for name, array in memory.get(row, {}).items()}

    def skip(self, count):
        if self.options.name != "adam":
            self.step += count
            return
        for _ in range(count):
            self.take(FRESH[-1:], np.zeros((1, D)))

    def take(self, row_ids, gradients):
        self.step += 1
        for row, gradient in zip(row_ids.tolist(), np.float64(gradients), strict=True):
            getattr(self, self.options.name)(self.rows[row], self.memory[row], gradient)
        if self.options.name == "adam":
            for row in self.rows.keys() - set(row_ids.tolist()):
                self.adam(self.rows[row], self.memory[row], np.zeros_like(self.rows[row]))

    def sgd(self, row, memory, gradient):
        row -= self.rate(self.step) * gradient

    def adagrad(self, row, memory, gradient):
        memory["accumulator"] += gradient**2
        row -= self.rate(self.step) * gradient / (np.sqrt(memory["accumulator"]) + self.options.epsilon)

    def rowwise_adagrad(self, row, memory, gradient):
        memory["accumulator"] = memory["accumulator"] + (gradient**2).mean()
        row -= self.rate(self.step) * gradient / (np.sqrt(memory["accumulator"]) + self.options.epsilon)

    def lazy_adam(self, row, memory, gradient):
        step, beta1, beta2 = self.before + self.step, self.options.beta1, self.options.beta2
        memory["first_moment"] = beta1 * memory["first_moment"] + (1 - beta1) * gradient
        memory["second_moment"] = beta2 * memory["second_moment"] + (1 - beta2) * gradient**2
        rate = self.rate(self.step) * np.sqrt(1 - beta2**step) / (1 - beta1**step)
        row -= rate * memory["first_moment"] / (np.sqrt(memory["second_moment"]) + self.options.epsilon)

    adam = lazy_adam  # its epsilon differs where a gradient is as small as that

    def ftrl(self, row, memory, gradient):
        """The linear term of a weight that is not 0 follows from the weight; of others it is what has gathered."""
        l1, l2, rate = self.options.l1, self.options.l2, self.rate(self.step)
        linear = -row * (np.sqrt(memory["accumulator"]) / rate + 2 * l2) - np.sign(row) * l1
        linear = np.where(row == 0, np.clip(memory["linear"], -l1, l1), linear)
        change = np.sqrt(memory["accumulator"] + gradient**2) - np.sqrt(memory["accumulator"])
        memory["accumulator"] = memory["accumulator"] + gradient**2
        memory["linear"] = linear + gradient - change / rate * row
        denominator = np.sqrt(memory["accumulator"]) / rate + 2 * l2
        row[...] = -np.sign(memory["linear"]) * np.maximum(np.abs(memory["linear"]) - l1, 0) / denominator


def on_their_own(tables, source, init_optimizer):
    """Both tables of `tables.spec` after the same warm start; fresh rows too."""
    rates, found = make_rates(tables.spec), {}
    for table, saved in source.state.tables.items():
        first = lookup(tables, FRESH)[table]
        rows = dict(zip(FRESH.tolist(), first, strict=True)) | dict(
            zip(saved.row_ids.tolist(), saved.arrays["rows"], strict=True)
        )
        names = [name for name in saved.arrays if name not in ("rows", "last_rate", "last_step")]
        memory = {
            row: {name: saved.arrays[name][place] for name in names} for place, row in enumerate(saved.row_ids.tolist())
        }
        memory = memory if init_optimizer else {}
        before = source.steps if init_optimizer else 0
        found[table] = RowsOnTheirOwn(tables.spec.optimizer(table), rows, memory, rates.groups[table], before)
    return found


def assert_same_rows(tables, own, row_ids, rtol=3e-5, atol=2e-7):
    for table, values in lookup(tables, row_ids).items():
        expected = np.stack([own[table].rows[row] for row in row_ids.tolist()])
        np.testing.assert_allclose(values, expected, rtol, atol, err_msg=table)


CASES = [(FTRL, deep) for deep in DEEPS] + [(wide, LazyAdamOptions()) for wide in WIDES[1:]]


@with_or_without_memory
@every_schedule
@pytest.mark.parametrize(("wide", "deep"), CASES, ids=lambda options: options.name)
def test_steps_go_on_from_the_source_s_weights(make_tables, wide, deep, schedule, init_optimizer):
    """Zero gradients first: they move a weight only where moments were taken along. Rows that come late as well."""
    source = as_source(make_source(wide, deep).state())
    here = [dataclasses.replace(options, schedule=schedule) for options in (wide, deep)]
    tables = warm(make_tables(make_spec(*here)), source, init_optimizer)
    own, before = on_their_own(tables, source, init_optimizer), lookup(tables, np.arange(V))
    trained = np.concatenate([EARLY, LATE])
    for table, saved in source.state.tables.items():
        np.testing.assert_array_equal(before[table][trained], saved.arrays["rows"])
    for row_ids, skipped in ((EARLY, 0), (EARLY, 1), (LATE, 147)):
        skip_steps(tables, skipped)
        zero_step(tables, row_ids)
        for each in own.values():
            each.skip(skipped)
            each.take(row_ids, np.zeros((row_ids.size, each.rows[0].size)))
        assert_same_rows(tables, own, trained)
    assert tables.step == 151
    after, has_moments = lookup(tables, trained), init_optimizer and deep.name in ("lazy_adam", "adam")
    for table in (WIDE, DEEP):
        if tables.spec.optimizer(table).name == "ftrl":
            np.testing.assert_allclose(after[table], before[table][trained], rtol=3e-6)
        elif table == WIDE or not has_moments:
            np.testing.assert_array_equal(after[table], before[table][trained])
    rng, row_ids = np.random.default_rng(2), np.concatenate([EARLY[::2], LATE[::2]])
    for _ in range(4):
        deep_gradients, wide_gradients = random_gradients(rng, row_ids.size)
        take_step(tables, row_ids, deep_gradients, wide_gradients)
        own[DEEP].take(row_ids, deep_gradients)
        own[WIDE].take(row_ids, wide_gradients[:, None])
    assert_same_rows(tables, own, trained, rtol=1e-3, atol=1e-5)


@with_or_without_memory
def test_bias_corrections_go_on_where_the_moments_do(init_optimizer):
    spec = make_spec(FTRL, LazyAdamOptions())
    rates = make_rates(spec)
    rates.steps_before = 5
    warm(reference_tables(spec, rates), as_source(make_source(FTRL, LazyAdamOptions()).state()), init_optimizer)
    assert rates.steps_before == (SOURCE_STEPS if init_optimizer else 0)


def test_the_memory_of_another_optimizer_is_refused_and_its_rows_are_taken():
    source = as_source(make_source(FTRL, AdagradOptions()).state())
    tables = reference_tables(make_spec(FTRL, LazyAdamOptions()))
    message = r"source: deep table has rows .*accumulator .*, expected .* first_moment .*; train\.init_optimizer=false"
    with pytest.raises(ValueError, match=message):
        warm(tables, source, init_optimizer=True)
    assert tables.state()[DEEP].row_ids.size == 0
    warm(tables, source, init_optimizer=False)
    assert tables.state()[DEEP].row_ids.size > 0


def test_rows_of_another_width_are_refused():
    tables = reference_tables(dataclasses.replace(make_spec(FTRL, SgdOptions()), embedding_dim=D - 1))
    message = r"deep table has rows \(float32, 5 wide\), expected rows \(float32, 4 wide\)$"
    with pytest.raises(ValueError, match=message):
        warm(tables, as_source(make_source(FTRL, SgdOptions()).state()), init_optimizer=False)


LOWER = dataclasses.replace(FTRL, learning_rate=0.02)
FALLING = dataclasses.replace(FTRL, schedule=CosineSchedule(warmup_steps=10, decay_steps=15, final_factor=0.02))
OTHER = dataclasses.replace(FTRL, l1=0.3, l2=0.4, initial_accumulator=2.0)
FTRLS = {"first": FTRL, "lower": LOWER, "falling": FALLING, "other": OTHER}


@pytest.mark.parametrize(("before", "here"), list(itertools.permutations(FTRLS, 2)))
def test_what_another_ftrl_remembers_is_taken_without_a_weight_that_moves(make_tables, before, here):
    """Another learning rate, schedule, l1 or l2; the accumulators come along."""
    before, here = FTRLS[before], FTRLS[here]
    source = as_source(make_source(before, before).state())
    tables = warm(make_tables(make_spec(here, here)), source, init_optimizer=True)
    for row_ids in (EARLY, LATE):
        zero_step(tables, row_ids)
        skip_steps(tables, 30)
    for table, saved in source.state.tables.items():
        found = tables.state()[table]
        trained = np.isin(found.row_ids, saved.row_ids)
        rounding = here.l1 * 2.0**-24 * here.learning_rate / min(here.initial_accumulator, 0.5) ** 0.5
        np.testing.assert_allclose(found.arrays["rows"][trained], saved.arrays["rows"], rtol=5e-6, atol=rounding)
        np.testing.assert_array_equal(found.arrays["accumulator"][trained], saved.arrays["accumulator"])
    assert (source.state.tables[DEEP].arrays["rows"] == 0).any() == (before == OTHER)  # some lie where l1 holds them


@pytest.mark.parametrize("options", [FTRL, FALLING], ids=["constant", "scheduled"])
def test_the_memory_of_the_same_ftrl_is_taken_as_it_is(options):
    state = make_source(options, options).state()
    found = warm(reference_tables(make_spec(options, options)), as_source(state), init_optimizer=True).state()
    for table, saved in state.items():
        for name, array in saved.arrays.items():
            np.testing.assert_array_equal(found[table].arrays[name], array, f"{table} {name}")


@with_or_without_memory
def test_rows_that_an_earlier_release_left_with_a_misfit_are_mended(init_optimizer):
    """An older release wrote linear terms for the rate of step 1 and no `last_rate`."""
    options = dataclasses.replace(FTRL, schedule=ConstantSchedule(warmup_steps=100))
    spec, rows = make_spec(options, SgdOptions()), np.linspace(-1, 1, 14, dtype=np.float32)[:, None]
    misfit = -rows * (np.sqrt(0.5) / (0.2 / 100) + 2e-2) - np.sign(rows) * 1e-3
    arrays = {"rows": rows, "accumulator": np.full_like(rows, 0.5), "linear": misfit.astype(np.float32)}
    arrays["last_rate"] = np.zeros_like(rows)
    ids = np.arange(14)
    deep = TableState(ids, {"rows": np.ones((14, D), np.float32)})
    tables = warm(
        reference_tables(spec), as_source({WIDE: TableState(ids, arrays), DEEP: deep}), init_optimizer=init_optimizer
    )
    skip_steps(tables, 149)
    zero_step(tables, ids)
    np.testing.assert_allclose(lookup(tables, ids)[WIDE], rows, rtol=3e-6)


def test_weights_at_the_edge_of_what_l1_holds_at_zero():
    """Tiny weights stay to l1's rounding, those of 0 stay 0 and keep their gathered gradients within the new l1."""
    options = FtrlOptions(learning_rate=0.1, l1=0.5, l2=0.0)
    rows = np.array([[1e-3], [-1e-6], [1e-12], [0.0], [0.0], [0.0]], np.float32)
    linear = np.array([[9], [9], [9], [0.2], [-7.0], [7.0]], np.float32)  # the last three from an l1 of 10
    arrays = {"rows": rows, "accumulator": np.full_like(rows, 4.0), "linear": linear}
    ids = np.arange(6)
    state = {WIDE: TableState(ids, arrays), DEEP: TableState(ids, {"rows": np.ones((6, D), np.float32)})}
    tables = warm(reference_tables(make_spec(options, SgdOptions())), as_source(state), init_optimizer=True)
    found = tables.state()[WIDE].arrays["linear"][3:, 0]
    np.testing.assert_array_equal(found, np.array([0.2, -0.5, 0.5], np.float32))
    zero_step(tables, ids)
    np.testing.assert_allclose(lookup(tables, ids)[WIDE], rows, rtol=1e-6, atol=6e-8 * 0.5 / 20)


@every_schedule
@with_or_without_memory
def test_owners_of_rows_take_what_one_process_takes(schedule, init_optimizer):
    """Take rows as ranks and servers do, without the exchange; later steps belong to the backends' own tests."""
    options = dataclasses.replace(FTRL, schedule=schedule)
    spec, source = make_spec(options, options), as_source(make_source(FTRL, FTRL).state())
    expected = warm(reference_tables(spec), source, init_optimizer).state()
    for owner in range(3):
        exchange = SimpleNamespace(rank=owner, num_owners=3, embedding_dim=D)
        owned = RowShard(exchange, reference_tables(spec))
        owned.spec, owned.rates = spec, owned.tables.rates
        warm(owned, source, init_optimizer)
        for table, saved in owned.tables.state().items():
            own = expected[table].row_ids % 3 == owner
            for name, array in saved.arrays.items():
                np.testing.assert_array_equal(array, expected[table].arrays[name][own], f"{table} {name}")


def test_a_run_that_was_stopped_after_a_warm_start_goes_on_to_the_same_bits(make_tables):
    """Late rows too: a checkpoint keeps what the warm start made of them."""
    options = dataclasses.replace(FTRL, schedule=ConstantSchedule(warmup_steps=100))
    spec, source = make_spec(options, options), as_source(make_source(LOWER, LOWER).state())
    whole, resumed = (make_tables(spec) for _ in "12")
    warm(whole, source, init_optimizer=True)
    for saved_at in (0, 3):
        zero_step(whole, EARLY[: 2 + saved_at])
        load_state(resumed, whole.state(), whole.step)
    for tables in (whole, resumed):
        rng = np.random.default_rng(3)
        for row_ids in (EARLY, LATE, LATE):
            take_step(tables, row_ids, *random_gradients(rng, row_ids.size))
    for table, saved in whole.state().items():
        for name, array in saved.arrays.items():
            np.testing.assert_array_equal(resumed.state()[table].arrays[name], array, f"{table} {name}")


class EveryRow:
    """`adam` with L2 on every row at every step, in float64."""

    def __init__(self, options, rows):
        self.options, self.rows = options, rows.astype(np.float64)
        self.first, self.second = np.zeros_like(self.rows), np.zeros_like(self.rows)

    def take(self, gradient, rate, step):
        beta1, beta2 = self.options.beta1, self.options.beta2
        total = gradient + L2 * self.rows
        self.first = beta1 * self.first + (1 - beta1) * total
        self.second = beta2 * self.second + (1 - beta2) * total**2
        root = np.sqrt(self.second / (1 - beta2**step)) + self.options.epsilon
        self.rows -= rate * self.first / (1 - beta1**step) / root


L2 = 1e-2
SCHEMA = Schema(
    1, (), (CategoricalField("C1", (0, 1), ((1, V),)),), V, "int32", 1, {"train": Split(0, 0, ())}, 0, {}, {}, ()
)


@with_or_without_memory
@pytest.mark.parametrize("schedule", [ConstantSchedule(), CosineSchedule(decay_steps=1_000, final_factor=0.01)])
def test_rows_of_adam_that_no_batch_touched_keep_what_l2_made_of_them(make_tables, tmp_path, schedule, init_optimizer):
    """Over 1,000 steps L2 pulls them to 0; after a warm start they were at their initial values again."""
    deep = AdamOptions(schedule=schedule)
    config = Config(
        model=ModelOptions(embedding_dim=D),
        loss=LossOptions(l2_coef=L2),
        wide_optimizer=SgdOptions(),
        deep_optimizer=deep,
    )
    tables, rng = make_tables(table_spec(config, SCHEMA)), np.random.default_rng(3)
    initial = lookup(tables, np.arange(V))[DEEP]
    every, rate = EveryRow(deep, initial), tables.rates.groups[DEEP]

    def take_steps(tables, first, last, before):
        for step in range(first, last + 1):
            gradients = np.zeros((V, D), np.float32)
            gradients[EARLY] = random_gradients(rng, EARLY.size)[0]
            every.take(gradients, rate(step), before + step)
            take_step(tables, EARLY, gradients[EARLY], np.zeros(EARLY.size, np.float32))

    take_steps(tables, 1, 1_000, 0)
    others = np.arange(EARLY.size, V)
    assert np.abs(every.rows[others]).max() < np.abs(initial).max() / 20
    manifest = Manifest(1_000, 2, 0, settings.as_dict(config), "", data_identity(SCHEMA), {})
    path = write_checkpoint(tmp_path, ModelState({}, tables.state()), manifest)
    train = dataclasses.replace(config.train, init_from=str(path), init_optimizer=init_optimizer)
    config = dataclasses.replace(config, train=train)
    warm = make_tables(table_spec(config, SCHEMA))
    take_rows(warm.loading, warm.spec, warm.rates, config, SCHEMA, open_source(config, SCHEMA, tmp_path))
    np.testing.assert_allclose(lookup(warm, np.arange(V))[DEEP], every.rows, rtol=1e-4, atol=2e-6)
    if not init_optimizer:
        every = EveryRow(deep, every.rows)
    take_steps(warm, 1, 40, 1_000 if init_optimizer else 0)
    # Next to 0 Adam's first steps, which are of any gradient's sign alone, depend on digits that float32 lacks.
    np.testing.assert_allclose(lookup(warm, np.arange(V))[DEEP], every.rows, rtol=1e-3, atol=5e-5)


@pytest.mark.parametrize("most", [3, 2])
def test_rows_that_no_step_touched_come_along_up_to_a_size(monkeypatch, caplog, most):
    """Here of another seed, and beside two rows that were touched."""
    monkeypatch.setattr(warm_start_tables, "UNTOUCHED_BYTES", most * 4 * D)
    ids, spec, widths = np.arange(2), make_spec(FTRL, SgdOptions()), {WIDE: 1, DEEP: D}
    state = {table: TableState(ids, {"rows": np.ones((2, width), np.float32)}) for table, width in widths.items()}
    origins = np.where(np.arange(V) < 5, np.arange(V), -1)
    source = dataclasses.replace(
        as_source(state), own_initial=True, origins=origins, untouched=lambda row_ids: initial_table(row_ids, spec)
    )
    found = warm(reference_tables(spec), source, init_optimizer=False).state()[DEEP]
    if most == 3:
        assert found.row_ids.tolist() == [0, 1, 2, 3, 4]
        np.testing.assert_array_equal(found.arrays["rows"][2:], initial_rows(8, np.arange(2, 5), D, 0.02))
        assert not caplog.records
    else:
        assert found.row_ids.tolist() == [0, 1]
        assert "warning: source: 3 deep rows that no step of it touched begin anew" in caplog.text


def initial_table(row_ids, spec):
    return InitialTable(row_ids, spec.deep_optimizer, spec.layout(DEEP), 8, 0.02)
