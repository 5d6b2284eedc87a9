"""Divide `memory_limit`: the number of workers, the size of chunks, and the memory for counts of values.

The constants are upper bounds of measurements (Pss, so that shared pages count once).
"""

from __future__ import annotations

import ctypes

from data_prep.options.prepare_options import PrepareOptions

_MIB = 1 << 20
_LIMIT_FOR_LARGE_CHUNKS = 2048 * _MIB
_LARGE_CHUNK_BYTES, _SMALL_CHUNK_BYTES = 8 * _MIB, 2 * _MIB
_COUNTER_BYTES = 200 * _MIB  # the main process in the first pass: Python, its libraries, results in transit
_WRITER_BYTES = 600 * _MIB  # and in the second pass, most of it MindSpore's
_WORKER_BYTES_A_CHUNK_BYTE = 10  # a chunk's text, columns, rows and results; less with native kernels
_WORKER_BYTES = 40 * _MIB  # Python and NumPy
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Let glibc keep freed memory, so that the arrays of a chunk or a block reuse those of the last one.

    Else it returns these megabytes to the system and gets them back, cleared, for the next chunk: a sixth of the whole
    preparation's time.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the largest that it takes
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def give_back_freed_memory() -> None:
    """Return freed memory to the system: between the passes, that of the counts."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def chunk_bytes(options: PrepareOptions) -> int:
    """Return the size of a chunk of the log in bytes."""
    return _LARGE_CHUNK_BYTES if options.memory_limit_bytes >= _LIMIT_FOR_LARGE_CHUNKS else _SMALL_CHUNK_BYTES


def check_limit(options: PrepareOptions) -> None:
    """Raise MemoryError if `memory_limit` is too low to write any log, before time is spent on one."""
    if options.memory_limit_bytes < _WRITER_BYTES:
        raise MemoryError(
            f"prepare.memory_limit={options.memory_limit} is too low: MindSpore and the process itself take "
            f"{_WRITER_BYTES / _MIB:,.0f} MiB; a usual limit is '1 GiB' or more"
        )


def counting_workers(options: PrepareOptions, num_cores: int, chunk_bytes: int) -> int:
    """Return the workers of the first pass: as many as asked for, or as cores, in at most half of the memory."""
    room = (options.memory_limit_bytes - _COUNTER_BYTES) // 2 // worker_bytes(chunk_bytes)
    return max(1, min(options.workers or num_cores, room))


def counts_bytes(options: PrepareOptions, num_workers: int, chunk_bytes: int) -> int:
    """Return the bytes for counts in the first pass: half of what is left, as a merge needs them twice."""
    left = options.memory_limit_bytes - _COUNTER_BYTES - num_workers * worker_bytes(chunk_bytes)
    return max(left, 0) // 2


def encoding_workers(
    options: PrepareOptions, num_workers: int, chunk_bytes: int, window_bytes: int, lookup_bytes: int
) -> int:
    """Return the workers of the second pass, at most `num_workers`; 1 is the main process itself.

    Raises MemoryError if the limit is too low for that too.
    """
    needed = _WRITER_BYTES + window_bytes + lookup_bytes
    left = options.memory_limit_bytes - needed
    if left < 0:
        raise MemoryError(
            f"prepare.memory_limit={options.memory_limit} is too low: writing takes {needed / _MIB:,.0f} MiB, "
            f"{window_bytes / _MIB:,.0f} of them for the window of shuffled rows and {lookup_bytes / _MIB:,.0f} for "
            "the vocabulary; raise the limit, or lower prepare.shuffle_window_rows or raise prepare.min_count"
        )
    return max(1, min(num_workers, left // worker_bytes(chunk_bytes)))


def worker_bytes(chunk_bytes: int) -> int:
    """Return the memory of a worker. In the second pass, the workers of a machine share the vocabulary besides."""
    return _WORKER_BYTES + _WORKER_BYTES_A_CHUNK_BYTE * chunk_bytes
