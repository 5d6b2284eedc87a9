"""Compute the tower's first layer from the distinct rows of a batch, with C++ kernels (`csrc/distinct_layer.h`)."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops

from app.config.device import BFLOAT16_FLAGS, DeviceOptions, cpu_flags
from app.model.layer_library import NATIVE_ACTIVATION
from app.model.native_layer import NativeKernels, has_library, native_operator


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
