"""Train data-parallel: each rank computes its slice of the batch, and gradients are summed over the ranks.

On a CPU, the step's graph is cut in two: forward and backward pass before the sum, and the dense optimizers after it.
The sum itself is computed outside the graph (`app/distributed/gradient_sum.py`). On Ascend and GPU, the sum is
MindSpore's AllReduce (HCCL, NCCL) within a single graph. The code for Ascend and GPU was never run, because no such
device was available.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from app.distributed.gradient_sum import GradientSum
from app.distributed.process_group import ProcessGroup, mark_collective
from app.evaluation.measure import Scorer
from app.model.graph import (
    DEEP_LOSS,
    NUM_BAD,
    WIDE_LOSS,
    AllFinite,
    Gradients,
    HostGraph,
    Optimizers,
    scalars,
)
from app.tables.interface import UniqueIds
from app.training.step.step import OVERFLOWED, HostTablesStep, Losses, StepSettings, TrainStep
from data_prep.prepared.batches import Batch, slice_of_batch


class SummedGraph:
    """`DeviceGraph` (the part of a step outside the tables) for a CPU and several ranks: losses, dense gradients and
    the flag that all values are finite are combined over the ranks.

    The sum of the losses must contain the L2 term of the numeric fields' rows only once. So each rank adds an equal
    share of this term to its loss.
    """

    def __init__(self, settings: StepSettings, group: ProcessGroup) -> None:
        self.forward_backward = settings.shared_by(group.size).forward_backward()
        self.sum = GradientSum(group.communicator)
        self._gradients = Gradients(self.forward_backward)
        self._optimizers = Optimizers(settings.optimizers)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        deep_gradients, wide_gradients, *rank_values = self._gradients(*inputs)
        # `finite` is False if a sum overflows. `sums[NUM_BAD]` counts the ranks that have found a bad value.
        (sums, *gradients), finite = self.sum([values.asnumpy() for values in rank_values])
        finite = finite and sums[NUM_BAD] == 0
        if finite:
            self._optimizers(*map(Tensor.from_numpy, gradients)).asnumpy()
        losses = (Tensor(float(sums[DEEP_LOSS])), Tensor(float(sums[WIDE_LOSS])))
        return (*losses, Tensor(bool(finite)), deep_gradients, wide_gradients)


class DataParallelStep(TrainStep):
    """A training step by several ranks. All ranks have read the whole batch, and each computes a slice of the batch's
    rows.
    """

    def __init__(self, step: HostTablesStep, group: ProcessGroup) -> None:
        self.tables, self.seconds = step.tables, step.seconds
        self._step = step
        self._group = group
        self._scorer = over_ranks(Scorer(step.prepare, step.score), group)
        self.is_native = step.is_native

    @property
    def graph(self) -> HostGraph:
        return self._step.graph

    def prepare(self, batch: Batch) -> UniqueIds:
        unique: UniqueIds = self._scorer.prepare(batch)
        return unique

    def __call__(self, batch: Batch, unique: UniqueIds) -> Losses:
        rank_batch = slice_of_batch(batch, self._group.rows_of(batch.num_rows))
        try:
            return self._step(rank_batch, unique)
        # All ranks raise an error here, but only a rank whose slice contains the bad value can describe that value.
        except FloatingPointError as error:
            where = f"rank {self._group.rank}, whose rows begin at the batch's row {rank_batch.first_row}"
            reasons = self._group.gather(f"{where}: {error}")
            reason = next((reason for reason in reasons if OVERFLOWED not in reason), str(error))
            raise mark_collective(FloatingPointError(reason)) from error

    def score(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        """Score a batch on all ranks together: each rank computes a slice, and every rank returns the logits [n] of the
        whole batch.
        """
        return self._scorer.score(batch, unique)

    def kernel_seconds(self) -> dict[str, float]:
        return self._step.kernel_seconds()


def over_ranks(scorer: Scorer, group: ProcessGroup) -> Scorer:
    """Return a scorer of whole batches, in which each rank computes a slice with `scorer`, and every rank gets all
    logits.
    """

    def part(batch: Batch) -> Batch:
        return slice_of_batch(batch, group.rows_of(batch.num_rows))

    def score(batch: Batch, unique: Any) -> np.ndarray:
        slices = [group.rows_of(batch.num_rows, rank) for rank in range(group.size)]
        return group.gather_rows(scorer.score(part(batch), unique), [rows.stop - rows.start for rows in slices])

    return Scorer(lambda batch: scorer.prepare(part(batch)), score)


class AllReducedGraph(nn.Cell):
    """`DeviceGraph` (the part of a step outside the tables) for Ascend or GPU and several ranks, which sums gradients
    by MindSpore's AllReduce. It was never run.
    """

    def __init__(self, settings: StepSettings, group: ProcessGroup) -> None:
        super().__init__()
        self.forward_backward = settings.shared_by(group.size).forward_backward()
        self.optimizers = settings.optimizers
        self.all_reduce, self.all_finite = ops.AllReduce(), AllFinite()

    def construct(self, *inputs: Tensor) -> tuple:
        (deep_loss, wide_loss), finite, row_gradients, dense_gradients = self.forward_backward(*inputs)
        sums = self.all_reduce(scalars(deep_loss, wide_loss, finite))
        summed: tuple[Tensor, ...] = ()
        for gradient in dense_gradients:
            summed = (*summed, self.all_reduce(gradient))
        finite = self.all_finite(summed, sums[NUM_BAD] == 0)
        deep_loss = sums[DEEP_LOSS]
        if finite:
            deep_loss = ops.depend(deep_loss, self.optimizers(summed))
        return deep_loss, sums[WIDE_LOSS], finite, row_gradients[0], row_gradients[1]
