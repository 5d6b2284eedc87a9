"""Make up raw rows, for examples and to compare a bundle with the training code. Each cell is drawn on its own, as a
value of the vocabulary or another one. No row of a log is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from data_prep.encoding.prepared_vocabulary import BaseVocabulary
from data_prep.options.kinds import KINDS, time_range, time_text
from data_prep.options.log_format import LogFormat
from data_prep.prepared.schema import DAY, NEWEST, VectorField

OUTSIDE, MISSING = 0.1, 0.1  # Share of made-up cells with a value outside the vocabulary, and share of missing cells.
# If the schema has no newest time for a time column, the column's made-up times lie before this time (in milliseconds
# since 1970).
SOME_TIME = 1_700_000_000_000


def make_rows(vocabulary: BaseVocabulary, log_format: LogFormat, num_rows: int, seed: int, since: int = 0) -> pa.Table:
    """Return made-up rows with all columns that a model reads. A missing value is null.

    The cells of a categorical column are missing (share MISSING), outside the vocabulary (share OUTSIDE) or drawn from
    it. With `since`, only values whose ids are `since` or above, which were added later, are drawn from it.
    """
    generator = np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {name: _integers(num_rows, generator) for name in log_format.numeric_fields}
    for name in log_format.float_fields:
        columns[name] = [number if number is None else number / 8 for number in columns[name]]
    newest = {
        field.source: field.parameters[NEWEST] for field in vocabulary.schema.numeric if NEWEST in field.parameters
    }
    for name in log_format.time_fields:
        ages = [None if days is None else days + generator.random() for days in columns[name]]
        columns[name] = _times(ages, newest.get(name, SOME_TIME), log_format.time_form(name))
    fields = {field.name: field for field in vocabulary.live_fields(since)}
    for column in vocabulary.columns:
        if log_format.columns.get(column.name, "ignored") == "ignored":
            continue
        field = fields[column.shares or column.name]
        known = np.flatnonzero(field.values >= 0)
        known = known[generator.integers(0, len(known), num_rows)] if len(known) else known
        chances = generator.random(num_rows)
        cell_of = KINDS[log_format.columns[column.name]].made_up
        unknown = generator.integers(0, 2**32 if field.texts is None else 2**31, num_rows)
        cells: list[Any] = [cell_of(number) for number in unknown]
        if field.texts is None:
            inside = [cell_of(number) for number in field.values[known]]
        else:
            inside = [text.decode() for text in field.texts.take(known).tolist()]
        # `cells` has a value outside the vocabulary for each row, and `inside` one in the vocabulary, or nothing if
        # the field has no values. A row gets the latter if its random number in `chances` is at least MISSING +
        # OUTSIDE.
        for row, cell in enumerate(inside):
            if chances[row] >= MISSING + OUTSIDE:
                cells[row] = cell
        columns[column.name] = [None if chance < MISSING else cell for chance, cell in zip(chances, cells, strict=True)]
    types = {name: pa.string() for name in columns} | dict.fromkeys(log_format.integer_fields, pa.int64())
    types |= dict.fromkeys(log_format.float_fields, pa.float64())
    for vector in vocabulary.schema.vectors:
        types[vector.name] = pa.list_(pa.float64())
        columns[vector.name] = _vectors(vector, num_rows, generator)
    order = [name for name in log_format.columns if name in columns]
    return pa.table({name: pa.array(columns[name], types[name]) for name in order})


def _times(ages: Sequence[float | None], newest: float, form: str) -> list[str | None]:
    """Return the texts of times that lie `ages` days before the time `newest`, in the log's time format `form`. Times
    that `form` cannot express are moved into its range. A missing age gives None.
    """
    first, last = time_range(form)
    times = (None if age is None else int(newest - age * DAY) for age in ages)
    return [None if time is None else time_text(min(max(time, first), last), form) for time in times]


def _vectors(field: VectorField, num_rows: int, generator: np.random.Generator) -> list[list[float] | None]:
    """Return vectors drawn around the training mean, with few digits so that examples of requests stay short."""
    drawn = generator.normal(field.mean, field.deviation, (num_rows, field.width)).tolist()
    present = generator.random(num_rows) >= MISSING
    return [
        [float(f"{x:.3g}") for x in vector] if there else None for vector, there in zip(drawn, present, strict=True)
    ]


def _integers(num_rows: int, generator: np.random.Generator) -> list[int | None]:
    numbers = np.rint(generator.lognormal(1.5, 1.5, num_rows)).astype(int) - 1
    missing = generator.random(num_rows) < MISSING
    return [None if absent else int(number) for number, absent in zip(numbers, missing, strict=True)]
