import logging
import os

import pytest

from app.config import device
from app.config.device import DeviceOptions
from tests.programs import run_python


def test_the_cpu_can_be_selected_by_name_and_by_auto(cpu):
    assert cpu == "CPU"
    assert device.select_device(DeviceOptions(target="CPU")) == "CPU"


def test_a_target_that_cannot_be_loaded_is_reported_in_one_line(command_environment):
    program = """
from app.config.device import DeviceOptions, select_device
try:
    select_device(DeviceOptions(target="GPU"))
except ValueError as error:
    print(error)
"""
    done = run_python("-c", program, env=command_environment)
    if not done.stdout:
        pytest.skip("this machine has the target GPU")
    (line,) = done.stdout.splitlines()
    assert line.startswith("device.target=GPU cannot be used here: ")
    assert line.endswith("Choose device.target=CPU or auto.")


def test_threads_are_set_for_openmp(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    device.prepare_environment(DeviceOptions(threads=3))
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_no_threads_given_are_all_that_this_process_may_use():
    assert DeviceOptions(threads=0).num_threads == len(os.sched_getaffinity(0))
    assert DeviceOptions(threads=5).num_threads == 5


def test_only_unwanted_records_are_dropped_and_only_within(cpu):
    import mindspore.log

    logger, seen = mindspore.log._get_logger(), []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    logger.addHandler(handler)
    try:
        with device.deprecations_silenced():
            logger.warning("'FTRL' is deprecated from version 2.8.0 and will be removed")
            logger.warning("something else")
        logger.warning("'FTRL' is deprecated from version 2.8.0 and will be removed")
    finally:
        logger.removeHandler(handler)
    assert [message.split()[0] for message in seen] == ["something", "'FTRL'"]


INTERRUPTED_IMPORT = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests in its background has it ignored

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == "mindspore.common":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
from app.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_while_mindspore_is_imported_ends_as_at_any_other_time(tiny_dataset, tmp_path, command_environment):
    words = ("-c", INTERRUPTED_IMPORT, "train", "--dry-run", "--dataset", tiny_dataset)
    done = run_python(*words, cwd=tmp_path, env=command_environment, status=130)
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("stopped by Ctrl-C")
