"""TensorBoard's files, read by tensorboardX's definitions of the format."""

import struct

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from app.run.event_file import EventFile, first_events, scalars


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


@pytest.mark.parametrize("step", [0, 1, 127, 128, 300, 2**40])
def test_scalars_are_read_back(step):
    values = {"train/wide_loss": 0.6873926, "train/größe": -1e30, "x" * 300: 0.0}
    (event,) = read_events(scalars(step, values))
    assert event.step == step
    assert {value.tag: value.simple_value for value in event.summary.value} == pytest.approx(values)
    assert event.wall_time > 1.7e9


def test_a_new_file_says_its_version_and_a_resumed_run_what_it_takes_again():
    (version,) = read_events(first_events(0))
    assert version.file_version == "brain.Event:2"
    version, start = read_events(first_events(41))
    assert (start.step, start.session_log.status) == (41, SessionLog.START)


def test_a_file_grows_by_finite_numbers(tmp_path):
    events = EventFile(tmp_path / "tensorboard", first_step=5)
    events.add(5, {"auc": 0.75, "save_error": "disk full", "pr_auc": float("nan")}, "valid")
    events.add(6, {"save_error": "disk full"}, "train")
    events.add(7, {"wide_loss": 0.5, "touched_rows": 12}, "train")
    (path,) = (tmp_path / "tensorboard").iterdir()
    found = [
        (event.step, value.tag, value.simple_value)
        for event in read_events(path.read_bytes())
        for value in event.summary.value
    ]
    assert found == [(5, "valid/auc", 0.75), (7, "train/wide_loss", 0.5), (7, "train/touched_rows", 12)]
    assert path.name.startswith("events.out.tfevents.")


def test_what_cannot_be_written_comes_later_after_the_file_s_beginning(tmp_path):
    (tmp_path / "tensorboard").write_text("in the way")
    events = EventFile(tmp_path / "tensorboard", first_step=0)
    events.add(1, {"wide_loss": 0.5}, "train")
    assert not events.is_written
    (tmp_path / "tensorboard").unlink()
    events.add(2, {"wide_loss": 0.25}, "train")
    assert events.is_written
    (path,) = (tmp_path / "tensorboard").iterdir()
    version, *steps = read_events(path.read_bytes())
    assert version.file_version
    assert [event.step for event in steps] == [1, 2]
