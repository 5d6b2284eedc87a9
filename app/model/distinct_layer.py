"""The tower's first layer from the distinct rows of a batch, as kernels on a CPU (`csrc/distinct_layer.h`)."""

from __future__ import annotations

from mindspore import Tensor, nn, ops

from app.config.device import BFLOAT16_FLAGS, cpu_flags
from app.config.run_settings import DeviceOptions
from app.model.dense_layer import NATIVE_ACTIVATION
from app.model.layer_library import LIBRARY
from app.model.native_layer import has_library, make_operators, native_operator


class NativeDistinctLayer(nn.Cell):
    """The first layer on distinct rows, on a CPU. Raise OSError if the library is not built."""

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
        """`rows` [U, D], `index` int32 [B, C], `fields` int32 [2 * C + 1] -> [B, H]. The rest as in `DenseLayer`."""
        if noise is None:
            noise = self.zeros(fields[:3])
        return self.plain(rows, weights, numeric, numeric_weights, index, fields, noise)


class NativeDistinctKernels(nn.Cell):
    """The kernels of `NativeDistinctLayer`, of one precision."""

    def __init__(self, suffix: str) -> None:
        super().__init__()
        self.zeros = ops.ZerosLike()  # not ops.zeros_like: the compiler loses it in a gradient within a gradient
        self.forward, self.backward = make_operators("distinct", suffix, batch=4)  # `index`

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
        """Return the gradients of the inputs. Those of data are 0."""
        rows_gradient, weights_gradient, numeric_weights_gradient = self.backward(
            gradient, outputs, rows, weights, numeric, index, fields, noise
        )
        data = self.zeros(index), self.zeros(fields), self.zeros(noise)
        return (rows_gradient, weights_gradient, self.zeros(numeric), numeric_weights_gradient, *data)


class NativeSumRows(nn.Cell):
    """`SumRows` as one kernel forward and one backward."""

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
    """Return the tower's first layer on distinct rows if `dense_layer` would choose a kernel, else None."""
    if not (plain and activation == NATIVE_ACTIVATION and has_library()):
        return None
    bfloat16 = options.precision == "bfloat16" and bool(cpu_flags() & BFLOAT16_FLAGS)
    return NativeDistinctLayer(options.num_threads, bfloat16)
