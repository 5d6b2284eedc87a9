"""Files that are larger than the buffers, read in takes of any size, and headers, which are checked before use."""

import json
import math
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from common.arrays import disk
from common.arrays.disk import read_arrays_once, write_file
from common.arrays.format import DTYPES, read_entries

SMALL_BUFFER = 8192


@pytest.fixture(scope="module", autouse=True)
def small_buffers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "BUFFER_BYTES", SMALL_BUFFER)
        patch.setattr(disk, "BLOCK_BYTES", 3000)
        patch.setattr(disk, "_FREE_BUFFERS", [])
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("disk")


@settings(max_examples=40)
@given(
    size=st.integers(0, 12 * SMALL_BUFFER),
    takes=st.lists(st.tuples(st.booleans(), st.integers(0, 3 * SMALL_BUFFER)), max_size=8),
)
@pytest.mark.parametrize("direct", [True, False])
def test_a_file_is_read_as_it_was_written(folder, direct, size, takes):
    content, path = np.random.default_rng(size).bytes(size), folder / "file"
    with pytest.MonkeyPatch.context() as patch:
        if not direct:
            patch.setattr(disk.os, "O_DIRECT", 0)
        record = disk.write_file(path, [content[: size // 3], content[size // 3 :]])
        assert path.read_bytes() == content
        assert record == {"size_bytes": size, "checksum": f"xxh3:{xxhash.xxh3_64(content).hexdigest()}"}
        start = 0
        with disk.read_file(path) as reader:
            for copied, num_bytes in takes:
                expected = content[start : start + num_bytes]
                if copied:
                    target = np.zeros(num_bytes, np.uint8)
                    assert reader.take_into(target) == len(expected)
                    assert target[: len(expected)].tobytes() == expected
                else:
                    assert bytes(reader.take(num_bytes)) == expected
                start += len(expected)
            rest = []
            assert reader.checksum_of_all(rest.append) == record["checksum"]
        assert sum(rest) == size - start


@settings(max_examples=60)
@given(
    before=st.integers(0, 2 * SMALL_BUFFER),
    row_bytes=st.one_of(st.integers(1, 40), st.integers(SMALL_BUFFER // 2, 3 * SMALL_BUFFER)),
    count=st.integers(0, 3000),
)
def test_rows_are_read_where_they_are_written_from(folder, before, row_bytes, count):
    count = min(count, 6 * SMALL_BUFFER // row_bytes)
    rng = np.random.default_rng(row_bytes)
    head, values = rng.bytes(before), rng.integers(0, 256, (count, row_bytes), np.uint8)
    asked, progress = [], []

    def read(rows, out):
        asked.append((rows.start, rows.stop))
        out.reshape(-1, row_bytes)[:] = values[rows]

    parts = [head, disk.RowSource(count, row_bytes, read), b"end"]
    record = disk.write_file(folder / "rows", parts, progress.append)
    content = head + values.tobytes() + b"end"
    assert (folder / "rows").read_bytes() == content
    assert record == {"size_bytes": len(content), "checksum": f"xxh3:{xxhash.xxh3_64(content).hexdigest()}"}
    assert sum(progress) == len(content)
    assert [row for start, stop in asked for row in range(start, stop)] == list(range(count))


def test_buffers_are_used_again(folder):
    disk.write_file(folder / "file", [b"x" * 5 * SMALL_BUFFER])
    for _ in range(3):
        with disk.read_file(folder / "file") as first, disk.read_file(folder / "file") as second:
            assert first.checksum_of_all() == second.checksum_of_all()
    assert len(disk._FREE_BUFFERS) == 2 * (disk.READS_AHEAD + 1)


GOOD = {
    "row_ids": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
    "rows": {"dtype": "F32", "shape": [2, 3], "data_offsets": [16, 40]},
}


def file_of(path, header, body=b"\0" * 40, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + body)
    return path


def changed(name, **entry):
    return {**GOOD, name: {**GOOD[name], **entry}}


def test_a_good_header(tmp_path):
    places = read_entries(file_of(tmp_path / "x", GOOD))
    begin = 8 + len(json.dumps(GOOD))
    assert {name: (place.dtype, place.shape, place.start - begin) for name, place in places.items()} == {
        "row_ids": ("int64", (2,), 0),
        "rows": ("float32", (2, 3), 16),
    }


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (changed("rows", data_offsets=[8, 32]), r"'rows' lies at \[8, 32\]; expected \[16, 40\]"),  # overlaps
        (changed("rows", data_offsets=[24, 48]), "'rows' lies at"),  # leaves a hole
        (changed("rows", data_offsets=[-16, 8]), "'rows' lies at"),
        (changed("rows", data_offsets=[16.0, 40.0]), "'rows' lies at"),
        (changed("rows", data_offsets=[16]), "'rows' lies at"),
        (changed("rows", shape=[2, 4]), r"'rows' lies at .*; expected \[16, 48\]"),
        (changed("rows", shape=[2, 4], data_offsets=[16, 48]), "'rows' ends at .*, and the file has"),
        (changed("rows", shape=[-2, -3]), r"'rows' has shape \[-2, -3\], expected up to 8 whole numbers"),
        (changed("rows", shape=[2, 3.0]), "'rows' has shape"),
        (changed("rows", shape=[True, 6]), "'rows' has shape"),
        (changed("rows", shape="23"), "'rows' has shape"),
        (changed("rows", shape=[1] * 9 + [6]), "'rows' has shape"),
        (changed("rows", shape=[2**40, 2**40]), "'rows' has shape .* too large"),
        (changed("rows", shape=[0, 2**40, 2**40], data_offsets=[16, 16]), "'rows' has shape .* too large"),
        (changed("rows", shape=[2**63, 2]), "'rows' has shape .* too large"),
        (changed("rows", dtype="F8"), "'rows' has dtype 'F8', expected one of"),
        (changed("rows", dtype=["F32"]), "'rows' has dtype"),
        (changed("rows", more=1), "'rows' has not dtype, shape and data_offsets"),
        ({**GOOD, "rows": [0, 40]}, "'rows' has not dtype, shape and data_offsets"),
        ({"row_ids": GOOD["row_ids"]}, "has .* bytes, but by its header the last array ends at"),
        ([GOOD], "its header holds no arrays"),
        (b'{"a": {}, "a": {}}', "its header is wrong: it has 'a' twice"),
        (b'{"a": {"dtype": "F32", "dtype": "F64"}}', "its header is wrong: it has 'dtype' twice"),
        (b"[" * 100_000, "its header is wrong"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "its header is wrong"),
        (b"\xff\xfe", "its header is wrong"),
        (b"", "its header is wrong"),
    ],
)
def test_a_wrong_header_is_named_by_file_and_array(tmp_path, header, message):
    path = file_of(tmp_path / "deep.safetensors", header)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}.*{message}"):
        read_entries(path)


@pytest.mark.parametrize("length", [41 + len(json.dumps(GOOD)), 2**20 + 1, 2**63, 2**64 - 1])
def test_a_header_beyond_the_file_s_end_is_not_read(tmp_path, length):
    with pytest.raises(ValueError, match=f"its header should take {length:,}"):
        read_entries(file_of(tmp_path / "x", GOOD, length=length))


def test_a_file_without_a_whole_length(tmp_path):
    (tmp_path / "x").write_bytes(b"\1\0\0")
    with pytest.raises(ValueError, match="is not a safetensors file: it has 3 bytes"):
        read_entries(tmp_path / "x")


number = st.integers(-2, 9) | st.integers() | st.sampled_from([2**31, 2**62, 2**63, 2**64, 0.5, True, None, "4"])


@st.composite
def near_misses(draw):
    """A header that is right but for one number at most."""
    header, end = {}, 0
    for name in draw(st.lists(st.text(max_size=4), unique=True, max_size=3)):
        dtype, shape = draw(st.sampled_from(sorted(DTYPES))), draw(st.lists(st.integers(0, 3), max_size=3))
        start, end = end, end + math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    if header and draw(st.booleans()):
        chosen = header[draw(st.sampled_from(sorted(header)))]
        numbers = chosen[draw(st.sampled_from(["shape", "data_offsets"]))]
        if numbers:
            numbers[draw(st.integers(0, len(numbers) - 1))] = draw(number)
    return header, end + draw(st.sampled_from([0, 0, 0, 1, -1]))


@given(near_misses() | st.tuples(st.binary(max_size=60), st.integers(0, 20)))
@settings(deadline=None, max_examples=400)
def test_any_header_gives_places_within_the_file_or_an_error_that_names_it(made):
    header, num_bytes = made
    with tempfile.TemporaryDirectory() as folder:
        path = file_of(Path(folder) / "deep.safetensors", header, b"\1" * max(num_bytes, 0))
        size = path.stat().st_size
        try:
            places = read_entries(path)
        except ValueError as error:
            assert str(error).startswith(str(path))
            places = None
        else:
            assert sum(place.num_bytes for place in places.values()) < size
            assert all(place.start + place.num_bytes <= size for place in places.values())
        read = {}

        def read_all(reader):
            read.update((name, reader.next_array(entry)) for name, entry in reader.entries.items())

        record = write_file(path, [path.read_bytes()])
        if places is None:
            with pytest.raises(ValueError, match=str(path)):
                read_arrays_once(path, record, read_all)
        else:
            read_arrays_once(path, record, read_all)
            assert {name: array.shape for name, array in read.items()} == {n: p.shape for n, p in places.items()}
