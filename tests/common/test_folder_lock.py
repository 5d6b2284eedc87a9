import errno
import os
import shutil
import subprocess
import sys

import pytest

from common.files import LOCK_FILE, FolderInUse, is_locked, lock_folder, message_of


def test_one_holder_at_a_time(tmp_path):
    folder = tmp_path / "a" / "b"
    with lock_folder(folder), pytest.raises(FolderInUse, match="another process works in"):
        lock_folder(folder)
    lock_folder(folder).close()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path, monkeypatch, code):
    def refused(*_):
        raise OSError(code, os.strerror(code), str(tmp_path / LOCK_FILE))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(OSError, match="nothing can be written to") as raised:
        lock_folder(tmp_path, advice="give another --output")
    what = "make room" if code == errno.EDQUOT else "give another --output"
    reason = f"{os.strerror(code)}: {tmp_path / LOCK_FILE}; {what}"
    assert message_of(raised.value) == f"nothing can be written to {tmp_path}: {reason}"


def test_the_lock_ends_with_its_process(tmp_path, command_environment):
    program = "import os, sys, pathlib; from common.files import lock_folder\n"
    program += "lock = lock_folder(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=command_environment, check=False)
    assert (tmp_path / LOCK_FILE).exists()
    lock_folder(tmp_path).close()


def test_a_lock_in_a_removed_folder_does_not_count(tmp_path, monkeypatch):
    """Between opening the file and locking it, the holder may have finished and renamed the folder."""
    folder, flock = tmp_path / "out", __import__("fcntl").flock

    def rename_once(*words):
        flock(*words)
        if not (tmp_path / "finished").exists():
            folder.rename(tmp_path / "finished")

    monkeypatch.setattr("fcntl.flock", rename_once)
    with lock_folder(folder):
        assert (folder / LOCK_FILE).exists()
        with pytest.raises(FolderInUse):
            lock_folder(folder)
    shutil.rmtree(folder)


def test_whether_a_lock_is_held(tmp_path):
    assert not is_locked(tmp_path / "none")
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with lock_folder(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_who_asks_whether_a_lock_is_held_refuses_nobody(tmp_path, monkeypatch):
    """To ask is to hold it for a moment."""
    flock, asks = __import__("fcntl").flock, iter([True, False])

    def ask_first(*words):
        if next(asks, False):
            raise BlockingIOError
        flock(*words)

    monkeypatch.setattr("fcntl.flock", ask_first)
    with lock_folder(tmp_path):
        assert is_locked(tmp_path)
