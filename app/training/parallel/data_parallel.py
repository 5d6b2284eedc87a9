"""Train data-parallel: each rank computes its slice of the batch, and gradients are summed over the ranks.

The step that each rank takes is made of native kernels, which pass their gradients to the sum, or of the graphs in
`rank_graphs`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from app.distributed.process_group import ProcessGroup, mark_collective
from app.evaluation.measure import Scorer
from app.model.native_tower import HostGraph
from app.tables.interface import UniqueIds
from app.training.step.step import OVERFLOWED, HostTablesStep, Losses, TrainStep
from data_prep.prepared.batches import Batch, slice_of_batch


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

    def prepare(self, batch: Batch, will_change: bool = False) -> UniqueIds:
        # The table rows lie on the ranks that own them. An owner learns only at the lookup which rows a batch uses, so
        # no row is read ahead here, and `will_change` is ignored.
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
