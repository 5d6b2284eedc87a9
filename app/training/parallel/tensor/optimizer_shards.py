"""Optimizer-parallel: of what an optimizer remembers of a parameter, each rank that holds a copy keeps only a share.

    gradients ─ reduce-scatter ─► a share a rank ─ optimizer ─► a share of the weights ─ all-gather ─► weights

The shares are of the parameter's block, flattened and cut into as many pieces as ranks know a part of its gradient.
Zeros fill up the last one. The numbers are those of the whole optimizer (ZeRO, Rajbhandari et al., 2020, stage 1).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from app.model import dense_layer
from app.training.parallel.tensor.collectives import Communicator, host_operator


class OptimizerShards(nn.Cell):
    """An optimizer over this rank's shares of `weights`. `groups` share each weight's work, by name.

    `make_optimizer` makes the optimizer of the shares: a cell that takes their gradients and changes them.
    """

    def __init__(
        self,
        weights: Mapping[str, Parameter],
        groups: Mapping[str, Communicator],
        make_optimizer: Callable[[dict[str, Parameter]], nn.Cell],
    ) -> None:
        super().__init__()
        self.names = tuple(weights)
        self.whole = ParameterTuple(weights.values())
        self._groups = [groups[name] for name in self.names]
        shares = {
            name: Parameter(Tensor(share_of(parameter.asnumpy(), groups[name])), name=f"share.{name}")
            for name, parameter in weights.items()
        }
        self.shares = ParameterTuple(shares.values())
        self.optimizer = make_optimizer(shares)
        self.learning_rate = self.optimizer.learning_rate
        self.scatter = nn.CellList([ReduceScatter(groups[name]) for name in self.names])
        self.gather = nn.CellList([AllGather(groups[name], p.shape) for name, p in weights.items()])

    def named_state(self) -> dict[str, Parameter]:
        return self.optimizer.named_state()

    def take_weights(self) -> None:
        """Copy the shards from the weights again, after something else has written them."""
        for share, whole, group in zip(self.shares, self.whole, self._groups, strict=True):
            dense_layer.write_parameter(share, share_of(whole.asnumpy(), group))

    def scattered(self, gradients: tuple[Tensor, ...], after: Tensor) -> tuple[Tensor, ...]:
        """Gradients of this rank's rows -> this rank's shards of their sums, the first of them after `after`."""
        shares: tuple[Tensor, ...] = ()
        for i in range(len(self.names)):
            after = self.scatter[i](ops.depend(gradients[i], after))
            shares = (*shares, after)
        return shares

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Take one step on the gradients' shards, then gather the weights of this rank's blocks."""
        after = self.optimizer(gradients)
        updates: tuple[Tensor, ...] = ()
        for i in range(len(self.names)):
            gathered = self.gather[i](ops.depend(self.shares[i], after))
            after = ops.assign(self.whole[i], gathered)
            updates = (*updates, after)
        return updates


class ReduceScatter(nn.Cell):
    """The sum over a group of arrays of one shape, flattened. Each rank gets its share of it."""

    def __init__(self, group: Communicator) -> None:
        super().__init__()
        size = group.Get_size()
        self.operator = host_operator(
            functools.partial(reduce_scatter, group), lambda shape: (share_length(math.prod(shape), size),)
        )

    def construct(self, values: Tensor) -> Tensor:
        """Any shape -> [share]."""
        return self.operator(values)


class AllGather(nn.Cell):
    """Joins the shards of all ranks of a group to an array of `shape`."""

    def __init__(self, group: Communicator, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.operator = host_operator(functools.partial(all_gather, group, shape), lambda _: shape)

    def construct(self, share: Tensor) -> Tensor:
        """[share] -> `shape`."""
        return self.operator(share)


def share_length(size: int, num_ranks: int) -> int:
    """Return the length of each rank's shard of `size` values."""
    return -(-size // num_ranks)


def padded(values: np.ndarray, num_ranks: int) -> np.ndarray:
    """Return `values` flattened, with zeros up to equal shards."""
    flat = np.zeros(share_length(values.size, num_ranks) * num_ranks, values.dtype)
    flat[: values.size] = values.ravel()
    return flat


def share_of(values: np.ndarray, group: Communicator) -> np.ndarray:
    """Return this rank's shard of an array."""
    return padded(values, group.Get_size()).reshape(group.Get_size(), -1)[group.Get_rank()].copy()


def reduce_scatter(group: Communicator, values: np.ndarray) -> np.ndarray:
    """Return this rank's shard of the sum over the group."""
    flat = padded(values, group.Get_size())
    share = np.empty(len(flat) // group.Get_size(), flat.dtype)
    group.Reduce_scatter_block(flat, share)
    return share


def all_gather(group: Communicator, shape: tuple[int, ...], share: np.ndarray) -> np.ndarray:
    """Join the shards of all ranks of the group to an array of `shape`."""
    flat = np.empty(share.size * group.Get_size(), share.dtype)
    group.Allgather(np.ascontiguousarray(share), flat)
    return flat[: math.prod(shape)].reshape(shape)
