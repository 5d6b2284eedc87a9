"""Normalize the sums of a hidden layer's units over a batch (batch normalization, Ioffe & Szegedy, 2015).

Rows that pad a batch are ignored.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from app.model.dense_layer import MatMul

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
