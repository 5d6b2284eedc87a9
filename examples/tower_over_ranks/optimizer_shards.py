"""Optimizer parallelism: each rank that holds a copy of a parameter keeps only a share of its optimizer's state.

    gradients ─ reduce-scatter ─► a share a rank ─ optimizer ─► a share of the weights ─ all-gather ─► weights

A share is a piece of the parameter's block. The block is flattened and cut into one piece for each rank that computes a
part of its gradient. Zeros fill up the last piece. The results are those of the whole optimizer (ZeRO, Rajbhandari et
al., 2020, stage 1).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from app.model.dense_state import write_parameter
from examples.tower_over_ranks.collectives import Communicator, HostOperator, InTurn


class OptimizerShards(nn.Cell):
    """An optimizer of `weights`, in which this rank keeps the state of only a share of each weight.

    `groups` maps the name of each weight to the ranks that divide its state among themselves. `make_optimizer` makes
    the optimizer of the shares: a cell that takes their gradients and changes the shares.
    """

    def __init__(
        self,
        weights: Mapping[str, Parameter],
        groups: Mapping[str, Communicator],
        make_optimizer: Callable[[dict[str, Parameter]], nn.Cell],
    ) -> None:
        super().__init__()
        self.names, self.whole = tuple(weights), ParameterTuple(weights.values())
        self._groups = [groups[name] for name in self.names]
        shares = {
            name: Parameter(Tensor(share_of(parameter.asnumpy(), groups[name])), name=f"share.{name}")
            for name, parameter in weights.items()
        }
        self.shares = ParameterTuple(shares.values())
        self.optimizer = make_optimizer(shares)
        self.learning_rate = self.optimizer.learning_rate
        self.assign = ops.Assign()
        # `scatter` turns gradients from this rank's rows into its shares of the summed gradients. `gather` turns shares
        # into weights.
        self.scatter = InTurn([reduce_scatter_over(group) for group in self._groups])
        self.gather = nn.CellList([all_gather_over(groups[name], p.shape) for name, p in weights.items()])

    def named_state(self) -> dict[str, Parameter]:
        return self.optimizer.named_state()

    def take_weights(self) -> None:
        """Copy this rank's shares from the weights again. It is called after the weights have been loaded."""
        for share, whole, group in zip(self.shares, self.whole, self._groups, strict=True):
            write_parameter(share, share_of(whole.asnumpy(), group))

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Take one step on this rank's shares of the weights, then gather its whole blocks of the weights.

        `gradients` are the gradients of the shares.
        """
        after = self.optimizer(gradients)
        updates: tuple[Tensor, ...] = ()
        for i in range(len(self.names)):
            after = self.assign(self.whole[i], self.gather[i](ops.depend(self.shares[i], after)))
            updates = (*updates, after)
        return updates


def reduce_scatter_over(group: Communicator) -> HostOperator:
    """Return the function `reduce_scatter` over a group as an operator, from an array of any shape to a share [n]."""
    size = group.Get_size()
    return HostOperator(functools.partial(reduce_scatter, group), lambda shape: (-(-math.prod(shape) // size),))


def all_gather_over(group: Communicator, shape: tuple[int, ...]) -> HostOperator:
    """Return the function `all_gather` over a group as an operator, from a share [n] to an array of `shape`."""
    return HostOperator(functools.partial(all_gather, group, shape), lambda _: shape)


def pieces(values: np.ndarray, num_ranks: int) -> np.ndarray:
    """Return the numbers of `values`, flattened and cut into equal pieces [num_ranks, n], with zeros at the end."""
    flat = np.zeros((num_ranks, -(-values.size // num_ranks)), values.dtype)
    flat.reshape(-1)[: values.size] = values.ravel()
    return flat


def share_of(values: np.ndarray, group: Communicator) -> np.ndarray:
    """Return this rank's share [n] of an array that the ranks of `group` divide among themselves."""
    share: np.ndarray = pieces(values, group.Get_size())[group.Get_rank()].copy()
    return share


def reduce_scatter(group: Communicator, values: np.ndarray) -> np.ndarray:
    """Return this rank's share [n] of the sum of the ranks' arrays `values` over the group."""
    flat = pieces(values, group.Get_size())
    share = np.empty(flat.shape[1], flat.dtype)
    group.Reduce_scatter_block(flat, share)
    return share


def all_gather(group: Communicator, shape: tuple[int, ...], share: np.ndarray) -> np.ndarray:
    """Return the array of shape `shape` that consists of the shares of all ranks of the group."""
    flat = np.empty(share.size * group.Get_size(), share.dtype)
    group.Allgather(np.ascontiguousarray(share), flat)
    return flat[: math.prod(shape)].reshape(shape)
