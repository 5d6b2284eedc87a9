"""Room on the disk: how much a preparation takes, and a clear error where there is too little.

Letters: n rows.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data_prep.raw_log.files import PACKED_ENDINGS, PARQUET_ENDINGS, LogFile

_MIB = 1 << 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_WORDS = re.compile("No space left|No free disk|free space")  # of libraries without errno; MindSpore stops at 10 MiB
_FULL_BYTES = _MIB  # less than that is a full disk, whatever words a library has for it
# Of Criteo's log, to guess the rows of a log that has not been read: 45,840,617 rows are 11.1 GB, packed 4.8 GB.
_TEXT_BYTES_A_ROW, _PACKED_BYTES_A_ROW = 243, 104
_COUNTS_BYTES_A_ROW = 60  # of the pieces of the first reading, gone when it is over
_LEAST_SHARE = 0.6  # of a row's bytes: its number is not written; in the zoo's layout small ids take fewer
# Rows that are in pieces and in no finished file at a time: those of valid and test, of a file, and workers ahead.
_PIECES_SHARE, _PIECES_ROWS = 0.25, 3_000_000

log = logging.getLogger(__name__)


def guess_rows(files: Sequence[LogFile]) -> int:
    """About how many rows a log has, from its size."""
    packed = (*PACKED_ENDINGS, *PARQUET_ENDINGS, ".tgz")
    return sum(
        file.state.size // (_PACKED_BYTES_A_ROW if file.name.endswith(packed) else _TEXT_BYTES_A_ROW) for file in files
    )


def whole_bytes(num_rows: int, row_bytes: int, zoo_row_bytes: int = 0) -> int:
    """About what a preparation of so many rows takes at its worst moment, all in all.

    `zoo_row_bytes` are those of a row in the zoo's layout, which is written from whole files of ours.
    """
    pieces_rows = min(num_rows, int(num_rows * _PIECES_SHARE) + _PIECES_ROWS)
    beside = max(pieces_rows * row_bytes, num_rows * _COUNTS_BYTES_A_ROW, num_rows * zoo_row_bytes)
    return num_rows * row_bytes + beside


def least_bytes(num_rows: int, row_bytes: int, zoo_row_bytes: int = 0) -> int:
    """What so many rows surely take."""
    return int(num_rows * (row_bytes + zoo_row_bytes) * _LEAST_SHARE)


def warn_of_little_room(folder: Path, needed: int) -> None:
    """Say so where the disk of `folder` has less than a guess of what is needed in all."""
    if _missing(folder, needed) > 0:
        log.warning("%s may not fit: about %s are needed, %s are free", folder, _text(needed), _text(_free(folder)))


def check_room(folder: Path, needed: int) -> None:
    """Raise OSError where what is surely needed in all cannot fit, before time is spent."""
    if _missing(folder, needed) > 0:
        raise _no_space(folder, needed)


@contextmanager
def explain_full_disk(folder: Path, needed: int) -> Iterator[None]:
    """Any error of a full disk in the block as one that says how much is `needed` in all, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE or _WORDS.search(str(error)) or _free(folder) < _FULL_BYTES:
            raise _no_space(folder, needed) from error
        raise


def _no_space(folder: Path, needed: int) -> OSError:
    more = max(needed - _used(folder), _MIB)
    return OSError(
        f"no space left for {folder}: about {_text(more)} more are needed, {_text(_free(folder))} are free. Make room "
        "and run the same command again: what is finished is kept"
    )


def _missing(folder: Path, needed: int) -> int:
    return needed - _used(folder) - _free(folder)


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _text(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:,.0f} MiB"
