"""The tables in C++: slots in the order of first touch, and fused kernels on them."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.huge_pages import HugeBuffer
from app.tables.checks import (
    check_finite,
    check_gradients,
    check_gradients_shape,
    check_ids,
    check_ids_shape,
    check_state,
)
from app.tables.interface import (
    DEEP,
    UPDATE_NAMES,
    WIDE,
    RowGradients,
    Rows,
    TableSnapshot,
    TablesSpec,
    TableState,
    UniqueIds,
    WriteRows,
    write_state,
)
from app.tables.memory_limit import require_memory
from app.tables.native_library import (
    BAD_ID,
    COUNT,
    HANDLE,
    NO_MEMORY,
    OK,
    OPTIMIZER_NUMBERS,
    TABLE_NUMBERS,
    UNKNOWN_ISA,
    Batch,
    History,
    Spec,
    Step,
    load,
)
from app.tables.native_snapshot import NativeSnapshot, NativeTableSnapshot
from app.tables.optimizer_options import AdamOptions, FtrlOptions, LazyAdamOptions
from app.tables.optimizers import TableOptimizer
from app.tables.whole_table_adam import MOST_EXACT_STEPS, StepHistory

log = logging.getLogger(__name__)

MAX_POSITIONS = 2**31 - 1  # positions of a batch are int32
MAX_TOUCHED = 2**31 - 2  # slots are int32, and the map keeps slot + 1


@dataclass(frozen=True)
class NativeUniqueIds(UniqueIds):
    """`UniqueIds` numbered in order of first position, `values` int64, and their positions.

    Id u has the positions `positions[offsets[u] : offsets[u + 1]]`, ascending.
    """

    offsets: np.ndarray
    positions: np.ndarray

    def as_struct(self) -> Batch:
        """The same for C; valid as long as this object lives."""
        arrays = (self.values, self.inverse, self.offsets, self.positions)
        return Batch(*self.shape, self.values.size, *(_address(array) for array in arrays))


class NativeTables:
    """`HostTables` on the native kernels.

    `lookup`'s arrays are valid until the lookup after the next, so that a copy to a device may overlap
    one more. `num_threads` defaults to the cores this process may use; no bit of any result depends on it.
    """

    def __init__(self, spec: TablesSpec, num_threads: int | None = None) -> None:
        self.spec = spec
        self.learning_rates = spec.constant_learning_rates()
        self.step = 0
        self._history = self._make_history(step=0)
        self.update_seconds: dict[str, float] = {}
        self.num_threads = num_threads or len(os.sched_getaffinity(0))
        self._library = load()
        self._handle = self._create()
        self._deep_buffers = (HugeBuffer(), HugeBuffer())
        self._snapshot: NativeSnapshot | None = None

    def _create(self) -> ctypes.c_void_p:
        spec, handle = self.spec, HANDLE()
        options = Spec(
            spec.vocabulary_size,
            spec.embedding_dim,
            spec.seed % 2**64,
            spec.initial_scale,
            self.num_threads,
            _optimizer_number(spec.wide_optimizer),
            _optimizer_number(spec.deep_optimizer),
            getattr(spec.wide_optimizer, "initial_accumulator", 0.0),
            getattr(spec.deep_optimizer, "initial_accumulator", 0.0),
        )
        status = self._library.host_tables_create(ctypes.byref(options), ctypes.byref(handle))
        if status == UNKNOWN_ISA:
            raise ValueError(
                f"HOST_TABLES_ISA={os.environ.get('HOST_TABLES_ISA')} is none of the instruction sets "
                "avx512, avx2, plain that this library and this machine have"
            )
        if status == NO_MEMORY:
            raise MemoryError("no memory for an empty table")
        return handle

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._library.host_tables_destroy(handle)

    @property
    def instruction_set(self) -> str:
        """What the kernels use: avx512, avx2 or plain."""
        return str(self._library.host_tables_isa(self._handle).decode())

    def unique(self, ids: np.ndarray) -> NativeUniqueIds:
        """See `HostTables.unique`; one thread, meant to run beside the step before."""
        check_ids_shape(ids, self.spec)
        if ids.size > MAX_POSITIONS:
            raise ValueError(f"a batch may have {MAX_POSITIONS} ids, found {ids.size}; choose a smaller batch size")
        ids = np.ascontiguousarray(ids)
        values, inverse, offsets, positions = _arrays_in_one_block(
            (np.int64, ids.size), (np.int32, ids.size), (np.int32, ids.size + 1), (np.int32, ids.size)
        )
        outputs = (_address(array) for array in (values, inverse, offsets, positions))
        num_unique = COUNT()
        status = self._library.host_tables_unique(
            self._handle, _address(ids), ids.itemsize, ids.size, *outputs, ctypes.byref(num_unique)
        )
        if status == BAD_ID:
            check_ids(ids, self.spec)
        if status == NO_MEMORY:
            raise MemoryError(f"no memory to find the distinct ones of {ids.size} ids")
        count = num_unique.value
        return NativeUniqueIds((ids.shape[0], ids.shape[1]), values[:count], inverse, offsets[: count + 1], positions)

    def lookup(self, unique: UniqueIds) -> Rows:
        """See `HostTables.lookup`."""
        unique = _own(unique)
        batch, num_fields = unique.shape
        self._deep_buffers = self._deep_buffers[::-1]
        deep = self._deep_buffers[0].array((batch, num_fields * self.spec.embedding_dim))
        wide, wide_rows = np.empty(batch, np.float32), np.empty(unique.values.size, np.float32)
        squared_norms = np.empty(unique.values.size, np.float64)
        slots, _ = self._find(unique.values)
        outputs = (_address(array) for array in (deep, wide, wide_rows, squared_norms))
        batch_struct, history = ctypes.byref(unique.as_struct()), self._history_struct(self.step)
        self._library.host_tables_lookup(self._handle, batch_struct, _address(slots), history, *outputs)
        return Rows(deep, wide, float(squared_norms.sum()))

    def update(self, unique: UniqueIds, gradients: RowGradients, checked: bool = False) -> None:
        """See `HostTables.update`; MemoryError, and nothing changed, where the new rows find no room."""
        unique = _own(unique)
        check_gradients_shape(gradients, unique, self.spec)
        deep, wide = np.ascontiguousarray(gradients.deep), np.ascontiguousarray(gradients.wide)
        if not checked and not (self.all_finite(deep) and self.all_finite(wide)):
            check_gradients(gradients, unique, self.spec)
        slots = self.touch(unique.values)
        self._before_change(slots)
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
        batch, step = ctypes.byref(unique.as_struct()), self._step_struct(WIDE)
        self._library.host_tables_update_wide(
            self._handle, batch, _address(slots), _address(gradient), scale, ctypes.byref(step)
        )

    def update_deep(self, unique: NativeUniqueIds, slots: np.ndarray, gradient: np.ndarray, scale: float) -> None:
        """The deep rows' step of `update` alone, number `self.step`; `gradient` [B, C * D]."""
        batch, step = ctypes.byref(unique.as_struct()), self._step_struct(DEEP)
        if self._history is not None and self._history.step < self.step:
            self._history.append(self.learning_rates[DEEP](self.step))
        history = self._history_struct(self.step - 1)
        self._library.host_tables_update_deep(
            self._handle, batch, _address(slots), _address(gradient), scale, ctypes.byref(step), history
        )

    def _step_struct(self, table: str) -> Step:
        """The settings of step `self.step` of one table's optimizer."""
        options = self.spec.wide_optimizer if table == WIDE else self.spec.deep_optimizer
        rate, epsilon = self.learning_rates[table](self.step), getattr(options, "epsilon", 0.0)
        if isinstance(options, LazyAdamOptions | AdamOptions):
            rate *= options.correction(self.step)
        if isinstance(options, AdamOptions):
            epsilon = options.uncorrected_epsilon(self.step)
        others = (getattr(options, name, 0.0) for name in ("l1", "l2"))
        betas = (getattr(options, name, 0.0) for name in ("beta1", "beta2"))
        l2_coef = self.spec.wide_l2_coef if table == WIDE else self.spec.l2_coef
        return Step(rate, *betas, epsilon, *others, l2_coef, self.spec.clip_value or math.inf)

    def _make_history(self, step: int) -> StepHistory | None:
        """What `adam` knows of steps 1 … step; None for the other optimizers."""
        options = self.spec.deep_optimizer
        if not isinstance(options, AdamOptions):
            return None
        return StepHistory.of_steps(options, self.spec.l2_coef, self.learning_rates[DEEP], step)

    def _history_struct(self, step: int) -> Any:
        """A pointer to the history up to `step`; valid until the next step is noted."""
        history = self._history
        if history is None:
            return None
        arrays = (history.rates, history.epsilons, history.rate_sums, history.beta2_powers)
        options = history.options
        addresses = (_address(array) for array in arrays)
        return ctypes.byref(History(step, *addresses, options.beta1, options.beta2, history.l2_coef, MOST_EXACT_STEPS))

    def touch(self, row_ids: np.ndarray) -> np.ndarray:
        """The slots [U] of the distinct `row_ids` [U] int64; rows that had none get one, with their initial values."""
        return self._slots_for(row_ids, self._library.host_tables_touch)

    def _slots_for(self, row_ids: np.ndarray, give_slots: Callable[..., int]) -> np.ndarray:
        slots, num_new = self._find(row_ids)
        if num_new == 0:
            return slots
        if self._library.host_tables_num_touched(self._handle) + num_new > MAX_TOUCHED:
            raise MemoryError(f"one process keeps {MAX_TOUCHED:,} touched rows at most, and these would be more")
        purpose = self._growth_purpose(num_new)
        if growth_bytes := self._library.host_tables_growth_bytes(self._handle, num_new):
            require_memory(growth_bytes, purpose)
        status = give_slots(self._handle, _address(row_ids), row_ids.size, _address(slots))
        if status == NO_MEMORY:
            raise MemoryError(f"{purpose} needs {growth_bytes / 2**20:,.0f} MiB more, which the system refused")
        return slots

    def all_finite(self, values: np.ndarray) -> bool:
        """Whether all of `values`, contiguous float32, are finite."""
        return bool(self._library.host_tables_all_finite(self._handle, _address(values), values.size))

    def state(self) -> dict[str, TableState]:
        """See `HostTables.state`."""
        row_ids, slots = self._touched_rows()
        return {table: TableState(row_ids, self._read(table, slots)) for table in TABLE_NUMBERS}

    def _touched_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids of the touched rows, int64 [T] ascending, and their slots, int32 [T]."""
        num_rows = self._library.host_tables_num_touched(self._handle)
        row_ids, slots = np.empty(num_rows, np.int64), np.empty(num_rows, np.int32)
        if self._library.host_tables_touched(self._handle, _address(row_ids), _address(slots)) == NO_MEMORY:
            raise MemoryError(f"no memory to sort the ids of {num_rows:,} touched rows")
        return row_ids, slots

    def _read(self, table: str, slots: np.ndarray) -> dict[str, np.ndarray]:
        layout = self.spec.layout(table).items()
        arrays = {name: np.empty((slots.size, width), dtype) for name, (dtype, width) in layout}
        for number, values in enumerate(arrays.values()):
            self._library.host_tables_read(
                self._handle, TABLE_NUMBERS[table], number, _address(slots), slots.size, _address(values)
            )
        return arrays

    def snapshot(self, changed_only: bool) -> NativeSnapshot:
        """See `HostTables.snapshot`; no row is copied but those that are updated before the release."""
        self._end_snapshot()
        row_ids, slots = self._touched_rows()
        flags = np.empty(slots.size, bool)
        self._library.host_tables_take_changed(self._handle, _address(flags))
        changed_slots = np.flatnonzero(flags).astype(np.int32)
        if changed_only:
            included = flags[slots]
            row_ids, slots = row_ids[included], slots[included]
        if self._library.host_tables_open_snapshot(self._handle, _address(slots), slots.size) == NO_MEMORY:
            self._mark_changed(changed_slots)
            raise MemoryError(f"no memory for a snapshot of {slots.size:,} rows")
        tables = {
            table: NativeTableSnapshot(table, row_ids, slots, self.spec.layout(table), self._read_snapshot, [])
            for table in TABLE_NUMBERS
        }
        self._snapshot = NativeSnapshot(tables, changed_slots)
        return self._snapshot

    def _read_snapshot(self, table: str, name: str, slots: np.ndarray, values: np.ndarray) -> None:
        # One thread: in the background a second one would take the training's other core.
        arguments = (TABLE_NUMBERS[table], list(self.spec.layout(table)).index(name), _address(slots), slots.size)
        self._library.host_tables_read_snapshot(self._handle, *arguments, _address(values), 1)

    def _before_change(self, slots: np.ndarray) -> None:
        """To be called before the states of `slots` change: preserves them where a snapshot needs them."""
        if self._snapshot is not None and not self._preserve(slots):
            log.warning("warning: no memory to train on while a checkpoint is written: waiting for it")
            self._snapshot.awaited.set()
            self._snapshot.released.wait()
            self._end_snapshot()
        self._mark_changed(slots)

    def _preserve(self, slots: np.ndarray) -> bool:
        assert self._snapshot is not None
        if self._snapshot.released.is_set():
            self._end_snapshot()
            return True
        if growth_bytes := self._library.host_tables_preserve_bytes(self._handle, slots.size):
            try:
                require_memory(growth_bytes, "keeping rows for the checkpoint that is being written")
            except MemoryError:
                return False
        return bool(self._library.host_tables_preserve(self._handle, _address(slots), slots.size) == OK)

    def _mark_changed(self, slots: np.ndarray) -> None:
        if self._library.host_tables_mark_changed(self._handle, _address(slots), slots.size) == NO_MEMORY:
            raise MemoryError("no memory for a bit a row")

    def _end_snapshot(self) -> None:
        """What its release could not do in its own thread."""
        if self._snapshot is None:
            return
        self._library.host_tables_close_snapshot(self._handle)
        if not self._snapshot.saved:
            self._mark_changed(self._snapshot.changed_slots)
        self._snapshot = None

    def load_state(self, state: Mapping[str, TableSnapshot], step: int) -> None:
        """See `HostTables.load_state`; after a MemoryError the tables are empty."""
        check_state(state, self.spec)
        with self.loading(step) as write:
            write_state(write, state)

    @contextlib.contextmanager
    def loading(self, step: int) -> Iterator[WriteRows]:
        """See `HostTables.loading`."""
        self._forget(step)
        try:
            yield self._write
            if self._library.host_tables_end_writing(self._handle) == NO_MEMORY:
                raise MemoryError("no memory to find the rows that were written in part")
        except BaseException:
            self._forget(step=0)
            raise

    def _forget(self, step: int) -> None:
        self._snapshot = None
        self._library.host_tables_clear(self._handle)
        self.step = step
        self._history = self._make_history(step)

    def _write(self, table: str, name: str, row_ids: np.ndarray, values: np.ndarray) -> None:
        values = np.require(values, requirements=["C", "A"])
        slots = self._slots_for(np.ascontiguousarray(row_ids), self._library.host_tables_place)
        arguments = (TABLE_NUMBERS[table], list(self.spec.layout(table)).index(name), _address(slots), slots.size)
        if not self._library.host_tables_write(self._handle, *arguments, _address(values)):
            check_finite(table, name, row_ids, values)

    def _find(self, row_ids: np.ndarray) -> tuple[np.ndarray, int]:
        """Slots of `row_ids`, -1 where a row is untouched, and how many are."""
        slots = np.empty(row_ids.size, np.int32)
        num_new = self._library.host_tables_find(self._handle, _address(row_ids), row_ids.size, _address(slots))
        return slots, num_new

    def _growth_purpose(self, num_new: int) -> str:
        touched = self._library.host_tables_num_touched(self._handle)
        row_bytes = self.spec.row_bytes()
        return f"storing {num_new:,} new rows beside {touched:,} touched ones, {row_bytes:,} bytes each,"


def _arrays_in_one_block(*shapes: tuple[type, int]) -> list[np.ndarray]:
    """Arrays of (dtype, size), side by side in one allocation: the allocator keeps one block for the next batch,
    where it would hand several back to the system."""
    sizes = [np.dtype(dtype).itemsize * size for dtype, size in shapes]
    block, starts = np.empty(sum(sizes), np.uint8), np.cumsum([0, *sizes])
    return [
        block[start : start + size].view(dtype) for (dtype, _), start, size in zip(shapes, starts, sizes, strict=False)
    ]


def _optimizer_number(options: TableOptimizer) -> int:
    scheduled = isinstance(options, FtrlOptions) and options.is_scheduled
    return OPTIMIZER_NUMBERS["scheduled_ftrl" if scheduled else options.name]


def _own(unique: UniqueIds) -> NativeUniqueIds:
    if not isinstance(unique, NativeUniqueIds):
        raise TypeError(f"the native tables need the result of their own unique(), found {type(unique).__name__}")
    return unique


def _address(array: np.ndarray) -> int:
    return int(array.ctypes.data)
