"""Everything that happens to tables, in any order: native in memory and in a file, reference and a job of ranks against
plain rows.

Gradients are small whole numbers times a power of two, so that sums are exact in any order: backends, and any number of
ranks and servers, have the same bits. The plain rows (`plain_rows.py`) say what is right, to what float32 can have. Of
rows in bfloat16 they say only which are touched: test_rounding.py says what those are to be.
"""

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import get_args

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from app.checkpoint import write as checkpoint
from app.checkpoint.manifest import Manifest, ParentRecord, read_manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import compact, rewrite
from app.checkpoint.write import EXPIRED_IDS, write_checkpoint
from app.config.config import Config
from app.config.optimizer_settings import (
    ConstantSchedule,
    CosineSchedule,
    DeepOptimizer,
    PlateauSchedule,
    StepSchedule,
    WideOptimizer,
)
from app.run.identity import data_identity
from app.tables import optimizers
from app.tables.backends import table_spec
from app.tables.interface import DEEP, WIDE, RowGradients
from app.tables.native import library as native_step
from app.tables.native.storage import ScratchFile
from app.tables.native.tables import NativeTables
from app.tables.reference import ReferenceTables
from app.training.learning_rates import LearningRates
from app.training.warm_start.source import open_source
from app.training.warm_start.take_over import take_rows
from common import settings as run_settings
from data_prep.prepared.schema import CategoricalField, Schema, Split
from tests.app.tables.job_in_threads import JobInThreads
from tests.app.tables.plain_rows import PlainTable
from tests.checkpoints import load

MOST_EXACT = 8  # missed steps of adam that are taken one by one, in place of 256
SCHEDULES = {  # each goes far enough down to be no rate at all, where its optimizer lets it
    "constant": lambda name, warmup: ConstantSchedule(warmup_steps=warmup),
    "cosine": lambda name, warmup: CosineSchedule(
        warmup_steps=warmup, decay_steps=8, final_factor=0.01 if name == "ftrl" else 0.0
    ),
    "step": lambda name, warmup: StepSchedule(warmup_steps=warmup, every_steps=4, drop_factor=1e-3),
    "plateau": lambda name, warmup: PlateauSchedule(warmup_steps=warmup, drop_factor=0.1),
}
DEEP_OPTIMIZERS, WIDE_OPTIMIZERS = get_args(DeepOptimizer), get_args(WideOptimizer)
OF_EVERY_DAY = "cosine", "plateau"  # the other schedules are left to make test-long
CASES = [  # every optimizer with every schedule, deep and wide
    pytest.param(
        deep,
        schedule,
        WIDE_OPTIMIZERS[number % 3],
        id=f"{deep().name}-{schedule}",
        marks=[] if schedule in OF_EVERY_DAY else pytest.mark.slow,
    )
    for number, deep in enumerate(DEEP_OPTIMIZERS)
    for schedule in SCHEDULES
]
SECTIONS = (
    "model",
    "loss",
    "wide_optimizer",
    "deep_optimizer",
    "train",
    "tables",
)  # of the settings: what tables depend on
FUZZED = not settings.default.derandomize  # by the profiles of tests/conftest.py
MACHINE = settings(
    max_examples=100 if FUZZED else 3,
    stateful_step_count=60 if FUZZED else 30,
    phases=[Phase.generate, Phase.shrink] if FUZZED else [Phase.generate],  # the fixed ones fail at once
    suppress_health_check=list(HealthCheck),
)

some_ids = st.tuples(
    st.sampled_from(["random", "random", "same", "distinct", "ends"]), st.integers(0, 9), st.integers(0, 2**32)
)
some_gradients = st.tuples(
    st.sampled_from([-149, -140, -60, -12, -3, -3, 0, 3, 55]), st.sampled_from([1.0, 0.125, 0.3])
)


class TablesMachine(RuleBasedStateMachine):
    """The steps that a run may take; the subclasses of `machine_of` say with which optimizers."""

    optimizers: dict
    schedule: str

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine"))
        self.run_number, self.saved, self.parent, self.open = 0, {}, None, None

    def teardown(self):
        shutil.rmtree(self.folder)

    # A run begins.

    @initialize(data=st.data())
    def begin(self, data):
        self.vocabulary_size, self.num_fields = data.draw(st.sampled_from([2, 7, 40])), data.draw(st.integers(1, 3))
        self.length = data.draw(st.sampled_from([1, 1, 3]))  # of each field; lists of sums, as means are not exact
        self.dtype = data.draw(st.sampled_from([np.int32, np.int64]))
        self.dim = data.draw(st.sampled_from([1, 3, 12, 17]))
        self.ranks = data.draw(
            st.sampled_from([("native", 1, 0), ("native", 2, 0), ("reference", 3, 0), ("native", 2, 1)])
        )
        self.threads = data.draw(st.sampled_from([1, 1, 2]))
        self.config = self.draw_config(data, Config())
        self.new_run()

    def draw_config(self, data, config):
        def options(group):
            cls = self.optimizers[group]
            warmup = data.draw(st.sampled_from([0, 3, 100]))
            name = cls().name
            found = {
                "learning_rate": data.draw(st.sampled_from([0.3, 0.07, 0.007])),
                "schedule": SCHEDULES[self.schedule](name, warmup),
            }
            fields = [field.name for field in dataclasses.fields(cls)]
            if "epsilon" in fields:
                found["epsilon"] = data.draw(st.sampled_from([1e-8, 1e-4, 1e-15]))
            if "l1" in fields:
                found |= {key: data.draw(st.sampled_from([0.0, 1e-3])) for key in ("l1", "l2")}
            elif "initial_accumulator" in fields:
                found["initial_accumulator"] = data.draw(st.sampled_from([0.0, 0.1]))
            return cls(**found)

        loss = dataclasses.replace(config.loss, l2_coef=data.draw(st.sampled_from([0.0, 1e-2])))
        wide, deep = options(WIDE), options(DEEP)
        dtypes = ["float32"] if deep.name == "ftrl" else ["float32", "bfloat16"]
        return dataclasses.replace(
            config,
            wide_optimizer=wide,
            deep_optimizer=deep,
            loss=loss,
            model=dataclasses.replace(config.model, embedding_dim=self.dim),
            tables=dataclasses.replace(config.tables, dtype=data.draw(st.sampled_from(dtypes))),
            train=dataclasses.replace(config.train, seed=data.draw(st.sampled_from([1, 1, 2]))),
        )

    def new_run(self):
        names = tuple(f"C{number}" for number in range(self.num_fields))
        fields = tuple(CategoricalField(name, (0, 0), (), max_length=self.length, pool="sum") for name in names)
        splits = {"train": Split(0, 0, ())}
        self.schema = Schema(1, (), fields, self.vocabulary_size, "int32", 1, splits, 0, {}, {}, ())
        self.spec = spec = table_spec(self.config, self.schema)
        self.rates = LearningRates(self.config.optimizers)
        rates, in_file = self.rates.of_tables(), dataclasses.replace(spec, storage=self.folder)
        self.tables = {
            "native": NativeTables(spec, rates, self.threads),
            "file": NativeTables(in_file, rates, self.threads),
            "reference": ReferenceTables(spec, rates),
            "job": JobInThreads(in_file if self.ranks == ("native", 2, 0) else spec, rates, *self.ranks),
        }
        self.run_number += 1
        self.saved, self.parent, self.changed = {}, None, np.zeros(self.vocabulary_size, bool)
        self.gone = np.zeros(self.vocabulary_size, bool)  # removed since the last snapshot that was saved
        self.initial = initial = self.lookup_all("reference")
        self.plain = {
            WIDE: PlainTable(spec.wide_optimizer, initial[WIDE], 0.0, MOST_EXACT),
            DEEP: PlainTable(spec.deep_optimizer, initial[DEEP], spec.l2_coef, MOST_EXACT),
        }
        self.plain[DEEP].is_exact = spec.dtype == "float32"
        self.check()

    # Steps.

    def draw_ids(self, kind, batch, seed):
        rng, shape = np.random.default_rng(seed), (batch, self.num_fields * self.length)
        ids = rng.integers(0, self.vocabulary_size, shape)
        if kind == "same":
            ids[:] = ids[:1, :1] if batch else 0
        if kind == "distinct":
            ids = (rng.permutation(max(self.vocabulary_size, ids.size)) % self.vocabulary_size)[: ids.size]
        if kind == "ends":
            ids = rng.choice([0, self.vocabulary_size - 1], shape)
        return self.cut_lists(ids.reshape(shape), rng.integers(1, self.length + 1, (batch, self.num_fields, 1)))

    def cut_lists(self, ids, num_values):
        """Return `ids` of which the fields' lists keep their first `num_values` [B, C, 1], or as many in all."""
        lists = ids.reshape(len(ids), self.num_fields, self.length)
        return np.where(np.arange(self.length) < num_values, lists, -1).reshape(ids.shape).astype(self.dtype)

    @rule(ids=some_ids, gradients=some_gradients, ahead=st.booleans())
    def step(self, ids, gradients, ahead):
        """`ahead`: another batch is made unique, and its rows are looked up, before the step ends."""
        ids, (power, scale) = self.draw_ids(*ids), gradients
        rng = np.random.default_rng(ids.size)
        deep, wide = (
            np.ldexp(rng.integers(-4, 5, shape).astype(np.float32), power)
            for shape in ((len(ids), self.num_fields * self.dim), len(ids))
        )
        self.take_step(ids, RowGradients(deep, wide, scale), self.all_ids() if ahead else None)

    another_step = rule(ids=some_ids, gradients=some_gradients, ahead=st.just(False))(
        lambda self, **drawn: self.step(**drawn)
    )

    @rule(count=st.sampled_from([2, MOST_EXACT + 3]))
    def steps_of_nothing(self, count):
        """No row is touched for long."""
        for _ in range(count):
            self.take_step(self.all_ids()[:0], self.zero_gradients(0))

    def zero_gradients(self, batch):
        return RowGradients(np.zeros((batch, self.num_fields * self.dim), np.float32), np.zeros(batch, np.float32))

    def take_step(self, ids, gradients, ahead=None):
        standing = [table for table, plain in self.plain.items() if np.float32(plain.rate) == 0]
        before, exact = self.lookup_all("native") if standing else {}, ~self.plain[DEEP].far()
        for name, tables in self.tables.items():
            unique = tables.unique(ids)
            if name == "file":
                tables.read_ahead(unique, will_change=True)
            if ids.size:
                tables.lookup(unique)
            if ahead is not None:
                tables.lookup(tables.unique(ahead))
            tables.update(unique, gradients)
        at = np.zeros(self.vocabulary_size, bool)
        present = ids >= 0
        at[ids[present]] = True
        self.changed |= at
        wide = np.repeat(gradients.wide[:, None], self.num_fields * self.length, axis=0)
        deep = np.repeat(gradients.deep.reshape(-1, self.dim), self.length, axis=0)
        for table, per_position in ((WIDE, wide), (DEEP, deep)):
            plain = self.plain[table]
            summed = np.zeros(plain.rows.shape)
            np.add.at(summed, ids[present], per_position[present.reshape(-1)].astype(np.float64))
            far = plain.far() & at
            plain.update(summed * float(np.float32(gradients.scale)), at)
            if far.any():
                plain.take_over(far, self.adam_state(np.flatnonzero(far)))
        if ids.size or standing:
            self.check()
            after = self.lookup_all("native")
            for table in standing:
                same = exact & (self.plain[table].is_exact | ~at)  # rows that catch up are rounded as they are written
                assert same_bits(after[table][same], before[table][same]), f"{table}: a rate of 0 changed rows"

    def adam_state(self, row_ids):
        state = self.tables["native"].state()[DEEP]
        places = np.searchsorted(state.row_ids, row_ids)
        return [state.arrays[name][places].astype(np.float64) for name in ("rows", "first_moment", "second_moment")]

    @precondition(lambda self: self.plain[DEEP].options.name != "adam" or not self.plain[DEEP].l2)
    @rule(seed=st.integers(0, 2**32), share=st.sampled_from([0.1, 0.5, 1.0]))
    def remove(self, seed, share):
        """Rows are as if they had never been touched. A job of ranks cannot do it, and takes no further part."""
        self.tables.pop("job", None)
        removed = np.random.default_rng(seed).random(self.vocabulary_size) < share
        for tables in self.tables.values():
            tables.remove(np.flatnonzero(removed))
        for table, plain in self.plain.items():
            plain.remove(removed, self.initial[table])
        self.changed &= ~removed
        self.gone |= removed
        self.check()
        if self.open:
            self.read_snapshot(seed)

    @precondition(lambda self: self.schedule == "plateau" and self.plain[DEEP].step)
    @rule(merit=st.sampled_from([0.5, 0.5, 0.7]))
    def evaluate(self, merit):
        before = {group: list(rate.plateau.drops) for group, rate in self.rates.groups.items()}
        self.rates.after_evaluation("auc", merit, self.plain[DEEP].step)
        for table in (WIDE, DEEP):
            drops = self.rates.groups[table].plateau.drops
            assert drops[: len(before[table])] == before[table]
            self.plain[table].drops = list(drops)

    # What is seen.

    def all_ids(self):
        """A batch with each row in every field of a batch row."""
        ids = np.repeat(np.arange(self.vocabulary_size)[:, None], self.num_fields * self.length, axis=1)
        return self.cut_lists(ids, 1)

    def lookup_all(self, name):
        tables = self.tables[name]
        rows = tables.lookup(tables.unique(self.all_ids()))
        return {WIDE: rows.wide[:, None].copy(), DEEP: rows.deep[:, : self.dim].copy()}

    def check(self):
        """All backends have the same bits, which are what the plain rows say."""
        states = {name: tables.state() for name, tables in self.tables.items()}
        rows = {name: self.lookup_all(name) for name in ("native", "reference")}
        for table, plain in self.plain.items():
            for name in self.tables.keys() - {"reference"}:
                assert_same_state(states[name][table], states["reference"][table], f"{name} {table}")
            assert same_bits(rows["native"][table], rows["reference"][table]), table
            worst, where = plain.differs(rows["native"][table] / (self.num_fields if table == WIDE else 1))
            assert worst <= 1 or not plain.is_exact, (
                f"{table}: row {where} is {rows['native'][table][where]}, expected {plain.rows[where]}"
            )
            assert states["native"][table].row_ids.tolist() == np.flatnonzero(plain.touched).tolist()
        assert {tables.step for tables in self.tables.values()} == {self.plain[DEEP].step}

    # Snapshots and checkpoints.

    @rule(changed_only=st.booleans())
    def open_snapshot(self, changed_only):
        self.close_snapshot()
        chosen = self.changed if changed_only else self.plain[DEEP].touched
        state = self.tables["reference"].state()
        kept = {table: _rows_of(saved, chosen) for table, saved in state.items()}
        plain = {table: each.copy() for table, each in self.plain.items()}
        snapshots = {name: tables.snapshot(changed_only) for name, tables in self.tables.items()}
        self.open = changed_only, snapshots, kept, (self.changed, self.gone), (plain, state, self.rates.state())
        self.changed, self.gone = np.zeros_like(self.changed), np.zeros_like(self.gone)
        self.read_snapshot(seed=0)

    @precondition(lambda self: self.open)
    @rule(seed=st.integers(0, 2**32))
    def read_snapshot(self, seed):
        """A piece of it, in slices and in places, while updates go on."""
        rng, (_, snapshots, expected, *_) = np.random.default_rng(seed), self.open
        for name, snapshot in snapshots.items():
            for table, saved in expected.items():
                rows = snapshot.tables[table]
                assert rows.row_ids.tolist() == saved.row_ids.tolist(), f"{name} {table}"
                first, end = np.sort(rng.integers(0, saved.row_ids.size + 1, 2))
                for places in (slice(first, end), rng.permutation(saved.row_ids.size)[first:end]):
                    for array in saved.arrays:
                        assert same_bits(rows.read(array, places), saved.arrays[array][places]), f"{name} {array}"

    def close_snapshot(self, saved=False):
        if self.open:
            for snapshot in self.open[1].values():
                snapshot.release(saved)
            if not saved:
                changed, gone = self.open[3]
                self.changed |= changed & ~self.gone
                self.gone |= gone
            self.open = None

    @rule(source=st.sampled_from(["native", "reference", "job"]), shards=st.integers(1, 3), delta=st.booleans())
    def save(self, source, shards, delta):
        """Write the open snapshot, or a new one, as a checkpoint: a full one, or the changes since the one before."""
        if not self.open:
            self.open_snapshot(delta)
        if self.open[0] and (self.parent is None or self.parent["step"] >= self.open[-1][0][DEEP].step):
            self.open_snapshot(changed_only=False)
        changed_only, snapshots, _, (_, gone), kept = self.open
        step = kept[0][DEEP].step
        manifest = Manifest(
            step,
            1,
            step,
            {name: run_settings.as_dict(getattr(self.config, name)) for name in SECTIONS},
            "/prepared",
            data_identity(self.schema),
            {},
            schedules=kept[2],
            parent=self.parent if changed_only else None,
        )
        for later in [path for other, (path, _) in self.saved.items() if other >= step]:
            shutil.rmtree(later)
        self.saved = {other: saved for other, saved in self.saved.items() if other < step}
        expiry = {EXPIRED_IDS: np.flatnonzero(gone)} if changed_only and gone.any() else {}
        state = checkpoint.ModelState({}, snapshots.get(source, snapshots["native"]).tables, expiry)
        path = write_checkpoint(self.folder / str(self.run_number), state, manifest, shards)
        self.saved[step] = path, kept
        self.parent = ParentRecord(step=step, id=read_manifest(path).id)
        self.close_snapshot(saved=True)

    def pick(self, number):
        if not self.saved:
            self.save("native", 1 + number % 2, delta=False)
        return self.saved[sorted(self.saved)[number % len(self.saved)]]

    @rule(number=st.integers(0, 9), shards=st.integers(1, 5), in_place=st.booleans())
    def reshard(self, number, shards, in_place):
        path, kept = self.pick(number)
        if in_place:
            compact(Checkpoint.open(path), shards)
        else:
            path = rewrite(Checkpoint.open(path), self.folder / "other", shards)
        found = load(path)[1].tables
        for table, saved in kept[1].items():
            assert_same_state(found[table], saved, table)

    @rule(number=st.integers(0, 9))
    def load(self, number):
        """Over tables that have rows already; it goes on from there, deltas too."""
        path, (plain, state, rates) = self.pick(number)
        self.close_snapshot()
        manifest = read_manifest(path)
        self.rates.load_state(manifest.schedules)
        assert self.rates.state() == rates
        for tables in self.tables.values():
            with tables.loading(manifest.step) as place:
                Checkpoint.open(path).read_once(self.spec, place)
            for table, saved in tables.state().items():
                assert_same_state(saved, state[table], table)
        self.plain = {table: each.copy() for table, each in plain.items()}
        self.parent = ParentRecord(step=manifest.step, id=manifest.id)
        self.changed, self.gone = np.zeros_like(self.changed), np.zeros_like(self.gone)
        self.check()

    # A new run with the rows of an older one.

    @rule(
        data=st.data(),
        number=st.integers(0, 9),
        with_optimizer=st.sampled_from([True, True, False]),
        seed=st.integers(0, 2**32),
    )
    def warm_start(self, data, number, with_optimizer, seed):
        """With what the optimizers remember and without, to see that a step without gradients changes no prediction;
        then once more, to go on."""
        path, (source, *_) = self.pick(number)
        self.close_snapshot()
        model = None
        rng, config = np.random.default_rng(seed), self.draw_config(data, self.config)
        origins = np.where(rng.random(self.vocabulary_size) < 0.8, rng.permutation(self.vocabulary_size), -1)
        there = read_manifest(path).config
        dtypes = there["tables"]["dtype"], config.tables.dtype
        initial_differs = (source[DEEP].options.name == "adam" and source[DEEP].l2 > 0 and source[DEEP].step > 0) or (
            (there["train"]["seed"], dtypes[0]) != (config.train.seed, dtypes[1])
        )
        stays = ~source[DEEP].touched[origins] & (origins == np.arange(self.vocabulary_size)) & (not initial_differs)
        to = np.flatnonzero((origins >= 0) & ~stays)
        without_l2 = dataclasses.replace(config.loss, l2_coef=0.0)
        probes = {False, with_optimizer}
        for memory, loss in (*((probe, without_l2) for probe in sorted(probes)), (with_optimizer, config.loss)):
            train = dataclasses.replace(config.train, init_from=str(path), init_optimizer=memory)
            self.config = dataclasses.replace(config, train=train, loss=loss)
            model = model or open_source(self.config, self.schema, Path("/prepared"))
            model = dataclasses.replace(model, origins=origins)
            self.new_run()
            alone = [tables for name, tables in self.tables.items() if name != "job"]
            for tables in (*alone, *self.tables["job"].everyone):
                take_rows(tables.loading, self.spec, self.rates, self.config, self.schema, model)
            for table, plain in self.plain.items():
                # A wide row that was never touched is 0, and has no state to take.
                own = to if table == DEEP else to[source[table].touched[origins[to]]]
                plain.warm_start(source[table], origins, own, memory)
                plain.touched[to] = True
                self.take_over_far(table, source[table], origins, to)
            self.check()
            if loss is without_l2:
                self.check_step_without_gradients(memory)

    def check_step_without_gradients(self, memory):
        """Check that a step without gradients changes no prediction of the source's rows, but for Adam's moments."""
        before, taken = self.lookup_all("native"), self.plain[DEEP].touched.copy()
        error = {table: plain.error.copy() for table, plain in self.plain.items()}  # of FTRL's rows near 0 it is large
        self.take_step(self.all_ids(), self.zero_gradients(self.vocabulary_size))
        for table, after in self.lookup_all("native").items():
            if not (memory and "adam" in self.plain[table].options.name):
                allowed = 1e-4 * np.abs(before[table]) + 1e-9 + error[table] + self.plain[table].error
                assert (np.abs(after - before[table]) <= allowed)[taken].all(), table

    def take_over_far(self, table, source, origins, to):
        """Rows of `adam` come as they are after the last step, if need be not exactly."""
        to = to[source.far()[origins[to]]]
        if to.size:
            values, far = self.adam_state(to), origins[to]
            is_within = np.abs(values[0]) <= np.abs(source.left[far]) + 4 * source.error[far]
            assert is_within.all() or not self.plain[table].is_exact
            self.plain[table].take_over(to, values)


def _rows_of(saved, chosen):
    kept = chosen[saved.row_ids]
    return dataclasses.replace(
        saved, row_ids=saved.row_ids[kept], arrays={name: array[kept] for name, array in saved.arrays.items()}
    )


def same_bits(found, expected):
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


def assert_same_state(found, expected, where):
    assert found.row_ids.tolist() == expected.row_ids.tolist(), where
    assert list(found.arrays) == list(expected.arrays), where
    for name, array in expected.arrays.items():
        assert same_bits(found.arrays[name], array), f"{where} {name}: {found.arrays[name]} for {array}"


@pytest.mark.hypothesis
@pytest.mark.parametrize(("deep", "schedule", "wide"), CASES)
def test_any_order_of_steps_is_right(native_library, monkeypatch, deep, schedule, wide):
    for module in (optimizers, native_step):
        monkeypatch.setattr(module, "MOST_EXACT_STEPS", MOST_EXACT)
    # A few pages of the file stay in memory, so each step drops most of the others and reads them again.
    monkeypatch.setattr(ScratchFile, "most_resident", lambda file: 5 * 4096)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    machine = type("Machine", (TablesMachine,), {"optimizers": {DEEP: deep, WIDE: wide}, "schedule": schedule})
    run_state_machine_as_test(machine, settings=MACHINE)
