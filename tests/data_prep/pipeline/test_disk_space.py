"""A disk that is full: a small file system, or errors in place of writes."""

import dataclasses
import errno
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from data_prep.encoding.vocabulary import FieldVocabulary, write_lookup_tables
from data_prep.execution.pieces import Pieces
from data_prep.kernels.numpy_kernels import CountedStrings
from data_prep.kernels.strings import Strings
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline import memory_and_disk
from data_prep.pipeline.first_pass import usual_row_bytes
from data_prep.pipeline.memory_and_disk import (
    check_room,
    explain_full_disk,
    guess_rows,
    least_bytes,
    warn_of_little_room,
    whole_bytes,
)
from data_prep.pipeline.prepare import prepare
from data_prep.pipeline.zoo_layout import zoo_row_bytes
from data_prep.raw_log.storage import FileState, LogFile
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
    check_room(tmp_path, 12 * MIB)
    with pytest.raises(OSError, match="about 11 MiB more are needed, 10 MiB are free"):
        check_room(tmp_path, 13 * MIB)
    warn_of_little_room(tmp_path, 12 * MIB)
    assert not caplog.records
    warn_of_little_room(tmp_path, 13 * MIB)
    assert "may not fit: about 13 MiB are needed, 10 MiB are free" in caplog.text


def test_rows_are_guessed_by_the_size_of_the_log():
    files = [LogFile(name, name, FileState(int(11.1e9), 0)) for name in ("train.txt", "train.txt.gz")]
    assert 40e6 < guess_rows(files[:1]) < 50e6
    assert guess_rows(files[1:]) > 2 * guess_rows(files[:1])


def test_what_rows_surely_take_is_less_than_what_is_written_of_them():
    row_bytes = usual_row_bytes(PrepareOptions())
    assert 0 < least_bytes(1_000_000, row_bytes) < 1_000_000 * (row_bytes - 8)  # a row's number is not written


def test_the_layout_of_the_zoo_takes_room_beside_ours(tmp_path, make_log, small_options, monkeypatch, caplog):
    assert zoo_row_bytes(39) == 39 * 4 + 39 * 4 + 4
    assert whole_bytes(10**9, 200, 300) == 10**9 * 500
    assert least_bytes(100, 200, 300) > least_bytes(100, 200) * 2
    (tmp_path / "train.txt").write_text(make_log(2_000))
    monkeypatch.setattr("data_prep.pipeline.prepare._make_files", interrupt)
    for layout, is_told in (("blocks", False), ("zoo", True)):
        caplog.clear()
        options = dataclasses.replace(small_options, layout=layout)
        with_free(monkeypatch, whole_bytes(2_000, usual_row_bytes(options)))  # room for our own layout
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
        explain_full_disk(tmp_path, 7 * MIB),
    ):
        raise error


def test_other_errors_stay_as_they_are(tmp_path):
    with pytest.raises(PermissionError, match="Permission denied"), explain_full_disk(tmp_path, 7 * MIB):
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
