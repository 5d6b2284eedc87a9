"""Run `online` through random histories, and compare the result with a small model of the vocabulary (`Model`).

In a history, values appear, stay away and come back, parts are held aside, models are withheld, launches have other
options, and at any write the process is killed or the disk is full. Whatever happens, each part must be trained on
once, the result must have the same bits as a run without disturbances, and checkpoints, bundles, merged bundles, copies
and a warm start must have the values that the model predicts.
"""

import errno
import gc
import itertools
import os
import random
from contextlib import contextmanager
from dataclasses import dataclass, replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, example, given, settings

from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import whole_checkpoints
from app.checkpoint.write import step_name
from app.distributed.process_group import ONE_PROCESS
from app.online import online_trainer
from app.online.online_trainer import OnlineTrainer
from app.run.folder import run_config
from app.scoring.bundle_folder import chains, read_chain, read_manifests
from app.scoring.bundle_writer import fold
from app.scoring.predictor import Predictor
from app.scoring.trained.export_bundle import exported_model
from app.scoring.trained.trained_model import open_trained
from app.scoring.trained.write_bundle import write_model
from app.training.start import plan_launch
from common.files import make_folder
from data_prep.encoding import growing
from data_prep.encoding.prepared_vocabulary import open_vocabulary, read_base_vocabulary
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import read_schema
from tests.app.online.conftest import Online
from tests.app.online.test_expiry import (
    Model,
    assert_copies_have_what_is_left,
    assert_prepared_rows_keep_their_values,
    counts_of,
    values_of,
)
from tests.app.online.test_online_trainer import assert_same_end, metrics_of
from tests.checkpoints import load
from tests.kills import Killed

SMALL_FIELD, MIN_COUNT, BATCH = 4, 2, 40
# Time in seconds since 1970 that is before the times of all parts, and an age that no row reaches.
BEGIN, LONG = 1_700_000_000, 10**6
# Rows of parts without clicks: up to the first number chance explains it, at the second it does not.
FEW_ROWS, MANY_ROWS = 20, 300
COLUMNS = {"click": "label", "weight": "weight", "user": "hex32", "item": "string", "tags": "list", "last": "string"}
PREPARE = PrepareOptions(
    data=LogFormat(
        columns={**COLUMNS, "at": "timestamp", "age": "integer"},
        lists={"tags": ListForm("|", 3)},
        shares={"last": "item"},
        features={"at": ("hour",)},
    ),
    crosses=(("item", "user"),),
    min_count=MIN_COUNT,
    oov_buckets=2,
    train_fraction=1.0,
    valid_fraction=0.0,
    test_fraction=0.0,
    workers=1,
)
DAY = 86_400  # Seconds. Times begin on the second day, because 0 means that there is no time.
FIELDS = ("user", "item", "tags", "at_hour", "item*user")  # The fields that have a vocabulary of their own.


@dataclass(frozen=True)
class Part:
    """A part (file of the log) that is delivered. Its `kind` is good, twin (it has the content of the part before),
    late (its name sorts before those of all other parts) or clickless (it has no click, which chance explains only if
    it has few rows).

    Its values are numbered from 6 * `window` on, so that parts with the same window share many values, and parts of
    neighbouring windows some.
    """

    kind: str
    window: int
    rows: int
    seed: int
    is_withheld: bool  # True if the model after this part is not published.
    seconds: int  # Seconds between the times of the part before and of this part.

    @property
    def is_good(self):
        return self.kind == "good" or (self.kind == "clickless" and self.rows <= FEW_ROWS)

    def lines(self):
        chance = random.Random(self.seed)

        def value():
            return 6 * self.window + int(12 * chance.random() ** 2)

        for row in range(self.rows):
            click = row % 3 == 0 if self.kind != "clickless" else 0
            weight, item, last = chance.choice("1112"), value(), value()
            tags = {value() for _ in range(chance.randrange(4))}
            hour = (self.window * 5 + chance.randrange(4)) % 24
            cells = [int(click), weight, f"{value():08x}", f"i{item}", "|".join(f"t{tag}" for tag in sorted(tags))]
            cells += [
                f"i{last + (last == item)}" if chance.random() < 0.8 else "",
                DAY + hour * 3600,
                chance.randrange(9),
            ]
            yield "\t".join(map(str, cells))


def cells_of(line):
    """Return the (field, value) pairs of a line, for the fields with a vocabulary."""
    _, _, user, item, tags, last, at, _ = line.split("\t")
    cells = [("user", user), ("item", item), ("at_hour", str(int(at) % DAY // 3600)), ("item*user", f"{item}*{user}")]
    return [*cells, *(("item", last) for last in [last] if last), *(("tags", tag) for tag in tags.split("|") if tag)]


@dataclass(frozen=True)
class Launch:
    """One launch of the command: parts that are delivered before it, options, and a disturbance.

    At its write number `fault_at` (0: never) the process is killed or, unless `is_kill`, the disk is full.
    """

    parts: tuple[Part, ...]
    expire_after: int = 0
    most_ids: int = 0
    fault_at: int = 0
    is_kill: bool = True

    @property
    def has_ages(self):
        return self.expire_after > 0 or self.most_ids > 0


@dataclass(frozen=True)
class History:
    """The launches of an online run, in order, and options that they share. The test adds a last launch without a
    disturbance.
    """

    launches: tuple[Launch, ...]
    full_every: int = 3
    in_seconds: bool = False
    keep: int = 0

    def words(self, launch):
        words = ["--keep", self.keep, "--admission-mib", 1]
        words += [f"--most-{bound}=99" for bound in ("missing", "unknown", "miscalibration", "change")]
        # --most-ids alone does not say in which unit ages are measured, so --expire-after is given with it.
        after = launch.expire_after or LONG * (launch.most_ids > 0)
        return [*words, f"--expire-after={after}{'s' * self.in_seconds}", "--most-ids", launch.most_ids]


class Faults:
    """Imitates a kill at the write number `number` (from 1 on): that write and all later ones raise `Killed`. Without
    `is_kill`, this write alone fails with the error of a full disk.
    """

    COUNTED, OTHERS = ("rename", "replace", "symlink", "fsync"), ("mkdir", "unlink", "rmdir")

    def __init__(self, number, is_kill):
        self.number, self.is_kill, self.is_dead = number, is_kill, False

    @contextmanager
    def __call__(self):
        with pytest.MonkeyPatch.context() as patch:
            for name in (*self.COUNTED, *self.OTHERS):
                patch.setattr(os, name, self._faulty(getattr(os, name), name in self.COUNTED))
            yield

    def _faulty(self, function, is_counted):
        def run(*arguments, **keywords):
            self.number -= is_counted
            if self.is_dead or (is_counted and self.number == 0):
                self.is_dead = self.is_kill
                raise Killed if self.is_kill else OSError(errno.ENOSPC, "no space left")
            return function(*arguments, **keywords)

        return run


class Run:
    """An online run in its folder, to which the launches of a history deliver parts."""

    def __init__(self, path, warm, history):
        self.folder, self.history = Online(path, warm), history
        self.parts = {}  # The delivered parts by name.
        self.began = None  # The launch that wrote the first checkpoint.
        self.launch_of = {}  # For each part that was trained on, in the order of training: the launch that did it.

    def deliver(self, name, part, time):
        path = self.folder.source / ".coming"
        path.write_text("".join(f"{line}\n" for line in part.lines()))
        os.utime(path, (time, time))
        path.rename(self.folder.source / name)
        self.parts[name] = part

    def deliver_all(self, parts):
        for part in parts:
            number = len(self.parts) + 1
            time = BEGIN + sum(each.seconds for each in self.parts.values()) + part.seconds
            if part.kind == "twin" and self.parts:
                part = replace(list(self.parts.values())[-1], seconds=part.seconds)
            self.deliver(f"part-{0 if part.kind == 'late' else number}-{number}", part, time)

    def start(self, launch):
        """Run the command until no part is left, or until it ends because of the launch's disturbance."""
        judge = OnlineTrainer._judge

        def withhold(trainer, part):
            judge(trainer, part)
            withheld = "drawn" if self.parts[part.file.name].is_withheld else ""
            trainer.ledger = replace(trainer.ledger, withheld=withheld)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OnlineTrainer, "_judge", withhold)
            try:
                with Faults(launch.fault_at, launch.is_kill)():
                    status = self.folder.run(*self.history.words(launch))
            except Killed:
                status = None
        gc.collect()  # Release the locks of the run that was "killed".
        assert status in ((0, 5) if not launch.fault_at else (0, 1, 2, 3, 5, None))
        if self.checkpoints():
            self.began = self.began or launch
        for name in self.trained():
            self.launch_of.setdefault(name, launch)
        there = self.folder.path / "bundles"
        manifests = read_manifests(there) if there.exists() else {}
        assert len(chains(manifests)) == len(manifests)  # No delta lacks a bundle that it needs.

    def checkpoints(self):
        return whole_checkpoints(self.folder.path / "online/checkpoints")

    def trained(self):
        return list(self.checkpoints()[-1].manifest.online.get("trained", ())) if self.checkpoints() else []

    def undisturbed(self, path):
        """Return a new run in `path` that trains on the same parts without disturbances, each with the options of the
        launch that trained on it here.
        """
        other = Run(path, self.folder.trained, self.history)
        first = next(iter(self.launch_of.values()), None)
        if first is None or first.has_ages != self.began.has_ages:
            other.start(replace(self.began, fault_at=0))
        for launch, names in itertools.groupby(self.launch_of, self.launch_of.get):
            for name in names:
                other.deliver(name, self.parts[name], (self.folder.source / name).stat().st_mtime)
            other.start(replace(launch, fault_at=0))
        return other

    def expected(self, ids, counts):
        """Return, by the step of each checkpoint, the ids that the values must have, and True if its model is withheld.

        `ids` and `counts` are those of the values before the first part.
        """
        model, step, chain, num_gone, num_rows = Model(ids, counts, SMALL_FIELD, MIN_COUNT), 0, 1, 0, 0
        has_ages = self.began.has_ages
        found = {0: (dict(model.ids), False)}
        for name, launch in self.launch_of.items():
            part, is_full = self.parts[name], chain >= self.history.full_every or launch.has_ages > has_ages
            chain, has_ages = 1 if is_full else chain + 1, has_ages or launch.has_ages
            num_rows += part.rows
            time = int((self.folder.source / name).stat().st_mtime)
            moment = time if self.history.in_seconds else num_rows
            cells = itertools.chain(*map(cells_of, part.lines()))
            num_gone += len(model.take(cells, moment, launch.expire_after, launch.most_ids))
            if not has_ages:
                model.seen = dict.fromkeys(model.seen, 0)
            if is_full and num_gone and not part.is_withheld:
                model.renumber()
                num_gone = 0
            step += -(-part.rows // BATCH)
            found[step] = (dict(model.ids), part.is_withheld)
        return found


def assert_rows_are_of_values(checkpoint, ids):
    """Check that the values of a checkpoint have the given `ids`, and that no other id has a table row."""
    trained = open_trained(checkpoint)
    assert values_of(trained.folder, trained.schema) == ids, checkpoint.path
    first = min(ids.values())
    for table in load(checkpoint.path)[1].tables.values():
        assert set(table.row_ids[table.row_ids >= first].tolist()) <= set(ids.values())


def assert_bundles(run, expected, path):
    """Check that each model that is not withheld has a bundle with which the trainer scored the next part, and that the
    newest bundle, alone and merged with its parents, scores like a whole bundle of its checkpoint.
    """
    bundles, steps = run.folder.path / "bundles", [step for step, (_, withheld) in expected.items() if not withheld]
    there = {path.name: Predictor.open(path) for path in bundles.glob("step-*")}
    names = [step_name(step) for step in steps]
    assert there.keys() <= set(names) and names[-1] in there and (run.history.keep or len(there) == len(names))
    before = dict(zip(expected, [None, *expected], strict=False))
    for line in {line["step"]: line for line in metrics_of(run.folder)}.values():
        if (bundle := there.get(step_name(before[line["step"]]))) is not None:
            lines = list(run.parts[line["part"]].lines())
            clicks, weights = np.array([line.split("\t")[:2] for line in lines], float).T
            if clicks.any():
                scored = (bundle.score(lines) * weights).sum() / (clicks * weights).sum()
                assert line["calibration"] == pytest.approx(scored, rel=1e-5)
            assert ("auc" in line) == ("calibration" in line) == clicks.any()
    lines, newest = [line for part in run.parts.values() for line in part.lines()], there[names[-1]]
    newest.verify()
    checkpoint = next((each for each in run.checkpoints() if each.manifest.step == steps[-1]), None)
    if lines and checkpoint is not None:
        make_folder(path / "whole")
        whole = write_model(path / "whole", exported_model(open_trained(checkpoint)), "float32")
        np.testing.assert_array_equal(newest.logits(lines), whole.logits(lines))
        if len(read_chain(newest.folder)) > 1:
            fold(newest.folder, path / "folded")
            np.testing.assert_array_equal(Predictor.open(path / "folded").logits(lines), whole.logits(lines))


def assert_a_warm_start_takes_what_is_left(checkpoint, prepared, ids):
    """Start another run on the folder `prepared` from the checkpoint. Check that values with a row in the checkpoint
    get this row, and that the rows of values without an id there stay untouched.
    """
    from app.training.assemble import assemble
    from app.training.warm_start.take_over import warm_start

    config, schema = run_config(checkpoint.path.parents[1]), read_schema(prepared)
    train = replace(config.train, init_from=str(checkpoint.path), init_optimizer=False)
    training = assemble(replace(config, train=train), schema, "native")
    warm_start(training, replace(config, train=train), schema, prepared, ONE_PROCESS)
    theirs = values_of(prepared, schema)
    for name, saved in load(checkpoint.path)[1].tables.items():
        table = training.state().tables[name]
        rows = dict(zip(saved.row_ids.tolist(), saved.arrays["rows"], strict=True))
        taken = dict(zip(table.row_ids.tolist(), table.arrays["rows"], strict=True))
        for cell, id_ in theirs.items():
            if (row := rows.get(ids.get(cell))) is not None:
                np.testing.assert_array_equal(taken[id_], row)
            elif cell not in ids:
                assert id_ not in taken


def assert_history(history, warm, path):
    """Run a history. Compare its result with the vocabulary that the model predicts, and with a run without
    disturbances.
    """
    run = Run(path / "run", warm, history)
    for launch in (*history.launches, replace(history.launches[-1], parts=(), fault_at=0)):
        run.deliver_all(launch.parts)
        run.start(launch)
    assert run.trained() == list(run.launch_of)
    of_trained = [run.parts[name] for name in run.launch_of]
    contents = ["\n".join(part.lines()) for part in of_trained]
    assert len(set(contents)) == len(contents)
    assert all(part.is_good for part in of_trained if part.kind == "clickless")
    assert {"\n".join(part.lines()) for part in run.parts.values() if part.is_good} <= set(contents)
    prepared = warm.parent / "prepared"
    expected = run.expected(values_of(prepared, schema := read_schema(prepared)), counts_of(prepared, schema))
    checkpoints = {each.manifest.step: each for each in run.checkpoints()}
    assert max(checkpoints) == max(expected)
    assert checkpoints.keys() <= expected.keys() and (history.keep or checkpoints.keys() == expected.keys())
    for step, checkpoint in checkpoints.items():
        checkpoint = Checkpoint.open(checkpoint.path)
        assert_rows_are_of_values(checkpoint, expected[step][0])
    assert_bundles(run, expected, path)
    newest = Checkpoint.open(checkpoints[max(checkpoints)].path)
    assert_copies_have_what_is_left(newest, path)
    assert_prepared_rows_keep_their_values(newest, prepared)
    trained = open_trained(newest)
    if trained.schema.num_expired:
        with pytest.raises(ValueError, match="have lost their ids in an online run"):
            read_base_vocabulary(trained.folder, open_vocabulary(trained.folder)[1])
    assert_a_warm_start_takes_what_is_left(newest, prepared, expected[max(expected)][0])
    assert_same_end(run.folder, run.undisturbed(path / "undisturbed").folder)


PARTS = st.builds(
    lambda kind, rows, few_rows, **drawn: Part(kind, rows=few_rows if kind == "clickless" else rows, **drawn),
    kind=st.sampled_from(["good"] * 6 + ["twin", "late", "clickless", "clickless"]),
    window=st.integers(0, 4),
    rows=st.integers(30, 110),
    few_rows=st.sampled_from([1, 5, FEW_ROWS, MANY_ROWS]),
    seed=st.integers(0, 99),
    is_withheld=st.sampled_from([False] * 5 + [True]),
    seconds=st.integers(1, 100),
)
LAUNCHES = st.builds(
    Launch,
    parts=st.lists(PARTS, max_size=3).map(tuple),
    expire_after=st.sampled_from([0, 60, 150]),
    most_ids=st.sampled_from([0, 0, 20, 60]),
    fault_at=st.integers(0, 150),
    is_kill=st.booleans(),
)
HISTORIES = st.builds(
    History,
    launches=st.lists(LAUNCHES, min_size=1, max_size=4).map(tuple),
    full_every=st.integers(1, 4),
    in_seconds=st.booleans(),
    keep=st.sampled_from([0, 0, 2]),
)


RESTARTED = History(  # values expire, a new process lets more of them expire, and ids are given anew
    launches=(
        Launch((Part("good", 4, 38, 16, False, 43),), 60, 60, 125, is_kill=False),
        Launch((Part("good", 2, 66, 0, False, 87), Part("good", 2, 86, 68, False, 30)), 0, 60, 44),
    ),
    full_every=2,
)


@pytest.fixture(scope="module")
def warm(tmp_path_factory, cpu, tiny_config):
    """A run that was trained on rows of the first two windows."""
    folder = tmp_path_factory.mktemp("history")
    lines = [line for window in (0, 1) for line in Part("good", window, 100, 1000, False, 0).lines()]
    (folder / "log.txt").write_text("".join(f"{line}\n" for line in lines))
    prepare(folder / "log.txt", folder / "prepared", PREPARE)
    settings = (f"train.batch_size={BATCH}", "eval.bootstrap=0", "model.embedding_dim=4", "model.hidden_widths=[8]")
    assert plan_launch(tiny_config(*settings), folder / "prepared", folder / "device_0").train(cpu) == 0
    return folder / "device_0"


@given(history=HISTORIES)
@example(history=History((Launch((), expire_after=150, fault_at=37),)))  # killed as it writes its first checkpoint
@example(history=RESTARTED)
@settings(max_examples=4, phases=[Phase.explicit, Phase.generate])
def test_whatever_happens_it_leaves_what_the_model_says(history, warm, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "SMALL_FIELD", SMALL_FIELD)
        patch.setattr(online_trainer, "FULL_EVERY", history.full_every)
        assert_history(history, warm, tmp_path_factory.mktemp("told"))
