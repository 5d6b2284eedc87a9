"""The rows of one moment, kept while the training goes on, for tables that are small enough to be copied."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from app.tables.interface import TableState


class ChangedRows:
    """Which of V rows were updated since they were last taken: a bit each."""

    def __init__(self, num_rows: int) -> None:
        self._changed = np.zeros(num_rows, bool)
        self._given_back: list[np.ndarray] = []
        self.open: CopiedSnapshot | None = None

    def check_released(self) -> None:
        """Raise RuntimeError while a snapshot is not released."""
        if self.open is not None:
            check_released(self.open.released.is_set())

    def mark(self, row_ids: np.ndarray) -> None:
        """Note that these rows were updated."""
        self._changed[row_ids] = True

    def take(self) -> np.ndarray:
        """The ids of the changed rows, int64, ascending; from now on none is."""
        while self._given_back:
            self.mark(self._given_back.pop())
        row_ids = np.flatnonzero(self._changed).astype(np.int64)
        self._changed[row_ids] = False
        return row_ids

    def give_back(self, row_ids: np.ndarray) -> None:
        """What was taken in vain; from any thread."""
        self._given_back.append(row_ids)


@dataclass
class CopiedSnapshot:
    """A `Snapshot` of copies."""

    tables: dict[str, TableState]
    give_back: Callable[[], None]
    awaited: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def release(self, saved: bool) -> None:
        """See `Snapshot.release`."""
        self.released.set()
        if not saved:
            self.give_back()


def copied_snapshot(
    changed: ChangedRows,
    touched: np.ndarray,
    changed_only: bool,
    state_of: Callable[[np.ndarray], dict[str, TableState]],
) -> CopiedSnapshot:
    """A snapshot of the changed rows or of all that are `touched` [V]; `state_of` copies rows by their ids."""
    changed.check_released()
    taken = changed.take()
    row_ids = taken if changed_only else np.flatnonzero(touched).astype(np.int64)
    changed.open = CopiedSnapshot(state_of(row_ids), lambda: changed.give_back(taken))
    return changed.open


def check_released(released: bool) -> None:
    """Raise RuntimeError where the last snapshot is still open: there is one at a time."""
    if not released:
        raise RuntimeError("a snapshot of the tables is open: release it before the next one, and before a load")
