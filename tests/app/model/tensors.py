"""Helpers for tests of the model: inputs of graphs and of layers, training steps, and rounding to bfloat16."""

from collections.abc import Iterable

import numpy as np


def variable(arrays: Iterable[np.ndarray]) -> tuple:
    """Return a tuple of tensors, marked as an input of a graph. A plain tuple would be a constant of the graph, and
    each other tuple would make MindSpore compile the graph again.
    """
    from mindspore import Tensor, mutable

    return mutable(tuple(Tensor(array) for array in arrays))


def take_step(parts, batch):
    """Take a training step on a batch and return its losses."""
    return parts.step(batch, parts.step.prepare(batch))


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 values to the nearest bfloat16, ties to even, as the kernels do. Return them as float32."""
    bits = values.view(np.uint32)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


# Batch, K, H and N of a layer. One row; fewer rows than a task; several tasks with a short last one, and widths that no
# block divides.
SHAPES = [(1, 1, 1, 1), (5, 7, 3, 2), (1300, 50, 33, 1), (700, 300, 130, 27)]


def draw(shape) -> list[np.ndarray]:
    """Return random inputs, weights, numeric inputs, their weights and gradients of the outputs of a layer."""
    rows, width_in, width_out, numeric = shape
    generator = np.random.default_rng(0)
    shapes = ((rows, width_in), (width_in, width_out), (rows, numeric), (numeric, width_out), (rows, width_out))
    return [generator.standard_normal(s).astype(np.float32) for s in shapes]
