"""Hidden layers whose values the backward pass recomputes instead of keeping them: less memory, the same bits.

MindSpore's `Cell.recompute()` saves nothing on a CPU (2.10). Here a run of layers is one cell with a gradient of its
own: it keeps the run's inputs and recomputes the values between once the gradient of its outputs is there.
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
from mindspore import Tensor, nn, ops

Weights = tuple[Tensor, ...]  # of each layer: its matrix, and the rows of its numeric inputs and bias


class LayerRun(nn.Cell):
    """Layers one after the other, without dropout."""

    def __init__(self, layers: Sequence[nn.Cell]) -> None:
        super().__init__()
        self.layers = nn.CellList(layers)

    def construct(self, values: Tensor, inputs: Tensor, weights: Weights) -> Tensor:
        """`values` [B, K], `inputs` [B, N + 1] of the first layer -> [B, H]."""
        ones = ops.ones((values.shape[0], 1), ms.float32)
        for i in range(len(self.layers)):
            values = self.layers[i](values, weights[2 * i], inputs if i == 0 else ones, weights[2 * i + 1])
        return values


class DroppingLayerRun(nn.Cell):
    """Layers one after the other, with dropout: a mask is a function of `noise`, so recomputing gives the same one."""

    def __init__(self, layers: Sequence[nn.Cell]) -> None:
        super().__init__()
        self.layers = nn.CellList(layers)

    def construct(self, values: Tensor, inputs: Tensor, noise: Tensor, weights: Weights) -> Tensor:
        """See `LayerRun.construct`. `noise` int32 [L, 3]."""
        ones = ops.ones((values.shape[0], 1), ms.float32)
        for i in range(len(self.layers)):
            rows = weights[2 * i + 1]
            values = self.layers[i](values, weights[2 * i], inputs if i == 0 else ones, rows, noise[i])
        return values


class RecomputedRun(nn.Cell):
    """`LayerRun` with its values recomputed for the gradient. `inputs` are data and get no gradient."""

    def __init__(self, layers: Sequence[nn.Cell]) -> None:
        super().__init__()
        self.run = LayerRun(layers)
        self.gradient = ops.GradOperation(get_all=True, sens_param=True)
        self.zeros = ops.ZerosLike()

    def construct(self, values: Tensor, inputs: Tensor, weights: Weights) -> Tensor:
        return self.run(values, inputs, weights)

    def bprop(
        self, values: Tensor, inputs: Tensor, weights: Weights, outputs: Tensor, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Weights]:
        """Return the gradients of the inputs."""
        values = ops.depend(values, gradient)  # only once it is there, and not the earlier values
        gradients = self.gradient(self.run)(values, inputs, weights, gradient)  # constants have none
        return gradients[0], self.zeros(inputs), gradients[-1]


class RecomputedDroppingRun(nn.Cell):
    """`DroppingLayerRun` with its values recomputed for the gradient."""

    def __init__(self, layers: Sequence[nn.Cell]) -> None:
        super().__init__()
        self.run = DroppingLayerRun(layers)
        self.gradient = ops.GradOperation(get_all=True, sens_param=True)
        self.zeros = ops.ZerosLike()

    def construct(self, values: Tensor, inputs: Tensor, noise: Tensor, weights: Weights) -> Tensor:
        return self.run(values, inputs, noise, weights)

    def bprop(
        self, values: Tensor, inputs: Tensor, noise: Tensor, weights: Weights, outputs: Tensor, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Weights]:
        values = ops.depend(values, gradient)
        gradients = self.gradient(self.run)(values, inputs, noise, weights, gradient)
        return gradients[0], self.zeros(inputs), self.zeros(noise), gradients[-1]


class Recomputed(nn.Cell):
    """A run of hidden layers, with or without dropout."""

    def __init__(self, layers: Sequence[nn.Cell]) -> None:
        super().__init__()
        self.plain, self.dropping = RecomputedRun(layers), RecomputedDroppingRun(layers)

    def construct(self, values: Tensor, inputs: Tensor, weights: Weights, noise: Tensor | None) -> Tensor:
        """See `LayerRun.construct`. With `noise` int32 [L, 3] units are dropped."""
        if noise is None:
            return self.plain(values, inputs, weights)
        return self.dropping(values, inputs, noise, weights)


def recompute_layers(layers: Sequence[nn.Cell], runs: Sequence[tuple[int, int]]) -> None:
    """Let MindSpore recompute the values of these runs of layers in the backward pass, on Ascend and GPU."""
    for first, stop in runs:
        for layer in layers[first:stop]:
            layer.recompute()
