import errno
import os
import pickle
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xxhash

from common.arrays.format import make_header
from data_prep.execution.pieces import Pieces, numbered, storable

VALUE = {"name": "é", "arrays": [np.arange(7), np.ones((3, 2), np.float32), np.empty(0, np.int64)], "number": 2**80}


def is_value(found):
    return found["name"] == "é" and all(map(np.array_equal, found["arrays"], VALUE["arrays"]))


@pytest.fixture
def pieces(tmp_path):
    return Pieces(tmp_path)


def test_a_piece_comes_back_as_it_was(pieces):
    assert pieces.read("one") is None
    pieces.write("one", VALUE)
    found = pieces.read("one")
    assert is_value(found)
    assert found["number"] == 2**80
    assert all(array.flags.aligned and array.flags.writeable for array in found["arrays"])
    found["arrays"][0][:] = 0
    assert is_value(pieces.read("one"))


@dataclass(frozen=True)
class Point:
    x: int
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Unknown:
    x: int


storable(Point)

PLAIN = {
    "none": None,
    "truth": [True, False],
    "numbers": (0.1, -(2**63), float("inf"), 1e-300),
    "text": "é\n\t\ud800",
    "bytes": (b"\x00\xff", b""),
    "points": {1: Point(1, ("a",)), (2, "b"): [Point(2, ())]},
    "counter": Counter({"columns": 3}),
    "path": Path("/a/b"),
}


def test_plain_values_keep_their_types(pieces):
    pieces.write("one", PLAIN)
    found = pieces.read("one")
    assert found == PLAIN
    assert [type(value) for value in found.values()] == [type(value) for value in PLAIN.values()]
    assert type(found["truth"][0]) is bool and type(found["numbers"]) is tuple


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint32", "int32", "int64", "uint64", "float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_keep_their_bits(tmp_path, dtype, order):
    array = np.asarray(np.arange(24).reshape(4, 6) % 5, dtype, order=order)[:, ::2]
    Pieces(tmp_path).write("one", array)
    found = Pieces(tmp_path).read("one")
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize("value", [Unknown(1), {1, 2}, np.array([object()]), np.zeros(1, ">i4"), print])
def test_what_a_piece_cannot_hold_is_an_error_of_the_writer(tmp_path, value):
    with pytest.raises(TypeError):
        Pieces(tmp_path).write("one", value)
    assert list(tmp_path.iterdir()) == []


class Harmful:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def plant(path, plain, header=None):
    """Write a piece without arrays that has this JSON and the right checksum."""
    content = (make_header({"json": ("uint8", (len(plain),))}, 64) if header is None else header) + plain
    path.write_bytes(content + xxhash.xxh3_64_digest(content))


PLANTED = [b'{"Unknown":[["x",1]]}', b'{"Point":[["x",1]]}', b'{"Path":"/etc/passwd"}', b'{"array":"7"}']
PLANTED += [
    b'{"array":["json"]}',
    b'{"bytes":1}',
    b'{"dict":[[[],1]]}',
    b'{"Counter":7}',
    b"[" * 100_000,
    b"{}",
    b"\xff",
]
WITHOUT_ARRAYS = [b"", make_header({"rows": ("int64", (2,))}, 64), bytes([255] * 8)]


@pytest.mark.parametrize(
    ("plain", "header"), [*((plain, None) for plain in PLANTED), *((b"[]", header) for header in WITHOUT_ARRAYS)]
)
def test_a_planted_piece_is_as_if_it_were_not_there(tmp_path, plain, header):
    plant(tmp_path / "one", plain, header)
    assert Pieces(tmp_path).is_whole("one")
    assert Pieces(tmp_path).read("one") is None


def test_reading_a_planted_piece_runs_nothing(tmp_path):
    plant(tmp_path / "one", b'[1,{"Point":[["x",2],["labels",{"tuple":[]}]]}]')
    assert Pieces(tmp_path).read("one") == [1, Point(2, ())]  # it can be planted as such
    plant(tmp_path / "one", pickle.dumps(Harmful(tmp_path / "made"), protocol=5))
    Pieces(tmp_path).read("one")
    assert not (tmp_path / "made").exists()


def test_no_module_unpickles(project):
    modules = [path for folder in ("app", "common", "data_prep") for path in (project / folder).rglob("*.py")]
    assert len(modules) > 100
    assert [
        path for path in modules if re.search(r"\b(import|from) (pickle|marshal|shelve|dill)\b", path.read_text())
    ] == []


def test_any_flip_and_any_cut_makes_a_piece_as_if_it_were_not_there(pieces, tmp_path):
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


def test_a_write_that_fails_leaves_what_was_there(pieces, tmp_path, monkeypatch):
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


def test_pieces_of_a_title_are_read_by_number_and_cleared_together(pieces, tmp_path):
    for number in (0, 1, 3):
        pieces.write(numbered("rows", number, "rest"), number)
    assert [pieces.read(numbered("rows", number, "rest")) for number in range(4)] == [0, 1, None, 3]
    pieces.clear("rows-")
    assert list(tmp_path.iterdir()) == []


def test_what_was_being_written_is_cleared(pieces, tmp_path):
    (tmp_path / "one.unfinished-host-17").touch()
    pieces.write("two", 2)
    pieces.clear_unfinished()
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


def test_short_arrays_let_go_of_the_file(pieces):
    pieces.write("one", {"short": np.arange(3), "long": np.arange(10_000)})
    found = pieces.read("one")
    assert [found[name].flags.owndata for name in ("short", "long")] == [True, False]
