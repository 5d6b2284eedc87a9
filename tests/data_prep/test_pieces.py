import errno
import os

import numpy as np
import pytest

from data_prep.pieces import Pieces, leading, numbered

VALUE = {"name": "é", "arrays": [np.arange(7), np.ones((3, 2), np.float32), np.empty(0, np.int64)], "number": 2**80}


def is_value(found):
    return found["name"] == "é" and all(map(np.array_equal, found["arrays"], VALUE["arrays"]))


def test_a_piece_comes_back_as_it_was(tmp_path):
    pieces = Pieces(tmp_path)
    assert pieces.read("one") is None
    pieces.write("one", VALUE)
    found = pieces.read("one")
    assert is_value(found)
    assert found["number"] == 2**80
    assert all(array.flags.aligned and array.flags.writeable for array in found["arrays"])
    found["arrays"][0][:] = 0
    assert is_value(pieces.read("one"))


def test_any_flip_and_any_cut_makes_a_piece_as_if_it_were_not_there(tmp_path):
    pieces = Pieces(tmp_path)
    pieces.write("one", VALUE)
    content = (tmp_path / "one").read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        (tmp_path / "one").write_bytes(flipped)
        assert pieces.read("one") is None, place
        (tmp_path / "one").write_bytes(content[:place])
        assert pieces.read("one") is None, place
    assert len(content) > 300


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    pieces = Pieces(tmp_path)
    pieces.write("one", VALUE)

    def no_space(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", no_space)
    monkeypatch.setattr("pathlib.Path.replace", no_space)
    with pytest.raises(OSError, match="No space left"):
        pieces.write("one", "another")
    monkeypatch.undo()
    assert is_value(pieces.read("one"))
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_leading_pieces_end_before_the_first_that_is_not_whole(tmp_path):
    pieces = Pieces(tmp_path)
    for number in (0, 1, 3):
        pieces.write(numbered("rows", number, "rest"), number)
    assert list(leading(pieces, "rows", "rest")) == [0, 1]
    pieces.clear("rows-")
    assert list(tmp_path.iterdir()) == []


def test_what_was_being_written_is_cleared(tmp_path):
    (tmp_path / "one.unfinished-host-17").touch()
    pieces = Pieces(tmp_path)
    pieces.write("two", 2)
    pieces.clear_unfinished()
    assert [path.name for path in tmp_path.iterdir()] == ["two"]
