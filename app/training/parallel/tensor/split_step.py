"""The step of a tower that is split over ranks: one graph as `DeviceGraph`, with the collectives as operators in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from app.checkpoint.tower_slices import slice_name
from app.config.config import Config
from app.distributed.process_group import ProcessGroup
from app.model.dense_layer import Total
from app.model.graph import DEEP_LOSS, NUM_BAD, WIDE_LOSS, AllFinite, ForwardBackward, scalars
from app.model.tower_optimizers import DenseOptimizers
from app.model.wide_deep import WideDeep, WideHead
from app.training.parallel.placement import Arrays, TowerPlacement
from app.training.parallel.tensor.collectives import Communicator, InTurn, SumOver
from app.training.parallel.tensor.layout_plan import TOWER, ShardedParameter, TowerPlan, plan_run
from app.training.parallel.tensor.optimizer_shards import OptimizerShards, all_gather, share_of
from app.training.parallel.tensor.split_tower import gradient_groups, split_tower
from app.training.step.step import StepSettings


class ShardedSquaredNorm(nn.Cell):
    """`app.model.tower_optimizers.SquaredNorm` over all ranks' pieces of the gradients. Of n copies each counts 1/n."""

    def __init__(self, copies: Sequence[int], world: Communicator) -> None:
        """`copies` is the number of ranks that hold the same piece, for each gradient."""
        super().__init__()
        self.copies = tuple(float(number) for number in copies)
        self.total, self.sum = Total(), SumOver(world)

    def construct(self, gradients: tuple[Tensor, ...]) -> Tensor:
        """This rank's pieces, of any shapes -> [1]."""
        squares = ops.zeros(1, ms.float32)
        for i in range(len(gradients)):
            squares = squares + self.total(ops.square(gradients[i])) / self.copies[i]
        return self.sum(squares)


class ShardedGraph(nn.Cell):
    """The graph of one rank, which has the whole wide head and its part of the tower."""

    def __init__(
        self,
        forward_backward: ForwardBackward,
        optimizers: DenseOptimizers,
        groups: Mapping[str, Communicator],
        world: Communicator,
    ) -> None:
        """`groups` are the ranks over which the gradient of each of the tower's parameters is summed, in order."""
        super().__init__()
        self.forward_backward = forward_backward
        self.optimizers = optimizers
        self.num_wide = optimizers.num_wide
        self.sum_wide = InTurn([SumOver(world) for _ in range(self.num_wide)])
        shards = optimizers.tower if isinstance(optimizers.tower, OptimizerShards) else None
        self.sum_tower = shards.scatter if shards else InTurn([SumOver(group) for group in groups.values()])
        self.sum_scalars = SumOver(world)
        self.all_finite = AllFinite()

    def construct(self, *inputs: Tensor) -> tuple:
        """Compute what `DeviceGraph.construct` does, with losses and flag of all ranks."""
        (deep_loss, wide_loss), finite, row_gradients, dense_gradients = self.forward_backward(*inputs)
        wide = self.sum_wide(dense_gradients[: self.num_wide], row_gradients[0])
        parts = dense_gradients[self.num_wide :]
        # After the last sum, so that all ranks reach the collectives in one order.
        tower = self.sum_tower(parts, wide[-1])
        sums = self.sum_scalars(scalars(deep_loss, wide_loss, self.all_finite(wide + tower, finite)))
        finite = sums[NUM_BAD] == 0
        deep_loss = sums[DEEP_LOSS]
        if finite:
            deep_loss = ops.depend(deep_loss, self.optimizers(wide + tower))
        return deep_loss, sums[WIDE_LOSS], finite, row_gradients[0], row_gradients[1]


class ShardedPlacement(TowerPlacement):
    """A tower with its products split over ranks. `arrays` are the whole tower's initial values.

    A state array of an optimizer lies as its parameter does, or in shares of that block (`optimizer_shards`).
    """

    def __init__(self, config: Config, arrays: Arrays, group: ProcessGroup) -> None:
        rows = group.batch_rows(config.train.batch_size)  # short slices are filled up
        shapes = {name: array.shape for name, array in arrays.items()}
        self.plan: TowerPlan = plan_run(shapes, config.parallel, rows * group.size, group.size)
        self._world = group.communicator
        tower = split_tower(arrays, self.plan, self._world, config.model.activation)
        super().__init__(WideDeep(tower, WideHead(tower.numeric_fields.num)), rows)
        self._groups = gradient_groups(self.plan, list(arrays), self._world)
        # The ranks that share the optimizer's state of each parameter. Empty if every rank keeps all of it.
        self._share_groups = self._groups if config.parallel.optimizer_shards else {}
        if self._share_groups:
            named_groups = {TOWER + name: group for name, group in self._share_groups.items()}
            self.wrap_tower = lambda weights, make: OptimizerShards(weights, named_groups, make)
        copies = [
            self.plan.parameters[name].copies(group.Get_size() if self._share_groups else 1)
            for name, group in self._groups.items()
        ]
        self.squared_norm = ShardedSquaredNorm(copies, self._world)

    def graph(self, settings: StepSettings) -> ShardedGraph:
        shared = settings.shared_by(self.plan.num_ranks)
        return ShardedGraph(shared.forward_backward(), settings.optimizers, self._groups, self._world)

    def weights_were_written(self, optimizers: DenseOptimizers) -> None:
        if isinstance(optimizers.tower, OptimizerShards):
            optimizers.tower.take_weights()

    def whole_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        split = self._parameter(name)
        return split[1].shape if split else shape

    def gather(self, arrays: Arrays) -> Arrays:
        return {name: self._join(name, array) for name, array in arrays.items()}

    def slices(self, arrays: Arrays) -> Arrays:
        """Name each slice by its place in the whole array."""
        return dict(part for name, array in arrays.items() for part in self._slice(name, array))

    def scatter(self, arrays: Arrays) -> Arrays:
        return {name: self._part(name, array) for name, array in arrays.items()}

    def _slice(self, name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        split, rank = self._parameter(name), self._world.Get_rank()
        if split is None:
            return [(name, array)] if rank == 0 else []
        key, parameter = split
        block, layout = self._block(name, key, parameter, array), parameter.layout
        if any(layout.part(other) == layout.part(rank) for other in range(rank)):
            return []
        return [(slice_name(name, layout.block(rank, parameter.shape), parameter.shape), block)]

    def _block(self, name: str, key: str, parameter: ShardedParameter, array: np.ndarray) -> np.ndarray:
        """Return this rank's block of the array, joined from shares where ranks share it."""
        if self._is_share(name, key):
            return all_gather(self._share_groups[key], parameter.layout.block_shape(parameter.shape), array)
        return array

    def _join(self, name: str, array: np.ndarray) -> np.ndarray:
        split = self._parameter(name)
        if split is None:
            return array
        key, parameter = split
        block = self._block(name, key, parameter, array)
        whole = np.empty(parameter.shape, block.dtype)
        for rank, part in enumerate(self._world.allgather(block)):
            whole[parameter.layout.block(rank, parameter.shape)] = part
        return whole

    def _part(self, name: str, whole: np.ndarray) -> np.ndarray:
        split = self._parameter(name)
        if split is None:
            return whole
        key, parameter = split
        block = np.ascontiguousarray(whole[parameter.layout.block(self._world.Get_rank(), whole.shape)])
        return share_of(block, self._share_groups[key]) if self._is_share(name, key) else block

    def _is_share(self, name: str, key: str) -> bool:
        """Return True if the array is optimizer state that ranks share, rather than the weights."""
        return key in self._share_groups and not name.startswith(TOWER)

    def _parameter(self, name: str) -> tuple[str, ShardedParameter] | None:
        """Return the split parameter that an array is, or is optimizer state of, or None for the wide head's."""
        before, dot, key = name.rpartition(TOWER)
        if dot and (not before or before.endswith(".")) and key in self.plan.parameters:
            return key, self.plan.parameters[key]
        return None
