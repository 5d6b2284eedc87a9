"""Saving under write errors and kills at each call to the disk, and loading what was flipped."""

import contextlib
import dataclasses
import errno
import itertools

import numpy as np
import pytest

from app.checkpoint.manifest import read_manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import compact, remove_old, step_folders, whole_checkpoints
from app.checkpoint.write import ModelState, clear_leftovers, step_name, write_checkpoint
from app.config.config import CheckpointOptions
from app.tables.interface import DEEP, TableState
from tests.checkpoints import load, plain_manifest
from tests.damage import disk_error
from tests.programs import run_python


def make_state(seed):
    rng = np.random.default_rng(seed)
    rows = {name: rng.standard_normal((6, 2), np.float32) for name in ("rows", "first_moment", "second_moment")}
    tables = {DEEP: TableState(np.arange(0, 12, 2), rows)}
    return ModelState({"tower.matrix_0": rng.standard_normal((3, 2), np.float32)}, tables)


def is_state(path, state):
    found = load(path)[1]
    return all(np.array_equal(found.dense[name], array) for name, array in state.dense.items()) and all(
        np.array_equal(found.tables[DEEP].arrays[name], array) for name, array in state.tables[DEEP].arrays.items()
    )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("step", [2, 3])
def test_a_write_error_at_each_call_leaves_what_was_whole(tmp_path, code, step):
    """Step 2 is there already and being replaced; step 3 is new."""
    old, new = make_state(seed=1), make_state(seed=2)
    for number in itertools.count():
        folder = tmp_path / str(number)
        for before in (1, 2):
            write_checkpoint(folder, old, plain_manifest(before))
        saved = False
        with disk_error(number, code) as broken:
            try:
                write_checkpoint(folder, new, plain_manifest(step), num_shards=2)
                saved = True  # an error may still have kept it from removing what it replaced
            except OSError as error:
                assert code == errno.EIO or error.strerror.startswith(f"cannot write {folder / 'step-'}")
        clear_leftovers(folder)
        names = [path.name for path in step_folders(folder)]
        assert names in (["step-00000001", "step-00000002"], ["step-00000001", "step-00000002", "step-00000003"])
        assert is_state(folder / "step-00000001", old)
        assert not saved or is_state(folder / step_name(step), new)
        assert is_state(folder / "step-00000002", old) or (step == 2 and is_state(folder / "step-00000002", new))
        assert is_state(write_checkpoint(folder, new, plain_manifest(step)), new)
        if not broken:
            break
    assert number > 20  # faults that were tried


OPTIONS = CheckpointOptions(keep_last=1, keep_best=0, delta=True)


def make_chain(folder):
    """A full checkpoint and two deltas; returns the state of the last."""
    state, parent = make_state(seed=1), None
    for step in (1, 2, 3):
        manifest = dataclasses.replace(plain_manifest(step), parent=parent)
        parent = {"step": step, "id": read_manifest(write_checkpoint(folder, state, manifest)).id}
        state = make_state(seed=1 + step)  # all rows change
    return make_state(seed=3)


def compact_and_tidy(folder):
    """Compact the newest checkpoint and remove those that it needed."""
    compact(whole_checkpoints(folder)[-1], 2)
    remove_old(folder, OPTIONS, "auc")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_write_error_at_each_call_of_a_compaction_loses_nothing(tmp_path, code):
    for number in itertools.count():
        folder = tmp_path / str(number)
        state = make_chain(folder)
        with disk_error(number, code) as broken, contextlib.suppress(OSError, ValueError):
            compact_and_tidy(folder)
        clear_leftovers(folder)
        assert is_state(folder / "step-00000003", state), number
        compact_and_tidy(folder)
        assert is_state(folder / "step-00000003", state), number
        assert [path.name for path in folder.iterdir()] == ["step-00000003"]
        if not broken:
            break
    assert number > 20


def save_twice(folder):
    for step in (1, 2):
        write_checkpoint(folder, make_state(seed=1), plain_manifest(step))


def save_anew(folder):
    write_checkpoint(folder, make_state(seed=2), plain_manifest(2), num_shards=2)


def check_replaced(folder, died):
    old, new = make_state(seed=1), make_state(seed=2)
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000001", "step-00000002"]
    assert is_state(folder / "step-00000001", old)
    assert is_state(folder / "step-00000002", new) or (died and is_state(folder / "step-00000002", old))


def check_compacted(folder, died):
    assert is_state(folder / "step-00000003", make_state(seed=3)), died
    compact_and_tidy(folder)
    assert is_state(folder / "step-00000003", make_state(seed=3))
    assert [path.name for path in folder.iterdir()] == ["step-00000003"]


KILLED = {  # what is there before, what is killed, what must hold then
    "a save": (save_twice, save_anew, check_replaced),
    "a compaction": (make_chain, compact_and_tidy, check_compacted),
}
KILL_AT_EACH_CALL = """
import itertools, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_checkpoint_faults import KILLED, clear_leftovers
from tests.damage import DISK_CALLS

def die_at(number, calls=itertools.count()):
    def dying(name, call):
        def called(*words, **named):
            if next(calls) == number:
                if name == "pwrite" and len(words[1]) > 4096:  # half of it reaches the disk
                    call(words[0], words[1][: len(words[1]) // 8192 * 4096], words[2])
                os._exit(9)
            return call(*words, **named)
        return called
    for name in (*DISK_CALLS, "unlink", "rmdir"):
        setattr(os, name, dying(name, getattr(os, name)))

def in_child(number, action, folder):
    child = os.fork()
    if child == 0:
        die_at(number)
        action(folder)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

prepare, action, check = KILLED[sys.argv[3]]
for number in itertools.count():
    folder = Path(sys.argv[1]) / str(number)
    prepare(folder)
    status = in_child(number, action, folder)
    in_child(number % 7, clear_leftovers, folder)
    clear_leftovers(folder)
    print("kill at call", number, file=sys.stderr)
    check(folder, died=status != 0)
    if status == 0:
        break
print(number)
"""


@pytest.mark.kills
@pytest.mark.parametrize("killed", KILLED)
def test_a_kill_at_each_call_leaves_what_was_whole(tmp_path, project, command_environment, killed):
    """In a process of its own, which can be forked: this one may have MindSpore's threads."""
    done = run_python(
        "-c", KILL_AT_EACH_CALL, tmp_path, project / "tests" / "app" / "checkpoint", killed, env=command_environment
    )
    assert int(done.stdout) > 25  # kills


def test_a_flip_of_any_byte_is_refused(tmp_path):
    """Every byte of every file, one bit each; eight neighbours have all bits."""
    path = write_checkpoint(tmp_path, make_state(seed=1), plain_manifest(1), num_shards=2)
    flips = 0
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        for place in range(len(content)):
            flipped = bytearray(content)
            flipped[place] ^= 1 << place % 8
            file.write_bytes(flipped)
            with pytest.raises(ValueError, match=f"{file.name} (is damaged|has format version)"):
                Checkpoint.open(path).verify()
            flips += 1
        file.write_bytes(content)
    Checkpoint.open(path).verify()
    assert flips > 1400
