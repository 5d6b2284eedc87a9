"""The tower with each layer's product split over ranks; the same function as `app.model.wide_deep.Tower`.

    rows ─ redistribute ─► x W ─ sum over inner ─► + numeric, bias ─► relu ─ redistribute ─► … ─► logits

A rank brings the rows of its slice of the batch and gets their logits. Parameters carry the names of the whole ones
and hold this rank's block of them.

Letters: B batch of all ranks, n rows of one rank's slice, C fields, N numeric, D width, H width of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from app.model.batch_norm import BatchNorm
from app.model.dense_layer import ACTIVATIONS, dropout_multiplier
from app.model.wide_deep import NumericFields
from app.training.parallel.tensor.collectives import Communicator, Redistribute, SumGradientOver, SumOver, split
from app.training.parallel.tensor.layout import Layout
from app.training.parallel.tensor.layout_plan import TowerPlan
from app.training.parallel.tensor.strategy import INNER, OUTER, ShardedProduct, batch_slices


class ShardedTower(nn.Cell):
    """This rank's part of the tower; `whole` are the whole parameters' initial values by name."""

    def __init__(
        self, whole: Mapping[str, np.ndarray], plan: TowerPlan, world: Communicator, activation: str = "relu"
    ) -> None:
        super().__init__()
        self.activation, self.batch_norm = ACTIVATIONS[activation](), False
        self.num_layers = len(plan.products)
        self.product = ops.MatMul()
        blocks = {
            name: np.ascontiguousarray(whole[name][parameter.layout.block(world.Get_rank(), whole[name].shape)])
            for name, parameter in plan.parameters.items()
        }
        numeric = [blocks.pop(name, np.zeros((0, 0), np.float32)) for name in ("numeric_rows", "numeric_matrix")]
        self.numeric_fields = NumericFields(*numeric)
        self.num_numeric = self.numeric_fields.num
        held = {name: Parameter(Tensor(block), name=name) for name, block in blocks.items()}
        self.matrices = ParameterTuple([held[f"matrix_{i}"] for i in range(self.num_layers)])
        self.biases = ParameterTuple([held[f"bias_{i}"] for i in range(self.num_layers - 1)])
        if self.num_numeric:
            rows = plan.parameters["numeric_rows"]
            self.copies_of_numeric_gradient = plan.num_ranks / rows.layout.mesh.size(rows.gradient_axes)
        slices = batch_slices(plan.num_ranks)
        first = plan.products[0]
        batch_only = Layout(first.input.mesh, (first.input.dims[0], ()))
        self.scatter_numeric = Redistribute(world, slices, batch_only, (plan.batch_size, self.num_numeric))
        layouts = [slices, *(product.output for product in plan.products)]
        self.layers = nn.CellList(
            [
                ShardedMatMul(world, before, product, plan.batch_size, width)
                for product, before, width in zip(plan.products, layouts, plan.widths, strict=False)
            ]
        )
        self.leave = Redistribute(world, layouts[-1], slices, (plan.batch_size, 1))
        rank, everywhere = world.Get_rank(), Layout(first.input.mesh, ((), ()))
        self.slice_rows = plan.batch_size // plan.num_ranks
        self.gather_rows = Redistribute(world, slices, everywhere, (plan.batch_size, 1))
        outputs = [
            product.output.block(rank, (plan.batch_size, width))
            for product, width in zip(plan.products, plan.widths[1:], strict=True)
        ]
        self.places = tuple((rows.start, rows.stop, units.start, units.stop) for rows, units in outputs)

    def construct(
        self,
        deep_rows: Tensor,
        numeric: Tensor,
        noise: Tensor | None = None,
        example_weights: Tensor | None = None,
        index: Tensor | None = None,
        fields: Tensor | None = None,
    ) -> Tensor:
        """`deep_rows` [n, C * D], `numeric` [n, N], of this rank's slice -> its logits [n].

        `noise` is as in `Tower`; the others are for batch normalization and distinct rows, which a split tower lacks.
        """
        hidden, rows = deep_rows, None
        if self.num_numeric:
            numeric = self.scatter_numeric(numeric)
            hidden = ops.depend(hidden, numeric)  # the collectives in one order on all ranks
        if noise is not None:
            rows = self.row_numbers(ops.depend(noise, hidden))
            hidden = ops.depend(hidden, rows)
        for i in range(self.num_layers):
            hidden = self.layers[i](hidden, self.matrices[i])
            if i == 0 and self.num_numeric:  # x @ (E_f · W_f), of this rank's columns
                hidden = hidden + self.product(numeric, self.numeric_fields.folded())
            if i < self.num_layers - 1:
                hidden = self.activation(hidden + self.biases[i])
                if noise is not None:
                    hidden = hidden * self.multiplier(i, noise[i], rows)
        return self.leave(hidden).reshape(-1)

    def row_numbers(self, noise: Tensor) -> Tensor:
        """Return int32 [B]: the index in the global batch of each row of all ranks, padding rows included."""
        own = noise[0, 1] + ops.arange(0, self.slice_rows, 1, dtype=ms.int32)
        rows = self.gather_rows(own.astype(ms.float32).expand_dims(1))  # floats are exact up to 2**24 rows
        return ops.stop_gradient(rows).reshape(-1).astype(ms.int32)

    def multiplier(self, i: int, noise: Tensor, rows: Tensor) -> Tensor:
        """Return the dropout multiplier of this rank's block of layer i's outputs."""
        first_row, end_row, first_unit, end_unit = self.places[i]
        units = ops.arange(first_unit, end_unit, 1, dtype=ms.int32)
        return dropout_multiplier(noise, rows[first_row:end_row], units)

    def norms(self) -> list[BatchNorm]:
        """Return none: a split tower has no batch normalization."""
        return []

    def numeric_rows_squared_norm(self) -> Tensor:
        """Return this rank's part of Σ‖E_f‖² in the loss.

        The gradient is summed over fewer ranks, as some hold copies of it, and is larger here by that factor.
        """
        if self.num_numeric == 0:
            return Tensor(0.0, ms.float32)
        norm = self.numeric_fields.squared_norm() * self.copies_of_numeric_gradient
        return norm - ops.stop_gradient(norm) * (1 - 1 / self.copies_of_numeric_gradient)


def gradient_groups(plan: TowerPlan, names: Sequence[str], world: Communicator) -> dict[str, Communicator]:
    """Return, for each parameter, the communicator of the ranks over which its gradient is summed."""
    parameters = {name: plan.parameters[name] for name in names}
    return {
        name: split(world, parameter.layout.mesh.group(world.Get_rank(), parameter.gradient_axes))
        for name, parameter in parameters.items()
    }


class ShardedMatMul(nn.Cell):
    """x W for an x [B, K] in the layout `before`; all ranks of `world` construct it together."""

    def __init__(
        self, world: Communicator, before: Layout, product: ShardedProduct, batch_size: int, width_in: int
    ) -> None:
        super().__init__()
        rank, mesh = world.Get_rank(), product.input.mesh
        self.enter = Redistribute(world, before, product.input, (batch_size, width_in))
        # Each rank along `outer` multiplies its columns of W and knows their share of x's gradient alone.
        self.sum_gradient = SumGradientOver(split(world, mesh.group(rank, [OUTER])))
        self.product = ops.MatMul()
        self.sum_product = SumOver(split(world, mesh.group(rank, [INNER])))

    def construct(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """This rank's blocks of x (layout `before`) and W -> its block of the product (layout `product.output`)."""
        inputs = self.sum_gradient(self.enter(inputs))
        return self.sum_product(self.product(inputs, weight))
