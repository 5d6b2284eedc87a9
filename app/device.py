"""Where the tower runs, and what must be said to MindSpore before and just after it is imported."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import mindspore as ms

log = logging.getLogger(__name__)

Target = Literal["auto", "CPU", "GPU", "Ascend"]
Precision = Literal["float32", "bfloat16"]

CPU_INFO = Path("/proc/cpuinfo")
# What oneDNN 3.10's math mode rounds to bfloat16 for; it passes over AVX512_BF16 without AMX. The last is Arm's.
BFLOAT16_FLAGS = {"amx_bf16", "bf16"}
ONEDNN_MATH_MODE = "ONEDNN_DEFAULT_FPMATH_MODE"


@dataclass(frozen=True)
class DeviceOptions:
    """`target` auto takes Ascend, then GPU, then CPU; `threads` 0 takes every core this process may use.

    `precision` bfloat16 rounds the inputs of the tower's matrix products; sums and parameters stay float32.
    """

    target: Target = "auto"
    threads: int = 0
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise ValueError(f"device.threads must be 0 (all cores) or more, found {self.threads}")

    @property
    def num_threads(self) -> int:
        """Threads to use on the host."""
        return self.threads or len(os.sched_getaffinity(0))


def prepare_environment(options: DeviceOptions) -> None:
    """Set what oneDNN, OpenMP and MindSpore read once, at import. Call it before `import mindspore`."""
    os.environ["OMP_NUM_THREADS"] = str(options.num_threads)
    os.environ.pop(ONEDNN_MATH_MODE, None)
    if options.precision == "bfloat16" and cpu_has_bfloat16():
        # oneDNN then rounds the inputs of float32 products itself; the other targets cast (`matmul_dtype`).
        os.environ[ONEDNN_MATH_MODE] = "BF16"


def cpu_has_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this machine's cores for float32 inputs."""
    try:
        words = set(CPU_INFO.read_text(encoding="utf-8").split())
    except OSError:
        return False
    return bool(words & BFLOAT16_FLAGS)


def matmul_dtype(options: DeviceOptions, target: str) -> ms.Type | None:
    """The type to cast the inputs of the tower's matrix products to; None for no cast."""
    import mindspore as ms

    if options.precision == "float32":
        return None
    if target == "CPU":
        if not cpu_has_bfloat16():
            log.warning("warning: device.precision=bfloat16 needs AMX (x86) or BF16 (Arm) units: float32 is used")
        return None
    return ms.bfloat16


def select_device(options: DeviceOptions) -> str:
    """Point MindSpore at the target, in graph mode; returns the target's name.

    Raises ValueError, in one line, for a target that this machine's MindSpore cannot load.
    """
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE)
    candidates = ("Ascend", "GPU", "CPU") if options.target == "auto" else (options.target,)
    for target in candidates:
        try:
            with records_dropped(lambda record: True):  # pages about drivers; the error below has the reason
                ms.set_device(target)
        except (RuntimeError, ValueError) as error:
            reason = str(error).split(". ")[0]
            continue
        return target
    raise ValueError(f"device.target={options.target} cannot be used here: {reason}. Choose device.target=CPU or auto.")


@contextmanager
def records_dropped(unwanted: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Keep log records of MindSpore's Python side for which `unwanted` is true from being printed."""
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
    """MindSpore 2.10 says of FTRL and the host ops, at each use, that they will go; it is pinned, so drop just that."""
    return records_dropped(lambda record: "is deprecated from version" in record.getMessage())
