import os
from pathlib import Path

import pytest

from data_prep.whole_file import write_whole


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    write_whole(path, "before")

    def full(*_, **__):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            write_whole(path, "after")
    assert path.read_text() == "before"
    write_whole(path, "é after")
    assert path.read_text(encoding="utf-8") == "é after"
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]
