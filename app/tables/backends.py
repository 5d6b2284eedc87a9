"""Choose the backend of the host tables by the run's settings, and construct its tables."""

from __future__ import annotations

import logging
from typing import NamedTuple

from app.config.config import Backend
from app.tables.interface import HostTables, TableRates, TablesSpec
from app.tables.optimizers import StepHistory
from app.tables.parts import PartTables

log = logging.getLogger(__name__)


def pick_backend(setting: Backend, fold_numeric: bool, num_ranks: int = 1, fits_stock: bool = True) -> str:
    """Return the name of the table backend for the setting `tables.backend`.

    "auto" gives the fastest backend that is available. It gives `stock` (tables inside MindSpore's graph) only if this
    backend supports all settings of the run (`app.training.validate.fits_stock`), or if no other backend can be used.
    Raise OSError if the setting is "native" and the library is missing. `app.training.validate` checks the combination
    of settings.
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
    from app.tables.native.history import NativeStepHistory

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
