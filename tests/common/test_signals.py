import signal
import subprocess
import sys

import pytest

from common.process import raise_again
from common.signals import StopSignal, check_stop, children_without_interrupt, die_quietly, stop_by_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_the_next_safe_place(number):
    before = signal.getsignal(number)
    with pytest.raises(StopSignal) as stop, stop_by_signals():
        check_stop()
        signal.raise_signal(number)
        reached = True  # not stopped here
        assert signal.getsignal(number) == signal.SIG_DFL  # a second one ends the process
        check_stop()
    assert reached
    assert (stop.value.name, stop.value.exit_status) == (number.name, 128 + number)
    assert signal.getsignal(number) == before
    with stop_by_signals():
        check_stop()


def test_children_do_not_get_ctrl_c():
    program = "import time; print('ready', flush=True); time.sleep(0.5)"
    with children_without_interrupt():
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with child:
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait() == 0


@pytest.mark.parametrize("module", ["app", "data_prep", "app.cli.predict", "app.cli.fold"])
def test_ctrl_c_while_modules_are_imported_shows_no_traceback(command_environment, module):
    command = [sys.executable, "-P", "-X", "importtime", "-m", module, "--help"]  # each import is a line of stderr
    quiet = {"env": command_environment, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **quiet) as process:
        assert any(line.endswith("common.packages\n") for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == -signal.SIGINT


def test_a_program_that_ignores_ctrl_c_still_does():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        die_quietly()
        raise_again()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
