"""A step's work on all dense gradients together (`csrc/dense_step.h`), on a CPU."""

from __future__ import annotations

import mindspore as ms
from mindspore import ops

from app.device import cpu_flags, records_dropped
from app.model.native_library import LIBRARY


def all_finite() -> ops.Custom | None:
    """Return the operator all_finite; None where MindSpore's own have to do."""
    return _operator("all_finite") if _is_available() else None


def dense_adam() -> ops.Custom | None:
    """Return the operator dense_adam, which changes its inputs; None where MindSpore's own has to do.

    It waits for nothing but its inputs: a graph must have read the weights before, as their gradients and the flag of
    finite values do.
    """
    return _operator("dense_adam") if _is_available() and "fma" in cpu_flags() else None


def _is_available() -> bool:
    return ms.get_current_device().device_target == "CPU" and LIBRARY.is_available()


def _operator(name: str) -> ops.Custom:
    with records_dropped(lambda record: "whitelist" in record.getMessage().lower()):
        return ops.Custom(
            f"{LIBRARY.path}:{name}",
            out_shape=lambda *shapes: (1,),
            out_dtype=lambda first, *others: first,
            func_type="aot",
        )
