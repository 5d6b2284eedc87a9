"""Layouts: ranks in a mesh of named axes, and the dimensions of an array split along them.

In MindSpore's operator-level parallelism a mesh is the device matrix, a layout the tensor map.
Plain arithmetic: no MPI, no MindSpore.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

Block = tuple[slice, ...]


@dataclass(frozen=True)
class Mesh:
    """Ranks 0 … num_ranks - 1 laid out in named axes. The last axis runs fastest."""

    axes: tuple[tuple[str, int], ...]

    @property
    def num_ranks(self) -> int:
        return math.prod(size for _, size in self.axes)

    def size(self, axes: Sequence[str]) -> int:
        """Return the number of ranks that differ only in `axes`."""
        return math.prod(size for name, size in self.axes if name in axes)

    @functools.cache  # noqa: B019 - meshes are few and live as long as the run
    def coordinates(self, rank: int) -> dict[str, int]:
        places = {}
        for name, size in reversed(self.axes):
            rank, places[name] = divmod(rank, size)
        return places

    def group(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the ranks, in order, that differ from `rank` only in `axes`, and `rank` itself."""
        here = self.coordinates(rank)
        return tuple(
            other
            for other in range(self.num_ranks)
            if all(place == here[name] for name, place in self.coordinates(other).items() if name not in axes)
        )


@dataclass(frozen=True)
class Layout:
    """Layout of an array over a mesh: for each dimension the axes that split it, the slowest first.

    Along axes that split no dimension the ranks hold copies.
    """

    mesh: Mesh
    dims: tuple[tuple[str, ...], ...]

    @property
    def parts(self) -> tuple[int, ...]:
        return tuple(self.mesh.size(axes) for axes in self.dims)

    def part(self, rank: int) -> tuple[int, ...]:
        """Return the index of the rank's part in each dimension."""
        places, sizes = self.mesh.coordinates(rank), dict(self.mesh.axes)
        indices = []
        for axes in self.dims:
            index = 0
            for axis in axes:
                index = index * sizes[axis] + places[axis]
            indices.append(index)
        return tuple(indices)

    def block_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of each rank's block of an array of `shape`, whose dimensions divide by their parts."""
        assert all(length % parts == 0 for length, parts in zip(shape, self.parts, strict=True)), (shape, self.parts)
        return tuple(length // parts for length, parts in zip(shape, self.parts, strict=True))

    def block(self, rank: int, shape: Sequence[int]) -> Block:
        """Return the rank's block of an array of `shape`, as slices."""
        lengths = self.block_shape(shape)
        return tuple(slice(i * n, (i + 1) * n) for i, n in zip(self.part(rank), lengths, strict=True))


@dataclass(frozen=True)
class Transfer:
    """Part of an array that one rank sends to another, as slices of either block."""

    sender: int
    receiver: int
    in_sender: Block
    in_receiver: Block


def redistribution(source: Layout, target: Layout, shape: Sequence[int]) -> list[Transfer]:
    """Return the pieces that move an array of `shape` from the layout `source` to `target`, by sender and receiver.

    Of several holders of a piece the receiver itself sends it, if it is one, else they take turns.
    """
    holders: dict[tuple[int, ...], list[int]] = {}
    for rank in range(source.mesh.num_ranks):
        holders.setdefault(source.part(rank), []).append(rank)
    pieces = []
    for receiver in range(target.mesh.num_ranks):
        target_part = target.block(receiver, shape)
        for part in itertools.product(
            *(_touched(n, p, w) for n, p, w in zip(shape, source.parts, target_part, strict=True))
        ):
            senders = holders[part]
            sender = receiver if receiver in senders else senders[receiver % len(senders)]
            source_part = source.block(sender, shape)
            common = [
                slice(max(h.start, w.start), min(h.stop, w.stop)) for h, w in zip(source_part, target_part, strict=True)
            ]
            pieces.append(Transfer(sender, receiver, _within(common, source_part), _within(common, target_part)))
    return sorted(pieces, key=lambda piece: (piece.sender, piece.receiver))


def _touched(length: int, parts: int, wanted: slice) -> range:
    """Return the parts of a dimension that overlap `wanted`."""
    size = length // parts
    return range(wanted.start // size, (wanted.stop - 1) // size + 1)


def _within(common: Sequence[slice], block: Block) -> Block:
    return tuple(slice(c.start - b.start, c.stop - b.start) for c, b in zip(common, block, strict=True))
