"""Keep two pairs of tables if the wide and the deep part of the model see different fields: one pair for each part.

Of each pair, only the table of its part is used: the wide table of the one, and the deep table of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from threading import Event

import numpy as np

from app.tables.checks import check_gradients, check_ids_shape
from app.tables.fields import columns_of
from app.tables.interface import (
    DEEP,
    WIDE,
    HostTables,
    PlaceRows,
    RowGradients,
    Rows,
    Snapshot,
    TableSnapshot,
    TablesSpec,
    TableState,
    UniqueIds,
)


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
