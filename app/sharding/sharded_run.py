"""The parts of a run whose tower is split over ranks: model, optimizers, graph, and how a checkpoint has them."""

from __future__ import annotations

from app.config.config import Config
from app.distributed.process_group import MpiGroup, largest_share
from app.model.optimizers import DenseOptimizers, WrapOptimizer
from app.model.wide_deep import Tower, WideDeep
from app.sharding.dense_blocks import DenseBlocks
from app.sharding.optimizer_shards import OptimizerShards
from app.sharding.sharded_graph import ShardedGraph, ShardedSquaredNorm
from app.sharding.sharded_tower import ShardedTower, gradient_groups
from app.sharding.tower_plan import TOWER, TowerPlan, plan_run
from app.train_step import StepParts


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
