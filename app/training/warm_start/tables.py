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

from app.checkpoint.read import PIECE_BYTES
from app.config.config import Config
from app.config.optimizers import FtrlOptions
from app.tables.interface import DEEP, WIDE, TableSnapshot, TablesSpec, WriteRows
from app.tables.optimizers import LAST_RATE, LAST_STEP, ROWS, TableOptimizer, ftrl_arrays
from app.training.learning_rates import LearningRates
from app.training.warm_start.source import GONE, Source, open_source
from data_prep.prepared.schema import Schema

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
                for name, row_ids, values in _pieces(moved, spec.optimizer(table), with_optimizer):
                    try:
                        write(table, name, row_ids, values)
                    except ValueError as error:
                        raise ValueError(f"{source.where}: {error}") from error
                log.info("%s: %s", source.where, moved.describe(self._schema.vocabulary_size))


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
    moved: MovedRows, options: TableOptimizer, with_optimizer: bool
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Some rows at a time, array by array: name, row ids [n] and values [n, width].

    A step of FTRL goes on from its linear terms, not from the weights, so those are made to fit each other.
    """
    names = [name for name in moved.rows.layout if name != LAST_STEP and (with_optimizer or name == ROWS)]
    count = max(1, PIECE_BYTES // (4 * moved.rows.layout[ROWS].width))
    for start in range(0, moved.places.size, count):
        places = moved.places[start : start + count]
        arrays = {name: moved.rows.read(name, places).copy() for name in names}
        if isinstance(options, FtrlOptions):
            arrays = ftrl_arrays(arrays, options)
        for name, values in arrays.items():
            yield name, moved.row_ids[start : start + count], values


def _check_tables(source: Source, spec: TablesSpec, with_optimizer: bool) -> None:
    for table, rows in source.state.tables.items():
        # An FTRL's last learning rates are of no use to one with another schedule, and can be done without.
        found, expected = (
            {name: array for name, array in layout.items() if name == ROWS or (with_optimizer and name != LAST_RATE)}
            for layout in (rows.layout, spec.layout(table))
        )
        if found != expected:
            advice = "; train.init_optimizer=false takes the rows alone" if with_optimizer else ""
            raise ValueError(f"{source.where}: {table} table has {_words(found)}, expected {_words(expected)}{advice}")


def _words(layout: dict) -> str:
    return ", ".join(f"{name} ({array.dtype}, {array.width} wide)" for name, array in layout.items())
