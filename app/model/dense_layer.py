"""Compute a hidden layer of the tower, y = f(x W + n F), with MindSpore's operators.

`n` [B, N + 1] are the numeric inputs and a last column of ones. The rows of F are the weights of these inputs, the
last one the bias. So the gradient of the bias is a row of a matrix product. `native_layer` computes the same
function with C++ kernels, whose activation f is ReLU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from app.model import dropout
from common.arrays import hashing

# MindSpore's operators multiply int32, so unsigned constants are converted.
GOLDEN32 = int(hashing.GOLDEN32.astype(np.int32))

FACTORS = tuple(int(factor.astype(np.int32)) for factor in dropout.FACTORS)

NATIVE_ACTIVATION = "relu"

ACTIVATIONS: dict[str, Callable[[], nn.Cell]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "leaky_relu": functools.partial(nn.LeakyReLU, 0.01),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class MatMul(nn.Cell):
    """Matrix product of float32 matrices, with a float32 result.

    With `input_dtype` the inputs are cast to that dtype; sums stay float32. The primitive is used, because the
    gradient of `ops.matmul` copies matrices to transpose them.
    """

    def __init__(self, input_dtype: ms.Type | None = None) -> None:
        super().__init__()
        self.product = ops.MatMul()
        self.input_dtype = input_dtype

    def construct(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the product [M, N] of `left` [M, K] and `right` [K, N]."""
        if self.input_dtype is None:
            return self.product(left, right)
        return self.product(left.astype(self.input_dtype), right.astype(self.input_dtype)).astype(ms.float32)


class Total(nn.Cell):
    """The sum of all values of an array, multiplied by `factor`.

    A matrix is multiplied with ones, which reads it once on all cores. ReduceSum takes ten times as long.
    """

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.product = ops.MatMul()
        self.sum = ops.ReduceSum()

    def construct(self, values: Tensor) -> Tensor:
        """Return the sum as a scalar. `values` may have any shape."""
        if values.ndim > 1:
            matrix = values.reshape(-1, values.shape[-1])
            values = self.product(matrix, self.factor * ops.ones((matrix.shape[1], 1), ms.float32))
        elif self.factor != 1.0:
            values = values * self.factor
        return self.sum(values)


class DenseLayer(nn.Cell):
    """A hidden layer made of MindSpore's operators, for any device and any of `ACTIVATIONS`."""

    def __init__(self, input_dtype: ms.Type | None = None, activation: str = "relu") -> None:
        super().__init__()
        self.matmul = MatMul(input_dtype)
        self.activation = ACTIVATIONS[activation]()

    def construct(
        self,
        inputs: Tensor,
        weights: Tensor,
        numeric: Tensor,
        numeric_weights: Tensor,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Return the layer's outputs [B, H].

        `inputs` is [B, K], `weights` [K, H], `numeric` [B, N + 1], `numeric_weights` [N + 1, H]. With `noise`, int32
        [3] from `app.model.dropout`, units are dropped.
        """
        return self.activated(self.sums(inputs, weights, numeric, numeric_weights), noise)

    def sums(self, inputs: Tensor, weights: Tensor, numeric: Tensor, numeric_weights: Tensor) -> Tensor:
        """Return the sums of the units before the activation, [B, H]."""
        return self.matmul(inputs, weights) + self.matmul(numeric, numeric_weights)

    def activated(self, sums: Tensor, noise: Tensor | None) -> Tensor:
        """Apply activation and dropout to the sums [B, H]. Without `noise` no unit is dropped."""
        outputs = self.activation(sums)
        if noise is None:
            return outputs
        rows = noise[1] + ops.arange(0, outputs.shape[0], 1, dtype=ms.int32)
        units = ops.arange(0, outputs.shape[1], 1, dtype=ms.int32)
        return outputs * dropout_multiplier(noise, rows, units)


def dropout_multiplier(noise: Tensor, rows: Tensor, units: Tensor) -> Tensor:
    """Return 0 for dropped units and 1 / (1 - share dropped) for the others, float32 [B, H].

    It computes `app.model.dropout.keep_mask` with MindSpore's operators. `rows` int32 [B] are indices in the global
    batch, `units` int32 [H] indices in the layer. int32 products wrap as uint32 products do, and a bit mask turns
    arithmetic shifts into logical ones.
    """
    rows = mix32(noise[0] + rows * GOLDEN32)
    units = mix32((units + 1) * GOLDEN32)
    numbers = mix32(ops.bitwise_xor(rows.expand_dims(1), units.expand_dims(0)))
    numbers = ops.bitwise_and(ops.bitwise_right_shift(numbers, 8), 0xFFFFFF)
    scale = 1.0 / (1.0 - noise[2].astype(ms.float32) * 2.0**-24)
    return (numbers >= noise[2]).astype(ms.float32) * scale


def mix32(values: Tensor) -> Tensor:
    """Return the hash lowbias32 of int32 values, like `mix32` of common/arrays/hashing.py."""
    mixed = ops.bitwise_xor(values, ops.bitwise_and(ops.bitwise_right_shift(values, 16), 0xFFFF)) * FACTORS[0]
    mixed = ops.bitwise_xor(mixed, ops.bitwise_and(ops.bitwise_right_shift(mixed, 15), 0x1FFFF)) * FACTORS[1]
    return ops.bitwise_xor(mixed, ops.bitwise_and(ops.bitwise_right_shift(mixed, 16), 0xFFFF))


def write_parameter(parameter: Parameter, values: np.ndarray) -> None:
    """Overwrite all values of a parameter in its present memory.

    `set_data` cannot be used: if a compiled graph updates the parameter in a branch such as `if finite`, the graph
    continues to write to the old memory, and every later update is lost (MindSpore 2.10 on CPU).
    """
    if _on_cpu():
        memory_of(parameter)[...] = values  # Starting an operator takes 0.15 ms, and a step may write five parameters.
    else:
        ops.assign(parameter, Tensor(values))


def memory_of(parameter: Parameter) -> np.ndarray:
    """Return a parameter's values: on a CPU a writable view, on other devices a copy.

    MindSpore takes 18 µs to describe the memory to NumPy, so the view is kept as long as the memory does not move.
    """
    if not _on_cpu():
        return parameter.asnumpy()
    place, view = parameter.data_ptr(), getattr(parameter, "kept_view", None)
    if view is None or view[0] != place:
        view = parameter.kept_view = place, parameter.asnumpy()
    values: np.ndarray = view[1]
    return values


@functools.cache
def _on_cpu() -> bool:
    return bool(ms.get_current_device().device_target == "CPU")
