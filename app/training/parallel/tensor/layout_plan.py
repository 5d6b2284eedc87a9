"""Plan of a split tower: the layout of each product and parameter. Plain numbers, no MPI, no MindSpore."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.config.config import Config
from app.config.parallel import ParallelOptions
from app.tables.model_fields import fields_of_model, num_deep_inputs
from app.training.parallel.tensor import strategy
from app.training.parallel.tensor.layout import Layout
from app.training.parallel.tensor.strategy import BATCH, DATA, OUTER, Strategy
from data_prep.prepared.schema import Schema

TOWER = "tower."  # before the parameters' names, in the whole model
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class ShardedParameter:
    """Layout of one parameter over the ranks, and the axes over which its gradient is summed."""

    shape: tuple[int, ...]  # of the whole
    layout: Layout
    gradient_axes: tuple[str, ...]

    def copies(self, num_shares: int = 1) -> int:
        """Return the number of ranks that hold the same piece, if a block is in `num_shares` shards."""
        return self.layout.mesh.num_ranks // (math.prod(self.layout.parts) * num_shares)


@dataclass(frozen=True)
class TowerPlan:
    """Layouts of a tower's products and parameters."""

    batch_size: int  # B
    num_ranks: int
    products: tuple[strategy.ShardedProduct, ...]
    widths: tuple[int, ...]  # of the first layer's looked-up input, of each hidden layer, 1
    parameters: Mapping[str, ShardedParameter]


def layer_names(num_layers: int) -> tuple[str, ...]:
    """Return the layers' names in settings, which are those of their matrices. The last is the output's."""
    return tuple(f"matrix_{i}" for i in range(num_layers))


def plan_tower(
    whole: Mapping[str, tuple[int, ...]],
    strategies: Mapping[str, Strategy],
    batch_size: int,
    data_parallel: int,
    group_size: int,
) -> TowerPlan:
    """Plan the tower whose parameters have the shapes `whole`.

    Raises ValueError, naming layer, dimension and divisor, if a strategy does not fit.
    """
    num_ranks = data_parallel * group_size
    if batch_size % num_ranks:
        raise ValueError(
            f"train.batch_size of {batch_size} does not divide by the {num_ranks} ranks; "
            f"{batch_size - batch_size % num_ranks or num_ranks} would"
        )
    products, parameters = [], {}
    for i, (name, text) in enumerate(strategies.items()):
        height, width = whole[name]
        strategy.check(name, text, batch_size // data_parallel, height, width, group_size)
        product = strategy.shard(text, data_parallel, group_size)
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


def plan_run(
    whole: Mapping[str, tuple[int, ...]], options: ParallelOptions, batch_size: int, num_ranks: int
) -> TowerPlan:
    """Plan the tower of a run. `batch_size` is a multiple of the ranks. Raises as `plan_tower`."""
    layers = [name for name in whole if name.startswith("matrix_")]
    group_size = options.tensor_parallel
    strategies = strategy.parse_all(options.strategies, layers, group_size)
    return plan_tower(whole, strategies, batch_size, num_ranks // group_size, group_size)


def run_shapes(config: Config, schema: Schema) -> Shapes:
    """Return the shapes of the whole tower's parameters in a run."""
    model = config.model
    num_fields = num_deep_inputs(fields_of_model(schema, model))
    return tower_shapes(num_fields, schema.num_numeric, model.embedding_dim, model.hidden_widths)


def tower_shapes(num_fields: int, num_numeric: int, embedding_dim: int, hidden_widths: Sequence[int]) -> Shapes:
    """Return the shapes of the whole tower's parameters, by their names in `app.model.wide_deep.Tower`."""
    widths = (num_fields * embedding_dim, *hidden_widths, 1)
    shapes: Shapes = {name: (widths[i], widths[i + 1]) for i, name in enumerate(layer_names(len(widths) - 1))}
    shapes |= {f"bias_{i}": (width,) for i, width in enumerate(hidden_widths)}
    if num_numeric:
        shapes["numeric_rows"] = (num_numeric, embedding_dim)
        shapes["numeric_matrix"] = (num_numeric, embedding_dim, hidden_widths[0])
    return shapes


def describe_plan(plan: TowerPlan) -> list[str]:
    """Return a line for each rank: its slice of every parameter."""
    lines = []
    for rank in range(plan.num_ranks):
        slices = []
        for name, parameter in plan.parameters.items():
            block = parameter.layout.block(rank, parameter.shape)
            places = ", ".join(f"{part.start}:{part.stop}" for part in block)
            slices.append(f"{name}[{places}] of {list(parameter.shape)}")
        lines.append(f"rank {rank}: " + "; ".join(slices))
    return lines
