"""Divide the setting `memory_limit` into a number of workers, a chunk size, and memory for counts of values.

The constants are upper bounds of measurements (Pss, in which shared pages count once).
"""

from __future__ import annotations

import math

from data_prep.options.prepare_options import PrepareOptions

_MIB = 1 << 20
_LIMIT_FOR_LARGE_CHUNKS = 2048 * _MIB
_LARGE_CHUNK_BYTES, _SMALL_CHUNK_BYTES = 8 * _MIB, 2 * _MIB
_MAIN_BYTES = 200 * _MIB  # Memory of the main process: Python, its libraries, and results in transit.
_ZOO_BYTES = 420 * _MIB  # Memory of MindSpore, which reads the rows again for the zoo's layout.
# Memory for a file that is written, without its window of rows: packed rows, pages, and the library.
_FILE_BYTES = 60 * _MIB
# Memory of a worker per byte of a chunk: text, columns, rows and results. Native kernels take less.
_WORKER_BYTES_A_CHUNK_BYTE = 10
# Additional memory if there are lists, per byte of a chunk and per position of a row, for the positions of their
# values and their columns of ids.
_LIST_BYTES_A_CHUNK_BYTE, _LIST_BYTES_A_POSITION = 24, 12
# Additional memory per row if there are crosses, for all crosses together and for each: their texts and counts.
_CROSSED_BYTES_A_ROW, _CROSS_BYTES_A_ROW = 200, 50
# Memory for each combination of values of crossed lists: its text, and the positions of its values.
_COMBINATION_BYTES = 120
# Assumed bytes of a line per column. Cells are assumed to be short, so that a chunk has many rows.
_LINE_BYTES_A_COLUMN = 4
_LEAST_CHUNK_BYTES = 256 << 10
_WORKER_BYTES = 40 * _MIB  # Memory of a worker for Python and NumPy.


def chunk_bytes(options: PrepareOptions) -> int:
    """Return the size of a chunk of the log in bytes.

    Chunks are smaller if lists and crosses take more memory for each byte.
    """
    usual = _LARGE_CHUNK_BYTES if options.memory_limit_bytes >= _LIMIT_FOR_LARGE_CHUNKS else _SMALL_CHUNK_BYTES
    return max(usual * _WORKER_BYTES_A_CHUNK_BYTE // _worker_bytes_a_chunk_byte(options), _LEAST_CHUNK_BYTES)


def check_limit(options: PrepareOptions) -> None:
    """Raise MemoryError if `memory_limit` is too low for any log, before time is spent on one."""
    needed = _writing_bytes(options)
    if options.memory_limit_bytes < needed:
        raise MemoryError(
            f"prepare.memory_limit={options.memory_limit} is too low: the process itself takes "
            f"{needed / _MIB:,.0f} MiB; a usual limit is '1 GiB' or more"
        )


def counting_workers(options: PrepareOptions, num_cores: int, chunk_bytes: int) -> int:
    """Return the number of workers of the first pass.

    It is the number that the user asked for, or the number of cores, as long as the workers fit into half of the
    memory.
    """
    room = (options.memory_limit_bytes - _MAIN_BYTES) // 2 // worker_bytes(options, chunk_bytes)
    return max(1, min(options.workers or num_cores, room))


def counts_bytes(options: PrepareOptions, num_workers: int, chunk_bytes: int) -> int:
    """Return the number of bytes for counts in the first pass.

    It is half of the remaining memory, because a merge needs the counts twice.
    """
    room = options.memory_limit_bytes - _MAIN_BYTES - num_workers * worker_bytes(options, chunk_bytes)
    return max(room, 0) // 2


def encoding_workers(
    options: PrepareOptions, num_workers: int, chunk_bytes: int, window_bytes: int, lookup_bytes: int
) -> tuple[int, int]:
    """Return the number of workers of the second pass, and how many of them may write a file at a time.

    There are at most `num_workers`. One worker means that the main process does the work itself. Raise MemoryError
    if the limit is too low even for that.
    """
    needed = _writing_bytes(options) + window_bytes + lookup_bytes
    room = options.memory_limit_bytes - needed
    if room < 0:
        raise MemoryError(
            f"prepare.memory_limit={options.memory_limit} is too low: writing takes {needed / _MIB:,.0f} MiB, "
            f"{window_bytes / _MIB:,.0f} of them for the window of shuffled rows and {lookup_bytes / _MIB:,.0f} for "
            "the vocabulary; raise the limit, or lower prepare.shuffle_window_rows or raise prepare.min_count"
        )
    of_worker = worker_bytes(options, chunk_bytes)
    workers = max(1, min(num_workers, room // of_worker))
    other_files = max(room - workers * of_worker, 0) // (_FILE_BYTES + window_bytes)
    return workers, min(workers, 1 + other_files)


def _writing_bytes(options: PrepareOptions) -> int:
    """Return the memory of the main process and of one file that is written, without rows."""
    return _MAIN_BYTES + _FILE_BYTES + (_ZOO_BYTES if options.layout == "zoo" else 0)


def worker_bytes(options: PrepareOptions, chunk_bytes: int) -> int:
    """Return the memory of one worker.

    In the second pass, the workers of a machine additionally share the vocabulary.
    """
    return _WORKER_BYTES + _worker_bytes_a_chunk_byte(options) * chunk_bytes


def _worker_bytes_a_chunk_byte(options: PrepareOptions) -> int:
    list_positions = options.num_positions - len(options.categorical_columns)
    of_row = _LIST_BYTES_A_POSITION * list_positions
    of_row += (_CROSSED_BYTES_A_ROW + _CROSS_BYTES_A_ROW * len(options.crosses)) * bool(options.crosses)
    of_rows = -(-of_row // (_LINE_BYTES_A_COLUMN * len(options.data.columns)))
    of_rows += math.ceil(_COMBINATION_BYTES * _combinations_a_chunk_byte(options))
    return _WORKER_BYTES_A_CHUNK_BYTE + _LIST_BYTES_A_CHUNK_BYTE * bool(list_positions) + of_rows


def _combinations_a_chunk_byte(options: PrepareOptions) -> float:
    """Return the largest number of combinations of crossed lists per byte of text.

    It is reached by lists of equal length whose values take two bytes each.
    """
    crossed = [column for column in options.categorical_columns if column.cross and column.is_list]
    num_lists = [sum(options.data.columns.get(part) == "list" for part in column.cross) for column in crossed]
    lengths = [column.max_length ** (1 / count) for column, count in zip(crossed, num_lists, strict=True)]
    return sum(length ** (count - 1) / (2 * count) for length, count in zip(lengths, num_lists, strict=True))
