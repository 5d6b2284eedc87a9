"""The tower with each layer's product split over the ranks: semi-automatic, automatic and optimizer parallelism.

    rows ─ redistribute ─► x W ─ sum over inner ─► + numeric, bias ─► relu ─ redistribute ─► … ─► logits

A rank provides the rows of its slice of the batch and gets their logits. A parameter on a rank is a block of the whole
parameter, and has its name. The training step is one graph like `app.model.graph.DeviceGraph`, with collectives in it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
from mindspore import Tensor, nn, ops

from app.config.config import Config
from app.model.dense_layer import DenseLayer
from app.model.dense_state import initial_tower
from app.model.graph import AllFinite, ForwardBackward, scalars
from app.model.native_tower import DEEP_LOSS, NUM_BAD, WIDE_LOSS
from app.model.tower_optimizers import DenseOptimizers, make_optimizer
from app.model.wide_deep import NumericFields, Tower, WideDeep, WideHead
from app.training.step.step import StepSettings
from data_prep.prepared.schema import Schema
from examples.tower_over_ranks.collectives import Communicator, InTurn, Redistribute, SumGradientOver, SumOver, split
from examples.tower_over_ranks.layouts import (
    BATCH,
    INNER,
    OUTER,
    Layout,
    SplitParameter,
    Strategy,
    TowerPlan,
    find_strategy,
    parse_all,
    plan_tower,
    slices_of_batch,
)
from examples.tower_over_ranks.optimizer_shards import OptimizerShards, all_gather, share_of
from examples.tower_over_ranks.saving import slice_name
from examples.tower_over_ranks.whole_tower import Arrays, Options, WholeTower

TOWER = "tower."  # The prefix of the names that the tower's parameters have in the whole model.


class SplitMatMul(nn.Cell):
    """The split product x W of layer `number`. x [B, K] comes in the layout that the layer before leaves."""

    def __init__(self, world: Communicator, plan: TowerPlan, number: int) -> None:
        super().__init__()
        rank, product = world.Get_rank(), plan.products[number]
        before = plan.products[number - 1].output if number else slices_of_batch(plan.num_ranks)
        self.enter = Redistribute(world, before, product.input, (plan.batch_size, plan.widths[number]))
        # Each rank along OUTER multiplies only its columns of W, so it computes only their share of the gradient of x.
        self.sum_gradient = SumGradientOver(split(world, product.input.group(rank, [OUTER])))
        self.product = ops.MatMul()
        self.sum_product = SumOver(split(world, product.input.group(rank, [INNER])))

    def construct(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return this rank's block of the product, given its blocks of x and W."""
        return self.sum_product(self.product(self.sum_gradient(self.enter(inputs)), weight))


class SplitLayer(DenseLayer):
    """Hidden layer `number`, split over the ranks: computes this rank's block of the outputs."""

    def __init__(self, world: Communicator, plan: TowerPlan, number: int, activation: str, num_numeric: int) -> None:
        super().__init__(activation=activation)
        self.matmul = SplitMatMul(world, plan, number)
        self.num_numeric, self.numeric_product = 0 if number else num_numeric, ops.MatMul()
        if self.num_numeric:
            batch_only = Layout(plan.products[number].input.mesh, (BATCH, None))
            shape = (plan.batch_size, self.num_numeric)
            self.scatter_numeric = Redistribute(world, slices_of_batch(plan.num_ranks), batch_only, shape)

    def sums(self, inputs: Tensor, weights: Tensor, numeric: Tensor, numeric_weights: Tensor) -> Tensor:
        """Return this rank's block of the layer's outputs before the activation: x W + numeric part + bias.

        `numeric` [n, N + 1] has the numbers of this rank's slice of the batch.
        """
        n = self.num_numeric
        if n == 0:
            return self.matmul(inputs, weights) + numeric_weights
        numeric = self.scatter_numeric(numeric[:, :n])
        inputs = ops.depend(inputs, numeric)  # This makes all ranks reach the two collectives in the same order.
        return self.matmul(inputs, weights) + self.numeric_product(numeric, numeric_weights[:n]) + numeric_weights[n:]


class SplitOutput(nn.Cell):
    """The split product of the last layer. Each rank gets the logits of its slice of the batch."""

    def __init__(self, world: Communicator, plan: TowerPlan, number: int) -> None:
        super().__init__()
        self.matmul, slices = SplitMatMul(world, plan, number), slices_of_batch(plan.num_ranks)
        self.leave = Redistribute(world, plan.products[number].output, slices, (plan.batch_size, 1))

    def construct(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return the logits [n, 1] of this rank's slice of the batch, given its blocks of input and weight."""
        return self.leave(self.matmul(inputs, weight))


class SplitNumericFields(NumericFields):
    """The rows of the numeric fields, which are whole, and this rank's columns of the numeric fields' matrix.

    `copies` is the number of ranks that compute the same gradient of the L2 term.
    """

    def __init__(self, blocks: Mapping[str, np.ndarray], copies: float) -> None:
        super().__init__(blocks)
        self.copies = copies

    def squared_norm(self) -> Tensor:
        """Return this rank's part of the L2 term of the numeric fields in the loss, Σ‖E_f‖².

        The loss is summed over all ranks, but the gradient of the rows only over the ranks of one of `copies` groups.
        So the gradient is scaled up, and the value is not.
        """
        norm = super().squared_norm() * self.copies
        return norm - ops.stop_gradient(norm) * (1 - 1 / self.copies)


class SplitGraph(nn.Cell):
    """The graph of a training step on one rank, which has the whole wide head and its blocks of the tower."""

    def __init__(
        self,
        forward_backward: ForwardBackward,
        optimizers: DenseOptimizers,
        groups: Mapping[str, Communicator],
        world: Communicator,
    ) -> None:
        """Make the graph.

        `groups` are, for each parameter of the tower in order, the ranks over which its gradient is summed.
        """
        super().__init__()
        self.forward_backward, self.optimizers = forward_backward, optimizers
        self.num_wide = optimizers.num_wide
        self.sum_wide = InTurn([SumOver(world) for _ in range(self.num_wide)])
        shards = optimizers.tower if isinstance(optimizers.tower, OptimizerShards) else None
        self.sum_tower = shards.scatter if shards else InTurn([SumOver(group) for group in groups.values()])
        self.sum_scalars, self.all_finite = SumOver(world), AllFinite()

    def construct(self, *inputs: Tensor) -> tuple:
        """Compute what `DeviceGraph.construct` computes.

        The losses and the flag for finite gradients are of all ranks.
        """
        (deep_loss, wide_loss), finite, row_gradients, dense_gradients = self.forward_backward(*inputs)
        wide = self.sum_wide(dense_gradients[: self.num_wide], row_gradients[0])
        # Starts after the last of the sums above, on all ranks.
        tower = self.sum_tower(dense_gradients[self.num_wide :], wide[-1])
        sums = self.sum_scalars(scalars(deep_loss, wide_loss, self.all_finite(wide + tower, finite)))
        finite = sums[NUM_BAD] == 0
        deep_loss = sums[DEEP_LOSS]
        if finite:
            deep_loss = ops.depend(deep_loss, self.optimizers(wide + tower))
        return deep_loss, sums[WIDE_LOSS], finite, row_gradients[0], row_gradients[1]


class SplitTower(WholeTower):
    """The model with a tower whose products are split over the ranks by strategies.

    In semi-automatic mode, a layer without a strategy splits the batch. In automatic mode, a strategy is chosen for it.
    A state array of an optimizer is split as its parameter is, or into shares of the parameter's block
    (`optimizer_shards`).
    """

    def make_model(self, config: Config, schema: Schema, options: Options) -> WideDeep:
        arrays, world = initial_tower(config, schema), self.group.communicator
        shapes = {name: array.shape for name, array in arrays.items()}
        self.plan = plan_tower(shapes, self._strategies(shapes, options), self.batch_rows * world.size, world.size)
        parameters, rank = self.plan.parameters, world.rank
        self._groups = {
            name: split(world, parameters[name].layout.group(rank, parameters[name].gradient_axes)) for name in arrays
        }
        # For each parameter, the ranks that divide its optimizer state among themselves. Empty if every rank keeps all
        # of it.
        self._share_groups = self._groups if options.optimizer_shards else {}
        blocks = {
            name: np.ascontiguousarray(whole[parameters[name].layout.block(rank, whole.shape)])
            for name, whole in arrays.items()
        }
        copies = world.size / self._groups["numeric_rows"].size if "numeric_rows" in arrays else 1.0
        numeric_fields, last = SplitNumericFields(blocks, copies), len(self.plan.products) - 1
        layers = [SplitLayer(world, self.plan, i, config.model.activation, numeric_fields.num) for i in range(last)]
        tower = Tower(numeric_fields, blocks, layers, SplitOutput(world, self.plan, last))
        self._tower_options, self._loss_scale = config.tower_optimizer, config.loss.loss_scale
        return WideDeep(tower, WideHead(numeric_fields.num))

    def _strategies(self, shapes: dict[str, tuple[int, ...]], options: Options) -> dict[str, Strategy]:
        layers, size = [name for name in shapes if name.startswith("matrix_")], self.group.size
        named = parse_all(options.strategies, layers)
        others = {name: Strategy(batch=size) for name in layers}
        if options.automatic:
            others = {name: find_strategy(self.batch_rows * size, shapes[name], size) for name in layers}
        return others | named

    def describe(self) -> dict[str, dict[str, str]]:
        meshes = [product.weight.mesh for product in self.plan.products]
        return {"strategies": {f"matrix_{i}": str(Strategy(*mesh[:3])) for i, mesh in enumerate(meshes)}}

    def adapt(self, optimizers: DenseOptimizers) -> None:
        if self._share_groups:
            make = functools.partial(make_optimizer, options=self._tower_options, loss_scale=self._loss_scale)
            weights = {TOWER + name: weight for name, weight in self.model.tower.named_parameters().items()}
            groups = {TOWER + name: group for name, group in self._share_groups.items()}
            optimizers.tower = OptimizerShards(weights, groups, make)

    def graph(self, settings: StepSettings) -> SplitGraph:
        shared = settings.shared_by(self.group.size)
        names = self.model.tower.named_parameters()
        groups = {name: self._groups[name] for name in names}
        return SplitGraph(shared.forward_backward(), settings.optimizers, groups, self.group.communicator)

    def slices(self, arrays: Arrays) -> Arrays:
        """Return the slices of arrays that this rank saves, under names that contain their places in the whole arrays.

        If several ranks hold copies of a block, the first of them saves it.
        """
        saved: Arrays = {}
        rank = self.group.rank
        for name, array in arrays.items():
            parameter, group = self._parameter(name)
            if parameter is None:
                saved |= {name: array} if rank == 0 else {}
                continue
            layout, shape = parameter.layout, parameter.shape
            block = all_gather(group, layout.block_shape(shape), array) if group else array
            if not any(layout.block(other, shape) == layout.block(rank, shape) for other in range(rank)):
                saved[slice_name(name, layout.block(rank, shape), shape)] = block
        return saved

    def parts(self, whole: Arrays) -> Arrays:
        parts = {}
        for name, array in whole.items():
            parameter, group = self._parameter(name)
            if parameter is not None:
                array = np.ascontiguousarray(array[parameter.layout.block(self.group.rank, array.shape)])
            parts[name] = share_of(array, group) if group else array
        return parts

    def _parameter(self, name: str) -> tuple[SplitParameter | None, Communicator]:
        """Return the split parameter to which an array belongs, and the ranks that divide the array among themselves.

        The array is the parameter itself or a state of its optimizer. The parameter is None for arrays of the wide
        head, and the ranks are None for an array that is not divided into shares.
        """
        before, dot, key = name.rpartition(TOWER)
        if dot and (not before or before.endswith(".")) and key in self.plan.parameters:
            return self.plan.parameters[key], self._share_groups.get(key) if before else None
        return None, None
