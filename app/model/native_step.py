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
    """Return the operator dense_adam, which changes its inputs; None where MindSpore's own has to do."""
    if not _is_available() or "fma" not in cpu_flags():
        return None
    operator = _operator("dense_adam")
    # Without it a graph that has no use for the result drops the operator, and what reads weights after it reads those
    # before.
    operator.add_prim_attr("side_effect_mem", True)
    return operator


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
