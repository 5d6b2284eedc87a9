"""The raw log as it is stored: find it, open it as a stream of bytes, cut it into chunks of whole lines.

The log is `train.txt`, `train.txt.gz`, or `train.txt` inside `dac.tar.gz`; it is never unpacked to disk.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar, cast

import xxhash

from data_prep.criteo import MAX_LINE_BYTES, Chunk

Result = TypeVar("Result")

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

    def load(self) -> Chunk:
        """The chunk. Raises ValueError where other lines are there now."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            lines = file.read(self.num_bytes)
        if len(lines) != self.num_bytes or not lines.endswith(b"\n"):
            raise ValueError(changed_while_read(self.path))
        return Chunk(self.first_line, self.num_lines, lines)


@dataclass(frozen=True)
class OnStored(Generic[Result]):
    """A function of chunks as one of chunks that may have to be read first."""

    function: Callable[[Chunk], Result]

    def __call__(self, task: Chunk | StoredChunk) -> Result:
        """The function's result for the chunk, read now if need be."""
        return self.function(task.load())


def changed_while_read(path: Path) -> str:
    """The message of the error."""
    return f"{path} changed while it was read; prepare it again when it is at rest"


class LogReader:
    """One reading of the log, from its first line to its last."""

    def __init__(self, stored: StoredFile, stream: io.BufferedIOBase, plain_path: Path | None) -> None:
        self._stored = stored
        self._stream = stream
        self._plain_path = plain_path  # of the file where it is not packed
        self.fingerprint: Fingerprint | None = None  # known when the reading is over

    @property
    def is_plain(self) -> bool:
        """Whether the file holds the log as it is."""
        return self._plain_path is not None

    @property
    def stored_bytes_read(self) -> int:
        """How far the reading is, in bytes of the file as stored."""
        return self._stored.bytes_read

    def chunks(self, chunk_bytes: int) -> Iterator[Chunk | StoredChunk]:
        """The log cut at line ends into chunks of about `chunk_bytes`; a last line without line end gets one.

        Raises ValueError where the file is damaged.
        """
        # One buffer for all chunks, as fresh memory costs more than the reading. What follows the last line end
        # moves to the front; only where a line is longer than a chunk does the buffer grow.
        buffer, filled, offset, first_line, num_dropped = bytearray(chunk_bytes), 0, 0, 0, 0
        while num_read := self._stream.readinto(memoryview(buffer)[filled:]):
            filled += num_read
            end = buffer.rfind(b"\n", 0, filled) + 1
            if end:
                num_lines = buffer.count(b"\n", 0, end)
                if self._plain_path is not None and not num_dropped:
                    yield StoredChunk(self._plain_path, offset, end, first_line, num_lines)
                else:
                    yield Chunk(first_line, num_lines, bytes(buffer[:end]))
                first_line += num_lines
                offset += end + num_dropped
                buffer[: filled - end] = buffer[end:filled]
                filled, num_dropped = filled - end, 0
            elif filled == len(buffer) > MAX_LINE_BYTES:
                # The parser rejects a longer line whatever follows, so that may be forgotten.
                num_dropped += filled - MAX_LINE_BYTES - 1
                filled = MAX_LINE_BYTES + 1
            elif filled == len(buffer):
                buffer.extend(bytes(filled))
        if filled:
            yield Chunk(first_line, 1, bytes(buffer[: min(filled, MAX_LINE_BYTES + 1)]) + b"\n")


@contextmanager
def open_log(path: Path) -> Iterator[LogReader]:
    """Open the log for one reading.

    Raises ValueError, inside the `with` block too, where the file is damaged or is an archive without a log.
    """
    with StoredFile(path) as stored:
        buffered = io.BufferedReader(stored, _READ_BYTES)
        try:
            with _unpacked(path, buffered) as stream:
                reader = LogReader(stored, stream, path if stream is buffered else None)
                yield reader
            reader.fingerprint = stored.fingerprint()
        except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError) as error:
            raise ValueError(
                f"{path} is damaged or was not downloaded to its end ({error}, after {stored.bytes_read:,} bytes); "
                "fetch it again and compare its size with the server's"
            ) from error


@contextmanager
def _unpacked(path: Path, stored: io.BufferedIOBase) -> Iterator[io.BufferedIOBase]:
    """The log's text, whatever its file's name says it is packed in."""
    if path.name.endswith(_TAR_ENDINGS):
        with gzip.GzipFile(fileobj=stored) as unzipped, _log_in_tar(path, unzipped) as text:
            yield text
    elif path.name.endswith(".gz"):
        with gzip.GzipFile(fileobj=stored) as unzipped:
            yield unzipped
    else:
        yield stored


@contextmanager
def _log_in_tar(path: Path, unzipped: io.BufferedIOBase) -> Iterator[io.BufferedIOBase]:
    """The member train.txt of an archive, which is read in one go; on leaving, the rest is read and checked."""
    with tarfile.open(fileobj=unzipped, mode="r|", bufsize=_READ_BYTES) as archive:
        members = _safe_members(path, archive)
        names = []
        for member in members:
            names.append(member.name)
            if member.isfile() and PurePosixPath(member.name).name == MEMBER:
                stream = archive.extractfile(member)
                assert stream is not None
                yield cast(io.BufferedIOBase, stream)
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
