"""Disk space: estimates of what a preparation takes, and clear errors if there is too little."""

from __future__ import annotations

import errno
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data_prep.raw_log.log_files import PACKED_ENDINGS, PARQUET_ENDINGS, LogFile

_MIB = 1 << 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_WORDS = re.compile("No space left|No free disk|free space")  # in messages without errno; MindSpore stops at 10 MiB
_FULL_BYTES = _MIB  # a disk with less is full, whatever a library calls the error
# Criteo's log, 45,840,617 rows in 11.1 GB (packed 4.8 GB), is the measure for logs that were not read yet.
_TEXT_BYTES_A_ROW, _PACKED_BYTES_A_ROW = 243, 104
_COUNTS_BYTES_A_ROW = 60  # of the first pass's pieces, removed after it
_LEAST_FRACTION = 0.6  # of a row's bytes: its number is not written; in the zoo's layout small ids take fewer
# Rows in pieces and in no finished file yet: those of valid and test, of one file, of those that workers write, and
# those of workers ahead.
_PIECES_FRACTION, _PIECES_ROWS = 0.25, 4_000_000

log = logging.getLogger(__name__)


def guess_rows(files: Sequence[LogFile]) -> int:
    """Estimate a log's rows from its size."""
    packed = (*PACKED_ENDINGS, *PARQUET_ENDINGS, ".tgz")
    return sum(
        file.state.size // (_PACKED_BYTES_A_ROW if file.name.endswith(packed) else _TEXT_BYTES_A_ROW) for file in files
    )


def whole_bytes(num_rows: int, row_bytes: int, zoo_row_bytes: int = 0) -> int:
    """Estimate the most bytes that a preparation takes at any moment.

    `zoo_row_bytes` is a row's size in the zoo's layout, which is written from finished files in ours.
    """
    pieces_rows = min(num_rows, int(num_rows * _PIECES_FRACTION) + _PIECES_ROWS)
    beside = max(pieces_rows * row_bytes, num_rows * _COUNTS_BYTES_A_ROW, num_rows * zoo_row_bytes)
    return num_rows * row_bytes + beside


def least_bytes(num_rows: int, row_bytes: int, zoo_row_bytes: int = 0) -> int:
    """Return a lower bound for the bytes of the finished folder."""
    return int(num_rows * (row_bytes + zoo_row_bytes) * _LEAST_FRACTION)


def warn_of_little_room(folder: Path, needed: int) -> None:
    """Log a warning if the disk of `folder` has less than the estimate `needed` in all."""
    if _missing(folder, needed) > 0:
        log.warning("%s may not fit: about %s are needed, %s are free", folder, _text(needed), _text(_free(folder)))


def check_room(folder: Path, needed: int) -> None:
    """Raise OSError if `needed` bytes in all cannot fit, before time is spent."""
    if _missing(folder, needed) > 0:
        raise _no_space(folder, needed)


@contextmanager
def explain_full_disk(folder: Path, needed: int) -> Iterator[None]:
    """Turn any error of a full disk into one with the bytes still missing of `needed` and what to do.

    The same for a file that may not grow further.
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
