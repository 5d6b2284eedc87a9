"""The first rows of a log, for those who want to judge it before they read all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from data_prep.log_files import LogFile
from data_prep.log_format import LogFormat
from data_prep.raw_log import open_log
from data_prep.rows import Chunk, FileOfLog

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileSample:
    """The first lines of a file of the log, and how many of its bytes, as stored, were read for them."""

    file: LogFile
    chunk: Chunk | None  # None of an empty file
    stored_bytes_read: int
    is_whole: bool

    @property
    def estimated_lines(self) -> float:
        """Of the whole file, if its other lines are as long as these."""
        if self.chunk is None or self.is_whole:
            return self.chunk.num_lines if self.chunk else 0
        return self.chunk.num_lines * self.file.state.size / max(self.stored_bytes_read, 1)


def sample_log(files: Sequence[LogFile], log_format: LogFormat, num_rows: int) -> Iterator[FileSample]:
    """The first lines of each file, `num_rows` in all; of the first files only, where these are more than rows."""
    each = max(num_rows // len(files), 1)
    for place, file in enumerate(files[:num_rows]):
        of_log = FileOfLog(place, file.name if len(files) > 1 else "", num_header_lines=int(log_format.header))
        yield _sample(file, of_log, log_format, each)


class _Enough(Exception):
    """Ends a reading without reading the file to its end."""


def _sample(file: LogFile, of_log: FileOfLog, log_format: LogFormat, num_rows: int) -> FileSample:
    parts: list[bytes] = []
    num_lines = bytes_read = 0
    is_whole = True
    with suppress(_Enough), open_log(file, log_format) as reader:
        for task, _ in reader.chunks(_CHUNK_BYTES, of_log):
            chunk = task.load()
            parts.append(chunk.lines)
            num_lines, bytes_read = num_lines + chunk.num_lines, reader.stored_bytes_read
            if num_lines > num_rows:
                is_whole = False
                raise _Enough
    if not num_lines:
        return FileSample(file, None, bytes_read, is_whole)
    lines = b"".join(parts)
    if num_lines > num_rows:
        kept = b"\n".join(lines.split(b"\n", num_rows)[:num_rows]) + b"\n"
        bytes_read, lines, num_lines = round(bytes_read * len(kept) / len(lines)), kept, num_rows
    return FileSample(file, Chunk(0, num_lines, lines, of_log), bytes_read, is_whole)
