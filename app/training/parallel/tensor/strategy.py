"""Strategies: how ranks split the matrix product of a layer, in MindSpore's notation.

`((2, 4), (4, 1))` means: the input [B, K] is split in 2 along B and in 4 along K, the weight [K, H] in 4 along K and
not along H. The ranks are then a mesh of 2 x 4 x 1. The 4 ranks that share a part of B and H sum their products.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.training.parallel.tensor.layout import Layout, Mesh

DATA, BATCH, INNER, OUTER, COPY = "data", "batch", "inner", "outer", "copy"
EXAMPLE = "write it as MindSpore does: ((2, 4), (4, 1)) for input (batch, width) and weight (height, width)"


@dataclass(frozen=True)
class Strategy:
    """Number of parts of a product's batch, inner and outer dimension."""

    batch: int = 1
    inner: int = 1
    outer: int = 1

    @property
    def num_ranks(self) -> int:
        """Number of ranks with different work."""
        return self.batch * self.inner * self.outer

    def __str__(self) -> str:
        return f"(({self.batch}, {self.inner}), ({self.inner}, {self.outer}))"


@dataclass(frozen=True)
class ShardedProduct:
    """Layouts of input, weight and output of a product. Output blocks are sums over the axis `inner`."""

    input: Layout
    weight: Layout
    output: Layout


def parse(text: str, layer: str) -> Strategy:
    """Parse a strategy. Raise ValueError naming the layer and the mistake."""
    where = f"parallel.strategies.{layer}"
    try:
        (batch, inner), (height, outer) = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError) as error:
        raise ValueError(f"{where}: {text!r} is no strategy; {EXAMPLE}") from error
    numbers = (batch, inner, height, outer)
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 1 for number in numbers):
        raise ValueError(f"{where}: the parts in {text!r} must be whole numbers of 1 or more; {EXAMPLE}")
    if inner != height:
        raise ValueError(
            f"{where}: {text} splits the input's width in {inner} and the weight's height in {height}; "
            "they are the same dimension and must be split alike"
        )
    return Strategy(batch, inner, outer)


def parse_all(texts: Mapping[str, str], layers: Sequence[str], group_size: int) -> dict[str, Strategy]:
    """Return a strategy for each of `layers`. Those that `texts` does not name split the batch over the group.

    Raises ValueError for a layer that does not exist, and as `parse`.
    """
    for name in texts:
        if name not in layers:
            raise ValueError(f"parallel.strategies: there is no layer {name!r}; the layers are {', '.join(layers)}")
    return {layer: parse(texts[layer], layer) if layer in texts else Strategy(batch=group_size) for layer in layers}


def check(layer: str, strategy: Strategy, batch: int, height: int, width: int, group_size: int) -> None:
    """Raise ValueError, naming layer, dimension and divisor, unless the product divides as in the strategy.

    `batch` is the rows that the group of `group_size` ranks shares, `height` x `width` the weight's shape.
    """
    where = f"parallel.strategies.{layer}: {strategy}"
    if strategy.num_ranks > group_size:
        raise ValueError(
            f"{where} needs {strategy.num_ranks} ranks, there are {group_size} "
            "(parallel.tensor_parallel); use fewer parts or more ranks"
        )
    if group_size % strategy.num_ranks:
        raise ValueError(
            f"{where} uses {strategy.num_ranks} ranks, and {group_size} (parallel.tensor_parallel) is no multiple of "
            f"that: {group_size % strategy.num_ranks} would be left over"
        )
    dimensions = (
        ("batch", batch, strategy.batch),
        ("width in", height, strategy.inner),
        ("width out", width, strategy.outer),
    )
    for name, length, parts in dimensions:
        if length % parts:
            nearest = math.gcd(length, parts)
            raise ValueError(
                f"{where}: the {name} of {length} does not divide into {parts} parts; "
                f"{nearest} would (or a {name} of {length - length % parts or parts})"
            )


def shard(strategy: Strategy, data_parallel: int, group_size: int) -> ShardedProduct:
    """Return the layouts of a product over `data_parallel` groups of `group_size` ranks. Spare ranks hold copies."""
    copies = group_size // strategy.num_ranks
    axes = (
        (DATA, data_parallel),
        (BATCH, strategy.batch),
        (INNER, strategy.inner),
        (OUTER, strategy.outer),
        (COPY, copies),
    )
    mesh = Mesh(axes)
    return ShardedProduct(
        input=Layout(mesh, ((DATA, BATCH), (INNER,))),
        weight=Layout(mesh, ((INNER,), (OUTER,))),
        output=Layout(mesh, ((DATA, BATCH), (OUTER,))),
    )


def batch_slices(num_ranks: int) -> Layout:
    """Return the layout of a matrix of which every rank has a slice of the rows."""
    return Layout(Mesh(((DATA, num_ranks),)), ((DATA,), ()))
