"""A hidden layer of the tower, y = relu(x W + n F): from MindSpore's own operators, or as one kernel on a CPU.

`n` [B, N + 1] are inputs of few columns, the last of which is 1, and F their rows, the last of which is the bias: the
bias's gradient is then a row of a matrix product. Both cells are the same function.

Letters: B batch, K width in, H width out.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import mindspore as ms
from mindspore import Tensor, nn, ops

from app.device import records_dropped
from data_prep import shared_library


class MatMul(nn.Cell):
    """Matrix product, float32 in and out; with `input_dtype` its inputs are cast to that, the sums stay float32.

    The primitive, not `ops.matmul`: the gradient of that one copies its matrices to transpose them.
    """

    def __init__(self, input_dtype: ms.Type | None = None) -> None:
        super().__init__()
        self.product = ops.MatMul()
        self.input_dtype = input_dtype

    def construct(self, left: Tensor, right: Tensor) -> Tensor:
        """[M, K] x [K, N] -> [M, N]."""
        if self.input_dtype is None:
            return self.product(left, right)
        return self.product(left.astype(self.input_dtype), right.astype(self.input_dtype)).astype(ms.float32)


class Total(nn.Cell):
    """The sum of all values of an array.

    A matrix is summed by a product with ones, which reads it once on all cores: ReduceSum takes ten times as long.
    """

    def __init__(self) -> None:
        super().__init__()
        self.product = ops.MatMul()
        self.sum = ops.ReduceSum()

    def construct(self, values: Tensor) -> Tensor:
        """Any shape -> []."""
        if values.ndim > 1:
            matrix = values.reshape(-1, values.shape[-1])
            values = self.product(matrix, ops.ones((matrix.shape[1], 1), ms.float32))
        return self.sum(values)


class DenseLayer(nn.Cell):
    """The layer from MindSpore's operators, on any device."""

    def __init__(self, input_dtype: ms.Type | None = None) -> None:
        super().__init__()
        self.matmul = MatMul(input_dtype)

    def construct(self, inputs: Tensor, weights: Tensor, numeric: Tensor, numeric_weights: Tensor) -> Tensor:
        """`inputs` [B, K], `weights` [K, H], `numeric` [B, N + 1], `numeric_weights` [N + 1, H] -> [B, H]."""
        return ops.relu(self.matmul(inputs, weights) + self.matmul(numeric, numeric_weights))


class NativeDenseLayer(nn.Cell):
    """The layer as one kernel forward and one backward (`csrc/dense_layer.h`); CPU only, where the library is built.

    Raises OSError where it is not.
    """

    def __init__(self, num_threads: int, bfloat16: bool) -> None:
        super().__init__()
        load().dense_set_threads(num_threads)
        suffix = "bfloat16" if bfloat16 else "float32"
        with records_dropped(lambda record: "whitelist" in record.getMessage().lower()):
            self.forward = ops.Custom(
                f"{library_path()}:dense_forward_{suffix}",
                out_shape=lambda inputs, weights, numeric, numeric_weights: (inputs[0], weights[1]),
                out_dtype=lambda inputs, weights, numeric, numeric_weights: inputs,
                func_type="aot",
            )
            self.backward = ops.Custom(
                f"{library_path()}:dense_backward_{suffix}",
                out_shape=lambda gradient, outputs, inputs, weights, numeric: (
                    inputs,
                    weights,
                    (numeric[1], weights[1]),
                ),
                out_dtype=lambda gradient, outputs, inputs, weights, numeric: (inputs, inputs, inputs),
                func_type="aot",
            )

    def construct(self, inputs: Tensor, weights: Tensor, numeric: Tensor, numeric_weights: Tensor) -> Tensor:
        """See `DenseLayer.construct`."""
        return self.forward(inputs, weights, numeric, numeric_weights)

    def bprop(
        self,
        inputs: Tensor,
        weights: Tensor,
        numeric: Tensor,
        numeric_weights: Tensor,
        outputs: Tensor,
        gradient: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of the four inputs; that of `numeric` is 0, for it is data."""
        inputs_gradient, weights_gradient, numeric_weights_gradient = self.backward(
            gradient, outputs, inputs, weights, numeric
        )
        return inputs_gradient, weights_gradient, ops.zeros_like(numeric), numeric_weights_gradient


def library_path() -> Path:
    """Where the library is, or would be; the environment variable DENSE_LAYER_LIBRARY names another."""
    return shared_library.library_path(Path(__file__).parent / "csrc", "dense_layer", "DENSE_LAYER_LIBRARY")


@functools.cache
def load() -> ctypes.CDLL:
    """The library. Raises OSError saying what is missing and how to build it."""
    signatures: shared_library.Signatures = {"dense_set_threads": (None, [ctypes.c_int32])}
    return shared_library.load_library(
        library_path(), "dense layer is", signatures, otherwise="go on with MindSpore's operators"
    )
