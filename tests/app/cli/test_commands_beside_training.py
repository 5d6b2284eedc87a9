"""`python -m app checkpoint` in the folder that a training saves to, at the same time."""

import itertools
import os
import random
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from app.__main__ import main
from app.checkpoint import write
from app.checkpoint.manifest import Manifest, Position, read_manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import step_folders, whole_checkpoints
from app.checkpoint.write import ModelState, write_checkpoint
from app.config.config import Config
from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.distributed.process_group import ProcessGroup
from app.run.claim import open_run
from app.tables.fields import TableField
from app.tables.interface import RowGradients, TablesSpec
from app.training.context import RunContext
from app.training.saving import CheckpointManager
from common import yaml_settings
from common.files import lock_folder
from data_prep.prepared.schema import read_schema
from tests.app.tables.tables_of_spec import reference_tables
from tests.checkpoints import StateOfTables
from tests.kills import in_child, num_kills
from tests.programs import run_python

SPEC = TablesSpec(200, 4, (TableField("C1"), TableField("C2")), 7, 0.01, 1e-3, FtrlOptions(), LazyAdamOptions())
LAST_STEP = 60


class Training:
    """Saves after each update, as a training does; `run` is open, and its locks are held."""

    def __init__(self, base, config, schema):
        self.run, self.locks = open_run(base / "device_0", config, schema)
        self._tables = reference_tables(SPEC)
        selection, stop = SimpleNamespace(state=dict), SimpleNamespace(note_save=lambda seconds: None)
        context = RunContext(config, Path(), schema, self.run, stop, ProcessGroup())
        self.manager = CheckpointManager(context, StateOfTables(self._tables), selection)
        self.manager.full_every = 4
        self.step = 0

    def save(self):
        self.step += 1
        rng = np.random.default_rng(self.step)
        ids = rng.integers(0, SPEC.vocabulary_size, (20, 2), np.int32)
        gradients = RowGradients(rng.standard_normal((20, 8), np.float32), rng.standard_normal(20, np.float32))
        self._tables.update(self._tables.unique(ids), gradients)
        self.manager.save(Position(self.step, 1, self.step), None, wait=True)

    def save_times(self, times):
        for _ in range(times):
            self.save()


DELTAS = ("checkpoint.delta=true", "checkpoint.keep_last=6")


@pytest.fixture
def training(tmp_path, tiny_config, tiny_schema):
    made = Training(tmp_path, tiny_config(*DELTAS), tiny_schema)
    with made.locks:
        made.save()
        made.save()
        yield made
    made.manager.close()


@pytest.fixture
def foreign(tmp_path):
    """A checkpoint of a step that the training never has, to be written into its folder."""
    return write_checkpoint(tmp_path / "foreign", ModelState({}, {}), Manifest(999, 1, 9, {}, "", {}, {}))


def commands(training, foreign, elsewhere):
    newest = step_folders(training.run.checkpoints)[-1]
    folder = training.run.checkpoints
    yield ["compact", newest]
    yield ["reshard", "--shards", "1", foreign, folder]
    yield ["reshard", foreign, folder, "--shards", "2"]
    yield ["reshard", "--shards", "1", newest, elsewhere]
    for name in ("list", "show", "verify"):
        yield [name, "--run", training.run.path]
    for name in ("show", "verify"):
        yield [name, newest]


def test_a_training_loses_nothing_to_commands_that_race_it(training, foreign, tmp_path, caplog, capsys):
    statuses, turn = set(), 0
    while training.step < LAST_STEP:
        turn += 1
        # By turns so few saves that the commands' checkpoint stands, and so many that it may go while it is read.
        saves = min(3 if turn % 2 else 12, LAST_STEP - training.step)
        saving = threading.Thread(target=training.save_times, args=(saves,))
        saving.start()
        for words in commands(training, foreign, tmp_path / f"elsewhere-{turn}"):
            status = main(["checkpoint", *map(str, words)])
            if foreign in words:
                statuses.add(status)
        saving.join()
    assert training.run.write_errors() == []
    kept = step_folders(training.run.checkpoints)
    assert [path.name for path in kept[-6:]] == [f"step-{step:08d}" for step in range(LAST_STEP - 5, LAST_STEP + 1)]
    for path in kept:
        Checkpoint.open(path).verify()
    written = [path for folder in tmp_path.glob("elsewhere-*") for path in step_folders(folder)]
    assert written
    for path in written:
        checkpoint = Checkpoint.open(path)
        checkpoint.verify()
        assert checkpoint.manifest.parent is None
    assert statuses == {2}
    assert "Errno" not in caplog.text
    assert "Traceback" not in caplog.text


@contextmanager
def renamed(path):
    away = path.rename(path.with_suffix(".partial"))
    yield
    away.rename(path)


@pytest.mark.parametrize("checkpoint_dir", ["", "kept"])
def test_a_command_is_refused_while_a_training_saves_there(
    tmp_path, tiny_config, tiny_schema, foreign, caplog, checkpoint_dir
):
    words = (f"checkpoint.dir='{checkpoint_dir}'", "checkpoint.delta=true")
    training = Training(tmp_path, tiny_config(*words), tiny_schema)
    with training.locks:
        training.save()
        training.save()
        folder = training.run.checkpoints
        before = sorted(path.name for path in folder.rglob("*"))
        assert main(["checkpoint", "compact", str(folder / "step-00000002")]) == 2
        line = caplog.messages[-1]
        assert line.startswith(
            f"error: another process (a training, or a command such as this one) saves checkpoints in {folder}"
        )
        assert f"checkpoint reshard {folder / 'step-00000002'} FOLDER --shards 1" in line
        assert main(["checkpoint", "reshard", "--shards", "1", str(foreign), str(folder)]) == 2
        assert "give another FOLDER, or wait for its end" in caplog.messages[-1]
        assert sorted(path.name for path in folder.rglob("*")) == before
        # What the training does to a delta's parent meanwhile is not read, and not the reason.
        with renamed(folder / "step-00000001"):
            assert main(["checkpoint", "compact", str(folder / "step-00000002")]) == 2
            assert "another process" in caplog.messages[-1]
    assert main(["checkpoint", "compact", str(folder / "step-00000002")]) == 0
    assert read_manifest(folder / "step-00000002").parent is None


def test_a_run_that_was_put_aside_is_free(training, tmp_path, tiny_config, tiny_schema):
    training.locks.close()
    _, locks = open_run(tmp_path / "device_0", tiny_config("train.seed=2"), tiny_schema)
    with locks:
        aside = tmp_path / "device_0.1"
        lock_folder(aside).close()
        assert main(["checkpoint", "compact", str(aside / "checkpoints" / "step-00000002")]) == 0
        with pytest.raises(ValueError, match="another process works in"):
            lock_folder(tmp_path / "device_0" / "checkpoints")


@pytest.mark.parametrize("words", [["reshard", "--shards", "1"], ["verify"], ["show"]], ids=lambda words: words[0])
def test_what_a_training_removes_while_a_command_reads_it(words, training, tmp_path, monkeypatch, caplog):
    path = step_folders(training.run.checkpoints)[-1]

    def remove_and_fail(*_):
        path.rename(path.with_suffix(".partial"))
        raise FileNotFoundError(2, "No such file or directory", str(path / "deep-0-of-1.safetensors"))

    monkeypatch.setattr(Checkpoint, "table_files" if words == ["show"] else "verify", remove_and_fail)
    assert Checkpoint.open(path).is_kept()
    folder = [str(tmp_path / "elsewhere")] if "--shards" in words else []
    assert main(["checkpoint", *words, str(path), *folder]) == 2
    assert f"{path} was removed or written anew while it was read" in caplog.messages[-1]
    assert not (tmp_path / "elsewhere").exists()


def test_leftovers_are_known_by_their_whole_name(tmp_path):
    for name in ("step-00000003.partial", "step-mine.partial", "step-00000003.partial.kept"):
        (tmp_path / name).mkdir()
    write.clear_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003.partial.kept", "step-mine.partial"]


def train_and_save(base, config, schema):
    training = Training(base, config, schema)
    with training.locks:
        training.save_times(LAST_STEP)
    assert training.run.write_errors() == []


def run_commands(checkpoints, elsewhere):
    """Merge the newest checkpoint elsewhere and try to compact it, until killed or the training is over."""
    for turn in itertools.count():
        for checkpoint in whole_checkpoints(checkpoints)[-1:]:
            path = checkpoint.path
            assert main(["checkpoint", "reshard", "--shards", "1", str(path), str(elsewhere / str(turn))]) in (0, 2)
            assert main(["checkpoint", "compact", str(path)]) in (0, 2)
        if path_of_last(checkpoints).exists():
            return


def path_of_last(checkpoints):
    return checkpoints / f"step-{LAST_STEP:08d}"


def kill_at_random(folder, dataset, project, kills):
    """In a process of its own: kill the training and the commands beside it by turns."""
    random_ = random.Random(kills)
    schema = read_schema(Path(dataset))
    config = yaml_settings.resolve(Config, Path(project) / "configs" / "tiny.yaml", DELTAS)
    killed = 0
    for number in itertools.count():
        base, elsewhere = Path(folder) / str(number), Path(folder) / f"elsewhere-{number}"
        base.mkdir()
        checkpoints = base / "device_0" / "checkpoints"
        training = in_child(train_and_save, base, config, schema)
        commands = in_child(run_commands, checkpoints, elsewhere)
        victim, other = (training, commands) if number % 2 else (commands, training)
        while not whole_checkpoints(checkpoints):
            time.sleep(0.005)
        time.sleep(random_.uniform(0, 0.3))
        os.kill(victim, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]) == -signal.SIGKILL
        if victim == training:  # nobody saves any more: what remains is what the killed one left
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
        else:
            assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == 0
            assert path_of_last(checkpoints).exists()
        for path in [
            *(checkpoint.path for checkpoint in whole_checkpoints(checkpoints)),
            *elsewhere.glob("*/step-????????"),
        ]:
            Checkpoint.open(path).verify()
        newest = whole_checkpoints(checkpoints)[-1].path
        assert main(["checkpoint", "reshard", "--shards", "1", str(newest), str(elsewhere / "after")]) == 0
        assert main(["checkpoint", "compact", str(newest)]) == 0
        run, locks = open_run(base / "device_0", config, schema)
        with locks:
            assert (run.plan.kind, run.plan.checkpoint.path, run.plan.refused) == ("resume", newest, {})
        if killed >= kills:
            break
    print(killed)


@pytest.mark.kills
def test_kills_of_commands_and_of_the_training_beside_them_lose_nothing(
    tmp_path, tiny_dataset, project, command_environment
):
    program = "import sys; sys.path.insert(0, sys.argv[1]); import test_commands_beside_training as test\n"
    program += "test.kill_at_random(*sys.argv[2:5], int(sys.argv[5]))"
    words = [project / "tests" / "app" / "cli", tmp_path, tiny_dataset, project, num_kills("commands")]
    done = run_python("-c", program, *words, env=command_environment)
    assert "Traceback" not in done.stderr
    assert int(done.stdout.splitlines()[-1]) >= num_kills("commands")
