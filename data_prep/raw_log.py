"""The raw log as it is stored: find it, open it as a stream of bytes, cut it into chunks of whole lines.

The log is `train.txt`, `train.txt.gz`, or `train.txt` inside `dac.tar.gz`; it is never unpacked to disk.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import xxhash

from data_prep.criteo import MAX_LINE_BYTES, Chunk

CHUNK_BYTES = 8 << 20
MEMBER = "train.txt"  # the training log in Criteo's archive
_TAR_ENDINGS = (".tar.gz", ".tgz")
_READ_BYTES = 1 << 20
_HOW_TO_GET_IT = (
    "Get the log: the Criteo AI Lab offers dac.tar.gz as the Kaggle Display Advertising Challenge dataset "
    "(https://ailab.criteo.com/ressources/), under its own terms. "
    "Or make a synthetic one: make synthesize"
)


def find_log(path: Path) -> Path:
    """The file that holds the log: `path` itself, or the only candidate in the folder `path`.

    Raises FileNotFoundError where there is none, ValueError where a folder holds several.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise FileNotFoundError(f"no log at {path}. {_HOW_TO_GET_IT}")
    candidates = sorted(file for file in path.iterdir() if file.is_file() and _is_candidate(file.name))
    if not candidates:
        raise FileNotFoundError(
            f"the folder {path} holds no log: expected {MEMBER}, {MEMBER}.gz or a .tar.gz. {_HOW_TO_GET_IT}"
        )
    if len(candidates) > 1:
        names = ", ".join(file.name for file in candidates)
        raise ValueError(f"the folder {path} holds several logs ({names}); give one of them as the input")
    return candidates[0]


def _is_candidate(name: str) -> bool:
    return name in (MEMBER, f"{MEMBER}.gz") or name.endswith(_TAR_ENDINGS)


@dataclass(frozen=True)
class Fingerprint:
    """What tells a stored file from another."""

    size_bytes: int
    checksum: str


class StoredFile(io.RawIOBase):
    """A file that is read once from start to end, with a checksum of what has been read."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._hash = xxhash.xxh3_64()
        self.bytes_read = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`; the number of bytes, 0 at the end."""
        size = self._file.readinto(buffer)
        self._hash.update(memoryview(buffer)[:size])
        self.bytes_read += size
        return size

    def fingerprint(self) -> Fingerprint:
        """Of the whole file: what no decompressor asked for is read now."""
        while self.read(_READ_BYTES):
            pass
        return Fingerprint(self.bytes_read, f"xxh3:{self._hash.hexdigest()}")

    def close(self) -> None:
        """Close the file below too."""
        self._file.close()
        super().close()


@dataclass(frozen=True)
class StoredChunk:
    """Where a chunk lies in the log's file: a worker reads it there, so its bytes need not be sent."""

    path: Path
    offset: int
    num_bytes: int
    first_line: int
    num_lines: int

    @classmethod
    def of(cls, chunk: Chunk, path: Path) -> StoredChunk | None:
        """The place of a chunk, None where it does not lie in the file as it is."""
        if chunk.offset is None:
            return None
        return cls(path, chunk.offset, len(chunk.lines), chunk.first_line, chunk.num_lines)

    def load(self) -> Chunk:
        """The chunk. Raises ValueError where other lines are there now."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            lines = file.read(self.num_bytes)
        if len(lines) != self.num_bytes or not lines.endswith(b"\n") or lines.count(b"\n") != self.num_lines:
            raise ValueError(changed_while_read(self.path))
        return Chunk(self.first_line, self.num_lines, lines, self.offset)


def changed_while_read(path: Path) -> str:
    """The message of the error."""
    return f"{path} changed while it was read; prepare it again when it is at rest"


class LogReader:
    """One reading of the log, from its first line to its last."""

    def __init__(self, stored: StoredFile, stream: BinaryIO, is_plain: bool) -> None:
        self._stored = stored
        self._stream = stream
        self._is_plain = is_plain
        self.fingerprint: Fingerprint | None = None  # known when the reading is over

    @property
    def stored_bytes_read(self) -> int:
        """How far the reading is, in bytes of the file as stored."""
        return self._stored.bytes_read

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
        """The log cut at line ends into chunks of about `chunk_bytes`; a last line without line end gets one.

        Raises ValueError where the file is damaged.
        """
        first_line, rest, num_read, is_whole = 0, b"", 0, True
        while data := self._stream.read(chunk_bytes):
            num_read += len(data)
            data = rest + data
            end = data.rfind(b"\n") + 1
            if end:
                num_lines = data.count(b"\n")
                offset = num_read - len(data) if self._is_plain and is_whole else None
                yield Chunk(first_line, num_lines, data[:end], offset)
                first_line += num_lines
            # The parser rejects a longer line whatever follows, so that may be forgotten.
            rest = data[end:][: MAX_LINE_BYTES + 1]
            is_whole = (is_whole or end > 0) and len(data) - end == len(rest)
        if rest:
            yield Chunk(first_line, 1, rest + b"\n")


@contextmanager
def open_log(path: Path) -> Iterator[LogReader]:
    """Open the log for one reading.

    Raises ValueError, inside the `with` block too, where the file is damaged or is an archive without a log.
    """
    with StoredFile(path) as stored:
        buffered = io.BufferedReader(stored, _READ_BYTES)
        try:
            with _unpacked(path, buffered) as stream:
                reader = LogReader(stored, stream, is_plain=stream is buffered)
                yield reader
            reader.fingerprint = stored.fingerprint()
        except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError) as error:
            raise ValueError(
                f"{path} is damaged or was not downloaded to its end ({error}, after {stored.bytes_read:,} bytes); "
                "fetch it again and compare its size with the server's"
            ) from error


@contextmanager
def _unpacked(path: Path, stored: BinaryIO) -> Iterator[BinaryIO]:
    """The log's text, whatever its file's name says it is packed in."""
    if path.name.endswith(_TAR_ENDINGS):
        with gzip.GzipFile(fileobj=stored) as unzipped, _log_in_tar(path, cast(BinaryIO, unzipped)) as text:
            yield text
    elif path.name.endswith(".gz"):
        with gzip.GzipFile(fileobj=stored) as unzipped:
            yield cast(BinaryIO, unzipped)
    else:
        yield stored


@contextmanager
def _log_in_tar(path: Path, unzipped: BinaryIO) -> Iterator[BinaryIO]:
    """The member train.txt of an archive, which is read in one go; on leaving, the rest is read and checked."""
    with tarfile.open(fileobj=unzipped, mode="r|", bufsize=_READ_BYTES) as archive:
        members = _safe_members(path, archive)
        names = []
        for member in members:
            names.append(member.name)
            if member.isfile() and PurePosixPath(member.name).name == MEMBER:
                stream = archive.extractfile(member)
                assert stream is not None
                yield cast(BinaryIO, stream)
                break
        else:
            raise ValueError(f"{path} holds no {MEMBER}; it holds: {', '.join(names) or 'nothing'}")
        for _ in members:
            pass
    while unzipped.read(_READ_BYTES):  # up to gzip's own check sum at the end
        pass


def _safe_members(path: Path, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The archive's members. Nothing is unpacked, but an archive that tries to write elsewhere is not Criteo's."""
    for member in archive:
        target = PurePosixPath(member.name)
        if target.is_absolute() or ".." in target.parts or not (member.isfile() or member.isdir()):
            kind = "a link" if member.islnk() or member.issym() else "a path that leaves the folder"
            raise ValueError(f"{path} is not trusted: its member {member.name!r} is {kind}; get the archive again")
        yield member
