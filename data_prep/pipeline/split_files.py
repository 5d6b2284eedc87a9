"""Run the second pass over the log: write the rows of each split to MindRecord files, with training rows shuffled.

Workers encode chunks of the log and store the encoded rows in temporary files, called pieces (execution/pieces.py).
Once all rows of a MindRecord file are encoded, a worker writes the whole file in a temporary folder, renames it to its
final path, and stores its entry for schema.json in another piece. Pieces of encoded rows are removed once their rows
are in a finished file. A resumed run reads the stored line numbers of all chunks again, but encoded rows only for files
that are not finished.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.files import format_checksum
from common.signals import check_stop
from data_prep.execution.pieces import Pieces, numbered, storable
from data_prep.execution.prepared_folder import REJECTS_FILE, WorkDir
from data_prep.execution.tasks import ReadPart, Results, TasksBeside, keep_freed_memory
from data_prep.pipeline.chunk_tasks import REST, EncodedRest, Encoder
from data_prep.prepared.data_files import data_file, row_numbers_file
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import SPLITS, DataFile, Split
from data_prep.prepared.writer import INDEX_ENDING, ArrayWriter, MindRecordWriter, mindrecord_file
from data_prep.raw_log.reading import LogReading
from data_prep.statistics.statistics import LogStatistics, NumericStatistics

_TITLE, _FILES_TITLE = "rows", "files"
_UNFINISHED = "writing-"

storable(DataFile)


# Training rows are shuffled in windows, which are ranges of consecutive rows. A window is copied in its shuffled order
# in slices of this many rows, so that memory never holds all rows of the window twice.
_PIECE_ROWS = 50_000


@dataclass(frozen=True)
class FileToWrite:
    """The task for workers that writes one MindRecord file of a split.

    The rows of a split are numbered from 0 in the order of the log. Shuffling exchanges the numbers of rows in the same
    window, which is a range of consecutive rows (see `Windows`).
    """

    folder: Path  # Folder into which the finished file is moved.
    work_folder: Path
    split: str
    number: int
    rows: range  # The numbers that the rows of this file have after shuffling.
    # Ranges of rows, by their numbers before shuffling, each with the name of the temporary file (piece) that holds
    # them.
    parts: tuple[tuple[range, str], ...]
    windows: Windows

    def write(self) -> tuple[DataFile, DataFile]:
        """Write the MindRecord file and its index to a temporary folder, then move both to `folder`.

        Files of the same names in `folder` are replaced. Return the entries of the file and of its index for
        schema.json.
        """
        name = mindrecord_file(self.split, self.number)
        with TemporaryDirectory(prefix=f"{_UNFINISHED}{name}-", dir=self.work_folder) as beside:
            writer = MindRecordWriter(Path(beside) / name, self.windows.block_rows)
            for rows in self._in_order():
                check_stop()
                writer.write(rows)
            files = (writer.finish(), data_file(Path(beside), name + INDEX_ENDING))
            for file in files:
                (Path(beside) / file.name).replace(self.folder / file.name)
        return files

    def _in_order(self) -> Iterator[Examples]:
        """Yield the rows of the MindRecord file in slices, in the order in which they are written to it."""
        end = self.windows.around(self.rows).start
        for rows in self._shuffled(end) if self.windows.window_rows > 1 else self._read(end):
            first, end = end, end + len(rows)
            yield rows.take(slice(max(self.rows.start - first, 0), self.rows.stop - first))
            if end >= self.rows.stop:
                return

    def _shuffled(self, start: int) -> Iterator[Examples]:
        window_rows = self.windows.window_rows
        shuffle = WindowShuffle(self.windows.seed, window_rows, start // window_rows)
        for rows in self._read(start):
            yield from shuffle.add(rows)
        yield from shuffle.finish()

    def _read(self, start: int) -> Iterator[Examples]:
        pieces = Pieces(self.work_folder)
        for numbers, name in self.parts:
            yield pieces.expect(name).take(slice(max(start - numbers.start, 0), None))


def _write_file(task: FileToWrite) -> Results:
    return {task.split: task.write()}


def write_splits(
    reading: LogReading,
    encoder: Encoder,
    windows: Windows,
    statistics: LogStatistics,
    work_dir: WorkDir,
    blocks_folder: Path,
    num_writers: int,
) -> dict[str, Split]:
    """Encode the log, and write the MindRecord files of all splits into `blocks_folder`.

    Return the entries of the splits for schema.json, by name. At most `num_writers` files are written at the same time.
    `windows` divide the training rows for shuffling; valid and test stay in the order of the log. The numbers of rows
    with out-of-vocabulary values are added to `statistics`. If there was no first pass (`encoder.counts`), the counts
    of lines and of rejected lines are added too, and rejects.tsv is written.
    """
    keep_freed_memory()
    for folder in work_dir.work_folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(folder)
    numbers = itertools.count()
    rejects_path: Path = work_dir.folder / REJECTS_FILE
    with (
        rejects_path.open("wb" if encoder.counts else "ab") as rejects,
        _writers(reading, num_writers) as files,
    ):
        by_split = dict.fromkeys(SPLITS, replace(windows, window_rows=1)) | {"train": windows}
        outputs = {split: _SplitOutput(split, by_split[split], work_dir, blocks_folder, files) for split in SPLITS}

        def consume(read: ReadPart) -> None:
            rest: EncodedRest = read(REST)
            number = next(numbers)
            for split, output in outputs.items():
                output.num_clicks += rest.clicks[split]
                output.num_unlabelled += rest.unlabelled[split]
                output.num_weightless += rest.weightless[split]
                output.weights += rest.weights[split]
                output.add(rest.row_numbers[split], numbered(_TITLE, number, split))
            statistics.unknown += rest.unknown
            if rest.counts is not None:
                statistics.add(rest.counts)
                rejects.write(rest.counts.rejects_tsv)

        reading.run_in_parts(encoder.encode, consume, _TITLE, _needed_parts(work_dir.pieces, outputs))
        for output in outputs.values():
            output.finish()
    return {split: output.written() for split, output in outputs.items()}


@contextmanager
def _writers(reading: LogReading, most: int) -> Iterator[TasksBeside]:
    """Yield an object that gives `FileToWrite` tasks to the workers, which write at most `most` files at the same time.

    At the end of the `with` block, wait until all files are written.
    """
    with (
        reading.pools.open(reading.num_workers) as pool,
        closing(TasksBeside(_write_file, pool, reading.pieces, _FILES_TITLE, most)) as tasks,
    ):
        yield tasks
        start = time.monotonic()
        tasks.wait()
        # The time of the pass over the log ("rows") includes the files that are written during the pass. Therefore the
        # time of the stage "files" only includes the files that are written after the pass.
        reading.seconds[_FILES_TITLE] = time.monotonic() - start


def _needed_parts(pieces: Pieces, outputs: dict[str, _SplitOutput]) -> Callable[[int], Collection[str]]:
    """Return a function from a chunk's number to the names of the parts of its result that must be stored.

    The parts of a result are the chunk's rows of each split, and `REST`, an `EncodedRest`. The rows of a split are not
    needed if files that an interrupted run finished hold all of them. `outputs` has an object for each split, by name,
    that knows these files.
    """
    ends = dict.fromkeys(outputs, 0)
    # An interrupted preparation has encoded the first chunks of the log. This list has, for each of these chunks, the
    # names of the parts of its result that are still needed.
    of_first: list[Collection[str]] = []
    rest: EncodedRest | None
    while (rest := pieces.read(numbered(_TITLE, len(of_first), REST))) is not None:
        for split, row_numbers in rest.row_numbers.items():
            ends[split] += len(row_numbers)
        of_first.append([REST, *(split for split, output in outputs.items() if ends[split] > output.first_needed)])
    of_others = [REST, *outputs]
    return lambda number: of_first[number] if number < len(of_first) else of_others


@dataclass(eq=False)
class _SplitOutput:
    """Lets workers write the MindRecord files of one split (train, valid or test), and counts the rows of the split.

    Files that an interrupted run finished are kept, and workers write the other files. Temporary files of encoded rows
    (pieces) are removed once all their rows are in finished MindRecord files.
    """

    split: str
    windows: Windows
    work_dir: WorkDir
    folder: Path  # Folder into which finished MindRecord files are moved.
    files: TasksBeside

    def __post_init__(self) -> None:
        self._pieces = self.work_dir.pieces
        self._finished = self._find_finished()
        self._num_leading = 0  # Number of finished MindRecord files before the first unfinished one.
        self._num_files = 0  # Number of MindRecord files that are finished or were given to a worker.
        self.num_clicks = self.num_unlabelled = self.num_weightless = self._num_rows = 0
        self.weights = NumericStatistics()  # Statistics of the weights above 0 of the split's rows.
        self._membership = xxhash.xxh3_64()
        # No file of row numbers is written for train, because training rows are shuffled and lose the order of the log.
        row_numbers_path = self.work_dir.folder / row_numbers_file(self.split)
        self._row_numbers = ArrayWriter(row_numbers_path) if self.split != "train" else None
        # Ranges of rows, by their numbers before shuffling, each with the name of the temporary file (piece) that holds
        # them.
        self._parts: deque[tuple[range, str]] = deque()

    def _find_finished(self) -> set[int]:
        """Return the numbers of those MindRecord files of the split that an interrupted run finished.

        Files that are not recorded as finished, or that differ from their record, are removed.
        """
        finished: set[int] = set()
        names: set[str] = set()
        for piece in self._pieces.folder.glob(f"{_FILES_TITLE}-*.{self.split}"):
            pair: tuple[DataFile, DataFile] | None = self._pieces.read(piece.name)
            if pair is not None and all(map(self._is_whole, pair)):
                finished.add(int(piece.stem.rpartition("-")[2]))
                names |= {file.name for file in pair}
            else:
                piece.unlink()
        for path in self.folder.glob(f"{self.split}-*.mindrecord*"):
            if path.name not in names:
                path.unlink()
        return finished

    def _is_whole(self, file: DataFile) -> bool:
        there = (self.folder / file.name).is_file()
        return there and data_file(self.folder, file.name, file.rows, file.blocks) == file

    def _piece(self, number: int) -> str:
        return numbered(_FILES_TITLE, number, self.split)

    @property
    def first_needed(self) -> int:
        """Number, in the order of the log, of the split's first row that is still needed to write a file.

        It is the first row of the window (the range of rows that are shuffled among themselves) in which the first
        unfinished file begins.
        """
        while self._num_leading in self._finished or self._is_written(self._num_leading):
            self._num_leading += 1
        return self.windows.around(self.windows.of_file(self._num_leading)).start

    def _is_written(self, number: int) -> bool:
        return number < self._num_files and self._pieces.is_whole(self._piece(number))

    def add(self, row_numbers: NDArray[np.int64], part: str) -> None:
        """Add the next rows of the split, in the order of the log. The temporary file (piece) `part` holds these rows.

        `row_numbers` [n] are the line numbers of the rows in the log. A task is started for each file whose rows are
        now complete, and pieces that are not needed any more are removed.
        """
        self._membership.update(np.ascontiguousarray(row_numbers).data)
        if self._row_numbers is not None:
            self._row_numbers.write(row_numbers)
        first, self._num_rows = self._num_rows, self._num_rows + len(row_numbers)
        self._parts.append((range(first, self._num_rows), part))
        while self.windows.around(self.windows.of_file(self._num_files)).stop <= self._num_rows:
            self._start_file()
        first_needed = self.first_needed
        while self._parts and self._parts[0][0].stop <= first_needed:
            self._pieces.remove(self._parts.popleft()[1])

    def _start_file(self) -> None:
        number, rows = self._num_files, self.windows.of_file(self._num_files)
        self._num_files += 1
        if number in self._finished:
            return
        rows = range(rows.start, min(rows.stop, self._num_rows))
        needed = self.windows.around(rows)
        parts = tuple(part for part in self._parts if part[0].start < needed.stop and part[0].stop > needed.start)
        task = FileToWrite(self.folder, self._pieces.folder, self.split, number, rows, parts, self.windows)
        self.files.start(number, task)

    def finish(self) -> None:
        """Start the task that writes the last file, and complete the split's file of row numbers.

        The last file may have fewer rows than the others.
        """
        while self.windows.of_file(self._num_files).start < self._num_rows:
            self._start_file()
        if self._row_numbers is not None:
            self._row_numbers.finish()

    def written(self) -> Split:
        """Return the entry of the split for schema.json. All files of the split must have been written before."""
        files = tuple(self._pieces.expect(self._piece(number))[0] for number in range(self._num_files))
        return Split(
            self._num_rows,
            self.num_clicks,
            files,
            format_checksum(self._membership),
            self.num_unlabelled,
            self.num_weightless,
            self.weights.mean if self.weights.count else 0.0,
        )


@dataclass(frozen=True)
class Windows:
    """The division of a split's rows, numbered from 0, into MindRecord files, and into windows for shuffling.

    A window is a range of consecutive rows that are shuffled among themselves. So a file can be written once all rows
    of the windows that overlap it are encoded.
    """

    seed: int
    window_rows: int  # Number of rows of a window. With 1, rows are written in the order of the log.
    block_rows: int
    file_rows: int  # Number of rows of a MindRecord file, a multiple of `block_rows`.

    def of_file(self, number: int) -> range:
        """Return the range of the rows that file `number` contains, by their numbers after shuffling.

        Files are numbered from 0. The last file may have fewer rows than its range.
        """
        return range(number * self.file_rows, (number + 1) * self.file_rows)

    def around(self, rows: range) -> range:
        """Return the smallest range that contains `rows` and consists of whole windows.

        The rows of a window are shuffled among themselves.
        """
        w = self.window_rows
        return range(rows.start // w * w, -(-rows.stop // w) * w)


def window_order(seed: int, window: int, num_rows: int) -> NDArray[np.int64]:
    """Return the order in which window number `window` of `num_rows` rows is written: a permutation of their indices.

    The permutation is random, but depends only on the arguments.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, window]))).permutation(num_rows)


class WindowShuffle:
    """Shuffles rows within windows of `window_rows` consecutive rows.

    The caller adds rows in the order of the log, and gets the rows of each full window in shuffled order. The first row
    that is added must be the first row of window number `first_window`.
    """

    def __init__(self, seed: int, window_rows: int, first_window: int = 0) -> None:
        self._window_rows = window_rows
        self._seed = seed
        self._window = first_window
        self._num_rows = 0
        self._rows: Examples | None = None

    def add(self, rows: Examples) -> Iterator[Examples]:
        """Add the next rows. If they complete windows, yield the rows of these windows in shuffled order.

        A window is a range of `window_rows` consecutive rows. Its rows are yielded in slices of at most `_PIECE_ROWS`.
        """
        if self._rows is None:
            self._rows = rows.room(self._window_rows)
        while len(rows):
            now = rows.take(slice(self._window_rows - self._num_rows))
            self._rows.overwrite(self._num_rows, now)
            self._num_rows += len(now)
            rows = rows.take(slice(len(now), None))
            if self._num_rows == self._window_rows:
                yield from self.finish()

    def finish(self) -> Iterator[Examples]:
        """Shuffle the rows that were added since the last full window, and yield them. Start the next window.

        Rows are yielded in slices of at most `_PIECE_ROWS` rows.
        """
        if self._rows is None:
            return
        order = window_order(self._seed, self._window, self._num_rows)
        for first in range(0, self._num_rows, _PIECE_ROWS):
            yield self._rows.take(order[first : first + _PIECE_ROWS])
        self._window += 1
        self._num_rows = 0
