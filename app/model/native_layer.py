"""Run a hidden layer on a CPU as one C++ kernel forward and one backward (`csrc/`), and choose how layers are computed.
The first layer can also be computed from the distinct rows of a batch.

The module also wraps the kernels that process all dense gradients of a step together (`csrc/dense_step.h`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from app.config.device import BFLOAT16_FLAGS, MATH_MODE_FLAGS, DeviceOptions, cpu_flags, log, records_dropped
from app.model.native_tower import LIBRARY, NATIVE_ACTIVATION


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
    from app.model import dense_layer as layers

    bfloat16 = options.precision == "bfloat16"
    if ms.get_current_device().device_target != "CPU":
        return functools.partial(layers.DenseLayer, ms.bfloat16 if bfloat16 else None, activation)
    flags = cpu_flags()
    make: Callable[[], nn.Cell]
    make, usable = functools.partial(layers.DenseLayer, activation=activation), MATH_MODE_FLAGS
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
