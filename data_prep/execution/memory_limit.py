"""Divide `memory_limit`: the number of workers, the size of chunks, and the memory for counts of values.

The constants are upper bounds of measurements (Pss, so that shared pages count once).
"""

from __future__ import annotations

import math

from data_prep.options.prepare_options import PrepareOptions

_MIB = 1 << 20
_LIMIT_FOR_LARGE_CHUNKS = 2048 * _MIB
_LARGE_CHUNK_BYTES, _SMALL_CHUNK_BYTES = 8 * _MIB, 2 * _MIB
_MAIN_BYTES = 200 * _MIB  # the main process: Python, its libraries, results in transit
_ZOO_BYTES = 420 * _MIB  # MindSpore, which reads the rows again for the zoo's layout
_FILE_BYTES = 60 * _MIB  # a file that is written, besides its window of rows: packed rows, pages, the library
_WORKER_BYTES_A_CHUNK_BYTE = 10  # a chunk's text, columns, rows and results; less with native kernels
# Besides, for lists their values' places and columns of ids, for crosses their texts and counts.
_LIST_BYTES_A_CHUNK_BYTE, _LIST_BYTES_A_POSITION = 24, 12
_CROSSED_BYTES_A_ROW, _CROSS_BYTES_A_ROW = 200, 50  # for all crosses together, and for each
_COMBINATION_BYTES = 120  # of values of lists that are crossed: its text, with the places of its values
_LINE_BYTES_A_COLUMN = 4  # short cells: the more rows are in a chunk
_LEAST_CHUNK_BYTES = 256 << 10
_WORKER_BYTES = 40 * _MIB  # Python and NumPy


def chunk_bytes(options: PrepareOptions) -> int:
    """Return the size of a chunk of the log in bytes: less if lists and crosses take more memory for each."""
    usual = _LARGE_CHUNK_BYTES if options.memory_limit_bytes >= _LIMIT_FOR_LARGE_CHUNKS else _SMALL_CHUNK_BYTES
    return max(usual * _WORKER_BYTES_A_CHUNK_BYTE // _worker_bytes_a_chunk_byte(options), _LEAST_CHUNK_BYTES)


def check_limit(options: PrepareOptions) -> None:
    """Raise MemoryError if `memory_limit` is too low to write any log, before time is spent on one."""
    needed = _writing_bytes(options)
    if options.memory_limit_bytes < needed:
        raise MemoryError(
            f"prepare.memory_limit={options.memory_limit} is too low: the process itself takes "
            f"{needed / _MIB:,.0f} MiB; a usual limit is '1 GiB' or more"
        )


def counting_workers(options: PrepareOptions, num_cores: int, chunk_bytes: int) -> int:
    """Return the workers of the first pass: as many as asked for, or as cores, in at most half of the memory."""
    room = (options.memory_limit_bytes - _MAIN_BYTES) // 2 // worker_bytes(options, chunk_bytes)
    return max(1, min(options.workers or num_cores, room))


def counts_bytes(options: PrepareOptions, num_workers: int, chunk_bytes: int) -> int:
    """Return the bytes for counts in the first pass: half of what is left, as a merge needs them twice."""
    room = options.memory_limit_bytes - _MAIN_BYTES - num_workers * worker_bytes(options, chunk_bytes)
    return max(room, 0) // 2


def encoding_workers(
    options: PrepareOptions, num_workers: int, chunk_bytes: int, window_bytes: int, lookup_bytes: int
) -> tuple[int, int]:
    """Return the workers of the second pass, at most `num_workers`, and how many of them may write a file at a time.

    1 worker is the main process itself. Raises MemoryError if the limit is too low for that too.
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
    """Return the memory of a worker. In the second pass, the workers of a machine share the vocabulary besides."""
    return _WORKER_BYTES + _worker_bytes_a_chunk_byte(options) * chunk_bytes


def _worker_bytes_a_chunk_byte(options: PrepareOptions) -> int:
    list_positions = options.num_positions - len(options.categorical_columns)
    of_row = _LIST_BYTES_A_POSITION * list_positions
    of_row += (_CROSSED_BYTES_A_ROW + _CROSS_BYTES_A_ROW * len(options.crosses)) * bool(options.crosses)
    of_rows = -(-of_row // (_LINE_BYTES_A_COLUMN * len(options.data.columns)))
    of_rows += math.ceil(_COMBINATION_BYTES * _combinations_a_chunk_byte(options))
    return _WORKER_BYTES_A_CHUNK_BYTE + _LIST_BYTES_A_CHUNK_BYTE * bool(list_positions) + of_rows


def _combinations_a_chunk_byte(options: PrepareOptions) -> float:
    """Return the most combinations of lists for a byte of text: of equally long lists, whose values take two each."""
    crossed = [column for column in options.categorical_columns if column.cross and column.is_list]
    num_lists = [sum(options.data.columns.get(part) == "list" for part in column.cross) for column in crossed]
    lengths = [column.max_length ** (1 / count) for column, count in zip(crossed, num_lists, strict=True)]
    return sum(length ** (count - 1) / (2 * count) for length, count in zip(lengths, num_lists, strict=True))
