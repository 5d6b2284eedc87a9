"""Make the output folder OUTPUT under another name, OUTPUT.partial, and rename it when it is complete.

After an interruption, the same command finds OUTPUT.partial and continues the work in it.

    OUTPUT.partial/run.json   options, log and versions; only a command with the same ones continues the work
    OUTPUT.partial/run.lock   locked by the process that works in the folder
    OUTPUT.partial/work/      results of finished tasks (pieces.py), and counts that exceed the memory limit
    OUTPUT.partial/…          files of the prepared folder

Only folders that this program made are ever replaced or removed: an OUTPUT.partial of this user with a run.json,
and, with --overwrite, a prepared folder. Neither is removed if it holds a file that no preparation makes. A prepared
folder that is replaced is first renamed to OUTPUT.replaced, or to OUTPUT.replaced.1 if that exists, and removed when
the new folder is in its place. run.json records the name OUTPUT.replaced before the renaming, so that a resumed run
removes only folders that it renamed itself.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any

from common.files import LOCK_FILE, from_dict, lock_folder, parse_json, replace_folder, sync_folder, write_whole
from common.text import shortened
from data_prep.execution.pieces import Pieces
from data_prep.prepared.schema import SCHEMA_FILE

REJECTS_FILE = "rejects.tsv"
STATE_FILE = "run.json"
WORK_FOLDER = "work"
PROBE_FOLDER = "run.probe"
# Names of files and folders that OUTPUT.partial contains while it is made, but that the finished folder does not
# contain.
OWN_NAMES = (STATE_FILE, LOCK_FILE, WORK_FOLDER, PROBE_FOLDER)
# Names of all files and folders that some version of this program makes in an output folder. A folder that holds
# anything else is neither emptied nor replaced.
_MADE_NAMES = (
    *OWN_NAMES,
    SCHEMA_FILE,
    REJECTS_FILE,
    "vocabulary.parquet",
    "statistics.json",
    "timing.json",
    "report.html",
    "row_numbers-*.npy",
    *(f"{split}[-_]*.mindrecord*" for split in ("train", "valid", "test")),
    "*.tmp",
)
_SHOWN_NAMES = 5

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _State:
    """The content of run.json, by which a later run recognizes the unfinished folder of an interrupted run."""

    chunk_bytes: int
    identity: dict[str, Any]  # All options, inputs and versions that can change a byte of the prepared folder.
    # With --overwrite: the names OUTPUT.replaced… to which this run has renamed the folders that it replaces.
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkDir:
    """The folder in which a preparation writes its files: OUTPUT.partial, or in one case OUTPUT.

    The folder is OUTPUT if an earlier run was interrupted after it had renamed OUTPUT.partial to OUTPUT. Only the
    temporary files in OUTPUT are then left to remove.
    """

    folder: Path
    # Size in bytes of the chunks into which the run that began the folder cuts the log. A resumed run must use the same
    # size, because stored results are numbered by chunk.
    chunk_bytes: int
    is_complete: bool  # True if an interrupted run has already written all files of the prepared folder.

    @property
    def work_folder(self) -> Path:
        return self.folder / WORK_FOLDER

    @property
    def pieces(self) -> Pieces:
        return Pieces(self.work_folder)


@contextmanager
def new_folder(
    output: Path, identity: Mapping[str, Any], chunk_bytes: int, overwrite: bool, restart: bool
) -> Iterator[WorkDir]:
    """Yield the folder OUTPUT.partial, in which the `with` block makes the output.

    After the block, rename it to `output`. If an interrupted run with the same `identity` (options, inputs and
    versions) has left OUTPUT.partial, yield that folder, so that the block continues the work in it. If that run was
    interrupted after the renaming, only its temporary files in `output` are left to remove. With `restart`, begin with
    an empty folder. After a ValueError in the block, which means that the log is wrong, OUTPUT.partial is removed,
    unless it already has a schema.json.

    Raise FileExistsError if `output` exists and may not be replaced, or if OUTPUT.partial is not from this program.
    Raise FolderInUse if another run works in the folder, OSError if nothing can be written, and OtherRun if the folder
    is from an interrupted run with another identity.
    """
    if not restart and _is_finished_by(output, identity):
        with _lock(output, output):
            log.info("%s is complete; removing the temporary files of the interrupted run", output)
            yield WorkDir(output, 0, is_complete=True)
            _tidy_up(output)
        return
    _check_output(output, overwrite)
    partial = partial_folder(output)
    _check_is_ours(partial)
    with _lock(partial, output):
        # Now that this process holds the lock, check a second time that `output` may be replaced, because another run
        # may have made it in the meantime.
        _check_output(output, overwrite)
        _make_private(partial)
        work_dir = _resume_or_begin(partial, identity, chunk_bytes, restart)
        try:
            yield work_dir
        except ValueError:
            if not (partial / SCHEMA_FILE).is_file():
                _empty(partial)
                shutil.rmtree(partial)
            raise
        sync_files(partial)
        # Check a third time that `output` may be replaced, because another program may have written to it during the
        # hours of work.
        _check_output(output, overwrite)
        _put_in_place(partial, output)
        _tidy_up(output)


def real_output(output: Path) -> Path:
    """Return the path to which the finished folder is renamed: `output`, or its target if `output` is a symbolic link.

    Renaming the finished folder to the link's own path would replace the link. Raise FileExistsError for a link whose
    target does not exist, ValueError for a path without a name, such as ".".
    """
    if output.name in ("", ".."):
        raise ValueError(f"the output {output} has no name of its own; name the folder to make, such as prepared")
    if not output.is_symlink():
        return output
    if not output.exists():
        raise FileExistsError(f"{output} is a link that leads nowhere; remove it or give another output")
    return output.resolve()


def partial_folder(output: Path) -> Path:
    """Return the path of the unfinished folder, in which the files of `output` are made.

    The path is `output` with .partial appended to its name.
    """
    return output.with_name(output.name + ".partial")


def unfinished_identity(output: Path) -> dict[str, Any]:
    """Return the identity (options, inputs, versions) of the interrupted run that would be resumed for `output`.

    Return {} if there is no such run.
    """
    state = _readable_state(partial_folder(output)) or _readable_state(output)
    return state.identity if state else {}


def sync_files(folder: Path) -> None:
    """Sync a folder and the files directly in it to the disk, so that they survive a power cut."""
    for path in folder.iterdir():
        if path.is_file():
            sync_folder(path)
    sync_folder(folder)


def _lock(folder: Path, output: Path) -> IO[str]:
    """Lock `folder`, in which `output` is made, for this process. Return the open lock file, which holds the lock.

    If the folder is missing, it is created with access for this user only. Raise FolderInUse if another process has
    locked it.
    """
    in_use = f"another process prepares {output} (it works in {folder}); wait for it, or give another output"
    return lock_folder(folder, 0o700, "give an output elsewhere", in_use)


def _make_private(partial: Path) -> None:
    """Set the mode of the folder `partial` so that only this user can access it.

    Raise FileExistsError if the folder belongs to another user, who could have put anything into it.
    """
    owner, here = partial.stat().st_uid, _probe(partial).st_uid
    if owner != here:
        raise FileExistsError(
            f"{partial} belongs to another user (number {owner}, not {here}), so it is not trusted; "
            "remove it or give another output"
        )
    _set_mode(partial, 0o700)


def _set_mode(path: Path, mode: int) -> None:
    if stat.S_IMODE(path.stat().st_mode) != mode:
        with suppress(PermissionError):  # Some file systems do not support access modes.
            path.chmod(mode)


def _probe(folder: Path) -> os.stat_result:
    """Make a subfolder in `folder`, remove it again, and return the result of `stat` for it.

    The subfolder's owner and mode show this process's user and umask as the file system sees them.
    """
    probe = folder / PROBE_FOLDER
    with suppress(FileNotFoundError):
        probe.rmdir()
    probe.mkdir()
    try:
        return probe.stat()
    finally:
        probe.rmdir()


def _put_in_place(partial: Path, output: Path) -> None:
    names = (f"{output.name}.replaced" + (f".{number}" if number else "") for number in itertools.count())
    aside = next(path for path in map(output.with_name, names) if not os.path.lexists(path))
    if output.exists():
        state = _read_state(partial)
        assert state is not None
        _write_state(partial, replace(state, replaced=(*state.replaced, *_replaced_before(output), aside.name)))
    shutil.rmtree(partial / WORK_FOLDER, ignore_errors=True)
    # Without this sync, a power cut could bring the removed work folder back, inside the finished folder.
    sync_folder(partial)
    replace_folder(partial, output, aside)


def _tidy_up(output: Path) -> None:
    """Remove run.json, the lock file and the folders that the finished `output` replaced, and set access modes.

    Until now the folder was private, and MindSpore creates files with mode 0600. The folder and its files get the modes
    that new ones have under the user's umask. run.json is removed last: as long as it exists, the next run calls this
    function again.
    """
    mode = stat.S_IMODE(_probe(output).st_mode)
    for path in output.iterdir():
        _set_mode(path, mode & 0o666)
    _set_mode(output, mode)
    for name in _replaced_before(output):
        replaced = output.with_name(name)
        if re.fullmatch(re.escape(output.name) + r"\.replaced(\.\d+)?", name) and replaced.exists():
            shutil.rmtree(replaced)
    for name in (LOCK_FILE, STATE_FILE):
        (output / name).unlink(missing_ok=True)


def _is_finished_by(output: Path, identity: Mapping[str, Any]) -> bool:
    """Return True if an earlier run with the same `identity` completed `output`, but ended before it removed run.json.

    `identity` has all options, inputs and versions that can change the folder.
    """
    state = _readable_state(output) if (output / SCHEMA_FILE).is_file() else None
    return state is not None and not _differences(state.identity, identity)


def _check_output(output: Path, overwrite: bool) -> None:
    """Raise FileExistsError if `output` exists and may not be replaced.

    It may be replaced if it is an empty folder or, with `overwrite`, a prepared folder that holds only files of
    preparations.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / SCHEMA_FILE).is_file():
        raise FileExistsError(f"{output} exists and is not a prepared folder; give another output")
    if not overwrite:
        raise FileExistsError(
            f"{output} holds prepared data; replace it with --overwrite (in Python overwrite=True) or give another "
            "output"
        )
    _check_all_is_ours(output, "is not replaced")


def _check_is_ours(partial: Path) -> None:
    if not os.path.lexists(partial):
        return
    if partial.is_symlink() or not partial.is_dir():
        raise FileExistsError(f"{partial} is in the way: it is not a folder; remove it or give another output")
    has_state = (partial / STATE_FILE).is_file()
    if not has_state and any(path.name not in OWN_NAMES for path in partial.iterdir()):
        raise FileExistsError(
            f"{partial} is in the way: it has no {STATE_FILE}, so an older version or another program made it; "
            "remove it or give another output"
        )
    _check_all_is_ours(partial, "is in the way")


def _check_all_is_ours(folder: Path, what: str) -> None:
    """Raise FileExistsError if `folder` holds a file or folder with a name that no preparation gives to its files.

    `what` is the part of the message after the folder's name, such as "is not replaced".
    """
    foreign = sorted(p.name for p in folder.iterdir() if not any(fnmatchcase(p.name, name) for name in _MADE_NAMES))
    if foreign:
        raise FileExistsError(
            f"{folder} {what}: it holds files that no preparation made: {shortened(foreign, _SHOWN_NAMES)}; "
            "move them elsewhere or give another output"
        )


def _resume_or_begin(partial: Path, identity: Mapping[str, Any], chunk_bytes: int, restart: bool) -> WorkDir:
    state = None if restart else _read_state(partial)
    if state is not None:
        differences = _differences(state.identity, identity)
        if differences:
            raise OtherRun(
                f"{partial} is unfinished and of another command: {'; '.join(differences)}. Give its settings again to "
                "resume it, or begin anew with --restart (in Python restart=True)"
            )
        is_complete = (partial / SCHEMA_FILE).is_file()
        (partial / WORK_FOLDER).mkdir(exist_ok=True)
        work_dir = WorkDir(partial, state.chunk_bytes, is_complete)
        work_dir.pieces.clear_unfinished()
        for path in partial.glob("*.tmp"):
            path.unlink()
        log.info("resuming %s (unfinished, same options and log)", partial)
        return work_dir
    replaced = _replaced_before(partial)
    _empty(partial)
    (partial / WORK_FOLDER).mkdir()
    _write_state(partial, _State(chunk_bytes, dict(identity), replaced))
    return WorkDir(partial, chunk_bytes, is_complete=False)


def _replaced_before(folder: Path) -> tuple[str, ...]:
    """Return the names OUTPUT.replaced… that the run.json of `folder` records.

    A preparation has renamed the folders that it replaces to these names.
    """
    state = _readable_state(folder)
    return state.replaced if state else ()


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    # `there` are the options, inputs and versions in run.json, and `here` those of the new run. JSON has turned the
    # tuples in `there` into lists, so the tuples in `here` are turned into lists too.
    here = json.loads(json.dumps(here))
    return [
        f"{name} was {there.get(name)!r}, is {here.get(name)!r}"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]


class OtherRun(ValueError):
    """Raised if the unfinished folder belongs to a preparation with other options, of another log or by other code.

    Also raised if the run.json of the folder is damaged.
    """


def _read_state(partial: Path) -> _State | None:
    try:
        text = (partial / STATE_FILE).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return from_dict(parse_json(text), _State)
    except (ValueError, KeyError, TypeError) as error:
        raise OtherRun(f"{partial / STATE_FILE} is damaged ({error!r}); begin anew with --restart") from error


def _readable_state(folder: Path) -> _State | None:
    """Return the content of run.json in `folder`, or None if the file is missing or damaged."""
    with suppress(OtherRun):
        return _read_state(folder)
    return None


def _write_state(partial: Path, state: _State) -> None:
    """Write `state` to run.json in the folder `partial`, atomically.

    The temporary file is in the work folder, because a `partial` without run.json may only contain OWN_NAMES.
    """
    beside = partial / WORK_FOLDER / STATE_FILE
    write_whole(beside, json.dumps(asdict(state), indent=1) + "\n")
    beside.replace(partial / STATE_FILE)
    sync_folder(partial)


def _empty(partial: Path) -> None:
    """Remove everything in the folder `partial` except its lock file.

    schema.json is removed first, because a folder with schema.json counts as complete. run.json is removed last,
    because only a folder with run.json counts as made by this program.
    """
    (partial / SCHEMA_FILE).unlink(missing_ok=True)
    for path in sorted(partial.iterdir(), key=lambda path: path.name == STATE_FILE):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK_FILE:
            path.unlink()
