"""Scenes to record and cut (saves, preparations, a training), and checks of what each cut leaves.

`python -m tests.faults.scenes` prints the number of states and what was found in them.
"""

import contextlib
import dataclasses
import logging
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

from app.checkpoint import write
from app.checkpoint.manifest import read_manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import remove_old, step_folders, whole_checkpoints
from app.checkpoint.write import write_checkpoint
from app.cli.checkpoint import reshard
from app.config.config import CheckpointOptions, Config
from app.run.claim import RunIsFinishedError, open_run
from app.run.decision import find_newest
from app.run.folder import EVAL_LOG, LOSS_LOG, METRICS, forget_after
from common import yaml_settings
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.data_files import verify_files
from data_prep.prepared.schema import SCHEMA_FILE, read_schema
from data_prep.sources.synthetic import synthesize
from tests.app.checkpoint.test_checkpoint_faults import compact_and_tidy, is_state, make_chain, make_state
from tests.checkpoints import plain_manifest, run_manifest
from tests.faults.power_cut import Operation, Recording, record
from tests.prepared_folders import contents

PROJECT = Path(__file__).parents[2]
TINY_CONFIG = PROJECT / "configs" / "tiny.yaml"


class Scene:
    """Base of the programs whose writes are cut: fill a folder, run, and check what is left after each cut."""

    first = 0  # operations that no cut comes before
    unread = "(?!)"  # paths, as a pattern, that nobody reads any more

    def __init__(self, inputs: Path) -> None:
        self.inputs = inputs  # made once, read by all

    def before(self, root: Path) -> None:
        """Fill the folder."""

    def act(self, root: Path) -> None:
        """Do what is cut."""
        raise NotImplementedError

    def begin(self, recording: Recording) -> None:
        """Keep from the whole recording what each check compares with."""

    def promise(self, count: int) -> int:
        """Return a number for what must not be lost any more after so many operations."""
        return 0

    def judge(self, root: Path, count: int) -> str:
        """Return old, new or error for what is found; AssertionError where it is none of them."""
        raise NotImplementedError


def synced_renames(operations: list[Operation], pattern: str) -> list[tuple[int, str]]:
    """The names that match and were given by a rename, with the number of operations after which they are safe."""
    found = []
    for number, operation in enumerate(operations):
        if operation.kind == "rename" and re.fullmatch(pattern, operation.to[1]):
            later = enumerate(operations[number:], number + 1)
            ends = [count for count, sync in later if sync.kind == "sync" and sync.inode == operation.to[0]]
            found += [(ends[0], operation.to[1])] if ends else []
    return found


# Checkpoints

IDENTITY = {"config": {}, "data": {}}


class Save(Scene):
    """A checkpoint of step 3 comes after those of 1 and 2, which are removed then."""

    replaced = 2
    step = 3

    def before(self, root: Path) -> None:
        for step in (1, 2):
            write_checkpoint(root, make_state(seed=step), plain_manifest(step))

    def act(self, root: Path) -> None:
        write_checkpoint(root, make_state(seed=9), plain_manifest(self.step), num_shards=2)
        remove_old(root, CheckpointOptions(keep_last=1, keep_best=0), "auc")

    def begin(self, recording: Recording) -> None:
        ((self.safe_after, _),) = synced_renames(recording.operations, f"step-0*{self.step}")

    def promise(self, count: int) -> int:
        return int(count >= self.safe_after)

    def judge(self, root: Path, count: int) -> str:
        write.clear_leftovers(root)
        with mock.patch("app.run.decision.difference", return_value=None):
            newest, refused = find_newest(root, IDENTITY, None)
        assert newest is not None, refused
        assert not refused, refused
        for checkpoint in whole_checkpoints(root):
            checkpoint.verify()  # or what was being removed is taken for whole
        if is_state(newest.path, make_state(seed=9)):
            assert newest.manifest.step == self.step
            return "new"
        assert not self.promise(count), "a save that had ended is lost"
        assert is_state(newest.path, make_state(seed=self.replaced))
        return "old"


class Replace(Save):
    """The checkpoint of step 2 is there already."""

    step = 2


class Compact(Scene):
    """The newest of a chain is made full, and those that it needed are removed."""

    def before(self, root: Path) -> None:
        make_chain(root)

    def act(self, root: Path) -> None:
        compact_and_tidy(root)

    def judge(self, root: Path, count: int) -> str:
        write.clear_leftovers(root)
        newest = step_folders(root)[-1]
        for checkpoint in whole_checkpoints(root):
            checkpoint.verify()
        assert is_state(newest, make_state(seed=3))
        return "old" if read_manifest(newest).parent else "new"


class Delta(Scene):
    """A delta follows a full checkpoint."""

    def before(self, root: Path) -> None:
        write_checkpoint(root, make_state(seed=1), plain_manifest(1))

    def act(self, root: Path) -> None:
        parent = {"step": 1, "id": read_manifest(root / "step-00000001").id}
        write_checkpoint(root, make_state(seed=2), dataclasses.replace(plain_manifest(2), parent=parent))

    def judge(self, root: Path, count: int) -> str:
        write.clear_leftovers(root)
        newest = whole_checkpoints(root)[-1].path
        number = read_manifest(newest).step
        assert is_state(newest, make_state(seed=number))
        return "old" if number == 1 else "new"


class Merge(Scene):
    """A checkpoint is written with other files into a new folder, two levels down."""

    def before(self, root: Path) -> None:
        write_checkpoint(root, make_state(seed=1), plain_manifest(1))

    def act(self, root: Path) -> None:
        reshard(root / "step-00000001", root / "new" / "here", num_shards=2)

    def begin(self, recording: Recording) -> None:
        self.safe_after = len(recording.operations)

    def promise(self, count: int) -> int:
        return int(count >= self.safe_after)

    def judge(self, root: Path, count: int) -> str:
        assert is_state(root / "step-00000001", make_state(seed=1))
        if not step_folders(root / "new" / "here"):
            assert not self.promise(count), "what the command said it had written is lost"
            return "old"
        assert is_state(root / "new" / "here" / "step-00000001", make_state(seed=1))
        return "new"


# Preparations

OPTIONS = PrepareOptions(min_count=3, shuffle_window_rows=200, workers=1)


class Prepare(Scene):
    """A log is prepared into a new folder."""

    overwrite = False
    unread = "^out.partial/work/"

    def before(self, root: Path) -> None:
        if not (self.inputs / "old").exists():
            self._prepare(self.inputs / "old", min_count=5)
            self._prepare(self.inputs / "new", min_count=3)

    def _prepare(self, output: Path, min_count: int, **named: bool) -> None:
        options = dataclasses.replace(OPTIONS, min_count=min_count)
        with mock.patch("data_prep.options.prepare_options.BLOCK_ROWS", 64):  # this may be a process of its own
            prepare(self.inputs / "log.txt", output, options, chunk_bytes=200_000, file_rows=320, **named)

    def act(self, root: Path) -> None:
        self._prepare(root / "out", min_count=3, overwrite=self.overwrite)

    def begin(self, recording: Recording) -> None:
        ((self.safe_after, _),) = synced_renames(recording.operations, "out")
        made = {operation.name: number for number, operation in enumerate(recording.operations)}
        self.first = made["schema.json.tmp"]  # what is lost before that is found by the checksums of pieces
        self.is_like = {name: contents(self.inputs / name) for name in ("old", "new")}

    def promise(self, count: int) -> int:
        return int(count >= self.safe_after)

    def judge(self, root: Path, count: int) -> str:
        output, found = root / "out", "old"
        if output.exists():
            verify_files(output, read_schema(output))
            found = self._which(output)
        assert found == "new" or not self.promise(count), "what was finished is lost"
        kept = [path for path in root.glob("out.replaced*") if (path / SCHEMA_FILE).exists()]
        assert found == "new" or not self.overwrite or output.exists() or self._which(kept[0]) == "old"
        if found == "new" and not (output / "run.json").exists():
            return found  # it would be prepared anew
        self.act(root)
        assert contents(output) == self.is_like["new"]
        assert [path.name for path in root.iterdir()] == ["out"]
        return found

    def _which(self, folder: Path) -> str:
        there = contents(folder)
        names = [name for name, files in self.is_like.items() if all(there.get(n) == files[n] for n in files)]
        assert names, f"{folder} is neither the old folder nor the new one"
        return names[0]


class PrepareAgain(Prepare):
    """A preparation that replaces a prepared folder."""

    overwrite = True

    def before(self, root: Path) -> None:
        super().before(root)
        shutil.copytree(self.inputs / "old", root / "out")


# A training

SETTINGS = ("train.epochs=2", "train.log_every_steps=1", "train.batch_size=500", "checkpoint.every_steps=3")
SETTINGS += ("checkpoint.keep_last=2", "checkpoint.delta=true", "eval.metric=auc")
SETTINGS += ("model.first_layer=direct",)  # what auto chooses, as the plan looks for it
OLDER = ("train.seed=2", "model.first_layer=direct")


class Train(Scene):
    """A run of other settings is there and is renamed; the new one trains to its end."""

    def __init__(self, inputs: Path) -> None:
        super().__init__(inputs)
        self.dataset = inputs / "prepared"

    def before(self, root: Path) -> None:
        schema = read_schema(self.dataset)
        config = yaml_settings.resolve(Config, TINY_CONFIG, OLDER)
        run, locks = open_run(root / "device_0", config, schema)
        with locks:
            manifest = run_manifest(4, config, schema, "", selection={"last_step": -1})
            write_checkpoint(run.checkpoints, make_state(seed=4), manifest)
            run.append_losses([f"epoch: 1 step: {step}" for step in range(1, 5)])

    def act(self, root: Path) -> None:
        from app.__main__ import main  # MindSpore, after the environment is set

        with mock.patch("app.training.saving.FULL_EVERY", 3):
            assert main(["train", "--config", str(TINY_CONFIG), "--dataset", str(self.dataset), *SETTINGS]) == 0

    def begin(self, recording: Recording) -> None:
        self.safe = [(end, int(name[-8:])) for end, name in synced_renames(recording.operations, r"step-\d+")]
        assert len(self.safe) == 5
        self.schema = read_schema(self.dataset)
        self.config = yaml_settings.resolve(Config, TINY_CONFIG, SETTINGS)
        self.logs = {name: (recording.root / "device_0" / name).read_bytes() for name in (LOSS_LOG, EVAL_LOG, METRICS)}

    def promise(self, count: int) -> int:
        """The newest step whose save had ended."""
        return max((step for end, step in self.safe if end <= count), default=0)

    def judge(self, root: Path, count: int) -> str:
        promised = self.promise(count)
        try:
            with mock.patch("app.run.folder.RunFolder.describe"):
                run, locks = open_run(root / "device_0", self.config, self.schema)
        except RunIsFinishedError as finished:
            assert promised == self.safe[-1][1]
            self._check_logs(finished.path, None)
            return "new"
        with locks:
            plan = run.plan
            if plan.kind == "new":
                assert not promised, f"step {promised} was saved, and a new run begins: {plan.reason}"
                assert re.search("differs: train.seed|has no whole checkpoint|there is no run yet", plan.reason), plan
            else:
                assert plan.checkpoint is not None
                assert plan.checkpoint.manifest.step >= promised, f"step {promised} was saved"
                assert not plan.refused, plan.refused
                self._check_logs(run.path, plan.checkpoint)
        assert is_state(root / "device_0.1" / "checkpoints" / "step-00000004", make_state(seed=4))
        return "old" if plan.kind == "new" else "new"

    def _check_logs(self, run_path: Path, newest: Checkpoint | None) -> None:
        """They have the lines up to the checkpoint, as they were written."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in self.logs.items():
                (Path(folder) / name).write_bytes(content)
            if newest is not None:
                forget_after(Path(folder), newest.manifest)
            for name in self.logs:
                there = (run_path / name).read_bytes() if (run_path / name).exists() else b""
                assert there == (Path(folder) / name).read_bytes(), f"{name} is not as it was: {there!r}"


def make_inputs(folder: Path) -> Path:
    """A log, and the folder that is trained on."""
    folder.mkdir(parents=True, exist_ok=True)
    synthesize(folder / "log.txt", 200, seed=1, workers=1)
    synthesize(folder / "train.txt", 3000, seed=1, workers=1)
    prepare(folder / "train.txt", folder / "prepared", read_options(TINY_CONFIG, ["prepare.workers=1"]), file_rows=700)
    return folder


SCENES: dict[str, type[Scene]] = {
    "a full checkpoint": Save,
    "a delta": Delta,
    "a checkpoint written anew": Replace,
    "a compaction": Compact,
    "checkpoint reshard into a new folder": Merge,
    "a preparation": Prepare,
    "a preparation over another": PrepareAgain,
    "a training": Train,
}


@dataclasses.dataclass
class Found:
    """Result of a scene: counts of the states tried, and the states with something wrong."""

    operations: int
    states: Counter[str]
    wrong: list[str]


def cut(name: str, inputs: Path, folder: Path, program: str = "") -> Found:
    """Record a scene in an empty folder, after `program`, and check every state that a cut can leave."""
    scene, root = SCENES[name](inputs), folder / "root"
    root.mkdir()
    scene.before(root)
    program += "import sys; from pathlib import Path; from tests.faults.scenes import SCENES\n"
    program += "SCENES[sys.argv[1]](Path(sys.argv[2])).act(Path(sys.argv[3]))"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-P", "-c", program, name, str(inputs), str(root)]
    recording = record(command, root, folder / "trace", environment)
    scene.begin(recording)
    found = Found(len(recording.operations), Counter(), [])
    with mock.patch("os.fsync"), contextlib.chdir(folder), quiet():
        for count, what, tree in recording.states(scene.first, scene.promise, scene.unread):
            shutil.rmtree(root)
            root.mkdir()
            recording.put(tree)
            try:
                found.states[scene.judge(root, count)] += 1
            except (AssertionError, ValueError, OSError, LookupError) as error:
                found.wrong.append(f"{name}: after {count} operations, without {what}: {type(error).__name__}: {error}")
    return found


@contextlib.contextmanager
def quiet():
    """Switch the log off: it has a line for each state."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def main() -> None:
    """Print the table."""
    print("| what | operations | states | old | new | wrong |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        inputs = make_inputs(Path(folder) / "inputs")
        for number, name in enumerate(sys.argv[1:] or SCENES):
            place = Path(folder) / str(number)
            place.mkdir()
            found = cut(name, inputs, place)
            figures = found.operations, found.states.total() + len(found.wrong), found.states["old"]
            print("|", " | ".join(map(str, (name, *figures, found.states["new"], len(found.wrong)))), "|", flush=True)
            for line in found.wrong[:3]:
                print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
