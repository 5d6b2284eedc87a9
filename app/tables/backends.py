"""Determine the tables of a run by its settings: which fields the model looks up, which part of the model sees each,
and the backend. Construct the tables.

If the wide and the deep part of the model see different fields, each part has a pair of tables of its own, of which
only the table of the part is used: the wide table of the one, and the deep table of the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from threading import Event
from typing import NamedTuple

import numpy as np

from app.config.config import Backend, Config, ModelOptions
from app.tables.checks import check_gradients, check_ids_shape
from app.tables.fields import TableField, columns_of
from app.tables.interface import (
    DEEP,
    WIDE,
    HostTables,
    PlaceRows,
    RowGradients,
    Rows,
    Snapshot,
    TableRates,
    TableSnapshot,
    TablesSpec,
    TableState,
    UniqueIds,
)
from app.tables.optimizers import StepHistory
from common.settings import did_you_mean
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)


def fields_of_model(schema: Schema, model: ModelOptions) -> tuple[TableField, ...]:
    """Return the categorical fields of the data, in their order, each with the parts of the model that see it.

    By default both parts see every field, except that only the wide part sees crosses (fields that combine other
    fields). Raise ValueError, with the nearest known name, if a setting names a field that the data does not have.
    """
    names = [field.name for field in schema.categorical]
    for setting in ("wide_fields", "deep_fields"):
        for name in getattr(model, setting) or ():
            if name in (vector.name for vector in schema.vectors):
                raise ValueError(
                    f"model.{setting}: {name} is a vector, which needs no table rows and always enters the deep part; "
                    "leave it out here. If the model should not see it, prepare the data with its kind `ignored`"
                )
            if name not in names:
                raise ValueError(
                    f"model.{setting}: {name} is no categorical field of the data; {did_you_mean(name, names)}"
                )
    wide = names if model.wide_fields is None else model.wide_fields
    deep = [f.name for f in schema.categorical if not f.cross] if model.deep_fields is None else model.deep_fields
    return tuple(
        TableField(field.name, field.name in wide, field.name in deep, field.max_length, field.pool == "mean")
        for field in schema.categorical
    )


def table_spec(config: Config, schema: Schema, numeric: tuple[str, ...] = ()) -> TablesSpec:
    """Return the sizes and settings of a run's tables.

    The looked-up fields are the numeric fields named in `numeric`, followed by the categorical fields of the model.
    """
    return TablesSpec(
        vocabulary_size=schema.vocabulary_size,
        embedding_dim=config.model.embedding_dim,
        fields=(*map(TableField, numeric), *fields_of_model(schema, config.model)),
        seed=config.train.seed,
        initial_scale=config.model.initial_row_scale,
        l2_coef=config.loss.l2_coef,
        wide_optimizer=config.wide_optimizer,
        deep_optimizer=config.deep_optimizer,
        ema_decay=config.train.ema_decay,
        dtype=config.tables.dtype,
    )


def is_plain(fields: tuple[TableField, ...]) -> bool:
    """Return True if both parts see every field and no field is a list. The backend `stock` supports no other model."""
    return all(field.wide and field.deep and field.length == 1 for field in fields)


def are_seen(ids: np.ndarray, schema: Schema, by_field: Sequence[bool]) -> np.ndarray:
    """Return a boolean array that is True for each of `ids` whose field one part of the model sees.

    The part sees all numeric fields, and the categorical fields whose entry in `by_field` is True.
    """
    mask: np.ndarray = ids < schema.num_numeric
    for field, is_seen in zip(schema.categorical, by_field, strict=True):
        for first, end in (field.oov_ids, *field.id_ranges) if is_seen else ():
            mask |= (ids >= first) & (ids < end)
    return mask


def num_deep_inputs(fields: tuple[TableField, ...]) -> int:
    """Return the number of embedding rows per example that the tower takes as input: one per field that it sees.

    If the tower sees no field, the result is 1, for a placeholder row of zeros.
    """
    return max(1, sum(field.deep for field in fields))


@dataclass(frozen=True)
class PartIds(UniqueIds):
    """The distinct ids of a batch, separately for the wide and the deep part of the model, which see different fields.

    The attributes inherited from `UniqueIds` describe the ids of the deep part.
    """

    parts: Mapping[str, UniqueIds]  # The ids by table name.

    def of(self, table: str) -> UniqueIds:
        return self.parts[table]


@dataclass
class PartSnapshot:
    """A `Snapshot` (a read-only view of the rows at one moment) made of two: one of the wide part's tables, one of the
    deep part's.
    """

    parts: Mapping[str, Snapshot]

    def __post_init__(self) -> None:
        self.awaited = Event()
        for part in self.parts.values():
            part.awaited = self.awaited

    @property
    def tables(self) -> Mapping[str, TableSnapshot]:
        return {name: rows for part in self.parts.values() for name, rows in part.tables.items()}

    def release(self, saved: bool) -> None:
        for part in self.parts.values():
            part.release(saved)


class PartTables(HostTables):
    """Embedding tables in host memory (`HostTables`) in which the wide and the deep part of the model have tables of
    their own.

    If the deep part sees no field, `lookup` returns zeros [B, D] for the deep part, because the device has no arrays of
    width 0.
    """

    def __init__(self, spec: TablesSpec, make: Callable[[TablesSpec], HostTables]) -> None:
        """`make` builds tables for one part of the model (wide or deep) from the description that `TablesSpec.part`
        returns.
        """
        self.spec = spec
        self.step = 0
        self.update_seconds: dict[str, float] = {}
        self.parts = {table: make(spec.part(table)) for table in spec.tables}
        self._columns = {WIDE: columns_of(spec.fields, "wide"), DEEP: columns_of(spec.fields, "deep")}

    def unique(self, ids: np.ndarray) -> PartIds:
        check_ids_shape(ids, self.spec)
        parts = {table: tables.unique(ids[:, self._columns[table]]) for table, tables in self.parts.items()}
        deep = parts[DEEP]
        return PartIds(deep.shape, deep.values, deep.inverse, parts, lists=deep.lists)

    def lookup(self, unique: UniqueIds, means: bool = False) -> Rows:
        wide = self.parts[WIDE].lookup(unique.of(WIDE), means).wide
        rows = self.parts[DEEP].lookup(unique.of(DEEP), means)
        if not self._columns[DEEP]:
            rows = replace(rows, deep=np.zeros((len(wide), self.spec.embedding_dim), np.float32))
        return replace(rows, wide=wide)

    def update(self, unique: UniqueIds, gradients: RowGradients, checked: bool = False) -> None:
        check_gradients(gradients, unique.shape[0], self.spec, only_shape=checked)
        nothing = np.zeros((len(gradients.wide), 0), np.float32)
        deep = gradients.deep if self._columns[DEEP] else nothing
        self.parts[WIDE].update(unique.of(WIDE), replace(gradients, deep=nothing), checked=True)
        self.parts[DEEP].update(unique.of(DEEP), replace(gradients, deep=deep), checked=True)
        self.step += 1
        self.update_seconds = {name: s for part in self.parts.values() for name, s in part.update_seconds.items()}

    def read_ahead(self, unique: UniqueIds, will_change: bool) -> None:
        for table, part in self.parts.items():
            part.read_ahead(unique.of(table), will_change)

    def grow(self, vocabulary_size: int) -> None:
        self.spec = replace(self.spec, vocabulary_size=vocabulary_size)
        for part in self.parts.values():
            part.grow(vocabulary_size)

    def remove(self, row_ids: np.ndarray) -> None:
        for part in self.parts.values():
            part.remove(row_ids)

    def renumber(self, new_ids: np.ndarray, vocabulary_size: int) -> None:
        self.spec = replace(self.spec, vocabulary_size=vocabulary_size)
        for part in self.parts.values():
            part.renumber(new_ids, vocabulary_size)

    def state(self) -> dict[str, TableState]:
        return {name: rows for part in self.parts.values() for name, rows in part.state().items()}

    def snapshot(self, changed_only: bool) -> PartSnapshot:
        snapshots: dict[str, Snapshot] = {}
        try:
            for table, part in self.parts.items():
                snapshots[table] = part.snapshot(changed_only)
        except MemoryError:
            PartSnapshot(snapshots).release(saved=False)
            raise
        return PartSnapshot(snapshots)

    @contextmanager
    def loading(self, step: int) -> Iterator[PlaceRows]:
        self.step = 0  # If the `with` block raises, the tables are empty and at step 0.
        with ExitStack() as stack:
            place = {table: stack.enter_context(part.loading(step)) for table, part in self.parts.items()}
            yield lambda table, row_ids: place[table](table, row_ids)
        self.step = step


def pick_backend(setting: Backend, fold_numeric: bool, num_ranks: int = 1, fits_stock: bool = True) -> str:
    """Return the name of the table backend for the setting `tables.backend`.

    "auto" gives the fastest backend that is available. It gives `stock` (tables inside MindSpore's graph) only if this
    backend supports all settings of the run (`app.training.validate.stock_obstacle`), or if no other backend can be
    used. Raise OSError if the setting is "native" and the library is missing. `app.training.validate` checks the
    combination of settings.
    """
    backend: str = setting
    if setting == "auto":
        slower = "stock" if fits_stock or not fold_numeric else "reference"
        backend = "native" if fold_numeric and _native_works(slower) else slower
    if num_ranks > 1 and backend == "stock":  # The backend `stock` supports one process only.
        backend = "reference"
    if setting == "native":
        from app.tables.native import library

        library.LIBRARY.load()
    return backend


def pick_host_backend() -> str:
    """Return the faster backend that works on this machine: `native` if its C++ library loads, else `reference`.

    Both backends look up and update rows outside MindSpore's graph.
    """
    return "native" if _native_works("reference") else "reference"


def fastest_history() -> type[StepHistory]:
    """Return the faster available class for the past steps of `adam`: `NativeStepHistory` (C++), or `StepHistory`
    (NumPy) if the native library cannot be loaded.

    `adam` moves every row at every step. The step of a row that is not in the batch is postponed until the row is read
    next. Both classes compute such postponed steps.
    """
    if not _native_works("reference"):
        return StepHistory
    from app.tables.native.library import NativeStepHistory

    return NativeStepHistory


def make_host_tables(backend: str, spec: TablesSpec, learning_rates: TableRates, num_threads: int) -> HostTables:
    """Build and return the wide and the deep table with `backend`: `native` (C++) or `reference` (NumPy).

    Both backends run outside MindSpore's graph.

    Raise OSError if the native library is missing.
    """
    if spec.has_parts:
        return PartTables(spec, lambda part: make_host_tables(backend, part, learning_rates, num_threads))
    if backend == "native":
        from app.tables.native.tables import NativeTables

        return NativeTables(spec, learning_rates, num_threads)
    from app.tables.reference import ReferenceTables

    return ReferenceTables(spec, learning_rates)


class TableBytes(NamedTuple):
    """Memory of host tables in bytes: the rows with their optimizer state, and the index that finds a row by its id."""

    rows: int
    row_index: int


def planned_bytes(backend: str, spec: TablesSpec, num_rows: int) -> TableBytes:
    """Return the memory that the tables of `spec` take once `num_rows` rows are updated or loaded. Allocate nothing.

    `spec.has_parts` must be False: the wide and the deep part of the model see the same fields. The native tables
    compute the result with the functions by which they allocate. The other backends store a row for each id of the
    vocabulary, and two flags for each row.
    """
    if backend != "native":
        return TableBytes(spec.row_bytes() * spec.vocabulary_size, 2 * spec.vocabulary_size)
    from app.tables.native.library import NativeHandle

    return TableBytes(*NativeHandle(spec, num_threads=1).planned_bytes(num_rows))


def _native_works(otherwise: str) -> bool:
    from app.tables.native import library

    try:
        library.LIBRARY.load()
    except OSError as error:
        log.warning("warning: %s; continuing with the slower backend %s", error, otherwise)
        return False
    return True
