"""The folder that is made: beside its name, and kept there when a run is ended, until it is complete.

    OUTPUT.partial/run.json   what it is made from and how; the same command goes on with it
    OUTPUT.partial/run.lock   held by the process that works there
    OUTPUT.partial/work/      finished pieces of work (pieces.py), counts on disk
    OUTPUT.partial/…          files of the prepared folder

Nothing is ever replaced or removed but what this program made: an OUTPUT.partial of this user's with a run.json, and,
where that is asked for, a prepared folder, neither with a file in it that no preparation makes. A folder that is
replaced is renamed to OUTPUT.replaced, or OUTPUT.replaced.1 where that is taken, and run.json names it before; no
other folder of such a name is touched.
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
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any

from common.files import LOCK_FILE, FolderInUse, lock_folder, write_whole
from data_prep.execution.pieces import Pieces
from data_prep.prepared.schema import SCHEMA_FILE

REJECTS_FILE = "rejects.tsv"
STATE_FILE = "run.json"
WORK_FOLDER = "work"
PROBE_FOLDER = "run.probe"
OWN_NAMES = (STATE_FILE, LOCK_FILE, WORK_FOLDER, PROBE_FOLDER)  # that are not in the finished folder
_MADE_NAMES = (  # by any version; only a folder that holds nothing else is emptied or replaced
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
class Workplace:
    """Where a run works."""

    folder: Path
    chunk_bytes: int  # of the run that began: pieces are numbered by chunks
    is_complete: bool  # but for its name

    @property
    def work_folder(self) -> Path:
        """For what is needed until the folder is complete."""
        return self.folder / WORK_FOLDER

    @property
    def pieces(self) -> Pieces:
        """Finished pieces of work."""
        return Pieces(self.work_folder)


@contextmanager
def new_folder(
    output: Path, identity: Mapping[str, Any], chunk_bytes: int, overwrite: bool, restart: bool
) -> Iterator[Workplace]:
    """A folder beside `output` that takes its name at the end of the block.

    It goes on with a folder of the same `identity` that an ended run left, be it `output` itself, finished but for its
    traces; `restart` begins anew. After ValueError in the block before there is a schema.json, which is an error in the
    log, nothing is kept: it would be wrong for any other log.

    Raises FileExistsError (an `output` that may not be replaced, or what stands in the way), FolderInUse (another run
    works there), OSError (nothing can be written), UnlikeBefore (another identity).
    """
    if not restart and _is_finished_by(output, identity):  # but ended before it had removed its traces
        with _lock(output, output):
            log.info("%s is finished: the run that was ended had done all but tidying up", output)
            yield Workplace(output, 0, is_complete=True)
            _tidy_up(output)
        return
    _check_output(output, overwrite)
    partial = partial_folder(output)
    _check_is_ours(partial)
    with _lock(partial, output):
        _check_output(output, overwrite)  # again: another run may have made it before the lock was free
        _make_private(partial)
        workplace = _go_on_or_begin(partial, identity, chunk_bytes, restart)
        try:
            yield workplace
        except ValueError:
            if not (partial / SCHEMA_FILE).is_file():
                _empty(partial)
                shutil.rmtree(partial)
            raise
        sync_files(partial)
        _check_output(output, overwrite)  # again: hours have gone by
        _put_in_place(partial, output)
        _tidy_up(output)


def real_output(output: Path) -> Path:
    """The folder that a link stands for: it is made beside itself and renamed, which a link would not survive.

    Raises FileExistsError for a link that leads nowhere, ValueError for a folder named by its place alone, such as ".".
    """
    if output.name in ("", ".."):
        raise ValueError(f"the output {output} has no name of its own; name the folder to make, such as prepared")
    if not output.is_symlink():
        return output
    if not output.exists():
        raise FileExistsError(f"{output} is a link that leads nowhere; remove it or give another output")
    return output.resolve()


def partial_folder(output: Path) -> Path:
    """Where `output` is made."""
    return output.with_name(output.name + ".partial")


def sync_files(folder: Path) -> None:
    """Sync the files of a folder, and the folder: a power cut after this takes none of them."""
    for path in folder.iterdir():
        if path.is_file():
            _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(folder: Path, output: Path) -> IO[str]:
    """The lock of the folder that `output` is made in, which nobody else can look into where it is new."""
    try:
        return lock_folder(folder, mode=0o700)
    except FolderInUse:
        raise FolderInUse(
            f"another process prepares {output} (it works in {folder}); wait for it, or give another output"
        ) from None
    except OSError as error:
        raise OSError(f"nothing can be written to {folder}: {error}; give an output elsewhere") from error


def _make_private(partial: Path) -> None:
    """Raise FileExistsError where the folder is another user's, who could have put anything there."""
    owner, here = partial.stat().st_uid, _probe(partial).st_uid
    if owner != here:
        raise FileExistsError(
            f"{partial} belongs to another user (number {owner}, not {here}), so nothing in it is trusted; "
            "remove it or give another output"
        )
    _set_mode(partial, 0o700)


def _set_mode(path: Path, mode: int) -> None:
    if stat.S_IMODE(path.stat().st_mode) != mode:
        with suppress(PermissionError):  # of a file system that knows no modes
            path.chmod(mode)


def _probe(folder: Path) -> os.stat_result:
    """Return the state of a folder made in `folder` just now: as whom this process writes there, and its umask."""
    probe = folder / PROBE_FOLDER
    with suppress(FileNotFoundError):
        probe.rmdir()
    probe.mkdir()
    try:
        return probe.stat()
    finally:
        probe.rmdir()


def _put_in_place(partial: Path, output: Path) -> None:
    if output.exists():
        aside = _free_name(output)
        state = _read_state(partial)
        assert state is not None
        _write_state(partial, {**state, "replaced": [*state["replaced"], *_replaced_before(output), aside.name]})
        output.rename(aside)
    shutil.rmtree(partial / WORK_FOLDER, ignore_errors=True)
    _sync(partial)  # or it may come back in the finished folder
    partial.rename(output)
    _sync(output.parent)


def _free_name(output: Path) -> Path:
    """What was there before has this name until the new one is in its place."""
    names = (f"{output.name}.replaced" + (f".{number}" if number else "") for number in itertools.count())
    return next(path for path in map(output.with_name, names) if not os.path.lexists(path))


def _tidy_up(output: Path) -> None:
    """Remove a finished run's traces, last the one that makes the next run of the same command do this.

    Folder and files get the mode that new ones have: until now nobody else could look, and MindSpore's are 0600.
    """
    mode = stat.S_IMODE(_probe(output).st_mode)
    for path in output.iterdir():
        _set_mode(path, mode & 0o666)
    _set_mode(output, mode)
    for name in _replaced_before(output):
        if re.fullmatch(re.escape(output.name) + r"\.replaced(\.\d+)?", name):
            _remove(output.with_name(name))
    for name in (LOCK_FILE, STATE_FILE):
        (output / name).unlink(missing_ok=True)


def _is_finished_by(output: Path, identity: Mapping[str, Any]) -> bool:
    """Whether a run of the same command finished `output`, and left its traces there."""
    if not (output / SCHEMA_FILE).is_file():
        return False
    try:
        state = _read_state(output)
    except UnlikeBefore:  # damaged: nobody knows whose it is
        return False
    return state is not None and not _differences(state["identity"], identity)


def _check_output(output: Path, overwrite: bool) -> None:
    """Nothing but a prepared folder is ever replaced, and that only when it is asked for."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / SCHEMA_FILE).is_file():
        raise FileExistsError(f"{output} is there and is not a prepared folder; give another output")
    if not overwrite:
        raise FileExistsError(f"{output} holds prepared data; replace it with --overwrite or give another output")
    foreign = _foreign_names(output)
    if foreign:
        raise FileExistsError(
            f"{output} is not replaced, as it holds what no preparation made: {foreign}; move that elsewhere or give "
            "another output"
        )


def _check_is_ours(partial: Path) -> None:
    if not os.path.lexists(partial):
        return
    if partial.is_symlink() or not partial.is_dir():
        raise FileExistsError(f"{partial} is in the way: it is no folder; remove it or give another output")
    has_state = (partial / STATE_FILE).is_file()
    if not has_state and any(path.name not in OWN_NAMES for path in partial.iterdir()):
        raise FileExistsError(
            f"{partial} is in the way: it has no {STATE_FILE}, so it is of an older version or not of this program; "
            "remove it or give another output"
        )
    foreign = _foreign_names(partial)
    if foreign:
        raise FileExistsError(
            f"{partial} is in the way: it holds what no preparation made: {foreign}; move that elsewhere or give "
            "another output"
        )


def _foreign_names(folder: Path) -> str:
    """Return some names in a folder that no preparation gives, as text."""
    foreign = sorted(p.name for p in folder.iterdir() if not any(fnmatchcase(p.name, made) for made in _MADE_NAMES))
    more = f" and {len(foreign) - _SHOWN_NAMES} more" if len(foreign) > _SHOWN_NAMES else ""
    return ", ".join(foreign[:_SHOWN_NAMES]) + more


def _go_on_or_begin(partial: Path, identity: Mapping[str, Any], chunk_bytes: int, restart: bool) -> Workplace:
    state = None if restart else _read_state(partial)
    if state is not None:
        _check_identity(partial, state["identity"], identity)
        is_complete = (partial / SCHEMA_FILE).is_file()
        (partial / WORK_FOLDER).mkdir(exist_ok=True)
        workplace = Workplace(partial, state["chunk_bytes"], is_complete)
        workplace.pieces.clear_unfinished()
        for path in partial.glob("*.tmp"):
            path.unlink()
        log.info("going on with %s, which an ended run left", partial)
        return workplace
    replaced = _replaced_before(partial)
    _empty(partial)
    (partial / WORK_FOLDER).mkdir()
    _write_state(partial, {"chunk_bytes": chunk_bytes, "identity": identity, "replaced": replaced})
    return Workplace(partial, chunk_bytes, is_complete=False)


def _replaced_before(folder: Path) -> list[str]:
    """Return the names of the folders that the run which made `folder` has put aside."""
    try:
        state = _read_state(folder)
    except UnlikeBefore:
        return []
    return state["replaced"] if state else []


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Of two identities, in words."""
    # As JSON has them: tuples are lists there.
    here = json.loads(json.dumps(here))
    return [
        f"{name} was {there.get(name)!r}, is {here.get(name)!r}"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]


def _check_identity(partial: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    differences = _differences(there, here)
    if differences:
        raise UnlikeBefore(
            f"an ended run left {partial}, but not of this command: {'; '.join(differences)}. Give its settings again "
            "to go on with it, or begin anew with --restart"
        )


class UnlikeBefore(ValueError):
    """The work that is there is of other options, another log or another version of the program."""


def _read_state(partial: Path) -> dict[str, Any] | None:
    try:
        text = (partial / STATE_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        state = json.loads(text)
        return {
            "identity": dict(state["identity"]),
            "chunk_bytes": int(state["chunk_bytes"]),
            "replaced": list(map(str, state.get("replaced", ()))),
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UnlikeBefore(f"{partial / STATE_FILE} is damaged ({error!r}); begin anew with --restart") from error


def _write_state(partial: Path, state: Mapping[str, Any]) -> None:
    """Write it whole, by way of the work folder: without run.json only OWN_NAMES may be in the folder."""
    beside = partial / WORK_FOLDER / STATE_FILE
    write_whole(beside, json.dumps(state, indent=1) + "\n")
    beside.replace(partial / STATE_FILE)
    _sync(partial)


def _empty(partial: Path) -> None:
    """Remove all but the lock: first what says that it is complete, last what says that it is ours."""
    (partial / SCHEMA_FILE).unlink(missing_ok=True)
    for path in sorted(partial.iterdir(), key=lambda path: path.name == STATE_FILE):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK_FILE:
            path.unlink()


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
