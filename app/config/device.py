"""Define the section device of a run's settings, select MindSpore's device, and set the environment variables that
MindSpore, oneDNN and OpenMP read when they are imported.
"""

from __future__ import annotations

import functools
import glob
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from common.native_library import SLEEP, WAIT_POLICY, let_idle_threads_sleep, loaded_library
from common.process import held, num_cores
from common.settings import Bounds, Checked

log = logging.getLogger(__name__)

CPU_INFO = Path("/proc/cpuinfo")

# Flags in /proc/cpuinfo of processors with instructions that multiply bfloat16 (bf16 is Arm's flag), and the flags with
# which oneDNN's math mode BF16 uses these instructions.
BFLOAT16_FLAGS, MATH_MODE_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}, {"amx_bf16", "bf16"}

# Device files of which at least one exists if an Ascend or a GPU (the last one in WSL) can be used on this machine.
ACCELERATOR_FILES = "/dev/davinci*", "/dev/nvidia*", "/dev/dxg"

# File name of the oneDNN library that MindSpore ships, the environment variable that sets the library's default math
# mode, and the numbers of the modes in its enumeration dnnl_fpmath_mode_t.
ONEDNN, ONEDNN_MATH_MODE = "libdnnl.so.3", "ONEDNN_DEFAULT_FPMATH_MODE"
MATH_MODES = {"STRICT": 0, "BF16": 1, "F16": 2, "ANY": 3, "TF32": 4}
# Name of an environment variable for debugging. If it is set, the tower runs as a MindSpore graph on a CPU too. By
# default, native kernels compute a whole training step on a CPU, if they support the model (ReLU, no batch
# normalization, no distinct first layer) and its optimizers (FTRL, Adam).
GRAPH = "WIDE_DEEP_GRAPH"


Target = Literal["auto", "CPU", "GPU", "Ascend"]

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class DeviceOptions(Checked):
    """The device that computes the tower (the dense layers), its precision, and the number of threads on the host."""

    target: Target = "auto"  # auto: Ascend if there is one, else GPU, else CPU.
    # The number of threads on the host (the CPU). 0 takes every core that this process may use (affinity mask and CPU
    # quota), shared evenly with the other ranks of the training on this host.
    threads: Annotated[int, Bounds(least=0, expected="0 (all cores) or more")] = 0
    # The precision of the tower. float32: all numbers are float32. bfloat16: the inputs of the tower's matrix products
    # are rounded to bfloat16, and all other numbers stay float32. auto: before the first training of a tower of this
    # size, both precisions are timed on the CPU, and the faster one is used. A resumed run keeps its precision.
    precision: Precision = "float32"

    @property
    def num_threads(self) -> int:
        """Number of threads of this process on the host. By default, the ranks on a host divide its cores evenly."""
        local_ranks = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1))
        return self.threads or max(1, num_cores() // local_ranks)


def prepare_environment(options: DeviceOptions) -> None:
    """Set the environment variables that oneDNN, OpenMP and MindSpore read when they are loaded.

    Call it before `import mindspore`. If this process has loaded the libraries already, it still makes OpenMP's idle
    threads sleep and sets oneDNN's precision, but MindSpore keeps the number of threads that it was imported with.
    """
    let_idle_threads_sleep()
    os.environ.setdefault(WAIT_POLICY, SLEEP)
    if not has_loaded_mindspore():
        os.environ["OMP_NUM_THREADS"] = str(options.num_threads)
    # On a CPU, oneDNN computes the matrix products of MindSpore's own operators. In its math mode BF16 it rounds their
    # float32 inputs to bfloat16.
    rounds = options.precision == "bfloat16" and cpu_flags() & MATH_MODE_FLAGS
    _set_math_mode("BF16" if rounds else None)


def _set_math_mode(mode: str | None) -> None:
    """Set oneDNN's default math mode, such as BF16, in the environment, and in oneDNN if this process has loaded it.

    None stands for the mode STRICT, in which oneDNN rounds no inputs.
    """
    if mode is None:
        os.environ.pop(ONEDNN_MATH_MODE, None)
    else:
        os.environ[ONEDNN_MATH_MODE] = mode
    if onednn := loaded_library(ONEDNN):
        onednn.dnnl_set_default_fpmath_mode(MATH_MODES.get((mode or "").upper(), 0))


@contextmanager
def process_restored() -> Iterator[None]:
    """Restore MindSpore's execution mode and oneDNN's math mode when the `with` block ends, also after an error.

    A notebook or program that calls this project may run other models in the same process.
    """

    def execution_mode() -> int | None:
        return sys.modules["mindspore"].get_context("mode") if sys.modules.get("mindspore") else None

    before, math_mode = execution_mode(), os.environ.get(ONEDNN_MATH_MODE)
    try:
        yield
    finally:
        _set_math_mode(math_mode)
        if execution_mode() not in (None, before):
            import mindspore as ms

            ms.set_context(mode=ms.PYNATIVE_MODE if before is None else before)


def check_threads(options: DeviceOptions) -> None:
    """Raise ValueError if this process has imported MindSpore with another number of threads than `options` set.

    If `options` set no number of threads, MindSpore's operators keep the number that MindSpore was imported with. The
    first call in which that number differs from the default (the host's cores divided by the ranks on the host) logs a
    line about it.
    """
    imported = re.match(r"\s*(\d+)", os.environ.get("OMP_NUM_THREADS", ""))
    threads = int(imported[1]) if imported else num_cores()
    if not has_loaded_mindspore() or threads == options.num_threads:
        return
    if options.threads:
        raise ValueError(
            f"device.threads={options.threads} cannot be set here: this process has imported MindSpore with {threads} "
            "threads, which it reads once; leave device.threads=0, or use another process (in a notebook: restart the "
            "kernel)"
        )
    _say_threads(threads)


@functools.cache
def _say_threads(threads: int) -> None:
    log.info("MindSpore's operators use %d threads, with which this process imported it (device.threads=0)", threads)


def has_loaded_mindspore() -> bool:
    """Return True if this process has imported MindSpore, or a library of it for MindRecord files, which loads OpenMP
    too.
    """
    return bool({"mindspore", "mindspore._c_mindrecord", "mindspore._c_dataengine"} & sys.modules.keys())


def cpu_flags() -> set[str]:
    """Return the words of /proc/cpuinfo, such as `avx512f`, which include the features of this machine's processor.

    Return an empty set if the file cannot be read.
    """
    try:
        return set(CPU_INFO.read_text(encoding="utf-8").split())
    except OSError:
        return set()


def select_device(options: DeviceOptions) -> str:
    """Switch MindSpore to graph mode, select its device as `options.target` asks, and return the device's name.

    Raise ValueError, with a message of one line, if MindSpore cannot use the device on this machine.
    """
    with held():  # Signals are deferred, because Python aborts if it ends while MindSpore is half imported.
        import mindspore as ms

        ms.set_context(mode=ms.GRAPH_MODE)
        if in_use := _device_in_use():
            if options.target in ("auto", in_use):
                return in_use
            raise ValueError(
                f"device.target={options.target} cannot be used here: this process runs MindSpore on {in_use} already, "
                f"which it cannot change. Choose device.target={in_use} or auto, or use another process."
            )
        candidates = ("Ascend", "GPU", "CPU") if options.target == "auto" else (options.target,)
        for target in candidates:
            try:
                # Drop the log messages of MindSpore, which are pages long if a driver is missing. The ValueError below
                # gives the reason.
                with records_dropped(lambda record: True):
                    ms.set_device(target)
            except (RuntimeError, ValueError) as error:
                reason = str(error).split(". ")[0]
                continue
            return target
    raise ValueError(f"device.target={options.target} cannot be used here: {reason}. Choose device.target=CPU or auto.")


def runs_on_cpu(options: DeviceOptions) -> bool:
    """Return True if the tower runs on a CPU. MindSpore is imported only if an accelerator may be used.

    Raise ValueError if MindSpore cannot use the device that `options.target` names on this machine.
    """
    is_certain = options.target == "CPU" or (options.target == "auto" and not any(map(glob.glob, ACCELERATOR_FILES)))
    if is_certain and sys.modules.get("mindspore") is None:
        return True
    return select_device(options) == "CPU"


def _device_in_use() -> str | None:
    """Return the name of the device that MindSpore already uses in this process and can no longer change, or None.

    MindSpore uses a device once it was selected, or once an operator has run on it.
    """
    from mindspore import get_context
    from mindspore._c_expression import DeviceContextManager, DeviceManagerConf

    if DeviceManagerConf.get_instance().is_device_enable():
        return str(DeviceManagerConf.get_instance().get_device_target())
    target = get_context("device_target")
    context = DeviceContextManager.get_instance().get_device_context(target)
    return target if context is not None and context.initialized() else None


def init_communication() -> None:
    """Give this rank (process) an Ascend or a GPU of its own, and initialize MindSpore's communication between
    ranks.
    """
    from mindspore import communication

    communication.init()


@contextmanager
def records_dropped(unwanted: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Suppress messages that MindSpore's Python code logs inside the `with` block, if `unwanted` returns True for
    them.
    """
    import mindspore.log

    logger = mindspore.log._get_logger()

    def wanted(record: logging.LogRecord) -> bool:
        return not unwanted(record)

    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


def deprecations_silenced() -> AbstractContextManager[None]:
    """Return a context manager, inside which MindSpore 2.10's deprecation warnings are dropped.

    MindSpore logs them at each use of FTRL and of its host operators. They do not matter, because this project requires
    exactly version 2.10.
    """
    return records_dropped(lambda record: "is deprecated from version" in record.getMessage())
