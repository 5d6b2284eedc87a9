"""Second reading of the log: cells to ids and numbers.

Letters: n rows, N numeric columns, C categorical fields, V ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels import choose_kernels
from data_prep.lookup_tables import LookupTables
from data_prep.options import PrepareOptions
from data_prep.pieces import storable
from data_prep.prepared.rows import EncodedRows, row_bytes
from data_prep.prepared.schema import INDICATOR, SPLITS, NumericField, transform_integers
from data_prep.rows import Chunk, LogRows, ParsedChunk
from data_prep.split import TRAIN, Split
from data_prep.statistics import ChunkCounts, IntegerStatistics, count_lines, count_missing

REST = "rest"  # the part of a chunk's result that is not rows of a split


def usual_row_bytes(options: PrepareOptions) -> int:
    """The same by the options alone, before the vocabulary is known: ids are int32 but for 2**31 of them."""
    num_numeric = len(numeric_fields(options, [IntegerStatistics()] * len(options.data.numeric_fields)))
    return row_bytes(len(options.categorical_columns), num_numeric, "int32")


def numeric_fields(options: PrepareOptions, statistics: Sequence[IntegerStatistics]) -> tuple[NumericField, ...]:
    """The numeric columns: every raw integer field transformed, then every field's indicator if asked for."""
    transform, names = options.numeric_transform, options.data.numeric_fields
    values = [
        NumericField(name, name, transform, _fit(transform, statistics_of_field))
        for name, statistics_of_field in zip(names, statistics, strict=True)
    ]
    indicators = [NumericField(f"{name}_missing", name, INDICATOR, {}) for name in names]
    return tuple(values + indicators if options.missing_indicator else values)


def _fit(transform: str, statistics: IntegerStatistics) -> dict[str, float]:
    """Parameters of a transform from the training rows, such that none divides by 0 or turns signs."""
    if transform == "max":
        return {"max": float(max(statistics.maximum or 1, 1))}
    if transform == "standardize":
        if not statistics.count:
            return {"mean": 0.0, "standard_deviation": 1.0}
        return {"mean": statistics.mean, "standard_deviation": statistics.standard_deviation or 1.0}
    return {}


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


class RowEncoder:
    """Encode the good lines of chunks: fields to ids and numbers, with a vocabulary that is fitted already."""

    def __init__(
        self, numeric: Sequence[NumericField], lookup: LookupTables, dtype: str, options: PrepareOptions
    ) -> None:
        self._numeric = numeric
        self._lookup = lookup
        self._dtype = dtype
        self._options = options

    def encode(self, chunk: Chunk) -> tuple[ParsedChunk, EncodedRows]:
        """Return the parsed chunk, bad lines included, and its good lines encoded."""
        kernels = choose_kernels(self._options.kernels)
        parsed = kernels.parse_chunk(chunk, self._options.data)
        rows = parsed.rows
        columns = self._options.categorical_columns
        ids = self._lookup.encode(rows, columns, self._options.integer_buckets, kernels, self._dtype)
        return parsed, EncodedRows(ids, self._numbers(rows), rows.labels.astype(np.float32), rows.row_numbers)

    def _numbers(self, rows: LogRows) -> NDArray[np.float32]:
        numbers = np.empty((len(rows.labels), len(self._numeric)), np.float32)
        for place, field in enumerate(self._numeric):
            source = self._options.data.numeric_fields.index(field.source)
            present = rows.integers_present[source]
            if field.transform == INDICATOR:
                numbers[:, place] = ~present
            else:
                numbers[:, place] = np.where(present, transform_integers(field, rows.integers[source]), 0)
        return numbers


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
