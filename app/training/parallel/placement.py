"""`TowerPlacement`: the part of the dense model that each rank holds, here all of it."""

from __future__ import annotations

import numpy as np
from mindspore import nn

from app.distributed.process_group import rank_slice
from app.model.graph import DeviceGraph, HostGraph, OnDevice
from app.model.native_tower import NativeStep
from app.model.tower_optimizers import DenseOptimizers, WrapOptimizer
from app.model.wide_deep import WideDeep
from app.training.step.step import Graph, StepSettings

Arrays = dict[str, np.ndarray]


class TowerPlacement:
    """The whole model in one process. Subclasses spread it, or its batch, over ranks.

    `model` is this rank's part, `batch_rows` the most rows that it brings to a step. Dense arrays have the names of the
    whole model. Ranks call `gather` and `slices` together, with the same names in the same order.
    """

    wrap_tower: WrapOptimizer | None = None
    squared_norm: nn.Cell | None = None  # Σ gradient² of the tower over all ranks, None if a rank has all of it

    def __init__(self, model: WideDeep, batch_rows: int) -> None:
        self.model = model
        self.batch_rows = batch_rows

    def graph(self, settings: StepSettings) -> Graph:
        """Make the step's graph. `parts` hold this placement's model and its optimizers."""
        return DeviceGraph(settings.forward_backward(), settings.optimizers)

    def host_graph(self, settings: StepSettings) -> HostGraph:
        """Return the step's graph as a function of host arrays: native kernels if they cover all of it."""
        graph = self.graph(settings)
        if isinstance(graph, DeviceGraph) and NativeStep.takes(settings.model, settings.optimizers):
            return NativeStep(settings.model, settings.optimizers, settings.loss, drops=settings.noise.rate > 0)
        return OnDevice(graph)

    def scorer(self) -> Graph:
        return self.model

    def rows_of(self, num_rows: int, rank: int, num_ranks: int) -> slice:
        return rank_slice(num_rows, rank, num_ranks)

    def holds(self, name: str) -> bool:
        """Return True if this rank holds the array, or a part of it."""
        return True

    def whole_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the whole array whose part on this rank has `shape`."""
        return shape

    def gather(self, arrays: Arrays) -> Arrays:
        """Join the ranks' parts: the whole arrays, on every rank."""
        return arrays

    def slices(self, arrays: Arrays) -> Arrays:
        """Return what this rank writes to a sliced checkpoint. Of copies one rank writes one."""
        return arrays

    def scatter(self, arrays: Arrays) -> Arrays:
        """Return this rank's parts of whole arrays."""
        return {name: array for name, array in arrays.items() if self.holds(name)}

    def weights_were_written(self, optimizers: DenseOptimizers) -> None:
        """Let optimizers that keep copies of the weights copy them again."""
