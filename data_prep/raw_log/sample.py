"""Read the first rows of each file of a log, so that the log can be checked before it is read completely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from data_prep.kernels.parsed import Chunk, FileOfLog
from data_prep.options.log_format import LogFormat
from data_prep.raw_log.reading import file_of_log, first_chunks
from data_prep.raw_log.storage import LogFile

_CHUNK_BYTES = 1 << 20
# Number of bytes of a file that are read to estimate its number of lines. A stream reads ahead, so the number must be
# large compared to its buffer.
_ESTIMATE_BYTES = 8 << 20


@dataclass(frozen=True)
class FileSample:
    """The first lines of a file of the log, and figures to estimate its number of lines."""

    file: LogFile
    chunk: Chunk | None  # The first lines, or None for an empty file.
    num_lines: int  # Number of lines in the stored bytes that were read.
    stored_bytes_read: int
    is_whole: bool  # True if the whole file was read.

    @property
    def estimated_lines(self) -> float:
        """Estimated number of lines of the whole file, under the assumption that all lines have the same length."""
        if self.is_whole:
            return self.num_lines
        return self.num_lines * self.file.state.size / max(self.stored_bytes_read, 1)


def sample_log(
    files: Sequence[LogFile], log_format: LogFormat, num_rows: int, estimate_bytes: int = _ESTIMATE_BYTES
) -> Iterator[FileSample]:
    """Yield the first lines of each file, with `num_rows` lines in total.

    If there are more files than rows, only the first `num_rows` files are read. At least `estimate_bytes` of each file
    are read, to estimate its number of lines.
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
    num_kept = min(num_rows, num_lines)  # Every line of a chunk ends in a line end, so splitting finds them all.
    lines = b"".join(parts).split(b"\n", num_kept)[:num_kept]
    chunk = Chunk(0, num_kept, b"\n".join(lines) + b"\n", of_log, is_bare)
    return FileSample(file, chunk, num_lines, bytes_read, is_whole)
