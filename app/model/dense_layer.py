"""Compute a hidden layer of the tower, y = f(x W + n F), with MindSpore's operators.

`x` [B, K] are the layer's inputs and `W` its weights. `n` [B, N + 1] are the numeric inputs and a last column of ones.
The rows of F are the weights of these inputs, the last one the bias. So the gradient of the bias is a row of a matrix
product. `native_layer` computes the same function with C++ kernels, whose activation f is ReLU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from app.model import dense_state
from common.arrays import hashing

# MindSpore's operators multiply int32 and not uint32, so this constant is given as the int32 of the same bits.
GOLDEN32 = int(hashing.GOLDEN32.astype(np.int32))

FACTORS = tuple(int(factor.astype(np.int32)) for factor in dense_state.FACTORS)

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

    With `input_dtype` the inputs are rounded to that dtype; sums stay float32. The primitive operator is used, because
    the gradient of `ops.matmul` copies matrices to transpose them.
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

    The sum is computed by a product of the array, as a matrix, with a vector of ones. The product reads the array once,
    on all cores. MindSpore's operator ReduceSum alone takes ten times as long.
    """

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.product = ops.MatMul()
        self.sum = ops.ReduceSum()

    def construct(self, values: Tensor) -> Tensor:
        """Return the sum of all `values`, multiplied by `factor`, as a scalar. `values` may have any shape."""
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
        [3] from `app.model.dense_state`, some units are dropped.
        """
        return self.activated(self.sums(inputs, weights, numeric, numeric_weights), noise)

    def sums(self, inputs: Tensor, weights: Tensor, numeric: Tensor, numeric_weights: Tensor) -> Tensor:
        """Return the weighted sums of the units' inputs, [B, H], to which the activation function is then applied."""
        return self.matmul(inputs, weights) + self.matmul(numeric, numeric_weights)

    def activated(self, sums: Tensor, noise: Tensor | None) -> Tensor:
        """Return the sums [B, H] after activation function and dropout. Without `noise` no unit is dropped."""
        outputs = self.activation(sums)
        if noise is None:
            return outputs
        rows = noise[1] + ops.arange(0, outputs.shape[0], 1, dtype=ms.int32)
        units = ops.arange(0, outputs.shape[1], 1, dtype=ms.int32)
        return outputs * dropout_multiplier(noise, rows, units)


def dropout_multiplier(noise: Tensor, rows: Tensor, units: Tensor) -> Tensor:
    """Return the factor of each unit's output, float32 [B, H]: 0 if it is dropped, else 1 / (1 - share dropped).

    It computes `app.model.dense_state.keep_mask` with MindSpore's operators. `rows` int32 [B] are the examples'
    indices in the batch of all ranks, `units` int32 [H] indices in the layer. A product of int32 wraps to the same bits
    as one of uint32. A bit mask turns MindSpore's arithmetic shifts into logical ones.
    """
    rows = mix32(noise[0] + rows * GOLDEN32)
    units = mix32((units + 1) * GOLDEN32)
    numbers = mix32(ops.bitwise_xor(rows.expand_dims(1), units.expand_dims(0)))
    numbers = ops.bitwise_and(ops.bitwise_right_shift(numbers, 8), 0xFFFFFF)
    scale = 1.0 / (1.0 - noise[2].astype(ms.float32) * 2.0**-24)
    return (numbers >= noise[2]).astype(ms.float32) * scale


def mix32(values: Tensor) -> Tensor:
    """Return a hash of each of the int32 `values` (lowbias32), as `mix32` of common/arrays/hashing.py does."""
    mixed = ops.bitwise_xor(values, ops.bitwise_and(ops.bitwise_right_shift(values, 16), 0xFFFF)) * FACTORS[0]
    mixed = ops.bitwise_xor(mixed, ops.bitwise_and(ops.bitwise_right_shift(mixed, 15), 0x1FFFF)) * FACTORS[1]
    return ops.bitwise_xor(mixed, ops.bitwise_and(ops.bitwise_right_shift(mixed, 16), 0xFFFF))


EPSILON = 1e-5
# Share by which a full batch moves the running statistics. EPSILON and MOMENTUM have the values of
# torch.nn.BatchNorm1d.
MOMENTUM = 0.1
# The function `ops.assign` does the same, but MindSpore 2.10 announces its removal.
ASSIGN = ops.Assign()

TINY = float(np.finfo(np.float32).tiny)


class BatchNorm(nn.Cell):
    """Normalizes sums by mean and variance: those of the batch in training, the running statistics in scoring.

    In training, a forward pass stores the statistics of its batch in separate parameters, and `update` moves the
    running statistics toward these. A step calls `update` only if all values are finite. Both statistics use the
    variance divided by n, not n - 1.

    A batch in which n rows have a weight above 0 moves the running statistics by the share MOMENTUM · min(n /
    `full_rows`, 1). So a full batch moves them by MOMENTUM, the few rows of an epoch's short last batch by little, and
    a batch without any such row not at all.
    """

    def __init__(self, width: int, name: str, full_rows: float) -> None:
        """`width` is the number of units. `full_rows` is the mean number of rows of weight above 0 in a full batch."""
        super().__init__()
        self.full_rows = full_rows
        zeros, ones = np.zeros((1, width), np.float32), np.ones((1, width), np.float32)
        self.scale = Parameter(Tensor(ones), name=f"norm_scale_{name}")
        self.shift = Parameter(Tensor(zeros), name=f"norm_shift_{name}")
        self.mean = Parameter(Tensor(zeros), name=f"running_mean_{name}", requires_grad=False)
        self.variance = Parameter(Tensor(ones), name=f"running_variance_{name}", requires_grad=False)
        self.batch_mean = Parameter(Tensor(zeros), name=f"batch_mean_{name}", requires_grad=False)
        self.batch_variance = Parameter(Tensor(ones), name=f"batch_variance_{name}", requires_grad=False)
        self.batch_rows = Parameter(Tensor(ones[:, :1]), name=f"batch_rows_{name}", requires_grad=False)
        self.matmul = MatMul()
        self.total, self.largest = ops.ReduceSum(keep_dims=True), ops.ReduceMax(keep_dims=True)

    def construct(self, sums: Tensor, example_weights: Tensor | None) -> Tensor:
        """Return the normalized `sums` [B, H].

        With `example_weights` [B], the batch's own statistics are used, in which rows count by their weights, and rows
        of weight 0, such as those that pad the batch, do not count. Without them, the running statistics are used.
        """
        if example_weights is None:
            return (sums - self.mean) * ops.rsqrt(self.variance + EPSILON) * self.scale + self.shift
        weights = example_weights.expand_dims(0)
        # Divide by the largest weight first: equal weights then become exactly 1 / n, whatever their value is.
        relative = weights / ops.maximum(self.largest(weights, 1), TINY)
        weights = relative / ops.maximum(self.total(relative, 1), TINY)
        rows = self.total((weights > 0).astype(ms.float32), 1)
        mean = self.matmul(weights, sums)
        centered = sums - mean
        variance = self.matmul(weights, ops.square(centered))
        centered = ops.depend(centered, ASSIGN(self.batch_mean, ops.stop_gradient(mean)))
        centered = ops.depend(centered, ASSIGN(self.batch_variance, ops.stop_gradient(variance)))
        centered = ops.depend(centered, ASSIGN(self.batch_rows, ops.stop_gradient(rows)))
        return centered * ops.rsqrt(variance + EPSILON) * self.scale + self.shift

    def update(self) -> tuple[Tensor, Tensor]:
        """Move the running mean and variance toward those of the last batch. Return the two assign operations of the
        graph, so that the caller can wait for them.
        """
        mean = self._moved(self.mean, self.batch_mean)
        variance = self._moved(self.variance, self.batch_variance)
        return ASSIGN(self.mean, mean), ASSIGN(self.variance, variance)

    def _moved(self, running: Tensor, batch: Tensor) -> Tensor:
        share = MOMENTUM * ops.minimum(self.batch_rows / self.full_rows, 1.0)
        return running * (1 - share) + batch * share


class NormalizedLayer(nn.Cell):
    """A hidden layer made of MindSpore's operators, whose sums are normalized before the activation function."""

    def __init__(self, layer: nn.Cell, norm: BatchNorm) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm

    def construct(
        self,
        inputs: Tensor,
        weights: Tensor,
        numeric: Tensor,
        numeric_weights: Tensor,
        noise: Tensor | None = None,
        example_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the layer's outputs [B, H].

        The arguments are those of `DenseLayer.construct` (inputs and weights of the layer, dropout's noise) and of
        `BatchNorm.construct` (weights of the batch rows in training).
        """
        sums = self.layer.sums(inputs, weights, numeric, numeric_weights)
        return self.layer.activated(self.norm(sums, example_weights), noise)
