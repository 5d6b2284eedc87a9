"""The step's graph where the tower is split over ranks: forward, backward, the sums over ranks, the optimizers.

What `app.model.graph.DeviceGraph` does, in one graph too: the collectives are operators in it.

Letters: B rows of a rank's slice, C fields, N numeric, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mindspore as ms
from mindspore import Tensor, nn, ops

from app.config.config import Config
from app.distributed.process_group import MpiGroup, largest_share
from app.model.dense_layer import Total
from app.model.graph import DEEP_LOSS, NUM_BAD, WIDE_LOSS, AllFinite, ForwardBackward, scalars
from app.model.optimizers import DenseOptimizers, WrapOptimizer
from app.model.wide_deep import Tower, WideDeep
from app.training.parallel.tensor.blocks import DenseBlocks
from app.training.parallel.tensor.collectives import Communicator, SumInTurn, SumOver
from app.training.parallel.tensor.optimizer_shards import OptimizerShards
from app.training.parallel.tensor.plan import TOWER, TowerPlan, plan_run
from app.training.parallel.tensor.tower import ShardedTower, gradient_groups
from app.training.step.step import StepParts


class ShardedSquaredNorm(nn.Cell):
    """`app.model.optimizers.SquaredNorm` over all ranks' pieces of the gradients; each copy counts by its share."""

    def __init__(self, copies: Sequence[int], world: Communicator) -> None:
        """`copies`: how many ranks hold the same piece, of each gradient."""
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
    """The graph of one rank. The wide head is on every rank, whole; the tower as the plan has it."""

    def __init__(
        self,
        forward_backward: ForwardBackward,
        optimizers: DenseOptimizers,
        groups: Mapping[str, Communicator],
        world: Communicator,
    ) -> None:
        """`groups` are the ranks that each know a part of a gradient, for each of the tower's parameters, in order."""
        super().__init__()
        self.forward_backward = forward_backward
        self.optimizers = optimizers
        self.num_wide = optimizers.num_wide
        self.sum_wide = SumInTurn([SumOver(world) for _ in range(self.num_wide)])
        self.has_shares = isinstance(optimizers.tower, OptimizerShards)
        self.sum_tower = SumInTurn([SumOver(group) for group in groups.values()])
        self.sum_scalars = SumOver(world)
        self.all_finite = AllFinite()

    def construct(self, *inputs: Tensor) -> tuple:
        """See `DeviceGraph.construct`; losses and flag are those of all ranks."""
        (deep_loss, wide_loss), finite, row_gradients, dense_gradients = self.forward_backward(*inputs)
        wide = self.sum_wide(dense_gradients[: self.num_wide], row_gradients[0])
        parts = dense_gradients[self.num_wide :]
        # After the last sum: all ranks come to the collectives in one order.
        tower = self.optimizers.tower.scattered(parts, wide[-1]) if self.has_shares else self.sum_tower(parts, wide[-1])
        sums = self.sum_scalars(scalars(deep_loss, wide_loss, self.all_finite(wide + tower, finite)))
        finite = sums[NUM_BAD] == 0
        deep_loss = sums[DEEP_LOSS]
        if finite:
            deep_loss = ops.depend(deep_loss, self.optimizers(wide + tower))
        return deep_loss, sums[WIDE_LOSS], finite, row_gradients[0], row_gradients[1]


class ShardedRun:
    """What is special about such a run; `whole` is the tower at its initial values, as one rank has it."""

    def __init__(self, config: Config, whole: Tower, group: MpiGroup) -> None:
        named = WideDeep(whole).named_parameters()
        arrays = {name.removeprefix(TOWER): p.asnumpy() for name, p in named.items() if name.startswith(TOWER)}
        rows = largest_share(config.train.batch_size, group.size) * group.size  # short slices are filled up
        self.plan: TowerPlan = plan_run({n: a.shape for n, a in arrays.items()}, config.parallel, rows, group.size)
        self.model = WideDeep(ShardedTower(arrays, self.plan, group.communicator, config.model.activation))
        self._world = group.communicator
        self._groups = gradient_groups(self.plan, list(arrays), self._world)
        self._has_shares = config.parallel.optimizer_shards

    @property
    def wrap_tower(self) -> WrapOptimizer | None:
        """What shares out the tower's optimizer, where that is asked for."""
        if not self._has_shares:
            return None
        named = {TOWER + name: group for name, group in self._groups.items()}
        return lambda weights, make_optimizer: OptimizerShards(weights, named, make_optimizer)

    @property
    def squared_norm(self) -> ShardedSquaredNorm:
        """What sums the squares of the tower's gradients over all ranks."""
        shares = {name: group.Get_size() if self._has_shares else 1 for name, group in self._groups.items()}
        copies = [self.plan.parameters[name].copies(shares[name]) for name in self._groups]
        return ShardedSquaredNorm(copies, self._world)

    def graph(self, parts: StepParts) -> ShardedGraph:
        """The step's graph; the model and the optimizers are of this run."""
        shared = parts.shared_by(self.plan.num_ranks)
        return ShardedGraph(shared.forward_backward(), parts.optimizers, self._groups, self._world)

    def scorer(self) -> WideDeep:
        """What makes logits."""
        return self.model

    def blocks(self) -> DenseBlocks:
        """Between this rank's dense arrays and whole ones."""
        return DenseBlocks(self.plan, self._world, self._groups if self._has_shares else {})


def take_weights(optimizers: DenseOptimizers) -> None:
    """Tell the optimizer that something else has written the weights."""
    if isinstance(optimizers.tower, OptimizerShards):
        optimizers.tower.take_weights()
