"""Implement `HostTables` in C++: rows lie in slots (places in memory) in the order of first touch, and fused kernels
work on them.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from app.tables.checks import check_bounds, check_gradients, check_gradients_shape, check_row_ids
from app.tables.interface import (
    DEEP,
    WIDE,
    HostTables,
    PlaceRows,
    RowGradients,
    Rows,
    TableRates,
    TablesSpec,
    TableState,
    UniqueIds,
    WriteArray,
    update_name,
)
from app.tables.native.library import NativeHandle, NativeUniqueIds, Step, has_kernel, history_until, means_until, own
from app.tables.native.rows import NativeRows, NativeSnapshot
from app.tables.optimizers import RunningMean, history_of_steps
from app.tables.reference import step_rows
from app.tables.rounding import rounded, rounding_key, widened
from common.arrays.pages import HugeBuffer
from common.native_library import address, output_address
from common.process import num_cores


class NativeTables(HostTables):
    """Embedding tables in host memory (`HostTables`) whose lookup and optimizers are C++ kernels.

    The arrays of a lookup stay valid until the lookup after the next one, so that copying them to a device may overlap
    the next lookup. `num_threads` defaults to the number of cores that this process may use. It does not change any bit
    of the results. If there is no memory for new rows, `update` raises MemoryError and changes nothing, and a load
    leaves the tables empty.
    """

    def __init__(self, spec: TablesSpec, learning_rates: TableRates, num_threads: int | None = None) -> None:
        self.spec = spec
        self._learning_rates = learning_rates
        self.update_seconds: dict[str, float] = {}
        self.num_threads = num_threads or num_cores()
        self._handle = NativeHandle(spec, self.num_threads)
        self._rows = NativeRows(self._handle, spec)
        self._deep_buffers = (HugeBuffer(), HugeBuffer())
        self._computed_rows = HugeBuffer()
        # `adam` postpones the steps of rows that are not in the batch. A lookup computes the values that its rows have
        # after their postponed steps, and leaves these values in `_computed_rows`. `_caught_up` holds the batch of the
        # lookup and the step number at that time, or None and 0 if the values cannot be used again.
        self._caught_up: tuple[NativeUniqueIds | None, int] = None, 0
        self._means = RunningMean(spec.ema_decay)
        self._forget(step=0)

    @property
    def instruction_set(self) -> str:
        """The instruction set of the kernels: avx512, avx2 or plain."""
        return str(self._handle.call("isa").decode())

    def unique(self, ids: np.ndarray) -> NativeUniqueIds:
        return self._handle.unique(ids)

    def read_ahead(self, unique: UniqueIds, will_change: bool) -> None:
        self._handle.read_ahead(unique.values, will_change)

    def lookup(self, unique: UniqueIds, means: bool = False) -> Rows:
        unique = own(unique)
        if means and self.step:
            return self._look_up_means(unique)
        batch, num_fields = unique.shape
        self._deep_buffers = self._deep_buffers[::-1]
        deep = self._deep_buffers[0].array((batch, num_fields * self.spec.embedding_dim))
        wide, wide_rows = np.empty(batch, np.float32), np.empty(unique.values.size, np.float32)
        squared_norms = np.empty(unique.values.size, np.float64)
        row_places = np.empty(unique.values.size if unique.lists is not None else 0, np.uintp)
        slots, _ = self._rows.find(unique.values)
        self._caught_up = None, 0
        computed = self._computed_rows_of(unique)
        outputs = map(output_address, (deep, wide, wide_rows, squared_norms, computed, row_places))
        rows = ctypes.byref(unique.struct), address(slots, np.int32, unique.values.size)
        self._handle.call("lookup", *rows, history_until(self._history, self.step), *outputs)
        self._caught_up = unique, self.step
        return Rows(deep, wide, float(squared_norms.sum()))

    def _computed_rows_of(self, unique: NativeUniqueIds) -> np.ndarray:
        """Return the memory, float32, for deep rows that a lookup of the ids `unique` must compute rather than copy.

        The memory is the argument `computed` of the C function host_tables_lookup. With the optimizer `adam`, which
        changes all rows at each step, it holds the rows and both moments after the steps that were postponed while no
        batch had these ids, [U, 3 * D]. Otherwise it holds the rows of a batch with fields of several ids (lists),
        whose mean is computed from them, [U, D], or has no elements.
        """
        arrays = 3 if self._history is not None else int(unique.lists is not None)
        return self._computed_rows.array((unique.values.size, arrays * self.spec.embedding_dim))

    def _look_up_means(self, unique: NativeUniqueIds) -> Rows:
        (batch, num_fields), count, width = unique.shape, unique.values.size, self.spec.embedding_dim
        slots, _ = self._rows.find(unique.values)
        scratch = np.empty((count if self._history else 0, 3 * width), np.float32)
        deep_rows, wide_rows = np.empty((count, width), np.float32), np.empty(count, np.float32)
        rows = address(unique.values, np.int64, count), address(slots, np.int32, count), count
        outputs = map(output_address, (scratch, deep_rows, wide_rows))
        self._handle.call(
            "read_means", *rows, history_until(self._history, self.step), means_until(self._means, self.step), *outputs
        )
        deep, wide = np.empty((batch, num_fields * width), np.float32), np.empty(batch, np.float32)
        outputs = map(output_address, (deep_rows, wide_rows, deep, wide))
        self._handle.call("expand", ctypes.byref(unique.struct), *outputs)
        return Rows(deep, wide, float(np.square(deep_rows, dtype=np.float64).sum()))

    def update(self, unique: UniqueIds, gradients: RowGradients, checked: bool = False) -> None:
        unique = own(unique)
        check_gradients_shape(gradients, unique.shape[0], self.spec)
        deep, wide = np.ascontiguousarray(gradients.deep), np.ascontiguousarray(gradients.wide)
        if not checked and not (self.all_finite(deep) and self.all_finite(wide)):
            check_gradients(gradients, unique.shape[0], self.spec)
        self._computed_rows_of(unique)  # Allocate here, so that a MemoryError comes before any change.
        self._handle.check_file()
        slots = self.touch(unique.values)
        self._rows.before_change(slots)
        if self.spec.ema_decay:
            rows = address(unique.values, np.int64, slots.size), address(slots, np.int32, slots.size), slots.size
            until = history_until(self._history, self.step), means_until(self._means, self.step)
            self._handle.call("advance_means", *rows, *until, self._rounding_key())
        self.step += 1
        steps = {WIDE: (self.update_wide, wide), DEEP: (self.update_deep, deep)}
        self.update_seconds = {}
        for table in self.spec.tables:
            start = time.perf_counter()
            take_step, gradient = steps[table]
            take_step(unique, slots, gradient, gradients.scale)
            self.update_seconds[update_name(self.spec, table)] = time.perf_counter() - start

    def update_wide(self, unique: NativeUniqueIds, slots: np.ndarray, gradient: np.ndarray, scale: float) -> None:
        """Take the optimizer's step number `self.step` on the wide table alone. `update` calls this.

        `slots` [U] are the places in memory of the rows of the batch's U distinct ids, as `touch` returns them.
        `gradient` [B] has one value for each of the B rows of the batch. The gradient of an id is the sum of these
        values over all positions of the id in the batch, times `scale`. A list value counts with its weight.
        """
        if not has_kernel(self.spec, WIDE):
            return self._step_in_numpy(WIDE, unique, slots, gradient, scale)
        batch, step = unique.struct, self._optimizer_step(WIDE)
        arrays = address(slots, np.int32, batch.num_unique), address(gradient, np.float32, batch.num_rows)
        self._handle.call("update_wide", ctypes.byref(batch), *arrays, scale, ctypes.byref(step))

    def update_deep(self, unique: NativeUniqueIds, slots: np.ndarray, gradient: np.ndarray, scale: float) -> None:
        """Take the optimizer's step number `self.step` on the deep table alone. `update` calls this.

        `slots` [U] are the places in memory of the rows of the batch's U distinct ids, as `touch` returns them.
        `gradient` [B, C * D] has D values for each of the C fields of each of the B rows of the batch. The gradient of
        an id is the sum of these D values over all positions of the id in the batch, times `scale`. A list value counts
        with its weight.
        """
        if not has_kernel(self.spec, DEEP):
            return self._step_in_numpy(DEEP, unique, slots, gradient, scale)
        batch, step = unique.struct, self._optimizer_step(DEEP)
        if self._history is not None and self._history.step < self.step:
            self._history.append(self._learning_rates[DEEP](self.step))
        # With `adam`, the last lookup has computed the values of its rows after their postponed steps
        # (`_computed_rows`). These values can be used again if it was a lookup of the same batch. Any other lookup or
        # update in between would have changed `_caught_up`.
        looked_up, step_then = self._caught_up
        is_caught_up = looked_up is unique and step_then == self.step - 1
        caught_up = None if self._history is None else output_address(self._computed_rows_of(unique))
        self._caught_up = None, 0
        of_history = history_until(self._history, self.step - 1), caught_up, is_caught_up
        width = batch.num_fields * self.spec.embedding_dim
        arrays = address(slots, np.int32, batch.num_unique), address(gradient, np.float32, batch.num_rows, width)
        inputs = ctypes.byref(batch), *arrays, scale, ctypes.byref(step)
        self._handle.call("update_deep", *inputs, *of_history, self._rounding_key())

    def _rounding_key(self) -> int:
        return rounding_key(self.spec.seed, self.step) if self.spec.dtype == "bfloat16" else 0

    def _step_in_numpy(
        self, table: str, unique: NativeUniqueIds, slots: np.ndarray, gradient: np.ndarray, scale: float
    ) -> None:
        """Update one table by an optimizer that has no C++ kernel: C++ sums the gradients of each id, NumPy takes the
        step.
        """
        (batch, num_fields), dim = unique.shape, self.spec.embedding_dim
        summed = np.empty((slots.size, self.spec.width(table)), np.float32)
        shape = (batch, num_fields * dim) if table == DEEP else (batch,)
        inputs, outputs = [address(gradient, np.float32, *shape), None], [output_address(summed), None]
        if table == WIDE:
            inputs, outputs = inputs[::-1], outputs[::-1]
        self._handle.call("sum_by_id", ctypes.byref(unique.struct), *inputs, *outputs)
        stored = self._rows.read(table, slots)
        states = widened(stored)
        step_rows(self.spec, table, states, summed, scale, self._learning_rates[table](self.step), self.step)
        dtypes, key = {name: array.dtype for name, array in stored.items()}, rounding_key(self.spec.seed, self.step)
        self._rows.overwrite(table, slots, rounded(states, unique.values, dtypes, key))

    def grow(self, vocabulary_size: int) -> None:
        self.spec = replace(self.spec, vocabulary_size=vocabulary_size)
        self._handle.grow(self.spec)

    def remove(self, row_ids: np.ndarray) -> None:
        check_row_ids(row_ids, "every", self.spec.vocabulary_size)
        self._caught_up = None, 0
        self._rows.remove(row_ids)

    def renumber(self, new_ids: np.ndarray, vocabulary_size: int) -> None:
        row_ids, slots = self._rows.touched()
        spec = replace(self.spec, vocabulary_size=vocabulary_size)
        check_row_ids(np.sort(moved := new_ids[row_ids]), "every", vocabulary_size)
        self._rows.check_released()
        self._rows.forget_last_find()
        self._handle.renumber(moved, slots, spec)
        self.spec, self._caught_up = spec, (None, 0)

    def touch(self, row_ids: np.ndarray) -> np.ndarray:
        """Return the slots (places in memory) [U] of the rows `row_ids`. Rows without a slot first get one, filled with
        their initial values.

        `NativeRows.touch` documents the arguments and errors.
        """
        return self._rows.touch(row_ids)

    def all_finite(self, values: np.ndarray) -> bool:
        """Return True if all of `values` (contiguous float32) lie within ±LARGEST_GRADIENT, as `check_gradients`
        demands.
        """
        return bool(self._handle.call("all_finite", address(values, np.float32, *values.shape), values.size))

    def state(self) -> dict[str, TableState]:
        row_ids, slots = self._rows.touched()
        return {table: TableState(row_ids, self._rows.read(table, slots)) for table in self.spec.tables}

    def snapshot(self, changed_only: bool) -> NativeSnapshot:
        return self._rows.snapshot(changed_only)

    @contextlib.contextmanager
    def loading(self, step: int) -> Iterator[PlaceRows]:
        self._rows.check_released()
        self._forget(step)
        try:
            yield self._place
            self._rows.end_writing()
        except BaseException:
            self._forget(step=0)
            raise

    def _place(self, table: str, row_ids: np.ndarray) -> WriteArray:
        slots = self._rows.place(row_ids)

        def write(name: str, values: np.ndarray, start: int = 0) -> None:
            rows = slice(start, start + len(values))
            check_bounds(table, name, row_ids[rows], values, self.step)
            self._rows.write(table, name, row_ids[rows], slots[rows], values)

        return write

    def _forget(self, step: int) -> None:
        self._rows.clear()
        self.step, self._caught_up = step, (None, 0)
        rate = self._learning_rates[DEEP]
        self._history = history_of_steps(self.spec.deep_optimizer, self.spec.l2_coef, rate, step)

    def _optimizer_step(self, table: str) -> Any:
        """Return learning rate and constants (such as beta1) of a table's optimizer for step number `self.step`, as a C
        structure.

        Constants that the optimizer does not have are 0.
        """
        options = self.spec.optimizer(table)
        settings = {name: getattr(options, name, 0.0) for name in ("beta1", "beta2", "epsilon", "l1", "l2")}
        rate = self._learning_rates[table](self.step) * options.correction(self.step)
        if options.name in ("adam", "partial_rowwise_adam"):
            settings["epsilon"] = options.uncorrected_epsilon(self.step)
        l2_coef = self.spec.l2_coef if table == DEEP else 0.0
        return Step(learning_rate=rate, **settings, l2_coef=l2_coef)
