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


@pytest.mark.parametrize("is_loaded", [False, True])
def test_threads_are_set_before_mindspore_is_imported(monkeypatch, is_loaded):
    monkeypatch.setattr(device, "has_loaded_mindspore", lambda: is_loaded)
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    device.prepare_environment(DeviceOptions(threads=3))
    assert os.environ["OMP_NUM_THREADS"] == ("77" if is_loaded else "3")


def test_mindspore_s_threads_are_kept_unless_others_are_set(monkeypatch, caplog):
    monkeypatch.setattr(device, "has_loaded_mindspore", lambda: True)
    monkeypatch.setenv("OMP_NUM_THREADS", "77,2")
    caplog.set_level(logging.INFO)
    for _ in range(2):
        device.check_threads(DeviceOptions(threads=77))
        device.check_threads(DeviceOptions())
    assert [record.args for record in caplog.records] == [(77,)]
    with pytest.raises(ValueError, match=r"device.threads=3 .* with 77 threads, .* another process"):
        device.check_threads(DeviceOptions(threads=3))


SHARED_PROCESS = """
import ctypes, sys
import mindspore as ms, numpy as np
from app import evaluate, train
from app.config.device import DeviceOptions, _set_math_mode, select_device

_set_math_mode("TF32")
(ms.Tensor(np.ones(2, np.float32)) + ms.Tensor(np.ones(2, np.float32))).asnumpy()
onednn = ctypes.CDLL("libdnnl.so.3", mode=4)

def state():
    mode = ctypes.c_int()
    onednn.dnnl_get_default_fpmath_mode(ctypes.byref(mode))
    return ms.get_context("mode"), mode.value

def fail(run, values):
    print(run.path.name, state())
    1 / 0

config, dataset, folder = sys.argv[1:]
for precision in ("bfloat16", "float32", "auto"):
    try:
        train(config, dataset, f"{folder}/{precision}", on_step=fail, device={"precision": precision},
              train={"log_every_steps": 1})
    except ZeroDivisionError:
        print("after", state())
train(config, dataset, f"{folder}/whole")
evaluate(f"{folder}/whole")
print("after", state())
try:
    select_device(DeviceOptions(target="GPU"))
except ValueError as error:
    print(error)
"""


def test_a_process_with_other_models_trains_and_keeps_its_modes(tiny_dataset, project, tmp_path, command_environment):
    words = ("-c", SHARED_PROCESS, project / "configs/tiny.yaml", tiny_dataset, tmp_path)
    lines = run_python(*words, env=command_environment).stdout.splitlines()
    rounds = int(bool(device.cpu_flags() & device.MATH_MODE_FLAGS))
    modes = dict.fromkeys(line for line in lines if line.startswith(("bfloat16", "float32")))
    assert list(modes) == [f"bfloat16 (0, {rounds})", "float32 (0, 0)"]
    assert [line for line in lines if line.startswith("after")] == ["after (1, 4)"] * 4
    assert lines[-1].startswith("device.target=GPU cannot be used here: this process runs MindSpore on CPU already")


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
    environment = command_environment | {device.GRAPH: "1"}  # Native kernels would need no MindSpore.
    done = run_python(*words, cwd=tmp_path, env=environment, status=130)
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("stopped by Ctrl-C")
