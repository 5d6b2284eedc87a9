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
from data_prep.prepared.rows import EncodedRows
from data_prep.prepared.schema import SPLITS, NumericField
from data_prep.statistics.statistics import ChunkCounts

REST = "rest"  # the part of a chunk's result that is not rows of a split


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk's rows by split; its counts where there was no first reading to take them."""

    rows: dict[str, EncodedRows]
    counts: ChunkCounts | None


@dataclass(frozen=True)
class EncodedRest:
    """What is left of an encoded chunk without its rows; by split."""

    row_numbers: dict[str, NDArray[np.int64]]
    clicks: dict[str, int]
    unknown: NDArray[np.int64]  # [C] training rows whose value has no id of its own
    counts: ChunkCounts | None


storable(EncodedRows, EncodedRest)


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
        by_split = {name: encoded.take(np.flatnonzero(splits == place)) for place, name in enumerate(SPLITS)}
        if not self.counts:
            return EncodedChunk(by_split, None)
        training = splits == TRAIN
        missing = count_missing(rows, training, self._options)
        return EncodedChunk(
            by_split, count_lines(choose_kernels(self._options.kernels), chunk, parsed, training, missing)
        )

    def encode_parts(self, chunk: Chunk) -> dict[str, EncodedRows | EncodedRest]:
        """The same in parts: the rows of each split, and the rest under REST, last."""
        encoded = self.encode_chunk(chunk)
        row_numbers = {split: rows.row_numbers for split, rows in encoded.rows.items()}
        clicks = {split: int(rows.labels.sum()) for split, rows in encoded.rows.items()}
        unknown = np.sum(encoded.rows["train"].ids < self._first_own_id, axis=0)
        return {**encoded.rows, REST: EncodedRest(row_numbers, clicks, unknown, encoded.counts)}
