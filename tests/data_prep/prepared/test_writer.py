import dataclasses
import shutil

import numpy as np
import pytest

from data_prep.prepared.examples import Examples
from data_prep.prepared.reader import read_files
from data_prep.prepared.writer import ArrayWriter, MindRecordWriter
from tests.programs import run_python


def random_rows(num_rows, dtype=np.int32, seed=1):
    random = np.random.default_rng(seed)
    return Examples(
        ids=random.integers(0, np.iinfo(dtype).max, (num_rows, 5), dtype),
        numeric=random.normal(size=(num_rows, 3)).astype(np.float32),
        labels=random.integers(0, 2, num_rows).astype(np.float32),
    )


def write(folder, rows, chunk_rows, block_rows=10):
    writer = MindRecordWriter(folder / "train-00000.mindrecord", block_rows)
    for first in range(0, len(rows), chunk_rows):
        writer.write(rows.take(slice(first, first + chunk_rows)))
    return writer.finish()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("num_rows", "chunk_rows"), [(95, 7), (100, 100), (3, 1), (1, 1)])
def test_what_is_written_is_read_in_order(tmp_path, dtype, num_rows, chunk_rows):
    rows = random_rows(num_rows, dtype)
    rows.ids[::3, 2:] = -1  # positions without a value
    file = write(tmp_path, rows, chunk_rows)
    assert file.rows == num_rows and (tmp_path / file.name).stat().st_size < 2 << 20
    blocks = list(read_files(tmp_path, [file.name], ids_dtype=dtype))
    assert [len(block.labels) for block in blocks] == [10] * (num_rows // 10) + [num_rows % 10] * (num_rows % 10 > 0)
    for name in ("ids", "numeric", "labels"):
        read = np.concatenate([getattr(block, name) for block in blocks])
        assert read.dtype == getattr(rows, name).dtype
        assert np.array_equal(read, getattr(rows, name))


def test_bytes_do_not_depend_on_how_rows_arrive(tmp_path):
    rows = random_rows(125)
    for chunk_rows in (1, 125):
        (tmp_path / str(chunk_rows)).mkdir()
        write(tmp_path / str(chunk_rows), rows, chunk_rows)
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("1", "125")]
    assert contents[0] == contents[1]


def test_files_and_indexes_are_those_of_mindspores_own_writer(tmp_path):
    from mindspore.mindrecord import FileWriter

    keys = np.arange(95, dtype=np.int64) << 40
    rows = dataclasses.replace(random_rows(95), weights=np.linspace(0, 1, 95, dtype=np.float32), keys={"user": keys})
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "ours", rows, 95)
    theirs = FileWriter(str(tmp_path / "theirs" / "train-00000.mindrecord"))
    theirs.set_header_size(1 << 18)
    theirs.set_page_size(1 << 20)
    types = {"numeric": "float32", "label": "float32", "weight": "float32", "key_user": "int64"}
    columns = {name: {"type": kind, "shape": [-1]} for name, kind in types.items()}
    theirs.add_schema({"ids": {"type": "bytes"}, **columns}, "blocks of rows")
    for first in range(0, 95, 10):
        block = slice(first, first + 10)
        ids, numeric = rows.ids[block].tobytes(), rows.numeric[block].ravel()
        beside = {"weight": rows.weights[block], "key_user": keys[block]}
        theirs.write_raw_data([{"ids": ids, "numeric": numeric, "label": rows.labels[block], **beside}])
    theirs.commit()
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("ours", "theirs")]
    assert contents[0] == contents[1] and len(contents[0]) == 2


def test_rows_need_no_mindspore_which_may_come_later(tmp_path, project):
    program = """
import sys; from pathlib import Path; import numpy as np
from data_prep.prepared.examples import Examples
from data_prep.prepared.writer import MindRecordWriter
rows = Examples(np.ones((3, 2), np.int32), np.ones((3, 1), np.float32), np.ones(3, np.float32))
writer = MindRecordWriter(Path(sys.argv[1]) / "train-00000.mindrecord", 2)
writer.write(rows)
file = writer.finish()
from data_prep.prepared.reader import read_files
print([len(block) for block in read_files(Path(sys.argv[1]), [file.name])])
unfinished = read_files(Path(sys.argv[1]), [file.name])  # MindSpore's threads for it end before Python does.
print(len(next(unfinished)))
assert "mindspore" not in sys.modules
import mindspore as ms
print((ms.Tensor(rows.labels) + 1).asnumpy())
"""
    assert run_python("-c", program, tmp_path, cwd=project).stdout == "[2, 1]\n2\n[2. 2. 2.]\n"


def test_files_can_be_moved(tmp_path):
    rows = random_rows(25)
    (tmp_path / "before").mkdir()
    file = write(tmp_path / "before", rows, 25)
    shutil.move(tmp_path / "before", tmp_path / "after")
    read = np.concatenate([block.ids for block in read_files(tmp_path / "after", [file.name])])
    assert np.array_equal(read, rows.ids)


def test_rows_of_any_width_fit_a_page(tmp_path):
    wide = Examples(np.full((30, 1000), 2**31 - 1, np.int32), np.ones((30, 2000), np.float32), np.ones(30, np.float32))
    file = write(tmp_path, wide, 30, block_rows=20)
    blocks = list(read_files(tmp_path, [file.name]))
    assert [block.ids.shape for block in blocks] == [(20, 1000), (10, 1000)]


def test_a_full_disk_is_an_os_error_in_one_line(tmp_path, monkeypatch):
    def no_space(*_):
        raise RuntimeError("Exception thrown.\n---\n[ERROR] No free disk to be used, available: 9\n---\nC++ call stack")

    monkeypatch.setattr("data_prep.prepared.writer._packed", no_space)
    with pytest.raises(OSError, match=r"cannot write to .*: No free disk to be used, available: 9$"):
        write(tmp_path, random_rows(25), 25)


UNDER_LIMITS = """
import errno, sys
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, setrlimit
import numpy as np
from data_prep.prepared.examples import Examples
from data_prep.prepared.writer import MindRecordWriter

rows = Examples(np.ones((40_000, 20), np.int32), np.ones((40_000, 1), np.float32), np.ones(40_000, np.float32))

def write(name, limit):
    (Path(sys.argv[1]) / name).mkdir()
    setrlimit(RLIMIT_FSIZE, (limit, RLIM_INFINITY))
    writer = MindRecordWriter(Path(sys.argv[1]) / name / "train-00000.mindrecord", 1000)
    writer.write(rows)
    return writer.finish()

size = write("whole", RLIM_INFINITY).size_bytes
for limit in (1_000, 1 << 18, 300_000, (1 << 18) + (1 << 20), 3_000_000, size - 1_000_000, size - 1):
    try:
        write(str(limit), limit)
    except OSError as error:
        assert error.errno == errno.EFBIG, error
        assert error.filename.endswith("train-00000.mindrecord"), error
    else:
        raise AssertionError(f"{size} bytes are written with a limit of {limit}")
"""


def test_a_file_that_may_not_grow_is_named(tmp_path, command_environment):
    """In a process of its own: MindSpore's library may crash where a write fails."""
    run_python("-c", UNDER_LIMITS, tmp_path, env=command_environment)


@pytest.mark.parametrize("lengths", [[], [0], [5], [1, 0, 70_000, 3]])
def test_the_bytes_are_those_of_numpy_s_save(tmp_path, lengths):
    parts = [np.arange(3 * length)[::3] * 2**40 for length in lengths]  # numbers need not lie side by side
    writer = ArrayWriter(tmp_path / "numbers.npy")
    for part in parts:
        writer.write(part)
    assert not (tmp_path / "numbers.npy").exists()
    writer.finish()
    np.save(tmp_path / "expected.npy", np.concatenate([np.empty(0, np.int64), *parts]))
    assert (tmp_path / "numbers.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2
