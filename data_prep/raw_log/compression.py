"""Decompress a stored file while it is read: gzip, zstd, or a member of a tar archive.

Nothing is decompressed to disk. ISA-L reads gzip in less than half of zlib's time.
"""

from __future__ import annotations

import gzip
import io
import itertools
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, cast

from isal.igzip import IGzipFile
from isal.igzip_lib import IsalError

from data_prep.raw_log import storage
from data_prep.raw_log.log_files import PACKED_ENDINGS, TAR_ENDINGS

_READ_BYTES = 1 << 20
_LOG_STEM = "train"  # Name of the log in an archive, without its ending.
# Limits for the members of an archive. An archive of a log has a few members with short names. An archive beyond these
# limits was probably made to fill the memory.
_MOST_MEMBERS = 10_000
_MOST_EXTENSION_BYTES = 1 << 20  # Maximum size of an extension header of a member, such as a long name or a pax header.
_MOST_EXTENSIONS = 8  # Maximum number of extension headers of a member.
_NAMES_SHOWN = 20

# First bytes of compressed files, with the endings of their names.
ENDINGS = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
_PACKED = {".gz": re.compile(rb"\x1f\x8b"), ".zst": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")}
# Binary file formats: a regular expression for the first bytes, the name of the format, and advice what to do. The
# first expression that matches counts. Letters with which a text could begin only match together with bytes that no
# text contains.
_WITH_NUL = rb"(?=[^\0]*\0)"
_REPACK = "pack it by gzip or zstd instead: {} OLD | gzip > NEW.gz"
_FRAME = "make it Parquet: {}.to_parquet(NEW)"
_ARROW = "make it Parquet: pyarrow.parquet.write_table({}, NEW)"
_BINARY = [
    *(
        (re.escape(magic), "packed", f"rename it to end in {ending}, or unpack it once if it does")
        for magic, ending in ENDINGS.items()
    ),
    (rb"PAR1[\0-\x1f]", "Parquet", "rename it to end in .parquet"),
    (
        rb"PK\x03\x04.{26}(\[Content_Types\]|_rels|docProps|xl/)",
        "an Excel file",
        _FRAME.format("pandas.read_excel(OLD)"),
    ),
    (rb"PK\x03\x04.{26}[^/\0]*\.npy", "arrays of NumPy", _FRAME.format("pandas.DataFrame(dict(numpy.load(OLD)))")),
    (rb"PK\x03\x04", "a ZIP archive", _REPACK.format("unzip -p")),
    (rb"BZh[1-9]1AY&", "packed by bzip2", _REPACK.format("bzcat")),
    (rb"\xfd7zXZ\0", "packed by xz", _REPACK.format("xzcat")),
    (rb"\x04\x22\x4d\x18", "packed by lz4", _REPACK.format("lz4 -dc")),
    (rb"7z\xbc\xaf\x27\x1c", "packed by 7-Zip", _REPACK.format("7z x -so")),
    (rb"ARROW1\0\0|FEA1\0", "Feather (Arrow's file format)", _ARROW.format("pyarrow.feather.read_table(OLD)")),
    (rb"\xff{4}", "an Arrow stream", _ARROW.format("pyarrow.ipc.open_stream(OLD).read_all()")),
    (_WITH_NUL + rb"ORC", "ORC", _ARROW.format("pyarrow.orc.read_table(OLD)")),
    (rb"Obj\x01", "Avro", "make it Parquet: polars.read_avro(OLD).write_parquet(NEW)"),
    (rb"SQLite format 3\0", "a SQLite database", "sqlite3 -header -csv OLD 'SELECT * FROM TABLE' > NEW.csv"),
    (rb"\x80[\x02-\x05]", "a pickle", f"{_FRAME.format('pandas.read_pickle(OLD)')}, if you trust its writer"),
    (rb".{8}DUCK", "a DuckDB database", "duckdb OLD -c \"COPY TABLE TO 'NEW.parquet'\""),
    (rb".{257}ustar", "a tar archive without compression", "give the files in it: tar -xf OLD; or gzip OLD"),
    (rb"(?i)\s*<(!doctype|html|table|\?xml)", "HTML or XML", "if a download failed, look at what the page says"),
    (rb"%PDF-", "a PDF document", "look for the table that it was made from"),
    (rb"\x89HDF\r\n", "HDF5", _FRAME.format("pandas.read_hdf(OLD)")),
    (rb"\x93NUMPY", "an array of NumPy", _FRAME.format("pandas.DataFrame(numpy.load(OLD))")),
    (rb"\xd0\xcf\x11\xe0", "an old Excel file", _FRAME.format("pandas.read_excel(OLD)")),
    (rb"...\0{5}.{4}[\n\x12]", "TFRecord, as it seems", "read it by tf.data.TFRecordDataset(OLD), and write Parquet"),
]
_BINARY_FILES = [(re.compile(pattern, re.DOTALL), what, advice) for pattern, what, advice in _BINARY]
_START_BYTES = 512  # Number of bytes at the start of a file that are examined.


def binary_kind(start: bytes) -> str:
    """Recognize a binary file format by its first bytes.

    Return a text that names the format and says what to do, or "" if the file may be text.
    """
    for pattern, what, advice in _BINARY_FILES:
        if pattern.match(start[:_START_BYTES]):
            return f"it is {what} (it starts with {start[:4]!r}); {advice}"
    return ""


@contextmanager
def unpacked(location: str, stored: io.BufferedReader[Any]) -> Iterator[io.BufferedIOBase]:
    """Open the text of a log for reading, decompressed according to the ending of the file's name.

    `stored` is the open file. Raise ValueError if the content does not match the ending. Errors of `DAMAGED` mean that
    the file is damaged.
    """
    name = storage.file_name(location)
    if name.endswith((*PACKED_ENDINGS, *TAR_ENDINGS)) and not stored.peek(1):
        raise ValueError(f"{location} has 0 bytes, which is not even an empty packed file; fetch it again")
    for ending, magic in _PACKED.items():
        if name.endswith((ending, *TAR_ENDINGS * (ending == ".gz"))) and not magic.match(
            start := stored.peek(_START_BYTES)
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
    """A damaged zstd file, for which pyarrow raises OSError."""


# Errors that mean a damaged or truncated file. The cast is needed because isal's type stub does not declare its error
# as a class.
DAMAGED: tuple[type[Exception], ...] = (
    EOFError,
    gzip.BadGzipFile,
    cast("type[Exception]", IsalError),
    tarfile.TarError,
    BadZstd,
)


class _Zstd(io.RawIOBase):
    """A stream that decompresses zstd with pyarrow.

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
    """An archive has a member that a log's archive would not have, and that may be an attack."""


class _Member(tarfile.TarInfo):
    """A member of an archive whose headers are limited in size and number.

    The module tarfile itself would read any number of headers of any size into memory.
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

    # pax headers can declare a sparse member in these three ways.
    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


class _Archive(tarfile.TarFile):
    tarinfo = _Member
    num_extensions = 0  # Number of extension headers that were read for the next member.


@contextmanager
def _log_in_tar(location: str, unzipped: io.BufferedIOBase) -> Iterator[io.BufferedIOBase]:
    """Open the log in an archive for reading. The archive is read as a stream.

    At the end of the `with` block, the rest of the archive is read and checked. Raise ValueError if the archive has no
    log, has it twice, or has a member that is not trusted.
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
    while unzipped.read(_READ_BYTES):  # Read the rest, so that gzip's checksum at the end is verified.
        pass


def _is_log(member: tarfile.TarInfo) -> bool:
    return member.isfile() and PurePosixPath(member.name).stem == _LOG_STEM


def _safe_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive.

    Raise _Distrusted if there are too many, or for a member that is a link or a device, or whose path would leave the
    folder into which the archive is unpacked.
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
