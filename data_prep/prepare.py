"""`prepare`: from the raw log to a prepared folder, in two readings of the log (one, where nothing is counted).

    first reading    chunks ─► counts, ranges, rejects ─► vocabulary, numeric parameters
    second reading   chunks ─► ids and numbers ─► splits (training rows shuffled) ─► MindRecord files

Chunks are independent tasks for any worker; their results are combined in the chunks' order. So the folder
has the same bytes for any chunk size and number of workers.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_prep import memory, schema
from data_prep.buckets import categorical_fields
from data_prep.checksums import checksum
from data_prep.criteo import Chunk
from data_prep.encode import EncodedChunk, EncodedRows, Encoder, numeric_fields, row_bytes
from data_prep.executors import num_cores
from data_prep.given_vocabulary import GivenVocabulary, read_given_vocabulary
from data_prep.kernels import Choice, choose_kernels
from data_prep.log_reading import LogReading
from data_prep.lookup import LookupFile, LookupWriter
from data_prep.mindrecord import FILE_ROWS, MindRecordWriter, WrittenFile, import_mindspore_early
from data_prep.options import PrepareOptions
from data_prep.raw_log import find_log
from data_prep.shuffle import WindowShuffle
from data_prep.split import HashesOfLabel, LabelHasher, Split, make_split
from data_prep.statistics import ChunkCounter, ChunkCounts, LogStatistics
from data_prep.truth import truth_path
from data_prep.vocabulary import ids_dtype, make_vocabulary, order_values
from data_prep.vocabulary_file import VocabularyWriter

REJECTS_FILE = "rejects.tsv"
WORK_FOLDER = "work"  # in the folder while it is made: counts, tables and results under way
_REJECTS_SHOWN = 5
_REJECT_BYTES_SHOWN = 300

log = logging.getLogger(__name__)


def prepare(
    input_path: Path,
    output: Path,
    options: PrepareOptions | None = None,
    *,
    overwrite: bool = False,
    vocabulary_of: Path | None = None,
    chunk_bytes: int | None = None,
    file_rows: int = FILE_ROWS,
) -> schema.Schema:
    """Prepare the log at `input_path` (a file or a folder with one) into the new folder `output`.

    `vocabulary_of` is a prepared folder whose vocabulary and numeric columns are used: nothing is fitted to this log.
    The folder appears under its name when it is complete. Raises FileNotFoundError, FileExistsError (an
    `output` that is there already, unless it is a prepared folder to `overwrite`), ValueError (bad input).
    """
    options = options or PrepareOptions()
    log_path = find_log(input_path)
    given = read_given_vocabulary(vocabulary_of, options) if vocabulary_of else None
    needs_counting = options.needs_counting and given is None
    with _new_folder(output, overwrite) as folder, ExitStack() as at_the_end:
        started = time.monotonic()
        if options.memory_limit_bytes >= memory.LIMIT_FOR_EARLY_IMPORT:
            at_the_end.callback(import_mindspore_early().join)
        work_folder = folder / WORK_FOLDER
        work_folder.mkdir()
        reading = LogReading(
            log_path,
            memory.counting_workers(options, num_cores()),
            chunk_bytes or memory.chunk_bytes(options),
            work_folder,
        )
        split = make_split(options, reading.count_lines, functools.partial(_read_labels, reading, options))
        statistics = _new_statistics(options, work_folder, reading.num_workers)
        if needs_counting:
            _count(reading, split, options, statistics, folder)
            _check_statistics(statistics, options, log_path, folder, is_fitted=given is None)
        numeric = given.schema.numeric if given else numeric_fields(options, statistics.integers)
        if given:
            vocabulary = _take_vocabulary(given, folder)
        else:
            vocabulary = _make_vocabulary(statistics, options, len(numeric), folder)

        reading.num_workers = memory.encoding_workers(
            options,
            reading.num_workers,
            _window_bytes(options, statistics, vocabulary, len(numeric)),
            vocabulary.lookup.size,
        )
        encoder = Encoder(numeric, vocabulary.lookup, vocabulary.ids_dtype, split, options, counts=not needs_counting)
        splits = _write_splits(reading, encoder, options, statistics, folder, file_rows)
        if not needs_counting:
            _check_statistics(statistics, options, log_path, folder, is_fitted=given is None)
            if not given:
                vocabulary = _make_vocabulary(statistics, options, len(numeric), folder)  # now with counts
        shutil.rmtree(work_folder)
        result = _describe(reading, statistics, vocabulary, numeric, splits, options, folder)
        schema.write_schema(result, folder)
    rate = statistics.num_lines / (time.monotonic() - started)
    log.info("prepared %s: %s lines, %s rows/s", output, f"{statistics.num_lines:,}", f"{rate:,.0f}")
    return result


def _window_bytes(options: PrepareOptions, statistics: LogStatistics, vocabulary: _Vocabulary, num_numeric: int) -> int:
    """What WindowShuffle takes."""
    rows = min(options.shuffle_window_rows, statistics.num_training_rows or options.shuffle_window_rows)
    return rows * row_bytes(len(vocabulary.categorical), num_numeric, vocabulary.ids_dtype)


@contextmanager
def _new_folder(output: Path, overwrite: bool) -> Iterator[Path]:
    """A folder beside `output` that takes its name at the end, or vanishes on an error."""
    _check_output(output, overwrite)
    partial = output.with_name(output.name + ".partial")
    _remove(partial)  # of a run that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        _remove(partial)
        raise
    replaced = output.with_name(output.name + ".replaced")
    if output.exists():
        _remove(replaced)
        output.rename(replaced)
    partial.rename(output)
    _remove(replaced)


def _check_output(output: Path, overwrite: bool) -> None:
    """Nothing but a prepared folder is ever replaced, and that only when it is asked for."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / schema.SCHEMA_FILE).is_file():
        raise FileExistsError(f"{output} is there and is not a prepared folder; give another output")
    if not overwrite:
        raise FileExistsError(f"{output} holds prepared data; replace it with --overwrite or give another output")


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _new_statistics(options: PrepareOptions, work_folder: Path, num_workers: int) -> LogStatistics:
    num_categorical = len(categorical_fields(options.integer_buckets))
    return LogStatistics(num_categorical, work_folder, memory.counts_bytes(options, num_workers))


@dataclass(frozen=True)
class _LabelReader:
    """What a stratified split has to know of a chunk."""

    hasher: LabelHasher
    kernels: Choice

    def look(self, chunk: Chunk) -> list[HashesOfLabel]:
        rows = choose_kernels(self.kernels).parse_chunk(chunk).rows
        return self.hasher.look(rows.row_numbers, rows.labels)


def _read_labels(reading: LogReading, options: PrepareOptions, hasher: LabelHasher) -> list[list[HashesOfLabel]]:
    """A reading for `split: stratified`: what the hasher finds, by label and chunk."""
    nothing = hasher.look(np.empty(0, np.int64), np.empty(0, np.bool_))
    by_chunk = [nothing]  # of an empty log, too
    reading.run(_LabelReader(hasher, options.kernels).look, by_chunk.append, "labels")
    return [list(parts) for parts in zip(*by_chunk, strict=True)]


def _count(reading: LogReading, split: Split, options: PrepareOptions, statistics: LogStatistics, folder: Path) -> None:
    """First reading: statistics of the training rows, and rejects.tsv."""
    counter = ChunkCounter(split, options.kernels, options.integer_buckets)
    with (folder / REJECTS_FILE).open("wb") as rejects:

        def consume(counts: ChunkCounts) -> None:
            statistics.add(counts)
            rejects.write(counts.rejects_tsv)

        reading.run(counter.count, consume, "count")


def _check_statistics(
    statistics: LogStatistics, options: PrepareOptions, log_path: Path, folder: Path, is_fitted: bool
) -> None:
    if statistics.num_lines == 0:
        raise ValueError(f"{log_path} is empty; expected lines of a label, 13 integers and 26 hex values between tabs")
    limit = options.max_reject_fraction * statistics.num_lines
    if statistics.num_rejects > limit:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(statistics.rejects_by_reason.items()))
        raise ValueError(
            f"{statistics.num_rejects:,} of {statistics.num_lines:,} lines of {log_path} are bad ({reasons}), more "
            f"than prepare.max_reject_fraction={options.max_reject_fraction:g} allows. The first ones "
            f"(line number, reason, line):\n{_first_rejects(folder)}"
        )
    if statistics.num_training_rows == 0 and is_fitted:
        raise ValueError(
            f"{log_path}: none of {statistics.num_lines:,} lines is a training row; give more lines or a larger "
            "prepare.train_fraction"
        )


def _first_rejects(folder: Path) -> str:
    with (folder / REJECTS_FILE).open("rb") as rejects:
        lines = [line.rstrip(b"\r\n") for line in itertools.islice(rejects, _REJECTS_SHOWN)]
    return "\n".join(line[:_REJECT_BYTES_SHOWN].decode("utf-8", errors="backslashreplace") for line in lines)


def _ordered_values(
    statistics: LogStatistics, options: PrepareOptions, place: int, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The values of a field that get an id of their own, and their counts."""
    if options.vocabulary == "hash":
        return order_values(np.empty(0, np.uint64), statistics.missing[place])
    min_count = options.field_min_count.get(name, options.min_count)
    words = statistics.values.frequent(place, min_count)
    return order_values(words, statistics.missing[place], options.field_max_size.get(name))


@dataclass(frozen=True)
class _Vocabulary:
    """What the second reading and schema.json need of the vocabulary."""

    lookup: LookupFile
    categorical: tuple[schema.CategoricalField, ...]
    size: int

    @property
    def ids_dtype(self) -> str:
        return ids_dtype(self.size)


def _make_vocabulary(statistics: LogStatistics, options: PrepareOptions, num_numeric: int, folder: Path) -> _Vocabulary:
    """Give ids to the frequent values, and write them down for readers and for the second reading."""
    names = categorical_fields(options.integer_buckets)
    ordered = (_ordered_values(statistics, options, place, name) for place, name in enumerate(names))
    listed = VocabularyWriter(folder / schema.VOCABULARY_FILE, names)
    searched = LookupWriter(folder / WORK_FOLDER / "lookup.bin")
    categorical = []
    for field in make_vocabulary(names, ordered, num_numeric, options.oov_buckets):
        listed.add(field)
        searched.add(field)
        categorical.append(field.ids)
        end_id = field.end_id
    listed.finish()
    statistics.values.close()
    memory.give_back_freed_memory()
    return _Vocabulary(searched.finish(), tuple(categorical), end_id)


def _take_vocabulary(given: GivenVocabulary, folder: Path) -> _Vocabulary:
    """The vocabulary of another folder: the same file, and its tables for the reading."""
    shutil.copyfile(given.path, folder / schema.VOCABULARY_FILE)
    searched = LookupWriter(folder / WORK_FOLDER / "lookup.bin")
    for field in given.fields():
        searched.add(field)
    return _Vocabulary(searched.finish(), given.schema.categorical, given.schema.vocabulary_size)


class _SplitOutput:
    """Where the rows of one split go."""

    def __init__(self, writer: MindRecordWriter, shuffle: WindowShuffle | None) -> None:
        self.clicks = 0
        self._membership = xxhash.xxh3_64()
        self._writer = writer
        self._shuffle = shuffle
        self._row_numbers: list[NDArray[np.int64]] = []

    def add(self, rows: EncodedRows) -> None:
        """Take rows in the log's order."""
        self.clicks += int(rows.labels.sum())
        self._membership.update(np.ascontiguousarray(rows.row_numbers).data)
        if self._shuffle is None:
            self._row_numbers.append(rows.row_numbers.copy())  # a part would keep all memory of a worker's result
            self._writer.write(rows)
            return
        for piece in self._shuffle.add(rows):
            self._writer.write(piece)

    @property
    def membership(self) -> str:
        """A checksum of the numbers of all rows, int64 in the log's order."""
        return f"xxh3:{self._membership.hexdigest()}"

    def finish(self) -> tuple[list[WrittenFile], NDArray[np.int64] | None]:
        """Write what waits; the files, and the row numbers in the order written if that is the log's."""
        if self._shuffle is None:
            return self._writer.finish(), np.concatenate(self._row_numbers)
        for piece in self._shuffle.finish():
            self._writer.write(piece)
        return self._writer.finish(), None


def _write_splits(
    reading: LogReading,
    encoder: Encoder,
    options: PrepareOptions,
    statistics: LogStatistics,
    folder: Path,
    file_rows: int,
) -> dict[str, schema.Split]:
    """Second reading: the MindRecord files of all splits. Where it is the only one, statistics and rejects too."""
    outputs = {
        split: _SplitOutput(
            MindRecordWriter(folder, split, options.block_rows, file_rows),
            WindowShuffle(options.seed, options.shuffle_window_rows) if split == "train" else None,
        )
        for split in schema.SPLITS
    }

    with (folder / REJECTS_FILE).open("ab") as rejects:

        def consume(chunk: EncodedChunk) -> None:
            for split, rows in chunk.rows.items():
                outputs[split].add(rows)
            if chunk.counts is not None:
                statistics.add(chunk.counts)
                rejects.write(chunk.counts.rejects_tsv)

        reading.run(encoder.encode_chunk, consume, "encode")
    splits = {}
    for split, output in outputs.items():
        files, row_numbers = output.finish()
        if row_numbers is not None:
            np.save(folder / schema.row_numbers_file(split), row_numbers)
        data_files = tuple(_data_file(folder, file.name, file.rows) for file in files)
        splits[split] = schema.Split(sum(file.rows for file in files), output.clicks, data_files, output.membership)
    return splits


def _describe(
    reading: LogReading,
    statistics: LogStatistics,
    vocabulary: _Vocabulary,
    numeric: tuple[schema.NumericField, ...],
    splits: dict[str, schema.Split],
    options: PrepareOptions,
    folder: Path,
) -> schema.Schema:
    """schema.json's content."""
    in_splits = {file.name for split in splits.values() for file in split.files}
    return schema.Schema(
        format_version=schema.FORMAT_VERSION,
        numeric=numeric,
        categorical=vocabulary.categorical,
        vocabulary_size=vocabulary.size,
        ids_dtype=vocabulary.ids_dtype,
        block_rows=options.block_rows,
        splits=splits,
        rejected_rows=statistics.num_rejects,
        options=options.decisive(),
        source=_describe_source(reading, statistics),
        other_files=tuple(
            _data_file(folder, path.name) for path in sorted(folder.iterdir()) if path.name not in in_splits
        ),
    )


def _describe_source(reading: LogReading, statistics: LogStatistics) -> dict[str, Any]:
    truth = truth_path(reading.path)
    return {
        "name": reading.path.name,
        **dataclasses.asdict(reading.fingerprint),
        "lines": statistics.num_lines,
        "rejected_by_reason": dict(sorted(statistics.rejects_by_reason.items())),
        "truth": str(truth.resolve()) if truth.is_file() else None,
    }


def _data_file(folder: Path, name: str, rows: int = 0) -> schema.DataFile:
    path = folder / name
    return schema.DataFile(name, rows, path.stat().st_size, checksum(path))
