"""The tables in NumPy: the definition that every other backend is tested against.

Flat arrays of V rows, so it is for vocabularies that fit comfortably.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from app.config.optimizers import AdamOptions
from app.tables.checks import check_gradients, check_gradients_shape, check_ids, check_state, check_values
from app.tables.initial import initial_rows
from app.tables.interface import (
    DEEP,
    UPDATE_NAMES,
    WIDE,
    RowGradients,
    Rows,
    TableRates,
    TableSnapshot,
    TablesSpec,
    TableState,
    UniqueIds,
    WriteRows,
    write_state,
)
from app.tables.optimizers import clipped, table_step
from app.tables.whole_table_adam import StepHistory


class ReferenceTables:
    """`HostTables` on flat NumPy arrays."""

    def __init__(self, spec: TablesSpec, learning_rates: TableRates) -> None:
        self.spec = spec
        self._learning_rates = learning_rates
        self.update_seconds: dict[str, float] = {}
        self._forget(step=0)

    def unique(self, ids: np.ndarray) -> UniqueIds:
        """See `HostTables.unique`; the values are ascending."""
        check_ids(ids, self.spec)
        values, inverse = np.unique(ids, return_inverse=True)
        return UniqueIds((ids.shape[0], ids.shape[1]), values, inverse.reshape(-1))

    def lookup(self, unique: UniqueIds) -> Rows:
        """See `HostTables.lookup`."""
        batch, num_fields = unique.shape
        deep = self._deep_states(unique.values)[0]
        wide = self._arrays[WIDE]["rows"][unique.values]
        return Rows(
            deep=deep[unique.inverse].reshape(batch, num_fields * self.spec.embedding_dim),
            wide=sum_over_fields(wide[unique.inverse].reshape(batch, num_fields)),
            squared_norm=float(np.square(deep, dtype=np.float64).sum()),
        )

    def update(self, unique: UniqueIds, gradients: RowGradients, checked: bool = False) -> None:
        """See `HostTables.update`."""
        check = check_gradients_shape if checked else check_gradients
        check(gradients, unique, self.spec)
        self.step += 1
        self._touched[unique.values] = True
        self._changed.mark(unique.values)
        start = time.perf_counter()
        self._update_wide(unique, gradients)
        middle = time.perf_counter()
        self._update_deep(unique, gradients)
        wide, deep = self.spec.wide_optimizer.name, self.spec.deep_optimizer.name
        self.update_seconds = {
            UPDATE_NAMES.get(wide, wide): middle - start,
            UPDATE_NAMES.get(deep, deep): time.perf_counter() - middle,
        }

    def _update_wide(self, unique: UniqueIds, gradients: RowGradients) -> None:
        summed = sum_by_id(np.repeat(gradients.wide, unique.shape[1])[:, None], unique)
        gradient = clipped(summed * np.float32(gradients.scale), self.spec.clip_value)
        states = self._gather(WIDE, unique.values)
        gradient += np.float32(self.spec.wide_l2_coef) * states[0]
        rate = self._learning_rates[WIDE](self.step)
        table_step(states, gradient, self.spec.wide_optimizer, rate, self.step)
        self._scatter(WIDE, unique.values, states)

    def _update_deep(self, unique: UniqueIds, gradients: RowGradients) -> None:
        summed = sum_by_id(gradients.deep.reshape(-1, self.spec.embedding_dim), unique)
        gradient = clipped(summed * np.float32(gradients.scale), self.spec.clip_value)
        rate = self._learning_rates[DEEP](self.step)
        states = self._deep_states(unique.values)
        if self._history is not None:
            self._history.append(rate)
            self._history.update(states, gradient)
        else:
            gradient += np.float32(self.spec.l2_coef) * states[0]
            table_step(states, gradient, self.spec.deep_optimizer, rate, self.step)
        self._scatter(DEEP, unique.values, states)

    def _deep_states(self, row_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        """Copies of the state of deep rows, with `adam` as they are after the last step."""
        states = self._gather(DEEP, row_ids)
        if self._history is not None:
            self._history.catch_up(states)
        return states

    def _gather(self, table: str, row_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(array[row_ids] for array in self._arrays[table].values())

    def _scatter(self, table: str, row_ids: np.ndarray, values: tuple[np.ndarray, ...]) -> None:
        for array, value in zip(self._arrays[table].values(), values, strict=True):
            array[row_ids] = value

    def state(self) -> dict[str, TableState]:
        """See `HostTables.state`."""
        return self._state_of(np.flatnonzero(self._touched).astype(np.int64))

    def _state_of(self, row_ids: np.ndarray) -> dict[str, TableState]:
        return {
            table: TableState(row_ids, {name: array[row_ids] for name, array in arrays.items()})
            for table, arrays in self._arrays.items()
        }

    def snapshot(self, changed_only: bool) -> CopiedSnapshot:
        """See `HostTables.snapshot`."""
        return copied_snapshot(self._changed, self._touched, changed_only, self._state_of)

    def load_state(self, state: Mapping[str, TableSnapshot], step: int) -> None:
        """See `HostTables.load_state`."""
        check_state(state, self.spec, step)
        with self.loading(step) as write:
            write_state(write, state)

    @contextmanager
    def loading(self, step: int) -> Iterator[WriteRows]:
        """See `HostTables.loading`."""
        self._changed.check_released()
        self._forget(step)
        try:
            yield self._write
        except BaseException:
            self._forget(step=0)
            raise

    def _write(self, table: str, name: str, row_ids: np.ndarray, values: np.ndarray) -> None:
        check_values(table, name, row_ids, values, self.step)
        self._touched[row_ids] = True
        self._arrays[table][name][row_ids] = values

    def _forget(self, step: int) -> None:
        self.step = step
        self._history: StepHistory | None = None
        if isinstance(self.spec.deep_optimizer, AdamOptions):
            rate = self._learning_rates[DEEP]
            self._history = StepHistory.of_steps(self.spec.deep_optimizer, self.spec.l2_coef, rate, step)
        self._arrays = initial_arrays(self.spec)
        self._touched = np.zeros(self.spec.vocabulary_size, bool)
        self._changed = ChangedRows(self.spec.vocabulary_size)


def initial_arrays(spec: TablesSpec) -> dict[str, dict[str, np.ndarray]]:
    """Rows and optimizer state of both whole tables before the first step: table -> name -> [V, width] or [V, 1]."""
    arrays = {
        table: {
            array.name: np.full(
                (spec.vocabulary_size, 1 if array.one_a_row else spec.width(table)), array.initial, array.dtype
            )
            for array in spec.state_arrays(table)
        }
        for table in (WIDE, DEEP)
    }
    all_rows = np.arange(spec.vocabulary_size)
    arrays[DEEP]["rows"] = initial_rows(spec.seed, all_rows, spec.embedding_dim, spec.initial_scale)
    return arrays


def sum_by_id(per_position: np.ndarray, unique: UniqueIds) -> np.ndarray:
    """The sum of `per_position` [B * C, width] over the positions of each unique id: [U, width] float32."""
    summed = np.zeros((unique.values.size, per_position.shape[1]), np.float32)
    np.add.at(summed, unique.inverse, per_position)
    return summed


def sum_over_fields(wide: np.ndarray) -> np.ndarray:
    """The sum of `wide` [B, C] over its fields, field by field: [B] float32. (`sum(axis=1)` adds pairwise.)"""
    total = np.zeros(wide.shape[0], np.float32)
    for column in range(wide.shape[1]):
        total += wide[:, column]
    return total


class ChangedRows:
    """Which of V rows were updated since they were last taken: a bit each."""

    def __init__(self, num_rows: int) -> None:
        self._changed = np.zeros(num_rows, bool)
        self._given_back: list[np.ndarray] = []
        self.open: CopiedSnapshot | None = None

    def check_released(self) -> None:
        """Raise RuntimeError while a snapshot is not released."""
        if self.open is not None:
            check_released(self.open.released.is_set())

    def mark(self, row_ids: np.ndarray) -> None:
        """Note that these rows were updated."""
        self._changed[row_ids] = True

    def take(self) -> np.ndarray:
        """The ids of the changed rows, int64, ascending; from now on none is."""
        while self._given_back:
            self.mark(self._given_back.pop())
        row_ids = np.flatnonzero(self._changed).astype(np.int64)
        self._changed[row_ids] = False
        return row_ids

    def give_back(self, row_ids: np.ndarray) -> None:
        """What was taken in vain; from any thread."""
        self._given_back.append(row_ids)


@dataclass
class CopiedSnapshot:
    """A `Snapshot` of copies."""

    tables: dict[str, TableState]
    give_back: Callable[[], None]
    awaited: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def release(self, saved: bool) -> None:
        """See `Snapshot.release`."""
        self.released.set()
        if not saved:
            self.give_back()


def copied_snapshot(
    changed: ChangedRows,
    touched: np.ndarray,
    changed_only: bool,
    state_of: Callable[[np.ndarray], dict[str, TableState]],
) -> CopiedSnapshot:
    """A snapshot of the changed rows or of all that are `touched` [V]; `state_of` copies rows by their ids."""
    changed.check_released()
    taken = changed.take()
    row_ids = taken if changed_only else np.flatnonzero(touched).astype(np.int64)
    changed.open = CopiedSnapshot(state_of(row_ids), lambda: changed.give_back(taken))
    return changed.open


def check_released(released: bool) -> None:
    """Raise RuntimeError where the last snapshot is still open: there is one at a time."""
    if not released:
        raise RuntimeError("a snapshot of the tables is open: release it before the next one, and before a load")
