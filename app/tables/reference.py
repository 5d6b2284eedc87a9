"""Implement the tables in NumPy. Every other backend is tested against this one.

The arrays have all V rows, so the vocabulary must fit into memory comfortably. A position is one id of a batch row. A
plain field has one position. A list field has one position per value, and the rows of its values are pooled into one
row.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from app.tables.checks import check_gradients, check_ids, check_released, check_row_ids, check_values
from app.tables.fields import NO_ROW, TableField, field_of_position, position_weights
from app.tables.initial import initial_rows
from app.tables.interface import (
    DEEP,
    WIDE,
    HostTables,
    ListPositions,
    PlaceRows,
    RowGradients,
    Rows,
    TableRates,
    Tables,
    TablesSpec,
    TableState,
    UniqueIds,
    WriteArray,
    update_name,
)
from app.tables.optimizers import MEAN, MEAN_STEP, RunningMean, history_of_steps, state_arrays, table_step
from app.tables.rounding import nearest, rounded, rounding_key, widened


def find_unique(ids: np.ndarray, spec: TablesSpec) -> UniqueIds:
    """Return the distinct ids of a batch's `ids` [B, P]. Raise ValueError for ids out of range, as `Tables.unique`
    does.
    """
    check_ids(ids, spec)
    lists = find_lists(ids, spec.fields) if spec.has_lists else None
    values, inverse = np.unique(ids if lists is None else ids[ids != NO_ROW], return_inverse=True)
    return UniqueIds((len(ids), len(spec.fields)), values.astype(np.int64), inverse.reshape(-1), lists=lists)


def find_lists(ids: np.ndarray, fields: Sequence[TableField]) -> ListPositions:
    """Return batch row, field and pooling factor of each value in `ids` [B, P], in the order of batch rows. Skip the
    positions of list fields that hold no value.
    """
    row, position = np.nonzero(ids != NO_ROW)
    places = (row * len(fields) + field_of_position(fields)[position]).astype(np.int32)
    counts = np.bincount(places, minlength=len(ids) * len(fields))
    first = np.append(0, np.cumsum(counts)).astype(np.int32)
    return ListPositions(first, places, position_weights(ids, fields)[row, position])


def expand(unique: UniqueIds, deep_rows: np.ndarray, wide_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the embedding rows of a batch by field, [B, C * D], and the sum of the wide weights of each batch row,
    [B], for `Rows`.

    `deep_rows` [U, D] and `wide_rows` [U] are the rows of the batch's distinct ids.

    Rows of the values of one list field, and wide rows of one batch row, are added in the order of positions.
    """
    (batch, num_fields), dim = unique.shape, deep_rows.shape[1]
    deep, by_position = deep_rows[unique.inverse], wide_rows[unique.inverse]
    if unique.lists is not None:
        by_position = unique.lists.weights * by_position
        weighted = unique.lists.weights[:, None] * deep
        deep = np.zeros((batch * num_fields, dim), np.float32)
        np.add.at(deep, unique.lists.places, weighted)
    wide = np.zeros(batch, np.float32)
    # `np.add.at` adds in the order of positions, as the kernels do. `np.sum` would add pairwise, which rounds
    # differently.
    np.add.at(wide, _batch_rows(unique), by_position)
    return deep.reshape(batch, num_fields * dim), wide


def sum_deep_by_id(unique: UniqueIds, deep: np.ndarray, embedding_dim: int) -> np.ndarray:
    """Sum the gradients `deep` [B, C * D] over all positions of each distinct id, in the order of positions. Return
    float32 [U, D].
    """
    by_position = deep.reshape(unique.shape[0] * unique.shape[1], embedding_dim)
    if unique.lists is not None:
        by_position = unique.lists.weights[:, None] * by_position[unique.lists.places]
    return _sum_by_id(unique, by_position)


def sum_wide_by_id(unique: UniqueIds, wide: np.ndarray) -> np.ndarray:
    """Sum the gradients `wide` [B] over all positions of each distinct id, in the order of positions. Return float32
    [U].

    The gradient of a batch row counts once for each position of that row.
    """
    by_position = wide[_batch_rows(unique)]
    return _sum_by_id(unique, by_position if unique.lists is None else unique.lists.weights * by_position)


def _batch_rows(unique: UniqueIds) -> np.ndarray:
    places = np.arange(unique.inverse.size) if unique.lists is None else unique.lists.places
    return places // max(unique.shape[1], 1)


def _sum_by_id(unique: UniqueIds, by_position: np.ndarray) -> np.ndarray:
    sums = np.zeros((unique.values.size, *by_position.shape[1:]), np.float32)
    np.add.at(sums, unique.inverse, by_position)
    return sums


Arrays = dict[str, dict[str, np.ndarray]]  # Nested dict: table name -> state array name -> array [V, width] or [V, 1].


class WholeTables(Tables):
    """Base class of tables that store all V rows, not only those that were updated or loaded (touched rows).

    It tracks which rows are touched and which changed since the last snapshot (the rows at one moment, for a
    checkpoint), takes snapshots by copying rows, and loads saved rows.
    """

    _open: CopiedSnapshot | None  # The last snapshot.

    def __init__(self, spec: TablesSpec) -> None:
        self.spec = spec
        self._forget(step=0)

    @abstractmethod
    def copied_rows(self, row_ids: np.ndarray) -> dict[str, TableState]:
        """Return copies of the rows `row_ids` of both tables, with their optimizer state, by table name."""

    @abstractmethod
    def take_arrays(self, arrays: Arrays) -> None:
        """Replace rows and optimizer states of both tables by `arrays`, which has arrays by table and array name."""

    def mark_updated(self, row_ids: np.ndarray) -> None:
        """Record that the rows `row_ids` were updated, so that full checkpoints, and the next delta checkpoint (changed
        rows only), store them.
        """
        self._touched[row_ids] = True
        self._changed[row_ids] = True

    def state(self) -> dict[str, TableState]:
        return self.copied_rows(np.flatnonzero(self._touched).astype(np.int64))

    def snapshot(self, changed_only: bool) -> CopiedSnapshot:
        self._check_released()
        while self._not_saved:
            self._changed[self._not_saved.pop()] = True
        # A row that was updated and then reset by `remove` has no state to save, so it does not count as changed.
        self._changed &= self._touched
        changed = np.flatnonzero(self._changed).astype(np.int64)
        self._changed[changed] = False
        not_saved = self._not_saved
        tables = self.copied_rows(changed) if changed_only else self.state()
        self._open = CopiedSnapshot(tables, lambda: not_saved.append(changed))
        return self._open

    @contextmanager
    def loading(self, step: int) -> Iterator[PlaceRows]:
        self._check_released()
        self._forget(step)
        arrays = initial_arrays(self.spec)

        def place(table: str, row_ids: np.ndarray) -> WriteArray:
            def write(name: str, values: np.ndarray, start: int = 0) -> None:
                ids = row_ids[start : start + len(values)]
                check_values(table, name, ids, values, step)
                arrays[table][name][ids] = values

            self._touched[row_ids] = True
            return write

        try:
            yield place
        except BaseException:
            self._forget(step=0)
            arrays = initial_arrays(self.spec)
            raise
        finally:
            self.take_arrays(arrays)

    def _check_released(self) -> None:
        if self._open is not None:
            check_released(self._open.released.is_set())

    def _forget(self, step: int) -> None:
        self.step = step
        self._touched = np.zeros(self.spec.vocabulary_size, bool)
        # Mask of the ids [V] whose rows were updated since the last snapshot, so that the next delta checkpoint
        # includes them.
        self._changed = np.zeros(self.spec.vocabulary_size, bool)
        self._open = None
        # Ids of the changed rows of each snapshot that was released without being saved.
        self._not_saved: list[np.ndarray] = []


@dataclass
class CopiedSnapshot:
    """A `Snapshot` (the rows at one moment) that holds copies of the rows. If the snapshot is released without being
    saved, its function `give_back` marks the rows as changed again.
    """

    tables: dict[str, TableState]
    give_back: Callable[[], None]
    awaited: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def release(self, saved: bool) -> None:
        self.released.set()
        if not saved:
            self.give_back()


class ReferenceTables(WholeTables, HostTables):
    """Embedding tables in host memory (`HostTables`) that consist of NumPy arrays and NumPy operations."""

    def __init__(self, spec: TablesSpec, learning_rates: TableRates) -> None:
        self._learning_rates = learning_rates
        self.update_seconds: dict[str, float] = {}
        self._means = RunningMean(spec.ema_decay)
        super().__init__(spec)
        self._arrays = initial_arrays(spec)

    def unique(self, ids: np.ndarray) -> UniqueIds:
        return find_unique(ids, self.spec)

    def lookup(self, unique: UniqueIds, means: bool = False) -> Rows:
        if means and self.step:
            wide_rows, deep_rows = (self._rows_and_means(table, unique.values)[MEAN] for table in (WIDE, DEEP))
            wide_rows = wide_rows[:, 0]
        else:
            deep_rows = self._deep_states(unique.values)["rows"]
            wide_rows = self._arrays[WIDE]["rows"][unique.values, 0]
        return Rows(*expand(unique, deep_rows, wide_rows), float(np.square(deep_rows, dtype=np.float64).sum()))

    def update(self, unique: UniqueIds, gradients: RowGradients, checked: bool = False) -> None:
        check_gradients(gradients, unique.shape[0], self.spec, only_shape=checked)
        if self.spec.ema_decay:
            for table in self.spec.tables:
                self._scatter(table, unique.values, self._rows_and_means(table, unique.values))
        self.step += 1
        self.mark_updated(unique.values)
        steps = {WIDE: self._update_wide, DEEP: self._update_deep}
        self.update_seconds = {}
        for table in self.spec.tables:
            start = time.perf_counter()
            steps[table](unique, gradients)
            self.update_seconds[update_name(self.spec, table)] = time.perf_counter() - start

    def grow(self, vocabulary_size: int) -> None:
        new_ids = np.arange(self.spec.vocabulary_size, vocabulary_size)
        self.spec = replace(self.spec, vocabulary_size=vocabulary_size)
        for table, arrays in initial_arrays(self.spec, new_ids).items():
            of_table = self._arrays[table]
            of_table.update({name: np.concatenate([of_table[name], rows]) for name, rows in arrays.items()})
        self._touched, self._changed = (np.pad(flags, (0, len(new_ids))) for flags in (self._touched, self._changed))

    def remove(self, row_ids: np.ndarray) -> None:
        check_row_ids(row_ids, "every", self.spec.vocabulary_size)
        for table, arrays in initial_arrays(self.spec, row_ids).items():
            self._scatter(table, row_ids, arrays)
        self._touched[row_ids] = self._changed[row_ids] = False

    def renumber(self, new_ids: np.ndarray, vocabulary_size: int) -> None:
        self._check_released()
        old_ids = np.flatnonzero(self._touched)
        check_row_ids(np.sort(moved := new_ids[old_ids]), "every", vocabulary_size)
        rows, changed = self.copied_rows(old_ids), self._changed[old_ids]
        unsaved = [new_ids[ids[self._touched[ids]]] for ids in self._not_saved]
        self.spec = replace(self.spec, vocabulary_size=vocabulary_size)
        self._arrays = initial_arrays(self.spec)
        self._touched, self._changed = (np.zeros(vocabulary_size, bool) for _ in range(2))
        for table, state in rows.items():
            self._scatter(table, moved, state.arrays)
        self._touched[moved], self._changed[moved], self._not_saved = True, changed, unsaved

    def _rows_and_means(self, table: str, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return copies of all state arrays of the rows `row_ids`, in which weights and running means have taken all
        steps so far, also those that are postponed for rows outside the batch.
        """
        states = self._gather(table, row_ids)
        if table == DEEP and self._history is not None:
            self._history.catch_up(tuple(states.values()), self._means)
        else:
            states[MEAN] = self._means.of_still(states["rows"], states[MEAN], states[MEAN_STEP], self.step)
            states[MEAN_STEP][...] = self.step
        return states

    def _update_wide(self, unique: UniqueIds, gradients: RowGradients) -> None:
        summed = sum_wide_by_id(unique, gradients.wide)[:, None]
        states = self._gather(WIDE, unique.values)
        step_rows(self.spec, WIDE, states, summed, gradients.scale, self._learning_rates[WIDE](self.step), self.step)
        self._scatter(WIDE, unique.values, states)

    def _update_deep(self, unique: UniqueIds, gradients: RowGradients) -> None:
        summed = sum_deep_by_id(unique, gradients.deep, self.spec.embedding_dim)
        rate = self._learning_rates[DEEP](self.step)
        states = self._deep_states(unique.values)
        if self._history is not None:
            self._history.append(rate)
            gradient = summed * np.float32(gradients.scale)
            self._history.update(_own_states(self.spec, DEEP, states), gradient)
        else:
            step_rows(self.spec, DEEP, states, summed, gradients.scale, rate, self.step)
        self._scatter(DEEP, unique.values, states)

    def _deep_states(self, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return copies of weights and optimizer state of the deep rows `row_ids`.

        With the optimizer `adam`, the copies include the postponed steps: those whose batches had none of these rows.
        """
        states = self._gather(DEEP, row_ids)
        if self._history is not None:
            self._history.catch_up(_own_states(self.spec, DEEP, states))
        return states

    def _gather(self, table: str, row_ids: np.ndarray) -> dict[str, np.ndarray]:
        return widened({name: array[row_ids] for name, array in self._arrays[table].items()})

    def _scatter(self, table: str, row_ids: np.ndarray, states: dict[str, np.ndarray]) -> None:
        arrays = self._arrays[table]
        dtypes = {name: array.dtype for name, array in arrays.items()}
        states = rounded(states, row_ids, dtypes, rounding_key(self.spec.seed, self.step))
        for name, values in states.items():
            arrays[name][row_ids] = values

    def copied_rows(self, row_ids: np.ndarray) -> dict[str, TableState]:
        return {
            table: TableState(row_ids, {name: array[row_ids] for name, array in arrays.items()})
            for table, arrays in self._arrays.items()
            if table in self.spec.tables
        }

    def take_arrays(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def _forget(self, step: int) -> None:
        super()._forget(step)
        self._history = history_of_steps(self.spec.deep_optimizer, self.spec.l2_coef, self._learning_rates[DEEP], step)


def step_rows(
    spec: TablesSpec,
    table: str,
    states: dict[str, np.ndarray],
    summed: np.ndarray,
    scale: float,
    rate: float,
    step: int,
) -> None:
    """Take step number `step` of any optimizer but `adam` on some rows of a table, in place.

    `states` holds the state arrays of these rows, by the names of the arrays. `summed` [U, width] holds the gradient of
    each row, summed over all positions of the row's id. The function multiplies this gradient by `scale`, and in the
    deep table adds the gradient of the L2 penalty.
    """
    gradient = summed * np.float32(scale)
    gradient += np.float32(spec.l2_coef if table == DEEP else 0.0) * states["rows"]
    table_step(_own_states(spec, table, states), gradient, spec.optimizer(table), rate, step)


def _own_states(spec: TablesSpec, table: str, states: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    # Leave out the arrays of the running mean, which the optimizer does not know.
    return tuple(states[array.name] for array in state_arrays(spec.optimizer(table)))


def initial_arrays(spec: TablesSpec, row_ids: np.ndarray | None = None) -> Arrays:
    """Return the state arrays of both tables before the first step: initial rows, and initial optimizer states.

    The arrays have one row for each of `row_ids` or, without `row_ids`, for each of the V ids.
    """
    row_ids = np.arange(spec.vocabulary_size) if row_ids is None else row_ids
    arrays = {
        table: {
            array.name: np.full((len(row_ids), 1 if array.one_a_row else spec.width(table)), array.initial, array.dtype)
            for array in spec.state_arrays(table)
        }
        for table in (WIDE, DEEP)
    }
    rows = initial_rows(spec.seed, row_ids, spec.embedding_dim, spec.initial_scale, spec.dtype)
    arrays[DEEP]["rows"] = nearest(rows, spec.dtype)
    return arrays
