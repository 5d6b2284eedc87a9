"""A power cut leaves the old state, the new one or an error of a save, a preparation and a training."""

import os
import sys

import pytest

from tests.faults import scenes
from tests.faults.power_cut import can_record, record

pytestmark = pytest.mark.slow
FOLDERS_ALONE = """
import os, stat
sync = os.fsync
os.fsync = lambda descriptor: stat.S_ISDIR(os.fstat(descriptor).st_mode) and sync(descriptor)
"""


@pytest.fixture(scope="module", autouse=True)
def strace():
    if not can_record() and not os.environ.get("CI"):
        pytest.skip("strace is not here, or may not trace: apt-get install strace")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return scenes.make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize("name", scenes.SCENES)
def test_what_is_found_after_a_power_cut(inputs, tmp_path, name):
    found = scenes.cut(name, inputs, tmp_path)
    assert not found.wrong, f"{len(found.wrong)} states: {found.wrong[0]}"
    assert found.states["old"] and found.states["new"]


@pytest.mark.parametrize("name", ["a full checkpoint", "a delta", "a preparation"])
def test_what_syncs_no_file_is_found(inputs, tmp_path, name):
    assert scenes.cut(name, inputs, tmp_path, FOLDERS_ALONE).wrong


PROGRAM = """
import os
os.mkdir("folder")
with open("folder/a", "wb") as file:
    file.write(b"1234")
    file.flush()
    SYNC
os.rename("folder/a", "b")
"""


@pytest.mark.parametrize(
    ("sync", "left"),
    [
        ("", {"a=1234", "a=12", "a=", "a=\0\0\0\0", "b=1234", "b=12", "b=", "b=\0\0\0\0"}),
        ("os.fsync(file.fileno())", {"a=1234", "a=12", "a=", "a=\0\0\0\0", "b=1234"}),
    ],
)
def test_the_states_of_a_file_that_is_renamed(tmp_path, sync, left):
    root = tmp_path / "root"
    root.mkdir()
    recording = record([sys.executable, "-c", PROGRAM.replace("SYNC", sync)], root, tmp_path / "trace")
    files = [
        {path: content for path, content in tree.items() if content is not None} for _, _, tree in recording.states()
    ]
    found = {f"{path[-1]}={content.decode()}" for tree in files for path, content in tree.items()}
    assert found == {each for each in left if "=" in each}


def test_what_the_model_does_not_know_is_no_silent_success(tmp_path):
    program = "import mmap; f = open('a', 'w+b'); f.write(b'1'); f.flush(); mmap.mmap(f.fileno(), 1)[:] = b'2'"
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(AssertionError, match="not in the model: mmap"):
        record([sys.executable, "-c", program], root, tmp_path / "trace")
