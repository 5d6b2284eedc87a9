"""Read a text file of the raw log and cut it into chunks of whole lines.

The text may be compressed by gzip or zstd, or be in a `.tar.gz`. It is never decompressed to disk.
"""

from __future__ import annotations

import codecs
import io
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from data_prep.kernels.parse import quoted_cells
from data_prep.kernels.parsed import MAX_LINE_BYTES, ONLY_FILE, Chunk, FileOfLog
from data_prep.options.log_format import LogFormat
from data_prep.raw_log import storage
from data_prep.raw_log.compression import DAMAGED, unpacked
from data_prep.raw_log.formats import binary_kind
from data_prep.raw_log.storage import Fingerprint, LogFile, StoredFile, changed_while_read

log = logging.getLogger(__name__)
_READ_BYTES = 1 << 20
_SHORT_LINE_BYTES = 16  # Lower bound for the assumed length of a line, for logs with few columns.
MOST_LINES_BEFORE = 10  # Maximum number of other lines before the line of names that an error message can point out.
# The first bytes of files in other encodings. UTF-32 comes first, because its mark begins with the mark of UTF-16.
_MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32"}
_MARKS |= {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_TO_UTF8 = "convert it to UTF-8: iconv -f {} -t UTF-8 OLD > NEW"
NUL_BYTES = (
    "NUL bytes: it is no text, but for example a database or a file of another packer, to be unpacked or written as "
    f"CSV or Parquet first, or it is UTF-16: {_TO_UTF8.format('UTF-16LE')}"
)


@dataclass(frozen=True)
class StoredChunk:
    """The position of a chunk in an uncompressed file. A worker reads the bytes itself, so they need not be sent."""

    location: str
    offset: int
    num_bytes: int
    first_line: int
    num_lines: int
    file: FileOfLog = ONLY_FILE

    def load(self) -> Chunk:
        """Read the chunk's lines from the file. Raise ValueError if the file has changed or vanished."""
        try:
            lines = storage.read_range(self.location, self.offset, self.num_bytes)
        except FileNotFoundError as error:
            raise ValueError(changed_while_read(self.location)) from error
        if len(lines) != self.num_bytes or not lines.endswith(b"\n"):
            raise ValueError(changed_while_read(self.location))
        return Chunk(self.first_line, self.num_lines, lines, self.file)


@dataclass
class TextReader:
    """Reader of a text file of the log, which is read once from its first line to its last."""

    stored: StoredFile
    stream: io.BufferedIOBase
    plain_location: str | None  # Location of the file, or None if it is compressed.
    before: bytes  # Byte order mark and header, if the file has them.
    # Assumed minimum length of a line. It limits the number of lines in a chunk.
    least_line_bytes: int = 1
    fingerprint: Fingerprint | None = None  # Set once the whole file has been read.

    @property
    def is_plain(self) -> bool:
        return self.plain_location is not None

    @property
    def stored_bytes_read(self) -> int:
        return self.stored.bytes_read

    def chunks(
        self, chunk_bytes: int, file: FileOfLog = ONLY_FILE
    ) -> Iterator[tuple[Chunk | StoredChunk, StoredChunk | None]]:
        """Cut the file at line ends into chunks of about `chunk_bytes` bytes, and yield them as tasks.

        Each task comes with its position in the file if a worker can read it there, otherwise with None. Chunks with
        very short lines are smaller, because every line costs memory besides its bytes. A last line without line end
        gets one. Raise ValueError if the file is damaged.
        """
        # All chunks share one buffer, since allocating memory takes longer than reading. After each chunk, the bytes
        # after its last line end are moved to the front. The buffer only grows for a line longer than a chunk.
        buffer, filled, num_dropped = bytearray(chunk_bytes), 0, 0
        most_lines = max(chunk_bytes // self.least_line_bytes, 1)
        offset, first_line, names = len(self.before), file.first_line, self.before.removeprefix(codecs.BOM_UTF8)
        while num_read := self.stream.readinto(memoryview(buffer)[filled:]):
            filled += num_read
            start, last = 0, buffer.rfind(b"\n", 0, filled) + 1
            if names and (at := buffer.find(names, 0, last)) >= 0:
                row, names = first_line - file.first_line + buffer.count(b"\n", 0, at), b""
                log.warning("line %s of %s has the names again: remove it there", row + 2, file.name or "the log")
            while start < last:
                end = last
                while (num_lines := buffer.count(b"\n", start, end)) > most_lines:
                    half = (start + end) // 2
                    end = (buffer.rfind(b"\n", start, half) + 1) or (buffer.find(b"\n", start) + 1)
                stored = None
                if self.plain_location is not None and not num_dropped:
                    stored = StoredChunk(self.plain_location, offset, end - start, first_line, num_lines, file)
                # The worker of a chunk reads a local file again, which is faster than sending the bytes. Bytes that
                # came over a network are sent instead.
                if stored and not storage.is_uri(stored.location):
                    yield stored, stored
                else:
                    yield Chunk(first_line, num_lines, bytes(memoryview(buffer)[start:end]), file), stored
                first_line += num_lines
                offset += end - start + num_dropped
                start, num_dropped = end, 0
            if last:
                buffer[: filled - last] = buffer[last:filled]
                filled -= last
            elif filled == len(buffer) > MAX_LINE_BYTES + 1:
                # The parser rejects a line of this length in any case, so the bytes beyond it are dropped.
                num_dropped += filled - MAX_LINE_BYTES - 1
                filled = MAX_LINE_BYTES + 1
            elif filled == len(buffer):
                buffer.extend(bytes(filled))
        if filled:
            yield Chunk(first_line, 1, bytes(buffer[: min(filled, MAX_LINE_BYTES + 1)]) + b"\n", file), None


@contextmanager
def open_reader(file: LogFile, log_format: LogFormat) -> Iterator[TextReader]:
    """Open a text file of the log for reading it once.

    Raise ValueError, also inside the `with` block, if the file is damaged, has vanished, is not text, or is an archive
    without a log.
    """
    with _stored(file) as (stored, buffered):
        with unpacked(file.location, buffered) as stream:
            _check_text(file.location, stream)
            plain_location = file.location if stream is buffered else None
            # Every cell of a line takes at least a byte, including the separator after it.
            least_line_bytes = max(len(log_format.columns), _SHORT_LINE_BYTES)
            before = _skip_header(file.location, stream, log_format)
            reader = TextReader(stored, stream, plain_location, before, least_line_bytes)
            yield reader
        reader.fingerprint = stored.fingerprint()


@contextmanager
def _stored(file: LogFile) -> Iterator[tuple[StoredFile, io.BufferedReader[Any]]]:
    with ExitStack() as opened:
        try:
            stored = StoredFile(opened.enter_context(storage.open_stream(file.location)))
        except FileNotFoundError as error:
            raise ValueError(changed_while_read(file.location)) from error
        try:
            yield stored, io.BufferedReader(stored, _READ_BYTES)
        except DAMAGED as error:
            raise ValueError(
                f"{file.location} is damaged or was not downloaded to its end ({error}, after {stored.bytes_read:,} "
                "bytes); fetch it again and compare its size with the server's"
            ) from error


def _skip_header(location: str, stream: Any, log_format: LogFormat) -> bytes:
    """Skip a byte order mark, and the header if the format has one. Return the skipped bytes.

    Raise ValueError if the file is UTF-16, or if its header does not have the columns of the format.
    """
    if not log_format.header:
        start = stream.peek(4)[:4]
        _check_encoding(location, start)
        return bytes(stream.read(len(codecs.BOM_UTF8))) if start.startswith(codecs.BOM_UTF8) else b""
    line = stream.readline(MAX_LINE_BYTES)
    _check_encoding(location, line)
    expected = list(log_format.columns)
    names = _names_in(line, log_format)
    ignored = log_format.others == "ignored"
    is_good = all(names.count(name) == 1 for name in expected) if ignored else names == expected
    if line and not is_good:
        missing = [f"{name} (there twice)" * (name in names) or name for name in expected if names.count(name) != 1]
        unknown = [name for name in names if name not in expected and log_format.others == "refused"]
        advice = "; with others: ignored in that file columns are taken by name, in any order" * (not missing)
        advice += "; each file of the log needs the line of names" * (len(missing) == len(expected))
        later = (_names_in(stream.readline(MAX_LINE_BYTES), log_format) for _ in range(MOST_LINES_BEFORE))
        if found := [number for number, names_there in enumerate(later, 2) if {*expected} <= {*names_there}]:
            advice += f"; they stand in line {found[0]}: remove the lines before it: tail -n +{found[0]} OLD > NEW"
        raise ValueError(
            f"{location}: its first line names other columns than {log_format.origin}: "
            f"{_listed('not found', missing)}{_listed('not expected', unknown)}found {', '.join(names)[:500]}; "
            f"expected {', '.join(expected)}, between {log_format.separator!r}{advice}"
        )
    return bytes(line)


def _check_text(location: str, stream: Any) -> None:
    """Raise ValueError if the decompressed log begins with the bytes of a binary file format."""
    if what := binary_kind(stream.peek(64)):
        raise ValueError(f"{location} is no text: {what}")


def _check_encoding(location: str, start: bytes) -> None:
    name = next((name for mark, name in _MARKS.items() if start.startswith(mark)), "")
    if name and b"\0" in start:
        raise ValueError(f"{location} is {name}, by its first bytes; {_TO_UTF8.format(name)}")


def _names_in(line: bytes, log_format: LogFormat) -> list[str]:
    text = line.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")
    cells = quoted_cells(text, log_format) if log_format.quotes else None
    names = [cell.decode(errors="replace") for cell in cells or text.split(log_format.separator.encode())]
    return [name.strip(" ") for name in names] if log_format.trim else names


def header_columns(file: LogFile, log_format: LogFormat) -> tuple[str, ...]:
    """Return the names of the columns of a text file from its first line. Raise the errors of `open_reader`."""
    with _stored(file) as (_, buffered), unpacked(file.location, buffered) as stream:
        _check_text(file.location, stream)
        line = stream.readline(MAX_LINE_BYTES)
        _check_encoding(file.location, line)
        first_row = stream.readline(MAX_LINE_BYTES)
        return tuple(columns_of_header(_names_in(line, log_format), _names_in(first_row, log_format)))


def columns_of_header(names: list[str], first_row: list[str]) -> list[str]:
    """Return the names of a file's columns from its header `names` and its first row.

    Only one of the two lines may end in additional separators. Columns in the first row that have no name and no value
    get the name "". Names after the end of the first row are removed if they are empty.
    """
    more = len(first_row) - len(names)
    if more > 0 and not any(cell.strip(" ") for cell in first_row[-more:]):
        return [*names, *[""] * more]
    return names[:more] if more < 0 and not any(names[more:]) else names


def _listed(what: str, names: list[str]) -> str:
    return f"{what}: {', '.join(names)[:500]}; " if names else ""
