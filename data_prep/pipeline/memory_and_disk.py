"""Divide the memory of a preparation among its processes, and estimate the disk space that the preparation needs.

The setting `memory_limit` decides the number of workers, the chunk size, and the memory for counts of values. The
constants in this file are upper bounds of measured memory (Pss, in which each shared page counts once). If the disk has
too little room, error messages say how much is needed.
"""

from __future__ import annotations

import errno
import logging
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data_prep.options.prepare_options import PrepareOptions
from data_prep.raw_log.formats import PACKED_ENDINGS, format_of
from data_prep.raw_log.storage import LogFile

_MIB = 1 << 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# An error without errno counts as an error about a full disk if its message contains one of these texts. MindSpore
# stops writing when less than 10 MiB are free, and reports it in such a message.
_WORDS = re.compile("No space left|No free disk|free space")
# A disk with fewer free bytes counts as full, whatever error a library raises.
_FULL_BYTES = _MIB
# Assumed bytes per row of a log that was not read yet, as text and compressed. The figures were measured on Criteo's
# log: 45,840,617 rows are 11.1 GB as text and 4.8 GB compressed.
_TEXT_BYTES_A_ROW, _PACKED_BYTES_A_ROW = 243, 104
# Estimated bytes per row of the temporary files of the first pass over the log, which counts values. The files are
# removed after that pass.
_COUNTS_BYTES_A_ROW = 60
# A finished folder takes at least this fraction of `encoded_row_bytes` times the rows: the line numbers of training
# rows are not written, and the layout of MindSpore's model zoo stores small ids in fewer bytes.
_LEAST_FRACTION = 0.6
# Estimate of how many rows are in temporary files at the same time: this fraction of the log's rows, which become valid
# and test, plus this number of rows, for files that are being written and chunks that were encoded in advance.
_PIECES_FRACTION, _PIECES_ROWS = 0.25, 4_000_000

log = logging.getLogger(__name__)


_LIMIT_FOR_LARGE_CHUNKS = 2048 * _MIB
_LARGE_CHUNK_BYTES, _SMALL_CHUNK_BYTES = 8 * _MIB, 2 * _MIB
_MAIN_BYTES = 200 * _MIB  # Memory of the main process: Python, its libraries, and results that workers have sent.
_ZOO_BYTES = 420 * _MIB  # Memory of MindSpore, which reads all rows again to rewrite them for its model zoo.
# Memory to write one MindRecord file: packed rows, pages, and MindSpore's library. The training rows that are shuffled
# together (a window) take additional memory.
_FILE_BYTES = 60 * _MIB
# Bytes of memory that a worker takes for each byte of the chunk of the log that it processes: text, columns, rows and
# results. Native kernels take less.
_WORKER_BYTES_A_CHUNK_BYTE = 10
# Additional memory if the log has list columns. The first number is in bytes per byte of a chunk, for the positions of
# the lists' values in the text. The second number is in bytes per id of a row, for the ids of the lists.
_LIST_BYTES_A_CHUNK_BYTE, _LIST_BYTES_A_POSITION = 24, 12
# Additional memory per row for the texts and counts of crosses. The first number counts once if there are any crosses,
# the second number once for each cross.
_CROSSED_BYTES_A_ROW, _CROSS_BYTES_A_ROW = 200, 50
# Bytes of memory for each combination of values from crossed lists: the text of the combination, and the indices of its
# values in the lists.
_COMBINATION_BYTES = 120
# Assumed bytes of a line per column, to estimate the number of rows in a chunk of the log. The number is low, so that
# the number of rows is not underestimated.
_LINE_BYTES_A_COLUMN = 4
_LEAST_CHUNK_BYTES = 256 << 10
_WORKER_BYTES = 40 * _MIB  # Memory of a worker for Python and NumPy.


def guess_rows(files: Sequence[LogFile]) -> int:
    """Estimate the number of rows of a log from the sizes of its files."""
    return sum(
        file.state.size // (_PACKED_BYTES_A_ROW if is_packed else _TEXT_BYTES_A_ROW)
        for file in files
        for is_packed in [file.name.endswith(PACKED_ENDINGS) or not format_of(file.location).has_lines]
    )


def whole_bytes(num_rows: int, row_bytes: int, zoo_row_bytes: int = 0) -> int:
    """Return the estimated peak disk usage in bytes of a preparation of `num_rows` rows of `row_bytes` bytes each.

    `zoo_row_bytes` is the size of a row in the layout of MindSpore's model zoo, or 0 if that layout is not asked for.
    Files in that layout are made from finished files in the usual layout, so both exist at the same time.
    """
    pieces_rows = min(num_rows, int(num_rows * _PIECES_FRACTION) + _PIECES_ROWS)
    beside = max(pieces_rows * row_bytes, num_rows * _COUNTS_BYTES_A_ROW, num_rows * zoo_row_bytes)
    return num_rows * row_bytes + beside


def least_bytes(num_rows: int, row_bytes: int, zoo_row_bytes: int = 0) -> int:
    """Return a lower bound of the size in bytes of a finished folder with `num_rows` rows of `row_bytes` bytes each.

    `zoo_row_bytes` is the size of a row in the layout of MindSpore's model zoo, or 0 if that layout is not asked for.
    """
    return int(num_rows * (row_bytes + zoo_row_bytes) * _LEAST_FRACTION)


def warn_of_little_room(folder: Path, needed: int) -> None:
    """Log a warning if the disk may have too little space for the files that a preparation will write into `folder`.

    `needed` is the estimated peak size of the folder in bytes, including the files that it already holds.
    """
    if _missing(folder, needed) > 0:
        log.warning("%s may not fit: about %s are needed, %s are free", folder, _text(needed), _text(_free(folder)))


def check_room(folder: Path, needed: int) -> None:
    """Raise OSError if the disk has no room for the files in `folder` to grow to `needed` bytes in all."""
    if _missing(folder, needed) > 0:
        raise _no_space(folder, needed)


@contextmanager
def explain_full_disk(folder: Path, needed: int) -> Iterator[None]:
    """Replace errors about a full disk in the `with` block by an OSError that says how many bytes are missing.

    `needed` is the size in bytes that `folder` is expected to reach. An error about a file that exceeds the largest
    allowed file size is replaced by an OSError that says how to raise that limit.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise OSError(
                f"cannot write {error.filename or folder}: a file may not grow that long, by `ulimit -f` or the file "
                "system. Raise the limit (ulimit -f unlimited) and run the same command again: what is finished is kept"
            ) from error
        if error.errno in _NO_SPACE or _WORDS.search(str(error)) or _free(folder) < _FULL_BYTES:
            raise _no_space(folder, needed, f" ({error})") from error
        raise


def _no_space(folder: Path, needed: int, fault: str = "") -> OSError:
    more = max(needed - _bytes_of_files(folder), _MIB)
    return OSError(
        f"no space left for {folder}{fault}: about {_text(more)} more are needed, {_text(_free(folder))} are free. "
        "Make room and run the same command again: what is finished is kept"
    )


def _missing(folder: Path, needed: int) -> int:
    return needed - _bytes_of_files(folder) - _free(folder)


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _bytes_of_files(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _text(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:,.0f} MiB"


def chunk_bytes(options: PrepareOptions) -> int:
    """Return the size in bytes of the chunks into which a preparation cuts the log.

    The size depends on `memory_limit`. If the log has lists or crosses, which take more memory per byte of text, the
    size is smaller.
    """
    usual = _LARGE_CHUNK_BYTES if options.memory_limit_bytes >= _LIMIT_FOR_LARGE_CHUNKS else _SMALL_CHUNK_BYTES
    return max(usual * _WORKER_BYTES_A_CHUNK_BYTE // _worker_bytes_a_chunk_byte(options), _LEAST_CHUNK_BYTES)


def check_limit(options: PrepareOptions) -> None:
    """Raise MemoryError if `memory_limit` is too low for the preparation of any log, however small the log is."""
    needed = _writing_bytes(options)
    if options.memory_limit_bytes < needed:
        raise MemoryError(
            f"prepare.memory_limit={options.memory_limit} is too low: the process itself takes "
            f"{needed / _MIB:,.0f} MiB; a usual limit is '1 GiB' or more"
        )


def counting_workers(options: PrepareOptions, num_cores: int, chunk_bytes: int) -> int:
    """Return the number of worker processes for the first pass over the log.

    The number is at least 1. It is what the user asked for, by default the number of cores, but at most as many workers
    as fit into half of the memory that `memory_limit` leaves beside the main process.
    """
    room = (options.memory_limit_bytes - _MAIN_BYTES) // 2 // worker_bytes(options, chunk_bytes)
    return max(1, min(options.workers or num_cores, room))


def counts_bytes(options: PrepareOptions, num_workers: int, chunk_bytes: int) -> int:
    """Return the number of bytes of memory that counts of values may take in the first pass.

    Counts may take half of the memory that `memory_limit` leaves beside the main process and the workers, because a
    merge of counts takes twice the memory of the counts.
    """
    room = options.memory_limit_bytes - _MAIN_BYTES - num_workers * worker_bytes(options, chunk_bytes)
    return max(room, 0) // 2


def encoding_workers(
    options: PrepareOptions, num_workers: int, chunk_bytes: int, window_bytes: int, lookup_bytes: int
) -> tuple[int, int]:
    """Return the number of workers for the second pass, and how many of them may write a file at the same time.

    There are at most `num_workers` workers. One worker means that the main process does the work itself. A chunk of the
    log has `chunk_bytes` bytes of text. `window_bytes` is the memory of the training rows that are shuffled together (a
    window), and `lookup_bytes` that of the vocabulary, which all workers share. Raise MemoryError if `memory_limit` is
    too low even for one worker.
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
    """Return the bytes of memory that the main process takes while one file is written.

    The memory of the training rows that are shuffled together (a window) is not included.
    """
    return _MAIN_BYTES + _FILE_BYTES + (_ZOO_BYTES if options.layout == "zoo" else 0)


def worker_bytes(options: PrepareOptions, chunk_bytes: int) -> int:
    """Return the memory in bytes that one worker takes, for chunks of the log of `chunk_bytes` bytes.

    In the second pass, the workers of a machine additionally share one copy of the vocabulary, which is not included.
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
    """Return how many combinations of values from crossed lists there can be at most per byte of the log's text.

    The worst case is lists of equal length whose values take two bytes each, with as many combinations as the cross's
    `max_length` allows.
    """
    crossed = [column for column in options.categorical_columns if column.cross and column.is_list]
    num_lists = [sum(options.data.columns.get(part) == "list" for part in column.cross) for column in crossed]
    lengths = [column.max_length ** (1 / count) for column, count in zip(crossed, num_lists, strict=True)]
    return sum(length ** (count - 1) / (2 * count) for length, count in zip(lengths, num_lists, strict=True))
