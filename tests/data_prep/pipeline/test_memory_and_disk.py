"""The memory limit, and a disk that is full: a small file system, or errors in place of writes."""

import dataclasses
import errno
import itertools
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from data_prep.encoding.encoder import RowEncoder
from data_prep.encoding.fit import fit_vocabulary
from data_prep.encoding.vocabulary import FieldVocabulary, write_lookup_tables
from data_prep.execution.pieces import Pieces
from data_prep.execution.prepared_folder import WORK_FOLDER
from data_prep.kernels import native
from data_prep.kernels.numpy_kernels import CountedStrings
from data_prep.kernels.parsed import Chunk
from data_prep.kernels.strings import Strings
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline import memory_and_disk
from data_prep.pipeline.chunk_tasks import ChunkCounter
from data_prep.pipeline.first_pass import usual_row_bytes
from data_prep.pipeline.prepare import prepare
from data_prep.pipeline.split import make_split
from data_prep.pipeline.zoo_layout import zoo_row_bytes
from data_prep.raw_log.storage import FileState, LogFile
from data_prep.statistics.statistics import LogStatistics
from data_prep.statistics.value_counts import _TextRun
from tests.prepared_folders import contents
from tests.programs import run_program

MIB = 1 << 20


def with_free(monkeypatch, free):
    monkeypatch.setattr(memory_and_disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


def interrupt(*_):
    raise KeyboardInterrupt


def test_what_is_there_counts_as_written(tmp_path, monkeypatch, caplog):
    with_free(monkeypatch, 10 * MIB)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "piece").write_bytes(bytes(2 * MIB))
    memory_and_disk.check_room(tmp_path, 12 * MIB)
    with pytest.raises(OSError, match="about 11 MiB more are needed, 10 MiB are free"):
        memory_and_disk.check_room(tmp_path, 13 * MIB)
    memory_and_disk.warn_of_little_room(tmp_path, 12 * MIB)
    assert not caplog.records
    memory_and_disk.warn_of_little_room(tmp_path, 13 * MIB)
    assert "may not fit: about 13 MiB are needed, 10 MiB are free" in caplog.text


def test_rows_are_guessed_by_the_size_of_the_log():
    files = [LogFile(name, name, FileState(int(11.1e9), 0)) for name in ("train.txt", "train.txt.gz")]
    assert 40e6 < memory_and_disk.guess_rows(files[:1]) < 50e6
    assert memory_and_disk.guess_rows(files[1:]) > 2 * memory_and_disk.guess_rows(files[:1])


def test_what_rows_surely_take_is_less_than_what_is_written_of_them():
    row_bytes = usual_row_bytes(PrepareOptions())
    assert (
        0 < memory_and_disk.least_bytes(1_000_000, row_bytes) < 1_000_000 * (row_bytes - 8)
    )  # a row's number is not written


def test_the_layout_of_the_zoo_takes_room_beside_ours(tmp_path, make_log, small_options, monkeypatch, caplog):
    assert zoo_row_bytes(39) == 39 * 4 + 39 * 4 + 4
    assert memory_and_disk.whole_bytes(10**9, 200, 300) == 10**9 * 500
    assert memory_and_disk.least_bytes(100, 200, 300) > memory_and_disk.least_bytes(100, 200) * 2
    (tmp_path / "train.txt").write_text(make_log(2_000))
    monkeypatch.setattr("data_prep.pipeline.prepare._make_files", interrupt)
    for layout, is_told in (("blocks", False), ("zoo", True)):
        caplog.clear()
        options = dataclasses.replace(small_options, layout=layout)
        with_free(monkeypatch, memory_and_disk.whole_bytes(2_000, usual_row_bytes(options)))  # room for our own layout
        with pytest.raises(KeyboardInterrupt):
            prepare(tmp_path / "train.txt", tmp_path / layout, options)
        assert ("may not fit" in caplog.text) == is_told


@pytest.mark.parametrize(
    "write", [_TextRun.write, lambda path, counted: write_lookup_tables([as_vocabulary(counted)], path)]
)
def test_counts_and_tables_of_text_tell_a_full_disk(write):
    texts = Strings.of([f"text {number}".encode() for number in range(10_000)])
    counted = CountedStrings(np.sort(texts.keys()), np.ones(len(texts), np.int64), texts)
    with pytest.raises(OSError, match="No space left") as raised:
        write(Path("/dev/full"), counted)
    assert raised.value.errno == errno.ENOSPC


def as_vocabulary(counted):
    numbers = np.arange(-1, len(counted) - 1)  # the first is MISSING
    return FieldVocabulary("site", (0, 1), ((1, len(counted) + 1),), numbers, counted.counts, counted.texts)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError("cannot write to out: No free disk to be used while writing mindrecord files"),
    ],
)
def test_errors_of_a_full_disk_say_what_is_needed(tmp_path, error):
    with (
        pytest.raises(OSError, match=r"no space left .*about 7 MiB more .*Make room"),
        memory_and_disk.explain_full_disk(tmp_path, 7 * MIB),
    ):
        raise error


def test_other_errors_stay_as_they_are(tmp_path):
    with (
        pytest.raises(PermissionError, match="Permission denied"),
        memory_and_disk.explain_full_disk(tmp_path, 7 * MIB),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_a_run_that_can_write_the_result_of_one_chunk_more_keeps_it(tmp_path, make_log, small_options, monkeypatch):
    """So a preparation is done after about as many runs as it has results; one has four pieces at most."""
    (tmp_path / "train.txt").write_text(make_log(300))
    prepare(tmp_path / "train.txt", tmp_path / "whole", small_options, chunk_bytes=20_000)
    write = Pieces.write
    errors = []
    while len(errors) < 50:
        calls = itertools.count()

        def write_few(*words, calls=calls):
            if next(calls) >= 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(*words)

        monkeypatch.setattr(Pieces, "write", write_few)
        try:
            prepare(tmp_path / "train.txt", tmp_path / "out", small_options, chunk_bytes=20_000)
            break
        except OSError as error:
            errors.append(str(error))
    assert 5 < len(errors) < 50
    assert all("no space left for" in error for error in errors)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


ON_SMALL_DISK = """
import subprocess, sys
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, setrlimit
from data_prep.options import prepare_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare

prepare_options.BLOCK_ROWS = 64
folder, log_path, whole, kind = *map(Path, sys.argv[1:4]), sys.argv[4]
options = PrepareOptions(min_count=3, shuffle_window_rows=500, workers=2)
disk = folder / "disk"
disk.mkdir()
if kind == "disk":
    sizes = ("64k", "600k", "1500k", "3m", "12m", "64m")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=True)
    let_grow = lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", "none", disk], check=True)
else:
    sizes = (30_000, 300_000, RLIM_INFINITY)
    let_grow = lambda size: setrlimit(RLIMIT_FSIZE, (size, RLIM_INFINITY))  # the workers inherit it
for size in sizes:
    let_grow(size)
    try:
        prepare(log_path, disk / "out", options, chunk_bytes=20_000)
        break
    except OSError as error:
        print(error)
found, expected = ({path.name: path.read_bytes() for path in at.iterdir()} for at in (disk / "out", whole))
assert found == expected
"""


def errors_of_small_disks(tmp_path, log_path, prepared, environment, kind, alone=()):
    """Prepare on disks or with limits that grow until all fits; return the errors before."""
    command = *alone, sys.executable, "-c", ON_SMALL_DISK, tmp_path, log_path, prepared, kind
    return run_program(*command, env=environment).stdout.splitlines()


def test_a_full_disk_that_gets_room_is_resumed(tmp_path, log_path, prepared, command_environment):
    """In a name space of its own, where anybody may mount a file system in memory."""
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "mount", "-t", "tmpfs", "none", tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    errors = errors_of_small_disks(tmp_path, log_path, prepared, command_environment, "disk", alone)
    assert len(errors) >= 4
    for error in errors:
        assert error.startswith("no space left for"), error
        assert "Make room and run the same command again" in error


def test_a_limit_of_file_sizes_that_is_raised_is_resumed(tmp_path, log_path, prepared, command_environment):
    errors = errors_of_small_disks(tmp_path, log_path, prepared, command_environment, "limit")
    assert len(errors) == 2
    for error in errors:
        assert "ulimit -f" in error, error
        assert "run the same command again" in error, error
    assert ".mindrecord" in errors[-1]


def encoding_workers(limit, window=200, lookup=100, num_workers=64):
    options = PrepareOptions(memory_limit=limit)
    chunk_bytes = memory_and_disk.chunk_bytes(options)
    return memory_and_disk.encoding_workers(options, num_workers, chunk_bytes, window * MIB, lookup * MIB)


def test_as_many_workers_as_there_is_room_for():
    assert encoding_workers("1 TiB") == (64, 64)
    few, writers = encoding_workers("4 GiB")
    assert 2 < few < 64 and writers == 1
    assert encoding_workers("4 GiB", lookup=1500)[0] < few
    assert encoding_workers("570 MiB") == (1, 1)


def test_workers_write_files_at_a_time_in_the_memory_that_is_left():
    for limit, expected in (("1 GiB", 1), ("2 GiB", 4), ("4 GiB", 4)):
        assert encoding_workers(limit, num_workers=4) == (4, expected)
    assert encoding_workers("2 GiB", window=900, num_workers=4) == (4, 1)


def test_the_zoos_layout_needs_mindspore_besides():
    options = PrepareOptions(memory_limit="500 MiB", layout="zoo")
    with pytest.raises(MemoryError, match="the process itself takes 680 MiB"):
        memory_and_disk.check_limit(options)


def test_a_limit_that_is_too_low_is_an_error_with_the_reason():
    with pytest.raises(
        MemoryError, match=r"memory_limit=500 MiB is too low: writing takes 560 MiB, 200 .* and 100 for"
    ):
        encoding_workers("500 MiB")


@pytest.mark.parametrize("limit", ["700 MiB", "1 GiB", "4 GiB", "64 GiB"])
def test_workers_leave_room_for_counts_on_any_number_of_cores(limit):
    options = PrepareOptions(memory_limit=limit)
    chunk_bytes = memory_and_disk.chunk_bytes(options)
    for num_cores in (1, 2, 64, 1000):
        num_workers = memory_and_disk.counting_workers(options, num_cores, chunk_bytes)
        assert 1 <= num_workers <= num_cores
        assert memory_and_disk.counts_bytes(options, num_workers, chunk_bytes) > 100 * MIB
    assert memory_and_disk.counting_workers(PrepareOptions(memory_limit=limit, workers=1), 64, chunk_bytes) == 1


def test_a_low_limit_makes_chunks_small():
    small, large = PrepareOptions(memory_limit="1 GiB"), PrepareOptions(memory_limit="4 GiB")
    assert memory_and_disk.chunk_bytes(small) < memory_and_disk.chunk_bytes(large)


COLUMNS = {"click": "label", "a": "string", "b": "string"}
OF_MANY_ROWS = {
    "crosses": PrepareOptions(data=LogFormat(COLUMNS, ","), crosses=(("a", "b"),)),
    "lists": PrepareOptions(data=LogFormat({**COLUMNS, "b": "list"}, ",", lists={"b": ListForm("|", 80)})),
}


@pytest.mark.parametrize("kind", OF_MANY_ROWS)
def test_lists_and_crosses_have_their_part_of_a_workers_memory(tmp_path, kind):
    options, draw = OF_MANY_ROWS[kind], random.Random(1)
    lines = "".join(f"0,{draw.randrange(10**5)},{draw.randrange(100)}|{draw.randrange(100)}\n" for _ in range(40_000))
    chunk = Chunk(0, 40_000, lines.encode())
    peaks = peaks_of(tmp_path, options, chunk)
    of_fields = memory_and_disk.worker_bytes(PrepareOptions(), len(chunk.lines)) - memory_and_disk.worker_bytes(
        PrepareOptions(), 0
    )
    assert (
        of_fields
        < max(peaks)
        < memory_and_disk.worker_bytes(options, len(chunk.lines)) - memory_and_disk.worker_bytes(options, 0)
    )
    assert (
        memory_and_disk.worker_bytes(options, memory_and_disk.chunk_bytes(options)) <= 120 * MIB
    )  # as of fields, by smaller chunks


@pytest.mark.parametrize("kernels", ["numpy", "native"] if native.is_available() else ["numpy"])
@pytest.mark.parametrize("crossed", [("a", "b"), ("b", "c")])
def test_combinations_of_lists_have_their_part_of_a_workers_memory(tmp_path, crossed, kernels):
    columns = {"click": "label", "a": "string", "b": "list", "c": "list"}
    log_format = LogFormat(columns, ",", lists={name: ListForm("|", 10) for name in "bc"})
    options, draw = PrepareOptions(data=log_format, crosses=(crossed,), kernels=kernels), random.Random(1)
    cells = [
        "|".join(draw.choices("0123456789", k=10)) for _ in range(20_000)
    ]  # as many combinations as a byte can have
    lines = "".join(
        f"0,{draw.randrange(10**4)},{one},{other}\n" for one, other in zip(cells[::2], cells[1::2], strict=True)
    )
    limit = memory_and_disk.worker_bytes(options, len(lines)) - memory_and_disk.worker_bytes(options, 0)
    assert limit / 6 < max(peaks_of(tmp_path, options, Chunk(0, 10_000, lines.encode()))) < limit


def peaks_of(folder, options, chunk):
    """The most memory that counting and encoding a chunk take."""
    (folder / WORK_FOLDER).mkdir()
    statistics, counter = (
        LogStatistics(options, folder, 1 << 30),
        ChunkCounter(make_split(options, None, None), options),
    )
    peaks = [peak_of(lambda: statistics.add(counter.count(chunk)))]
    fitted = fit_vocabulary(statistics, options, 0, folder)
    encoder = RowEncoder((), fitted.lookup, fitted.ids_dtype, options.encoding)
    return [*peaks, peak_of(lambda: [rows := encoder.encode(chunk)[1], rows.take(np.arange(len(rows)))])]


def peak_of(function):
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_limit_that_no_log_fits_is_an_error_before_it_is_read():
    with pytest.raises(MemoryError, match=r"memory_limit=4 is too low: the process itself takes 260 MiB"):
        prepare("none", "out", PrepareOptions(memory_limit="4"))
