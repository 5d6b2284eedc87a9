import errno
import logging
import struct
from pathlib import Path

import pytest

from app.run.folder import EventFile, RunLog
from common.packages import without
from tests.programs import run_python


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


with without("torch"):  # as seconds of each run of the tests would go into its import
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.record_writer import masked_crc32c


def read_events(data):
    events = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        content = data[12 : 12 + length]
        assert struct.unpack("<I", data[8:12])[0] == masked_crc32c(data[:8])
        assert struct.unpack("<I", data[12 + length : 16 + length])[0] == masked_crc32c(content)
        events.append(Event.FromString(content))
        data = data[16 + length :]
    return events


def written(folder):
    """(step, tag, value) of the files of a folder, as TensorBoard shows them."""
    found = []
    for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        version, *events = read_events(path.read_bytes())
        assert version.file_version == "brain.Event:2"
        for event in events:
            assert event.wall_time > 1.7e9
            if event.session_log.status == SessionLog.START:
                found = [value for value in found if value[0] < event.step]
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return found


@pytest.mark.parametrize("step", [0, 1, 127, 128, 300, 2**40])
def test_scalars_are_read_back(tmp_path, step):
    values = {"wide_loss": 0.6873926, "größe": -1e30, "x" * 300: 0.0}
    EventFile(tmp_path / "tensorboard", purge_step=0).add(step, values, "train")
    expected = [(step, f"train/{name}", pytest.approx(value)) for name, value in values.items()]
    assert written(tmp_path / "tensorboard") == expected


def test_a_resumed_run_has_no_point_twice_and_a_kill_loses_none(tmp_path):
    folder = tmp_path / "tensorboard"
    killed = EventFile(folder, purge_step=0)
    for step in (10, 20, 30):
        killed.add(step, {"wide_loss": step}, "train")
    assert [step for step, _, _ in written(folder)] == [10, 20, 30]  # without close or flush
    resumed = EventFile(folder, purge_step=11)
    resumed.path = resumed.path.with_name(f"{resumed.path.name}.resumed")  # of another process
    for step in (20, 30, 40):
        resumed.add(step, {"wide_loss": -step}, "train")
    assert [value for _, _, value in written(folder)] == [10, -20, -30, -40]


def test_a_file_grows_by_finite_numbers(tmp_path):
    events = EventFile(tmp_path / "tensorboard", purge_step=5)
    events.add(5, {"auc": 0.75, "save_error": "disk full", "pr_auc": float("nan")}, "valid")
    events.add(6, {"save_error": "disk full"}, "train")
    events.add(7, {"wide_loss": 0.5, "touched_rows": 12}, "train")
    (path,) = (tmp_path / "tensorboard").iterdir()
    assert written(tmp_path / "tensorboard") == [
        (5, "valid/auc", 0.75),
        (7, "train/wide_loss", 0.5),
        (7, "train/touched_rows", 12),
    ]
    assert path.name.startswith("events.out.tfevents.")


def test_what_cannot_be_written_comes_later_after_the_file_s_beginning(tmp_path):
    (tmp_path / "tensorboard").write_text("in the way")
    events = EventFile(tmp_path / "tensorboard", purge_step=0)
    events.add(1, {"wide_loss": 0.5}, "train")
    assert not events.is_written
    (tmp_path / "tensorboard").unlink()
    events.add(2, {"wide_loss": 0.25}, "train")
    assert events.is_written
    (path,) = (tmp_path / "tensorboard").iterdir()
    version, *steps = read_events(path.read_bytes())
    assert version.file_version
    assert [event.step for event in steps] == [1, 2]


def test_pytorch_is_not_imported_where_it_is_installed_but_can_be_later(tmp_path, command_environment):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "torch.py").write_text("print('imported')\n")
    program = (
        f"import sys, pathlib; sys.path.insert(0, {str(tmp_path / 'modules')!r})\n"
        "from app.run.folder import EventFile\n"
        f"EventFile(pathlib.Path({str(tmp_path / 'events')!r}), 1).add(1, {{'loss': 0.5}}, 'train')\n"
        "print('written'); import torch\n"
    )
    assert run_python("-c", program, env=command_environment).stdout.split() == ["written", "imported"]
    assert written(tmp_path / "events") == [(1, "train/loss", 0.5)]
