"""Preparations that are interrupted at any moment, and resumed by the same command.

They run in children forked from a process that has imported everything, which saves a second each time.
`make test-faults` kills more often.
"""

import dataclasses
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.files import lock_folder
from data_prep.execution.prepared_folder import OtherRun, partial_folder
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import SCHEMA_FILE
from tests.damage import flip_bit
from tests.kills import in_child, num_kills
from tests.prepared_folders import contents

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
    words = [str(word) for word in (project / "tests" / "data_prep" / "pipeline", *words)]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=command_environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


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
def whole(tmp_path_factory, log_path, small_options):
    """The contents of a preparation that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    prepare_small(log_path, folder, small_options)
    return contents(folder)


def test_what_is_finished_is_not_done_again(tmp_path, log_path, small_options, monkeypatch, whole):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("data_prep.pipeline.prepare.write_splits", interrupt)
        prepare_small(log_path, tmp_path / "out", small_options)
    monkeypatch.setattr("data_prep.pipeline.chunk_tasks.ChunkCounter.count", None)
    monkeypatch.setattr("data_prep.pipeline.first_pass.fit_vocabulary", None)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("data_prep.pipeline.prepare.describe", interrupt)
        prepare_small(log_path, tmp_path / "out", small_options)
    monkeypatch.setattr("data_prep.pipeline.chunk_tasks.Encoder.encode", None)
    monkeypatch.setattr("data_prep.prepared.writer.MindRecordWriter._open", None)
    prepare_small(log_path, tmp_path / "out", small_options)
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("damaged", ["work/fitted", "work/lookup.bin", "vocabulary.parquet", "train-00001.mindrecord"])
def test_what_is_damaged_meanwhile_is_made_again(tmp_path, log_path, small_options, monkeypatch, damaged, whole):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("data_prep.pipeline.prepare.describe", interrupt)
        prepare_small(log_path, tmp_path / "out", small_options)
    path = partial_folder(tmp_path / "out") / damaged
    flip_bit(path, path.stat().st_size // 2)
    prepare_small(log_path, tmp_path / "out", small_options)
    assert contents(tmp_path / "out") == whole


def test_lost_rejects_are_found_again(tmp_path, make_log, small_options, monkeypatch):
    """After a power cut a file may be there with its name alone."""
    log_path = tmp_path / "train.txt"
    log_path.write_text(make_log(300) + "bad\n")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("data_prep.pipeline.prepare.write_splits", interrupt)
        prepare_small(log_path, tmp_path / "out", small_options)
    rejects = partial_folder(tmp_path / "out") / "rejects.tsv"
    assert rejects.read_bytes() == b"301\tcolumns\tbad\n"
    rejects.write_bytes(b"")
    prepare_small(log_path, tmp_path / "out", small_options)
    assert (tmp_path / "out" / "rejects.tsv").read_bytes() == b"301\tcolumns\tbad\n"


def test_a_log_of_texts_resumes_with_what_is_finished(tmp_path, make_avazu, project, monkeypatch):
    log_path = tmp_path / "train.csv"
    log_path.write_text(make_avazu(1_000))
    avazu = read_options(
        None, ["prepare.min_count=3", "prepare.workers=1"], project / "configs" / "data" / "avazu.yaml"
    )
    for options in (avazu, dataclasses.replace(avazu, vocabulary="hash", oov_buckets=9)):
        output = tmp_path / options.vocabulary
        for function in ("write_splits", "describe"):
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(f"data_prep.pipeline.prepare.{function}", interrupt)
                prepare_small(log_path, output, options)
        with monkeypatch.context() as patch:
            patch.setattr("data_prep.pipeline.chunk_tasks.ChunkCounter.count", None)
            patch.setattr("data_prep.pipeline.chunk_tasks.Encoder.encode", None)
            prepare_small(log_path, output, options)
        prepare_small(log_path, tmp_path / "whole", options, overwrite=True)
        assert contents(output) == contents(tmp_path / "whole")


@pytest.fixture
def ended(tmp_path, make_log, small_options, monkeypatch):
    """A log and the output of a preparation that was ended."""
    log_path = tmp_path / "train.txt"
    log_path.write_text(make_log(300))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("data_prep.pipeline.prepare.write_splits", interrupt)
        prepare_small(log_path, tmp_path / "out", small_options)
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


def test_a_folder_of_an_older_version_is_never_removed(tmp_path, log_path, small_options):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "train-00000.mindrecord").touch()
    for restart in (False, True):
        with pytest.raises(FileExistsError, match=r"out.partial is in the way: it has no run.json"):
            prepare(log_path, tmp_path / "out", small_options, restart=restart)
    assert (tmp_path / "out.partial" / "train-00000.mindrecord").exists()


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
def test_a_users_folder_of_a_name_of_ours_stays(tmp_path, make_log, small_options, monkeypatch, ended_at, restart):
    log_path = tmp_path / "train.txt"
    log_path.write_text(make_log(100))
    mine = users_folder(tmp_path / "out.replaced", "schema.json", "train-00000.mindrecord", "notes/a.txt")
    (tmp_path / "out.replaced.1").mkdir()  # a folder may be renamed to an empty one, which is gone then
    prepare_small(log_path, tmp_path / "out", dataclasses.replace(small_options, seed=2))
    rename = Path.rename
    if ended_at is not None:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            if ended_at == "_tidy_up":
                patch.setattr("data_prep.execution.prepared_folder._tidy_up", interrupt)
            else:
                patch.setattr(Path, "rename", lambda path, to: interrupt() if path.suffix else rename(path, to))
            prepare_small(log_path, tmp_path / "out", small_options, overwrite=True)
    prepare_small(log_path, tmp_path / "out", small_options, overwrite=True, restart=restart)
    assert tree(tmp_path / "out.replaced") == mine
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.replaced", "out.replaced.1", "train.txt"]


def test_a_folder_with_files_of_the_users_is_not_replaced(tmp_path, log_path, small_options):
    mine = users_folder(tmp_path / "out", "schema.json", "README.md", "src/main.py")
    with pytest.raises(
        FileExistsError, match=r"it holds files that no preparation made: README.md, src; move them elsewhere"
    ):
        prepare(log_path, tmp_path / "out", small_options, overwrite=True)
    assert tree(tmp_path / "out") == mine
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_what_a_user_put_there_meanwhile_is_not_replaced(tmp_path, log_path, small_options, monkeypatch):
    prepare_small(log_path, tmp_path / "out", dataclasses.replace(small_options, seed=2))
    with monkeypatch.context() as patch, pytest.raises(FileExistsError, match=r"no preparation made: notes.txt"):
        patch.setattr("data_prep.pipeline.prepare.sync_files", lambda _: (tmp_path / "out" / "notes.txt").touch())
        prepare_small(log_path, tmp_path / "out", small_options, overwrite=True)
    (tmp_path / "out" / "notes.txt").unlink()
    monkeypatch.setattr("data_prep.pipeline.prepare._make_files", None)
    prepare_small(log_path, tmp_path / "out", small_options, overwrite=True)


@pytest.mark.parametrize("restart", [False, True])
def test_a_partial_folder_of_the_users_is_not_emptied(tmp_path, log_path, small_options, restart):
    mine = users_folder(tmp_path / "out.partial", "run.json", "weights.bin")
    with pytest.raises(FileExistsError, match=r"out.partial is in the way: .*no preparation made: weights.bin"):
        prepare(log_path, tmp_path / "out", small_options, restart=restart)
    assert tree(tmp_path / "out.partial") == mine


@pytest.mark.parametrize("restart", [False, True])
def test_a_partial_folder_that_is_a_link_is_not_followed(ended, small_options, restart):
    partial = partial_folder(ended[1])
    elsewhere = partial.rename(partial.with_name("elsewhere"))
    partial.symlink_to(elsewhere)
    before = tree(elsewhere)
    with pytest.raises(FileExistsError, match=r"out.partial is in the way: it is not a folder"):
        prepare_small(*ended, small_options, restart=restart)
    assert tree(elsewhere) == before


@pytest.mark.parametrize("restart", [False, True])
def test_a_partial_folder_of_another_user_is_not_trusted(ended, small_options, monkeypatch, restart):
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to somebody else")
    partial = partial_folder(ended[1])
    os.chown(partial, 12345, -1)
    before = tree(partial)
    monkeypatch.setattr("data_prep.execution.prepared_folder.Pieces.read", None)
    with pytest.raises(FileExistsError, match=r"belongs to another user \(number 12345, not 0\)"):
        prepare_small(*ended, small_options, restart=restart)
    assert tree(partial) == before


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


def test_files_are_synced_before_the_names_that_say_that_they_are_there(tmp_path, log_path, small_options, monkeypatch):
    done = []
    fsync, replace, rename = os.fsync, Path.replace, Path.rename

    def note_sync(descriptor):
        done.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", lambda path, to: done.append(("name", Path(to).name)) or replace(path, to))
    monkeypatch.setattr(Path, "rename", lambda path, to: done.append(("name", Path(to).name)) or rename(path, to))
    prepare_small(log_path, tmp_path / "out", small_options, report=True)
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
    tmp_path, log_path, small_options, monkeypatch, caplog, overwrite
):
    if overwrite:
        prepare_small(log_path, tmp_path / "out", dataclasses.replace(small_options, seed=2))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("data_prep.execution.prepared_folder._tidy_up", interrupt)
        prepare_small(log_path, tmp_path / "out", small_options, overwrite=overwrite)
    made = contents(tmp_path / "out")
    with pytest.raises(FileExistsError, match="holds prepared data"):  # another command
        prepare_small(log_path, tmp_path / "out", dataclasses.replace(small_options, seed=3))
    with monkeypatch.context() as patch, caplog.at_level("INFO"):
        patch.setattr("data_prep.pipeline.prepare._make_files", None)
        assert prepare_small(log_path, tmp_path / "out", small_options, overwrite=overwrite).options["seed"] == 1
    assert "is complete; removing the temporary files" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert contents(tmp_path / "out") == {name: made[name] for name in made if name not in ("run.json", "run.lock")}
    with pytest.raises(FileExistsError, match="holds prepared data"):
        prepare_small(log_path, tmp_path / "out", small_options)


def test_a_run_that_ended_while_it_replaced_the_old_folder_ends_now(tmp_path, log_path, small_options, monkeypatch):
    prepare_small(log_path, tmp_path / "out", dataclasses.replace(small_options, seed=2))
    rename = Path.rename
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", lambda path, to: interrupt() if path.suffix else rename(path, to))
        prepare_small(log_path, tmp_path / "out", small_options, overwrite=True)
    assert not (tmp_path / "out").exists()
    assert prepare_small(log_path, tmp_path / "out", small_options, overwrite=True).options["seed"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize("ended_in", ["write_timing", "write_report"])
def test_a_run_that_ended_before_its_report_draws_it_with_the_next(
    tmp_path, log_path, small_options, monkeypatch, ended_in
):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"data_prep.pipeline.prepare.{ended_in}", interrupt)
        prepare_small(log_path, tmp_path / "out", small_options, report=True)
    assert not (tmp_path / "out").exists()
    with monkeypatch.context() as patch:
        patch.setattr("data_prep.pipeline.prepare._make_files", None)
        prepare_small(log_path, tmp_path / "out", small_options, report=True)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "out" / "timing.json").exists() == (ended_in == "write_report")


@pytest.mark.parametrize("error", [ValueError("a flaw"), OSError("no room")])
def test_what_is_finished_stays_where_no_report_can_be_drawn(tmp_path, log_path, small_options, monkeypatch, error):
    def fail(_):
        raise error

    with monkeypatch.context() as patch, pytest.raises(type(error), match=str(error)):
        patch.setattr("data_prep.pipeline.prepare.write_report", fail)
        prepare_small(log_path, tmp_path / "out", small_options, report=True)
    monkeypatch.setattr("data_prep.pipeline.prepare._make_files", None)
    prepare_small(log_path, tmp_path / "out", small_options, report=True)


def test_an_output_that_is_a_link_stays_one(tmp_path, log_path, small_options):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "data")
    with pytest.raises(FileExistsError, match="out is a link that leads nowhere"):
        prepare_small(log_path, tmp_path / "out", small_options)
    (tmp_path / "disk" / "data").mkdir()
    for overwrite in (False, True):
        prepare_small(log_path, tmp_path / "out", small_options, overwrite=overwrite)
        assert (tmp_path / "out").is_symlink() and (tmp_path / "out" / SCHEMA_FILE).is_file()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["data"]
