"""Prepare a raw log: encode its rows into a prepared folder, in two passes over the log.

If neither the vocabulary nor a numeric transform is fitted to the log, the second pass is the only one.

    first pass    chunks ─► counts, ranges, rejects ─► vocabulary, numeric parameters
    second pass   chunks ─► ids and numbers ─► splits (training rows shuffled) ─► MindRecord files

Chunks of the log are independent tasks for the workers. Results are combined in the order of the chunks, so the folder
has the same bytes for any chunk size and any number of workers.
"""

from __future__ import annotations

import functools
import glob
import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.files import FolderInUse, checksum, make_folder
from common.packages import PROJECT
from common.process import checksum_of_sources, cpu_quota, num_cores
from data_prep.checks.reject_causes import check_statistics
from data_prep.encoding.encoder import MOST_UNKNOWN, RowEncoder
from data_prep.encoding.fit import fit_vocabulary
from data_prep.encoding.from_values import bad_cell
from data_prep.encoding.prepared_vocabulary import BaseVocabulary, read_base_vocabulary, with_booleans
from data_prep.encoding.vocabulary import VocabularyReader
from data_prep.execution import prepared_folder
from data_prep.execution.prepared_folder import REJECTS_FILE, WorkDir
from data_prep.execution.tasks import Pools
from data_prep.options.executor import ExecutorChoice
from data_prep.options.options_file import PREPARE_SECTION
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline import memory_and_disk
from data_prep.pipeline.chunk_tasks import ChunkCounter, Encoder
from data_prep.pipeline.first_pass import Fitted, encoded_row_bytes, fit, needs_counting, usual_row_bytes
from data_prep.pipeline.split import find_split
from data_prep.pipeline.split_files import Windows, write_splits
from data_prep.pipeline.zoo_layout import check_ids_fit, lay_out_for_zoo, zoo_row_bytes
from data_prep.prepared import schema
from data_prep.prepared.data_files import data_file, has_one_class, whole_log, write_schema
from data_prep.prepared.schema import SCHEMA_FILE, Schema
from data_prep.prepared.truth import truth_path
from data_prep.prepared.writer import FILE_ROWS
from data_prep.raw_log.arrow_to_text import check_columns
from data_prep.raw_log.lake.lake_tables import version_read
from data_prep.raw_log.log_files import absolute, find_log
from data_prep.raw_log.reading import LogReading
from data_prep.raw_log.storage import LogFile, is_uri
from data_prep.report import REPORT_FILE, RunClock, write_report, write_timing
from data_prep.statistics.statistics import LogStatistics, read_statistics, write_statistics

log = logging.getLogger(__name__)


_LIBRARIES = ("numpy", "pyarrow", "mindspore")
_TABLE_FILE = "table.parquet"
_NO_TIME = "the order of its commits, which a compaction changes; a column of kind timestamp gives a lasting order"


def prepare(
    inputs: str | Path | Sequence[str | Path],
    output: Path,
    options: PrepareOptions | None = None,
    *,
    overwrite: bool = False,
    restart: bool = False,
    vocabulary_of: Path | None = None,
    extend: bool = False,
    version: int | None = None,
    executor: ExecutorChoice | None = None,
    report: bool = False,
    chunk_bytes: int | None = None,
    file_rows: int = FILE_ROWS,
) -> schema.Schema:
    """Prepare the log at `inputs` into the new folder `output`, and return the folder's schema.

    The folder gets its name when it is complete. The same call resumes an interrupted preparation.

    - `inputs`: files, folders or globs, as paths or URIs.
    - `options`: the settings of section `prepare`; by default Criteo's format.
    - `overwrite`: replace `output` if it is a prepared folder. `restart`: start an interrupted preparation anew.
    - `vocabulary_of`: a prepared folder whose vocabulary and numeric columns are used, so that nothing is fitted to
      this log. With `extend`, values that are new in this log get ids after all existing ones.
    - `version`: the version of a Delta table, or the id of a snapshot of an Iceberg table. By default it is the version
      that an interrupted preparation has read, or else the newest one.
    - `executor`: the kind of workers; by default processes of this machine.
    - `report`: also write report.html and timing.json, whose content may differ from run to run.
    - `chunk_bytes`, `file_rows`: number of bytes of the log that one task processes, and of rows per MindRecord file.

    Raise FileNotFoundError if there is no log, FileExistsError if `output` exists and may not be replaced, OSError if
    the disk is full, and ValueError for bad input, or if an interrupted preparation had other options or another log.

    >>> from pathlib import Path
    >>> from data_prep.options.prepare_options import PrepareOptions
    >>> from data_prep.pipeline.prepare import prepare
    >>> schema = prepare("log.txt", Path("prepared-log"), PrepareOptions(min_count=2))  # a log in Criteo's format
    >>> list(schema.splits), len(schema.categorical)
    (['train', 'valid', 'test'], 26)
    """
    options = options or PrepareOptions()
    memory_and_disk.check_limit(options)
    clock = RunClock()
    executor = executor or ExecutorChoice()
    output = prepared_folder.real_output(output)
    files = find_log(inputs, version, {} if restart else prepared_folder.unfinished_identity(output))
    # Workers on other machines may have another working directory, so they get absolute paths.
    if executor.kind != "processes":
        files, output = tuple(map(absolute, files)), output.absolute()
    if extend and vocabulary_of is None:
        raise ValueError("--extend adds to the vocabulary of a prepared folder; name it: --vocabulary DIR")
    if files[0].lake and options.split == "chronological":
        by = f"the column {options.split_time}" if options.split_time else _NO_TIME
        log.info("the rows of the table are split by %s", by)
    base = read_base_vocabulary(vocabulary_of, options, extend) if vocabulary_of else None
    point_zero = {*options.data.point_zero, *(base.log_format.point_zero if base else ())}
    log_format = with_booleans(files, options.data, base)
    options = replace(options, data=replace(log_format, point_zero=tuple(sorted(point_zero))))
    identity = run_fingerprint(files, options, base, file_rows)
    chunk_bytes = chunk_bytes or memory_and_disk.chunk_bytes(options)
    needed = memory_and_disk.whole_bytes(memory_and_disk.guess_rows(files), *_row_bytes(options))
    with (
        prepared_folder.new_folder(output, identity, chunk_bytes, overwrite, restart) as work_dir,
        memory_and_disk.explain_full_disk(work_dir.folder, needed),
    ):
        if work_dir.is_complete:
            result = schema.read_schema(work_dir.folder)
        else:
            memory_and_disk.warn_of_little_room(work_dir.folder, needed)
            with closing(Pools(executor)) as pools:
                result = _make_files(files, options, base, work_dir, pools, clock, file_rows)
            # schema.json means that the folder is complete, so sync all other files to the disk before writing it.
            prepared_folder.sync_files(work_dir.folder)
            write_schema(result, work_dir.folder)
        timing = clock.stop()
        # Write the report before the folder is renamed to `output`, so that every finished folder has one.
        if report:
            # An interrupted run may have written all files but the report. Then this run has made no pass over the log,
            # and has no times of passes (stages) to record.
            if timing.stages:
                write_timing(timing, work_dir.folder)
            write_report(work_dir.folder)
    if base:
        _warn_of_other_values(base, result, output)
    _log_result(result, options, output, timing.seconds)
    if report:
        log.info("look at %s", output / REPORT_FILE)
    return result


def _log_result(result: schema.Schema, options: PrepareOptions, output: Path, seconds: float) -> None:
    train, num_lines = result.splits["train"], result.source["lines"]
    if has_one_class(train):
        with_label = " with a label" if train.unlabelled else ""
        text = "%s of %s training rows%s are clicks: a model learns nothing from them"
        log.warning(text, train.clicks, train.num_labelled, with_label)
    profile, unlabelled = read_statistics(output), whole_log(result).unlabelled
    without_label = f", {unlabelled:,} more have no label" if unlabelled else ""
    rate, rows = 100 * profile.click_rate, f"{profile.num_labelled:,}"
    weights = ", each counted once whatever its weight" if options.data.columns_of_kind("weight") else ""
    log.info("%s; click rate %.2f %% of %s rows%s%s", options.data.label_in_words, rate, rows, weights, without_label)
    if kept := profile.kept_rows_in_words(result):
        log.info("%s", kept)
    if result.rejected_rows:
        reasons = ", ".join(f"{name} {count:,}" for name, count in result.source["rejected_by_reason"].items() if count)
        counts = f"{result.rejected_rows:,} of {num_lines:,}"
        log.warning("%s lines were rejected (%s): %s has them", counts, reasons, output / REJECTS_FILE)
    log.info("prepared %s: %s lines, %s rows/s", output, f"{num_lines:,}", f"{num_lines / seconds:,.0f}")


def _warn_of_other_values(base: BaseVocabulary, result: schema.Schema, output: Path) -> None:
    """Log a warning for each string column in which nearly all cells of training rows have values that `base` lacks.

    `base` is the vocabulary given by --vocabulary. Probably this log writes the values in another form than the log of
    `base`, such as 7.0 for 7.
    """
    profile = read_statistics(output)
    with closing(VocabularyReader([output / schema.VOCABULARY_FILE])) as reader:
        for before, field, column in zip(base.schema.categorical, result.categorical, base.columns, strict=True):
            is_plain = base.log_format.columns.get(field.name) == "string" and not column.shares
            # Hashed columns are skipped: they have no vocabulary, and only the missing value has an id of its own.
            if not is_plain or before.num_values < 2:
                continue
            counts, examples = profile.categorical[field.name], ""
            cells, unknown = profile.training_rows - counts.missing, counts.unknown
            if num_new := field.num_values - before.num_values:
                values = reader.read(field, column)
                unknown += int(values.counts[-num_new:].sum())
                assert values.texts is not None
                first = values.texts.take(np.arange(field.num_values)[-num_new:][:3]).tolist()
                examples = f", such as {', '.join(repr(text.decode()) for text in first)}"
            if unknown > MOST_UNKNOWN * cells:
                log.warning(
                    "column %s: %s of %s training cells have values that %s lacks%s; a model of it has learnt nothing "
                    "of them. Are they written as there (7, not 7.0)?",
                    *(field.name, f"{unknown:,}", f"{cells:,}", base.folder, examples),
                )


def _row_bytes(options: PrepareOptions) -> tuple[int, int]:
    """Return the estimated bytes of an encoded row, and the bytes of a row in the layout of MindSpore's model zoo.

    The second number is 0 if the preparation does not use that layout.
    """
    num_columns = len(options.data.numeric_fields) + len(options.categorical_columns)
    return usual_row_bytes(options), zoo_row_bytes(num_columns) if options.layout == "zoo" else 0


def _make_files(
    files: Sequence[LogFile],
    options: PrepareOptions,
    base: BaseVocabulary | None,
    work_dir: WorkDir,
    pools: Pools,
    clock: RunClock,
    file_rows: int,
) -> schema.Schema:
    """Prepare the log: write all files of the prepared folder except schema.json. Return the content of schema.json."""
    is_zoo, is_only_pass = options.layout == "zoo", not needs_counting(options, base)

    # The first pass over the log collects statistics, from which the vocabulary and the numeric transforms are
    # computed.
    num_workers = memory_and_disk.counting_workers(options, num_cores(), work_dir.chunk_bytes)
    if not options.workers and (quota := cpu_quota()[1]):
        log.info("workers: %d%s", num_workers, quota)
    reading = LogReading(files, options.data, pools, num_workers, work_dir.chunk_bytes, work_dir.pieces)
    split = find_split(reading, options, work_dir.pieces)
    fitted = fit(reading, split, options, base, work_dir)
    statistics, numeric, vocabulary = fitted.statistics, fitted.numeric, fitted.vocabulary
    if is_zoo:
        check_ids_fit(vocabulary.size)

    # In the second pass, workers encode and split rows. Once all rows of a MindRecord file are encoded, a worker
    # shuffles them and writes the file.
    num_rows = statistics.num_lines - statistics.num_rejects
    window_rows = min(options.shuffle_window_rows, num_rows or options.shuffle_window_rows)
    window_bytes = window_rows * encoded_row_bytes(options, len(numeric), vocabulary.ids_dtype)
    reading.num_workers, num_writers = memory_and_disk.encoding_workers(
        options, num_workers, work_dir.chunk_bytes, window_bytes, vocabulary.lookup.size
    )
    memory_and_disk.check_room(work_dir.folder, memory_and_disk.least_bytes(num_rows, *_row_bytes(options)))
    rows = RowEncoder(numeric, vocabulary.lookup, vocabulary.ids_dtype, options.encoding, vectors=fitted.vectors)
    _check_served(replace(rows, options=options.encoding.without_label()), statistics)
    encoder = Encoder(rows, ChunkCounter(split, options), counts=is_only_pass)
    blocks_folder = work_dir.work_folder if is_zoo else work_dir.folder
    whole_blocks = max(file_rows // options.block_rows, 1) * options.block_rows
    windows = Windows(options.seed, options.shuffle_window_rows, options.block_rows, whole_blocks)
    splits = write_splits(reading, encoder, windows, statistics, work_dir, blocks_folder, num_writers)
    if is_zoo:
        splits = lay_out_for_zoo(splits, blocks_folder, work_dir.folder)

    if is_only_pass:
        check_statistics(statistics, options.max_reject_fraction, reading.name, work_dir.folder, bad_cell, base is None)
        # The log was read only once: no pass counted values before this pass, which encoded the rows. The counts are
        # known only now, so write vocabulary.parquet again.
        if not base:
            vocabulary = fit_vocabulary(statistics, options, len(numeric), work_dir.folder)
    write_statistics(statistics, work_dir.folder)
    clock.stages, clock.workers = reading.seconds, num_workers
    fitted = replace(fitted, vocabulary=vocabulary)
    return describe(reading, fitted, splits, options, work_dir.folder)


def _check_served(to_score: RowEncoder, statistics: LogStatistics) -> None:
    """Raise ValueError if the model cannot know a value that a column has in all rows to score (`serve_as`).

    `to_score` is an encoder of rows to score. Numbers must be in the range of the training rows, if there was a first
    pass that has found this range. Other values must be in the vocabulary.
    """
    ranges = dict(zip(statistics.log_format.numeric_fields, statistics.numeric, strict=True))
    for name, cell in to_score.constants.items():
        least, most = (ranges[name].minimum, ranges[name].maximum) if name in ranges else (None, None)
        if least is not None and most is not None and not least <= cell.values[0] <= most:
            raise ValueError(
                f"prepare.data.serve_as: {name}: {cell.values[0]} is outside of the numbers that training rows have, "
                f"{least} to {most}; give one of them"
            )


def describe(
    reading: LogReading,
    fitted: Fitted,
    splits: dict[str, schema.Split],
    options: PrepareOptions,
    folder: Path,
) -> schema.Schema:
    """Return the content of schema.json for `folder`.

    All other files in the folder must be complete, because the result includes their checksums.
    """
    in_splits = {file.name for split in splits.values() for file in split.files}
    return schema.Schema(
        format_version=schema.FORMAT_VERSION,
        numeric=fitted.numeric,
        categorical=fitted.vocabulary.categorical,
        vocabulary_size=fitted.vocabulary.size,
        ids_dtype=fitted.vocabulary.ids_dtype,
        block_rows=options.block_rows,
        splits=splits,
        rejected_rows=fitted.statistics.num_rejects,
        options=options.decisive(),
        source=_describe_source(reading, fitted.statistics),
        other_files=tuple(
            data_file(folder, path.name)
            for path in sorted(folder.iterdir())
            if path.name not in {*in_splits, *prepared_folder.OWN_NAMES}
        ),
        weight=options.weight_source,
        keys=options.data.key_fields,
        vectors=fitted.vectors,
    )


def _describe_source(reading: LogReading, statistics: LogStatistics) -> dict[str, Any]:
    file, is_one = reading.files[0], len(reading.files) == 1
    # Path at which a file with the true click probabilities lies if the log is a synthetic log of a single file.
    truth = truth_path(Path(file.location)) if is_one and not is_uri(file.location) else None
    return {
        "name": file.name if is_one else reading.name,
        **asdict(reading.fingerprint),
        "files": [asdict(file) for file in reading.files_read],
        "lines": statistics.num_lines,
        "rejected_by_reason": dict(sorted(statistics.rejects_by_reason.items())),
        "truth": str(truth.resolve()) if truth and truth.is_file() else None,
        **version_read(reading.files),
    }


def run_fingerprint(
    files: Sequence[LogFile], options: PrepareOptions, base: BaseVocabulary | None, file_rows: int
) -> dict[str, Any]:
    """Return, as plain values by name, all that can change a byte of the prepared folder: options, log, versions.

    An interrupted run is only resumed by a run with an equal fingerprint. The names appear in the error message about a
    difference.
    """
    return {
        **{f"{PREPARE_SECTION}.{name}": value for name, value in options.decisive().items()},
        "input": [file.location if is_uri(file.location) else str(Path(file.location).resolve()) for file in files],
        **{f"size of {file.name}": file.state.size for file in files},
        **{f"time of {file.name} in ns": file.state.modified_ns for file in files},
        **version_read(files),
        "--vocabulary": str(base.folder.resolve()) if base else None,
        "--extend": base.extends if base else False,
        "--vocabulary's checksum": checksum(base.folder / SCHEMA_FILE) if base else None,
        "rows of a file": file_rows,
        "program": _program(),
        "python": platform.python_version(),
        **{name: version(name) for name in _LIBRARIES},
    }


@functools.cache
def _program() -> str:
    """Return the checksum of this program's sources in common/ and data_prep/.

    Only a program with the same checksum may resume the unfinished work of an interrupted preparation.
    """
    return checksum_of_sources(PROJECT, ("common", "data_prep"))


def prepare_table(table: pa.Table, output: Path, options: PrepareOptions, **how: Any) -> Schema:
    """Prepare the rows of an Arrow table into the new folder `output`, and return the folder's schema.

    `how` are the keyword arguments of `prepare`, which also lists the errors. The table is written to a Parquet file
    beside `output`, which is removed afterwards. The folder of that file is named after the file's checksum, and the
    file's modification time is fixed. So the same call resumes an interrupted preparation of the same table.
    """
    check_columns("the table", table.schema, options.data)
    # pyarrow cannot read lists of a fixed size back from a Parquet file if one of them is null (pyarrow 25).
    for place, field in enumerate(table.schema):
        if pa.types.is_fixed_size_list(field.type):
            lists = table.column(place).cast(pa.list_(field.type.value_type))
            table = table.set_column(place, field.name, lists)
    output = prepared_folder.real_output(output)
    make_folder(output.parent)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f"{output.name}.table-") as temporary:
        file = Path(temporary) / _TABLE_FILE
        try:
            pq.write_table(table, file)
        except pa.ArrowException as error:
            raise ValueError(f"the table cannot be written as a Parquet file: {error}") from error
        os.utime(file, (0, 0))
        folder = output.with_name(f"{output.name}.table-{checksum(file).partition(':')[2]}")
        folder.mkdir(exist_ok=True)
        file.replace(folder / _TABLE_FILE)
    try:
        schema = prepare(folder / _TABLE_FILE, output, options, **how)
    except FolderInUse:
        # Another process is preparing the same table and reads the same Parquet file, so do not remove that file.
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # Remove the folder of the table's Parquet file, and such folders that killed runs for the same output have left.
    for path in output.parent.glob(f"{glob.escape(output.name)}.table-{'[0-9a-f]' * 16}"):
        shutil.rmtree(path, ignore_errors=True)
    return schema
