"""Jobs over two hosts with addresses of their own, started from a third one, and what can happen to hosts and links."""

import os
import re
import signal
import time
from contextlib import ExitStack

import psutil
import pytest

from app.checkpoint.retention import whole_checkpoints
from benchmarks.harness.hosts import Hosts
from tests.programs import run_program
from tests.ranks.hosts import Slurm
from tests.ranks.jobs import SETTINGS, kept_files, losses, wait_for_ranks

pytestmark = pytest.mark.slow

TIMEOUT_S = 10
SETTINGS_OF_FAULTS = ("checkpoint.every_steps=3", "train.log_every_steps=1", f"cluster.timeout_s={TIMEOUT_S}")


@pytest.fixture
def hosts(tmp_path):
    folder = tmp_path / "hosts"
    folder.mkdir()
    with ExitStack() as stack:
        try:
            two_hosts = stack.enter_context(Hosts(folder))
        except PermissionError as error:
            pytest.skip(str(error))
        yield two_hosts


def processes_of(hosts):
    """Return Open MPI's daemons and the ranks on both hosts, without the shells that ssh would start."""
    found = [psutil.Process(pid) for name in hosts.names for pid in hosts.pids(name)]
    return [process for process in found if process.name().startswith(("prted", "python"))]


def test_two_hosts_give_the_bits_of_one(
    hosts, run, two_ranks, start_servers, tmp_path, project, command_environment, mpirun
):
    status, errors = run(tmp_path / "ranks", 2, "checkpoint.every_steps=3", **hosts.environment)
    assert status == 0, errors
    assert kept_files(tmp_path / "ranks") == kept_files(two_ranks)
    folders = {}
    for name, environment in ("one", {}), ("two", hosts.environment):
        folders[name] = tmp_path / name
        process = start_servers(folders[name], 1, 1, **environment)
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert kept_files(folders["one"]) == kept_files(folders["two"])
    command = ("bash", project / "scripts" / "run_eval.sh", "--ranks", 2)
    environment = {**command_environment, "MPIRUN": mpirun, **hosts.environment}
    printed = [
        run_program(*command, *more, cwd=tmp_path / "ranks", env=environment).stdout
        for more in ((), ("--hostfile", hosts.file))
    ]
    assert "AUC" in printed[0] and printed[0] == printed[1]


@pytest.mark.parametrize("fault", ["disappears", "is killed", "loses the other one"])
def test_a_lost_host_ends_the_job_which_resumes(hosts, start, run, two_ranks, tmp_path, fault):
    process = start(tmp_path, 2, *SETTINGS_OF_FAULTS, **hosts.environment)
    wait_for_ranks(process, tmp_path, steps=4)
    if fault == "disappears":
        hosts.set_link(hosts.names[1], "down")
    elif fault == "is killed":
        hosts.kill(hosts.names[1])
    else:
        hosts.isolate(True)
    lost = time.monotonic()
    _, errors = process.communicate(timeout=TIMEOUT_S + 60)
    assert time.monotonic() - lost < TIMEOUT_S + 30
    assert process.returncode == 1
    if fault == "loses the other one":
        assert re.search(rf"error: rank 1 on host {hosts.names[1]} does not answer rank 0|error: rank 0 on", errors)
    else:
        assert f"error: host {hosts.names[1]} is lost: " in errors
    assert "run the same command again to resume" in errors
    hosts.isolate(False)
    hosts.kill(hosts.names[1])
    hosts.set_link(hosts.names[1], "up")
    status, errors = run(tmp_path, 2, *SETTINGS_OF_FAULTS, **hosts.environment)
    assert status == 0, errors
    assert "Resuming " in errors
    assert kept_files(tmp_path) == kept_files(two_ranks)


def test_a_job_survives_a_link_that_is_down(hosts, start, tmp_path):
    process = start(tmp_path, 2, "train.log_every_steps=1", epochs=400, **hosts.environment)
    wait_for_ranks(process, tmp_path, steps=4)
    hosts.set_link(hosts.names[1], "down")
    time.sleep(10)
    before = len(losses(tmp_path))
    hosts.set_link(hosts.names[1], "up")
    end = time.monotonic() + 60
    while len(losses(tmp_path)) < before + 5:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.2)
    everyone = [*processes_of(hosts), *psutil.Process(process.pid).children(), process]
    for each in everyone:  # as Slurm does
        each.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert " s for other ranks: one was busy or slow, or the network was interrupted" in errors
    assert whole_checkpoints(tmp_path / "device_0" / "checkpoints")[-1].manifest.step == len(losses(tmp_path))


def test_slurm_trains_and_scancel_saves(hosts, project, tiny_dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("PROJECT", str(project))
    script, run_folder = project / "examples" / "slurm" / "train.sbatch", tmp_path / "device_0"
    log = tmp_path / "log"
    with Slurm(hosts) as slurm:
        words = ("sbatch", "--parsable", "-o", log, script, tiny_dataset, *SETTINGS, "train.log_every_steps=1")
        job = slurm.run(*words, "train.epochs=400", cwd=tmp_path).strip()
        end = time.monotonic() + 120
        while not (run_folder / "loss.log").exists() or len(losses(tmp_path)) < 5:
            assert time.monotonic() < end, log.read_text() if log.exists() else job
            time.sleep(0.5)
        slurm.run("scancel", job)
        while slurm.run("squeue", "--noheader"):
            assert time.monotonic() < end + 60
            time.sleep(0.5)
        assert "rank 0 of 4" in log.read_text() and "stopped after saving: SIGTERM" in log.read_text()
        assert "ExitCode=143:0" in slurm.run("scontrol", "show", "job", job)
        assert whole_checkpoints(run_folder / "checkpoints")[-1].manifest.step == len(losses(tmp_path))
        assert not list(run_folder.rglob("*.partial*"))
        command = (project / ".venv/bin/python", "-m", "app", "train", "--dataset", tiny_dataset)
        refused = slurm.run("srun", "-n", "2", *command, cwd=os.fspath(hosts.folder))
        assert refused.count("error: srun has started this command 2 times") == 2
