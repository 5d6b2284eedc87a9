"""The matrix products of one training step and nothing else, as MindSpore runs them.

Letters: B batch, I inputs and O outputs of a layer.
"""

from __future__ import annotations

import itertools

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops


class TowerMatmuls(nn.Cell):
    """For each layer y = x W, and the two products of its backward pass: dx = dy Wᵀ and dW = xᵀ dy."""

    def __init__(self, batch_size: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        layers = list(itertools.pairwise(widths))
        # An activation and its gradient have one shape, and speed does not hang on the values: one array is both.
        self.activations = _parameters("activation", [(batch_size, width) for width in widths], rng)
        self.matrices = _parameters("matrix", layers, rng)
        self.num_layers = len(layers)
        self.forward_product = ops.MatMul()
        self.input_gradient = ops.MatMul(transpose_b=True)
        self.matrix_gradient = ops.MatMul(transpose_a=True)
        self.slice = ops.Slice()

    def construct(self) -> Tensor:
        """Sum one number of each product, so that none is left out and no result has to be copied."""
        total = Tensor([[0.0]], ms.float32)
        for i in range(self.num_layers):
            inputs, outputs, matrix = self.activations[i], self.activations[i + 1], self.matrices[i]
            total += self.one_of(self.forward_product(inputs, matrix))
            total += self.one_of(self.input_gradient(outputs, matrix))
            total += self.one_of(self.matrix_gradient(inputs, outputs))
        return total

    def one_of(self, product: Tensor) -> Tensor:
        """The first element, [1, 1]."""
        return self.slice(product, (0, 0), (1, 1))


def _parameters(name: str, shapes: list[tuple[int, int]], rng: np.random.Generator) -> ParameterTuple:
    arrays = (rng.random(shape, np.float32) for shape in shapes)
    return ParameterTuple([Parameter(Tensor(array), name=f"{name}_{i}") for i, array in enumerate(arrays)])
