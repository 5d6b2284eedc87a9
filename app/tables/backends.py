"""The backends of the host tables: which one a run uses, and its tables."""

from __future__ import annotations

import logging

from app.config.optimizer_settings import DeepOptimizer, FtrlOptions, LazyAdamOptions, WideOptimizer
from app.config.run_settings import Backend, TableDtype
from app.config.schedules import ConstantSchedule
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


def check_supported(
    wide: WideOptimizer,
    deep: DeepOptimizer,
    wide_l2_coef: float = 0.0,
    row_clip_value: float = 0.0,
    dtype: TableDtype = "float32",
) -> None:
    """Raise ValueError for settings that MindSpore's host operators do not have."""
    for section, options, supported in (("wide", wide, FtrlOptions), ("deep", deep, LazyAdamOptions)):
        if not isinstance(options, supported):
            raise ValueError(
                f"{section}_optimizer.name={options.name} is for tables.backend=native or reference; stock has "
                f"{supported.name} only, as MindSpore's host operators do"
            )
    if dtype != "float32":
        raise ValueError(f"tables.dtype={dtype} is for tables.backend=native or reference; stock has float32 only")
    if wide.schedule != ConstantSchedule():
        raise ValueError(
            f"wide_optimizer.schedule.name={wide.schedule.name} with warmup_steps={wide.schedule.warmup_steps} is for "
            "tables.backend=native or reference: on stock the learning rate of MindSpore's FTRL operator is fixed"
        )
    for setting, value in (("wide_l2_coef", wide_l2_coef), ("row_clip_value", row_clip_value)):
        if value:
            raise ValueError(f"loss.{setting}={value} is for tables.backend=native or reference; stock has none")


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
