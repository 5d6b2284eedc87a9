import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import closing

import numpy as np
import psutil
import pytest

import data_prep.pipeline.chunk_tasks
from data_prep.execution.pieces import Pieces
from data_prep.execution.tasks import Pool, Pools, job_name, map_in_order, numbered, read_ahead, tasks_ahead
from data_prep.options.executor import ExecutorChoice
from tests.damage import flip_bit

# The functions of this file are imported by worker processes, which run what the preparation's workers run.
WORKERS_RUN = (data_prep.pipeline.chunk_tasks.ChunkCounter.count, data_prep.pipeline.chunk_tasks.Encoder.encode)


TITLE = "numbers"
LARGE = 1 << 30  # of a task: as few as possible are under way


def late_at_first(number):
    time.sleep(0.3 if number == 0 else 0)
    return {"one": (number, os.getpid())}


def imported_heavy_modules(_):
    return {"one": sorted({name.split(".")[0] for name in sys.modules} & {"mindspore", "pyarrow", "pandas", "tqdm"})}


def make_arrays(number):
    arrays = [np.arange(number * 1000), np.full((number, 3), number, np.float32)]
    return {"name": str(number), "one": (np.empty(0), arrays)}


def fail_at_3(number):
    if number == 3:
        raise ValueError("number 3")
    return {"one": number}


def sleep(seconds):
    time.sleep(seconds)
    return {"one": seconds}


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run_in_parts(function, tasks, num_workers, folder, needed=("one",)):
    pieces = Pieces(folder)
    with closing(Pools(ExecutorChoice())) as pools, pools.open(num_workers) as pool:
        if pool is not None:
            pieces.write(job_name(TITLE), pool.job_id)
        yield from map_in_order(function, tasks, pool, pieces, TITLE, lambda _: needed, LARGE)


def run(function, tasks, num_workers, folder):
    for read in run_in_parts(function, tasks, num_workers, folder):
        yield read("one")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_come_in_the_tasks_order(tmp_path, num_workers):
    results = list(run(late_at_first, range(20), num_workers, tmp_path))
    assert [number for number, _ in results] == list(range(20))
    assert (os.getpid() in {process for _, process in results}) == (num_workers == 1)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_arrays_come_whole_and_in_parts(tmp_path, num_workers):
    for number, read in enumerate(list(run_in_parts(make_arrays, range(10), num_workers, tmp_path))):
        empty, arrays = read("one")
        assert empty.shape == (0,)
        assert np.array_equal(arrays[0], np.arange(number * 1000))
        assert np.array_equal(arrays[1], np.full((number, 3), number, np.float32))
        arrays[1][:] = 0  # the result is the receiver's own
    assert Pieces(tmp_path).read(numbered(TITLE, 7, "name")) == "7"


@pytest.mark.parametrize("num_workers", [1, 2])
def test_what_an_ended_run_left_is_not_computed_again(tmp_path, num_workers):
    list(run(make_arrays, range(4), num_workers, tmp_path))
    Pieces(tmp_path).remove(numbered(TITLE, 2, "name"))  # not needed
    Pieces(tmp_path).remove(numbered(TITLE, 3, "one"))
    with pytest.raises(ValueError, match="number 3"):
        list(run(fail_at_3, range(4), num_workers, tmp_path))


def test_a_damaged_result_is_computed_again(tmp_path):
    list(run(make_arrays, range(4), 1, tmp_path))
    flip_bit(tmp_path / numbered(TITLE, 2, "one"))
    results = list(run(make_arrays, range(4), 1, tmp_path))
    assert results[2][1][1].tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize("num_workers", [1, 2])
def test_few_tasks_are_taken_ahead_of_the_results(tmp_path, num_workers):
    taken = []
    results = run(sleep, (taken.append(number) or 0 for number in range(1000)), num_workers, tmp_path)
    assert next(results) == 0
    time.sleep(0.2)
    assert len(taken) <= {1: 2, 2: 6}[num_workers]  # the one whose result is used, those that wait, one in hand
    results.close()


def test_few_tasks_are_undone_however_many_results_wait(tmp_path):
    """A task that is not done may hold its lines in memory."""
    taken = []
    pieces = Pieces(tmp_path)
    with closing(Pools(ExecutorChoice())) as pools, pools.open(2) as pool:
        pieces.write(job_name(TITLE), pool.job_id)
        tasks = (taken.append(number) or (0 if number < 50 else 1) for number in range(1000))
        with closing(map_in_order(sleep, tasks, pool, pieces, TITLE, lambda _: ("one",), 1)) as results:
            next(results)
            while len(taken) < 50:
                time.sleep(0.01)
            time.sleep(0.2)
            assert len(taken) <= 50 + 2 * 2 + 1


class OneResult:
    """An executor that runs the first task, and never another."""

    def __init__(self):
        self.futures = []

    def submit(self, function, *words):
        self.futures.append(Future())
        if len(self.futures) == 1:
            function(*words)
            self.futures[0].set_result(None)
        return self.futures[-1]


def test_waiting_tasks_are_cancelled_when_a_reading_ends(tmp_path):
    executor, pieces = OneResult(), Pieces(tmp_path)
    pieces.write(job_name(TITLE), tmp_path.name)
    results = map_in_order(
        make_arrays, range(9), Pool(executor, 1, tmp_path.name), pieces, TITLE, lambda _: ("one",), LARGE
    )
    next(results)
    while len(executor.futures) < 3:
        time.sleep(0.01)
    results.close()
    assert all(future.cancelled() for future in executor.futures[1:])


def test_workers_go_as_far_ahead_as_a_window_of_rows_takes():
    pool = Pool(None, 2, "job")
    assert tasks_ahead(8 << 20, pool) == 32
    assert tasks_ahead(1 << 30, pool) == 4
    assert tasks_ahead(8 << 20, None) == 1


def test_workers_are_the_same_for_all_readings_with_as_many(tmp_path):
    with closing(Pools(ExecutorChoice())) as pools:
        processes = []
        for num_workers in (2, 2, 3, 1):
            with pools.open(num_workers) as pool:
                processes.append({pool.executor.submit(os.getpid).result()} if pool else {os.getpid()})
                processes[-1] |= set(pool.executor._processes) if pool else set()
        assert processes[0] == processes[1]
        assert not processes[1] & processes[2]
        assert processes[3] == {os.getpid()}


def test_workers_import_neither_mindspore_nor_what_only_the_main_process_needs(tmp_path):
    assert list(run(imported_heavy_modules, range(4), 2, tmp_path)) == [[]] * 4


@pytest.mark.parametrize("seen", [None, "another job"])
def test_a_worker_that_does_not_see_the_folder_is_reported(tmp_path, seen):
    pieces = Pieces(tmp_path)
    pieces.write(job_name(TITLE), seen)
    with (
        closing(Pools(ExecutorChoice())) as pools,
        pools.open(2) as pool,
        pytest.raises(OSError, match=r"does not see .*a file system that all workers share"),
    ):
        list(map_in_order(sleep, [0], pool, pieces, TITLE, lambda _: ("one",), LARGE))


def test_workers_end_when_their_parent_is_killed(tmp_path, project, command_environment):
    program = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); from test_tasks import run, sleep\n"
    program += (
        "for _ in run(sleep, iter([0, 0, 1000, 1000]), 2, pathlib.Path(sys.argv[2])): print('result', flush=True)"
    )
    command = [sys.executable, "-c", program, str(project / "tests" / "data_prep" / "execution"), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=command_environment) as parent:
        assert parent.stdout.readline() == b"result\n"
        workers = psutil.Process(parent.pid).children()
        assert len(workers) >= 2
        parent.kill()
    give_up = time.monotonic() + 60
    while any(is_alive(process) for process in workers):
        assert time.monotonic() < give_up
        time.sleep(0.05)


def numbers(count, taken, closed=None):
    try:
        for number in range(count):
            taken.append((number, threading.current_thread()))
            yield number
    finally:
        if closed is not None:
            closed.set()


@pytest.mark.parametrize("num_ahead", [1, 3, 1000])
def test_all_items_come_in_their_order_from_another_thread(num_ahead):
    taken = []
    assert list(read_ahead(numbers(100, taken), num_ahead)) == list(range(100))
    assert threading.current_thread() not in {thread for _, thread in taken}


@pytest.mark.parametrize("num_ahead", [1, 3])
def test_so_many_are_taken_while_the_user_is_busy(num_ahead):
    taken = []
    with closing(read_ahead(numbers(100, taken), num_ahead)) as items:
        for used in range(1, 4):
            next(items)
            give_up = time.monotonic() + 60
            while len(taken) < used + num_ahead:
                assert time.monotonic() < give_up
                time.sleep(0.001)
            time.sleep(0.02)
            assert len(taken) == used + num_ahead


def test_an_error_comes_in_its_place():
    def failing():
        yield from range(3)
        raise OSError("no more")

    items, found = read_ahead(failing(), 10), []
    with pytest.raises(OSError, match="no more"):
        for item in items:
            time.sleep(0.01)
            found.append(item)
    assert found == [0, 1, 2]


@pytest.mark.parametrize("num_used", [1, 100])
def test_closing_ends_the_thread_and_closes_what_it_read(num_used):
    closed, before = threading.Event(), threading.active_count()
    items = read_ahead(numbers(100, [], closed), 2)
    for _ in range(num_used):
        next(items)
    items.close()
    assert closed.is_set()
    assert threading.active_count() == before


def test_a_signal_stops_the_waiting(monkeypatch):
    class Stop(BaseException):
        pass

    def stop():
        raise Stop

    wanted = threading.Event()

    def slow():
        wanted.wait(60)
        yield 1

    monkeypatch.setattr("data_prep.execution.tasks.check_stop", stop)
    threading.Timer(1.0, wanted.set).start()  # the thread is waited for
    with pytest.raises(Stop):
        next(read_ahead(slow(), 1))
