"""Second reading of the log: cells to ids and numbers.

Letters: n rows, N numeric columns, C categorical fields, V ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.encoding.lookup_file import LookupTables
from data_prep.encoding.row_encoder import RowEncoder
from data_prep.execution.pieces import storable
from data_prep.kernels.choose import choose_kernels
from data_prep.kernels.rows import Chunk
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.chunk_counter import count_lines, count_missing
from data_prep.pipeline.split import TRAIN, Split
from data_prep.prepared.rows import Rows
from data_prep.prepared.schema import SPLITS, NumericField
from data_prep.statistics.statistics import ChunkCounts

REST = "rest"  # the part of a chunk's result that is not rows of a split


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk's rows by split; its counts where there was no first reading to take them."""

    rows: dict[str, Rows]
    row_numbers: dict[str, NDArray[np.int64]]
    counts: ChunkCounts | None


@dataclass(frozen=True)
class EncodedRest:
    """What is left of an encoded chunk without its rows; by split."""

    row_numbers: dict[str, NDArray[np.int64]]
    clicks: dict[str, int]
    unknown: NDArray[np.int64]  # [C] training rows whose value has no id of its own
    counts: ChunkCounts | None


storable(Rows, EncodedRest)


class Encoder:
    """Rows of the log to rows as they are written; the same for every chunk, so workers get it once.

    `counts`: this is the only reading, so lines, rejects and missing values are counted too.
    """

    def __init__(
        self,
        numeric: Sequence[NumericField],
        lookup: LookupTables,
        dtype: str,
        split: Split,
        options: PrepareOptions,
        counts: bool,
    ) -> None:
        self._rows = RowEncoder(numeric, lookup, dtype, options)
        self._split = split
        self._options = options
        self.counts = counts
        # Ids below are of numeric columns, which are not among a row's, or out of vocabulary.
        self._first_own_id = len(numeric) + len(options.categorical_columns) * options.oov_buckets

    def encode_chunk(self, chunk: Chunk) -> EncodedChunk:
        """Parse a chunk and encode its good lines."""
        parsed, encoded = self._rows.encode(chunk)
        rows = parsed.rows
        splits = self._split.assign(rows.row_numbers, rows.labels, chunk.file.place)
        chosen = {name: np.flatnonzero(splits == index) for index, name in enumerate(SPLITS)}
        by_split = {name: encoded.take(of_split) for name, of_split in chosen.items()}
        row_numbers = {name: rows.row_numbers[of_split] for name, of_split in chosen.items()}
        counts = None
        if self.counts:
            training = splits == TRAIN
            missing = count_missing(rows, training, self._options)
            counts = count_lines(choose_kernels(self._options.kernels), chunk, parsed, training, missing)
        return EncodedChunk(by_split, row_numbers, counts)

    def encode_parts(self, chunk: Chunk) -> dict[str, Rows | EncodedRest]:
        """The same in parts: the rows of each split, and the rest under REST, last."""
        encoded = self.encode_chunk(chunk)
        clicks = {split: int(rows.labels.sum()) for split, rows in encoded.rows.items()}
        unknown = np.sum(encoded.rows["train"].ids < self._first_own_id, axis=0)
        return {**encoded.rows, REST: EncodedRest(encoded.row_numbers, clicks, unknown, encoded.counts)}
