"""Collective operations over MPI inside a MindSpore graph on a CPU, as cells with gradients.

MindSpore 2.10 compiles no sharded graph on a CPU ("only support Ascend/GPU backend"). Each operation here is a host
function in the graph (`ops.Custom`, pyfunc) that blocks, so every rank must reach the same operations in the same
order. MindSpore's executor keeps only an order that data dependencies force, so callers chain independent operations
with `ops.depend`.

The rule for gradients: ranks that hold copies of an array hold copies of its whole gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from examples.tower_over_ranks.layouts import Layout

Communicator = Any  # `Any`, because mypy finds no types of mpi4py.
Shape = tuple[int, ...]


class HostOperator(nn.Cell):
    """A NumPy function of one float32 array as a MindSpore cell without a gradient.

    `shape` is a function from the shape of the input to the shape of the output.
    """

    def __init__(self, function: Callable[[np.ndarray], np.ndarray], shape: Callable[[Shape], Shape]) -> None:
        super().__init__()

        def call(values: np.ndarray) -> np.ndarray:  # A plain function, because ops.Custom accepts nothing else.
            return function(values)

        self.operator = ops.Custom(call, out_shape=shape, out_dtype=lambda dtype: dtype, func_type="pyfunc")

    def construct(self, values: Tensor) -> Tensor:
        return self.operator(values)


def split(world: Communicator, ranks: Sequence[int]) -> Communicator:
    """Return an MPI communicator of the given ranks, which include this one.

    All ranks of `world` must call it together.
    """
    return world.Split(color=min(ranks), key=world.Get_rank())


def all_reduce(group: Communicator, values: np.ndarray) -> np.ndarray:
    """Return the sum of `values` over the ranks of the group, float32. All ranks of the group must call it together."""
    total = np.empty_like(values, order="C")
    group.Allreduce(np.ascontiguousarray(values), total)
    return total


class SumOver(nn.Cell):
    """The sum of an array over the ranks of a group. In the backward pass, each rank keeps its own gradient."""

    def __init__(self, group: Communicator) -> None:
        super().__init__()
        self.single = group.Get_size() == 1
        self.all_reduce = HostOperator(functools.partial(all_reduce, group), lambda shape: shape)

    def construct(self, values: Tensor) -> Tensor:
        """Return the sum of the ranks' arrays `values`, of any shape. It has the same bits on every rank."""
        if self.single:
            return values
        return self.all_reduce(values)

    def bprop(self, values: Tensor, total: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return (gradient,)


class SumGradientOver(nn.Cell):
    """The identity in the forward pass. In the backward pass, the gradient is summed over the ranks of a group.

    The sum is needed because each of these ranks used the value for a part of the result.
    """

    def __init__(self, group: Communicator) -> None:
        super().__init__()
        self.sum = SumOver(group)

    def construct(self, values: Tensor) -> Tensor:
        return values

    def bprop(self, values: Tensor, same: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return (self.sum(gradient),)


class InTurn(nn.Cell):
    """Collective operations on several arrays, each over a group of its own, which all ranks run one after the other.

    It sums the gradients of parameters. MindSpore's automatic gradient would not order these sums, so they are outside
    of it.
    """

    def __init__(self, operations: Sequence[nn.Cell]) -> None:
        super().__init__()
        self.operations = nn.CellList(operations)

    def construct(self, parts: tuple[Tensor, ...], after: Tensor) -> tuple[Tensor, ...]:
        """Return the result of the operations on `parts`. The first operation starts once `after` is computed."""
        results: tuple[Tensor, ...] = ()
        for i in range(len(parts)):
            after = self.operations[i](ops.depend(parts[i], after))
            results = (*results, after)
        return results


class Redistribute(nn.Cell):
    """Moves an array of `shape`, of which each rank has a block, from the layout `source` to the layout `target`.

    In the backward pass, its gradient moves from `target` to `source`.
    """

    def __init__(self, world: Communicator, source: Layout, target: Layout, shape: Shape) -> None:
        super().__init__()
        ranks = range(source.num_ranks)
        self.nothing_moves = all(source.block(rank, shape) == target.block(rank, shape) for rank in ranks)
        there, back = (functools.partial(exchange, world, *way, shape) for way in ((source, target), (target, source)))
        self.forward = HostOperator(there, lambda _: target.block_shape(shape))
        self.backward = HostOperator(back, lambda _: source.block_shape(shape))

    def construct(self, block: Tensor) -> Tensor:
        """Return this rank's block of the array in the layout `target`, given its block in the layout `source`."""
        if self.nothing_moves:
            return block
        return self.forward(block)

    def bprop(self, block: Tensor, moved: Tensor, gradient: Tensor) -> tuple[Tensor]:
        if self.nothing_moves:
            return (gradient,)
        return (self.backward(gradient),)


def exchange(world: Communicator, source: Layout, target: Layout, shape: Shape, block: np.ndarray) -> np.ndarray:
    """Return this rank's block in the layout `target` of an array. `block` is its block in the layout `source`.

    Every rank gathers the whole array, which is short to write. A library would send only the pieces that are missing.
    """
    blocks = np.empty((world.Get_size(), *block.shape), block.dtype)
    world.Allgather(np.ascontiguousarray(block), blocks)
    whole = np.empty(shape, block.dtype)
    for rank, part in enumerate(blocks):
        whole[source.block(rank, shape)] = part
    return np.ascontiguousarray(whole[target.block(world.Get_rank(), shape)])
