"""benchmarks.end_to_end.cores: Amdahl's law by hand, and the cores of child processes."""

import os
import subprocess
import sys

import pytest

from benchmarks.end_to_end.cores import on_cores, seconds_alone, serial_share, speedup


@pytest.mark.parametrize(
    ("one", "many", "cores", "share"), [(10, 5, 2, 0), (10, 10, 2, 1), (10, 6, 2, 0.2), (10, 4, 4, 0.2)]
)
def test_share_follows_amdahl(one, many, cores, share):
    assert serial_share(one, many, cores) == pytest.approx(share)
    assert speedup(share, cores) == pytest.approx(one / many)


def test_children_have_one_core():
    before = os.sched_getaffinity(0)
    with on_cores(1):
        code = "import os; print(len(os.sched_getaffinity(0)))"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"1\n"
    assert os.sched_getaffinity(0) == before


def test_sleep_counts_as_alone():
    sleep = [sys.executable, "-c", "import time; time.sleep(0.5)"]
    assert seconds_alone(lambda: subprocess.run(sleep, check=True)) > 0.3
