import os
import stat
from pathlib import Path

import pytest

from common.files import write_whole


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
