"""Define the section device of a run's settings, select MindSpore's device, and set the environment variables that
MindSpore, oneDNN and OpenMP read when they are imported.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from common.process import held, num_cores
from common.settings import Bounds, Checked

log = logging.getLogger(__name__)

CPU_INFO = Path("/proc/cpuinfo")

# Flags in /proc/cpuinfo of processors with instructions that multiply bfloat16 (bf16 is Arm's flag), and the flags with
# which oneDNN's math mode BF16 uses these instructions.
BFLOAT16_FLAGS, MATH_MODE_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}, {"amx_bf16", "bf16"}

ONEDNN_MATH_MODE = "ONEDNN_DEFAULT_FPMATH_MODE"
# Name of an environment variable for debugging. If it is set, the tower runs as a MindSpore graph on a CPU too. By
# default, native kernels compute a whole training step on a CPU, if they support the model (ReLU, no batch
# normalization, no distinct first layer) and its optimizers (FTRL, Adam).
GRAPH = "WIDE_DEEP_GRAPH"


Target = Literal["auto", "CPU", "GPU", "Ascend"]

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class DeviceOptions(Checked):
    """The device that computes the tower, its precision, and the number of threads on the host."""

    target: Target = "auto"  # auto: Ascend if there is one, else GPU, else CPU.
    # The number of threads on the host. 0 takes every core that this process may use.
    threads: Annotated[int, Bounds(least=0, expected="0 (all cores) or more")] = 0
    # bfloat16: the inputs of the tower's matrix products are rounded to bfloat16, and all other numbers stay float32.
    # auto: before the first training of a tower of this size, both precisions are timed on the CPU, and the faster one
    # is used. A resumed run keeps its precision.
    precision: Precision = "float32"

    @property
    def num_threads(self) -> int:
        """Number of threads of this process on the host. By default, the ranks on a host divide its cores evenly."""
        local_ranks = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1))
        return self.threads or max(1, num_cores() // local_ranks)


def prepare_environment(options: DeviceOptions) -> None:
    """Set the environment variables that oneDNN, OpenMP and MindSpore read at import.

    Call it before `import mindspore`.
    """
    # By default, idle OpenMP threads spin on cores that MindSpore's own threads need. Lookups then take twice as
    # long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for name, value in _environment(options).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def check_environment(options: DeviceOptions) -> None:
    """Raise ValueError if this process has already imported MindSpore with other settings than `options` ask for.

    MindSpore reads the number of threads and the precision only once.
    """
    if not has_loaded_mindspore():
        return
    there: dict[str, str | None] = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(num_cores()))}
    there[ONEDNN_MATH_MODE] = os.environ.get(ONEDNN_MATH_MODE)
    for name, value in _environment(options).items():
        if there[name] != value:
            raise ValueError(
                f"device.threads={options.threads} and device.precision={options.precision} need {name}={value}, and "
                f"this process has imported MindSpore with {there[name]}, which it reads once; use another process (in "
                "a notebook: restart the kernel)"
            )


def has_loaded_mindspore() -> bool:
    """Return True if this process has imported MindSpore, or its MindRecord library, which loads OpenMP too."""
    return bool({"mindspore", "mindspore._c_mindrecord"} & sys.modules.keys())


def _environment(options: DeviceOptions) -> dict[str, str | None]:
    """Return the values of the environment variables that depend on the options, by name.

    None means that a variable must not be set.
    """
    # On a CPU, oneDNN computes the matrix products of MindSpore's own operators. In its math mode BF16 it rounds their
    # float32 inputs to bfloat16.
    rounds = options.precision == "bfloat16" and cpu_flags() & MATH_MODE_FLAGS
    return {"OMP_NUM_THREADS": str(options.num_threads), ONEDNN_MATH_MODE: "BF16" if rounds else None}


def cpu_flags() -> set[str]:
    """Return the words of /proc/cpuinfo, which include the features of this machine's processor."""
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
        candidates = ("Ascend", "GPU", "CPU") if options.target == "auto" else (options.target,)
        for target in candidates:
            try:
                # Drop MindSpore's log messages here: pages about missing drivers. The error below gives the reason.
                with records_dropped(lambda record: True):
                    ms.set_device(target)
            except (RuntimeError, ValueError) as error:
                reason = str(error).split(". ")[0]
                continue
            return target
    raise ValueError(f"device.target={options.target} cannot be used here: {reason}. Choose device.target=CPU or auto.")


def init_communication() -> None:
    """Give this rank an Ascend or a GPU of its own, and initialize MindSpore's collectives."""
    from mindspore import communication

    communication.init()


@contextmanager
def records_dropped(unwanted: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Inside the `with` block, drop log records of MindSpore's Python code for which `unwanted` returns True."""
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
    """Return a context that drops MindSpore 2.10's deprecation warnings.

    MindSpore logs them at each use of FTRL and of its host operators. They do not matter, because this project requires
    exactly version 2.10.
    """
    return records_dropped(lambda record: "is deprecated from version" in record.getMessage())
