"""Load the C++ library of the native tables (`csrc/`), and wrap the handle through which it is called, and the function
by which rows take the `adam` steps that they missed because they were in none of the steps' batches.

All calls release the GIL. `csrc/host_tables.h` documents each function of the library.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.tables.checks import check_ids, check_ids_shape
from app.tables.interface import DEEP, WIDE, ListPositions, TablesSpec, UniqueIds
from app.tables.native.storage import ScratchFile
from app.tables.optimizers import LAST_STEP, MOST_EXACT_STEPS, RunningMean, States, StepHistory
from common.native_library import NativeLibrary, address, output_address
from common.process import num_cores

MAX_POSITIONS = 2**31 - 1  # Upper bound of positions per batch, because positions are int32.
# Batches with fewer positions (ids of all rows and fields) run on one thread, because waking another thread takes as
# long as a few hundred positions.
WORTH_THREADS = 1024

LIBRARY = NativeLibrary(
    "host_tables",
    __file__,
    ["host_tables.h"],
    "host tables are",
    "choose another table backend",
)
Spec, Batch, Step, History, Means, RowArrays = (
    LIBRARY.interface.structures[f"HostTables{name}"]
    for name in ("Spec", "Batch", "Step", "History", "Means", "RowArrays")
)
OK, BAD_ID, NO_MEMORY, UNKNOWN_ISA = (
    LIBRARY.interface.enums["HostTablesStatus"][name] for name in ("ok", "bad_id", "no_memory", "unknown_isa")
)
TABLE_NUMBERS = LIBRARY.interface.enums["HostTablesTable"]
# For each optimizer that has a C++ kernel: the number that stands for it in the C interface, by the optimizer's name.
OPTIMIZER_NUMBERS = LIBRARY.interface.enums["HostTablesOptimizer"]


@dataclass(frozen=True)
class NativeUniqueIds(UniqueIds):
    """The distinct ids of a batch (`UniqueIds`) as the native tables find them, with the positions of each id in the
    batch.

    Ids are numbered in the order of their first positions, and `values` is int64. Id number u is at the positions
    `positions[offsets[u] : offsets[u + 1]]`, ascending.
    """

    offsets: np.ndarray
    positions: np.ndarray

    @functools.cached_property
    def struct(self) -> Any:
        """The ids as the C structure `HostTablesBatch`. It is valid as long as this object lives."""
        (num_rows, num_fields), num_unique = self.shape, self.values.size
        num_places, num_positions = num_rows * num_fields, self.inverse.size
        # Pointers to the arrays of `lists`. A batch without list fields passes no arrays, so these pointers are null.
        of_lists: tuple[int, ...] = ()
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
    """Return `unique` unchanged, but typed as `NativeUniqueIds`. Raise TypeError unless the native tables made it."""
    if not isinstance(unique, NativeUniqueIds):
        raise TypeError(f"the native tables need the result of their own unique(), found {type(unique).__name__}")
    return unique


class NativeHandle:
    """One pair of tables (wide and deep) in the C++ library, represented by the library's handle (a pointer).

    A new handle has no rows: the tables store a row once it is updated or loaded. The library's memory is freed with
    this object.
    """

    def __init__(self, spec: TablesSpec, num_threads: int) -> None:
        self._library = LIBRARY.load()
        self._spec = spec
        self.num_threads = num_threads
        self._file: ScratchFile | None = None
        if spec.storage is not None:
            self._file = ScratchFile(spec.storage, spec)
        handle = ctypes.c_void_p()
        options = Spec(
            spec.vocabulary_size,
            spec.embedding_dim,
            spec.seed % 2**64,
            spec.initial_scale,
            num_threads,
            WORTH_THREADS,
            *(_kernel_number(spec, table) for table in (WIDE, DEEP)),
            *_array_counts(spec),
            spec.ema_decay > 0,
            spec.dtype == "bfloat16",
            *_initial_values(spec),
            -1 if self._file is None else self._file.descriptor,
            None if self._file is None else f"error: {self._file.page_lost()}\n".encode(),
            spec.id_stride,
        )
        status = self._library.host_tables_create(ctypes.byref(options), ctypes.byref(handle))
        if status == UNKNOWN_ISA:
            raise unknown_isa()
        if status == NO_MEMORY:
            raise MemoryError("no memory for an empty table")
        self._handle = handle

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._library.host_tables_destroy(handle)
        if (file := getattr(self, "_file", None)) is not None:
            file.close()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the library's function `host_tables_<name>` on this handle, and return its result.

        Pass arrays as `address(…)` or `output_address(…)`.
        """
        return getattr(self._library, f"host_tables_{name}")(self._handle, *arguments)

    def no_memory(self, message: str) -> OSError | MemoryError:
        """Return the error to raise after a C++ function has returned NO_MEMORY: an OSError if the disk of the scratch
        file is full, else a MemoryError with the text `message`.
        """
        if self._file is not None and (number := self.call("file_error")):
            return self._file.refusal(number)
        return MemoryError(message)

    def check_file(self) -> None:
        """Raise OSError if the system failed to write a page of the scratch file, so that table rows are lost."""
        if self._file is not None and (number := self.call("failed_write")):
            raise OSError(number, self._file.page_lost())

    def read_ahead(self, row_ids: np.ndarray, will_change: bool) -> None:
        """Read the rows `row_ids` (int64) from the scratch file, so that whoever uses them next need not wait for the
        disk.

        With `will_change`, the rows will be updated. The call may run beside any other call. It does nothing if the
        rows are in memory.
        """
        if self._file is not None:
            ids = address(row_ids, np.int64, row_ids.size), row_ids.size
            self.call("read_ahead", *ids, will_change, self._file.most_resident())

    def planned_bytes(self, num_rows: int) -> tuple[int, int]:
        """Return the bytes that these tables, which must be empty, will take with `num_rows` rows: for the rows with
        their optimizer state, and for the index by id.
        """
        row_bytes, index_bytes = ctypes.c_int64(), ctypes.c_int64()
        self.call("planned_bytes", num_rows, ctypes.byref(row_bytes), ctypes.byref(index_bytes))
        return row_bytes.value, index_bytes.value

    def grow(self, spec: TablesSpec) -> None:
        """Enlarge both tables to the vocabulary size of `spec`, which otherwise must equal the present description of
        the tables.

        Raise MemoryError, and change nothing, if there is no memory.
        """
        if self.call("grow", spec.vocabulary_size) == NO_MEMORY:
            raise self.no_memory(f"no memory to find the rows of {spec.vocabulary_size:,} ids")
        self._spec = spec

    def renumber(self, row_ids: np.ndarray, slots: np.ndarray, spec: TablesSpec) -> None:
        """Give the touched rows in the slots (places in memory) `slots` the ids `row_ids`, and take over the vocabulary
        size of `spec`.

        Both arrays have one entry per touched row. Raise MemoryError, and change nothing, if there is no memory.
        """
        count = row_ids.size
        arrays = address(row_ids, np.int64, count), address(slots, np.int32, count)
        if self.call("renumber", *arrays, spec.vocabulary_size) == NO_MEMORY:
            raise self.no_memory(f"no memory to find {count:,} rows by other ids")
        self._spec = spec

    def unique(self, ids: np.ndarray) -> NativeUniqueIds:
        """Return the distinct ids of a batch's `ids` [B, P]. Raise ValueError, naming batch row, field and id, for an
        id outside 0 … V-1, as `Tables.unique` describes.

        The call uses one thread only, because it runs while the other cores take the previous training step.
        """
        check_ids_shape(ids, self._spec)
        if ids.size > MAX_POSITIONS:
            raise ValueError(f"a batch may have {MAX_POSITIONS} ids, found {ids.size}; choose a smaller batch size")
        ids = np.ascontiguousarray(ids)
        present, lists = self._find_lists(ids) if self._spec.has_lists else (ids.reshape(-1), None)
        size = present.size
        values, inverse, offsets, positions = _arrays_in_one_block(
            (np.int64, size), (np.int32, size), (np.int32, size + 1), (np.int32, size)
        )
        num_unique = ctypes.c_int64()
        outputs = (*map(output_address, (values, inverse, offsets, positions)), ctypes.byref(num_unique))
        status = self.call("unique", address(present, ids.dtype, size), ids.itemsize, size, *outputs)
        if status == BAD_ID:
            check_ids(ids, self._spec)
        if status == NO_MEMORY:
            raise MemoryError(f"no memory to find the distinct ones of {ids.size} ids")
        count, shape = num_unique.value, (len(ids), len(self._spec.fields))
        return NativeUniqueIds(shape, values[:count], inverse, offsets[: count + 1], positions, lists=lists)

    def _find_lists(self, ids: np.ndarray) -> tuple[np.ndarray, ListPositions]:
        """Return the ids [n] at the positions of `ids` [B, P] that are not empty, and the batch row, field and pooling
        factor of each.
        """
        lengths = np.array([field.length for field in self._spec.fields], np.int32)
        means = np.array([field.mean for field in self._spec.fields], np.int32)
        num_places = len(ids) * lengths.size
        values, first, places, weights = _arrays_in_one_block(
            (ids.dtype.type, ids.size), (np.int32, num_places + 1), (np.int32, ids.size), (np.float32, ids.size)
        )
        num_values = ctypes.c_int64()
        fields = lengths.size, address(lengths, np.int32, lengths.size), address(means, np.int32, lengths.size)
        outputs = (*map(output_address, (values, first, places, weights)), ctypes.byref(num_values))
        batch = address(ids, ids.dtype, *ids.shape), ids.itemsize, len(ids)
        if self.call("find_lists", *batch, *fields, *outputs) == BAD_ID:
            check_ids(ids, self._spec)
        count = num_values.value
        return values[:count], ListPositions(first, places[:count], weights[:count])


def unknown_isa() -> ValueError:
    """Return the error to raise if the library does not know the instruction set that the environment variable
    HOST_TABLES_ISA names.
    """
    return ValueError(
        f"HOST_TABLES_ISA={os.environ.get('HOST_TABLES_ISA')} is none of the instruction sets "
        "avx512, avx2, plain that this library and this machine have"
    )


def has_kernel(spec: TablesSpec, table: str) -> bool:
    """Return True if the C++ library has a kernel for the optimizer of `table` (`wide` or `deep`)."""
    return spec.optimizer(table).name in OPTIMIZER_NUMBERS


def _kernel_number(spec: TablesSpec, table: str) -> int:
    options = spec.optimizer(table)
    scheduled = options.name == "ftrl" and options.is_scheduled
    return OPTIMIZER_NUMBERS.get("scheduled_ftrl" if scheduled else options.name, -1)


def _array_counts(spec: TablesSpec) -> tuple[int, int, int, bool]:
    """Return how many state arrays (weights, optimizer state) the tables have, as four fields of the C structure
    `HostTablesSpec`.

    The fields are the number of wide arrays, the number of deep arrays with D values per row, the number of deep arrays
    with one value per row, and whether the array `last_step` is one of them.
    """
    wide, deep = spec.state_arrays(WIDE), spec.state_arrays(DEEP)
    scalars = [array.name for array in deep if array.one_a_row]
    return len(wide), len(deep) - len(scalars), len(scalars), LAST_STEP in scalars


def _initial_values(spec: TablesSpec) -> tuple[int, int, float, float]:
    """Return the initial values of the state arrays in the form of the C structure `HostTablesSpec`.

    In each table at most one array does not start at 0. The result is the number of that array in the wide table (-1:
    none), its number in the deep table, and then the initial values of these two arrays.
    """
    arrays, values = [], []
    for table in (WIDE, DEEP):
        initial = {place: array.initial for place, array in enumerate(spec.state_arrays(table)) if array.initial}
        assert len(initial) <= 1, f"{spec.optimizer(table).name} has several arrays that do not begin as 0"
        arrays.append(next(iter(initial), -1))
        values.append(next(iter(initial.values()), 0.0))
    return arrays[0], arrays[1], values[0], values[1]


def _arrays_in_one_block(*shapes: tuple[type, int]) -> list[np.ndarray]:
    """Return uninitialized arrays of the given (dtype, size) that share one block of memory.

    The memory allocator keeps a single block for the next batch. With several blocks, the allocator would return them
    to the system each time.
    """
    sizes = [np.dtype(dtype).itemsize * size for dtype, size in shapes]
    block, starts = np.empty(sum(sizes), np.uint8), np.cumsum([0, *sizes])
    return [
        block[start : start + size].view(dtype) for (dtype, _), start, size in zip(shapes, starts, sizes, strict=False)
    ]


class NativeStepHistory(StepHistory):
    """A `StepHistory` (the past steps of a table with `adam`) whose `catch_up` runs in C++ on all cores.

    `catch_up` lets rows take the steps that they missed because they were not in the batches. The results have the same
    bits as in NumPy.
    """

    def catch_up(self, states: States, means: RunningMean | None = None) -> None:
        *arrays, last_steps = states
        count, width = arrays[0].shape
        of_rows = [output_address(array) for array in arrays[:3]]
        of_means = None if means is None else output_address(arrays[3])
        last = address(last_steps, np.int32, count, 1)
        rows = RowArrays(count, width, *of_rows, of_means, last)
        until = history_until(self, self.step), means and means_until(means, self.step)
        if LIBRARY.load().host_tables_catch_up(ctypes.byref(rows), *until, num_cores()) == UNKNOWN_ISA:
            raise unknown_isa()
        last_steps[...] = self.step


def history_until(history: StepHistory | None, step: int) -> Any:
    """Return a pointer to the C structure `HostTablesHistory` with the rates and constants of `adam` steps 0 … `step`.

    The pointer is valid until the next step is appended to `history`. Return None if `history` is None.
    """
    if history is None:
        return None
    steps = slice(step + 1)  # The arrays of `history` may cover later steps, which the kernels must not see.
    arrays = (
        address(history.rates[steps], np.float32, step + 1),
        address(history.epsilons[steps], np.float32, step + 1),
        address(history.rate_sums[steps], np.float64, step + 1),
        address(history.beta2_powers[steps], np.float32, step + 1),
    )
    options = history.options
    return ctypes.byref(History(step, *arrays, options.beta1, options.beta2, history.l2_coef, MOST_EXACT_STEPS))


def means_until(means: RunningMean, step: int) -> Any:
    """Return a pointer to the C structure `HostTablesMeans` with the factors of running means in the steps 0 … `step`.

    The pointer is valid until more steps are appended to `means`.
    """
    means.reach(step)
    powers, rates = means.powers[: step + 1], means.rates[: step + 1]
    return ctypes.byref(Means(step, address(powers, np.float64, step + 1), address(rates, np.float32, step + 1)))
