import errno
import logging
from pathlib import Path

import pytest

from app.run.logs import RunLog


class FullDisk:
    """`room` more bytes fit; then ENOSPC, as the kernel does: first a short write, then the error."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        if not FullDisk.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(data[: FullDisk.room])
        FullDisk.room -= written
        return written


@pytest.fixture
def disk(monkeypatch):
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *words, **named: FullDisk(opened(path, *words, **named)))
    return FullDisk


def test_lines_without_room_are_written_later_and_whole(tmp_path, disk, caplog):
    caplog.set_level(logging.INFO)
    log = RunLog(tmp_path / "loss.log")
    disk.room = 9
    for line in ("one\n", "two\n", "three\n", "four\n"):
        log.append(line)
    assert not log.is_written
    assert log.path.read_text() == "one\ntwo\nt"
    assert caplog.text.count("cannot be written: No space left on device") == 1
    disk.room = 1000
    log.append("five\n")
    assert log.is_written
    assert log.path.read_text() == "one\ntwo\nthree\nfour\nfive\n"
