"""Normalize the sums of a hidden layer (batch normalization, Ioffe & Szegedy, 2015).

Rows that pad a batch are ignored.
"""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from app.model.dense_layer import MatMul

EPSILON = 1e-5
# Weight of the new batch in the running statistics. EPSILON and MOMENTUM have the values of torch.nn.BatchNorm1d.
MOMENTUM = 0.1


class BatchNorm(nn.Cell):
    """Normalizes with the statistics of the batch if the weights of its rows are given, else with running statistics.

    A forward pass stores the statistics of its batch in separate parameters. `update` moves the running statistics
    toward these. A step calls it only if all values are finite. Both use the variance divided by n, not n - 1. A
    batch whose weights are all 0 leaves the running statistics unchanged.
    """

    def __init__(self, width: int, name: str) -> None:
        super().__init__()
        zeros, ones = np.zeros((1, width), np.float32), np.ones((1, width), np.float32)
        self.scale = Parameter(Tensor(ones), name=f"norm_scale_{name}")
        self.shift = Parameter(Tensor(zeros), name=f"norm_shift_{name}")
        self.mean = Parameter(Tensor(zeros), name=f"running_mean_{name}", requires_grad=False)
        self.variance = Parameter(Tensor(ones), name=f"running_variance_{name}", requires_grad=False)
        self.batch_mean = Parameter(Tensor(zeros), name=f"batch_mean_{name}", requires_grad=False)
        self.batch_variance = Parameter(Tensor(ones), name=f"batch_variance_{name}", requires_grad=False)
        self.batch_weight = Parameter(Tensor(ones[:, :1]), name=f"batch_weight_{name}", requires_grad=False)
        self.matmul = MatMul()

    def construct(self, sums: Tensor, example_weights: Tensor | None) -> Tensor:
        """Return the normalized `sums` [B, H].

        `example_weights` [B] sum to 1, or are all 0. Rows that pad the batch have weight 0.
        """
        if example_weights is None:
            return (sums - self.mean) * ops.rsqrt(self.variance + EPSILON) * self.scale + self.shift
        weights = example_weights.expand_dims(0)
        mean = self.matmul(weights, sums)
        centered = sums - mean
        variance = self.matmul(weights, ops.square(centered))
        centered = ops.depend(centered, ops.assign(self.batch_mean, ops.stop_gradient(mean)))
        centered = ops.depend(centered, ops.assign(self.batch_variance, ops.stop_gradient(variance)))
        centered = ops.depend(centered, ops.assign(self.batch_weight, self.matmul(weights, ops.ones_like(sums[:, :1]))))
        return centered * ops.rsqrt(variance + EPSILON) * self.scale + self.shift

    def update(self) -> tuple[Tensor, Tensor]:
        """Move the running statistics toward those of the last batch."""
        mean = self._moved(self.mean, self.batch_mean)
        variance = self._moved(self.variance, self.batch_variance)
        return ops.assign(self.mean, mean), ops.assign(self.variance, variance)

    def _moved(self, running: Tensor, batch: Tensor) -> Tensor:
        return ops.where(self.batch_weight > 0, running * (1 - MOMENTUM) + batch * MOMENTUM, running)


class NormalizedLayer(nn.Cell):
    """A hidden layer made of MindSpore's operators, whose sums are normalized before the activation."""

    def __init__(self, layer: nn.Cell, width: int, name: str) -> None:
        super().__init__()
        self.layer = layer
        self.norm = BatchNorm(width, name)

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

        The arguments are those of `DenseLayer.construct` and `BatchNorm.construct`.
        """
        sums = self.layer.sums(inputs, weights, numeric, numeric_weights)
        return self.layer.activated(self.norm(sums, example_weights), noise)
