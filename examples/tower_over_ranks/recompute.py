"""Recomputation: the backward pass computes values of hidden layers again instead of keeping them in memory.

The results have the same bits. MindSpore's `Cell.recompute()` saves no memory on a CPU (2.10). Here a run of adjacent
layers is one cell with a gradient of its own: it keeps the inputs of the run, and computes the values in between again
once the gradient of the run's outputs is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mindspore as ms
from mindspore import Tensor, nn, ops

from app.config.config import Config
from app.model.dense_layer import MatMul
from app.model.dense_state import initial_tower
from app.model.wide_deep import NumericFields, Tower, WideDeep, WideHead, hidden_layers
from data_prep.prepared.schema import Schema
from examples.tower_over_ranks.whole_tower import Arrays, Options, WholeTower

Run = tuple[int, int]  # Adjacent layers: the index of the first one, and the index after the last one.
# For each layer of a run: its matrix, and the rows that multiply its numeric inputs and its bias.
Weights = tuple[Tensor, ...]


class LayerRun(nn.Cell):
    """Several adjacent hidden layers as one cell."""

    def __init__(self, layers: Sequence[nn.Cell]) -> None:
        super().__init__()
        self.layers = nn.CellList(layers)

    def construct(self, values: Tensor, inputs: Tensor, weights: Weights) -> Tensor:
        """Return the outputs [B, H] of the last layer, for inputs of the first layer.

        These are `values` [B, K] and the numeric inputs `inputs` [B, N + 1].
        """
        ones = ops.ones((values.shape[0], 1), ms.float32)
        for i in range(len(self.layers)):
            values = self.layers[i](values, weights[2 * i], inputs if i == 0 else ones, weights[2 * i + 1])
        return values


class RecomputedRun(nn.Cell):
    """A `LayerRun` whose values are computed again for the gradient. The numeric `inputs` have no gradient."""

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
        """Return the gradients of `values`, `inputs` and `weights`. The gradient of `inputs` is 0."""
        # Compute the run again only once the gradient is there. Otherwise MindSpore could keep the values of the
        # forward pass.
        values = ops.depend(values, gradient)
        gradients = self.gradient(self.run)(values, inputs, weights, gradient)  # Constant inputs get no gradient.
        return gradients[0], self.zeros(inputs), gradients[-1]


class RecomputedTower(Tower):
    """A `Tower` whose backward pass computes the values of some hidden layers again: those in `runs`."""

    def __init__(self, arrays: Arrays, layers: Sequence[nn.Cell], runs: Sequence[Run]) -> None:
        super().__init__(NumericFields(arrays), arrays, layers, MatMul())
        single = [(i, i + 1) for i in range(len(layers)) if not any(first <= i < stop for first, stop in runs)]
        self.steps = tuple(sorted([*runs, *single]))
        cells = [(LayerRun if step in single else RecomputedRun)(layers[slice(*step)]) for step in self.steps]
        self.runs = nn.CellList(cells)

    def construct(
        self,
        deep_rows: Tensor,
        numeric: Tensor,
        noise: Tensor | None = None,
        example_weights: Tensor | None = None,
        index: Tensor | None = None,
        fields: Tensor | None = None,
    ) -> Tensor:
        """Return the tower's logits [B] for `deep_rows` [B, C * D] and `numeric` [B, N].

        Other inputs are not used here.
        """
        ones, hidden = ops.ones((deep_rows.shape[0], 1), ms.float32), deep_rows
        for number, (first, stop) in enumerate(self.steps):
            inputs, rows = ones, self.biases[first].expand_dims(0)
            if first == 0:
                inputs, rows = self.numeric_fields(numeric, ones, rows)
            weights: tuple[Tensor, ...] = (self.matrices[first], rows)
            for i in range(first + 1, stop):
                weights = (*weights, self.matrices[i], self.biases[i].expand_dims(0))
            hidden = self.runs[number](hidden, inputs, weights)
        return self.output(hidden, self.matrices[self.num_hidden]).reshape(-1)


class Recompute(WholeTower):
    """Data parallelism with a tower whose values the backward pass computes again. Each rank has the whole tower."""

    def make_model(self, config: Config, schema: Schema, options: Options) -> WideDeep:
        arrays, layers = initial_tower(config, schema), hidden_layers(config, schema)
        tower = RecomputedTower(arrays, layers, runs_of_layers(options.recompute, len(layers)))
        return WideDeep(tower, WideHead(schema.num_numeric))


def runs_of_layers(entries: Sequence[str], num_hidden: int) -> tuple[Run, ...]:
    """Return the runs of adjacent layers that `entries` name, as index ranges.

    `all` means runs of about √layers. Otherwise an entry is a layer, `matrix_4`, or several, `matrix_0:matrix_2`. Raise
    ValueError for an unknown layer, and for one that is named twice.
    """
    if list(entries) == ["all"]:
        length = math.ceil(math.sqrt(num_hidden))
        return tuple((first, min(first + length, num_hidden)) for first in range(0, num_hidden, length))
    names, runs = [f"matrix_{i}" for i in range(num_hidden)], []
    for entry in entries:
        first, _, last = entry.partition(":")
        for name in (first, last or first):
            if name not in names:
                raise ValueError(f"recompute: there is no hidden layer {name!r}; they are {', '.join(names)}, or all")
        runs.append((names.index(first), names.index(last or first) + 1))
    covered = [i for start, stop in runs for i in range(start, stop)]
    if len(set(covered)) < len(covered) or any(start >= stop for start, stop in runs):
        raise ValueError(f"recompute: {', '.join(entries)}: a run ends before it begins, or a layer is named twice")
    return tuple(sorted(runs))
