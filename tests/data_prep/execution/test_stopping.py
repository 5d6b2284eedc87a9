import os
import signal
import subprocess
import sys
import time

import pytest

from data_prep.execution.prepared_folder import partial_folder
from data_prep.execution.stopping import Stopped, check_stop, children_without_interrupt, stop_by_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_the_next_safe_place(number):
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stop, stop_by_signals():
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
    assert lines == [f"stopped by {number.name}; the same command resumes"]
