"""The contract of every table backend, and the types that pass between host and device.

Two tables share the rows' ids: wide (V × 1) and deep (V × D), each with the optimizer that its options name. A row
that was never updated has its initial value (with `adam`, pulled toward 0 since) and costs next to no memory. `state`
holds touched rows only.

If the two parts of the model see different fields, each table has the ids, rows and snapshots of its own fields
(`parts.py`). Then a row of a field that one part alone sees is in that part's table alone.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from app.config.optimizer_settings import DeepOptimizer, SgdOptions, WideOptimizer
from app.config.run_settings import TableDtype
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

Indices = np.ndarray | slice  # of rows in a list of row ids

WIDE, DEEP = "wide", "deep"
# The kernels by the names of MindSpore's own ones.
LOOKUP, FTRL, LAZY_ADAM = "EmbeddingLookup", "FusedSparseFtrl", "FusedSparseLazyAdam"
UPDATE_NAMES = {"ftrl": FTRL, "lazy_adam": LAZY_ADAM}  # of `update_seconds`; others go by their own names
STATE_ARRAYS = {  # with the default optimizers, FTRL and LazyAdam
    WIDE: ("rows", "accumulator", "linear"),
    DEEP: ("rows", "first_moment", "second_moment"),
}

TableRates = Mapping[str, Callable[[int], float]]  # by table: step 1, 2, … -> its learning rate, past steps included


class RowArray(NamedTuple):
    """Dtype and number of values of one state array in each row."""

    dtype: str
    width: int


@dataclass(frozen=True)
class TablesSpec:
    """The settings of both tables."""

    vocabulary_size: int
    embedding_dim: int
    fields: tuple[TableField, ...]  # the C looked-up ones
    seed: int
    initial_scale: float  # an initial deep value is uniform in ±initial_scale
    l2_coef: float  # of ½ Σ‖row‖² over a batch's unique deep rows; with `adam` over the whole table
    wide_optimizer: WideOptimizer
    deep_optimizer: DeepOptimizer
    wide_l2_coef: float = 0.0
    row_clip_value: float = 0.0  # bounds each value of a unique row's gradient before L2; 0 does not
    tables: tuple[str, ...] = (WIDE, DEEP)  # those that are kept
    dtype: TableDtype = "float32"  # of the deep arrays of D values a row; the wide ones, of a value each, are float32
    ema_decay: float = 0.0  # of the rows' running mean (`RunningMean`); 0: none is kept

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of the C looked-up fields."""
        return tuple(field.name for field in self.fields)

    @property
    def has_parts(self) -> bool:
        """True if the two parts see different fields."""
        return len(self.tables) > 1 and not all(field.wide and field.deep for field in self.fields)

    @functools.cached_property
    def deep_names(self) -> tuple[str, ...]:
        """Names of the fields in `Rows.deep`. If the deep part has no field, one field of zeros."""
        names = tuple(self.fields[index].name for index in self.columns_of(DEEP))
        return names or (("no field",) if self.has_parts else ())

    @property
    def has_lists(self) -> bool:
        """True if a field takes several positions of a batch's ids."""
        return any(field.length > 1 for field in self.fields)

    @property
    def num_positions(self) -> int:
        """P."""
        return sum(field.length for field in self.fields)

    def columns_of(self, table: str) -> list[int]:
        """Return the indices of the fields that a part sees, by the name of its table."""
        return [index for index, field in enumerate(self.fields) if (field.wide if table == WIDE else field.deep)]

    def part(self, table: str) -> TablesSpec:
        """Return the spec of one table alone, over the fields that its part sees."""
        fields = tuple(self.fields[index]._replace(wide=True, deep=True) for index in self.columns_of(table))
        alone = replace(self, fields=fields, tables=(table,))
        if table == WIDE:
            return replace(alone, embedding_dim=0, deep_optimizer=SgdOptions())
        return replace(alone, wide_optimizer=SgdOptions())  # a wide row, which is not kept, takes one float

    def width(self, table: str) -> int:
        """Return the number of values in a row."""
        return self.embedding_dim if table == DEEP else 1

    def optimizer(self, table: str) -> TableOptimizer:
        """Return the options of a table's optimizer."""
        return self.wide_optimizer if table == WIDE else self.deep_optimizer

    def state_arrays(self, table: str) -> tuple[StateArray, ...]:
        """Return the arrays that a table keeps of its touched rows."""
        arrays = state_arrays(self.optimizer(table))
        arrays = with_mean(arrays) if self.ema_decay else arrays
        if table == DEEP and self.dtype == "bfloat16":
            arrays = tuple(a if a.one_a_row else replace(a, dtype=BFLOAT16.type) for a in arrays)
        return arrays

    def row_bytes(self) -> int:
        """Return the bytes of a touched row in both tables, with its optimizers' state."""
        arrays = [array for table in self.tables for array in self.layout(table).values()]
        return sum(array.width * np.dtype(array.dtype).itemsize for array in arrays)

    def layout(self, table: str) -> dict[str, RowArray]:
        """Return dtype and width of a table's state arrays, by name."""
        arrays = self.state_arrays(table)
        return {a.name: RowArray(np.dtype(a.dtype).name, 1 if a.one_a_row else self.width(table)) for a in arrays}


def one_field(spec: TablesSpec) -> TablesSpec:
    """Return the spec of tables whose batches are rows, [U, 1], whichever fields look them up."""
    return replace(spec, fields=(TableField("row"),))


def update_name(spec: TablesSpec, table: str) -> str:
    """Return the name of a table's optimizer in `update_seconds`."""
    name = spec.optimizer(table).name
    return UPDATE_NAMES.get(name, name)


@dataclass(frozen=True)
class Lists:
    """The n values of a batch whose fields may be lists, row by row, without the empty positions of lists."""

    first: np.ndarray  # int32 [B * C + 1]: field f of the batch has the values first[f] … first[f + 1] - 1
    places: np.ndarray  # int32 [n]: the field among B * C of each value
    weights: np.ndarray  # float32 [n]: of a value's row in its field's


@dataclass(frozen=True)
class UniqueIds:
    """The distinct ids of a batch, computed once for both lookup and update.

    A backend may return a subclass that holds more.
    """

    shape: tuple[int, int]  # B, C
    values: np.ndarray  # [U] the distinct ids
    inverse: np.ndarray  # [B * C] the index in `values` of each position, row by row; with `lists` [n], of each value
    lists: Lists | None = field(default=None, kw_only=True)

    def of(self, table: str) -> UniqueIds:
        """Return the ids that a part looks up, by the name of its table: this object if both parts see all fields."""
        return self


@dataclass(frozen=True)
class Rows:
    """Rows for the device: `deep` [B, C * D] over the deep part's fields, `wide` [B] (summed over the wide's), float32.

    A list's row is the weighted sum of the rows of its values.

    `squared_norm` is Σ‖row‖² over the batch's unique deep rows.
    """

    deep: np.ndarray
    wide: np.ndarray
    squared_norm: float


@dataclass(frozen=True)
class RowGradients:
    """Gradients of the loss for `Rows.deep` and `Rows.wide` from the device, same shapes, float32.

    `scale` multiplies both before use. It is the inverse of the loss scale.
    """

    deep: np.ndarray
    wide: np.ndarray
    scale: float = 1.0


@dataclass(frozen=True)
class TableState:
    """The touched rows of one table.

    The optimizer decides which arrays there are (`state_arrays`). `rows` is always one of them. With `adam` a row
    stands at its `last_step`: `CaughtUpTable` takes it further.
    """

    row_ids: np.ndarray  # int64 [T], ascending
    arrays: dict[str, np.ndarray]  # by name: [T, width] or [T, 1]

    @property
    def layout(self) -> dict[str, RowArray]:
        return {name: RowArray(array.dtype.name, array.shape[1]) for name, array in self.arrays.items()}

    def read(self, name: str, indices: Indices) -> np.ndarray:
        return self.arrays[name][indices]


class TableSnapshot(Protocol):
    """The rows of one table at one moment, in memory (`TableState`), in files or elsewhere."""

    @property
    def row_ids(self) -> np.ndarray:
        """The row ids, int64 [T], ascending."""
        ...

    @property
    def layout(self) -> dict[str, RowArray]:
        """The state arrays by name, in the order in which they are written."""
        ...

    def read(self, name: str, indices: Indices) -> np.ndarray:
        """Return one state array of `row_ids[indices]`: [n, width], valid until the next call."""
        ...


def widened_layout(layout: Mapping[str, RowArray]) -> dict[str, RowArray]:
    """Return a layout in which bfloat16 is float32."""
    return {n: a._replace(dtype="float32") if a.dtype == BFLOAT16.name else a for n, a in layout.items()}


class WidenedTable:
    """A view of `saved` in which bfloat16 is float32."""

    def __init__(self, saved: TableSnapshot) -> None:
        self._saved = saved
        self.row_ids, self.layout = saved.row_ids, widened_layout(saved.layout)

    def read(self, name: str, indices: Indices) -> np.ndarray:
        return widen(self._saved.read(name, indices))


class CaughtUpTable:
    """A view of `saved`, whose rows stand at their last steps, with each row as after the newest step of `history`."""

    def __init__(self, saved: TableSnapshot, history: StepHistory) -> None:
        self._saved = saved
        self._history = history
        self.row_ids, self.layout = saved.row_ids, saved.layout
        self._last: tuple[Indices, dict[str, np.ndarray]] | None = None  # a caller reads one array after another

    def read(self, name: str, indices: Indices) -> np.ndarray:
        if self._last is None or self._last[0] is not indices:
            states = {state: self._saved.read(state, indices).copy() for state in self.layout}
            self._history.catch_up(tuple(states.values()))
            self._last = indices, states
        return self._last[1][name]


class MeanTable:
    """A view of `saved`, whose rows stand at their last steps, with the running mean of each row after `step`."""

    def __init__(self, saved: TableSnapshot, means: RunningMean, step: int, history: StepHistory | None) -> None:
        """`history` is that of a table with `adam`."""
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
    """Return a view with the rows that the model scores with after `step`: running means with `means`, else rows.

    They are float32, whatever they are stored in.
    """
    saved = WidenedTable(saved)
    if means is not None and step:
        return MeanTable(saved, means, step, history)
    return saved if history is None else CaughtUpTable(saved, history)


class Snapshot(Protocol):
    """Both tables at one moment. Release it when it has been read, soon once it is `awaited`."""

    awaited: threading.Event

    @property
    def tables(self) -> Mapping[str, TableSnapshot]:
        """The tables by name."""
        ...

    def release(self, saved: bool) -> None:
        """End the snapshot, from any thread. Rows that were not `saved` count as changed again."""
        ...


class WriteArray(Protocol):
    """A function that writes one of the state arrays of rows, in pieces if need be."""

    def __call__(self, name: str, values: np.ndarray, start: int = 0) -> None:
        """Write `values` [n, width] to array `name` of the rows from number `start` on."""
        ...


PlaceRows = Callable[[str, np.ndarray], WriteArray]  # of a table: touches the distinct row ids [n], to be written next


class Tables(ABC):
    """Both tables with their optimizers, but for lookup and update, which `stock` does inside its graph."""

    spec: TablesSpec
    step: int  # updates so far; Adam's bias correction counts by it

    @abstractmethod
    def unique(self, ids: np.ndarray) -> UniqueIds:
        """Return the distinct ids of `ids` [B, P]. Changes nothing, so it may run beside `lookup` and `update`.

        A list has -1 in the positions after its values. Raise ValueError naming batch row, field and id if another id
        is outside 0 … V-1, or if dtype or shape is wrong.
        """

    @abstractmethod
    def state(self) -> dict[str, TableState]:
        """Return copies of the touched rows, by table name."""

    @abstractmethod
    def snapshot(self, changed_only: bool) -> Snapshot:
        """Return the touched rows as they are now, or only those updated since the last snapshot that was saved.

        Loaded rows count as saved. There is one snapshot at a time: raise RuntimeError while the last one is not
        released.
        """

    @abstractmethod
    def loading(self, step: int) -> AbstractContextManager[PlaceRows]:
        """Forget all rows, set the step count, and give the block a function that takes rows, array by array.

        What is not written has its initial value. A write raises ValueError for values that are not finite, or that no
        optimizer leaves (`check_bounds`). If the block raises, the tables are empty after it. Raise RuntimeError,
        before anything is forgotten, while a snapshot is not released.
        """


class HostTables(Tables):
    """Both tables with their optimizers, in host memory."""

    update_seconds: dict[str, float]  # of the last update, by optimizer

    @abstractmethod
    def lookup(self, unique: UniqueIds, means: bool = False) -> Rows:
        """Return the rows of a batch, or with `means` their running means, which `ema_decay` keeps. Change nothing.

        The arrays are valid until the next lookup.
        """

    @abstractmethod
    def update(self, unique: UniqueIds, gradients: RowGradients, checked: bool = False) -> None:
        """Take one step of both optimizers: each unique row once, its gradients summed in order of position.

        Raise ValueError for a wrong dtype or shape. Raise FloatingPointError, naming batch row and field, for a
        gradient that is not finite or whose square might not be. Then nothing was written. With `checked` the caller
        knows that the gradients are finite, as a training step does, whose graph has checked them.
        """

    def grow(self, vocabulary_size: int) -> None:
        """Take ids up to `vocabulary_size`, more than before. The new ones have their initial rows.

        Ids that `unique` found before are of no use after it. Raise ValueError for tables that cannot grow.
        """
        raise ValueError(
            f"{type(self).__name__} cannot take more ids: rows that several processes own are fixed at the start; "
            "train online in one process"
        )

    def remove(self, row_ids: np.ndarray) -> None:
        """Make rows [n] int64, ascending, untouched again: with their initial values, and without a state.

        An open snapshot keeps them. Raise ValueError for wrong ids, and for tables that cannot.
        """
        raise ValueError(f"{type(self).__name__} cannot remove rows; train online in one process")

    def renumber(self, new_ids: np.ndarray, vocabulary_size: int) -> None:
        """Let each touched row of the id i become that of `new_ids[i]` ([V] int64, different ones), of so many ids.

        Its initial values do not follow it. Ids that `unique` found before are of no use after it. Raise ValueError for
        ids that are outside or equal, and for tables that cannot, RuntimeError while a snapshot is not released.
        """
        raise ValueError(f"{type(self).__name__} cannot give rows other ids; train online in one process")
