"""Collective operations inside a MindSpore graph on a CPU, over MPI: cells with their gradients.

MindSpore 2.10 compiles no sharded graph on a CPU ("only support Ascend/GPU backend"). Each operation here is a host
function in the graph (`ops.Custom`, pyfunc) that blocks, so every rank must reach the same ones in the same order. The
executor keeps only an order that data dependencies force: callers chain independent operations with `ops.depend`.

The rule for gradients: ranks that hold copies of an array hold copies of its whole gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from examples.tower_over_ranks.layouts import Layout

Communicator = Any  # mpi4py has no types that mypy could follow without it
Shape = tuple[int, ...]


class HostOperator(nn.Cell):
    """A function of one float32 array as a cell without a gradient. `shape` maps the input's shape to the output's."""

    def __init__(self, function: Callable[[np.ndarray], np.ndarray], shape: Callable[[Shape], Shape]) -> None:
        super().__init__()

        def call(values: np.ndarray) -> np.ndarray:  # ops.Custom asks for a plain function
            return function(values)

        self.operator = ops.Custom(call, out_shape=shape, out_dtype=lambda dtype: dtype, func_type="pyfunc")

    def construct(self, values: Tensor) -> Tensor:
        return self.operator(values)


def split(world: Communicator, ranks: Sequence[int]) -> Communicator:
    """Return the communicator of `ranks`, this one among them. All ranks of `world` call it together."""
    return world.Split(color=min(ranks), key=world.Get_rank())


def all_reduce(group: Communicator, values: np.ndarray) -> np.ndarray:
    """Return the sum over the ranks of the group, float32."""
    total = np.empty_like(values, order="C")
    group.Allreduce(np.ascontiguousarray(values), total)
    return total


class SumOver(nn.Cell):
    """The sum over the ranks of a group. The gradient stays each rank's own."""

    def __init__(self, group: Communicator) -> None:
        super().__init__()
        self.single = group.Get_size() == 1
        self.all_reduce = HostOperator(functools.partial(all_reduce, group), lambda shape: shape)

    def construct(self, values: Tensor) -> Tensor:
        """Map partial sums of any shape to the sum, the same bits on every rank."""
        if self.single:
            return values
        return self.all_reduce(values)

    def bprop(self, values: Tensor, total: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return (gradient,)


class SumGradientOver(nn.Cell):
    """The identity, whose gradient is summed over the ranks of a group: each of them used the value for a part."""

    def __init__(self, group: Communicator) -> None:
        super().__init__()
        self.sum = SumOver(group)

    def construct(self, values: Tensor) -> Tensor:
        return values

    def bprop(self, values: Tensor, same: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return (self.sum(gradient),)


class InTurn(nn.Cell):
    """Operations on several arrays, each over a group of its own, one after the other on all ranks.

    It sums parameters' gradients, outside the automatic gradient, which would not order them.
    """

    def __init__(self, operations: Sequence[nn.Cell]) -> None:
        super().__init__()
        self.operations = nn.CellList(operations)

    def construct(self, parts: tuple[Tensor, ...], after: Tensor) -> tuple[Tensor, ...]:
        """Map `parts` of any shapes to their results. The first operation starts once `after` is computed."""
        results: tuple[Tensor, ...] = ()
        for i in range(len(parts)):
            after = self.operations[i](ops.depend(parts[i], after))
            results = (*results, after)
        return results


class Redistribute(nn.Cell):
    """Moves an array of `shape` from the layout `source` to the layout `target`; its gradient goes back."""

    def __init__(self, world: Communicator, source: Layout, target: Layout, shape: Shape) -> None:
        super().__init__()
        ranks = range(source.num_ranks)
        self.nothing_moves = all(source.block(rank, shape) == target.block(rank, shape) for rank in ranks)
        there, back = (functools.partial(exchange, world, *way, shape) for way in ((source, target), (target, source)))
        self.forward = HostOperator(there, lambda _: target.block_shape(shape))
        self.backward = HostOperator(back, lambda _: source.block_shape(shape))

    def construct(self, block: Tensor) -> Tensor:
        """Map this rank's block in `source` to its block in `target`."""
        if self.nothing_moves:
            return block
        return self.forward(block)

    def bprop(self, block: Tensor, moved: Tensor, gradient: Tensor) -> tuple[Tensor]:
        if self.nothing_moves:
            return (gradient,)
        return (self.backward(gradient),)


def exchange(world: Communicator, source: Layout, target: Layout, shape: Shape, block: np.ndarray) -> np.ndarray:
    """Return this rank's block in `target` of the array whose block in `source` it has.

    Every rank gathers the whole array, which is short to write. A library would send only the pieces that are missing.
    """
    blocks = np.empty((world.Get_size(), *block.shape), block.dtype)
    world.Allgather(np.ascontiguousarray(block), blocks)
    whole = np.empty(shape, block.dtype)
    for rank, part in enumerate(blocks):
        whole[source.block(rank, shape)] = part
    return np.ascontiguousarray(whole[target.block(world.Get_rank(), shape)])
