"""Collective operations inside a MindSpore graph on a CPU, over MPI: cells with their gradients.

MindSpore 2.10 has no sharded graphs on a CPU ("only support Ascend/GPU backend"). Each operation here is a host
function in the graph (`ops.Custom`, pyfunc), blocking, so every rank must reach the same ones in the same order. The
executor only keeps an order that data dependencies force: callers chain independent operations with `ops.depend`.

The rule for gradients: ranks that hold copies of an array hold copies of its whole gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from app.training.parallel.tensor.layout import Layout, Transfer, redistribution

# mpi4py has no types that mypy could follow without it.
Communicator = Any
Shape = tuple[int, ...]


class HostOperator(nn.Cell):
    """A function of one float32 array as a cell, without a gradient."""

    def __init__(self, function: Callable[[np.ndarray], np.ndarray], shape: Callable[[Shape], Shape]) -> None:
        """`shape` maps the input's shape to the output's."""
        super().__init__()

        def call(values: np.ndarray) -> np.ndarray:  # ops.Custom asks for a plain function
            return function(values)

        self.operator = ops.Custom(call, out_shape=shape, out_dtype=lambda dtype: dtype, func_type="pyfunc")

    def construct(self, values: Tensor) -> Tensor:
        return self.operator(values)


def split(world: Communicator, group: Sequence[int]) -> Communicator:
    """Return the communicator of the ranks in `group`, this one among them. All of `world` call it together."""
    return world.Split(color=min(group), key=world.Get_rank())


class SumOver(nn.Cell):
    """Sum over the ranks of a group. The gradient stays each rank's own."""

    def __init__(self, group: Communicator) -> None:
        super().__init__()
        self.single = group.Get_size() == 1
        self.all_reduce = HostOperator(functools.partial(all_reduce, group), lambda shape: shape)

    def construct(self, values: Tensor) -> Tensor:
        """Partial sums of any shape -> the sum, the same bits on every rank."""
        if self.single:
            return values
        return self.all_reduce(values)

    def bprop(self, values: Tensor, total: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return (gradient,)


class SumGradientOver(nn.Cell):
    """Identity whose gradient is summed over the ranks of a group, each of which used the value for a part."""

    def __init__(self, group: Communicator) -> None:
        super().__init__()
        self.single = group.Get_size() == 1
        self.all_reduce = HostOperator(functools.partial(all_reduce, group), lambda shape: shape)

    def construct(self, values: Tensor) -> Tensor:
        return values

    def bprop(self, values: Tensor, same: Tensor, gradient: Tensor) -> tuple[Tensor]:
        if self.single:
            return (gradient,)
        return (self.all_reduce(gradient),)


class InTurn(nn.Cell):
    """Operations on several arrays, each over a group of its own, one after the other: all ranks keep one order.

    For parameters' gradients, which are best summed outside the automatic gradient: within it nothing orders them.
    """

    def __init__(self, operations: Sequence[nn.Cell]) -> None:
        super().__init__()
        self.operations = nn.CellList(operations)

    def construct(self, parts: tuple[Tensor, ...], after: Tensor) -> tuple[Tensor, ...]:
        """`parts` of any shapes -> their results. The first starts after `after` is computed."""
        results: tuple[Tensor, ...] = ()
        for i in range(len(parts)):
            after = self.operations[i](ops.depend(parts[i], after))
            results = (*results, after)
        return results


class Redistribute(nn.Cell):
    """Moves an array of `shape` from the layout `source` to the layout `target`, block by block."""

    def __init__(self, world: Communicator, source: Layout, target: Layout, shape: Shape) -> None:
        super().__init__()
        forward, backward = Exchange(world, source, target, shape), Exchange(world, target, source, shape)
        self.nothing_moves = forward.nothing_moves and backward.nothing_moves
        self.forward = HostOperator(forward, lambda _: forward.block_shape)
        self.backward = HostOperator(backward, lambda _: backward.block_shape)

    def construct(self, block: Tensor) -> Tensor:
        """This rank's block in `source` -> its block in `target`."""
        if self.nothing_moves:
            return block
        return self.forward(block)

    def bprop(self, block: Tensor, moved: Tensor, gradient: Tensor) -> tuple[Tensor]:
        if self.nothing_moves:
            return (gradient,)
        return (self.backward(gradient),)


class Exchange:
    """Host function of a redistribution, which computes its pieces once."""

    def __init__(self, world: Communicator, source: Layout, target: Layout, shape: Shape) -> None:
        pieces = redistribution(source, target, shape)
        rank = world.Get_rank()
        self.block_shape = target.block_shape(shape)
        self.nothing_moves = self.block_shape == source.block_shape(shape) and all(
            piece.sender == piece.receiver for piece in pieces
        )
        self._world = world
        self._sent = [piece for piece in pieces if piece.sender == rank]
        self._received = [piece for piece in pieces if piece.receiver == rank]
        self._send_counts = _counts(self._sent, world.Get_size(), lambda piece: piece.receiver)
        self._receive_counts = _counts(self._received, world.Get_size(), lambda piece: piece.sender)

    def __call__(self, block: np.ndarray) -> np.ndarray:
        """Return this rank's block in the target layout. All ranks call it together."""
        sent = np.concatenate([np.zeros(0, block.dtype), *(block[piece.in_sender].ravel() for piece in self._sent)])
        received = np.empty(sum(self._receive_counts), block.dtype)
        self._world.Alltoallv((sent, self._send_counts), (received, self._receive_counts))
        moved, start = np.empty(self.block_shape, block.dtype), 0
        for piece in self._received:
            place = moved[piece.in_receiver]
            place[...] = received[start : start + place.size].reshape(place.shape)
            start += place.size
        return moved


def all_reduce(group: Communicator, values: np.ndarray) -> np.ndarray:
    """Return the sum over the ranks of the group, float32."""
    total = np.empty_like(values, order="C")
    group.Allreduce(np.ascontiguousarray(values), total)
    return total


def _counts(pieces: Sequence[Transfer], num_ranks: int, peer: Callable[[Transfer], int]) -> list[int]:
    """Return the number of elements exchanged with each rank."""
    counts = [0] * num_ranks
    for piece in pieces:
        counts[peer(piece)] += int(np.prod([part.stop - part.start for part in piece.in_sender]))
    return counts
