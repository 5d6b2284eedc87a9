import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from app.scoring.bundle_writer import new_bundle
from app.scoring.explain import _mean, write_effects
from common.files import LOCK_FILE, FolderInUse, is_locked, lock_folder, message_of, write_whole
from data_prep.sources.synthetic import synthesize


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    write_whole(path, "before")

    def full(_):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_whole(path, "after")
    assert path.read_text() == "before"
    write_whole(path, "é after")
    assert path.read_text(encoding="utf-8") == "é after"
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_the_file_is_synced_before_it_is_renamed_and_its_folder_after(tmp_path, monkeypatch):
    """Or a power cut leaves the new name with nothing in it."""
    calls = []
    sync, replace = os.fsync, Path.replace

    def noted_sync(descriptor):
        kind = os.fstat(descriptor)
        calls.append("sync the folder" if stat.S_ISDIR(kind.st_mode) else f"sync {kind.st_size} bytes")
        sync(descriptor)

    def noted_replace(path, target):
        calls.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    write_whole(tmp_path / "state.json", "12345")
    assert calls == ["sync 5 bytes", "rename", "sync the folder"]


def test_the_error_of_a_folder_that_cannot_be_written_to_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        write_whole(tmp_path / "nowhere" / "report.html", "12345")
    assert raised.value.filename == str(tmp_path / "nowhere" / "report.html")


def test_of_writers_at_once_one_s_text_is_there_whole(tmp_path):
    """Two evaluations of a run, or two reports, write one file."""
    texts, path = ["a" * 300_000, "b" * 100, "c" * 5_000], tmp_path / "report.html"

    def write(text):
        for _ in range(60):
            write_whole(path, text)
            assert path.read_text() in texts

    with ThreadPoolExecutor(len(texts)) as threads:
        list(threads.map(write, texts))
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


@pytest.fixture
def no_room():
    """Let files of this process grow to a kilobyte, as `ulimit -f 1` does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


def effects_table():
    return pa.Table.from_pylist([asdict(_mean(f"column {number}", "all", np.ones(3))) for number in range(500)])


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (lambda path: write_whole(path, "x" * 5_000), "über state.json"),
        (lambda path: synthesize(path, 100, workers=1), "log.txt"),
        (lambda path: write_effects(effects_table(), path), "effects.csv"),
        (lambda path: write_effects(effects_table(), path), "effects.parquet"),
        (lambda path: write_bundle_file(path), "bundle"),
    ],
)
def test_a_quota_names_the_file_and_the_way_out_and_leaves_nothing(tmp_path, no_room, write, name):
    with pytest.raises(OSError, match="raise the limit") as raised:
        write(tmp_path / name)
    expected = (
        f"cannot write {tmp_path / name}: File too large; raise the limit (ulimit -f unlimited), and run the same"
    )
    assert raised.value.strerror.startswith(expected) and raised.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def write_bundle_file(path):
    with new_bundle(path, overwrite=False) as folder:
        (folder / "tables.bin").write_bytes(bytes(5_000))


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
