"""The device of the tower, and the settings that MindSpore needs before and just after it is imported."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from app.config.run_settings import DeviceOptions
from common.process import held, num_cores

log = logging.getLogger(__name__)

CPU_INFO = Path("/proc/cpuinfo")

# Of processors that multiply bfloat16 (the last is Arm's), and those for which oneDNN's math mode makes use of it.
BFLOAT16_FLAGS, MATH_MODE_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}, {"amx_bf16", "bf16"}

ONEDNN_MATH_MODE = "ONEDNN_DEFAULT_FPMATH_MODE"


def prepare_environment(options: DeviceOptions) -> None:
    """Set the variables that oneDNN, OpenMP and MindSpore read once, at import. Call it before `import mindspore`."""
    # Idle OpenMP threads would spin on the cores that MindSpore's own threads want: lookups take twice as long then.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for name, value in _environment(options).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def check_environment(options: DeviceOptions) -> None:
    """Raise ValueError if this process has imported MindSpore with other threads, or in another precision."""
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
    """Return True if this process has imported MindSpore, or its library of MindRecord, with which comes OpenMP."""
    return bool({"mindspore", "mindspore._c_mindrecord"} & sys.modules.keys())


def _environment(options: DeviceOptions) -> dict[str, str | None]:
    """Return the variables that depend on the options. One that is None must not be set."""
    # For products that MindSpore's own operators make on a CPU: oneDNN rounds their float32 inputs itself.
    rounds = options.precision == "bfloat16" and cpu_flags() & MATH_MODE_FLAGS
    return {"OMP_NUM_THREADS": str(options.num_threads), ONEDNN_MATH_MODE: "BF16" if rounds else None}


def cpu_flags() -> set[str]:
    """Return the words of /proc/cpuinfo, with the features of this machine's cores among them."""
    try:
        return set(CPU_INFO.read_text(encoding="utf-8").split())
    except OSError:
        return set()


def select_device(options: DeviceOptions) -> str:
    """Set MindSpore's target, in graph mode, and return its name.

    Raises ValueError, in one line, for a target that this machine's MindSpore cannot load.
    """
    with held():  # as in `read_samples`
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


def init_communication() -> None:
    """Give this rank an Ascend or a GPU of its own, and initialize MindSpore's collectives."""
    from mindspore import communication

    communication.init()


@contextmanager
def records_dropped(unwanted: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Drop log records of MindSpore's Python side for which `unwanted` returns True."""
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
    """Drop MindSpore 2.10's deprecation warnings, at each use of FTRL and the host ops, as its version is pinned."""
    return records_dropped(lambda record: "is deprecated from version" in record.getMessage())
