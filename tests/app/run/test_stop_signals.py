import os
import signal
import time

import pytest

from app.run.stop_signals import Stopped, StopRequest
from tests.programs import run_python


class Clock:
    """Seconds that pass when told."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_nothing_asked_for_is_nothing_raised():
    with StopRequest(0) as stop:
        stop.check()


def check_until_it_stops(stop):
    """Another thread takes the signal."""
    for _ in range(1000):
        stop.check()
        time.sleep(0.005)


@pytest.mark.parametrize(("number", "exit_status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_raised_by_a_check(number, exit_status):
    before, mask = signal.getsignal(number), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with StopRequest(0) as stop:
        os.kill(os.getpid(), number)
        with pytest.raises(Stopped, match=f"{number.name} was received") as error:
            check_until_it_stops(stop)
        assert error.value.exit_status == exit_status
    assert signal.getsignal(number) == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


def test_a_handler_that_was_put_in_place_is_not_called_again_after_a_check():
    """By threads that do not hold signals, as those of pytest."""
    with StopRequest(0) as stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stop.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Stopped, match="SIGINT"):
            check_until_it_stops(stop)


def run_program(program, environment):
    return run_python("-c", program, env=environment, timeout=60, status=None)


FOREIGN_HANDLER = """
import os, signal, time
from app.run.stop_signals import Stopped, StopRequest

def handler(*_):
    os.kill(os.getpid(), signal.SIGTERM)

with StopRequest(0) as stop:
    signal.signal(signal.SIGINT, handler)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.5)
    try:
        stop.check()
    except Stopped as stopped:
        print(stopped, stopped.exit_status)
"""


def test_a_handler_that_turns_ctrl_c_into_sigterm_is_never_called(command_environment):
    """MindSpore's, while a graph runs."""
    assert run_program(FOREIGN_HANDLER, command_environment).stdout == "SIGINT was received 130\n"


HELD = """
import os, signal, time
from app.config.device import held
try:
    with held():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        print("done")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_that_is_held_comes_at_the_end_of_the_block(command_environment):
    assert run_program(HELD, command_environment).stdout == "done\ninterrupted\n"


TWO_SIGNALS = """
import os, signal, time
from app.run.stop_signals import StopRequest
with StopRequest(0):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
    print("still here", flush=True)
"""


def test_a_second_signal_quits_at_once(command_environment):
    done = run_program(TWO_SIGNALS, command_environment)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "")


def test_the_time_limit_leaves_room_for_a_step_and_a_save():
    clock = Clock()
    with StopRequest(10, clock) as stop:  # 60 s are kept for a save that was never timed
        for _ in range(52):
            clock.now += 10
            stop.check()
        clock.now += 10
        with pytest.raises(Stopped, match=r"train\.time_limit=10 minutes are up") as error:
            stop.check()  # at 530 s: two steps of 10 s and the save would end at 610
    assert error.value.exit_status == 0


def test_a_timed_save_counts_twice():
    clock = Clock()
    with StopRequest(10, clock) as stop:
        stop.note_save(seconds=200)
        clock.now += 60
        stop.check()  # 60 + 2 * 60 + 400 <= 600
        clock.now += 61
        with pytest.raises(Stopped):
            stop.check()
