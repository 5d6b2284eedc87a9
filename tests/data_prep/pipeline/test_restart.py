"""Preparations that are interrupted at any moment, and resumed by the same command.

They run in children forked from a process that has imported everything, which saves a second each time.
`make test-faults` kills more often.
"""

import dataclasses
import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest

from common.files import lock_folder
from common.process import checksum_of_sources
from data_prep.execution.prepared_folder import OtherRun, partial_folder
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import _program, prepare
from data_prep.prepared.schema import SCHEMA_FILE
from tests.damage import flip_bit
from tests.kills import in_child, num_kills
from tests.prepared_folders import contents
from tests.programs import run_python

OPTIONS = {
    "counted": PrepareOptions(min_count=3, shuffle_window_rows=500),
    "hash": PrepareOptions(vocabulary="hash", oov_buckets=50, shuffle_window_rows=500),
    "stratified": PrepareOptions(split="stratified", min_count=3, shuffle_window_rows=700),
}


def prepare_small(log_path, output, options, **named):
    return prepare(log_path, output, options, chunk_bytes=20_000, file_rows=320, **named)


def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at_random(folder, log_path, num_kills):
    """In a process of its own: kill preparations until all are done; prints the kills of each."""
    random_ = random.Random(1)
    started, number = time.monotonic(), 0
    for name, options in OPTIONS.items():
        status_of(in_child(lambda name=name, options=options: prepare_small(log_path, folder / name, options)))
    longest = (time.monotonic() - started) / len(OPTIONS)
    kills = dict.fromkeys(OPTIONS, 0)
    while not all(kills.values()) or sum(kills.values()) < num_kills:
        number += 1
        for name, options in OPTIONS.items():
            output = folder / f"{name}-{number}"
            options = dataclasses.replace(options, workers=1 + number % 2)
            for attempt in itertools.count(1):
                if (output / SCHEMA_FILE).exists():
                    break
                child = in_child(lambda output=output, options=options: prepare_small(log_path, output, options))
                time.sleep(random_.uniform(0, longest / 2 * attempt))  # later each time: a start alone may take so long
                os.kill(child, signal.SIGKILL)
                status = status_of(child)
                assert status in (0, -signal.SIGKILL)  # else it would never be done
                kills[name] += status == -signal.SIGKILL and not (output / SCHEMA_FILE).exists()
            status_of(in_child(lambda output=output, options=options: prepare_small(log_path, output, options)))
            assert contents(output) == contents(folder / name), output
    print(*kills.values())


def run_here(action, command_environment, project, *words):
    """An action of this file in a process of its own, which can be forked."""
    program = "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import test_restart\n"
    program += f"test_restart.{action}(*map(Path, sys.argv[2:4]), *map(int, sys.argv[4:]))"
    folder = project / "tests" / "data_prep" / "pipeline"
    return run_python("-c", program, folder, *words, env=command_environment).stdout.split()


@pytest.mark.kills
def test_kills_at_random_moments_leave_no_trace(tmp_path, make_log, command_environment, project):
    (tmp_path / "train.txt").write_text(make_log(1000))
    kills = run_here(
        "kill_at_random", command_environment, project, tmp_path, tmp_path / "train.txt", num_kills("preparation")
    )
    assert all(int(number) > 0 for number in kills)


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def log(tmp_path_factory, make_log):
    """A log whose last line is bad."""
    path = tmp_path_factory.mktemp("log") / "train.txt"
    path.write_text(make_log(1_000) + "bad\n")
    return path


@pytest.fixture(scope="module")
def whole(log, small_options):
    """The contents of a preparation that nothing interrupted."""
    prepare_small(log, log.with_name("whole"), small_options)
    return contents(log.with_name("whole"))


@pytest.fixture
def end_in(monkeypatch):
    """Run a preparation that ends where it calls a function, by default as Ctrl-C ends it."""

    def end(function, *words, error=None, **named):
        def fail(*_):
            raise error or KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(type(error) if error else KeyboardInterrupt):
            patch.setattr(f"data_prep.{function}", fail)
            prepare_small(*words, **named)

    return end


def test_what_is_finished_is_not_done_again(tmp_path, log, small_options, monkeypatch, whole, end_in):
    end_in("pipeline.prepare.write_splits", log, tmp_path / "out", small_options)
    monkeypatch.setattr("data_prep.pipeline.chunk_tasks.ChunkCounter.count", None)
    monkeypatch.setattr("data_prep.pipeline.first_pass.fit_vocabulary", None)
    end_in("pipeline.prepare.describe", log, tmp_path / "out", small_options)
    monkeypatch.setattr("data_prep.pipeline.chunk_tasks.Encoder.encode", None)
    monkeypatch.setattr("data_prep.prepared.writer.MindRecordWriter._open", None)
    prepare_small(log, tmp_path / "out", small_options)
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize(
    "damaged", ["work/fitted", "work/lookup.bin", "vocabulary.parquet", "train-00001.mindrecord", "rejects.tsv"]
)
def test_what_is_damaged_meanwhile_is_made_again(tmp_path, log, small_options, damaged, whole, end_in):
    end_in("pipeline.prepare.describe", log, tmp_path / "out", small_options)
    path = partial_folder(tmp_path / "out") / damaged
    if damaged == "rejects.tsv":  # after a power cut a file may be there with its name alone
        path.write_bytes(b"")
    else:
        flip_bit(path, path.stat().st_size // 2)
    prepare_small(log, tmp_path / "out", small_options)
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("vocabulary", [{}, {"vocabulary": "hash", "oov_buckets": 9}])
def test_a_log_of_texts_resumes_with_what_is_finished(tmp_path, make_avazu, project, monkeypatch, vocabulary, end_in):
    log_path, words = tmp_path / "train.csv", ["prepare.min_count=3", "prepare.workers=1"]
    log_path.write_text(make_avazu(1_000) + "bad\n")
    options = read_options(None, words, project / "configs" / "data" / "avazu.yaml")
    options = dataclasses.replace(options, **vocabulary)
    prepare_small(log_path, tmp_path / "whole", options)
    for function in ("prepare.write_splits", "prepare.describe", "split_files._SplitOutput.finish"):
        end_in(f"pipeline.{function}", log_path, tmp_path / "out", options)
    monkeypatch.setattr("data_prep.pipeline.chunk_tasks.ChunkCounter.count", None)
    monkeypatch.setattr("data_prep.pipeline.chunk_tasks.Encoder.encode", None)
    prepare_small(log_path, tmp_path / "out", options)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.fixture
def ended(tmp_path, make_log, small_options, end_in):
    """A log and the output of a preparation that was ended."""
    log_path = tmp_path / "train.txt"
    log_path.write_text(make_log(300))
    end_in("pipeline.prepare.write_splits", log_path, tmp_path / "out", small_options)
    return log_path, tmp_path / "out"


def test_other_options_are_refused_until_restart(ended, small_options):
    other = dataclasses.replace(small_options, min_count=5, seed=9, workers=2, memory_limit="1 GiB")
    with pytest.raises(OtherRun, match=r": prepare.min_count was 3, is 5; prepare.seed was 1, is 9\. .*--restart"):
        prepare_small(*ended, other)
    assert prepare_small(*ended, other, restart=True).options["seed"] == 9


def test_another_log_is_refused(ended, make_log, small_options):
    ended[0].write_text(make_log(301))
    with pytest.raises(OtherRun, match=r"size of train.txt was .*, is .*; time of train.txt in ns was .*, is "):
        prepare_small(*ended, small_options)


def test_work_of_another_version_is_refused(ended, small_options, monkeypatch):
    monkeypatch.setattr("data_prep.pipeline.prepare._program", lambda: "another")
    with pytest.raises(OtherRun, match=r": program was 'sha256:.*', is 'another'\."):
        prepare_small(*ended, small_options)


@pytest.mark.parametrize("state", ["", "{}", '{"identity": 3, "chunk_bytes": 1}'])
def test_a_damaged_state_is_refused_until_restart(ended, small_options, state):
    (partial_folder(ended[1]) / "run.json").write_text(state)
    with pytest.raises(OtherRun, match=r"run.json is damaged"):
        prepare_small(*ended, small_options)
    prepare_small(*ended, small_options, restart=True)


def test_a_second_run_is_refused_and_harms_nothing(ended, small_options):
    partial = partial_folder(ended[1])
    before = sorted(path.name for path in partial.rglob("*"))
    with lock_folder(partial), pytest.raises(ValueError, match=r"another process prepares .*out \(it works in "):
        prepare_small(*ended, small_options, restart=True)
    assert sorted(path.name for path in partial.rglob("*")) == before
    prepare_small(*ended, small_options)


def tree(folder):
    """All that is in a folder, and what the files hold."""
    return {path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def users_folder(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    return tree(folder)


@pytest.mark.parametrize(
    ("ended_at", "restart"), [(None, False), (".partial", False), (".partial", True), ("_tidy_up", True)]
)
def test_a_users_folder_of_a_name_of_ours_stays(
    tmp_path, make_log, small_options, monkeypatch, ended_at, restart, end_in
):
    log_path = tmp_path / "train.txt"
    log_path.write_text(make_log(100))
    mine = users_folder(tmp_path / "out.replaced", "schema.json", "train-00000.mindrecord", "notes/a.txt")
    (tmp_path / "out.replaced.1").mkdir()  # a folder may be renamed to an empty one, which is gone then
    prepare_small(log_path, tmp_path / "out", dataclasses.replace(small_options, seed=2))
    rename = Path.rename
    if ended_at == "_tidy_up":
        end_in("execution.prepared_folder._tidy_up", log_path, tmp_path / "out", small_options, overwrite=True)
    elif ended_at == ".partial":
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "rename", lambda path, to: interrupt() if path.suffix else rename(path, to))
            prepare_small(log_path, tmp_path / "out", small_options, overwrite=True)
        assert not (tmp_path / "out").exists()
    done = prepare_small(log_path, tmp_path / "out", small_options, overwrite=True, restart=restart)
    assert done.options["seed"] == 1
    assert tree(tmp_path / "out.replaced") == mine
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.replaced", "out.replaced.1", "train.txt"]


def test_a_folder_with_files_of_the_users_is_not_replaced(tmp_path, log, small_options):
    mine = users_folder(tmp_path / "out", "schema.json", "README.md", "src/main.py")
    with pytest.raises(
        FileExistsError, match=r"it holds files that no preparation made: README.md, src; move them elsewhere"
    ):
        prepare(log, tmp_path / "out", small_options, overwrite=True)
    assert tree(tmp_path / "out") == mine
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_what_a_user_put_there_meanwhile_is_not_replaced(tmp_path, log, small_options, monkeypatch):
    prepare_small(log, tmp_path / "out", dataclasses.replace(small_options, seed=2))
    notes = tmp_path / "out" / "notes.txt"
    with monkeypatch.context() as patch, pytest.raises(FileExistsError, match=r"no preparation made: notes.txt"):
        patch.setattr("data_prep.execution.prepared_folder.sync_files", lambda _: notes.touch())
        prepare_small(log, tmp_path / "out", small_options, overwrite=True)
    notes.unlink()
    monkeypatch.setattr("data_prep.pipeline.prepare._make_files", None)
    prepare_small(log, tmp_path / "out", small_options, overwrite=True)


IN_THE_WAY = {
    "is in the way: it has no run.json": lambda partial: (partial / "run.json").unlink(),
    "is in the way: .*no preparation made: weights.bin": lambda partial: (partial / "weights.bin").write_text("mine"),
    "is in the way: it is not a folder": lambda partial: partial.symlink_to(
        partial.rename(partial.with_name("elsewhere"))
    ),
    r"belongs to another user \(number 12345, not 0\)": lambda partial: os.chown(partial, 12345, -1),
}


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("message", IN_THE_WAY)
def test_a_partial_folder_of_somebody_else_is_refused(tmp_path, ended, small_options, monkeypatch, restart, message):
    if "user" in message and os.geteuid() != 0:
        pytest.skip("only root can give a folder to somebody else")
    IN_THE_WAY[message](partial_folder(ended[1]))
    before = tree(tmp_path)
    monkeypatch.setattr("data_prep.execution.prepared_folder.Pieces.read", None)
    with pytest.raises(FileExistsError, match=f"out.partial {message}"):
        prepare_small(*ended, small_options, restart=restart)
    assert tree(tmp_path) == before


def test_no_other_user_can_read_an_unfinished_folder(ended, small_options):
    partial = partial_folder(ended[1])
    assert partial.stat().st_mode & 0o777 == 0o700
    partial.chmod(0o777)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "data_prep.pipeline.prepare.write_splits", lambda *_: seen.append(partial.stat().st_mode & 0o777) or 1 / 0
        )
        with pytest.raises(ZeroDivisionError):
            prepare_small(*ended, small_options)
    assert seen == [0o700]


@pytest.mark.parametrize(("layout", "umask"), [("blocks", 0o027), ("zoo", 0o002)])
def test_a_finished_folder_has_the_modes_of_new_ones(tmp_path, make_log, umask, layout):
    log_path = tmp_path / "train.txt"
    log_path.write_text(make_log(300))
    options = PrepareOptions(min_count=3, workers=1)
    if layout == "zoo":
        options = dataclasses.replace(options, layout="zoo")
    before = os.umask(umask)
    try:
        prepare(log_path, tmp_path / "out", options, report=True)
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~umask
    files = list((tmp_path / "out").iterdir())
    assert any(file.suffix == ".db" for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o666 & ~umask}


def test_files_are_synced_before_the_names_that_say_that_they_are_there(tmp_path, log, small_options, monkeypatch):
    done = []
    fsync, replace, rename = os.fsync, Path.replace, Path.rename

    def note_sync(descriptor):
        done.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", lambda path, to: done.append(("name", Path(to).name)) or replace(path, to))
    monkeypatch.setattr(Path, "rename", lambda path, to: done.append(("name", Path(to).name)) or rename(path, to))
    prepare_small(log, tmp_path / "out", small_options, report=True)
    schema_there, out_there = done.index(("name", SCHEMA_FILE)), done.index(("name", "out"))
    files = {path.name for path in (tmp_path / "out").iterdir()}
    late = {SCHEMA_FILE, "report.html", "timing.json"}
    assert any(name.endswith(".db") for name in files)
    synced_before_schema = {name for what, name in done[:schema_there] if what == "sync"}
    assert files - late <= synced_before_schema and "out.partial" in synced_before_schema
    assert files | {"out.partial"} <= {name for what, name in done[schema_there:out_there] if what == "sync"}
    assert ("sync", tmp_path.name) in done[out_there:]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_that_ended_before_it_tidied_up_is_done_with_the_next(
    tmp_path, log, small_options, monkeypatch, caplog, overwrite, end_in
):
    if overwrite:
        prepare_small(log, tmp_path / "out", dataclasses.replace(small_options, seed=2))
    end_in("execution.prepared_folder._tidy_up", log, tmp_path / "out", small_options, overwrite=overwrite)
    made = contents(tmp_path / "out")
    with pytest.raises(FileExistsError, match="holds prepared data"):  # another command
        prepare_small(log, tmp_path / "out", dataclasses.replace(small_options, seed=3))
    with monkeypatch.context() as patch, caplog.at_level("INFO"):
        patch.setattr("data_prep.pipeline.prepare._make_files", None)
        assert prepare_small(log, tmp_path / "out", small_options, overwrite=overwrite).options["seed"] == 1
    assert "is complete; removing the temporary files" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert contents(tmp_path / "out") == {name: made[name] for name in made if name not in ("run.json", "run.lock")}
    with pytest.raises(FileExistsError, match="holds prepared data"):
        prepare_small(log, tmp_path / "out", small_options)


@pytest.mark.parametrize(
    ("ended_in", "error"),
    [
        ("write_timing", None),
        ("write_report", None),
        ("write_report", ValueError("a flaw")),
        ("write_report", OSError("no room")),
    ],
)
def test_a_run_that_ended_before_its_report_draws_it_with_the_next(
    tmp_path, log, small_options, monkeypatch, ended_in, error, end_in
):
    end_in(f"pipeline.prepare.{ended_in}", log, tmp_path / "out", small_options, error=error, report=True)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("data_prep.pipeline.prepare._make_files", None)
    prepare_small(log, tmp_path / "out", small_options, report=True)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "out" / "timing.json").exists() == (ended_in == "write_report")


def test_an_output_that_is_a_link_stays_one(tmp_path, log, small_options):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "data")
    with pytest.raises(FileExistsError, match="out is a link that leads nowhere"):
        prepare_small(log, tmp_path / "out", small_options)
    (tmp_path / "disk" / "data").mkdir()
    for overwrite in (False, True):
        prepare_small(log, tmp_path / "out", small_options, overwrite=overwrite)
        assert (tmp_path / "out").is_symlink() and (tmp_path / "out" / SCHEMA_FILE).is_file()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["data"]


PACKAGES = ("common", "data_prep")
FILES = ("common/settings.py", "data_prep/__main__.py", "data_prep/kernels/parse.py", "data_prep/kernels/csrc/parse.cc")


def checksum_of(folder, changed=None):
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("another" if name == changed else "text")
    return checksum_of_sources(folder, PACKAGES)


@pytest.mark.parametrize("changed", FILES)
def test_a_change_anywhere_makes_another_program(tmp_path, changed):
    assert checksum_of(tmp_path) != checksum_of(tmp_path, changed)


def test_it_is_the_checksum_of_this_project(project):
    assert _program() == checksum_of_sources(project, PACKAGES)


def test_what_is_built_or_cached_does_not_count(tmp_path):
    before = checksum_of(tmp_path)
    (tmp_path / "data_prep" / "kernels" / "csrc" / "build").mkdir()
    (tmp_path / "data_prep" / "kernels" / "csrc" / "build" / "liblog_kernels.so").write_text("built")
    (tmp_path / "data_prep" / "__pycache__").mkdir()
    (tmp_path / "data_prep" / "__pycache__" / "parse.pyc").write_text("cached")
    assert checksum_of_sources(tmp_path, PACKAGES) == before
