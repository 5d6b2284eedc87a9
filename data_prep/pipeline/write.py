"""Second pass over the log: rows by split, those of train shuffled, into MindRecord files.

A finished file is recorded in a piece of its own, and the parts of results that are in finished files are removed. A
resumed run takes the numbers of all rows again, but the rows themselves only of files that are not finished.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.files import format_checksum
from data_prep.execution.folder import REJECTS_FILE, WorkDir
from data_prep.execution.memory import keep_freed_memory
from data_prep.execution.pieces import Pieces, leading, numbered, storable
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.encode import REST, EncodedRest, Encoder
from data_prep.pipeline.shuffle import WindowShuffle
from data_prep.prepared.rows import Rows
from data_prep.prepared.schema import SPLITS, DataFile, Split, data_file, row_numbers_file
from data_prep.prepared.writer import ArrayWriter, MindRecordWriter, mindrecord_file
from data_prep.raw_log.reading import LogReading
from data_prep.statistics.statistics import LogStatistics

_TITLE = "rows"

storable(DataFile)


def write_splits(
    reading: LogReading,
    encoder: Encoder,
    options: PrepareOptions,
    statistics: LogStatistics,
    work_dir: WorkDir,
    blocks_folder: Path,
    file_rows: int,
) -> dict[str, Split]:
    """Encode the log and write the MindRecord files of all splits into `blocks_folder`.

    Adds to `statistics` the values out of vocabulary and, if there was no first pass, lines and rejects.
    """
    keep_freed_memory()
    outputs = {split: _SplitOutput(split, options, work_dir, blocks_folder, file_rows) for split in SPLITS}
    numbers = itertools.count()
    rejects_path: Path = work_dir.folder / REJECTS_FILE

    with rejects_path.open("wb" if encoder.counts else "ab") as rejects:

        def consume(parts: Any) -> None:
            rest: EncodedRest = parts[REST]
            number = next(numbers)
            for split, output in outputs.items():
                part = numbered(_TITLE, number, split)
                output.add(rest.row_numbers[split], rest.clicks[split], parts.get(split), part)
            statistics.unknown += rest.unknown
            if rest.counts is not None:
                statistics.add(rest.counts)
                rejects.write(rest.counts.rejects_tsv)

        reading.run_in_parts(encoder.encode, consume, _TITLE, _needed_parts(work_dir.pieces, outputs))
    return {split: output.finish() for split, output in outputs.items()}


def _needed_parts(pieces: Pieces, outputs: dict[str, _SplitOutput]) -> Callable[[int], Collection[str]]:
    """Return a function from a result's number to its needed parts: not the rows that are in finished files."""
    ends = dict.fromkeys(outputs, 0)
    of_first: list[Collection[str]] = []  # results that an interrupted run left
    rest: EncodedRest
    for rest in leading(pieces, _TITLE, REST):
        for split, row_numbers in rest.row_numbers.items():
            ends[split] += len(row_numbers)
        of_first.append([REST, *(split for split, output in outputs.items() if ends[split] > output.first_needed)])
    of_others = [REST, *outputs]
    return lambda number: of_first[number] if number < len(of_first) else of_others


class _SplitOutput:
    """Writer of one split's files, which resumes after those that an interrupted run finished."""

    def __init__(
        self, split: str, options: PrepareOptions, work_dir: WorkDir, blocks_folder: Path, file_rows: int
    ) -> None:
        self._split = split
        self._folder = blocks_folder
        self._pieces = work_dir.pieces
        self._clicks = 0
        finished = self._find_finished()
        self._window_rows = options.shuffle_window_rows if split == "train" else 1
        self._num_written = sum(file.rows for file in finished)
        window = self._num_written // self._window_rows
        self.first_needed = window * self._window_rows  # earlier rows, in the log's order, are in finished files
        self._num_to_drop = self._num_written - self.first_needed  # from the next rows, in the order written
        self._shuffle = WindowShuffle(options.seed, self._window_rows, window) if split == "train" else None
        self._writer = MindRecordWriter(
            blocks_folder, split, options.block_rows, file_rows, finished, self._note_finished
        )
        self._membership = xxhash.xxh3_64()
        self._num_rows = 0
        # The rows of train are not written in the log's order.
        row_numbers_path = work_dir.folder / row_numbers_file(split)
        self._row_numbers = ArrayWriter(row_numbers_path) if self._shuffle is None else None
        self._parts: deque[tuple[int, str]] = deque()  # where a result's rows end, and the piece they are in

    def _find_finished(self) -> list[DataFile]:
        """Return the files that an interrupted run finished, and remove what else it left of the split."""
        files: list[DataFile] = []
        kept: set[str] = set()
        while True:
            pair = self._pieces.read(_finished_piece(mindrecord_file(self._split, len(files))))
            if pair is None or not all(map(self._is_whole, pair)):
                break
            files.append(pair[0])
            kept |= {file.name for file in pair}
        for path in self._folder.glob(f"{self._split}-*.mindrecord*"):
            if path.name not in kept:
                path.unlink()
        return files

    def _is_whole(self, file: DataFile) -> bool:
        return (self._folder / file.name).is_file() and data_file(self._folder, file.name, file.rows) == file

    def add(self, row_numbers: NDArray[np.int64], clicks: int, rows: Rows | None, part: str) -> None:
        """Take a result's rows, in the log's order; None if all of them are in finished files.

        `part` names the piece that holds the rows; it is removed once they are in finished files.
        """
        self._clicks += clicks
        self._membership.update(np.ascontiguousarray(row_numbers).data)
        if self._row_numbers is not None:
            self._row_numbers.write(row_numbers)
        first, self._num_rows = self._num_rows, self._num_rows + len(row_numbers)
        self._parts.append((self._num_rows, part))
        if rows is not None:
            rows = rows.take(slice(max(self.first_needed - first, 0), None))
            for ordered in [rows] if self._shuffle is None else self._shuffle.add(rows):
                self._write(ordered)

    def _write(self, rows: Rows) -> None:
        num_dropped = min(self._num_to_drop, len(rows))
        self._num_to_drop -= num_dropped
        self._writer.write(rows.take(slice(num_dropped, None)))

    def _note_finished(self, file: DataFile) -> None:
        self._pieces.write(_finished_piece(file.name), (file, data_file(self._folder, f"{file.name}.db")))
        self._num_written += file.rows
        end_of_windows = self._num_written - self._num_written % self._window_rows
        while self._parts and self._parts[0][0] <= end_of_windows:
            self._pieces.remove(self._parts.popleft()[1])

    def finish(self) -> Split:
        """Write the rows that wait, and the row numbers if rows are written in the log's order."""
        if self._shuffle is not None:
            for ordered in self._shuffle.finish():
                self._write(ordered)
        files = self._writer.finish()
        if self._row_numbers is not None:
            self._row_numbers.finish()
        return Split(self._num_written, self._clicks, tuple(files), format_checksum(self._membership))


def _finished_piece(file_name: str) -> str:
    return f"finished-{file_name}"
