"""A new run that begins with the rows, the tower, or both, of a model that was trained before.

Letters: n rows of a piece, V vocabulary size.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app import parameters
from app.assemble import Parts, fold_numeric
from app.checkpoint_reading import PIECE_BYTES
from app.config import Config
from app.row_moves import GONE
from app.tables.interface import DEEP, WIDE, TableSnapshot, TablesSpec
from app.tables.optimizer_options import FtrlOptions
from app.tables.optimizers import LAST_STEP, ROWS
from app.warm_start_source import Source, open_source
from data_prep.schema import Schema

log = logging.getLogger(__name__)

STEP_COUNTS = ("beta1_power", "beta2_power")  # of the dense Adam: its steps count anew, as the tables' do


def warm_start(parts: Parts, config: Config, schema: Schema, dataset: Path) -> None:
    """Take what `train.init_take` says from `train.init_from`; with `init_optimizer` what the optimizers remember too.

    Steps, and with them learning-rate schedules and Adam's bias corrections, count from 0. Raises ValueError, saying
    what was found and expected, for a model of another shape.
    """
    source = open_source(config, schema, dataset)
    take, with_optimizer = config.train.init_take, config.train.init_optimizer
    if take in ("all", "tower"):
        _take_dense(parts, source, schema, with_optimizer)
    if take in ("all", "tables"):
        spec = parts.step.tables.spec
        _check_tables(source, spec, with_optimizer)
        with parts.step.tables.loading(step=0) as write:
            for table in (WIDE, DEEP):
                moved = _moved_rows(source, table, parts.model.wide.num_numeric)
                for name, row_ids, values in _pieces(moved, spec, with_optimizer, parts.learning_rates.at(1)[WIDE]):
                    write(table, name, row_ids, values)
                log.info("%s: %s", source.where, moved.describe(schema.vocabulary_size))


def _take_dense(parts: Parts, source: Source, schema: Schema, with_optimizer: bool) -> None:
    if not source.unchanged_numeric:
        log.warning("warning: %s saw numeric fields scaled otherwise than they are here", source.where)
    expected = [*parts.model.named_parameters(), *parts.model.named_statistics()]
    memory = parts.optimizers.named_state() if with_optimizer else {}
    memory = {name: state for name, state in memory.items() if not name.endswith(STEP_COUNTS)}
    dense = source.state.dense
    if not source.folded and parts.model.wide.num_numeric:
        dense = fold_numeric(source.state, parts.step.tables.spec, schema.num_numeric)
    taken = {name: array for name, array in dense.items() if name in memory or _is_of_model(name)}
    parts.check_dense(taken, [*expected, *memory])
    parts.write_dense({name: np.ascontiguousarray(values, np.float32) for name, values in taken.items()})
    if not with_optimizer:
        _fit_linear_terms(parts, taken)
    log.info("%s: took %d dense arrays", source.where, len(taken))


def _is_of_model(name: str) -> bool:
    """Whether it is a parameter, and not what an optimizer remembers of one (`adam.first_moment.tower.bias_0`)."""
    return name.startswith(("wide.", "tower."))


def _fit_linear_terms(parts: Parts, taken: dict[str, np.ndarray]) -> None:
    """FTRL makes its weights anew from its linear terms at each step: these must be such that they give the weights."""
    options = parts.step.tables.spec.wide_optimizer
    if isinstance(options, FtrlOptions):
        rate = parts.learning_rates.at(1)[WIDE]
        for name, state in parts.optimizers.named_state().items():
            if name.startswith("ftrl.linear."):
                weights = taken[name.removeprefix("ftrl.linear.")]
                parameters.write(state, linear_terms(weights, options, rate))


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
