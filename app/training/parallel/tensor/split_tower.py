"""The tower with each layer's product split over ranks: `app.model.wide_deep.Tower` of layers that talk to one another.

    rows ─ redistribute ─► x W ─ sum over inner ─► + numeric, bias ─► relu ─ redistribute ─► … ─► logits

A rank brings the rows of its slice of the batch and gets their logits. Parameters carry the names of the whole ones
and hold this rank's block of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from app.model.dense_layer import DenseLayer, dropout_multiplier
from app.model.wide_deep import NumericFields, Tower
from app.training.parallel.tensor.collectives import Communicator, Redistribute, SumGradientOver, SumOver, split
from app.training.parallel.tensor.layout import Layout
from app.training.parallel.tensor.layout_plan import TowerPlan
from app.training.parallel.tensor.strategy import INNER, OUTER, batch_slices


def split_tower(
    whole: Mapping[str, np.ndarray], plan: TowerPlan, world: Communicator, activation: str = "relu"
) -> Tower:
    """Make this rank's part of the tower. `whole` are the whole parameters' initial values by name.

    All ranks of `world` call it together.
    """
    blocks = {
        name: np.ascontiguousarray(whole[name][parameter.layout.block(world.Get_rank(), whole[name].shape)])
        for name, parameter in plan.parameters.items()
    }
    copies = 1.0
    if "numeric_rows" in blocks:
        rows = plan.parameters["numeric_rows"]
        copies = plan.num_ranks / rows.layout.mesh.size(rows.gradient_axes)
    numeric_fields, last = ShardedNumericFields(blocks, copies), len(plan.products) - 1
    layers = [ShardedLayer(world, plan, i, activation, numeric_fields.num) for i in range(last)]
    return Tower(numeric_fields, blocks, layers, ShardedOutput(world, plan, last))


class ShardedNumericFields(NumericFields):
    """The numeric fields' rows, and this rank's columns of their matrix."""

    def __init__(self, blocks: Mapping[str, np.ndarray], copies: float) -> None:
        """The rows' gradient is summed over only one of `copies` ranks that hold the same."""
        super().__init__(blocks)
        self.copies = copies

    def squared_norm(self) -> Tensor:
        """Return this rank's part of Σ‖E_f‖² in the loss.

        Some ranks hold copies, so the gradient is summed over fewer ranks. It is scaled up to compensate.
        """
        if self.num == 0:
            return Tensor(0.0, ms.float32)
        norm = ops.ReduceSum()(ops.square(self.numeric_rows)) * self.copies
        return norm - ops.stop_gradient(norm) * (1 - 1 / self.copies)


class ShardedMatMul(nn.Cell):
    """The product x W of layer `number`, x [B, K] in the layout of the layer before."""

    def __init__(self, world: Communicator, plan: TowerPlan, number: int) -> None:
        super().__init__()
        rank, product = world.Get_rank(), plan.products[number]
        before = plan.products[number - 1].output if number else batch_slices(plan.num_ranks)
        self.enter = Redistribute(world, before, product.input, (plan.batch_size, plan.widths[number]))
        # Each rank along `outer` multiplies its columns of W and knows their share of x's gradient alone.
        self.sum_gradient = SumGradientOver(split(world, product.input.mesh.group(rank, [OUTER])))
        self.product = ops.MatMul()
        self.sum_product = SumOver(split(world, product.input.mesh.group(rank, [INNER])))

    def construct(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """This rank's blocks of x and W -> its block of the product (layout `product.output`)."""
        inputs = self.sum_gradient(self.enter(inputs))
        return self.sum_product(self.product(inputs, weight))


class ShardedLayer(DenseLayer):
    """Hidden layer `number`: this rank's blocks of its inputs and weights -> its block of the outputs."""

    def __init__(self, world: Communicator, plan: TowerPlan, number: int, activation: str, num_numeric: int) -> None:
        super().__init__(activation=activation)
        slices, product = batch_slices(plan.num_ranks), plan.products[number]
        self.matmul = ShardedMatMul(world, plan, number)
        self.num_numeric = 0 if number else num_numeric
        self.numeric_product = ops.MatMul()
        if self.num_numeric:
            batch_only = Layout(product.input.mesh, (product.input.dims[0], ()))
            self.scatter_numeric = Redistribute(world, slices, batch_only, (plan.batch_size, self.num_numeric))
        self.slice_rows = plan.batch_size // plan.num_ranks
        everywhere = Layout(product.input.mesh, ((), ()))
        self.gather_rows = Redistribute(world, slices, everywhere, (plan.batch_size, 1))
        rows, units = product.output.block(world.Get_rank(), (plan.batch_size, plan.widths[number + 1]))
        self.block = (rows.start, rows.stop, units.start, units.stop)

    def sums(self, inputs: Tensor, weights: Tensor, numeric: Tensor, numeric_weights: Tensor) -> Tensor:
        """Return this rank's block of the units' sums. `numeric` [n, N + 1] are of its slice of the batch."""
        n = self.num_numeric
        if n == 0:
            return self.matmul(inputs, weights) + numeric_weights
        numeric = self.scatter_numeric(numeric[:, :n])
        inputs = ops.depend(inputs, numeric)  # the collectives in one order on all ranks
        return self.matmul(inputs, weights) + self.numeric_product(numeric, numeric_weights[:n]) + numeric_weights[n:]

    def activated(self, sums: Tensor, noise: Tensor | None) -> Tensor:
        outputs = self.activation(sums)
        if noise is None:
            return outputs
        first_row, end_row, first_unit, end_unit = self.block
        rows = self.row_numbers(ops.depend(noise, outputs))
        units = ops.arange(first_unit, end_unit, 1, dtype=ms.int32)
        return outputs * dropout_multiplier(noise, rows[first_row:end_row], units)

    def row_numbers(self, noise: Tensor) -> Tensor:
        """Return int32 [B]: the index in the global batch of each row of all ranks, padding rows included."""
        slice_numbers = noise[1] + ops.arange(0, self.slice_rows, 1, dtype=ms.int32)
        rows = self.gather_rows(slice_numbers.astype(ms.float32).expand_dims(1))  # floats are exact up to 2**24 rows
        return ops.stop_gradient(rows).reshape(-1).astype(ms.int32)


class ShardedOutput(nn.Cell):
    """The last layer's product, each rank's part of which becomes the logits of its slice of the batch."""

    def __init__(self, world: Communicator, plan: TowerPlan, number: int) -> None:
        super().__init__()
        self.matmul = ShardedMatMul(world, plan, number)
        slices = batch_slices(plan.num_ranks)
        self.leave = Redistribute(world, plan.products[number].output, slices, (plan.batch_size, 1))

    def construct(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """This rank's blocks -> the logits [n, 1] of its slice."""
        return self.leave(self.matmul(inputs, weight))


def gradient_groups(plan: TowerPlan, names: Sequence[str], world: Communicator) -> dict[str, Communicator]:
    """Return, for each parameter, the communicator of the ranks over which its gradient is summed."""
    parameters = {name: plan.parameters[name] for name in names}
    return {
        name: split(world, parameter.layout.mesh.group(world.Get_rank(), parameter.gradient_axes))
        for name, parameter in parameters.items()
    }
