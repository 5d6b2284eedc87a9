"""Readings of the whole log, by workers chunk by chunk; the log must stay the same from the first to the last."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from data_prep.criteo import Chunk
from data_prep.executors import map_in_order
from data_prep.raw_log import Fingerprint, OnStored, StoredChunk, changed_while_read, open_log

Result = TypeVar("Result")


class LogReading:
    """Reads a log several times and makes sure that it stays the same."""

    def __init__(self, path: Path, num_workers: int, chunk_bytes: int, work_folder: Path) -> None:
        self.path = path
        self._work_folder = work_folder
        self.num_workers = num_workers
        self._chunk_bytes = chunk_bytes
        self._before = _file_state(path)
        self._fingerprint: Fingerprint | None = None
        self._places: list[Chunk | StoredChunk] | None = None  # of a log that is not packed, once it was read

    @property
    def fingerprint(self) -> Fingerprint:
        """Of the log's file, after a reading."""
        assert self._fingerprint is not None
        return self._fingerprint

    def count_lines(self) -> int:
        """Lines of the log."""
        return sum(chunk.num_lines for chunk in self._chunks("count lines"))

    def run(self, function: Callable[[Chunk], Result], consume: Callable[[Result], None], title: str) -> None:
        """One reading: `function` of each chunk on the workers, their results to `consume` in the chunks' order."""
        # Closed at once on an error too: workers and progress bar are gone before anything is said or removed.
        with (
            closing(self._chunks(title)) as chunks,
            closing(map_in_order(OnStored(function), chunks, self.num_workers, self._work_folder)) as results,
        ):
            for result in results:
                consume(result)

    def _chunks(self, title: str) -> Generator[Chunk | StoredChunk, None, None]:
        with tqdm(total=self._before.size, desc=title, unit="B", unit_scale=True, mininterval=0.5) as bar:
            for chunk, stored_bytes_read in self._places_read() if self._places else self._read():
                yield chunk
                rows = chunk.first_line + chunk.num_lines
                bar.set_postfix_str(f"{rows / bar.format_dict['elapsed']:,.0f} rows/s", refresh=False)
                bar.update(stored_bytes_read - bar.n)
        if _file_state(self.path) != self._before:
            raise ValueError(changed_while_read(self.path))

    def _read(self) -> Iterator[tuple[Chunk | StoredChunk, int]]:
        """Chunks as the log is read, each with how far that is in bytes of its file."""
        places: list[Chunk | StoredChunk] = []
        with open_log(self.path) as reader:
            for chunk in reader.chunks(self._chunk_bytes):
                if reader.is_plain:
                    places.append(chunk)
                yield chunk, reader.stored_bytes_read
        self._fingerprint, self._places = reader.fingerprint, places

    def _places_read(self) -> Iterator[tuple[Chunk | StoredChunk, int]]:
        """The same of a log that need not be read here again: the workers read it."""
        assert self._places is not None
        for chunk in self._places:
            end = chunk.offset + chunk.num_bytes if isinstance(chunk, StoredChunk) else self._before.size
            yield chunk, end


@dataclass(frozen=True)
class _FileState:
    """What changes when a file does."""

    size: int
    modified_ns: int
    inode: int


def _file_state(path: Path) -> _FileState:
    status = path.stat()
    return _FileState(status.st_size, status.st_mtime_ns, status.st_ino)
