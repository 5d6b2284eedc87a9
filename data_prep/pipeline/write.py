"""Second reading: rows by split, those of train shuffled, into MindRecord files.

A finished file is noted in a piece of its own, and the parts of results that are in finished files are removed. A run
that goes on reads the numbers of all rows again, but takes only the rows of files that are not finished.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.files import format_checksum
from data_prep.execution.folder import REJECTS_FILE, Workplace
from data_prep.execution.memory import keep_freed_memory
from data_prep.execution.pieces import Pieces, leading, numbered, storable
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.encode import REST, EncodedRest, Encoder
from data_prep.pipeline.shuffle import WindowShuffle
from data_prep.prepared import schema
from data_prep.prepared.rows import Rows
from data_prep.prepared.schema import data_file
from data_prep.prepared.writer import ArrayWriter, MindRecordWriter, WrittenFile, file_names
from data_prep.raw_log.reading import LogReading
from data_prep.statistics.statistics import LogStatistics

_TITLE = "rows"

storable(schema.DataFile)


class SplitOutput:
    """Where the rows of one split go."""

    def __init__(
        self, split: str, options: PrepareOptions, workplace: Workplace, blocks_folder: Path, file_rows: int
    ) -> None:
        self.clicks = 0
        self._finished = FinishedFiles(split, blocks_folder, workplace.pieces)
        written = self._finished.files
        num_written = sum(file.rows for file in written)
        window_rows = options.shuffle_window_rows if split == "train" else 1
        window = num_written // window_rows
        # Rows before it, in the log's order, are in finished files.
        self.first_needed = window * window_rows
        self._num_to_drop = num_written - self.first_needed  # of those that come now, in the order written
        self._shuffle = WindowShuffle(options.seed, window_rows, window) if split == "train" else None
        self._writer = MindRecordWriter(
            blocks_folder, split, options.block_rows, file_rows, written, self._note_finished
        )
        self._membership = xxhash.xxh3_64()
        self._num_rows = 0
        # Only where rows are written in the log's order.
        row_numbers_path = workplace.folder / schema.row_numbers_file(split)
        self._row_numbers = ArrayWriter(row_numbers_path) if self._shuffle is None else None
        self._parts: deque[tuple[int, str]] = deque()  # where a result's rows end, and the piece they are in
        self._pieces = workplace.pieces

    def add(self, row_numbers: NDArray[np.int64], clicks: int, rows: Rows | None, part: str) -> None:
        """Take a result's rows, in the log's order; None where all of them are in finished files.

        `part` is the name of the piece that they are in, to be removed when they are.
        """
        self.clicks += clicks
        self._membership.update(np.ascontiguousarray(row_numbers).data)
        if self._row_numbers is not None:
            self._row_numbers.write(row_numbers)
        first, self._num_rows = self._num_rows, self._num_rows + len(row_numbers)
        self._parts.append((self._num_rows, part))
        if rows is not None:
            self._take(rows.take(slice(max(self.first_needed - first, 0), None)))

    def _take(self, rows: Rows) -> None:
        if self._shuffle is None:
            self._write(rows)
            return
        for piece in self._shuffle.add(rows):
            self._write(piece)

    def _write(self, rows: Rows) -> None:
        num_dropped = min(self._num_to_drop, len(rows))
        self._num_to_drop -= num_dropped
        self._writer.write(rows.take(slice(num_dropped, None)))

    def _note_finished(self, file: WrittenFile) -> None:
        self._finished.add(file)
        num_written = sum(file.rows for file in self._finished.files)
        while self._parts and self._parts[0][0] <= num_written - num_written % self._window_rows:
            self._pieces.remove(self._parts.popleft()[1])

    @property
    def _window_rows(self) -> int:
        return self._shuffle.window_rows if self._shuffle else 1

    def finish(self) -> schema.Split:
        """Write what waits, and the row numbers in the order written if that is the log's."""
        if self._shuffle is not None:
            for piece in self._shuffle.finish():
                self._write(piece)
        files = self._writer.finish()
        if self._row_numbers is not None:
            self._row_numbers.finish()
        return schema.Split(
            sum(file.rows for file in files),
            self.clicks,
            tuple(self._finished.data_files),
            format_checksum(self._membership),
        )


class FinishedFiles:
    """The MindRecord files of a split that are whole, each noted in a piece with its checksum and its .db's."""

    def __init__(self, split: str, folder: Path, pieces: Pieces) -> None:
        """Look for those of an ended run, and remove what else it left of this split's."""
        self._split = split
        self._folder = folder
        self._pieces = pieces
        self.data_files: list[schema.DataFile] = []
        while (kept := self._pieces.read(self._piece)) is not None and all(map(self._is_whole, kept)):
            self.data_files.append(kept[0])
        whole = {name for file in self.data_files for name in file_names(file.name)}
        for path in self._folder.glob(f"{split}-*.mindrecord*"):
            if path.name not in whole:
                path.unlink()

    @property
    def files(self) -> list[WrittenFile]:
        """In reading order."""
        return [WrittenFile(file.name, file.rows) for file in self.data_files]

    def add(self, file: WrittenFile) -> None:
        """Note the next one."""
        data, index = file_names(file.name)
        kept = (data_file(self._folder, data, file.rows), data_file(self._folder, index))
        self._pieces.write(self._piece, kept)
        self.data_files.append(kept[0])

    @property
    def _piece(self) -> str:
        """Of the next file."""
        return f"{self._split}-{len(self.data_files):05d}"

    def _is_whole(self, file: schema.DataFile) -> bool:
        return (self._folder / file.name).is_file() and data_file(self._folder, file.name, file.rows) == file


@dataclass(frozen=True)
class _Needed:
    """Which parts of a result are needed: of those that an ended run left, not the rows of its finished files."""

    of_first: list[Collection[str]]
    of_others: Collection[str]

    def __call__(self, number: int) -> Collection[str]:
        return self.of_first[number] if number < len(self.of_first) else self.of_others


def _find_needed(pieces: Pieces, outputs: dict[str, SplitOutput]) -> _Needed:
    ends = dict.fromkeys(outputs, 0)
    of_first: list[Collection[str]] = []
    rest: EncodedRest
    for rest in leading(pieces, _TITLE, REST):
        for split, row_numbers in rest.row_numbers.items():
            ends[split] += len(row_numbers)
        of_first.append([REST, *(split for split, output in outputs.items() if ends[split] > output.first_needed)])
    return _Needed(of_first, [REST, *outputs])


def write_splits(
    reading: LogReading,
    encoder: Encoder,
    options: PrepareOptions,
    statistics: LogStatistics,
    workplace: Workplace,
    blocks_folder: Path,
    file_rows: int,
) -> dict[str, schema.Split]:
    """Second reading: the MindRecord files of all splits, in `blocks_folder`.

    Where it is the only reading, statistics and rejects too.
    """
    keep_freed_memory()
    outputs = {split: SplitOutput(split, options, workplace, blocks_folder, file_rows) for split in schema.SPLITS}
    numbers = itertools.count()
    rejects_path: Path = workplace.folder / REJECTS_FILE

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

        reading.run_in_parts(encoder.encode_parts, consume, _TITLE, _find_needed(workplace.pieces, outputs))
    return {split: output.finish() for split, output in outputs.items()}
