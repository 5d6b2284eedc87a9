"""A handle of the native library, and how its functions are called."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from app.config.optimizers import FtrlOptions
from app.tables.interface import TablesSpec
from app.tables.native_library import HANDLE, NO_MEMORY, OPTIMIZER_NUMBERS, UNKNOWN_ISA, Spec, load
from app.tables.optimizers import TableOptimizer


class NativeHandle:
    """Tables of the library in which no row is touched yet; destroyed with this object."""

    def __init__(self, spec: TablesSpec, num_threads: int) -> None:
        self._library = load()
        self._handle = self._create(spec, num_threads)

    def _create(self, spec: TablesSpec, num_threads: int) -> ctypes.c_void_p:
        handle = HANDLE()
        options = Spec(
            spec.vocabulary_size,
            spec.embedding_dim,
            spec.seed % 2**64,
            spec.initial_scale,
            num_threads,
            _optimizer_number(spec.wide_optimizer),
            _optimizer_number(spec.deep_optimizer),
            getattr(spec.wide_optimizer, "initial_accumulator", 0.0),
            getattr(spec.deep_optimizer, "initial_accumulator", 0.0),
        )
        status = self._library.host_tables_create(ctypes.byref(options), ctypes.byref(handle))
        if status == UNKNOWN_ISA:
            raise ValueError(
                f"HOST_TABLES_ISA={os.environ.get('HOST_TABLES_ISA')} is none of the instruction sets "
                "avx512, avx2, plain that this library and this machine have"
            )
        if status == NO_MEMORY:
            raise MemoryError("no memory for an empty table")
        return handle

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._library.host_tables_destroy(handle)

    def call(self, name: str, *arguments: Any) -> Any:
        """What `host_tables_<name>` returns for this handle; arrays go by their `address`, or as `room`."""
        return getattr(self._library, f"host_tables_{name}")(self._handle, *arguments)

    @property
    def instruction_set(self) -> str:
        """What the kernels use: avx512, avx2 or plain."""
        return str(self.call("isa").decode())


def _optimizer_number(options: TableOptimizer) -> int:
    scheduled = isinstance(options, FtrlOptions) and options.is_scheduled
    return OPTIMIZER_NUMBERS["scheduled_ftrl" if scheduled else options.name]
