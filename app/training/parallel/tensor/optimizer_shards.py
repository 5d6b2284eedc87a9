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
from app.training.parallel.tensor.collectives import Communicator, HostOperator, InTurn


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
        # Gradients of this rank's rows -> this rank's shards of their sums.
        self.scatter = InTurn([reduce_scatter_over(groups[name]) for name in self.names])
        self.gather = nn.CellList([all_gather_over(groups[name], p.shape) for name, p in weights.items()])

    def named_state(self) -> dict[str, Parameter]:
        return self.optimizer.named_state()

    def take_weights(self) -> None:
        """Copy the shards from the weights again, after something else has written them."""
        for share, whole, group in zip(self.shares, self.whole, self._groups, strict=True):
            dense_layer.write_parameter(share, share_of(whole.asnumpy(), group))

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Take one step on the gradients' shards, then gather the weights of this rank's blocks."""
        after = self.optimizer(gradients)
        updates: tuple[Tensor, ...] = ()
        for i in range(len(self.names)):
            gathered = self.gather[i](ops.depend(self.shares[i], after))
            after = ops.assign(self.whole[i], gathered)
            updates = (*updates, after)
        return updates


def reduce_scatter_over(group: Communicator) -> HostOperator:
    """Return `reduce_scatter` in a graph: any shape -> [share]."""
    size = group.Get_size()
    function = functools.partial(reduce_scatter, group)
    return HostOperator(function, lambda shape: (share_length(math.prod(shape), size),))


def all_gather_over(group: Communicator, shape: tuple[int, ...]) -> HostOperator:
    """Return `all_gather` in a graph: [share] -> `shape`."""
    return HostOperator(functools.partial(all_gather, group, shape), lambda _: shape)


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
