"""Decompress a stored file while it is read: gzip, zstd, or a member of an archive. Nothing is unpacked to disk.

gzip is read by ISA-L, which takes less than half of zlib's time.
"""

from __future__ import annotations

import gzip
import io
import itertools
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
_LOG_STEM = "train"  # The name of a log in an archive, without its ending.
# An archive of a log has a few members with short names. One beyond these limits was made to fill the memory.
_MOST_MEMBERS = 10_000
_MOST_EXTENSION_BYTES = 1 << 20  # of a header before a member's own, such as a long name or pax
_MOST_EXTENSIONS = 8  # such headers for a member
_NAMES_SHOWN = 20

# The first bytes of packed files, and how their names end.
ENDINGS = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
# The first bytes of files that are no text, and what to do with them.
MAGIC = {
    **{magic: f"rename it to end in {ending}" for magic, ending in ENDINGS.items()},
    b"PK\x03\x04": "pack it by gzip or zstd instead: unzip -p OLD | gzip > NEW.gz",
    b"BZh91AY&": "pack it by gzip or zstd instead: bzcat OLD | gzip > NEW.gz",  # four bytes could be a text value
    b"\xfd7zXZ\x00": "pack it by gzip or zstd instead: xzcat OLD | gzip > NEW.gz",
    b"ARROW1\x00\x00": "make it Parquet: pyarrow.parquet.write_table(pyarrow.feather.read_table(OLD), NEW)",
    b"\xff\xff\xff\xff": "make it Parquet: pyarrow.parquet.write_table(pyarrow.ipc.open_stream(OLD).read_all(), NEW)",
}


@contextmanager
def unpacked(location: str, stored: io.BufferedReader[Any]) -> Iterator[io.BufferedIOBase]:
    """Open the log's text, decompressed according to the file's name."""
    name = storage.file_name(location)
    if name.endswith((*PACKED_ENDINGS, *TAR_ENDINGS)) and not stored.peek(1):
        raise ValueError(f"{location} has 0 bytes, which is not even an empty packed file; fetch it again")
    if name.endswith(TAR_ENDINGS):
        with IGzipFile(fileobj=stored) as unzipped, _log_in_tar(location, unzipped) as text:
            yield text
    elif name.endswith(".gz"):
        with IGzipFile(fileobj=stored) as unzipped:
            yield unzipped
    elif name.endswith(".zst"):
        yield io.BufferedReader(_Zstd(stored), _READ_BYTES)
    else:
        start = stored.peek(8)[:8]
        for magic, what in MAGIC.items():
            if start.startswith(magic):
                raise ValueError(f"{location} is no text (it starts with {start[:4]!r}); {what}")
        yield stored


class BadZstd(Exception):
    """A damaged zstd file, for which pyarrow raises OSError."""


# Errors that mean a damaged or truncated file. (In isal's stub its error is not a class.)
DAMAGED: tuple[type[Exception], ...] = (
    EOFError,
    gzip.BadGzipFile,
    cast("type[Exception]", IsalError),
    tarfile.TarError,
    BadZstd,
)


class _Zstd(io.RawIOBase):
    """Decompresses zstd frames. (The zstandard package does not notice that a file is truncated.)"""

    def __init__(self, stored: io.BufferedIOBase) -> None:
        import pyarrow as pa

        self._stream = pa.CompressedInputStream(pa.PythonFile(stored, "r"), "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            text = self._stream.read(len(buffer))
        except OSError as error:
            if "ZSTD" in str(error) or "compressed stream" in str(error):
                raise BadZstd(error) from error
            raise
        memoryview(buffer)[: len(text)] = text
        return len(text)


class _Distrusted(ValueError):
    """The archive has a member that no archive of a log has."""


class _Member(tarfile.TarInfo):
    """A member with bounded headers: tarfile reads a header of any size into memory, and any number of them."""

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

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse  # the three ways by pax headers


class _Archive(tarfile.TarFile):
    tarinfo = _Member
    num_extensions = 0  # headers before the next member's own, so far


@contextmanager
def _log_in_tar(location: str, unzipped: io.BufferedIOBase) -> Iterator[io.BufferedIOBase]:
    """Open the log in an archive, which is read as a stream. On leaving, read and check the rest."""
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
    while unzipped.read(_READ_BYTES):  # up to gzip's checksum at the end
        pass


def _is_log(member: tarfile.TarInfo) -> bool:
    return member.isfile() and PurePosixPath(member.name).stem == _LOG_STEM


def _safe_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the archive's members. Raises _Distrusted for one that would write outside of the folder, if unpacked."""
    for number in itertools.count():
        member = archive.next()
        if member is None:
            return
        archive.members.clear()  # type: ignore[attr-defined]  # else tarfile keeps them all
        target = PurePosixPath(member.name)
        if number == _MOST_MEMBERS:
            raise _Distrusted(f"{member.name!r} is one of more than {_MOST_MEMBERS:,}")
        if target.is_absolute() or ".." in target.parts:
            raise _Distrusted(f"{member.name!r} is a path that leaves the folder")
        if not (member.isfile() or member.isdir()):
            raise _Distrusted(f"{member.name!r} is {'a link' if member.islnk() or member.issym() else 'a device'}")
        yield member
