"""Contenders in processes of their own: they take steps, rest, and end."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.harness.contender import Contender

MODULE = """
def contender(part):
    def take_steps(count):
        print("a library prints this")
        if count == 0:
            raise SystemExit(3)
        return {part: float(count)}
    return take_steps
"""


@pytest.fixture
def contender(tmp_path, monkeypatch):
    (tmp_path / "taker.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    with closing(Contender("taker", "taker", ("part",), {})) as started:
        started.wait_until_ready()
        yield started


def process_state(contender):
    """T where it is stopped (proc(5))."""
    return Path(f"/proc/{contender._process.pid}/stat").read_text().rpartition(") ")[2][0]


def test_the_parts_of_each_turn_are_kept_whatever_is_printed(contender):
    contender.take_steps(2)
    contender.take_steps(3)
    assert contender.parts == [{"part": 2.0}, {"part": 3.0}]


def test_it_is_stopped_between_its_turns(contender):
    os.waitid(os.P_PID, contender._process.pid, os.WSTOPPED | os.WNOWAIT)
    assert process_state(contender) == "T"


def test_one_that_ends_is_an_error_with_its_status(contender):
    with pytest.raises(RuntimeError, match="taker ended with status 3"):
        contender.take_steps(0)


def test_it_ends_with_the_benchmark_although_it_is_stopped(contender):
    contender.close()
    assert contender._process.exitcode == -signal.SIGKILL
