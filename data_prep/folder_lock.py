"""One process at a time in a folder. The system ends a lock with the process that holds it, however that ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from data_prep.whole_file import make_folder

LOCK_FILE = "run.lock"
# To ask whether a lock is free (`is_locked`) is to hold it for a moment: who meets that tries again.
PROBE_TRIES, PROBE_SECONDS = 3, 0.02


class FolderInUse(ValueError):
    """Another process holds the lock."""


def lock_folder(folder: Path, mode: int = 0o777) -> IO[str]:
    """Lock a folder, which is made with `mode` if need be, until the result is closed.

    Raises FolderInUse, or OSError where nothing can be written there.
    """
    tries = PROBE_TRIES
    while True:
        make_folder(folder, mode)
        path = folder / LOCK_FILE
        # Neither through a link nor with what is in it lost, should somebody else have put it there.
        lock = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666), "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            tries -= 1
            if tries:
                time.sleep(PROBE_SECONDS)
                continue
            raise FolderInUse(f"another process works in {folder}") from None
        if _is_at(lock, path):
            return lock
        lock.close()  # its folder was renamed or removed in between: try again with the one that is there now


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of `folder`; nothing is made or changed there."""
    try:
        with (folder / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
