"""Encode a chunk of the log in the second pass: from its lines to the encoded rows of each split."""

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

REST = "rest"  # Key of the `EncodedRest` in a chunk's result, beside the rows of each split.


@dataclass(frozen=True)
class EncodedRest:
    """The figures of an encoded chunk besides its rows. Keys of the dictionaries are names of splits."""

    row_numbers: dict[str, NDArray[np.int64]]  # Line numbers of the rows.
    clicks: dict[str, int]
    unlabelled: dict[str, int]  # Number of rows without a label.
    weightless: dict[str, int]  # Number of rows of weight 0.
    weights: dict[str, NumericStatistics]  # Statistics of the weights above 0.
    # Number of training rows, by column [C], with a value that has no id of its own. In a list one value is enough.
    unknown: NDArray[np.int64]
    counts: ChunkCounts | None  # Counts of lines, rejects and missing cells, or None if the first pass took them.


storable(Examples, EncodedRest)


@dataclass(frozen=True)
class Encoder:
    """The second pass's task for workers. It is the same for every chunk, so each worker gets it only once.

    With `counts` there was no first pass, so the task also counts lines, rejects and missing values.
    """

    rows: RowEncoder
    counter: ChunkCounter
    counts: bool

    def encode(self, chunk: Chunk) -> dict[str, Examples | EncodedRest]:
        """Parse a chunk and encode its good lines.

        Return the rows of each split under the split's name, and the chunk's other figures under `REST`, the last key.
        """
        parsed, encoded = self.rows.encode(chunk)
        rows = parsed.rows
        splits = assign_rows(self.counter.split, rows, chunk.file.place)
        row_indices = {name: np.flatnonzero(splits == index) for index, name in enumerate(SPLITS)}
        by_split = {name: encoded.take(of_split) for name, of_split in row_indices.items()}
        ids = by_split["train"].ids
        is_unknown = (ids < self.rows.first_own_id) & (ids != NO_ID)
        lengths = self.rows.lengths
        # Lists have several ids per column. Without lists, reduceat would take two thirds of the time of counting.
        if ids.shape[1] > len(lengths):
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
    """Return statistics of the weights above 0. They are empty if the rows have no weights."""
    weights = np.zeros(0, np.float32) if rows.weights is None else rows.weights
    return NumericStatistics.of_floats(weights[weights > 0].astype(np.float64))
