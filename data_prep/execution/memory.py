"""What `memory_limit` allows: how many workers, how large chunks, how much room for the counts of values.

The constants are upper bounds of what was measured (Pss, so that shared pages count once).
"""

from __future__ import annotations

import ctypes

from data_prep.options.prepare_options import PrepareOptions

_MIB = 1 << 20
LIMIT_FOR_EARLY_IMPORT = 2048 * _MIB  # below, the counts of the first reading need MindSpore's room
_LIMIT_FOR_LARGE_CHUNKS = 2048 * _MIB
_LARGE_CHUNK_BYTES, _SMALL_CHUNK_BYTES = 8 * _MIB, 2 * _MIB
_COUNTER_BYTES = 200 * _MIB  # the main process in the first reading: Python, its libraries, results under way
_WRITER_BYTES = 600 * _MIB  # and in the second, most of it MindSpore's
_WORKER_BYTES_A_CHUNK_BYTE = 10  # a chunk's text, columns and rows, and its results under way; less with native kernels
_WORKER_BYTES = 40 * _MIB  # Python and NumPy
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """For workers and the writer: a chunk's or a block's arrays take the place of the last one's.

    glibc would give each of these megabytes back to the system and get them again, cleared, for the next chunk:
    a sixth of the whole preparation's time.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the largest that it takes
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def give_back_freed_memory() -> None:
    """Between the readings: what the counts took is not needed again."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def chunk_bytes(options: PrepareOptions) -> int:
    """How large chunks of the log are."""
    return _LARGE_CHUNK_BYTES if options.memory_limit_bytes >= _LIMIT_FOR_LARGE_CHUNKS else _SMALL_CHUNK_BYTES


def check_limit(options: PrepareOptions) -> None:
    """Raise MemoryError where no log can be written within `memory_limit`, before time is spent on one."""
    if options.memory_limit_bytes < _WRITER_BYTES:
        raise MemoryError(
            f"prepare.memory_limit={options.memory_limit} is too low: MindSpore and the process itself take "
            f"{_WRITER_BYTES / _MIB:,.0f} MiB; a usual limit is '1 GiB' or more"
        )


def counting_workers(options: PrepareOptions, num_cores: int, chunk_bytes: int) -> int:
    """Workers of the first reading: as many as were asked for, or as there are cores, in at most half of the memory."""
    room = (options.memory_limit_bytes - _COUNTER_BYTES) // 2 // worker_bytes(chunk_bytes)
    return max(1, min(options.workers or num_cores, room))


def counts_bytes(options: PrepareOptions, num_workers: int, chunk_bytes: int) -> int:
    """Bytes that counts may take in the first reading: half of what is left, as a merge needs them twice."""
    left = options.memory_limit_bytes - _COUNTER_BYTES - num_workers * worker_bytes(chunk_bytes)
    return max(left, 0) // 2


def encoding_workers(
    options: PrepareOptions, num_workers: int, chunk_bytes: int, window_bytes: int, lookup_bytes: int
) -> int:
    """Workers of the second reading, at most `num_workers`; 1 is the main process itself.

    Raises MemoryError where the limit is too low for that too.
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
    """What a worker takes, wherever it is; the second reading's have the vocabulary besides, once a machine."""
    return _WORKER_BYTES + _WORKER_BYTES_A_CHUNK_BYTE * chunk_bytes
