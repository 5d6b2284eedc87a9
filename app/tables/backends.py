"""The backends of the host tables: which one a run uses, and its tables."""

from __future__ import annotations

import logging

from app.config.run_settings import Backend
from app.tables.interface import HostTables, TableRates, TablesSpec
from app.tables.optimizers import StepHistory
from app.tables.parts import PartTables

log = logging.getLogger(__name__)


def pick_backend(setting: Backend, fold_numeric: bool, num_ranks: int = 1, fits_stock: bool = True) -> str:
    """Return the backend to use: that of the setting, or for auto the fastest that is available.

    That is stock only if it has all that the settings ask for (`app.training.validate.fits_stock`), or no other can.

    Raises OSError if the wanted backend's library is missing. `app.training.validate` has the rules for settings.
    """
    backend: str = setting
    if setting == "auto":
        slower = "stock" if fits_stock or not fold_numeric else "reference"
        backend = "native" if fold_numeric and _native_works(slower) else slower
    if num_ranks > 1 and backend == "stock":  # of one process alone
        backend = "reference"
    if setting == "native":
        from app.tables.native import library

        library.LIBRARY.load()
    return backend


def pick_host_backend() -> str:
    """Return the fastest available backend whose tables live outside MindSpore's graph."""
    return "native" if _native_works("reference") else "reference"


def fastest_history() -> type[StepHistory]:
    """Return the class with which rows that lie outside tables catch up with `adam` the fastest here."""
    if not _native_works("reference"):
        return StepHistory
    from app.tables.native.history import NativeStepHistory

    return NativeStepHistory


def make_host_tables(backend: str, spec: TablesSpec, learning_rates: TableRates, num_threads: int) -> HostTables:
    """Make tables outside MindSpore's graph, by backend name (`native` or `reference`).

    Raise OSError if the native library is missing.
    """
    if spec.has_parts:
        return PartTables(spec, lambda part: make_host_tables(backend, part, learning_rates, num_threads))
    if backend == "native":
        from app.tables.native.tables import NativeTables

        return NativeTables(spec, learning_rates, num_threads)
    from app.tables.reference import ReferenceTables

    return ReferenceTables(spec, learning_rates)


def _native_works(otherwise: str) -> bool:
    from app.tables.native import library

    try:
        library.LIBRARY.load()
    except OSError as error:
        log.warning("warning: %s; continuing with the slower backend %s", error, otherwise)
        return False
    return True
