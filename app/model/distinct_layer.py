"""Compute the tower's first layer from the distinct rows of a batch, with C++ kernels (`csrc/distinct_layer.h`)."""

from __future__ import annotations

from mindspore import Tensor, nn, ops

from app.config.device import BFLOAT16_FLAGS, cpu_flags
from app.config.run_settings import DeviceOptions
from app.model.dense_layer import NATIVE_ACTIVATION
from app.model.layer_library import LIBRARY
from app.model.native_layer import has_library, make_operators, native_operator


class NativeDistinctLayer(nn.Cell):
    """The tower's first layer on distinct rows, on a CPU.

    The constructor raises OSError if the library is not built.
    """

    def __init__(self, num_threads: int, bfloat16: bool) -> None:
        super().__init__()
        LIBRARY.load().dense_set_threads(num_threads)
        suffix = "bfloat16" if bfloat16 else "float32"
        self.zeros = ops.ZerosLike()
        self.plain = NativeDistinctKernels(suffix)

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

        `rows` [U, D] are the distinct rows. `index` int32 [B, C] is the row of each position. `fields` int32 [2 * C
        + 1] tells which rows belong to each field, see csrc/distinct_layer.h. The other arguments are those of
        `DenseLayer.construct`.
        """
        if noise is None:
            noise = self.zeros(fields[:3])
        return self.plain(rows, weights, numeric, numeric_weights, index, fields, noise)


class NativeDistinctKernels(nn.Cell):
    """The forward and backward kernels of `NativeDistinctLayer` for one precision."""

    def __init__(self, suffix: str) -> None:
        super().__init__()
        # `ops.zeros_like` cannot be used: the compiler loses it in a gradient within a gradient.
        self.zeros = ops.ZerosLike()
        # Input 4 is `index`, which has the batch dimension.
        self.forward, self.backward = make_operators("distinct", suffix, batch=4)

    def construct(
        self,
        rows: Tensor,
        weights: Tensor,
        numeric: Tensor,
        numeric_weights: Tensor,
        index: Tensor,
        fields: Tensor,
        noise: Tensor,
    ) -> Tensor:
        return self.forward(rows, weights, numeric, numeric_weights, index, fields, noise)

    def bprop(
        self,
        rows: Tensor,
        weights: Tensor,
        numeric: Tensor,
        numeric_weights: Tensor,
        index: Tensor,
        fields: Tensor,
        noise: Tensor,
        outputs: Tensor,
        gradient: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the gradients of the inputs. The gradients of data inputs are 0."""
        rows_gradient, weights_gradient, numeric_weights_gradient = self.backward(
            gradient, outputs, rows, weights, numeric, index, fields, noise
        )
        data = self.zeros(index), self.zeros(fields), self.zeros(noise)
        return (rows_gradient, weights_gradient, self.zeros(numeric), numeric_weights_gradient, *data)


class NativeSumRows(nn.Cell):
    """`SumRows` as one C++ kernel forward and one backward."""

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
    """Return the tower's first layer on distinct rows, or None if `dense_layer` would not choose a C++ kernel."""
    if not (plain and activation == NATIVE_ACTIVATION and has_library()):
        return None
    bfloat16 = options.precision == "bfloat16" and bool(cpu_flags() & BFLOAT16_FLAGS)
    return NativeDistinctLayer(options.num_threads, bfloat16)
