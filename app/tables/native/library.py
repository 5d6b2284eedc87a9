"""The C interface of the native tables (`csrc/`) as ctypes sees it, and a handle on tables.

All calls release the GIL. `csrc/host_tables.h` documents each function.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.tables.checks import check_ids, check_ids_shape
from app.tables.interface import DEEP, WIDE, Lists, TablesSpec, UniqueIds
from app.tables.optimizers import LAST_STEP
from common.native_library import NativeLibrary, address, output_address

MAX_POSITIONS = 2**31 - 1  # of a batch: positions are int32

OK, BAD_ID, NO_MEMORY, UNKNOWN_ISA = range(4)  # HostTablesStatus

TABLE_NUMBERS = {WIDE: 0, DEEP: 1}  # HostTablesTable

# HostTablesOptimizer: those that have kernels.
_KERNELS = "lazy_adam adam adagrad rowwise_adagrad sgd ftrl scheduled_ftrl partial_rowwise_adam"
OPTIMIZER_NUMBERS = {name: number for number, name in enumerate(_KERNELS.split())}


class Spec(ctypes.Structure):
    """HostTablesSpec."""

    _fields_ = [
        ("vocabulary_size", ctypes.c_int64),
        ("embedding_dim", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("initial_scale", ctypes.c_float),
        ("num_threads", ctypes.c_int32),
        ("wide_optimizer", ctypes.c_int32),
        ("deep_optimizer", ctypes.c_int32),
        ("wide_states", ctypes.c_int32),
        ("deep_states", ctypes.c_int32),
        ("deep_scalars", ctypes.c_int32),
        ("has_last_step", ctypes.c_int32),
        ("keeps_means", ctypes.c_int32),
        ("wide_initial_array", ctypes.c_int32),
        ("deep_initial_array", ctypes.c_int32),
        ("wide_initial_value", ctypes.c_float),
        ("deep_initial_value", ctypes.c_float),
    ]


class Batch(ctypes.Structure):
    """HostTablesBatch."""

    _fields_ = [
        ("num_rows", ctypes.c_int64),
        ("num_fields", ctypes.c_int64),
        ("num_positions", ctypes.c_int64),
        ("num_unique", ctypes.c_int64),
        ("values", ctypes.c_void_p),
        ("inverse", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
    ]


class Step(ctypes.Structure):
    """HostTablesStep."""

    _fields_ = [
        (name, ctypes.c_float)
        for name in ("learning_rate", "beta1", "beta2", "epsilon", "l1", "l2", "l2_coef", "row_clip_value")
    ]


class History(ctypes.Structure):
    """HostTablesHistory."""

    _fields_ = [
        ("step", ctypes.c_int64),
        ("rates", ctypes.c_void_p),
        ("epsilons", ctypes.c_void_p),
        ("rate_sums", ctypes.c_void_p),
        ("beta2_powers", ctypes.c_void_p),
        ("beta1", ctypes.c_float),
        ("beta2", ctypes.c_float),
        ("l2_coef", ctypes.c_float),
        ("most_exact_steps", ctypes.c_int32),
    ]


class Means(ctypes.Structure):
    """HostTablesMeans."""

    _fields_ = [("step", ctypes.c_int64), ("powers", ctypes.c_void_p), ("rates", ctypes.c_void_p)]


HANDLE, ARRAY, COUNT = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64

_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "create": (ctypes.c_int, [ctypes.POINTER(Spec), ctypes.POINTER(HANDLE)]),
    "destroy": (None, [HANDLE]),
    "isa": (ctypes.c_char_p, [HANDLE]),
    "find_lists": (
        ctypes.c_int,
        [HANDLE, ARRAY, ctypes.c_int32, COUNT, COUNT, *[ARRAY] * 6, ctypes.POINTER(COUNT)],
    ),
    "unique": (ctypes.c_int, [HANDLE, ARRAY, ctypes.c_int32, COUNT, *[ARRAY] * 4, ctypes.POINTER(COUNT)]),
    "find": (COUNT, [HANDLE, ARRAY, COUNT, ARRAY]),
    "growth_bytes": (COUNT, [HANDLE, COUNT]),
    "uncommitted_bytes": (COUNT, [HANDLE]),
    "touch": (ctypes.c_int, [HANDLE, ARRAY, COUNT, ARRAY]),
    "lookup": (None, [HANDLE, ctypes.POINTER(Batch), ARRAY, ctypes.POINTER(History), *[ARRAY] * 5]),
    "all_finite": (ctypes.c_int32, [HANDLE, ARRAY, COUNT]),
    "update_wide": (
        None,
        [HANDLE, ctypes.POINTER(Batch), ARRAY, ARRAY, ctypes.c_float, ctypes.POINTER(Step)],
    ),
    "update_deep": (
        None,
        [
            *(HANDLE, ctypes.POINTER(Batch), ARRAY, ARRAY, ctypes.c_float),
            *(ctypes.POINTER(Step), ctypes.POINTER(History), ARRAY, ctypes.c_int32),
        ],
    ),
    "advance_means": (None, [HANDLE, ARRAY, COUNT, ctypes.POINTER(History), ctypes.POINTER(Means)]),
    "read_means": (None, [HANDLE, ARRAY, ARRAY, COUNT, ctypes.POINTER(History), ctypes.POINTER(Means), *[ARRAY] * 3]),
    "expand": (None, [HANDLE, ctypes.POINTER(Batch), *[ARRAY] * 4]),
    "sum_by_id": (None, [HANDLE, ctypes.POINTER(Batch), *[ARRAY] * 4]),
    "num_touched": (COUNT, [HANDLE]),
    "touched": (ctypes.c_int, [HANDLE, ARRAY, ARRAY]),
    "read": (None, [HANDLE, ctypes.c_int, ctypes.c_int32, ARRAY, COUNT, ARRAY]),
    "place": (ctypes.c_int, [HANDLE, ARRAY, COUNT, ARRAY]),
    "write": (ctypes.c_int32, [HANDLE, ctypes.c_int, ctypes.c_int32, ARRAY, COUNT, ARRAY]),
    "end_writing": (ctypes.c_int, [HANDLE]),
    "mark_changed": (ctypes.c_int, [HANDLE, ARRAY, COUNT]),
    "take_changed": (None, [HANDLE, ARRAY]),
    "open_snapshot": (ctypes.c_int, [HANDLE, ARRAY, COUNT]),
    "preserve_bytes": (COUNT, [HANDLE, COUNT]),
    "preserve": (ctypes.c_int, [HANDLE, ARRAY, COUNT]),
    "read_snapshot": (None, [HANDLE, ctypes.c_int, ctypes.c_int32, ARRAY, COUNT, ARRAY, ctypes.c_int32]),
    "close_snapshot": (None, [HANDLE]),
    "clear": (None, [HANDLE]),
}


LIBRARY = NativeLibrary(
    "host_tables",
    __file__,
    {f"host_tables_{name}": signature for name, signature in _SIGNATURES.items()},
    "host tables are",
    "choose another table backend",
    # OpenMP reads it when it is loaded. By default its threads spin between kernels, on the cores that MindSpore's
    # threads need: with one other busy thread on two cores a lookup took 32 ms, and 14 ms with sleeping threads.
    while_loading={"OMP_WAIT_POLICY": "passive"},
)


@dataclass(frozen=True)
class NativeUniqueIds(UniqueIds):
    """`UniqueIds` numbered in order of first position, `values` int64, and their positions.

    Id u has the positions `positions[offsets[u] : offsets[u + 1]]`, ascending.
    """

    offsets: np.ndarray
    positions: np.ndarray

    def as_struct(self) -> Batch:
        """Return the same for C; valid as long as this object lives."""
        (num_rows, num_fields), num_unique = self.shape, self.values.size
        num_places, num_positions = num_rows * num_fields, self.inverse.size
        of_lists: tuple[int, ...] = ()  # null pointers
        if (lists := self.lists) is not None:
            places = address(lists.places, np.int32, num_positions)
            weights = address(lists.weights, np.float32, num_positions)
            of_lists = address(lists.first, np.int32, num_places + 1), places, weights
        elif num_positions != num_places:
            raise TypeError(f"{num_positions} positions for {num_rows} × {num_fields} fields")
        return Batch(
            num_rows,
            num_fields,
            num_positions,
            num_unique,
            address(self.values, np.int64, num_unique),
            address(self.inverse, np.int32, num_positions),
            address(self.offsets, np.int32, num_unique + 1),
            address(self.positions, np.int32, num_positions),
            *of_lists,
        )


def own(unique: UniqueIds) -> NativeUniqueIds:
    """Return `unique`. Raise TypeError unless the native tables made it."""
    if not isinstance(unique, NativeUniqueIds):
        raise TypeError(f"the native tables need the result of their own unique(), found {type(unique).__name__}")
    return unique


class NativeHandle:
    """Tables of the library, with no row touched at first; destroyed with this object."""

    def __init__(self, spec: TablesSpec, num_threads: int) -> None:
        self._library = LIBRARY.load()
        self._spec = spec
        handle = HANDLE()
        options = Spec(
            spec.vocabulary_size,
            spec.embedding_dim,
            spec.seed % 2**64,
            spec.initial_scale,
            num_threads,
            *(_kernel_number(spec, table) for table in (WIDE, DEEP)),
            *_array_counts(spec),
            spec.ema_decay > 0,
            *_initial_values(spec),
        )
        status = self._library.host_tables_create(ctypes.byref(options), ctypes.byref(handle))
        if status == UNKNOWN_ISA:
            raise ValueError(
                f"HOST_TABLES_ISA={os.environ.get('HOST_TABLES_ISA')} is none of the instruction sets "
                "avx512, avx2, plain that this library and this machine have"
            )
        if status == NO_MEMORY:
            raise MemoryError("no memory for an empty table")
        self._handle = handle

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._library.host_tables_destroy(handle)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call `host_tables_<name>` of this handle; arrays are passed as their `address`, or as `output_address`."""
        return getattr(self._library, f"host_tables_{name}")(self._handle, *arguments)

    def unique(self, ids: np.ndarray) -> NativeUniqueIds:
        """See `Tables.unique`. Runs on one thread, beside the step before."""
        check_ids_shape(ids, self._spec)
        if ids.size > MAX_POSITIONS:
            raise ValueError(f"a batch may have {MAX_POSITIONS} ids, found {ids.size}; choose a smaller batch size")
        ids = np.ascontiguousarray(ids)
        found, lists = self._find_lists(ids) if self._spec.has_lists else (ids.reshape(-1), None)
        values, inverse, offsets, positions = _arrays_in_one_block(
            (np.int64, found.size), (np.int32, found.size), (np.int32, found.size + 1), (np.int32, found.size)
        )
        num_unique = COUNT()
        outputs = (*map(output_address, (values, inverse, offsets, positions)), ctypes.byref(num_unique))
        status = self.call("unique", address(found, ids.dtype, found.size), ids.itemsize, found.size, *outputs)
        if status == BAD_ID:
            check_ids(ids, self._spec)
        if status == NO_MEMORY:
            raise MemoryError(f"no memory to find the distinct ones of {ids.size} ids")
        count, shape = num_unique.value, (len(ids), len(self._spec.fields))
        return NativeUniqueIds(shape, values[:count], inverse, offsets[: count + 1], positions, lists=lists)

    def _find_lists(self, ids: np.ndarray) -> tuple[np.ndarray, Lists]:
        """Return the values [n] among `ids` [B, P], and their lists."""
        lengths = np.array([field.length for field in self._spec.fields], np.int32)
        means = np.array([field.mean for field in self._spec.fields], np.int32)
        num_places = len(ids) * lengths.size
        values, first, places, weights = _arrays_in_one_block(
            (ids.dtype.type, ids.size), (np.int32, num_places + 1), (np.int32, ids.size), (np.float32, ids.size)
        )
        num_values = COUNT()
        fields = lengths.size, address(lengths, np.int32, lengths.size), address(means, np.int32, lengths.size)
        outputs = (*map(output_address, (values, first, places, weights)), ctypes.byref(num_values))
        batch = address(ids, ids.dtype, *ids.shape), ids.itemsize, len(ids)
        if self.call("find_lists", *batch, *fields, *outputs) == BAD_ID:
            check_ids(ids, self._spec)
        count = num_values.value
        return values[:count], Lists(first, places[:count], weights[:count])


def has_kernel(spec: TablesSpec, table: str) -> bool:
    """Return True if the library takes the steps of a table's optimizer."""
    return spec.optimizer(table).name in OPTIMIZER_NUMBERS


def _kernel_number(spec: TablesSpec, table: str) -> int:
    options = spec.optimizer(table)
    scheduled = options.name == "ftrl" and options.is_scheduled
    return OPTIMIZER_NUMBERS.get("scheduled_ftrl" if scheduled else options.name, -1)


def _array_counts(spec: TablesSpec) -> tuple[int, int, int, bool]:
    """Return `wide_states`, `deep_states`, `deep_scalars` and `has_last_step`."""
    wide, deep = spec.state_arrays(WIDE), spec.state_arrays(DEEP)
    scalars = [array.name for array in deep if array.one_a_row]
    return len(wide), len(deep) - len(scalars), len(scalars), LAST_STEP in scalars


def _initial_values(spec: TablesSpec) -> tuple[int, int, float, float]:
    """Return for the wide and the deep table which array does not begin as 0 (-1: none), then what it begins with."""
    arrays, values = [], []
    for table in (WIDE, DEEP):
        initial = {place: array.initial for place, array in enumerate(spec.state_arrays(table)) if array.initial}
        assert len(initial) <= 1, f"{spec.optimizer(table).name} has several arrays that do not begin as 0"
        arrays.append(next(iter(initial), -1))
        values.append(next(iter(initial.values()), 0.0))
    return arrays[0], arrays[1], values[0], values[1]


def _arrays_in_one_block(*shapes: tuple[type, int]) -> list[np.ndarray]:
    """Return arrays of (dtype, size) in one allocation: the allocator keeps one block for the next batch, and would
    return several to the system."""
    sizes = [np.dtype(dtype).itemsize * size for dtype, size in shapes]
    block, starts = np.empty(sum(sizes), np.uint8), np.cumsum([0, *sizes])
    return [
        block[start : start + size].view(dtype) for (dtype, _), start, size in zip(shapes, starts, sizes, strict=False)
    ]
