"""The tables in C++: slots in the order of first touch, and fused kernels on them."""

from __future__ import annotations

import contextlib
import ctypes
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from app.config.optimizers import AdamOptions, LazyAdamOptions
from app.tables.checks import check_bounds, check_gradients, check_gradients_shape, check_state
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
from app.tables.native.library import TABLE_NUMBERS, History, NativeHandle, Step
from app.tables.native.rows import NativeRows, NativeUniqueIds, find_unique, own
from app.tables.native.snapshot import NativeSnapshot, NativeSnapshots
from app.tables.whole_table_adam import MOST_EXACT_STEPS, StepHistory
from common.memory import HugeBuffer, num_cores
from common.native_library import address, room


class NativeTables:
    """`HostTables` on the native kernels.

    `lookup`'s arrays are valid until the lookup after the next, so that a copy to a device may overlap
    one more. `num_threads` defaults to the cores this process may use; no bit of any result depends on it.
    """

    def __init__(self, spec: TablesSpec, learning_rates: TableRates, num_threads: int | None = None) -> None:
        self.spec = spec
        self._learning_rates = learning_rates
        self.step = 0
        self._history = make_history(spec, learning_rates, step=0)
        self.update_seconds: dict[str, float] = {}
        self.num_threads = num_threads or num_cores()
        self._handle = NativeHandle(spec, self.num_threads)
        self._rows = NativeRows(self._handle, spec)
        self._snapshots = NativeSnapshots(self._handle, spec)
        self._deep_buffers = (HugeBuffer(), HugeBuffer())

    @property
    def instruction_set(self) -> str:
        """What the kernels use: avx512, avx2 or plain."""
        return self._handle.instruction_set

    def unique(self, ids: np.ndarray) -> NativeUniqueIds:
        """See `HostTables.unique`."""
        return find_unique(self._handle, ids, self.spec)

    def lookup(self, unique: UniqueIds) -> Rows:
        """See `HostTables.lookup`."""
        unique = own(unique)
        batch, num_fields = unique.shape
        self._deep_buffers = self._deep_buffers[::-1]
        deep = self._deep_buffers[0].array((batch, num_fields * self.spec.embedding_dim))
        wide, wide_rows = np.empty(batch, np.float32), np.empty(unique.values.size, np.float32)
        squared_norms = np.empty(unique.values.size, np.float64)
        slots, _ = self._rows.find(unique.values)
        history = history_struct(self._history, self.step)
        outputs = map(room, (deep, wide, wide_rows, squared_norms))
        rows = ctypes.byref(unique.as_struct()), address(slots, np.int32, unique.values.size)
        self._handle.call("lookup", *rows, history, *outputs)
        return Rows(deep, wide, float(squared_norms.sum()))

    def update(self, unique: UniqueIds, gradients: RowGradients, checked: bool = False) -> None:
        """See `HostTables.update`; MemoryError, and nothing changed, where the new rows find no room."""
        unique = own(unique)
        check_gradients_shape(gradients, unique, self.spec)
        deep, wide = np.ascontiguousarray(gradients.deep), np.ascontiguousarray(gradients.wide)
        if not checked and not (self.all_finite(deep) and self.all_finite(wide)):
            check_gradients(gradients, unique, self.spec)
        slots = self.touch(unique.values)
        self._snapshots.before_change(slots)
        self.step += 1
        start = time.perf_counter()
        self.update_wide(unique, slots, wide, gradients.scale)
        middle = time.perf_counter()
        self.update_deep(unique, slots, deep, gradients.scale)
        wide_name, deep_name = self.spec.wide_optimizer.name, self.spec.deep_optimizer.name
        self.update_seconds = {
            UPDATE_NAMES.get(wide_name, wide_name): middle - start,
            UPDATE_NAMES.get(deep_name, deep_name): time.perf_counter() - middle,
        }

    def update_wide(self, unique: NativeUniqueIds, slots: np.ndarray, gradient: np.ndarray, scale: float) -> None:
        """The wide rows' step of `update` alone; `slots` as `touch` gives them, `gradient` [B]."""
        batch, step = unique.as_struct(), step_struct(self.spec, WIDE, self._learning_rates, self.step)
        arrays = address(slots, np.int32, batch.num_unique), address(gradient, np.float32, batch.num_rows)
        self._handle.call("update_wide", ctypes.byref(batch), *arrays, scale, ctypes.byref(step))

    def update_deep(self, unique: NativeUniqueIds, slots: np.ndarray, gradient: np.ndarray, scale: float) -> None:
        """The deep rows' step of `update` alone, number `self.step`; `gradient` [B, C * D]."""
        batch, step = unique.as_struct(), step_struct(self.spec, DEEP, self._learning_rates, self.step)
        if self._history is not None and self._history.step < self.step:
            self._history.append(self._learning_rates[DEEP](self.step))
        history = history_struct(self._history, self.step - 1)
        width = batch.num_fields * self.spec.embedding_dim
        arrays = address(slots, np.int32, batch.num_unique), address(gradient, np.float32, batch.num_rows, width)
        self._handle.call("update_deep", ctypes.byref(batch), *arrays, scale, ctypes.byref(step), history)

    def touch(self, row_ids: np.ndarray) -> np.ndarray:
        """The slots [U] of the distinct `row_ids` [U] int64; rows that had none get one, with their initial values."""
        return self._rows.touch(row_ids)

    def all_finite(self, values: np.ndarray) -> bool:
        """Whether all of `values`, contiguous float32, are gradients that `check_gradients` takes."""
        return bool(self._handle.call("all_finite", address(values, np.float32, *values.shape), values.size))

    def state(self) -> dict[str, TableState]:
        """See `HostTables.state`."""
        row_ids, slots = self._rows.touched()
        return {table: TableState(row_ids, self._rows.read(table, slots)) for table in TABLE_NUMBERS}

    def snapshot(self, changed_only: bool) -> NativeSnapshot:
        """See `HostTables.snapshot`; no row is copied but those that are updated before the release."""
        return self._snapshots.take(self._rows, changed_only)

    def load_state(self, state: Mapping[str, TableSnapshot], step: int) -> None:
        """See `HostTables.load_state`; after a MemoryError the tables are empty."""
        check_state(state, self.spec, step)
        with self.loading(step) as write:
            write_state(write, state)

    @contextlib.contextmanager
    def loading(self, step: int) -> Iterator[WriteRows]:
        """See `HostTables.loading`."""
        self._snapshots.check_released()
        self._forget(step)
        try:
            yield self._write
            self._rows.end_writing()
        except BaseException:
            self._forget(step=0)
            raise

    def _write(self, table: str, name: str, row_ids: np.ndarray, values: np.ndarray) -> None:
        check_bounds(table, name, row_ids, values, self.step)
        self._rows.write(table, name, row_ids, values)

    def _forget(self, step: int) -> None:
        self._snapshots.forget()
        self._rows.clear()
        self.step = step
        self._history = make_history(self.spec, self._learning_rates, step)


def step_struct(spec: TablesSpec, table: str, learning_rates: TableRates, step: int) -> Step:
    """The settings of one step of one table's optimizer."""
    options = spec.optimizer(table)
    rate, epsilon = learning_rates[table](step), getattr(options, "epsilon", 0.0)
    if isinstance(options, LazyAdamOptions | AdamOptions):
        rate *= options.correction(step)
    if isinstance(options, AdamOptions):
        epsilon = options.uncorrected_epsilon(step)
    others = (getattr(options, name, 0.0) for name in ("l1", "l2"))
    betas = (getattr(options, name, 0.0) for name in ("beta1", "beta2"))
    l2_coef = spec.wide_l2_coef if table == WIDE else spec.l2_coef
    return Step(rate, *betas, epsilon, *others, l2_coef, spec.clip_value or math.inf)


def make_history(spec: TablesSpec, learning_rates: TableRates, step: int) -> StepHistory | None:
    """What `adam` knows of steps 1 … step of the deep table; None for the other optimizers."""
    options = spec.deep_optimizer
    if not isinstance(options, AdamOptions):
        return None
    return StepHistory.of_steps(options, spec.l2_coef, learning_rates[DEEP], step)


def history_struct(history: StepHistory | None, step: int) -> Any:
    """A pointer to the history up to `step`; valid until the next step is noted."""
    if history is None:
        return None
    noted = slice(step + 1)  # of arrays that have room for later steps
    addresses = (
        address(history.rates[noted], np.float32, step + 1),
        address(history.epsilons[noted], np.float32, step + 1),
        address(history.rate_sums[noted], np.float64, step + 1),
        address(history.beta2_powers[noted], np.float32, step + 1),
    )
    options = history.options
    return ctypes.byref(History(step, *addresses, options.beta1, options.beta2, history.l2_coef, MOST_EXACT_STEPS))
