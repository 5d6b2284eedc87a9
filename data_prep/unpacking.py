"""A stored file's text: unpacked on the way, by gzip, zstd, or as a member of an archive; never to disk.

gzip's by ISA-L, which takes less than half of zlib's time.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, cast

from isal.igzip import IGzipFile
from isal.igzip_lib import IsalError

from data_prep import storage
from data_prep.log_files import PACKED_ENDINGS, TAR_ENDINGS

_READ_BYTES = 1 << 20
# What a packed file starts with, and the ending by which it would be unpacked.
MAGIC = {
    b"\x1f\x8b": ".gz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PK\x03\x04": None,
    b"BZh91AY&": None,  # four bytes alone could be a text value
    b"\xfd7zXZ\x00": None,
}


@contextmanager
def unpacked(location: str, stored: io.BufferedReader[Any], member: str) -> Iterator[io.BufferedIOBase]:
    """The log's text, unpacked as its file's name says."""
    name = storage.file_name(location)
    if name.endswith((*PACKED_ENDINGS, *TAR_ENDINGS)) and not stored.peek(1):
        raise ValueError(f"{location} has 0 bytes, which is no packed file, not even an empty one; fetch it again")
    if name.endswith(TAR_ENDINGS):
        with IGzipFile(fileobj=stored) as unzipped, _log_in_tar(location, unzipped, wanted=member) as text:
            yield text
    elif name.endswith(".gz"):
        with IGzipFile(fileobj=stored) as unzipped:
            yield unzipped
    elif name.endswith(".zst"):
        yield io.BufferedReader(_Zstd(stored), _READ_BYTES)
    else:
        _check_not_packed(location, stored.peek(8)[:8])
        yield stored


def _check_not_packed(location: str, start: bytes) -> None:
    for magic, ending in MAGIC.items():
        if start.startswith(magic):
            what = f"rename it to end in {ending}" if ending else "pack it by gzip or zstd instead"
            raise ValueError(f"{location} is packed, not text (it starts with {start[:4]!r}); {what}")


class BadZstd(Exception):
    """What pyarrow says of a damaged file."""


# What tells of a file that is damaged or cut off. (By isal's stub its error is no class.)
DAMAGED: tuple[type[Exception], ...] = (
    EOFError,
    gzip.BadGzipFile,
    cast("type[Exception]", IsalError),
    tarfile.TarError,
    BadZstd,
)


class _Zstd(io.RawIOBase):
    """Frames of zstd unpacked. (The zstandard package takes a file that is cut off for one that ends there.)"""

    def __init__(self, stored: io.BufferedIOBase) -> None:
        import pyarrow as pa

        self._stream = pa.CompressedInputStream(pa.PythonFile(stored, "r"), "zstd")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`; the number of bytes, 0 at the end."""
        try:
            text = self._stream.read(len(buffer))
        except OSError as error:
            if "ZSTD" in str(error) or "compressed stream" in str(error):
                raise BadZstd(error) from error
            raise
        memoryview(buffer)[: len(text)] = text
        return len(text)


@contextmanager
def _log_in_tar(location: str, unzipped: io.BufferedIOBase, wanted: str) -> Iterator[io.BufferedIOBase]:
    """The member `wanted` of an archive, which is read in one go; on leaving, the rest is read and checked."""
    with tarfile.open(fileobj=unzipped, mode="r|", bufsize=_READ_BYTES) as archive:
        members = _safe_members(location, archive)
        names = []
        for member in members:
            names.append(member.name)
            if member.isfile() and PurePosixPath(member.name).name == wanted:
                stream = archive.extractfile(member)
                assert stream is not None
                yield cast(io.BufferedIOBase, stream)
                break
        else:
            raise ValueError(
                f"{location} holds no {wanted} (prepare.data.archive_member); it holds: {', '.join(names) or 'nothing'}"
            )
        for _ in members:
            pass
    while unzipped.read(_READ_BYTES):  # up to gzip's own check sum at the end
        pass


def _safe_members(location: str, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The archive's members. Nothing is unpacked, but an archive that tries to write elsewhere is not Criteo's."""
    for member in archive:
        target = PurePosixPath(member.name)
        if target.is_absolute() or ".." in target.parts or not (member.isfile() or member.isdir()):
            kind = "a link" if member.islnk() or member.issym() else "a path that leaves the folder"
            raise ValueError(f"{location} is not trusted: its member {member.name!r} is {kind}; get the archive again")
        yield member
