"""Implement `HostTables` in C++: rows lie in slots (places in memory) in the order of first touch, and fused kernels
work on them.

A row is touched once a step has updated it or it was loaded. Only touched rows are stored. A slot is the number of a
row's place in memory. Taking a snapshot only lists the touched rows. A row is copied when it is about to be updated
while the snapshot is open.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.tables.checks import (
    check_bounds,
    check_finite,
    check_gradients,
    check_gradients_shape,
    check_released,
    check_row_ids,
)
from app.tables.interface import (
    DEEP,
    WIDE,
    HostTables,
    Indices,
    PlaceRows,
    RowArray,
    RowGradients,
    Rows,
    TableRates,
    TablesSpec,
    TableState,
    UniqueIds,
    WriteArray,
    update_name,
)
from app.tables.native.library import (
    NO_MEMORY,
    OK,
    TABLE_NUMBERS,
    NativeHandle,
    NativeUniqueIds,
    Step,
    has_kernel,
    history_until,
    means_until,
    own,
)
from app.tables.optimizers import RunningMean, history_of_steps
from app.tables.reference import step_rows
from app.tables.rounding import rounded, rounding_key, widened
from common.arrays.format import dtype_of
from common.arrays.pages import HugeBuffer
from common.native_library import address, output_address
from common.process import num_cores, require_memory

log = logging.getLogger(__name__)

# Upper bound of stored rows per process: a row's slot (place in memory) is int32, and the map from ids to slots stores
# slot + 1.
MAX_TOUCHED = 2**31 - 2

# Upper bound of the bytes per touched row that a snapshot (a view of the rows at one moment) needs when it is taken. A
# row's slot is the number of its place in memory. While the ids are sorted, a row needs 28 bytes: id, slot, and both as
# a pair. Afterwards it needs at most 35: id and slot (12), change flags by slot and by id (2), slots of changed rows
# (4), id and slot once more if only changed rows are included (12), and the slot in the list that the C++ library keeps
# of the rows in the snapshot, with room to grow (5).
LIST_BYTES = 36

# A function of (table, array name, slots [n], output [n, width]) that fills `output` with the state array of the rows
# in these slots (places in memory).
ReadArray = Callable[[str, str, np.ndarray, np.ndarray], None]


@dataclass(frozen=True)
class NativeTableSnapshot:
    """The rows of one table at one moment (`TableSnapshot`), read from the tables or, for rows that were updated later,
    from copies.
    """

    table: str
    row_ids: np.ndarray
    slots: np.ndarray  # int32 [T]: the slot of each row, which is the number of its place in memory.
    layout: dict[str, RowArray]
    read_array: ReadArray
    buffer: list[np.ndarray]  # Memory for the result of `read`. Every call of `read` uses this memory again.

    def read(self, name: str, indices: Indices) -> np.ndarray:
        slots = np.ascontiguousarray(self.slots[indices])
        dtype, width = dtype_of(self.layout[name].dtype), self.layout[name].width
        num_bytes = slots.size * width * dtype.itemsize
        if not self.buffer or self.buffer[0].size < num_bytes:
            self.buffer[:] = [np.empty(num_bytes, np.uint8)]
        values = self.buffer[0][:num_bytes].view(dtype).reshape(slots.size, width)
        self.read_array(self.table, name, slots, values)
        return values

    def read_into(self, name: str, indices: Indices, out: np.ndarray) -> None:
        self.read_array(self.table, name, np.ascontiguousarray(self.slots[indices]), out)


@dataclass
class NativeSnapshot:
    """A `Snapshot` (a read-only view of the rows at one moment) of the native tables.

    `release` may run in any thread, so it only sets flags. The training thread frees the memory at its next update or
    snapshot.
    """

    tables: Mapping[str, NativeTableSnapshot]
    # Slots (places in memory) of the rows that had changed since the previous snapshot. If this snapshot is released
    # without being saved, these rows count as changed again.
    changed_slots: np.ndarray
    saved: bool = False

    def __post_init__(self) -> None:
        self.released = threading.Event()
        # Event that is set once training waits until the checkpoint is written and this snapshot is released.
        self.awaited = threading.Event()

    def release(self, saved: bool) -> None:
        self.saved = saved
        self.released.set()


class NativeRows:
    """The touched (updated or loaded) rows in the C++ tables: their places in memory (slots), their values, and which
    of them changed since the last snapshot. At most one snapshot (view of the rows at one moment) is open.
    """

    def __init__(self, handle: NativeHandle, spec: TablesSpec) -> None:
        self._handle = handle
        self._layouts = {table: spec.layout(table) for table in spec.tables}
        self._row_bytes = spec.row_bytes()
        self._open: NativeSnapshot | None = None
        # Argument and results of the last `find`. They are valid until another row gets a slot (place in memory).
        self._cached: tuple[np.ndarray, np.ndarray, int] | None = None

    def find(self, row_ids: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the slots (places in memory) of the rows `row_ids` (int64), -1 for untouched rows. Also return the
        number of untouched rows.

        The result is cached for this array object. The update of a training step passes the same array as the lookup of
        the step, so the update need not search again.
        """
        if self._cached is None or self._cached[0] is not row_ids:
            slots, count = np.empty(row_ids.size, np.int32), row_ids.size
            num_new = self._handle.call("find", address(row_ids, np.int64, count), count, output_address(slots))
            self._cached = row_ids, slots, num_new
        return self._cached[1:]

    def touch(self, row_ids: np.ndarray) -> np.ndarray:
        """Return the slots (places in memory) [U] of distinct `row_ids` [U] int64. Untouched rows first get a slot,
        filled with their initial values.

        Raise MemoryError, and change nothing, if there is no memory for new rows.
        """
        return self._slots_for(row_ids, "touch")

    def _slots_for(self, row_ids: np.ndarray, give_slots: str) -> np.ndarray:
        slots, num_new = self.find(row_ids)
        if num_new == 0:
            return slots
        num_touched = self._handle.call("num_touched")
        if num_touched + num_new > MAX_TOUCHED:
            raise MemoryError(f"one process keeps {MAX_TOUCHED:,} touched rows at most, and these would be more")
        purpose = f"storing {num_new:,} new rows beside {num_touched:,} touched ones, {self._row_bytes:,} bytes each,"
        if growth_bytes := self._handle.call("growth_bytes", num_new):
            require_memory(growth_bytes, purpose, self._handle.call("uncommitted_bytes"))
        ids = address(row_ids, np.int64, row_ids.size), row_ids.size
        self._cached = None
        if self._handle.call(give_slots, *ids, output_address(slots)) == NO_MEMORY:
            raise self._handle.no_memory(
                f"{purpose} needs {growth_bytes / 2**20:,.0f} MiB more, which the system refused"
            )
        return slots

    def forget_last_find(self) -> None:
        """Clear the cached result of `find`, which maps ids to rows. Call this after rows have been given other ids."""
        self._cached = None

    def remove(self, row_ids: np.ndarray) -> None:
        """Make the distinct rows `row_ids` (int64) untouched again. Rows that are untouched already are ignored.

        An open snapshot keeps its copies of these rows.
        """
        self._cached = None  # The caller may have put other ids into the array `row_ids` since the last `find`.
        slots, _ = self.find(row_ids)
        self._cached = None
        is_touched = slots >= 0
        row_ids, slots = row_ids[is_touched], slots[is_touched]
        self.before_change(slots)
        ids = address(row_ids, np.int64, row_ids.size)
        if self._handle.call("remove", ids, *_slots(slots)) == NO_MEMORY:
            raise MemoryError(f"no memory for a list of {slots.size:,} free places")

    def touched(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of the touched rows, int64 [T] ascending, and their slots (places in memory), int32 [T]."""
        num_rows = self._handle.call("num_touched")
        row_ids, slots = np.empty(num_rows, np.int64), np.empty(num_rows, np.int32)
        if self._handle.call("touched", output_address(row_ids), output_address(slots)) == NO_MEMORY:
            raise MemoryError(f"no memory to sort the ids of {num_rows:,} touched rows")
        return row_ids, slots

    def read(self, table: str, slots: np.ndarray) -> dict[str, np.ndarray]:
        """Return copies of all state arrays (weights, optimizer state) of the rows at the places in memory `slots`, by
        name.
        """
        layout = self._layouts[table].items()
        arrays = {name: np.empty((slots.size, width), dtype_of(dtype)) for name, (dtype, width) in layout}
        for number, values in enumerate(arrays.values()):
            self._handle.call("read", TABLE_NUMBERS[table], number, *_slots(slots), output_address(values))
        return arrays

    def place(self, row_ids: np.ndarray) -> np.ndarray:
        """Return the slots (places in memory) of the rows `row_ids`, whose state arrays `write` then fills. Untouched
        rows first get a slot.

        Call this only after `clear` and before `end_writing`. The values of new rows are undefined until they are
        written.
        """
        slots = self._slots_for(np.ascontiguousarray(row_ids), "place")
        self._cached = None  # The caller may later put other ids into the array `row_ids`.
        return slots

    def write(self, table: str, name: str, row_ids: np.ndarray, slots: np.ndarray, values: np.ndarray) -> None:
        """Write `values` into the state array `name` of the rows `row_ids` of a table. `slots` come from `place`.

        Raise ValueError if a value is not finite. The contents of the rows are then undefined.
        """
        values = np.require(values, requirements=["C", "A"])
        dtype, width = self._layouts[table][name]
        array = TABLE_NUMBERS[table], self._array_number(table, name)
        self._handle.read_ahead(np.ascontiguousarray(row_ids), will_change=True)
        if not self._handle.call("write", *array, *_slots(slots), address(values, dtype_of(dtype), slots.size, width)):
            check_finite(table, name, row_ids, values)

    def overwrite(self, table: str, slots: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
        """Write weights and optimizer state of the rows at the places in memory `slots`. `arrays` has them in the form
        in which `read` returns them.
        """
        for number, values in enumerate(arrays.values()):
            self._handle.call("write", TABLE_NUMBERS[table], number, *_slots(slots), output_address(values))

    def end_writing(self) -> None:
        """End the writing that began with `clear`: arrays of new rows that `write` has not filled get their initial
        values.
        """
        if self._handle.call("end_writing") == NO_MEMORY:
            raise MemoryError("no memory to find the rows that were written in part")

    def clear(self) -> None:
        """Make all rows untouched: drop their values and return their memory to the system."""
        self._open = self._cached = None
        self._handle.call("clear")

    def snapshot(self, changed_only: bool) -> NativeSnapshot:
        """Return a snapshot (read-only view) of the touched rows as they are now. With `changed_only`, it has only rows
        that were updated since the last snapshot that was saved in a checkpoint.

        Rows are copied only if they are updated before the snapshot is released. Raise MemoryError, and change nothing,
        if there is no memory for a list of the touched rows.
        """
        self.check_released()
        self._close_snapshot()
        self._handle.check_file()
        num_touched = self._handle.call("num_touched")
        purpose = f"listing {num_touched:,} touched rows for a checkpoint"
        require_memory(LIST_BYTES * num_touched, purpose, self._handle.call("uncommitted_bytes"))
        row_ids, slots = self.touched()
        flags = np.empty(self._handle.call("num_slots"), bool)
        all_slots = slots
        self._handle.call("take_changed", output_address(flags))
        try:
            changed_slots = np.flatnonzero(flags).astype(np.int32)
            if changed_only:
                included = flags[slots]
                row_ids, slots = row_ids[included], slots[included]
            if self._handle.call("open_snapshot", *_slots(slots)) == NO_MEMORY:
                raise MemoryError(f"no memory for a snapshot of {slots.size:,} rows")
        except MemoryError:
            # The call `take_changed` has cleared the flags of changed rows. The next delta may save too many rows but
            # not too few, so mark all touched rows as changed.
            self._mark_changed(all_slots)
            raise
        tables = {
            table: NativeTableSnapshot(table, row_ids, slots, layout, self._read_snapshot, [])
            for table, layout in self._layouts.items()
        }
        self._open = NativeSnapshot(tables, changed_slots)
        return self._open

    def check_released(self) -> None:
        """Raise RuntimeError if a snapshot is open: a view of the rows that a checkpoint is still being written from.

        Taking another snapshot or loading a state would free the rows of the open one.
        """
        if self._open is not None:
            check_released(self._open.released.is_set())

    def before_change(self, slots: np.ndarray) -> None:
        """Prepare a change of the rows at the places in memory `slots`: copy the rows if an open snapshot needs them,
        and mark the rows as changed.

        Every method that changes rows must call this one first. If there is no memory for the copies, wait until the
        snapshot is released.
        """
        if self._open is not None and not self._preserve(self._open, slots):
            log.warning("warning: no memory to train on while a checkpoint is written: waiting for it")
            self._open.awaited.set()
            self._open.released.wait()
            self._close_snapshot()
        self._mark_changed(slots)

    def _preserve(self, snapshot: NativeSnapshot, slots: np.ndarray) -> bool:
        if snapshot.released.is_set():
            self._close_snapshot()
            return True
        if growth_bytes := self._handle.call("preserve_bytes", slots.size):
            try:
                reserved = self._handle.call("uncommitted_bytes")
                require_memory(growth_bytes, "keeping rows for the checkpoint that is being written", reserved)
            except MemoryError:
                return False
        return bool(self._handle.call("preserve", *_slots(slots)) == OK)

    def _read_snapshot(self, table: str, name: str, slots: np.ndarray, values: np.ndarray) -> None:
        # While training continues, read with one thread: a second one would take a core from training.
        snapshot = self._open
        num_threads = self._handle.num_threads if snapshot is not None and snapshot.awaited.is_set() else 1
        array = TABLE_NUMBERS[table], self._array_number(table, name)
        self._handle.call("read_snapshot", *array, *_slots(slots), output_address(values), num_threads)

    def _mark_changed(self, slots: np.ndarray) -> None:
        if self._handle.call("mark_changed", *_slots(slots)) == NO_MEMORY:
            raise MemoryError("no memory for a bit a row")

    def _close_snapshot(self) -> None:
        """Free the memory of the last snapshot, which was released. If it was not saved, mark its rows as changed
        again.

        `release` cannot do this itself, because it may run in another thread than training.
        """
        if self._open is None:
            return
        self._handle.call("close_snapshot")
        if not self._open.saved:
            self._mark_changed(self._open.changed_slots)
        self._open = None

    def _array_number(self, table: str, name: str) -> int:
        return list(self._layouts[table]).index(name)


def _slots(slots: np.ndarray) -> tuple[int, int]:
    """Return the address of the array `slots` (rows' places in memory) and its length, which are two consecutive
    arguments of the C++ library's functions.
    """
    return address(slots, np.int32, slots.size), slots.size


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
