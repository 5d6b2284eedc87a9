"""The rows of a chunk as ids and numbers. Workers import this: no pyarrow, which costs memory and start of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_prep.encoding.lookup_file import LookupTables
from data_prep.kernels.choose import choose_kernels
from data_prep.kernels.rows import Chunk, LogRows, ParsedChunk
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.rows import Rows
from data_prep.prepared.schema import INDICATOR, NumericField, transform_integers


class RowEncoder:
    """Encode the good lines of chunks: fields to ids and numbers, with a vocabulary that is fitted already."""

    def __init__(
        self, numeric: Sequence[NumericField], lookup: LookupTables, dtype: str, options: PrepareOptions
    ) -> None:
        self._numeric = numeric
        self._lookup = lookup
        self._dtype = dtype
        self._options = options

    def encode(self, chunk: Chunk) -> tuple[ParsedChunk, Rows]:
        """Return the parsed chunk, bad lines included, and its good lines encoded."""
        kernels = choose_kernels(self._options.kernels)
        parsed = kernels.parse_chunk(chunk, self._options.data)
        rows = parsed.rows
        columns = self._options.categorical_columns
        ids = self._lookup.encode(rows, columns, self._options.integer_buckets, kernels, self._dtype)
        return parsed, Rows(ids, self._numbers(rows), rows.labels.astype(np.float32))

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
