"""Define the contract of every table backend, and the types that pass between host and device.

There are two tables, indexed by the same row ids: the wide table has one weight per row (V × 1), the deep table an
embedding of D values per row (V × D). Each table has its own optimizer. A row is touched once a step has updated it or
it was loaded from a checkpoint or another model. An untouched row has its initial value and takes next to no memory.
(Under `adam`, the L2 penalty pulls the deep values of these rows toward 0 as well.) `Tables.state` returns touched rows
only.

If the wide and the deep part of the model see different fields, each part gets its own table with its own ids and
snapshots (`PartTables`). A row of a field that only one part sees is then stored in that part's table alone.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from app.config.optimizer_settings import DeepOptimizer, SgdOptions, WideOptimizer
from app.tables.fields import TableField
from app.tables.optimizers import (
    MEAN,
    MEAN_STEP,
    ROWS,
    RunningMean,
    StateArray,
    StepHistory,
    TableOptimizer,
    state_arrays,
    with_mean,
)
from app.tables.rounding import BFLOAT16, widen

if TYPE_CHECKING:
    from app.config.config import TableDtype

Indices = np.ndarray | slice  # The rows to read: an array of positions in a list of row ids, or a slice of that list.

WIDE, DEEP = "wide", "deep"
# Names of the lookup and of the default optimizers in timings. They are the names of MindSpore's own kernels.
LOOKUP, FTRL, LAZY_ADAM = "EmbeddingLookup", "FusedSparseFtrl", "FusedSparseLazyAdam"
# Keys of `HostTables.update_seconds` by optimizer name. Optimizers that are not listed use their own name.
UPDATE_NAMES = {"ftrl": FTRL, "lazy_adam": LAZY_ADAM}
# Arrays (weights and optimizer state) that each table keeps with the default optimizers, FTRL and LazyAdam.
STATE_ARRAYS = {
    WIDE: ("rows", "accumulator", "linear"),
    DEEP: ("rows", "first_moment", "second_moment"),
}

# For each table, a function from the step number (1, 2, …) to the learning rate of that step. The function is also
# called for past steps.
TableRates = Mapping[str, Callable[[int], float]]


class RowArray(NamedTuple):
    """Dtype of one state array (weights of rows, or optimizer state), and its number of values per row."""

    dtype: str
    width: int


@dataclass(frozen=True)
class TablesSpec:
    """Sizes and settings of both embedding tables, wide and deep."""

    vocabulary_size: int
    embedding_dim: int
    fields: tuple[TableField, ...]  # The C looked-up fields.
    seed: int
    initial_scale: float  # Initial deep values are uniform in ±initial_scale.
    # Coefficient of ½ Σ‖row‖² over the distinct deep rows of a batch. With `adam`: over the whole table.
    l2_coef: float
    wide_optimizer: WideOptimizer
    deep_optimizer: DeepOptimizer
    tables: tuple[str, ...] = (WIDE, DEEP)  # The tables that are stored: wide, deep or both.
    dtype: TableDtype = "float32"  # Dtype of the deep arrays with D values per row. Wide arrays are always float32.
    storage: Path | None = None  # Folder of the scratch file that holds the rows, or None to keep them in memory.
    # Memory that the process may take, in bytes, pages of the scratch file included. 0: what the system allows.
    memory_limit: int = 0
    # Number of ranks that own rows. The ids of the rows of one owner are multiples of this number, plus a constant.
    id_stride: int = 1
    # Decay of the running mean of each row's weights (`RunningMean`). 0 means that no mean is kept.
    ema_decay: float = 0.0

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the C looked-up fields."""
        return tuple(field.name for field in self.fields)

    @property
    def has_parts(self) -> bool:
        """True if the wide and the deep part of the model see different fields, so each part needs tables of its
        own.
        """
        return len(self.tables) > 1 and not all(field.wide and field.deep for field in self.fields)

    @functools.cached_property
    def deep_names(self) -> tuple[str, ...]:
        """Names of the fields whose embeddings `Rows.deep` holds, in order.

        If the deep part sees no field, the result is the name of one placeholder field whose embedding is all zeros.
        """
        names = tuple(self.fields[index].name for index in self.columns_of(DEEP))
        return names or (("no field",) if self.has_parts else ())

    @property
    def has_lists(self) -> bool:
        """True if at least one field is a list, that is, takes several columns of ids."""
        return any(field.length > 1 for field in self.fields)

    @property
    def num_positions(self) -> int:
        """P, the number of columns in a batch's ids."""
        return sum(field.length for field in self.fields)

    def columns_of(self, table: str) -> list[int]:
        """Return the indices in `fields` of the fields that the part of the model named `table` (wide or deep) sees."""
        return [index for index, field in enumerate(self.fields) if (field.wide if table == WIDE else field.deep)]

    def part(self, table: str) -> TablesSpec:
        """Return a copy of these settings for tables that store only `table` (wide or deep), with the fields that the
        part of the model with this name sees.
        """
        fields = tuple(self.fields[index]._replace(wide=True, deep=True) for index in self.columns_of(table))
        alone = replace(self, fields=fields, tables=(table,))
        if table == WIDE:
            return replace(alone, embedding_dim=0, deep_optimizer=SgdOptions())
        # A backend still allocates a wide row for each id that is updated, although nothing uses or saves it. With SGD,
        # which has no optimizer state, that row takes one float.
        return replace(alone, wide_optimizer=SgdOptions())

    def width(self, table: str) -> int:
        """Return the number of values per row of a table: D for the deep table, 1 for the wide one."""
        return self.embedding_dim if table == DEEP else 1

    def optimizer(self, table: str) -> TableOptimizer:
        """Return the settings of the optimizer that updates `table` (wide or deep)."""
        return self.wide_optimizer if table == WIDE else self.deep_optimizer

    def state_arrays(self, table: str) -> tuple[StateArray, ...]:
        """Return name, initial value and dtype of each array that `table` keeps for touched rows (updated or loaded
        rows).

        The first array has the weights of the rows. The others are optimizer state.
        """
        arrays = state_arrays(self.optimizer(table))
        arrays = with_mean(arrays) if self.ema_decay else arrays
        if table == DEEP and self.dtype == "bfloat16":
            arrays = tuple(a if a.one_a_row else replace(a, dtype=BFLOAT16.type) for a in arrays)
        return arrays

    def row_bytes(self) -> int:
        """Return the number of bytes that one updated or loaded id takes: its rows in both tables, with optimizer
        state.
        """
        arrays = [array for table in self.tables for array in self.layout(table).values()]
        return sum(array.width * np.dtype(array.dtype).itemsize for array in arrays)

    def layout(self, table: str) -> dict[str, RowArray]:
        """Return dtype and number of values per row of each array (weights, optimizer state) of a table, by name."""
        arrays = self.state_arrays(table)
        return {a.name: RowArray(np.dtype(a.dtype).name, 1 if a.one_a_row else self.width(table)) for a in arrays}


def one_field(spec: TablesSpec) -> TablesSpec:
    """Return a copy of `spec` for tables that are given distinct ids [U, 1], without the fields that the ids belong to.

    The tables then treat each id as a batch row that has a single field.
    """
    return replace(spec, fields=(TableField("row"),))


def update_name(spec: TablesSpec, table: str) -> str:
    """Return the key under which the mapping `HostTables.update_seconds` has the time that a table's optimizer took."""
    name = spec.optimizer(table).name
    return UPDATE_NAMES.get(name, name)


@dataclass(frozen=True)
class ListPositions:
    """The batch row, field and pooling factor of each of the n values in a batch that has list fields.

    The values are in the order of batch rows. Empty positions are left out.
    """

    # int32 [B * C + 1]: the values of batch row b and field c are number first[b * C + c] up to first[b * C + c + 1] -
    # 1.
    first: np.ndarray
    places: np.ndarray  # int32 [n]: b * C + c for each value of batch row b and field c.
    weights: np.ndarray  # float32 [n]: the factor of each value's row in the sum that is its field's row.


@dataclass(frozen=True)
class UniqueIds:
    """The distinct ids of a batch, computed once and passed to both the lookup and the update of table rows.

    A backend may return a subclass with more attributes.
    """

    shape: tuple[int, int]  # B, C
    values: np.ndarray  # [U] the distinct ids
    # Indices in `values`. Without `lists`, [B * C]: the index of the id of each batch row and field. With `lists`, [n]:
    # the index of each id of the batch, because a field may have several ids in a row, or none.
    inverse: np.ndarray
    lists: ListPositions | None = field(default=None, kw_only=True)

    def of(self, table: str) -> UniqueIds:
        """Return the distinct ids that the table `table` (`wide` or `deep`) looks up: the ids of the fields that the
        part of the model with the same name sees.

        The result is `self` if the wide and the deep part of the model see the same fields.
        """
        return self


@dataclass(frozen=True)
class Rows:
    """The rows of a batch, pooled per field, as float32 arrays that are ready for the device.

    `deep` [B, C * D] has the embeddings of the fields that the deep part sees. `wide` [B] is, for each batch row, the
    sum of the weights of the fields that the wide part sees. A list field contributes the weighted sum of its values'
    rows. `squared_norm` is Σ‖row‖² over the distinct deep rows of the batch.
    """

    deep: np.ndarray
    wide: np.ndarray
    squared_norm: float


@dataclass(frozen=True)
class RowGradients:
    """Gradients of the scaled loss with respect to `Rows.deep` and `Rows.wide`, with the same shapes, float32.

    `update` multiplies both by `scale`, which is the inverse of the loss scale.
    """

    deep: np.ndarray
    wide: np.ndarray
    scale: float = 1.0


@dataclass(frozen=True)
class TableState:
    """Copies of the touched rows (rows that were updated or loaded) of one table.

    The optimizer decides which arrays exist (`TablesSpec.state_arrays`); `rows` is always one of them. With `adam`,
    each row has its value after its own `last_step`; `CaughtUpTable` applies the later steps, which are postponed for
    rows that are not in the batch.
    """

    row_ids: np.ndarray  # int64 [T], ascending
    arrays: dict[str, np.ndarray]  # Arrays of the T rows by name (weights, optimizer state), each [T, width] or [T, 1].

    @property
    def layout(self) -> dict[str, RowArray]:
        return {name: RowArray(array.dtype.name, array.shape[1]) for name, array in self.arrays.items()}

    def read(self, name: str, indices: Indices) -> np.ndarray:
        return self.arrays[name][indices]


class TableSnapshot(Protocol):
    """The touched rows (rows that were updated or loaded) of one table at one moment.

    The rows may be in memory (`TableState`), in the files of a checkpoint, or computed when they are read.
    """

    @property
    def row_ids(self) -> np.ndarray:
        """The ids of the table's touched rows (updated or loaded rows), int64 [T], ascending."""
        ...

    @property
    def layout(self) -> dict[str, RowArray]:
        """Dtype and width of each state array (weights, optimizer state), by name, in the order in which checkpoints
        store these arrays.
        """
        ...

    def read(self, name: str, indices: Indices) -> np.ndarray:
        """Return the state array `name` of the rows `row_ids[indices]`, [n, width].

        The result is valid until the next call of `read`.
        """
        ...


def widened_layout(layout: Mapping[str, RowArray]) -> dict[str, RowArray]:
    """Return a copy of `layout` in which arrays of dtype bfloat16 have dtype float32."""
    return {n: a._replace(dtype="float32") if a.dtype == BFLOAT16.name else a for n, a in layout.items()}


class WidenedTable:
    """A read-only view of the table `saved` that returns its bfloat16 arrays converted to float32."""

    def __init__(self, saved: TableSnapshot) -> None:
        self._saved = saved
        self.row_ids, self.layout = saved.row_ids, widened_layout(saved.layout)

    def read(self, name: str, indices: Indices) -> np.ndarray:
        return widen(self._saved.read(name, indices))


class CaughtUpTable:
    """A read-only view of the table `saved` in which every row has taken all optimizer steps that `history` records.

    `saved` must be a table with `adam`, which postpones the steps of rows that are not in the batch: each row has its
    value after its own last step.
    """

    def __init__(self, saved: TableSnapshot, history: StepHistory) -> None:
        self._saved = saved
        self._history = history
        self.row_ids, self.layout = saved.row_ids, saved.layout
        # The rows that the last `read` brought up to date, and their indices. Callers read the arrays of the same rows
        # one after another, so keep these rows rather than compute their postponed steps again for each array.
        self._last: tuple[Indices, dict[str, np.ndarray]] | None = None

    def read(self, name: str, indices: Indices) -> np.ndarray:
        if self._last is None or self._last[0] is not indices:
            states = {state: self._saved.read(state, indices).copy() for state in self.layout}
            self._history.catch_up(tuple(states.values()))
            self._last = indices, states
        return self._last[1][name]


class MeanTable:
    """A read-only view of the table `saved` whose only array, `rows`, holds the running mean of each row after step
    `step`.
    """

    def __init__(self, saved: TableSnapshot, means: RunningMean, step: int, history: StepHistory | None) -> None:
        """`history` has the past steps of a table with `adam`, whose rows may not have taken all of them yet. It is
        None for other optimizers.
        """
        self._saved, self._means, self._step, self._history = saved, means, step, history
        self.row_ids = saved.row_ids
        self.layout = {ROWS: saved.layout[ROWS]}

    def read(self, name: str, indices: Indices) -> np.ndarray:
        assert name == ROWS
        states = {state: self._saved.read(state, indices).copy() for state in self._saved.layout}
        if self._history is None:
            return self._means.of_still(states[ROWS], states[MEAN], states[MEAN_STEP], self._step)
        self._history.catch_up(tuple(states.values()), self._means)
        return states[MEAN]


def scored_table(
    saved: TableSnapshot, step: int, history: StepHistory | None = None, means: RunningMean | None = None
) -> TableSnapshot:
    """Return a float32 view of the table `saved` whose `rows` are the weights for scoring after training step `step`.

    The weights are the running means if `means` is given and `step` is not 0, otherwise the rows themselves. A table
    with `adam` needs its `history`, so that its rows can take the steps that were postponed because their batches did
    not have the rows.
    """
    saved = WidenedTable(saved)
    if means is not None and step:
        return MeanTable(saved, means, step, history)
    return saved if history is None else CaughtUpTable(saved, history)


class Snapshot(Protocol):
    """The touched rows (rows that were updated or loaded) of both tables at one moment.

    Whoever reads the snapshot calls `release` at the end. The event `awaited` is set once training cannot go on before
    that call.
    """

    awaited: threading.Event

    @property
    def tables(self) -> Mapping[str, TableSnapshot]:
        """The tables by name."""
        ...

    def release(self, saved: bool) -> None:
        """End the snapshot, so that the tables may free its copies of rows. May be called from any thread.

        `saved` tells whether the rows were written to a checkpoint. Rows that were not written count as changed again,
        so the next delta checkpoint includes these rows.
        """
        ...


class WriteArray(Protocol):
    """A function that a call of `PlaceRows` returns. It writes one state array of the rows that the call has marked as
    touched, at once or in several blocks.
    """

    def __call__(self, name: str, values: np.ndarray, start: int = 0) -> None:
        """Write `values` [n, width] to the state array `name`, for n rows. Their ids begin at index `start` of the row
        ids that were passed to `PlaceRows`.
        """
        ...


# A function of (table name, distinct row ids). It marks these rows of the table as touched (present in the table's
# memory), and returns the function that writes their weights and optimizer state.
PlaceRows = Callable[[str, np.ndarray], WriteArray]


class Tables(ABC):
    """Interface of both tables (wide and deep) with their optimizers, without lookup and update.

    The backend `stock` looks up and updates rows inside MindSpore's graph, so it implements only this class.
    """

    spec: TablesSpec
    step: int  # Number of updates so far. Adam's bias correction depends on it.

    @abstractmethod
    def unique(self, ids: np.ndarray) -> UniqueIds:
        """Return the distinct ids of `ids` [B, P], int32 or int64.

        The method changes nothing, so it may run at the same time as `lookup` and `update`. A list field has -1 in the
        positions after its last value. Raise ValueError for a wrong dtype or shape, or, naming batch row, field and id,
        for an id outside 0 … V-1.
        """

    @abstractmethod
    def state(self) -> dict[str, TableState]:
        """Return copies of the touched rows (updated or loaded rows) with their optimizer state, by table name."""

    @abstractmethod
    def snapshot(self, changed_only: bool) -> Snapshot:
        """Return a read-only view of the touched rows (updated or loaded rows) as they are now. Later updates do not
        change this view.

        With `changed_only`, include only rows that were updated since the last snapshot that was saved. Rows that
        `loading` has written count as saved. Only one snapshot may be open: raise RuntimeError if the last one was not
        released.
        """

    @abstractmethod
    def loading(self, step: int) -> AbstractContextManager[PlaceRows]:
        """Return a context manager in which the caller replaces all rows of the tables.

        On entry it forgets all rows, sets the step count to `step`, and yields the function with which the caller
        writes new rows (`PlaceRows`). State arrays of a row that are not written keep their initial values. A write
        raises ValueError for values that are not finite, or that no optimizer can produce (`check_bounds`). If the
        `with` block raises, the tables are empty afterwards. Raise RuntimeError, before any row is forgotten, if a
        snapshot is open.
        """


class HostTables(Tables):
    """Interface of both tables (wide and deep) with their optimizers, in host memory, with lookup and update."""

    # Seconds that each table's optimizer took in the last update, by the name that `update_name` returns for the table.
    update_seconds: dict[str, float]

    @abstractmethod
    def lookup(self, unique: UniqueIds, means: bool = False) -> Rows:
        """Return the table rows for the ids `unique` of a batch, without changing anything.

        With `means`, return their running means instead; the spec's `ema_decay` must be set. The arrays are
        valid until the next lookup.
        """

    @abstractmethod
    def update(self, unique: UniqueIds, gradients: RowGradients, checked: bool = False) -> None:
        """Take one step of both tables' optimizers on the rows of a batch.

        Each distinct row is updated once, with the sum of its gradients in the order of positions. Raise ValueError for
        a wrong dtype or shape. Raise FloatingPointError, naming batch row and field, for a gradient that is NaN,
        infinite, or so large that its square may be infinite. After an error no row has changed. With `checked`, the
        caller guarantees good values. For example, the graph of a training step has already checked the gradients.
        """

    def read_ahead(self, unique: UniqueIds, will_change: bool) -> None:
        """Read the rows of a batch into memory before its step, if they are on disk. With `will_change`, the step will
        update the rows.

        The method changes nothing, so it may run at the same time as any other.
        """

    def grow(self, vocabulary_size: int) -> None:
        """Enlarge both tables to `vocabulary_size` ids. The rows of new ids have their initial values.

        Results of earlier `unique` calls become invalid. Raise ValueError for tables that cannot grow.
        """
        raise ValueError(
            f"{type(self).__name__} cannot take more ids: rows that several processes own are fixed at the start; "
            "train online in one process"
        )

    def remove(self, row_ids: np.ndarray) -> None:
        """Make the rows `row_ids` (int64 [n], ascending) untouched again: initial values and no optimizer state.

        An open snapshot keeps its copies of these rows. Raise ValueError for ids that are not ascending or out of
        range, and for tables that cannot remove rows.
        """
        raise ValueError(f"{type(self).__name__} cannot remove rows; train online in one process")

    def renumber(self, new_ids: np.ndarray, vocabulary_size: int) -> None:
        """Give each touched (updated or loaded) row, of id i, the id `new_ids[i]`, and set the vocabulary size.

        `new_ids` is int64 [V]; the new ids of touched rows must be distinct. Initial values belong to an id and
        do not move. Results of earlier `unique` calls become invalid. Raise ValueError for ids that are
        repeated or out of range, and for tables that cannot renumber. Raise RuntimeError if a snapshot is open.
        """
        raise ValueError(f"{type(self).__name__} cannot give rows other ids; train online in one process")
