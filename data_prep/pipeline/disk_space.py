"""Estimate the disk space that a preparation needs, and raise clear errors if there is too little."""

from __future__ import annotations

import errno
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data_prep.raw_log.formats import PACKED_ENDINGS, format_of
from data_prep.raw_log.storage import LogFile

_MIB = 1 << 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Words of a full disk in error messages without errno. MindSpore stops writing when 10 MiB are free.
_WORDS = re.compile("No space left|No free disk|free space")
# A disk with fewer free bytes counts as full, whatever error a library raises.
_FULL_BYTES = _MIB
# Bytes of a row of a log that was not read yet, as measured on Criteo's log: 45,840,617 rows are 11.1 GB as text and
# 4.8 GB compressed.
_TEXT_BYTES_A_ROW, _PACKED_BYTES_A_ROW = 243, 104
# Bytes per row of the first pass's temporary files, which are removed after that pass.
_COUNTS_BYTES_A_ROW = 60
# A finished folder takes at least this fraction of the rows' bytes: line numbers are not written, and the zoo's
# layout stores small ids in fewer bytes.
_LEAST_FRACTION = 0.6
# Estimate of the rows that are in temporary files at the same time: this fraction of the log (valid and test), and this
# number of rows (of the files being written and of the chunks encoded ahead).
_PIECES_FRACTION, _PIECES_ROWS = 0.25, 4_000_000

log = logging.getLogger(__name__)


def guess_rows(files: Sequence[LogFile]) -> int:
    """Estimate the number of rows of a log from the sizes of its files."""
    return sum(
        file.state.size // (_PACKED_BYTES_A_ROW if is_packed else _TEXT_BYTES_A_ROW)
        for file in files
        for is_packed in [file.name.endswith(PACKED_ENDINGS) or not format_of(file.location).has_lines]
    )


def whole_bytes(num_rows: int, row_bytes: int, zoo_row_bytes: int = 0) -> int:
    """Estimate the peak disk usage of a preparation in bytes.

    `zoo_row_bytes` is the size of a row in the zoo's layout, or 0. Files in that layout are written from finished
    files in the usual layout, so both exist at the same time.
    """
    pieces_rows = min(num_rows, int(num_rows * _PIECES_FRACTION) + _PIECES_ROWS)
    beside = max(pieces_rows * row_bytes, num_rows * _COUNTS_BYTES_A_ROW, num_rows * zoo_row_bytes)
    return num_rows * row_bytes + beside


def least_bytes(num_rows: int, row_bytes: int, zoo_row_bytes: int = 0) -> int:
    """Return a lower bound of the finished folder's size in bytes."""
    return int(num_rows * (row_bytes + zoo_row_bytes) * _LEAST_FRACTION)


def warn_of_little_room(folder: Path, needed: int) -> None:
    """Log a warning if `folder` may outgrow its disk.

    `needed` is the estimated peak size of the folder in bytes, including the files that it already holds.
    """
    if _missing(folder, needed) > 0:
        log.warning("%s may not fit: about %s are needed, %s are free", folder, _text(needed), _text(_free(folder)))


def check_room(folder: Path, needed: int) -> None:
    """Raise OSError if the disk has no room for `folder` to grow to `needed` bytes in all."""
    if _missing(folder, needed) > 0:
        raise _no_space(folder, needed)


@contextmanager
def explain_full_disk(folder: Path, needed: int) -> Iterator[None]:
    """Replace errors about a full disk in the block by an OSError that says how many bytes are missing.

    `needed` is the size in bytes that `folder` is expected to reach. An error about a file that exceeds the largest
    allowed file size is replaced in the same way.
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
