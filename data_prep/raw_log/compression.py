"""Decompress a stored file while it is read: gzip, zstd, or a member of a tar archive.

Nothing is decompressed to disk. ISA-L reads gzip in less than half of zlib's time.
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
from data_prep.raw_log.formats import PACKED, PACKED_ENDINGS, START_BYTES, TAR_ENDINGS, binary_kind

_READ_BYTES = 1 << 20
_LOG_STEM = "train"  # Name of the log in an archive, without its ending.
# Limits for the members of an archive. An archive of a log has a few members with short names. An archive beyond these
# limits was probably made to fill the memory.
_MOST_MEMBERS = 10_000
_MOST_EXTENSION_BYTES = 1 << 20  # Maximum size of an extension header of a member, such as a long name or a pax header.
_MOST_EXTENSIONS = 8  # Maximum number of extension headers of a member.
_NAMES_SHOWN = 20


@contextmanager
def unpacked(location: str, stored: io.BufferedReader[Any]) -> Iterator[io.BufferedIOBase]:
    """Open the text of a log for reading, decompressed according to the ending of the file's name.

    `stored` is the open file. Raise ValueError if the content does not match the ending. Errors of `DAMAGED` mean that
    the file is damaged.
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
