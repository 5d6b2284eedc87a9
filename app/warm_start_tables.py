"""Rows of a model that was trained before, for a new run's tables; no MindSpore, as servers of rows take them too.

Letters: n rows of a piece, V vocabulary size.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from app.checkpoint_reading import PIECE_BYTES
from app.config import Config
from app.row_moves import GONE
from app.schedules import LearningRates
from app.tables.interface import DEEP, WIDE, TableSnapshot, TablesSpec, WriteRows
from app.tables.optimizer_options import FtrlOptions
from app.tables.optimizers import LAST_STEP, ROWS
from app.warm_start_source import Source, open_source
from data_prep.schema import Schema

log = logging.getLogger(__name__)


class Loadable(Protocol):
    """What takes rows: `HostTables`, or the part of them that a process owns."""

    def loading(self, step: int) -> AbstractContextManager[WriteRows]:
        """See `HostTables.loading`."""
        ...


class WarmTables:
    """Tables of a new run, or this process's part of them, that are to take rows."""

    def __init__(
        self, tables: Loadable, spec: TablesSpec, rates: LearningRates, config: Config, schema: Schema
    ) -> None:
        self._tables = tables
        self._spec = spec
        self._rates = rates
        self._config = config
        self._schema = schema

    def open_and_take(self, dataset: Path, init_from: str) -> None:
        """As `take`, for who has not opened the source; nothing where no rows are to be taken."""
        if self._config.train.init_take in ("all", "tables"):
            config = replace(self._config, train=replace(self._config.train, init_from=init_from))
            self.take(open_source(config, self._schema, dataset))

    def take(self, source: Source) -> None:
        """Take the source's rows, with `init_optimizer` what the optimizers remember of them too.

        Raises ValueError, saying what was found and expected, for tables of another form.
        """
        spec, with_optimizer = self._spec, self._config.train.init_optimizer
        num_folded = self._schema.num_numeric if self._config.model.fold_numeric else 0
        _check_tables(source, spec, with_optimizer)
        self._rates.steps_before = source.steps if with_optimizer else 0
        with self._tables.loading(step=0) as write:
            for table in (WIDE, DEEP):
                moved = _moved_rows(source, table, num_folded)
                for name, row_ids, values in _pieces(moved, spec, with_optimizer, self._rates.at(1)[WIDE]):
                    write(table, name, row_ids, values)
                log.info("%s: %s", source.where, moved.describe(self._schema.vocabulary_size))


def linear_terms(weights: np.ndarray, options: FtrlOptions, learning_rate: float) -> np.ndarray:
    """The linear terms from which FTRL makes these weights, with accumulators at their initial value; float32."""
    precise = weights.astype(np.float64)
    denominator = np.sqrt(options.initial_accumulator) / learning_rate + 2 * options.l2
    return (-precise * denominator - np.sign(precise) * options.l1).astype(np.float32)


@dataclass(frozen=True)
class MovedRows:
    """The rows of one table that are here too: their places in `rows`, and their ids here."""

    table: str
    rows: TableSnapshot
    places: np.ndarray
    row_ids: np.ndarray

    def describe(self, vocabulary_size: int) -> str:
        """How many moved, are new, are gone."""
        moved = self.row_ids.size
        return (
            f"{self.table} table: {moved:,} rows moved, {vocabulary_size - moved:,} of {vocabulary_size:,} "
            f"start fresh, {self.rows.row_ids.size - moved:,} are gone"
        )


def _moved_rows(source: Source, table: str, num_folded: int) -> MovedRows:
    """Where the numeric fields belong to the tower here, their rows do not come along."""
    rows = source.state.tables[table]
    here = rows.row_ids if source.moves is None else source.moves[rows.row_ids]
    places = np.flatnonzero((here != GONE) & (here >= num_folded))
    return MovedRows(table, rows, places, here[places])


def _pieces(
    moved: MovedRows, spec: TablesSpec, with_optimizer: bool, wide_rate: float
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Array by array: name, row ids [n] and values [n, width]."""
    wide_options = spec.wide_optimizer if moved.table == WIDE else None
    for name, array in moved.rows.layout.items():
        if name == LAST_STEP or (name != ROWS and not with_optimizer):
            continue
        count = max(1, PIECE_BYTES // (array.width * np.dtype(array.dtype).itemsize))
        for start in range(0, moved.places.size, count):
            row_ids = moved.row_ids[start : start + count]
            values = moved.rows.read(name, moved.places[start : start + count])
            yield name, row_ids, values
            if name == ROWS and not with_optimizer and isinstance(wide_options, FtrlOptions):
                yield "linear", row_ids, linear_terms(values, wide_options, wide_rate)


def _check_tables(source: Source, spec: TablesSpec, with_optimizer: bool) -> None:
    for table, rows in source.state.tables.items():
        expected = spec.layout(table)
        if not with_optimizer:
            expected = {ROWS: expected[ROWS]}
        found = {name: array for name, array in rows.layout.items() if with_optimizer or name == ROWS}
        if found != expected:
            advice = "; train.init_optimizer=false takes the rows alone" if with_optimizer else ""
            raise ValueError(f"{source.where}: {table} table has {_words(found)}, expected {_words(expected)}{advice}")


def _words(layout: dict) -> str:
    return ", ".join(f"{name} ({array.dtype}, {array.width} wide)" for name, array in layout.items())
