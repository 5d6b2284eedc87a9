"""Write a file atomically, compute its checksum, and lock a folder against other processes.

The system releases a lock when the process that holds it ends, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypedDict

import xxhash

LOCK_FILE = "run.lock"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, a quota, `ulimit -f`
# `is_locked` holds the lock for a moment. A process that meets that tries again.
PROBE_TRIES, PROBE_SECONDS = 3, 0.02


class FolderInUse(ValueError):
    """Another process holds the lock."""


def fill(readinto: Callable[[memoryview], int], buffer: Any) -> int:
    """Read until the buffer is full or the stream ends, and return the number of bytes.

    A pipe or a server may give a byte or two at first, too few to tell by what a stream starts with what it is.
    """
    view, filled = memoryview(buffer), 0
    while filled < len(view) and (size := readinto(view[filled:])):
        filled += size
    return filled


def lock_folder(folder: Path, mode: int = 0o777, advice: str = "give a place that this user may write to") -> IO[str]:
    """Lock a folder until the result is closed. Make it with `mode` if it is missing.

    Raises FolderInUse, or OSError with `advice` if nothing can be written there.
    """
    try:
        return _lock(folder, mode)
    except OSError as error:
        what = "make room" if error.errno in NO_ROOM else advice
        reason = f"nothing can be written to {folder}: {message_of(error)}; {what}"
        raise OSError(error.errno, reason) from error


def _lock(folder: Path, mode: int) -> IO[str]:
    tries = PROBE_TRIES
    while True:
        make_folder(folder, mode)
        path = folder / LOCK_FILE
        # Should somebody else have put a file there, do not follow it as a link, nor truncate it.
        lock = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666), "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            tries -= 1
            if tries:
                time.sleep(PROBE_SECONDS)
                continue
            raise FolderInUse(f"another process works in {folder}; wait for its end, or give another name") from None
        if is_at(lock, path):
            return lock
        lock.close()  # the folder was renamed or removed in between: try again with the present one


def is_at(file: IO[Any], path: Path) -> bool:
    """Return True if an open file is the one at `path`: while a lock was waited for, it may have been renamed."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def is_locked(folder: Path) -> bool:
    """Return True if a process holds the lock of `folder`. Change nothing there."""
    try:
        with (folder / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class FileRecord(TypedDict):
    """A file's entry in a manifest."""

    size_bytes: int
    checksum: str  # "xxh3:" and 16 hex digits


class DamagedFileError(ValueError):
    """A file whose size or content differs from its record."""


def check_size(path: Path, expected: FileRecord) -> None:
    """Raise DamagedFileError unless the file exists and has the expected size."""
    if not path.is_file():
        raise DamagedFileError("is missing")
    if path.stat().st_size != expected["size_bytes"]:
        raise DamagedFileError(f"has {path.stat().st_size} bytes, expected {expected['size_bytes']}")


def checksum(path: Path) -> str:
    """Return the checksum of a file's bytes."""
    with path.open("rb") as file:
        return format_checksum(hashlib.file_digest(file, xxhash.xxh3_64))


def format_checksum(digest: Any) -> str:
    """Return `xxh3:` and the 16 hex digits of a 64-bit XXH3 digest."""
    return f"xxh3:{digest.hexdigest()}"


def check_format_version(path: Path, actual: object, version: int, advice: str, oldest: int | None = None) -> None:
    """Raise ValueError with `advice` unless a file's format version is `version`, or one from `oldest` to `version`."""
    oldest = version if oldest is None else oldest
    if actual not in range(oldest, version + 1):
        versions = str(version) if oldest == version else f"{oldest} to {version}"
        raise ValueError(f"{path} has format version {actual}, this program reads {versions}; {advice}")


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` atomically: a kill or a power cut leaves the old or the new file.

    Of several writers the last one counts. A temporary file is synced and renamed, then the folder is synced, which
    takes some milliseconds. Use it once for an evaluation, a launch or a preparation, not for steps.
    """
    beside = path.with_name(f"{path.name}.tmp")
    try:
        with room_for(path), _alone(beside) as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())  # before the rename: some file systems order the name before the content
                beside.replace(path)
            except OSError:
                beside.unlink(missing_ok=True)
                raise
            sync_folder(path.parent)
    except OSError as error:
        error.filename = error.filename and str(path)  # which a user knows
        raise


@contextmanager
def _alone(path: Path) -> Iterator[IO[str]]:
    """Open a file in order to write it anew, alone: wait until no other process or thread does."""
    while True:
        with path.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if is_at(file, path):  # else the one that was waited for has renamed it
                file.truncate(0)
                yield file
                return


class NoRoomError(OSError):
    """A full disk, a quota or a limit of files' sizes. Its text names the file and what to do."""


@contextmanager
def room_for(path: Path, then: str = ", and run the same command again") -> Iterator[None]:
    """In the block, let the error of a full disk, a quota or a limit of files' sizes name `path` and what to do.

    Of nested blocks the inner one names its path.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM or isinstance(error, NoRoomError):
            raise
        advice = "raise the limit (ulimit -f unlimited)" if error.errno == errno.EFBIG else "make room"
        raise NoRoomError(error.errno, f"cannot write {path}: {os.strerror(error.errno)}; {advice}{then}") from error


def message_of(error: BaseException) -> str:
    """Return an error as the console shows it: the system's errors without their numbers."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder, or a file's content, so that it is found after a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and its missing parents, and sync their names."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode, exist_ok=True)
    sync_folder(folder.parent)


def replace_folder(partial: Path, final: Path, aside: Path) -> None:
    """Rename the complete, synced folder `partial` to `final`, and a folder that is there to `aside` before.

    After an error `final` is what it was. If the process is killed between the two renames, only `aside` is there.
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
