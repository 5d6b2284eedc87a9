"""Rows of a model that was trained before, for a new run's tables; no MindSpore, as servers of rows take them too.

Letters: n rows of a piece, V vocabulary size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np

from app.checkpoint.read import PIECE_BYTES
from app.config.config import Config
from app.config.optimizers import FtrlOptions
from app.tables.fields import are_seen
from app.tables.interface import DEEP, WIDE, RowArray, TableSnapshot, TablesSpec, WriteRows
from app.tables.optimizers import LAST_RATE, LAST_STEP, MEAN, MEAN_STEP, ROWS, TableOptimizer, ftrl_arrays
from app.training.learning_rates import LearningRates
from app.training.warm_start.source import GONE, Source
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)

OWN = LAST_STEP, MEAN, MEAN_STEP  # arrays that begin anew with each run
FREE = LAST_RATE, MEAN, MEAN_STEP  # arrays that the source may have or lack

Loading = Callable[[int], AbstractContextManager[WriteRows]]  # `loading` of all tables, or of those of one owner


def take_rows(
    loading: Loading, spec: TablesSpec, rates: LearningRates, config: Config, schema: Schema, source: Source
) -> None:
    """Load the source's rows, and with `train.init_optimizer` their optimizer states, into empty tables.

    Raises ValueError if the source's tables have other arrays than `spec`.
    """
    with_optimizer = config.train.init_optimizer
    _check_tables(source, spec, with_optimizer)
    rates.steps_before = source.steps if with_optimizer else 0
    # Where the numeric fields belong to the tower, their rows are not taken.
    first_id = schema.num_numeric if config.model.fold_numeric else 0
    with loading(0) as write:
        for table in (WIDE, DEEP):
            rows = source.state.tables[table]
            new_ids = rows.row_ids if source.moves is None else source.moves[rows.row_ids]
            kept = (new_ids != GONE) & (new_ids >= first_id)
            if spec.has_parts:
                kept &= are_seen(
                    new_ids, schema, [field.wide if table == WIDE else field.deep for field in spec.fields]
                )
            moved = np.flatnonzero(kept)
            for name, places, values in _pieces(rows, moved, spec.optimizer(table), with_optimizer):
                try:
                    write(table, name, new_ids[places], values)
                except ValueError as error:
                    raise ValueError(f"{source.where}: {error}") from error
            log.info(
                "%s: %s table: %s rows taken, %s of %s newly initialized, %s dropped",
                source.where,
                table,
                f"{moved.size:,}",
                f"{schema.vocabulary_size - moved.size:,}",
                f"{schema.vocabulary_size:,}",
                f"{rows.row_ids.size - moved.size:,}",
            )


def _pieces(
    rows: TableSnapshot, moved: np.ndarray, options: TableOptimizer, with_optimizer: bool
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield some of the `moved` rows at a time, array by array: name, their places in `rows` [n], values [n, width].

    FTRL computes its weights from its linear terms, so these are fitted to the weights.
    """
    names = [name for name in rows.layout if name not in OWN and (with_optimizer or name == ROWS)]
    count = max(1, PIECE_BYTES // (4 * rows.layout[ROWS].width))
    for start in range(0, moved.size, count):
        places = moved[start : start + count]
        arrays = {name: rows.read(name, places).copy() for name in names}
        if isinstance(options, FtrlOptions):
            arrays = ftrl_arrays(arrays, options)
        for name, values in arrays.items():
            yield name, places, values


def _check_tables(source: Source, spec: TablesSpec, with_optimizer: bool) -> None:
    for table, rows in source.state.tables.items():
        # An FTRL's last learning rates are of no use to one with another schedule, and can be done without.
        found, expected = (
            {name: array for name, array in layout.items() if name == ROWS or (with_optimizer and name not in FREE)}
            for layout in (rows.layout, spec.layout(table))
        )
        if found != expected:
            advice = "; train.init_optimizer=false takes the rows alone" if with_optimizer else ""
            raise ValueError(
                f"{source.where}: {table} table has {_described(found)}, expected {_described(expected)}{advice}"
            )


def _described(layout: dict[str, RowArray]) -> str:
    return ", ".join(f"{name} ({array.dtype}, {array.width} wide)" for name, array in layout.items())
