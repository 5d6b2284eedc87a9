"""Read a text file of the raw log and cut it into chunks of whole lines.

The file may be compressed by gzip or zstd, or be in a `.tar.gz`. It is decompressed in memory, never to disk. The
library ISA-L decompresses gzip in less than half of the time that zlib takes.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import logging
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

from isal.igzip import IGzipFile
from isal.igzip_lib import IsalError

from data_prep.kernels.parse import quoted_cells
from data_prep.kernels.parsed import MAX_LINE_BYTES, ONLY_FILE, Chunk, FileOfLog
from data_prep.options.log_format import LogFormat
from data_prep.raw_log import storage
from data_prep.raw_log.formats import PACKED, PACKED_ENDINGS, START_BYTES, TAR_ENDINGS, binary_kind
from data_prep.raw_log.storage import Fingerprint, LogFile, StoredFile

log = logging.getLogger(__name__)
_READ_BYTES = 1 << 20
_SHORT_LINE_BYTES = 16  # Each line is assumed to have at least this many bytes, even if the log has few columns.
# If the first line does not contain the names of the columns, this many of the next lines are searched for them, so
# that an error message can say in which line they are.
MOST_LINES_BEFORE = 10
# Byte order marks by which a file in UTF-32 or UTF-16 is recognized. UTF-32 comes first, because its mark begins with
# the mark of UTF-16.
_MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32"}
_MARKS |= {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_TO_UTF8 = "convert it to UTF-8: iconv -f {} -t UTF-8 OLD > NEW"
NUL_BYTES = (
    "NUL bytes: it is no text, but for example a database or a file of another packer, to be unpacked or written as "
    f"CSV or Parquet first, or it is UTF-16: {_TO_UTF8.format('UTF-16LE')} (UTF-16BE if its first byte is NUL)"
)


_LOG_STEM = "train"  # In an archive, the log is the file with this name and any ending.
# Limits for the files (members) in an archive. The archive of a log has a few members with short names. An archive
# beyond these limits was probably made to fill the memory.
_MOST_MEMBERS = 10_000
# Maximum size in bytes of an extension header of a file in a tar archive. It contains a long name or pax attributes.
_MOST_EXTENSION_BYTES = 1 << 20
_MOST_EXTENSIONS = 8  # Maximum number of extension headers of a file in a tar archive.
_NAMES_SHOWN = 20


@dataclass(frozen=True)
class StoredChunk:
    """The position of a chunk of lines in an uncompressed file. A worker reads the lines from the file itself."""

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
            raise ValueError(storage.changed_while_read(self.location)) from error
        if len(lines) != self.num_bytes or not lines.endswith(b"\n"):
            raise ValueError(storage.changed_while_read(self.location))
        return Chunk(self.first_line, self.num_lines, with_constants(lines, self.file.at_end), self.file)


@dataclass
class TextReader:
    """Reads a text file of the log once, from its first line to its last."""

    stored: StoredFile
    stream: io.BufferedIOBase
    plain_location: str | None  # Path or URI of the file, or None if it is compressed.
    before: bytes  # The bytes of the byte order mark and the header, as far as the file has them.
    # Assumed minimum length of a line in bytes. It limits the number of lines that a worker gets at a time.
    least_line_bytes: int = 1
    # Function that raises ValueError if a cell of a line differs from the value that the name of the file's folder,
    # such as date=2026-11-01, gives to the cell's column. None if no line has such a column.
    check: Callable[[bytes], None] | None = None
    fingerprint: Fingerprint | None = None  # Size and checksum of the stored file, or None until all of it was read.

    @property
    def is_plain(self) -> bool:
        return self.plain_location is not None

    @property
    def stored_bytes_read(self) -> int:
        return self.stored.bytes_read

    def chunks(
        self, chunk_bytes: int, file: FileOfLog = ONLY_FILE
    ) -> Iterator[tuple[Chunk | StoredChunk, StoredChunk | None]]:
        """Cut the file at line ends into chunks of about `chunk_bytes` bytes. Yield two objects for each chunk.

        The first object is what a worker needs in this pass over the log: the lines, or their position in the file.
        The second is the position from which a worker can read the chunk in a later pass, or None if there is none.
        Chunks with very short lines are smaller, because every line costs memory besides its bytes. If the last line
        has no line end, it gets one. Raise ValueError if the file is damaged.
        """
        # All chunks share one buffer, because allocating memory takes longer than reading. After each chunk, the bytes
        # after its last line end are moved to the front of the buffer. The buffer only grows if a line is longer than a
        # chunk.
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
                if self.check is not None:
                    self.check(bytes(memoryview(buffer)[start:end]))
                stored = None
                if self.plain_location is not None and not num_dropped:
                    stored = StoredChunk(self.plain_location, offset, end - start, first_line, num_lines, file)
                # A worker reads its chunk of a local file again, which is faster than sending the bytes to it. If the
                # bytes came over a network, they are sent to the worker instead.
                if stored and not storage.is_uri(stored.location):
                    yield stored, stored
                else:
                    lines = with_constants(bytes(memoryview(buffer)[start:end]), file.at_end)
                    yield Chunk(first_line, num_lines, lines, file), stored
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
            lines = bytes(buffer[: min(filled, MAX_LINE_BYTES + 1)]) + b"\n"
            if self.check is not None:
                self.check(lines)
            yield Chunk(first_line, 1, with_constants(lines, file.at_end), file), None


def with_constants(lines: bytes, at_end: bytes) -> bytes:
    """Return `lines` with the text `at_end` inserted at the end of each line. Each line then ends in `\\n`."""
    return lines.replace(b"\r\n", b"\n").replace(b"\n", at_end + b"\n") if at_end else lines


def cells_at_end(cells: Iterable[str], separator: str, quotes: bool) -> bytes:
    """Return the text that adds the given cells at the end of a line: a separator and the cell, for each cell.

    If `quotes` is True, a cell with a separator or a double quote is put in quotes. If it is False, raise ValueError if
    a cell contains the separator.
    """
    text = ""
    for cell in cells:
        if separator in cell and not quotes:
            raise ValueError(
                f"the name of a folder has the text {cell!r}, which contains the separator {separator!r} of the log; "
                "set quotes: true in the description (--data), if no cell begins with a double quote"
            )
        doubled = cell.replace('"', '""')
        text += separator + (f'"{doubled}"' if quotes and (separator in cell or doubled != cell) else cell)
    return text.encode()


@contextmanager
def open_reader(file: LogFile, log_format: LogFormat) -> Iterator[TextReader]:
    """Open a text file of the log, and yield a reader that reads it once from start to end.

    Raise ValueError, also inside the `with` block, if the file is damaged, has vanished, is not text, or is an archive
    without a log.
    """
    with _stored(file) as (stored, buffered):
        with unpacked(file.location, buffered) as stream:
            _check_text(file.location, stream)
            plain_location = file.location if stream is buffered else None
            # A short cell takes two bytes of its line: a character, and the separator or line end after it.
            least_line_bytes = max(2 * len(log_format.columns), _SHORT_LINE_BYTES)
            before = _skip_header(file, stream, log_format)
            check = _check_of_constants(file, before, log_format)
            reader = TextReader(stored, stream, plain_location, before, least_line_bytes, check)
            yield reader
        reader.fingerprint = stored.fingerprint()


@contextmanager
def _stored(file: LogFile) -> Iterator[tuple[StoredFile, io.BufferedReader[Any]]]:
    with ExitStack() as opened:
        try:
            stored = StoredFile(opened.enter_context(storage.open_stream(file.location)))
        except FileNotFoundError as error:
            raise ValueError(storage.changed_while_read(file.location)) from error
        try:
            yield stored, io.BufferedReader(stored, _READ_BYTES)
        except DAMAGED as error:
            raise ValueError(
                f"{file.location} is damaged or was not downloaded to its end ({error}, after {stored.bytes_read:,} "
                "bytes); fetch it again and compare its size with the server's"
            ) from error


def _check_of_constants(file: LogFile, before: bytes, log_format: LogFormat) -> Callable[[bytes], None] | None:
    """Return a function that raises ValueError if cells in lines differ from the names of the file's folders.

    They differ if, for example, the column date has another cell than 2026-11-01 in the folder date=2026-11-01. Return
    None if the file itself has no column that its folders give. `before` is the header of the file.
    """
    names = _names_in(before, log_format) if log_format.header and file.constants else []
    own = {names.index(name): text for name, text in file.constants if name in names}
    missing = dict.fromkeys(log_format.missing, "")

    def check(lines: bytes) -> None:
        for line in lines.split(b"\n")[:-1]:
            cells = _names_in(line, log_format)
            for place, text in own.items() if len(cells) == len(names) else ():
                expected = text.strip(" ") if log_format.trim else text
                if missing.get(cells[place], cells[place]) != missing.get(expected, expected):
                    raise ValueError(storage.contradiction(file, names[place], cells[place]))

    return check if own else None


def _skip_header(file: LogFile, stream: Any, log_format: LogFormat) -> bytes:
    """Read a byte order mark, and the header if the format has one, from the stream. Return the bytes that were read.

    Raise ValueError if the file is UTF-16 or UTF-32, or if its header does not have the columns of the format.
    """
    location, constants = file.location, dict(file.constants)
    if not log_format.header:
        start = stream.peek(4)[:4]
        _check_encoding(location, start)
        return bytes(stream.read(len(codecs.BOM_UTF8))) if start.startswith(codecs.BOM_UTF8) else b""
    line = stream.readline(MAX_LINE_BYTES)
    _check_encoding(location, line)
    names = _names_in(line, log_format)
    expected = [name for name in log_format.columns if name not in constants or name in names]
    ignored = log_format.others == "ignored"
    is_good = all(names.count(name) == 1 for name in expected) if ignored else names == expected
    if line and not is_good:
        missing = [f"{name} (there twice)" * (name in names) or name for name in expected if names.count(name) != 1]
        unknown = [name for name in names if name not in expected and log_format.others == "refused"]
        advice = "; with others: ignored in that file columns are taken by name, in any order" * (not missing)
        advice += "; each file of the log needs the line of names" * (len(missing) == len(expected))
        advice += storage.where_folders_have(location, missing)
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
    """Raise ValueError if a file of the log, once decompressed, begins with the signature of a binary format."""
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
    """Return the names of the columns that the first line of a text file contains.

    Raise ValueError as `open_reader` does, for example if the file is damaged.
    """
    with _stored(file) as (_, buffered), unpacked(file.location, buffered) as stream:
        _check_text(file.location, stream)
        line = stream.readline(MAX_LINE_BYTES)
        _check_encoding(file.location, line)
        first_row = stream.readline(MAX_LINE_BYTES)
        return tuple(columns_of_header(_names_in(line, log_format), _names_in(first_row, log_format)))


def columns_of_header(names: list[str], first_row: list[str]) -> list[str]:
    """Return the names of a file's columns, given the names in its header and the cells of its first row.

    Only one of the two lines may end in additional separators. If the first row does, its additional columns, which are
    empty, get the name "". If the header does, its additional names, which are empty, are removed.
    """
    more = len(first_row) - len(names)
    if more > 0 and not any(cell.strip(" ") for cell in first_row[-more:]):
        return [*names, *[""] * more]
    return names[:more] if more < 0 and not any(names[more:]) else names


def _listed(what: str, names: list[str]) -> str:
    return f"{what}: {', '.join(names)[:500]}; " if names else ""


@contextmanager
def unpacked(location: str, stored: io.BufferedReader[Any]) -> Iterator[io.BufferedIOBase]:
    """Yield the decompressed text of a file of the log. The ending of the file's name says how it is compressed.

    `stored` is the open file. Raise ValueError if the content does not match the ending. Errors of the types in
    `DAMAGED` mean that the file is damaged.
    """
    name = storage.file_name(location)
    if name.endswith(PACKED_ENDINGS) and not stored.peek(1):
        raise ValueError(f"{location} has 0 bytes, which is not even an empty packed file; fetch it again")
    for ending, magic in PACKED.items():
        if name.endswith((ending, *TAR_ENDINGS * (ending == ".gz"))) and not magic.match(
            start := stored.peek(START_BYTES)
        ):
            what = binary_kind(start) or "if it is plain text, rename it without that ending"
            raise ValueError(f"{location} does not hold what the ending {ending} of its name says: {what}")
    if name.endswith(TAR_ENDINGS):
        with IGzipFile(fileobj=stored) as unzipped, _log_in_tar(location, unzipped) as text:
            yield text
    elif name.endswith(".gz"):
        with IGzipFile(fileobj=stored) as unzipped:
            yield unzipped
    elif name.endswith(".zst"):
        yield io.BufferedReader(_Zstd(stored, location), _READ_BYTES)
    else:
        yield stored


class BadZstd(Exception):
    """Raised if a zstd file is damaged, in place of pyarrow's OSError, which may also have other causes."""


# Types of errors that mean a damaged or truncated file. `cast` is needed because isal's type stub does not declare its
# error as a class.
DAMAGED: tuple[type[Exception], ...] = (
    EOFError,
    gzip.BadGzipFile,
    cast("type[Exception]", IsalError),
    tarfile.TarError,
    BadZstd,
)


class _Zstd(io.RawIOBase):
    """A stream of the text in a zstd file, which pyarrow decompresses.

    The package zstandard is not used, because it does not notice that a file is truncated.
    """

    def __init__(self, stored: io.BufferedIOBase, location: str) -> None:
        import pyarrow as pa

        self._location = location
        self._stream = pa.CompressedInputStream(pa.PythonFile(stored, "r"), "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            text = self._stream.read(len(buffer))
        except OSError as error:
            if "too much memory" in str(error):
                raise ValueError(
                    f"{self._location} was packed with a window above 128 MiB (zstd --long=28 or more), which is not "
                    "read; pack it again: zstd -dc --long=31 OLD.zst | zstd > NEW.zst"
                ) from error
            if "ZSTD" in str(error) or "compressed stream" in str(error):
                raise BadZstd(error) from error
            raise
        memoryview(buffer)[: len(text)] = text
        return len(text)


class _Distrusted(ValueError):
    """Raised if a tar archive contains a file that the archive of a log would not have, and that may be an attack."""


class _Member(tarfile.TarInfo):
    """A member (file or folder) of a tar archive. The size and the number of its extension headers are limited.

    Without these limits, the module tarfile would read any number of headers of any size into memory.
    """

    def _proc_member(self, archive: Any) -> Any:
        is_extension = self.type in (*tarfile.GNU_TYPES, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        archive.num_extensions = archive.num_extensions + 1 if is_extension else 0
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _Distrusted(f"{self.name!r} is sparse: a few bytes that unpack to any number")
        if self.size < 0:
            raise _Distrusted(f"{self.name!r} has a size below 0")
        if is_extension and self.size > _MOST_EXTENSION_BYTES:
            raise _Distrusted(f"{self.name!r} has a header of {self.size:,} bytes, at most {_MOST_EXTENSION_BYTES:,}")
        if archive.num_extensions > _MOST_EXTENSIONS:
            raise _Distrusted(f"{self.name!r} has more than {_MOST_EXTENSIONS} headers")
        return super()._proc_member(archive)  # type: ignore[misc]

    def _refuse_sparse(self, following: tarfile.TarInfo, *_: object) -> None:
        raise _Distrusted(f"{following.name!r} is sparse: a few bytes that unpack to any number")

    # pax headers can declare a sparse member in three ways. All of them are refused.
    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


class _Archive(tarfile.TarFile):
    tarinfo = _Member
    num_extensions = 0  # Number of extension headers that were read for the next member.


@contextmanager
def _log_in_tar(location: str, unzipped: io.BufferedIOBase) -> Iterator[io.BufferedIOBase]:
    """Yield a stream of the log in a tar archive. The archive is read once, from start to end.

    At the end of the `with` block, the rest of the archive is read and checked. Raise ValueError if the archive has no
    log, has two logs, or has a dangerous member (a link, a device, a sparse file, or a path outside the folder).
    """
    try:
        with _Archive.open(fileobj=unzipped, mode="r|", bufsize=_READ_BYTES) as archive:
            members = _safe_members(archive)
            names = []
            for member in members:
                names.append(member.name)
                if _is_log(member):
                    stream = archive.extractfile(member)
                    assert stream is not None
                    yield cast(io.BufferedIOBase, stream)
                    break
            else:
                shown = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
                raise ValueError(
                    f"{location} holds no file named {_LOG_STEM}, with any ending; it holds: {shown or 'nothing'}. "
                    "Unpack it and give the log itself"
                )
            for member in members:
                if _is_log(member):
                    raise ValueError(
                        f"{location} holds {_LOG_STEM} twice, as {names[-1]} and {member.name}; unpack it and give the "
                        "right file"
                    )
    except _Distrusted as error:
        raise ValueError(f"{location} is not trusted: its member {error}; get the archive again") from error
    while unzipped.read(_READ_BYTES):  # Read the rest of the archive, so that gzip's checksum at its end is verified.
        pass


def _is_log(member: tarfile.TarInfo) -> bool:
    return member.isfile() and PurePosixPath(member.name).stem == _LOG_STEM


def _safe_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield each member (file or folder) of a tar archive after a check that the member is not dangerous.

    Raise _Distrusted if there are too many members, or for a member that is a link or a device, or whose path would
    lead out of the folder into which the archive is unpacked.
    """
    for number in itertools.count():
        member = archive.next()
        if member is None:
            return
        archive.members.clear()  # type: ignore[attr-defined]  # tarfile would keep all members in memory.
        target = PurePosixPath(member.name)
        if number == _MOST_MEMBERS:
            raise _Distrusted(f"{member.name!r} is one of more than {_MOST_MEMBERS:,}")
        if target.is_absolute() or ".." in target.parts:
            raise _Distrusted(f"{member.name!r} is a path that leaves the folder")
        if not (member.isfile() or member.isdir()):
            raise _Distrusted(f"{member.name!r} is {'a link' if member.islnk() or member.issym() else 'a device'}")
        yield member
