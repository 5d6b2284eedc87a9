"""Jobs of several ranks as a user starts them, against one process with the same batch."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from app.checkpoint import shard_name
from app.checkpoint_reading import open_state
from app.manifest import read_manifest
from app.retention import whole_checkpoints

SETTINGS = ("device.threads=1", "train.batch_size=500", "checkpoint.keep_last=0", "eval.every_steps=4")


@pytest.fixture(scope="module")
def start(project, tiny_dataset, command_environment, mpirun):
    """Starts the launcher in a folder; the ranks' messages go to its stderr."""

    def begin(folder, ranks, *settings, epochs=2, **environment):
        folder.mkdir(exist_ok=True)
        script = project / "scripts" / "run_auto_parallel_train.sh"
        words = ["bash", str(script), str(ranks), str(epochs), str(tiny_dataset), "-", *SETTINGS, *settings]
        environment = {**command_environment, "MPIRUN": mpirun, **environment}
        return subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)

    return begin


@pytest.fixture(scope="module")
def run(start):
    def to_the_end(folder, ranks, *settings, **options):
        process = start(folder, ranks, *settings, **options)
        _, errors = process.communicate(timeout=240)
        return process.returncode, errors

    return to_the_end


@pytest.fixture(scope="module")
def one_rank(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    status, errors = run(folder, 1)
    assert status == 0, errors
    return folder


@pytest.fixture(scope="module")
def two_ranks(run, tmp_path_factory):
    """Saved in the middle of the first epoch as well."""
    folder = tmp_path_factory.mktemp("two")
    status, errors = run(folder, 2, "checkpoint.every_steps=3")
    assert status == 0, errors
    return folder


def losses(folder, rank=0):
    text = (folder / f"device_{rank}" / "loss.log").read_text()
    return np.array([[float(x) for x in re.findall(r"loss is (\S+?)(?:,|$)", line)] for line in text.splitlines()])


def aucs(folder, rank=0):
    """Of all evaluations: in the middle of an epoch and at its end."""
    return [float(auc) for auc in re.findall(r" auc is (\S+),", (folder / f"device_{rank}" / "eval.log").read_text())]


def kept_files(folder):
    run = folder / "device_0"
    files = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*.safetensors")}
    return files | {name: (run / name).read_bytes() for name in ("loss.log", "eval.log")}


def same_numbers(found, expected):
    np.testing.assert_allclose(losses(found), losses(expected), rtol=0, atol=1e-5)
    assert aucs(found) == pytest.approx(aucs(expected), abs=2e-4)
    whole, state = (open_state(whole_checkpoints(run / "device_0" / "checkpoints")[-1]) for run in (expected, found))
    for table, rows in whole.tables.items():
        np.testing.assert_array_equal(state.tables[table].row_ids, rows.row_ids)


def test_two_ranks_train_the_same_model_and_each_keeps_its_log(two_ranks, one_rank):
    same_numbers(two_ranks, one_rank)
    np.testing.assert_array_equal(losses(two_ranks, 1), losses(two_ranks, 0))
    assert aucs(two_ranks, 1) == aucs(two_ranks, 0)
    assert len(aucs(two_ranks)) == 4
    for rank in range(2):
        log = (two_ranks / f"device_{rank}" / f"test_deep{rank}.log").read_text()
        assert f"rank {rank} of 2" in log


def test_each_owner_writes_its_shard(two_ranks):
    newest = whole_checkpoints(two_ranks / "device_0" / "checkpoints")[-1]
    manifest = read_manifest(newest)
    assert manifest.shards == {"wide": 2, "deep": 2}
    for shard in range(2):
        rows = load_file(newest / shard_name("deep", shard, 2))["row_ids"]
        assert rows.size
        assert (rows % 2 == shard).all()


def test_three_ranks_judge_a_checkpoint_as_one_process_does(two_ranks, project, command_environment, mpirun, tmp_path):
    """Of a copy, as the evaluation is kept in the folder of the run."""
    run = shutil.copytree(two_ranks / "device_0", tmp_path / "device_0")
    for words in ((), ("--ranks", "3")):
        command = ["bash", project / "scripts" / "run_eval.sh", *words, "eval.group_field=C3", "eval.batch_size=70"]
        environment = {**command_environment, "MPIRUN": mpirun}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("log loss ") == 1
    one, three = (run / "eval.log").read_text().splitlines()[-2:]
    numbers = re.compile(r"[\d.]+")
    assert "grouped_auc" in one
    assert list(map(float, numbers.findall(three))) == pytest.approx(list(map(float, numbers.findall(one))), abs=1e-6)


def test_a_split_without_rows_is_said_once(two_ranks, project, command_environment):
    command = ["bash", project / "scripts" / "run_eval.sh", "--ranks", "3", "--split", "tset"]
    done = subprocess.run(command, cwd=two_ranks, env=command_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: .* has no rows in split 'tset'; the splits with rows: train, valid, test\n", done.stderr
    )


def test_more_ranks_than_cores_go_on_from_another_number(run, two_ranks, one_rank, tmp_path):
    """One epoch of one rank, then a second one of three; the batch is dealt out anew."""
    assert run(tmp_path, 1, epochs=1)[0] == 0
    status, errors = run(tmp_path, 3)
    assert status == 0, errors
    assert "continue run in" in errors
    same_numbers(tmp_path, one_rank)


def test_a_killed_rank_ends_the_job_and_the_same_command_goes_on(start, run, two_ranks, tmp_path):
    process = start(tmp_path, 2, "checkpoint.every_steps=3", "train.log_every_steps=1")
    pids = wait_for_ranks(process, tmp_path, steps=4)
    pids[1].kill()
    killed = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - killed < 10
    assert process.returncode == 137
    assert re.search(r"error: rank 1 on \S+ was ended by signal 9", errors)
    assert ended(pids[0])
    assert not list(Path("/dev/shm").glob(f"wide_deep-{process.pid}-*"))
    status, errors = run(tmp_path, 2, "checkpoint.every_steps=3", "train.log_every_steps=1")
    assert status == 0, errors
    assert "resume run in" in errors
    assert kept_files(tmp_path) == kept_files(two_ranks)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher_ends_the_step_on_all_ranks_and_saves(start, tmp_path, number, status):
    process = start(tmp_path, 2, "train.log_every_steps=1", epochs=400)
    pids = wait_for_ranks(process, tmp_path, steps=2)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert errors.count("stopped after saving") == 1
    assert "error: " not in errors
    steps = len(losses(tmp_path))
    assert len(losses(tmp_path, 1)) == steps
    assert whole_checkpoints(tmp_path / "device_0" / "checkpoints")[-1].name.endswith(f"{steps:08d}")
    assert all(map(ended, pids))


def ended(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def is_rank(process):
    try:
        return "OMPI_COMM_WORLD_RANK" in process.environ()
    except psutil.Error:  # it has just ended
        return False


def wait_for_ranks(launcher, folder, steps):
    """The ranks' processes, when that many steps are in loss.log."""
    log, end = folder / "device_0" / "loss.log", time.monotonic() + 120
    while not log.exists() or len(log.read_text().splitlines()) < steps:
        assert launcher.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    ranks = [each for each in psutil.Process(launcher.pid).children(recursive=True) if is_rank(each)]
    return sorted(ranks, key=lambda process: int(process.environ()["OMPI_COMM_WORLD_RANK"]))


def test_an_error_of_one_rank_is_said_first_and_ends_all(run, tmp_path):
    (tmp_path / "device_1").mkdir()
    (tmp_path / "device_1" / "run.lock").mkdir()
    status, errors = run(tmp_path, 2)
    assert status == 2
    said = [line for line in errors.splitlines() if "error: " in line]
    assert len(said) == 1
    assert said[0].startswith("rank 1: error: nothing can be written to")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("localhost slots=1\n", r"error: host file hosts has 1 slots \(localhost 1\), 2 ranks need one each"),
        ("# none\n", "error: host file hosts names no host"),
        ("localhost slots=two\n", "error: host file hosts: slots of localhost must be 1 or more, found 'slots=two'"),
        ("host.invalid slots=2\n", "error: host host.* of the host file cannot be used: 'ssh host"),
    ],
)
def test_a_wrong_host_file_is_one_line(run, tmp_path, content, message):
    (tmp_path / "hosts").write_text(content)
    status, errors = run(tmp_path, 2, HOSTFILE="hosts")
    assert status != 0
    assert len(re.findall(message, errors)) == 1, errors
    assert not (tmp_path / "device_0").exists()


def test_without_mpirun_the_launcher_says_how_to_get_it(run, tmp_path):
    status, errors = run(tmp_path, 2, MPIRUN="/nowhere/mpirun")
    assert status == 2
    assert errors.count("\n") == 1
    assert "error: several ranks need mpirun, and /nowhere/mpirun was found" in errors or "pip install" in errors


def test_stock_tables_are_for_one_rank(run, tmp_path):
    status, errors = run(tmp_path, 2, "tables.backend=stock")
    assert status == 2
    assert "error: tables.backend=stock is for one rank, found 2" in errors


@pytest.fixture(scope="module")
def start_servers(project, tiny_dataset, command_environment, mpirun):
    def begin(folder, servers, workers, *settings, epochs=2):
        folder.mkdir(exist_ok=True)
        script = project / "scripts" / "run_parameter_server_train.sh"
        words = ["bash", str(script), str(servers), str(workers), str(epochs), str(tiny_dataset), *SETTINGS, *settings]
        environment = {**command_environment, "MPIRUN": mpirun}
        return subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)

    return begin


def test_servers_go_on_from_ranks_without_mindspore_and_end_with_a_killed_one(start_servers, run, one_rank, tmp_path):
    """One epoch of two ranks that own rows, then a second one with servers, one of which is killed at first."""
    assert run(tmp_path, 2, epochs=1)[0] == 0
    process = start_servers(tmp_path, 1, 2, "train.log_every_steps=1")
    server, *_ = wait_for_ranks(process, tmp_path, steps=6)
    assert "mindspore" not in Path(f"/proc/{server.pid}/maps").read_text()
    server.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 137
    assert "error: rank 0 on" in errors
    process = start_servers(tmp_path, 1, 2)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    same_numbers(tmp_path, one_rank)
    assert "the ranks that train have ended" in (tmp_path / "server_0" / "server0.log").read_text()


NUM_KILLS = int(os.environ.get("NUM_KILLS", "2"))
MOST_KILLS_OF_A_RUN = 4
OFTEN = ("checkpoint.every_steps=3", "train.log_every_steps=1")


@pytest.fixture(scope="module")
def with_a_server(start_servers, tmp_path_factory):
    """Two ranks that train, beside a server, undisturbed."""
    folder = tmp_path_factory.mktemp("served")
    process = start_servers(folder, 1, 2, *OFTEN)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return folder


def kill_one(process, folder, rng):
    """Kill a random process of the job at a random moment of a random step; whether the training was still going on."""
    log, steps, end = folder / "device_0" / "loss.log", int(rng.integers(0, 10)), time.monotonic() + 240
    while process.poll() is None and len(log.read_text().splitlines() if log.exists() else "") < steps:
        assert time.monotonic() < end
        time.sleep(0.005)
    time.sleep(float(rng.uniform(0, 0.1)))
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    ranks = [each for each in family if is_rank(each)]
    if not ranks:
        return False
    victim = ranks[rng.integers(len(ranks))]
    victim.kill()
    killed = time.monotonic()
    process.communicate(timeout=60)
    assert time.monotonic() - killed < 10
    assert all(map(ended, family))
    return process.returncode != 0


@pytest.mark.parametrize("form", ["ranks", "servers"])
def test_kills_of_random_ranks_at_random_moments_lose_nothing(
    start, start_servers, two_ranks, with_a_server, tmp_path, form
):
    """The job ends with the killed process, and the same command goes on, run after run, until enough were survived."""
    num_kills, rng = -(-NUM_KILLS // 2), np.random.default_rng(NUM_KILLS)
    kills, folders = 0, itertools.count()
    while kills < num_kills:
        folder, kills_here = tmp_path / str(next(folders)), 0
        while True:
            process = start(folder, 2, *OFTEN) if form == "ranks" else start_servers(folder, 1, 2, *OFTEN)
            if kills < num_kills and kills_here < MOST_KILLS_OF_A_RUN and kill_one(process, folder, rng):
                kills, kills_here = kills + 1, kills_here + 1
                continue
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
            break
        assert kept_files(folder) == kept_files(two_ranks if form == "ranks" else with_a_server)
