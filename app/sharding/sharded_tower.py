"""The tower with each layer's product split over ranks: the same function as `app.wide_deep.Tower`, a part a rank.

    rows ─ redistribute ─► x W ─ sum over inner ─► + numeric, bias ─► relu ─ redistribute ─► … ─► logits

A rank brings the rows of its slice of the batch and gets their logits. Parameters carry the names of the whole ones
and hold this rank's block of them.

Letters: B batch of all ranks, n rows of one rank's slice, C fields, N numeric, D width, H width of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from app.sharding import strategy
from app.sharding.collectives import Communicator, Redistribute, SumInTurn, SumOver, split
from app.sharding.layout import Layout
from app.sharding.sharded_matmul import ShardedMatMul
from app.sharding.strategy import BATCH, DATA, OUTER, Strategy


@dataclass(frozen=True)
class ShardedParameter:
    """How one parameter lies over the ranks, and over which axes its gradient is in parts."""

    shape: tuple[int, ...]  # of the whole
    layout: Layout
    gradient_axes: tuple[str, ...]


@dataclass(frozen=True)
class TowerPlan:
    """Who holds what of a tower. Plain numbers: no MPI, no MindSpore parameter."""

    batch_size: int  # B
    num_ranks: int
    products: tuple[strategy.ShardedProduct, ...]
    widths: tuple[int, ...]  # of the first layer's looked-up input, of each hidden layer, 1
    parameters: Mapping[str, ShardedParameter]


def layer_names(hidden_widths: Sequence[int]) -> tuple[str, ...]:
    """The layers' names in settings: those of their matrices."""
    return tuple(f"matrix_{i}" for i in range(len(hidden_widths) + 1))


def plan_tower(
    whole: Mapping[str, tuple[int, ...]],
    strategies: Mapping[str, Strategy],
    batch_size: int,
    data_parallel: int,
    group_size: int,
) -> TowerPlan:
    """Who holds what of the tower whose parameters have the shapes `whole`.

    Raises ValueError naming layer, dimension and divisor where a strategy does not fit.
    """
    num_ranks = data_parallel * group_size
    if batch_size % num_ranks:
        raise ValueError(
            f"train.batch_size of {batch_size} does not divide by the {num_ranks} ranks; "
            f"{batch_size - batch_size % num_ranks or num_ranks} would"
        )
    products, parameters = [], {}
    for i, (name, chosen) in enumerate(strategies.items()):
        height, width = whole[name]
        strategy.check(name, chosen, batch_size // data_parallel, height, width, group_size)
        product = strategy.shard(chosen, data_parallel, group_size)
        products.append(product)
        parameters[name] = ShardedParameter((height, width), product.weight, (DATA, BATCH))
        if f"bias_{i}" in whole:
            columns = Layout(product.weight.mesh, ((OUTER,),))
            parameters[f"bias_{i}"] = ShardedParameter((width,), columns, (DATA, BATCH))
    first = products[0].weight.mesh
    if "numeric_rows" in whole:
        # Each rank of `outer` knows of the rows' gradient what its columns of the matrix give.
        copies, columns = Layout(first, ((), ())), Layout(first, ((), (), (OUTER,)))
        parameters["numeric_rows"] = ShardedParameter(whole["numeric_rows"], copies, (DATA, BATCH, OUTER))
        parameters["numeric_matrix"] = ShardedParameter(whole["numeric_matrix"], columns, (DATA, BATCH))
    widths = (whole["matrix_0"][0], *(whole[name][1] for name in strategies))
    return TowerPlan(batch_size, num_ranks, tuple(products), widths, parameters)


class ShardedTower(nn.Cell):
    """This rank's share of the tower; `whole` are the whole parameters' initial values by name."""

    def __init__(self, whole: Mapping[str, np.ndarray], plan: TowerPlan, world: Communicator) -> None:
        super().__init__()
        self.num_layers = len(plan.products)
        self.num_numeric = len(whole.get("numeric_rows", ()))
        self.product, self.product_each = ops.MatMul(), ops.BatchMatMul()
        held = {name: Parameter(Tensor(_block(whole[name], plan, name, world)), name=name) for name in plan.parameters}
        self.matrices = ParameterTuple([held[f"matrix_{i}"] for i in range(self.num_layers)])
        self.biases = ParameterTuple([held[f"bias_{i}"] for i in range(self.num_layers - 1)])
        if self.num_numeric:
            self.numeric_rows, self.numeric_matrix = held["numeric_rows"], held["numeric_matrix"]
        slices = strategy.batch_slices(plan.num_ranks)
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

    def construct(self, deep_rows: Tensor, numeric: Tensor) -> Tensor:
        """`deep_rows` [n, C * D], `numeric` [n, N], of this rank's slice -> its logits [n]."""
        numeric = self.scatter_numeric(numeric)
        hidden = ops.depend(deep_rows, numeric)  # the collectives in one order on all ranks
        for i in range(self.num_layers):
            hidden = self.layers[i](hidden, self.matrices[i])
            if i == 0:
                hidden = hidden + self.numeric_share(numeric)
            if i < self.num_layers - 1:
                hidden = ops.relu(hidden + self.biases[i])
        return self.leave(hidden).reshape(-1)

    def numeric_share(self, numeric: Tensor) -> Tensor:
        """What the numeric fields add to the first layer's columns of this rank: x @ (E_f · W_f)."""
        if self.num_numeric == 0:
            return Tensor(0.0, ms.float32)
        folded = self.product_each(self.numeric_rows.expand_dims(1), self.numeric_matrix).squeeze(1)
        return self.product(numeric, folded)


def gradient_groups(plan: TowerPlan, names: Sequence[str], world: Communicator) -> dict[str, Communicator]:
    """For each of the parameters `names` the ranks that each know a part of its gradient."""
    parameters = {name: plan.parameters[name] for name in names}
    return {
        name: split(world, parameter.layout.mesh.group(world.Get_rank(), parameter.gradient_axes))
        for name, parameter in parameters.items()
    }


def gradient_sums(plan: TowerPlan, names: Sequence[str], world: Communicator) -> SumInTurn:
    """What sums the gradients of the parameters `names` over the ranks that each know a part of them."""
    return SumInTurn([SumOver(group) for group in gradient_groups(plan, names, world).values()])


def _block(whole: np.ndarray, plan: TowerPlan, name: str, world: Communicator) -> np.ndarray:
    layout = plan.parameters[name].layout
    return np.ascontiguousarray(whole[layout.block(world.Get_rank(), whole.shape)])
