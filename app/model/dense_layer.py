"""Compute a hidden layer of the tower, y = f(x W + n F), with MindSpore's operators, or on a CPU as one C++ kernel
forward and one backward (`csrc/`). The first layer can also be computed from the distinct rows of a batch.

`x` [B, K] are the layer's inputs and `W` its weights. `n` [B, N + 1] are the numeric inputs and a last column of ones.
The rows of F are the weights of these inputs, the last one the bias. So the gradient of the bias is a row of a matrix
product. The activation f of the C++ kernels is ReLU.

The module also wraps the kernels that process all dense gradients of a step together (`csrc/dense_step.h`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from app.config.device import BFLOAT16_FLAGS, MATH_MODE_FLAGS, DeviceOptions, cpu_flags, log, records_dropped
from app.model import dense_state
from app.model.native_tower import LIBRARY, NATIVE_ACTIVATION
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


def repeated(row: Tensor, matrix: Tensor) -> Tensor:
    """Return `row` [1, H] once for each row of `matrix` [B, H], as an array of the same shape.

    Operators of MindSpore 2.10 on a CPU that repeat a row themselves are slower, and each of them keeps memory for
    indices: up to 16 bytes for each number of its result.
    """
    return ops.tile(row, (matrix.shape[0], 1))


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
            return self._scaled(sums - repeated(self.mean, sums), self.variance)
        weights = example_weights.expand_dims(0)
        # Divide by the largest weight first: equal weights then become exactly 1 / n, whatever their value is.
        relative = weights / ops.maximum(self.largest(weights, 1), TINY)
        weights = relative / ops.maximum(self.total(relative, 1), TINY)
        rows = self.total((weights > 0).astype(ms.float32), 1)
        mean = self.matmul(weights, sums)
        centered = sums - repeated(mean, sums)
        variance = self.matmul(weights, ops.square(centered))
        centered = ops.depend(centered, ASSIGN(self.batch_mean, ops.stop_gradient(mean)))
        centered = ops.depend(centered, ASSIGN(self.batch_variance, ops.stop_gradient(variance)))
        centered = ops.depend(centered, ASSIGN(self.batch_rows, ops.stop_gradient(rows)))
        return self._scaled(centered, variance)

    def _scaled(self, centered: Tensor, variance: Tensor) -> Tensor:
        factors = repeated(ops.rsqrt(variance + EPSILON) * self.scale, centered)
        return centered * factors + repeated(self.shift, centered)

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


class NativeKernels(nn.Cell):
    """The forward and backward kernels of a hidden layer of the tower, in float32 or bfloat16.

    The constructor raises OSError if the library is not built.
    """

    def __init__(self, kind: str, num_threads: int, bfloat16: bool, batch: int = 0) -> None:
        """`kind` is the first word of the names of the C++ functions, such as `dense` in dense_forward_float32. `batch`
        is the index of an input of the forward kernel that has one row for each example of the batch. From this input
        MindSpore infers the number of rows of the output.
        """
        super().__init__()
        LIBRARY.load().dense_set_threads(num_threads)
        suffix = "bfloat16" if bfloat16 else "float32"
        # `ops.zeros_like` cannot be used: MindSpore's compiler drops it in a gradient within a gradient.
        self.zeros = ops.ZerosLike()
        self.forward = native_operator(
            f"{kind}_forward_{suffix}",
            lambda *shapes: (shapes[batch][0], shapes[1][1]),
            lambda inputs, *others: inputs,
        )
        self.backward = native_operator(
            f"{kind}_backward_{suffix}",
            lambda gradient, outputs, inputs, weights, numeric, *others: (inputs, weights, (numeric[1], weights[1])),
            lambda gradient, outputs, inputs, *others: (inputs, inputs, inputs),
        )

    def construct(
        self, inputs: Tensor, weights: Tensor, numeric: Tensor, numeric_weights: Tensor, data: tuple[Tensor, ...]
    ) -> Tensor:
        """Return the layer's outputs [B, H]. `data` are the kernel's other inputs, such as dropout's noise."""
        return self.forward(inputs, weights, numeric, numeric_weights, *data)

    def bprop(
        self,
        inputs: Tensor,
        weights: Tensor,
        numeric: Tensor,
        numeric_weights: Tensor,
        data: tuple[Tensor, ...],
        outputs: Tensor,
        gradient: Tensor,
    ) -> tuple:
        """Return the gradient of each argument of `construct`. For `numeric` and `data` it is 0."""
        inputs_gradient, weights_gradient, numeric_weights_gradient = self.backward(
            gradient, outputs, inputs, weights, numeric, *data
        )
        zeros: tuple = ()
        for array in data:
            zeros += (self.zeros(array),)
        return inputs_gradient, weights_gradient, self.zeros(numeric), numeric_weights_gradient, zeros


class NativeLayer(nn.Cell):
    """A hidden layer on a CPU that runs as one C++ kernel forward and one backward (`csrc/dense_layer.h`)."""

    def __init__(self, num_threads: int, bfloat16: bool) -> None:
        super().__init__()
        self.bfloat16 = bfloat16
        self.kernels = NativeKernels("dense", num_threads, bfloat16)
        self.no_noise = Tensor(np.zeros(3, np.int32))

    def construct(
        self,
        inputs: Tensor,
        weights: Tensor,
        numeric: Tensor,
        numeric_weights: Tensor,
        noise: Tensor | None = None,
    ) -> Tensor:
        if noise is None:
            noise = self.no_noise
        return self.kernels(inputs, weights, numeric, numeric_weights, (noise,))


def native_operator(name: str, out_shape: Callable[..., Any], out_dtype: Callable[..., Any]) -> ops.Custom:
    """Return the function `name` of the C++ library as a MindSpore operator.

    MindSpore warns of functions that are not in its whitelist. This warning is suppressed.
    """
    with records_dropped(lambda record: "whitelist" in record.getMessage().lower()):
        return ops.Custom(f"{LIBRARY.path}:{name}", out_shape, out_dtype, func_type="aot")


def dense_layer(options: DeviceOptions, activation: str = "relu", plain: bool = True) -> Callable[[], nn.Cell]:
    """Return a function that makes the tower's hidden layers for the selected device.

    On a CPU it makes `NativeLayer`s if the library is built and supports the activation function. Otherwise it makes
    `DenseLayer`s, of MindSpore's operators. Pass `plain=False` for layers with batch normalization: they are always
    `DenseLayer`s.
    """
    bfloat16 = options.precision == "bfloat16"
    if ms.get_current_device().device_target != "CPU":
        return functools.partial(DenseLayer, ms.bfloat16 if bfloat16 else None, activation)
    flags = cpu_flags()
    make: Callable[[], nn.Cell]
    make, usable = functools.partial(DenseLayer, activation=activation), MATH_MODE_FLAGS
    if plain and activation == NATIVE_ACTIVATION:
        try:
            LIBRARY.load()
            make = functools.partial(NativeLayer, options.num_threads, bfloat16 and bool(flags & BFLOAT16_FLAGS))
            usable = BFLOAT16_FLAGS
        except OSError as error:
            log.warning("warning: %s; continuing with MindSpore's operators", error)
    if bfloat16 and not flags & usable:
        log.warning("warning: device.precision=bfloat16 needs one of %s: float32 is used", ", ".join(sorted(usable)))
    return make


def all_finite() -> ops.Custom | None:
    """Return the C++ operator that checks in one call that all values of a step's arrays are finite and in bounds.

    Return None if the device is no CPU or the library is not built.
    """
    return _on_all("all_finite") if has_library() else None


def dense_adam() -> ops.Custom | None:
    """Return the C++ operator dense_adam, which takes an Adam step on all weights of the tower in place.

    Return None if the device is no CPU, if it lacks FMA instructions, or if the library is not built.
    """
    if not has_library() or "fma" not in cpu_flags():
        return None
    operator = _on_all("dense_adam")
    # Mark the operator as one with a side effect. Otherwise a graph that does not use its result drops it, and later
    # reads of the weights return the values from before the update.
    operator.add_prim_attr("side_effect_mem", True)
    return operator


def has_library() -> bool:
    """Return True if the device is a CPU and the library is built."""
    return ms.get_current_device().device_target == "CPU" and LIBRARY.is_available()


def _on_all(name: str) -> ops.Custom:
    """Return the C++ operator `name` as a MindSpore operator. A single call processes all arrays of a step, and returns
    one value, [1].
    """
    return native_operator(name, lambda *shapes: (1,), lambda first, *others: first)


class NativeDistinctLayer(nn.Cell):
    """The tower's first layer on a CPU, computed by C++ kernels that multiply each distinct row of a batch once."""

    def __init__(self, num_threads: int, bfloat16: bool) -> None:
        super().__init__()
        self.kernels = NativeKernels("distinct", num_threads, bfloat16, batch=4)  # Input 4 is `index`.
        self.no_noise = Tensor(np.zeros(3, np.int32))

    def construct(
        self,
        rows: Tensor,
        weights: Tensor,
        numeric: Tensor,
        numeric_weights: Tensor,
        index: Tensor,
        fields: Tensor,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Return the layer's outputs [B, H].

        `rows` [U, D] are the batch's distinct embedding rows. `index` int32 [B, C] has, for each batch row and field,
        the index of the looked-up row in `rows`. `fields` int32 [2 * C + 1] tells which rows belong to each field, see
        csrc/distinct_layer.h. The other arguments are those of `DenseLayer.construct`: the layer's matrix, the numeric
        inputs with their weights, and dropout's noise.
        """
        if noise is None:
            noise = self.no_noise
        return self.kernels(rows, weights, numeric, numeric_weights, (index, fields, noise))


class NativeSumRows(nn.Cell):
    """Adds up, for each batch row, the wide table's weights of its fields' values, by one C++ kernel forward and one
    backward.
    """

    def __init__(self) -> None:
        super().__init__()
        self.zeros = ops.ZerosLike()
        self.forward = native_operator("sum_rows_forward", lambda rows, index: (index[0],), lambda rows, index: rows)
        self.backward = native_operator(
            "sum_rows_backward", lambda gradient, rows, index: rows, lambda gradient, rows, index: rows
        )

    def construct(self, wide_rows: Tensor, index: Tensor) -> Tensor:
        return self.forward(wide_rows, index)

    def bprop(self, wide_rows: Tensor, index: Tensor, outputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return self.backward(gradient, wide_rows, index), self.zeros(index)


def distinct_layer(options: DeviceOptions, activation: str, plain: bool) -> nn.Cell | None:
    """Return a cell that computes the tower's first layer from distinct rows with C++ kernels, or None.

    It is None unless the device is a CPU, the C++ library is built, the `activation` is ReLU, and `plain` is True,
    which means that the layers have no batch normalization.
    """
    if not (plain and activation == NATIVE_ACTIVATION and has_library()):
        return None
    bfloat16 = options.precision == "bfloat16" and bool(cpu_flags() & BFLOAT16_FLAGS)
    return NativeDistinctLayer(options.num_threads, bfloat16)
