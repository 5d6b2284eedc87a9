import os
import signal
import subprocess
import sys

import pytest

from app.stopping import Stopped, StopRequest


class Clock:
    """Seconds that pass when told."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_nothing_asked_for_is_nothing_raised():
    with StopRequest(0) as stop:
        stop.check()


@pytest.mark.parametrize(("number", "exit_status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_raised_by_the_next_check(number, exit_status):
    before = signal.getsignal(number)
    with StopRequest(0) as stop:
        os.kill(os.getpid(), number)
        with pytest.raises(Stopped, match=f"{number.name} was received") as error:
            stop.check()
        assert error.value.exit_status == exit_status
        assert signal.getsignal(number) == signal.SIG_DFL  # the second one
    assert signal.getsignal(number) == before


def test_a_handler_that_was_put_in_place_is_replaced_at_the_next_check():
    """As MindSpore does when it compiles a graph."""
    with StopRequest(0) as stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stop.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Stopped, match="SIGINT"):
            stop.check()


TWO_SIGNALS = """
import os, signal
from app.stopping import StopRequest
with StopRequest(0):
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    print("still here")
"""


def test_a_second_signal_quits_at_once(command_environment):
    done = subprocess.run(
        [sys.executable, "-c", TWO_SIGNALS], env=command_environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "")


def test_the_time_limit_leaves_room_for_a_step_and_a_save():
    clock = Clock()
    stop = StopRequest(time_limit_minutes=10, clock=clock)  # 60 s are kept for a save that was never timed
    for _ in range(52):
        clock.now += 10
        stop.check()
    clock.now += 10
    with pytest.raises(Stopped, match=r"train\.time_limit=10 minutes are up") as error:
        stop.check()  # at 530 s: two steps of 10 s and the save would end at 610
    assert error.value.exit_status == 0


def test_a_timed_save_counts_twice():
    clock = Clock()
    stop = StopRequest(time_limit_minutes=10, clock=clock)
    stop.note_save(seconds=200)
    clock.now += 60
    stop.check()  # 60 + 2 * 60 + 400 <= 600
    clock.now += 61
    with pytest.raises(Stopped):
        stop.check()
