"""Read the first rows of a log, to check it before all of it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from data_prep.kernels.parsed import Chunk, FileOfLog
from data_prep.options.log_format import LogFormat
from data_prep.raw_log.log_files import LogFile
from data_prep.raw_log.reading import file_of_log, first_chunks

_CHUNK_BYTES = 1 << 20
# Read to estimate the number of lines: a stream reads ahead, and the bytes that wait there must not weigh much.
_ESTIMATE_BYTES = 8 << 20

Item = TypeVar("Item")


@dataclass(frozen=True)
class FileSample:
    """The first lines of a file of the log, and the number of lines in some of its stored bytes."""

    file: LogFile
    chunk: Chunk | None  # None for an empty file
    num_lines: int
    stored_bytes_read: int
    is_whole: bool

    @property
    def estimated_lines(self) -> float:
        """Lines of the whole file, if the others are as long as these."""
        if self.is_whole:
            return self.num_lines
        return self.num_lines * self.file.state.size / max(self.stored_bytes_read, 1)


def spread(items: Sequence[Item], most: int) -> Sequence[Item]:
    """Return all items, or `most` of them from the first to the last at even distances."""
    if len(items) <= most:
        return items
    return [items[place * (len(items) - 1) // max(most - 1, 1)] for place in range(most)]


def sample_log(
    files: Sequence[LogFile], log_format: LogFormat, num_rows: int, estimate_bytes: int = _ESTIMATE_BYTES
) -> Iterator[FileSample]:
    """Yield the first lines of each file, `num_rows` in all. Of more files than rows, only the first are read.

    At least `estimate_bytes` of each file are read, to estimate its number of lines.
    """
    each = max(num_rows // len(files), 1)
    for index, file in enumerate(files[:num_rows]):
        name = file.name if len(files) > 1 else ""
        of_log = file_of_log(index, name, 0, file, log_format)
        yield _sample(file, of_log, log_format, each, estimate_bytes)


def _sample(file: LogFile, of_log: FileOfLog, log_format: LogFormat, num_rows: int, estimate_bytes: int) -> FileSample:
    parts: list[bytes] = []
    num_lines = bytes_read = 0
    is_whole, is_bare = True, False
    with closing(first_chunks(file, log_format, of_log, _CHUNK_BYTES)) as chunks:
        for reader, task in chunks:
            if num_lines < num_rows:
                chunk = task.load()
                parts.append(chunk.lines)
                is_bare = chunk.is_bare
            num_lines, bytes_read = num_lines + task.num_lines, reader.stored_bytes_read
            if num_lines > num_rows and bytes_read >= estimate_bytes:
                is_whole = False
                break
    if not num_lines:
        return FileSample(file, None, 0, bytes_read, is_whole)
    num_kept = min(num_rows, num_lines)  # every line of a chunk has its end
    lines = b"".join(parts).split(b"\n", num_kept)[:num_kept]
    chunk = Chunk(0, num_kept, b"\n".join(lines) + b"\n", of_log, is_bare)
    return FileSample(file, chunk, num_lines, bytes_read, is_whole)
