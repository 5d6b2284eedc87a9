"""A signal to the launcher, or a kill of any process of a job, loses nothing."""

import itertools
import re
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from app.checkpoint.retention import whole_checkpoints
from tests.kills import num_kills as num_kills_of
from tests.ranks.jobs import ended, is_rank, kept_files, losses, same_numbers, wait_for_ranks

pytestmark = pytest.mark.kills

MOST_KILLS_OF_A_RUN = 4
OFTEN = ("checkpoint.every_steps=3", "train.log_every_steps=1")


def test_a_killed_rank_ends_the_job_and_the_same_command_resumes_it(start, run, two_ranks, tmp_path):
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
    assert "Resuming " in errors
    assert kept_files(tmp_path) == kept_files(two_ranks)


@pytest.mark.parametrize(
    ("number", "status", "to_all"),
    [(signal.SIGINT, 130, False), (signal.SIGTERM, 143, False), (signal.SIGTERM, 143, True)],
)
def test_a_signal_ends_the_step_on_all_ranks_and_saves(start, tmp_path, number, status, to_all):
    """Slurm and systemd send SIGTERM to every process of a job, in any order."""
    process = start(tmp_path, 2, "train.log_every_steps=1", epochs=400)
    pids = wait_for_ranks(process, tmp_path, steps=2)
    everyone = [*psutil.Process(process.pid).children(recursive=True), process]
    for each in everyone if to_all else [process]:
        each.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert errors.count("stopped after saving") == 1
    assert "error: " not in errors
    steps = len(losses(tmp_path))
    assert len(losses(tmp_path, 1)) == steps
    assert whole_checkpoints(tmp_path / "device_0" / "checkpoints")[-1].path.name.endswith(f"{steps:08d}")
    assert not list((tmp_path / "device_0").rglob("*.partial*"))
    assert all(map(ended, pids))


def test_a_second_signal_ends_a_job_that_hangs(start, tmp_path):
    process = start(tmp_path, 2, "train.log_every_steps=1", epochs=400)
    everyone = wait_for_ranks(process, tmp_path, steps=2)
    everyone += [each for each in psutil.Process(process.pid).children(recursive=True) if "run" in each.name()]
    for each in everyone:
        each.suspend()
    for _ in range(2):
        process.terminate()
        time.sleep(0.5)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert all(map(ended, everyone))


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_a_sigterm_lets_another_number_of_ranks_resume(start, run, one_rank, tmp_path, before, after):
    """Within an epoch: the rest of its batches is shared anew. Saves make each step long enough to be stopped at."""
    slow = ("checkpoint.every_steps=1", "checkpoint.background=false", "train.log_every_steps=1")
    process = start(tmp_path, before, *slow)
    wait_for_ranks(process, tmp_path, steps=2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    stopped = whole_checkpoints(tmp_path / "device_0" / "checkpoints")[-1].manifest
    assert 0 < stopped.step < 10 and stopped.step == len(losses(tmp_path))
    status, errors = run(tmp_path, after, "train.log_every_steps=1")
    assert status == 0, errors
    assert "Resuming " in errors
    same_numbers(tmp_path, one_rank)


def test_servers_resume_a_run_without_mindspore_and_end_with_a_killed_one(start_servers, run, one_rank, tmp_path):
    """Train an epoch of two ranks that own rows, then a second one with a server, which is killed at first."""
    assert run(tmp_path, 2, epochs=1)[0] == 0
    process = start_servers(tmp_path, 1, 2, "train.log_every_steps=1")
    server, *_ = wait_for_ranks(process, tmp_path, steps=6)
    # The plan of memory loads the native layer with its oneDNN, which lies in MindSpore's folder.
    assert "libmindspore" not in Path(f"/proc/{server.pid}/maps").read_text()
    server.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 137
    assert "error: rank 0 on" in errors
    process = start_servers(tmp_path, 1, 2)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    same_numbers(tmp_path, one_rank)
    assert "the ranks that train have ended" in (tmp_path / "server_0" / "server0.log").read_text()


@pytest.fixture(scope="session")
def with_a_server(start_servers, tmp_path_factory):
    """Folder of an undisturbed run of two ranks and a server."""
    folder = tmp_path_factory.mktemp("served")
    process = start_servers(folder, 1, 2, *OFTEN)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return folder


def kill_one(process, folder, rng):
    """Kill a random process of the job at a random moment of a random step; return True if it was still training."""
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
    """The job ends with the killed process, and the same command resumes it, again and again."""
    num_kills, rng = num_kills_of(form), np.random.default_rng(num_kills_of(form))
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
