import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

import data_prep.encode
import data_prep.statistics
from data_prep.executors import map_in_order

# The functions of this file are imported by worker processes, which run what the preparation's workers run.
WORKERS_RUN = (data_prep.statistics.ChunkCounter.count, data_prep.encode.Encoder.encode_chunk)


def late_at_first(number):
    time.sleep(0.3 if number == 0 else 0)
    return number, os.getpid()


def imported_heavy_modules(_):
    return sorted({name.split(".")[0] for name in sys.modules} & {"mindspore", "pyarrow", "pandas", "tqdm"})


def make_arrays(number):
    return str(number), np.empty(0), [np.arange(number * 1000), np.full((number, 3), number, np.float32)]


def fail_at_3(number):
    if number == 3:
        raise ValueError("number 3")
    return number


def end_process(_):
    os._exit(9)


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_come_in_the_tasks_order(tmp_path, num_workers):
    results = list(map_in_order(late_at_first, range(20), num_workers, tmp_path))
    assert [number for number, _ in results] == list(range(20))
    processes = {process for _, process in results}
    assert (os.getpid() in processes) == (num_workers == 1)


def test_arrays_come_whole_and_leave_no_file(tmp_path):
    results = list(map_in_order(make_arrays, range(10), 2, tmp_path))
    for number, (name, empty, arrays) in enumerate(results):
        assert name == str(number)
        assert empty.shape == (0,)
        assert np.array_equal(arrays[0], np.arange(number * 1000))
        assert np.array_equal(arrays[1], np.full((number, 3), number, np.float32))
        arrays[1][:] = 0  # the result is the receiver's own
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("num_workers", [1, 2])
def test_few_tasks_are_taken_ahead_of_the_results(tmp_path, num_workers):
    taken = []
    results = map_in_order(abs, (taken.append(number) or number for number in range(1000)), num_workers, tmp_path)
    assert next(results) == 0
    assert len(taken) <= 2 * num_workers
    results.close()


def test_workers_import_neither_mindspore_nor_what_only_the_main_process_needs(tmp_path):
    assert list(map_in_order(imported_heavy_modules, range(4), 2, tmp_path)) == [[]] * 4


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_error_in_a_task_reaches_the_caller(tmp_path, num_workers):
    with pytest.raises(ValueError, match="number 3"):
        list(map_in_order(fail_at_3, range(1000), num_workers, tmp_path))


def test_a_worker_that_dies_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(MemoryError, match=r"ended from outside.*prepare.workers=1"):
        list(map_in_order(end_process, range(10), 2, tmp_path))


def test_workers_end_when_their_parent_is_killed():
    program = "import pathlib, time; from data_prep.executors import map_in_order\n"
    program += "results = map_in_order(time.sleep, iter([0, 0, 1000, 1000]), 2, pathlib.Path())\n"
    program += "for _ in results: print('result', flush=True)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"result\n"
        workers = psutil.Process(parent.pid).children()
        assert len(workers) >= 2
        parent.kill()
    give_up = time.monotonic() + 60
    while any(is_alive(process) for process in workers):
        assert time.monotonic() < give_up
        time.sleep(0.05)
