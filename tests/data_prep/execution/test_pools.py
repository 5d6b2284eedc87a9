"""The same bytes by any executor: processes, Dask workers of which one dies, MPI ranks."""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from data_prep.execution.prepared_folder import partial_folder
from data_prep.execution.tasks import Pool, Pools
from data_prep.options.executor import ExecutorChoice
from data_prep.pipeline.prepare import prepare
from tests.prepared_folders import contents
from tests.programs import run_program, run_python


def test_a_local_dask_cluster_gives_the_same_bytes(tmp_path, log_path, prepared, small_options):
    pytest.importorskip("distributed")
    prepare(log_path, tmp_path / "out", small_options, executor=ExecutorChoice("dask"), chunk_bytes=50_000)
    assert contents(tmp_path / "out") == contents(prepared)


@pytest.fixture
def dask_scheduler(tmp_path, project, command_environment):
    """The address of a Dask scheduler, and two workers that stand in another folder."""
    pytest.importorskip("distributed")
    dask = [sys.executable, "-m", "dask"]
    start = functools.partial(subprocess.Popen, env=command_environment, cwd=tmp_path, stderr=subprocess.DEVNULL)
    file = ["--scheduler-file", str(tmp_path / "scheduler.json")]
    scheduler = start([*dask, "scheduler", "--port", "0", "--dashboard-address", ":0", *file])
    workers = [start([*dask, "worker", *file, "--nthreads", "1", "--no-nanny", "--no-dashboard"]) for _ in range(2)]
    try:
        from distributed import Client

        with Client(scheduler_file=str(tmp_path / "scheduler.json"), timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
            yield client.scheduler.address, workers
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


def test_what_a_dask_worker_that_dies_had_is_run_again(
    tmp_path, log_path, prepared, small_options, dask_scheduler, monkeypatch
):
    address, workers = dask_scheduler
    add, added = Pool.submit, []

    def submit_and_kill(pool, *words):
        added.append(words)
        future = add(pool, *words)
        if len(added) == 20:
            workers[0].send_signal(signal.SIGKILL)
        return future

    monkeypatch.setattr(Pool, "submit", submit_and_kill)
    options = dataclasses.replace(small_options, kernels="numpy")  # slower, so that the worker dies with tasks in hand
    prepare(log_path, tmp_path / "out", options, executor=ExecutorChoice("dask", address), chunk_bytes=20_000)
    assert len(added) > 40
    assert workers[0].wait() == -signal.SIGKILL
    assert workers[1].poll() is None
    assert contents(tmp_path / "out") == contents(prepared)


@pytest.mark.parametrize("ranks", [2, 3])
def test_mpi_ranks_give_the_same_bytes(
    tmp_path, log_path, small_options, command_environment, mpirun, ranks, monkeypatch
):
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    command += [sys.executable, "-P", "-m", "mpi4py.futures", "-m", "data_prep"]
    command += ["prepare", os.path.relpath(log_path, tmp_path), "out", "--executor", "mpi"]
    command += ["prepare.min_count=3", "prepare.shuffle_window_rows=500", "prepare.integer_buckets=false"]
    command += ["prepare.numeric_transform=log1p"]
    run_program(*command, cwd=tmp_path, env=command_environment, timeout=300)
    for of_this_run in ("report.html", "timing.json"):
        (tmp_path / "out" / of_this_run).unlink()
    monkeypatch.setattr("data_prep.options.prepare_options.BLOCK_ROWS", 1000)  # as in the other processes
    prepare(log_path, tmp_path / "here", small_options)
    assert contents(tmp_path / "out") == contents(tmp_path / "here")


@pytest.mark.parametrize(("kind", "module"), [("dask", "distributed"), ("mpi", "mpi4py")])
def test_a_missing_library_is_one_line_that_says_what_to_install(monkeypatch, kind, module):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"{module}.MPI", raising=False)
    message = rf"--executor {kind} needs {module} \(.*\); install it: pip install '\.\[{kind}\]'"
    with pytest.raises(OSError, match=message), Pools(ExecutorChoice(kind)).open(2):
        pass


@pytest.mark.parametrize(
    ("choice", "module", "message"),
    [
        (ExecutorChoice("mpi"), "mpi4py.MPI", r"mpirun -n 3 python -m mpi4py.futures .*found 1 rank"),
        (
            ExecutorChoice("dask", "tcp://127.0.0.1:9"),
            "distributed",
            r"no Dask scheduler answers at tcp://127.0.0.1:9 .*; start one: dask scheduler",
        ),
    ],
    ids=["mpi", "dask"],
)
def test_workers_that_are_not_there_are_one_line_that_says_how_to_start(monkeypatch, choice, module, message):
    pytest.importorskip(module)
    monkeypatch.setattr("data_prep.execution.tasks._ANSWER_SECONDS", 1)
    started = time.monotonic()
    with pytest.raises(OSError, match=message), Pools(choice).open(2):
        pass
    assert time.monotonic() - started < 60


def test_a_scheduler_is_for_dask_alone():
    with pytest.raises(ValueError, match="--scheduler tcp://a:1 is for --executor dask; found --executor mpi"):
        ExecutorChoice("mpi", "tcp://a:1")


@pytest.mark.parametrize(
    ("by", "kind", "words"),
    [
        (signal.SIGSEGV, OSError, "a worker crashed by SIGSEGV.* `ulimit -f`"),
        (signal.SIGKILL, MemoryError, "a worker was killed .* lack of memory.* prepare.workers=1"),
    ],
)
def test_a_worker_that_dies_is_reported_by_its_signal(by, kind, words):
    workers = Pools(ExecutorChoice())
    with closing(workers), pytest.raises(kind, match=words), workers.open(2) as pool:
        pool.submit(signal.raise_signal, by).result()


def test_a_script_that_its_workers_run_again_is_named_as_the_cause(tmp_path, command_environment):
    script = tmp_path / "script.py"
    script.write_text(
        "from data_prep.execution.tasks import Pools\n"
        "from data_prep.options.executor import ExecutorChoice\n"
        "with Pools(ExecutorChoice()).open(2) as pool:\n"
        "    pool.submit(print).result()\n"
    )
    last = run_python(script, env=command_environment, status=1).stderr.splitlines()[-1]
    assert "OSError: a worker ended with status 1 " in last and '`if __name__ == "__main__":`' in last


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_while_workers_start_is_one_line(tmp_path, log_path, command_environment, number):
    output = tmp_path / "out"
    command = [sys.executable, "-m", "data_prep", "prepare", str(log_path), str(output), "prepare.workers=2"]
    command.append("prepare.memory_limit=1 GiB")  # MindSpore is not imported yet
    with subprocess.Popen(
        command, env=command_environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        job = partial_folder(output) / "work" / "counts.job"  # written just before the workers are started
        while not job.exists():
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(0.1)
        os.killpg(process.pid, number)
        errors = process.communicate()[1]
    assert process.returncode == 128 + number
    lines = [line for line in errors.replace("\r", "\n").splitlines() if line and "counts:" not in line]
    assert lines == ["settings: configs/auto.yaml", f"stopped by {number.name}; the same command resumes"]
