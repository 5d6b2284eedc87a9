"""Dense arrays that lie over ranks, as a checkpoint keeps them: whole, whatever split them.

A state array of an optimizer lies as its parameter does, or in shares of that block (`optimizer_shards`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from app.checkpoint.slices import slice_name
from app.training.parallel.tensor.collectives import Communicator
from app.training.parallel.tensor.layout import Layout
from app.training.parallel.tensor.optimizer_shards import all_gather, share_of
from app.training.parallel.tensor.plan import TOWER, ShardedParameter, TowerPlan

Arrays = dict[str, np.ndarray]


class DenseBlocks:
    """Joins this rank's dense arrays with the other ranks' to whole ones, and takes this rank's part of whole ones."""

    def __init__(self, plan: TowerPlan, world: Communicator, groups: Mapping[str, Communicator]) -> None:
        """`groups` share out the optimizer's state, by the plan's names; empty where nothing is shared out."""
        self._plan = plan
        self._world = world
        self._groups = groups

    def whole(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """All ranks' blocks joined, on every rank; all call it together, with the same names in the same order."""
        return {name: self._join(name, array) for name, array in arrays.items()}

    def slices(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """What this rank writes of the arrays, by names that tell their place in the whole; of copies one is written.

        All ranks call it together, with the same names in the same order.
        """
        return dict(part for name, array in arrays.items() for part in self._slice(name, array))

    def parts(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """This rank's part of each whole array."""
        return {name: self._part(name, array) for name, array in arrays.items()}

    def held(self, arrays: Arrays) -> Arrays:
        """Those of a whole model's arrays of which this rank holds a part: all."""
        return arrays

    def whole_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The whole's shape for an array that has `shape` here."""
        found = self._parameter(name)
        return found[1].shape if found else shape

    def _slice(self, name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        found, rank = self._parameter(name), self._world.Get_rank()
        if found is None:
            return [(name, array)] if rank == 0 else []
        key, parameter = found
        block, layout = self._block(name, key, parameter, array), parameter.layout
        if any(layout.part(other) == layout.part(rank) for other in range(rank)):
            return []
        return [(slice_name(name, layout.block(rank, parameter.shape), parameter.shape), block)]

    def _block(self, name: str, key: str, parameter: ShardedParameter, array: np.ndarray) -> np.ndarray:
        """This rank's block, where others may hold shares of it."""
        if self._is_share(name, key):
            return all_gather(self._groups[key], parameter.layout.block_shape(parameter.shape), array)
        return array

    def _join(self, name: str, array: np.ndarray) -> np.ndarray:
        found = self._parameter(name)
        if found is None:
            return array
        key, parameter = found
        array = self._block(name, key, parameter, array)
        return join_blocks(self._world.allgather(array), parameter.layout, parameter.shape)

    def _part(self, name: str, whole: np.ndarray) -> np.ndarray:
        found = self._parameter(name)
        if found is None:
            return whole
        key, parameter = found
        block = np.ascontiguousarray(whole[parameter.layout.block(self._world.Get_rank(), whole.shape)])
        return share_of(block, self._groups[key]) if self._is_share(name, key) else block

    def _is_share(self, name: str, key: str) -> bool:
        """Whether it is state of an optimizer that is shared out, not the weights themselves."""
        return key in self._groups and not name.startswith(TOWER)

    def _parameter(self, name: str) -> tuple[str, ShardedParameter] | None:
        """The split parameter that an array is, or belongs to."""
        before, dot, key = name.rpartition(TOWER)
        if dot and (not before or before.endswith(".")) and key in self._plan.parameters:
            return key, self._plan.parameters[key]
        return None


def join_blocks(blocks: list[np.ndarray], layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    """The array of `shape` whose blocks the ranks hold."""
    whole = np.empty(shape, blocks[0].dtype)
    for rank, block in enumerate(blocks):
        whole[layout.block(rank, shape)] = block
    return whole
