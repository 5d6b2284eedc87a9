"""The folder that is made: beside its name, and kept there when a run is ended, until it is complete.

    OUTPUT.partial/run.json   what it is made from and how; the same command goes on with it
    OUTPUT.partial/run.lock   held by the process that works there
    OUTPUT.partial/work/      finished pieces of work (pieces.py), counts on disk
    OUTPUT.partial/…          files of the prepared folder

Nothing but prepared data, or a folder with a run.json, is ever replaced.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from data_prep.folder_lock import LOCK_FILE, FolderInUse, lock_folder
from data_prep.pieces import Pieces
from data_prep.schema import SCHEMA_FILE

REJECTS_FILE = "rejects.tsv"
STATE_FILE = "run.json"
WORK_FOLDER = "work"
OWN_NAMES = (STATE_FILE, LOCK_FILE, WORK_FOLDER)  # that are not in the finished folder

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

    Raises FileExistsError (an `output` that may not be replaced), FolderInUse (another run works there), OSError
    (nothing can be written), UnlikeBefore (another identity).
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
        workplace = _go_on_or_begin(partial, identity, chunk_bytes, restart)
        try:
            yield workplace
        except ValueError:
            if not (partial / SCHEMA_FILE).is_file():
                _empty(partial)
                shutil.rmtree(partial)
            raise
        shutil.rmtree(workplace.work_folder, ignore_errors=True)
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


def _lock(folder: Path, output: Path) -> IO[str]:
    """The lock of the folder that `output` is made in."""
    try:
        return lock_folder(folder)
    except FolderInUse:
        raise FolderInUse(
            f"another process prepares {output} (it works in {folder}); wait for it, or give another output"
        ) from None
    except OSError as error:
        raise OSError(f"nothing can be written to {folder}: {error}; give an output elsewhere") from error


def _put_in_place(partial: Path, output: Path) -> None:
    if output.exists():
        _remove(_replaced(output))
        output.rename(_replaced(output))
    partial.rename(output)


def _replaced(output: Path) -> Path:
    """What was there before has this name until the new one is in its place."""
    return output.with_name(output.name + ".replaced")


def _tidy_up(output: Path) -> None:
    """Remove a finished run's traces; last the one that makes the next run of the same command do this."""
    _remove(_replaced(output))
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


def _check_is_ours(partial: Path) -> None:
    if not partial.exists() or (partial / STATE_FILE).is_file():
        return
    if not partial.is_dir() or any(path.name not in OWN_NAMES for path in partial.iterdir()):
        raise FileExistsError(
            f"{partial} is in the way: it has no {STATE_FILE}, so it is of an older version or not of this program; "
            "remove it or give another output"
        )


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
    _empty(partial)
    (partial / WORK_FOLDER).mkdir()
    _write_state(partial, {"chunk_bytes": chunk_bytes, "identity": identity})
    return Workplace(partial, chunk_bytes, is_complete=False)


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
        return {"identity": dict(state["identity"]), "chunk_bytes": int(state["chunk_bytes"])}
    except (ValueError, KeyError, TypeError) as error:
        raise UnlikeBefore(f"{partial / STATE_FILE} is damaged ({error!r}); begin anew with --restart") from error


def _write_state(partial: Path, state: Mapping[str, Any]) -> None:
    beside = partial / WORK_FOLDER / STATE_FILE
    beside.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    beside.replace(partial / STATE_FILE)


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
