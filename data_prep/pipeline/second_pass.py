"""Second pass over the log: the workers' task, from a chunk's lines to encoded rows by split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.encoding.encoder import RowEncoder
from data_prep.execution.pieces import storable
from data_prep.kernels.parsed import Chunk
from data_prep.pipeline.count import ChunkCounter
from data_prep.pipeline.split import TRAIN, assign_rows
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import NO_ID, SPLITS
from data_prep.statistics.statistics import ChunkCounts, NumericStatistics

REST = "rest"  # the part of a chunk's result that is not rows of a split


@dataclass(frozen=True)
class EncodedRest:
    """Figures of an encoded chunk besides its rows, by split."""

    row_numbers: dict[str, NDArray[np.int64]]
    clicks: dict[str, int]
    unlabelled: dict[str, int]  # rows, of logs whose labels are optional
    weightless: dict[str, int]  # rows of weight 0
    weights: dict[str, NumericStatistics]  # of the other rows' weights
    unknown: NDArray[np.int64]  # [C] training rows whose value, or one of a list's, has no id of its own
    counts: ChunkCounts | None  # if there was no first pass


storable(Examples, EncodedRest)


@dataclass(frozen=True)
class Encoder:
    """The workers' task of the second pass. It is the same for every chunk, so workers get it once.

    With `counts` it is the only pass, which counts lines, rejects and missing values too.
    """

    rows: RowEncoder
    counter: ChunkCounter
    counts: bool

    def encode(self, chunk: Chunk) -> dict[str, Examples | EncodedRest]:
        """Parse a chunk and encode its good lines: the rows of each split, and last the rest, under REST."""
        parsed, encoded = self.rows.encode(chunk)
        rows = parsed.rows
        splits = assign_rows(self.counter.split, rows, chunk.file.place)
        row_indices = {name: np.flatnonzero(splits == index) for index, name in enumerate(SPLITS)}
        by_split = {name: encoded.take(of_split) for name, of_split in row_indices.items()}
        ids = by_split["train"].ids
        is_unknown = (ids < self.rows.first_own_id) & (ids != NO_ID)
        lengths = self.rows.lengths
        if ids.shape[1] > len(lengths):  # lists; reduceat would take two thirds of the counting's time without them
            is_unknown = np.logical_or.reduceat(is_unknown, np.cumsum(lengths) - lengths, axis=1)
        rest = EncodedRest(
            {name: rows.row_numbers[of_split] for name, of_split in row_indices.items()},
            {name: int(part.labels.sum()) for name, part in by_split.items()},
            {name: int(np.count_nonzero(~self.counter.labelled(part))) for name, part in by_split.items()},
            {name: 0 if part.weights is None else int((part.weights == 0).sum()) for name, part in by_split.items()},
            {name: _weight_statistics(part) for name, part in by_split.items()},
            is_unknown.sum(axis=0),
            self.counter.count_lines(chunk, parsed, splits == TRAIN) if self.counts else None,
        )
        return {**by_split, REST: rest}


def _weight_statistics(rows: Examples) -> NumericStatistics:
    """Return exact sums over the weights above 0, which are empty if the rows have no weights."""
    weights = np.zeros(0, np.float32) if rows.weights is None else rows.weights
    return NumericStatistics.of_floats(weights[weights > 0].astype(np.float64))
