"""Files that are larger than the buffers, read in takes of any size."""

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from common.arrays import disk, read

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
        with read.read_file(path) as reader:
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
        with read.read_file(folder / "file") as first, read.read_file(folder / "file") as second:
            assert first.checksum_of_all() == second.checksum_of_all()
    assert len(disk._FREE_BUFFERS) == 2 * (read.READS_AHEAD + 1)
