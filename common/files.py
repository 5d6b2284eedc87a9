"""Write files atomically, compute checksums, lock folders against other processes, and read JSON that may be damaged.

Locks are those of `flock`: the system releases a lock when the process that holds it ends, for whatever reason.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import functools
import hashlib
import json
import os
import time
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypedDict, TypeVar

import xxhash

Plain = TypeVar("Plain")
Record = TypeVar("Record")

LOCK_FILE = "run.lock"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # Error numbers of a full disk, a quota, and `ulimit -f`.
# Number of attempts to lock a folder, and seconds between them. One attempt is not enough: a process that calls
# `is_locked`, only to ask whether the folder is locked, holds the lock for a moment itself.
PROBE_TRIES, PROBE_SECONDS = 3, 0.02


class FolderInUse(ValueError):
    """Raised if a folder cannot be locked because another process holds its lock."""


def fill(readinto: Callable[[memoryview], int], buffer: Any) -> int:
    """Call `readinto`, a stream's function that reads bytes into a buffer, with the unfilled rest of `buffer` until
    `buffer` is full or the stream ends.

    Return the number of bytes read. A single call is not enough: a pipe or a server may return only a byte or two at
    first, which is too little to recognize the format of a file.
    """
    view, filled = memoryview(buffer), 0
    while filled < len(view) and (size := readinto(view[filled:])):
        filled += size
    return filled


def lock_folder(
    folder: Path, mode: int = 0o777, advice: str = "give a place that this user may write to", in_use: str = ""
) -> IO[str]:
    """Lock a folder for this process. Return the open lock file; closing it ends the lock.

    Create the folder with `mode` if it is missing. Raise FolderInUse, with the message `in_use` if that is given, if
    another process holds the lock. Raise OSError, whose message ends with `advice`, if nothing can be written to the
    folder.
    """
    try:
        return _lock(folder, mode, in_use)
    except OSError as error:
        what = "make room" if error.errno in NO_ROOM else advice
        reason = f"nothing can be written to {folder}: {message_of(error)}; {what}"
        raise OSError(error.errno, reason) from error


def _lock(folder: Path, mode: int, in_use: str) -> IO[str]:
    tries = PROBE_TRIES
    while True:
        make_folder(folder, mode)
        path = folder / LOCK_FILE
        # Do not follow a symbolic link, and do not truncate the lock file, because another user may have created it,
        # for example as a link to an important file.
        lock = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666), "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            tries -= 1
            if tries:
                time.sleep(PROBE_SECONDS)
                continue
            usual = f"another process works in {folder}; wait for its end, or give another name"
            raise FolderInUse(in_use or usual) from None
        if is_at(lock, path):
            return lock
        # Another process renamed or removed the folder while this one locked it. Begin again with the folder that has
        # this path now.
        lock.close()


def is_at(file: IO[Any], path: Path) -> bool:
    """Return True if the open `file` is the file that `path` names now.

    Return False if another process has renamed or replaced the file since this process opened it, for example while
    this process waited for the file's lock.
    """
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def is_locked(folder: Path) -> bool:
    """Return True if a process holds the lock that `lock_folder` takes on `folder`. No file is created or changed."""
    try:
        with (folder / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class FileRecord(TypedDict):
    """Size and checksum of a file, as recorded in the manifest of a checkpoint or of an exported model (bundle)."""

    size_bytes: int
    checksum: str  # The checksum as text: "xxh3:" followed by 16 hex digits.


class DamagedFileError(ValueError):
    """Raised if a file is missing, or if its size or checksum differs from its `FileRecord`."""


def check_size(path: Path, expected: FileRecord) -> None:
    """Raise DamagedFileError unless the file exists and has the size that `expected` records."""
    if not path.is_file():
        raise DamagedFileError("is missing")
    if path.stat().st_size != expected["size_bytes"]:
        raise DamagedFileError(f"has {path.stat().st_size} bytes, expected {expected['size_bytes']}")


def checksum(path: Path) -> str:
    """Return the checksum of a file's content: `xxh3:` followed by 16 hex digits, as in `FileRecord`."""
    with path.open("rb") as file:
        return format_checksum(hashlib.file_digest(file, xxhash.xxh3_64))


def format_checksum(digest: Any) -> str:
    """Return the text for a 64-bit XXH3 digest: `xxh3:` followed by 16 hex digits."""
    return f"xxh3:{digest.hexdigest()}"


def check_format_version(path: Path, actual: object, version: int, advice: str, oldest: int | None = None) -> None:
    """Raise ValueError unless `actual`, the format version that the file at `path` states, is supported.

    Supported are the versions from `oldest` to `version`, or only `version` if `oldest` is None. The message ends with
    `advice`.
    """
    oldest = version if oldest is None else oldest
    if actual not in range(oldest, version + 1):
        versions = str(version) if oldest == version else f"{oldest} to {version}"
        raise ValueError(f"{path} has format version {actual}, this program reads {versions}; {advice}")


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Return the value of a JSON text, as `json.loads` does. Raise ValueError for every text that cannot be parsed.

    `json.loads` itself raises RecursionError for values that are nested too deeply.
    """
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is JSON that is nested too deeply") from None


def from_dict(plain: Mapping[str, Any], cls: type[Plain]) -> Plain:
    """Return an object of the dataclass `cls`, restored from `plain`.

    `plain` is what `dataclasses.asdict` returned for such an object, written as JSON and read back. Nested dataclasses
    and tuples are restored too; all items of a tuple have the first type in its annotation. Types of other values are
    not checked: for values that a user wrote, use `common.settings.convert`. Raise KeyError or TypeError if `plain`
    does not have the fields of `cls`.
    """
    hints = _type_hints(cls)  # type: ignore[arg-type]
    return cls(**{name: _from_plain(value, hints[name]) for name, value in dict(plain).items()})


def fields_of(cls: type, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return those entries of the mapping `recorded` whose keys are also fields of the dataclass `cls`.

    `recorded` maps names of options to values. Options that an earlier release recorded in a file, and a later release
    removed from `cls`, are left out.
    """
    names = recorded.keys() & {field.name for field in dataclasses.fields(cls)}
    return {name: recorded[name] for name in names}


_type_hints = functools.cache(typing.get_type_hints)


def _from_plain(value: Any, hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    # JSON has no tuples, so a tuple was written as a list. If the type is a union and the value a list, restore the
    # value as the tuple type in the union.
    if origin is types.UnionType and isinstance(value, list):
        origin, arguments = tuple, next(typing.get_args(each) for each in arguments if typing.get_origin(each) is tuple)
    if origin is tuple:
        return tuple(_from_plain(item, arguments[0]) for item in value)
    if origin is dict:
        return {name: _from_plain(item, arguments[1]) for name, item in dict(value).items()}
    return from_dict(value, hint) if isinstance(hint, type) and dataclasses.is_dataclass(hint) else value


def record_of(content: Any, cls: type[Record]) -> Record:
    """Return an object of the dataclass `cls` whose fields have the values of the JSON object `content`.

    The type of each value is checked. Supported types of fields are scalars, TypedDict, unions, dicts with text as
    keys, and Any, whose values are not checked. Raise ValueError, naming the key, if a key is unknown or missing, or if
    a value is not of its field's type.
    """
    hints = typing.get_type_hints(cls)
    try:
        record = cls(**content)
    except TypeError as error:  # The message of the TypeError names the unknown or missing key.
        raise ValueError(str(error)) from None
    for name in content:
        if not _fits(content[name], hints[name]):
            raise ValueError(f"{name!r} has the value {str(content[name])[:80]!r}, expected {hints[name]}")
    return record


def _fits(value: Any, hint: Any) -> bool:
    """Return True if `value`, read from JSON, has the type `hint`.

    An int counts as a float too. A bool counts neither as an int nor as a float.
    """
    if hint is Any:
        return True
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return any(_fits(value, each) for each in typing.get_args(hint))
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint)
        return (
            isinstance(value, dict)
            and value.keys() == hints.keys()
            and all(map(_fits, value.values(), map(hints.get, value)))
        )
    if typing.get_origin(hint) is dict:
        return isinstance(value, dict) and all(_fits(each, typing.get_args(hint)[1]) for each in value.values())
    return type(value) is hint or (hint is float and type(value) is int)


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` atomically: after a kill or a power cut, the file has its old content or its new content.

    If several processes write the same file, they take turns, and the last one determines the content. The text is
    written to a temporary file, which is synced and renamed; then the folder is synced. A call takes some milliseconds,
    which is too long for every training step.
    """
    beside = path.with_name(f"{path.name}.tmp")
    try:
        with room_for(path), sole_writer(beside) as file:
            try:
                file.write(text.encode())
                file.flush()
                # Sync the content before the rename. Otherwise some file systems write the new name to the disk before
                # the content, and a power cut in between would leave an empty file.
                os.fsync(file.fileno())
                beside.replace(path)
            except OSError:
                beside.unlink(missing_ok=True)
                raise
            sync_folder(path.parent)
    except OSError as error:
        # Let the error name the file `path`, which the user knows, instead of the temporary file.
        error.filename = error.filename and str(path)
        raise


@contextmanager
def sole_writer(path: Path, waits: bool = True) -> Iterator[IO[bytes]]:
    """Yield the file at `path`, empty and open for writing.

    First wait until every other process or thread that has opened the file with this function has closed it. If `waits`
    is False, raise FolderInUse instead of waiting, and leave the file alone.
    """
    while True:
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderInUse(f"another process writes {path}; wait for its end, or give another name") from None
            # While this process waited for the lock, the process that held it may have renamed the file. If so, begin
            # again with the file that is at `path` now.
            if is_at(file, path):
                file.truncate(0)
                yield file
                return


@contextmanager
def new_file(path: Path, lone_writer: bool = False) -> Iterator[Path]:
    """Yield the path of a temporary file, which the `with` block creates. At the end of the block, rename it to `path`.

    The content is synced before the renaming, so a file with the name `path` is complete even after a power cut. After
    an error `path` is unchanged. The temporary name contains the process id, because several processes may write the
    same file. If only one process can, pass `lone_writer`: the temporary name has no process id then, so that the
    process overwrites the temporary file that an earlier, killed process has left.
    """
    writer = "" if lone_writer else f".{os.getpid()}"
    beside = path.with_name(f".{path.name}{writer}.partial")
    try:
        with room_for(path):
            yield beside
            sync_folder(beside)
            beside.replace(path)
            sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)


class NoRoomError(OSError):
    """Raised if a file cannot be written because the disk is full, or because a quota or a limit of file sizes is
    reached.

    The message names the file and says what to do.
    """


@contextmanager
def room_for(path: Path, then: str = ", and run the same command again") -> Iterator[None]:
    """Inside the `with` block, turn OSErrors about a full disk, a quota or a file size limit into NoRoomError.

    The message of the NoRoomError names `path`, says what to do, and ends with `then`. A NoRoomError from a nested
    `room_for` block passes unchanged, so its message names the path of the inner block.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM or isinstance(error, NoRoomError):
            raise
        advice = "raise the limit (ulimit -f unlimited)" if error.errno == errno.EFBIG else "make room"
        raise NoRoomError(error.errno, f"cannot write {path}: {os.strerror(error.errno)}; {advice}{then}") from error


def message_of(error: BaseException) -> str:
    """Return the message of `error` that users see. For an OSError it is "reason: file", without the error number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"


def sync_folder(folder: Path) -> None:
    """Sync a folder or a file to the disk.

    Afterwards, the names in the folder, or the content of the file, survive a power cut.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Create a folder and its missing parents.

    Also sync the folders that contain the new folders, so that the new folders survive a power cut.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode, exist_ok=True)
    sync_folder(folder.parent)


def replace_folder(partial: Path, final: Path, aside: Path) -> None:
    """Rename the folder `partial`, which is complete and synced, to `final`.

    First rename an existing `final` to `aside`. After an error, the folder that was at `final` is there again. If the
    process is killed between the two renames, `final` is missing and its old content is at `aside`.
    """
    if final.exists():
        final.rename(aside)
    try:
        partial.rename(final)
    except BaseException:
        if aside.exists():
            aside.rename(final)
        raise
    sync_folder(final.parent)
