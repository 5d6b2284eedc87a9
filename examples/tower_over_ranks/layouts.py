"""Define how ranks split a matrix product, in MindSpore's notation, and which block of each array a rank then holds.

`((2, 4), (4, 1))` for x [B, K] times W [K, H] on 8 ranks splits B in 2 parts, K (of both matrices) in 4, and H not at
all. The ranks form a mesh of 2 x 4 x 1 whose last axis runs fastest. This is plain arithmetic, without MPI and
MindSpore.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

BATCH, INNER, OUTER, COPY = range(4)  # the axes of a mesh
EXAMPLE = "write it as MindSpore does: ((2, 4), (4, 1)) for input (batch, width) and weight (height, width)"

Block = tuple[slice, ...]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Strategy:
    """The numbers of parts into which the batch, the inner dimension and the outer dimension of a product are split."""

    batch: int = 1
    inner: int = 1
    outer: int = 1

    @property
    def num_ranks(self) -> int:
        """The number of ranks that do different work with this strategy."""
        return self.batch * self.inner * self.outer

    def __str__(self) -> str:
        return f"(({self.batch}, {self.inner}), ({self.inner}, {self.outer}))"


@dataclass(frozen=True)
class Layout:
    """How an array is split over a mesh of ranks: for each dimension, the axis of the mesh that splits it.

    The axis is None for a dimension that stays whole. Ranks that differ only along other axes hold copies.
    """

    mesh: tuple[int, ...]
    axes: tuple[int | None, ...]

    @property
    def num_ranks(self) -> int:
        return math.prod(self.mesh)

    def block(self, rank: int, shape: Sequence[int]) -> Block:
        """Return the block, as slices, that `rank` holds of an array of shape `shape`.

        Each dimension must be divisible by its number of parts.
        """
        place = np.unravel_index(rank, self.mesh)
        slices = []
        for length, axis in zip(shape, self.axes, strict=True):
            index, parts = (0, 1) if axis is None else (int(place[axis]), self.mesh[axis])
            slices.append(slice(index * length // parts, (index + 1) * length // parts))
        return tuple(slices)

    def block_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(part.stop - part.start for part in self.block(0, shape))

    def group(self, rank: int, axes: Sequence[int]) -> list[int]:
        """Return `rank` and all ranks that differ from it only along the given axes of the mesh, in ascending order."""
        place = np.unravel_index(rank, self.mesh)
        cut = tuple(slice(None) if axis in axes else place[axis] for axis in range(len(self.mesh)))
        ranks: list[int] = np.arange(self.num_ranks).reshape(self.mesh)[cut].ravel().tolist()
        return ranks


def slices_of_batch(num_ranks: int) -> Layout:
    """Return the layout of a matrix with one row for each row of the batch. Each rank has a slice of the rows."""
    return Layout((num_ranks, 1, 1, 1), (BATCH, None))


@dataclass(frozen=True)
class SplitProduct:
    """Layouts of the input, the weight and the output of a split product.

    A block of the output is the sum of products over the ranks along the axis INNER.
    """

    input: Layout
    weight: Layout
    output: Layout


@dataclass(frozen=True)
class SplitParameter:
    """The whole shape of a parameter, its layout, and the axes of the mesh over whose ranks its gradient is summed."""

    shape: tuple[int, ...]
    layout: Layout
    gradient_axes: tuple[int, ...]


@dataclass(frozen=True)
class TowerPlan:
    """The layouts of the products and parameters of a tower.

    `widths` are the widths of the tower's input and of each layer.
    """

    batch_size: int
    num_ranks: int
    products: tuple[SplitProduct, ...]
    widths: tuple[int, ...]
    parameters: Mapping[str, SplitParameter]


def parse(text: str, layer: str) -> Strategy:
    """Return the strategy that a text such as "((2, 4), (4, 1))" means.

    Raise ValueError, naming the layer, if it means none.
    """
    try:
        (batch, inner), (height, outer) = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError) as error:
        raise ValueError(f"{layer}: {text!r} is no strategy; {EXAMPLE}") from error
    if not all(type(number) is int and number >= 1 for number in (batch, inner, height, outer)):
        raise ValueError(f"{layer}: the parts in {text!r} must be whole numbers of 1 or more; {EXAMPLE}")
    if inner != height:
        raise ValueError(
            f"{layer}: {text} splits the input's width in {inner} parts and the weight's height in {height}; they are "
            "the same dimension and must be split alike"
        )
    return Strategy(batch, inner, outer)


def parse_all(texts: Mapping[str, str], layers: Sequence[str]) -> dict[str, Strategy]:
    """Return the strategies of layers by name, parsed from `texts`.

    Raise ValueError for a layer that does not exist.
    """
    for name in texts:
        if name not in layers:
            raise ValueError(f"there is no layer {name!r}; the layers are {', '.join(layers)}")
    return {name: parse(text, name) for name, text in texts.items()}


def check(layer: str, strategy: Strategy, batch: int, shape: tuple[int, ...], num_ranks: int) -> None:
    """Raise ValueError unless ranks, batch and weight can be divided as the strategy of a layer says.

    The message names the layer, the dimension and the divisor.
    """
    if num_ranks % strategy.num_ranks:
        raise ValueError(
            f"{layer}: {strategy} is for {strategy.num_ranks} ranks, which do not divide {num_ranks} ranks"
        )
    lengths = {"batch": (batch, strategy.batch), "width in": (shape[0], strategy.inner)}
    for name, (length, parts) in {**lengths, "width out": (shape[1], strategy.outer)}.items():
        if length % parts:
            nearest = math.gcd(length, parts)
            raise ValueError(
                f"{layer}: {strategy}: the {name} of {length} does not divide into {parts} parts; {nearest} would"
            )


def find_strategy(batch: int, shape: tuple[int, ...], num_ranks: int) -> Strategy:
    """Return the strategy over all ranks for which a training step sends the fewest numbers: the automatic choice.

    The numbers that are counted are those of sums over ranks: of outputs if the inner dimension is split, of the
    input's gradients if the outer dimension is, of the weight's gradients if the batch is. What it takes to change
    layouts between layers is left out.
    """
    height, width = shape

    def sent(parts: Strategy) -> float:
        outputs = (parts.inner - 1) * batch * width / (parts.batch * parts.outer)
        inputs = (parts.outer - 1) * batch * height / (parts.batch * parts.inner)
        return outputs + inputs + (parts.batch - 1) * height * width / (parts.inner * parts.outer)

    counts = [count for count in range(1, num_ranks + 1) if num_ranks % count == 0]
    every = (Strategy(*parts) for parts in itertools.product(counts, repeat=3) if math.prod(parts) == num_ranks)
    fitting = (s for s in every if batch % s.batch == 0 and height % s.inner == 0 and width % s.outer == 0)
    return min(fitting, key=sent)


def split_product(strategy: Strategy, num_ranks: int) -> SplitProduct:
    """Return the layouts of a product that `num_ranks` ranks compute by a strategy.

    If the strategy is for fewer ranks, the others hold copies.
    """
    mesh = (strategy.batch, strategy.inner, strategy.outer, num_ranks // strategy.num_ranks)
    return SplitProduct(Layout(mesh, (BATCH, INNER)), Layout(mesh, (INNER, OUTER)), Layout(mesh, (BATCH, OUTER)))


def plan_tower(shapes: Shapes, strategies: Mapping[str, Strategy], batch_size: int, num_ranks: int) -> TowerPlan:
    """Return the layouts of a tower whose whole parameters have `shapes`, with a strategy for each layer.

    Raise ValueError, naming layer, dimension and divisor, if a strategy does not fit.
    """
    products, parameters = [], {}
    for i, (name, strategy) in enumerate(strategies.items()):
        check(name, strategy, batch_size, shapes[name], num_ranks)
        product = split_product(strategy, num_ranks)
        products.append(product)
        parameters[name] = SplitParameter(shapes[name], product.weight, (BATCH,))
        if f"bias_{i}" in shapes:
            parameters[f"bias_{i}"] = SplitParameter(
                shapes[f"bias_{i}"], Layout(product.weight.mesh, (OUTER,)), (BATCH,)
            )
    mesh = products[0].weight.mesh
    if "numeric_rows" in shapes:
        # Each rank along OUTER computes only a share of the rows' gradient, from its own columns of the matrix.
        rows, matrix = Layout(mesh, (None, None)), Layout(mesh, (None, None, OUTER))
        parameters["numeric_rows"] = SplitParameter(shapes["numeric_rows"], rows, (BATCH, OUTER))
        parameters["numeric_matrix"] = SplitParameter(shapes["numeric_matrix"], matrix, (BATCH,))
    widths = (shapes["matrix_0"][0], *(shapes[name][1] for name in strategies))
    return TowerPlan(batch_size, num_ranks, tuple(products), widths, parameters)
