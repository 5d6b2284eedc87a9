"""A disk that is full: a small file system, or errors in place of writes."""

import errno
import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from data_prep import disk_space
from data_prep.disk_space import check_room, explain_full_disk, guess_rows, warn_of_little_room
from data_prep.log_files import LogFile
from data_prep.pieces import Pieces
from data_prep.prepare import prepare
from data_prep.storage import FileState

MIB = 1 << 20


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def with_free(monkeypatch, free):
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


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
from data_prep.options import PrepareOptions
from data_prep.prepare import prepare

folder, log_path = Path(sys.argv[1]), Path(sys.argv[2])
options = PrepareOptions(min_count=3, block_rows=64, shuffle_window_rows=500, workers=2)
prepare(log_path, folder / "whole", options, chunk_bytes=20_000)
disk = folder / "disk"
disk.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=True)
for size in ("64k", "600k", "1500k", "3m", "12m", "64m"):
    subprocess.run(["mount", "-o", f"remount,size={size}", "none", disk], check=True)
    try:
        prepare(log_path, disk / "out", options, chunk_bytes=20_000)
        break
    except OSError as error:
        print(error)
found, expected = ({path.name: path.read_bytes() for path in at.iterdir()} for at in (disk / "out", folder / "whole"))
assert found == expected
"""


def test_a_small_disk_that_grows_is_gone_on_with(tmp_path, log_path, command_environment):
    """In a name space of its own, where anybody may mount a file system in memory."""
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "mount", "-t", "tmpfs", "none", tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    command = [*alone, sys.executable, "-c", ON_SMALL_DISK, str(tmp_path), str(log_path)]
    done = subprocess.run(command, env=command_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors = done.stdout.splitlines()
    assert len(errors) >= 4
    for error in errors:
        assert error.startswith("no space left for"), error
        assert "Make room and run the same command again" in error
