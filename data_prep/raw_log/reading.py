"""Make passes over the whole log, in which workers process its chunks, or read only the first rows of each file.

The log must not change from the start of the first pass to the end of the last one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import xxhash

from common.console import progress_bar
from common.files import format_checksum
from common.signals import check_stop
from data_prep.execution.pieces import Pieces, storable
from data_prep.execution.tasks import Pools, ReadPart, Results, job_name, map_in_order
from data_prep.kernels.parsed import Chunk, FileOfLog
from data_prep.options.log_format import FormatToScore, LogFormat
from data_prep.raw_log.formats import FormatReader, Task, format_of
from data_prep.raw_log.storage import Fingerprint, LogFile, changed_while_read, file_state
from data_prep.raw_log.text_lines import StoredChunk, cells_at_end, header_columns

Result = TypeVar("Result")

# Name of the part that holds the whole result of a task, for passes whose results do not have several parts.
_ONE = "all"

log = logging.getLogger(__name__)


_CHUNK_BYTES = 1 << 20
# At least this many bytes of a file are read to estimate its number of lines. A stream reads ahead, so this number must
# be large compared to the buffer of the stream.
_ESTIMATE_BYTES = 8 << 20


@dataclass(frozen=True)
class FileRead:
    """What is recorded about a file of the log once it was read: its name, size, checksum and number of lines."""

    name: str
    size_bytes: int
    checksum: str
    lines: int


storable(FileRead, StoredChunk, Chunk, FileOfLog)


def num_header_lines(file: LogFile, log_format: LogFormat) -> int:
    """Return the number of lines before the first row of a file: 1 for a text file with a header, otherwise 0."""
    return int(log_format.header and not format_of(file.location).is_table)


def file_of_log(index: int, name: str, first_line: int, file: LogFile, log_format: LogFormat) -> FileOfLog:
    """Return the description of a file that its chunks carry with them.

    `index` is the index of the file in the log, and `first_line` the number of lines in the files before it. If the
    header of a file decides its columns (others: ignored), the header is read. In a text file, the columns that names
    of its folders such as date=2026-11-01 give come after the columns of its lines.
    """
    columns: tuple[str, ...] = ()
    constants = {each: text for each, text in file.constants if each in log_format.columns}
    if is_table := format_of(file.location).is_table:
        columns = tuple(log_format.columns) if isinstance(log_format, FormatToScore) else ()
    elif log_format.others == "ignored" or (log_format.header and constants):
        columns = header_columns(file, log_format)
    elif constants:
        columns = tuple(each for each in log_format.columns if each not in constants)
    of_log = FileOfLog(index, name, first_line, num_header_lines(file, log_format), columns)
    if is_table or not constants:
        return of_log
    # If the file has a column that the names of its folders give too, the column has the same cells twice. Its first
    # copy gets the name "", so that it is ignored.
    own = ("" if each in constants else each for each in columns)
    at_end = cells_at_end(constants.values(), log_format.separator, log_format.quotes)
    return replace(of_log, columns=(*own, *constants), at_end=at_end)


def column_names(file: LogFile, log_format: LogFormat) -> tuple[str, ...]:
    """Return the names of a file's columns, and of the columns that names of its folders (date=2026-11-01) give.

    The file is a table, such as Parquet, or a text file with a header. Raise ValueError if it is damaged.
    """
    of = format_of(file.location)
    names = of.reader().read_schema(file).names if of.is_table else header_columns(file, log_format)
    return tuple(dict.fromkeys([*names, *dict(file.constants)]))


def open_reader(file: LogFile, log_format: LogFormat) -> AbstractContextManager[FormatReader]:
    """Open a file of the log with the module of its format. The reader reads it once from start to end.

    Raise ValueError, also inside the `with` block, if the file is damaged or lacks columns of the format.
    """
    return format_of(file.location).reader().open_reader(file, log_format)


def first_chunks(
    file: LogFile, log_format: LogFormat, of_log: FileOfLog, chunk_bytes: int
) -> Generator[tuple[FormatReader, Task], None, None]:
    """Yield the chunks (blocks of lines) of a file in order, each as a task that loads its lines, together with the
    file's reader.

    `of_log` is the description of the file that its chunks carry with them, a result of `file_of_log`. A caller who
    needs only the first chunks closes the generator; the rest then stays unread.
    """
    with open_reader(file, log_format) as reader:
        for task, _ in reader.chunks(chunk_bytes, of_log):
            yield reader, task


@dataclass(eq=False)
class LogReading:
    """A log that is read in several passes. After each pass it checks that the log has not changed."""

    files: Sequence[LogFile]
    log_format: LogFormat
    pools: Pools
    num_workers: int
    chunk_bytes: int
    pieces: Pieces
    seconds: dict[str, float] = field(default_factory=dict)  # Seconds that each pass over the log took, by title.

    def __post_init__(self) -> None:
        self._size = sum(file.state.size for file in self.files)
        # Size, checksum and number of lines of the files that were read, by the index of the file in `files`.
        self._read_files: dict[int, FileRead] = {}
        # Tasks with which workers can read a file's chunks of lines themselves in later passes over the log, by the
        # index of the file in `files`.
        self._tasks_of: dict[int, list[Task]] = {}
        for index, file in enumerate(self.files):
            # An interrupted preparation may have read the file already, and stored its size, checksum and number of
            # lines.
            earlier = self.pieces.read(_file_piece(index))
            if earlier is not None:
                self._read_files[index], tasks = earlier
                self._tasks_of[index] = [
                    replace(task, location=file.location) if isinstance(task, StoredChunk) else task for task in tasks
                ]

    @property
    def name(self) -> str:
        first = self.files[0].location
        return first if len(self.files) == 1 else f"{first} … {self.files[-1].name} ({len(self.files)} files)"

    @property
    def files_read(self) -> tuple[FileRead, ...]:
        return tuple(self._read_files[index] for index in range(len(self.files)))

    @property
    def fingerprint(self) -> Fingerprint:
        """Size in bytes and checksum of the log, which are known after the first pass.

        For a log of several files they are the total size, and the checksum of a list of the files' sizes and
        checksums.
        """
        files = self.files_read
        if len(files) == 1:
            return Fingerprint(files[0].size_bytes, files[0].checksum)
        listed = "".join(f"{file.size_bytes} {file.checksum}\n" for file in files)
        checksum = format_checksum(xxhash.xxh3_64(listed.encode()))
        return Fingerprint(sum(file.size_bytes for file in files), checksum)

    def count_lines(self) -> int:
        num_lines = 0
        with LogProgress("count lines", self._size) as progress:
            for chunk in self._chunks(progress):
                num_lines += chunk.num_lines
                progress.chunk_is_done()
        self._check_all_unchanged()
        return num_lines

    def run(self, function: Callable[[Chunk], Result], consume: Callable[[Result], object], title: str) -> None:
        """Make a pass over the log: workers call `function` on each chunk, and `consume` gets the results in order.

        The order is that of the log. The results are stored in files whose names contain `title`, so that a run which
        resumes an interrupted one can use them. Every pass must have a different title.
        """
        self.run_in_parts(partial(_in_one_part, function), lambda read: consume(read(_ONE)), title, lambda _: (_ONE,))

    def run_in_parts(
        self,
        function: Callable[[Chunk], Results],
        consume: Callable[[ReadPart], object],
        title: str,
        needed: Callable[[int], Collection[str]],
    ) -> None:
        """Make a pass over the log like `run`, in which `function` returns several named parts for each chunk.

        Each part is stored in a file of its own. `needed` returns, for the index of a chunk, the names of the parts
        that `consume` reads. `consume` gets a function that returns a part by its name.
        """
        check_stop()  # If a stop signal (Ctrl-C, SIGTERM) has arrived, stop before a progress bar or a worker exists.
        start = time.monotonic()
        on_task = partial(_on_task, function)
        # After an error, workers, progress bar and files are closed immediately, before anything is logged or removed.
        with (
            self.pools.open(self.num_workers) as pool,
            LogProgress(title, self._size) as progress,
            closing(self._chunks(progress)) as chunks,
        ):
            if pool is not None:
                self.pieces.write(job_name(title), pool.job_id)
            in_order = map_in_order(on_task, chunks, pool, self.pieces, title, needed, self.chunk_bytes)
            with closing(in_order) as results:
                for read in results:
                    consume(read)
                    progress.chunk_is_done()
        self._check_all_unchanged()  # Check that no file has changed. Workers have read the log until now.
        self.seconds[title] = self.seconds.get(title, 0.0) + time.monotonic() - start

    def _chunks(self, progress: LogProgress) -> Generator[Task, None, None]:
        first_line = size_before = 0
        for index, file in enumerate(self.files):
            name = file.name if len(self.files) > 1 else ""
            of_log = file_of_log(index, name, first_line, file, self.log_format)
            for task, stored_bytes_read in self._tasks(file, of_log):
                first_line = task.first_line + task.num_lines
                progress.chunk_is_given(first_line, size_before + stored_bytes_read)
                yield task
            size_before += file.state.size

    def _check_all_unchanged(self) -> None:
        for file in self.files:
            _check_unchanged(file)

    def _tasks(self, file: LogFile, of_log: FileOfLog) -> Iterator[tuple[Task, int]]:
        """Yield each chunk of a file as a task, with the number of bytes of the stored file up to the chunk's end."""
        _check_unchanged(file)
        if not self._tasks_of.get(of_log.place):
            yield from self._read(file, of_log)
            return
        # The positions of all chunks in the file are known from an earlier pass over the log. Workers read the chunks,
        # so this process need not read the file.
        for task in self._tasks_of[of_log.place]:
            yield task, task.offset + task.num_bytes if isinstance(task, StoredChunk) else file.state.size

    def _read(self, file: LogFile, of_log: FileOfLog) -> Iterator[tuple[Task, int]]:
        tasks: list[Task] = []
        num_lines = 0
        try:
            with open_reader(file, self.log_format) as reader:
                for task, stored in reader.chunks(self.chunk_bytes, of_log):
                    if reader.is_plain:
                        tasks.append(stored or task)
                    num_lines += task.num_lines
                    yield task, reader.stored_bytes_read
        except ValueError:
            # A compressed file looks damaged if it changes while it is read. In this case, report the change instead.
            _check_unchanged(file)
            raise
        _check_unchanged(file)
        if num_lines == 0 and len(self.files) > 1:
            log.warning("%s has no lines", file.location)
        fingerprint = reader.fingerprint
        assert fingerprint is not None
        file_read = FileRead(file.name, fingerprint.size_bytes, fingerprint.checksum, num_lines)
        if self._read_files.setdefault(of_log.place, file_read) != file_read:
            raise ValueError(changed_while_read(file.location))
        self._tasks_of[of_log.place] = tasks
        self.pieces.write(_file_piece(of_log.place), (file_read, tasks))


class LogProgress:
    """A progress bar that shows how much of the log was processed, in bytes of its files as they are stored.

    The bar advances when a chunk has been processed, and not when it was read, because many chunks are read ahead.
    """

    def __init__(self, title: str, size_bytes: int) -> None:
        self._bar = progress_bar(total=size_bytes, desc=title, unit="B", unit_scale=True)
        # The ends of the chunks that no worker has finished: the numbers of lines and of stored bytes from the start of
        # the log to the end of the chunk.
        self._ends: deque[tuple[int, int]] = deque()

    def __enter__(self) -> LogProgress:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def chunk_is_given(self, lines: int, stored_bytes: int) -> None:
        """Record that the next chunk of the log was given to a worker.

        `lines` and `stored_bytes` are counted from the start of the log to the chunk's end.
        """
        self._ends.append((lines, stored_bytes))

    def chunk_is_done(self) -> None:
        """Record that the oldest unfinished chunk is finished, and advance the bar to the end of this chunk."""
        lines, stored_bytes = self._ends.popleft()
        self._bar.set_postfix_str(f"{lines / self._bar.format_dict['elapsed']:,.0f} rows/s", refresh=False)
        self._bar.update(stored_bytes - self._bar.n)


def _in_one_part(function: Callable[[Chunk], Any], chunk: Chunk) -> Results:
    return {_ONE: function(chunk)}


def _on_task(function: Callable[[Chunk], Results], task: Task) -> Results:
    return function(task.load())


def _file_piece(index: int) -> str:
    return f"file-{index:07d}"


def _check_unchanged(file: LogFile) -> None:
    if file_state(file.location) != file.state:
        raise ValueError(changed_while_read(file.location))


@dataclass(frozen=True)
class FileSample:
    """The first lines of a file of the log, and figures from which its number of lines is estimated."""

    file: LogFile
    chunk: Chunk | None  # The first lines, or None for an empty file.
    num_lines: int  # Number of lines that were read to estimate their length, which may be more than `chunk` has.
    stored_bytes_read: int
    is_whole: bool  # True if the whole file was read.

    @property
    def estimated_lines(self) -> float:
        """Estimated number of lines of the whole file.

        The estimate assumes that the lines that were not read have the same mean length as those that were read.
        """
        if self.is_whole:
            return self.num_lines
        return self.num_lines * self.file.state.size / max(self.stored_bytes_read, 1)


def sample_log(
    files: Sequence[LogFile], log_format: LogFormat, num_rows: int, estimate_bytes: int = _ESTIMATE_BYTES
) -> Iterator[FileSample]:
    """Yield the first lines of each file of a log, about `num_rows` lines in total.

    If there are more files than `num_rows`, only `num_rows` of them are read. At least `estimate_bytes` bytes of each
    file are read (or the whole file), to estimate its number of lines.
    """
    each = max(num_rows // len(files), 1)
    for index, file in enumerate(files[:num_rows]):
        name = file.name if len(files) > 1 else ""
        of_log = file_of_log(index, name, 0, file, log_format)
        yield _sample(file, of_log, log_format, each, estimate_bytes)


def _sample(file: LogFile, of_log: FileOfLog, log_format: LogFormat, num_rows: int, estimate_bytes: int) -> FileSample:
    parts: list[bytes] = []
    num_lines = bytes_read = 0
    is_whole, is_bare = True, False
    with closing(first_chunks(file, log_format, of_log, _CHUNK_BYTES)) as chunks:
        for reader, task in chunks:
            if num_lines < num_rows:
                chunk = task.load()
                parts.append(chunk.lines)
                is_bare = chunk.is_bare
            num_lines, bytes_read = num_lines + task.num_lines, reader.stored_bytes_read
            if num_lines > num_rows and bytes_read >= estimate_bytes:
                is_whole = False
                break
    if not num_lines:
        return FileSample(file, None, 0, bytes_read, is_whole)
    # Every line of a chunk ends in a line end, so a split at line ends finds all lines.
    num_kept = min(num_rows, num_lines)
    lines = b"".join(parts).split(b"\n", num_kept)[:num_kept]
    chunk = Chunk(0, num_kept, b"\n".join(lines) + b"\n", of_log, is_bare)
    return FileSample(file, chunk, num_lines, bytes_read, is_whole)
