"""Inputs of graphs, and steps on them."""

from collections.abc import Iterable

import numpy as np


def variable(arrays: Iterable[np.ndarray]) -> tuple:
    """Tensors as a tuple that is an input of a graph. A plain tuple is a constant, for which it is compiled anew."""
    from mindspore import Tensor, mutable

    return mutable(tuple(Tensor(array) for array in arrays))


def take_step(parts, batch):
    """Take a training step on a batch and return its losses."""
    return parts.step(batch, parts.step.prepare(batch))


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 values to bfloat16 as the kernels do, by way of the bits."""
    bits = values.view(np.uint32)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)
