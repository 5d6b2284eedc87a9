"""`prepare`: from the raw log to a prepared folder, in two readings of the log (one, where nothing is counted).

    first reading    chunks ─► counts, ranges, rejects ─► vocabulary, numeric parameters
    second reading   chunks ─► ids and numbers ─► splits (training rows shuffled) ─► MindRecord files

Chunks are independent tasks for any worker; their results are combined in the chunks' order. So the folder
has the same bytes for any chunk size and number of workers.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from common.memory import num_cores
from data_prep.encoding.fit import UsedVocabulary, fit_vocabulary
from data_prep.encoding.given import GivenVocabulary, read_given_vocabulary
from data_prep.execution import memory
from data_prep.execution.folder import Workplace, new_folder, real_output, sync_files
from data_prep.execution.pieces import Pieces
from data_prep.execution.pools import ExecutorChoice, Pools
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.count import check_statistics, read_labels
from data_prep.pipeline.describe import describe, run_identity
from data_prep.pipeline.disk_space import (
    check_room,
    explain_full_disk,
    guess_rows,
    least_bytes,
    warn_of_little_room,
    whole_bytes,
)
from data_prep.pipeline.encode import Encoder
from data_prep.pipeline.fit import fit, needs_counting, usual_row_bytes
from data_prep.pipeline.split import Split, make_split
from data_prep.pipeline.write import write_splits
from data_prep.pipeline.zoo_layout import check_ids, lay_out_for_zoo, zoo_row_bytes
from data_prep.prepared import schema
from data_prep.prepared.rows import row_bytes
from data_prep.prepared.writer import FILE_ROWS, import_mindspore_early
from data_prep.raw_log.files import LogFile, absolute, find_log
from data_prep.raw_log.reading import LogReading
from data_prep.report.page import REPORT_FILE, write_report
from data_prep.report.timing import RunClock, Timing, write_timing
from data_prep.statistics.file import write_statistics
from data_prep.statistics.statistics import LogStatistics

log = logging.getLogger(__name__)


def prepare(
    inputs: str | Path | Sequence[str | Path],
    output: Path,
    options: PrepareOptions | None = None,
    *,
    overwrite: bool = False,
    restart: bool = False,
    vocabulary_of: Path | None = None,
    extend: bool = False,
    executor: ExecutorChoice | None = None,
    report: bool = False,
    chunk_bytes: int | None = None,
    file_rows: int = FILE_ROWS,
) -> schema.Schema:
    """Prepare the log at `inputs` (files, folders, globs; paths or URIs) into the new folder `output`.

    `vocabulary_of` is a prepared folder whose vocabulary and numeric columns are used: nothing is fitted to this log.
    With `extend`, values that are new in it follow with ids of their own. `report` draws report.html as well and writes
    timing.json, which tell of this run and not of the data alone. The folder appears under its name when it is
    complete; a run that was ended before is gone on with, unless `restart` begins anew. Raises FileNotFoundError,
    FileExistsError (an `output` that is there already, unless it is a prepared folder to `overwrite`), ValueError
    (bad input, or an ended run of other options or another log).
    """
    options = options or PrepareOptions()
    memory.check_limit(options)
    clock = RunClock()
    executor = executor or ExecutorChoice()
    files, output = find_log(inputs), real_output(output)
    if executor.kind != "processes":  # workers elsewhere stand in other folders
        files, output = tuple(map(absolute, files)), output.absolute()
    if extend and vocabulary_of is None:
        raise ValueError("--extend adds to the vocabulary of a prepared folder; name it: --vocabulary DIR")
    given = read_given_vocabulary(vocabulary_of, options, extend) if vocabulary_of else None
    identity = run_identity(files, options, given, file_rows)
    chunk_bytes = chunk_bytes or memory.chunk_bytes(options)
    needed = whole_bytes(guess_rows(files), usual_row_bytes(options), zoo_row_bytes(options))
    with (
        new_folder(output, identity, chunk_bytes, overwrite, restart) as workplace,
        explain_full_disk(workplace.folder, needed),
    ):
        if workplace.is_complete:
            result = schema.read_schema(workplace.folder)
        else:
            warn_of_little_room(workplace.folder, needed)
            with closing(Pools(executor)) as pools:
                result = _make(files, options, given, workplace, pools, clock, file_rows)
            sync_files(workplace.folder)  # schema.json says that all files are there
            schema.write_schema(result, workplace.folder)
        timing = clock.stop()
        if report:  # before the folder has its name: none of that name is without
            if timing.stages:  # else an ended run had done all but this
                write_timing(timing, workplace.folder)
            write_report(workplace.folder)
    _tell(result, timing, output)
    if report:
        log.info("look at %s", output / REPORT_FILE)
    return result


def _tell(result: schema.Schema, timing: Timing, output: Path) -> None:
    train, num_lines = result.splits["train"], result.source["lines"]
    if train.rows and train.clicks in (0, train.rows):
        log.warning("%s of %s training rows are clicks: a model learns nothing from them", train.clicks, train.rows)
    log.info("prepared %s: %s lines, %s rows/s", output, f"{num_lines:,}", f"{num_lines / timing.seconds:,.0f}")


def _make(
    files: Sequence[LogFile],
    options: PrepareOptions,
    given: GivenVocabulary | None,
    workplace: Workplace,
    pools: Pools,
    clock: RunClock,
    file_rows: int,
) -> schema.Schema:
    """Make all files of the folder but schema.json; returns its content."""
    with ExitStack() as at_the_end:
        if options.memory_limit_bytes >= memory.LIMIT_FOR_EARLY_IMPORT:
            at_the_end.callback(import_mindspore_early().join)
        num_workers = memory.counting_workers(options, num_cores(), workplace.chunk_bytes)
        reading = LogReading(files, options.data, pools, num_workers, workplace.chunk_bytes, workplace.pieces)
        split = _make_split(reading, options, workplace.pieces)
        fitted = fit(reading, split, options, given, workplace)
        statistics, numeric, vocabulary = fitted.statistics, fitted.numeric, fitted.vocabulary
        if options.layout == "zoo":
            check_ids(vocabulary.size)

        window_bytes = _window_bytes(options, statistics, vocabulary, len(numeric))
        reading.num_workers = memory.encoding_workers(
            options, num_workers, workplace.chunk_bytes, window_bytes, vocabulary.lookup.size
        )
        row_bytes = usual_row_bytes(options), zoo_row_bytes(options)
        check_room(workplace.folder, least_bytes(statistics.num_good_lines, *row_bytes))
        is_only_reading = not needs_counting(options, given)
        encoder = Encoder(numeric, vocabulary.lookup, vocabulary.ids_dtype, split, options, counts=is_only_reading)
        blocks_folder = workplace.work_folder if options.layout == "zoo" else workplace.folder
        splits = write_splits(reading, encoder, options, statistics, workplace, blocks_folder, file_rows)
        if options.layout == "zoo":
            splits = lay_out_for_zoo(splits, blocks_folder, workplace.folder)
        if is_only_reading:
            check_statistics(statistics, options, reading.name, workplace.folder, is_fitted=given is None)
            if not given:
                vocabulary = fit_vocabulary(statistics, options, len(numeric), workplace.folder)  # now with counts
        write_statistics(statistics, options, workplace.folder)
        clock.stages, clock.workers = reading.seconds, num_workers
        return describe(reading, statistics, vocabulary, numeric, splits, options, workplace.folder)


def _make_split(reading: LogReading, options: PrepareOptions, pieces: Pieces) -> Split:
    """The rule, which may take a reading of its own."""
    split: Split | None = pieces.read("split")
    if split is None:
        names = [file.name for file in reading.files]
        split = make_split(options, reading.count_lines, functools.partial(read_labels, reading, options), names)
        pieces.write("split", split)
        pieces.clear("labels-")
    return split


def _window_bytes(
    options: PrepareOptions, statistics: LogStatistics, vocabulary: UsedVocabulary, num_numeric: int
) -> int:
    """What WindowShuffle takes."""
    rows = min(options.shuffle_window_rows, statistics.num_training_rows or options.shuffle_window_rows)
    return rows * row_bytes(len(vocabulary.categorical), num_numeric, vocabulary.ids_dtype)
