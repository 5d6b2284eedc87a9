"""`prepare`: from the raw log to a prepared folder, in two readings of the log (one, where nothing is counted).

    first reading    chunks ─► counts, ranges, rejects ─► vocabulary, numeric parameters
    second reading   chunks ─► ids and numbers ─► splits (training rows shuffled) ─► MindRecord files

Chunks are independent tasks for any worker; their results are combined in the chunks' order. So the folder
has the same bytes for any chunk size and number of workers.
"""

from __future__ import annotations

import functools
import logging
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from data_prep import memory, schema
from data_prep.description import describe
from data_prep.encode import Encoder, numeric_fields, row_bytes
from data_prep.executors import num_cores
from data_prep.first_reading import check_statistics, count_log, new_statistics, read_labels
from data_prep.given_vocabulary import read_given_vocabulary
from data_prep.log_files import find_log
from data_prep.log_reading import LogReading
from data_prep.mindrecord import FILE_ROWS, import_mindspore_early
from data_prep.options import PrepareOptions
from data_prep.output_folder import WORK_FOLDER, new_folder
from data_prep.second_reading import write_splits
from data_prep.split import make_split
from data_prep.statistics import LogStatistics
from data_prep.used_vocabulary import UsedVocabulary, fit_vocabulary, take_vocabulary
from data_prep.zoo_layout import lay_out_for_zoo

log = logging.getLogger(__name__)


def prepare(
    inputs: str | Path | Sequence[str | Path],
    output: Path,
    options: PrepareOptions | None = None,
    *,
    overwrite: bool = False,
    vocabulary_of: Path | None = None,
    chunk_bytes: int | None = None,
    file_rows: int = FILE_ROWS,
) -> schema.Schema:
    """Prepare the log at `inputs` (files, folders, globs; paths or URIs) into the new folder `output`.

    `vocabulary_of` is a prepared folder whose vocabulary and numeric columns are used: nothing is fitted to this log.
    The folder appears under its name when it is complete. Raises FileNotFoundError, FileExistsError (an
    `output` that is there already, unless it is a prepared folder to `overwrite`), ValueError (bad input).
    """
    options = options or PrepareOptions()
    files = find_log(inputs)
    given = read_given_vocabulary(vocabulary_of, options) if vocabulary_of else None
    needs_counting = options.needs_counting and given is None
    with new_folder(output, overwrite) as folder, ExitStack() as at_the_end:
        started = time.monotonic()
        if options.memory_limit_bytes >= memory.LIMIT_FOR_EARLY_IMPORT:
            at_the_end.callback(import_mindspore_early().join)
        work_folder = folder / WORK_FOLDER
        work_folder.mkdir()
        reading = LogReading(
            files,
            memory.counting_workers(options, num_cores()),
            chunk_bytes or memory.chunk_bytes(options),
            work_folder,
        )
        split = make_split(options, reading.count_lines, functools.partial(read_labels, reading, options))
        statistics = new_statistics(options, work_folder, reading.num_workers)
        if needs_counting:
            count_log(reading, split, options, statistics, folder)
            check_statistics(statistics, options, reading.name, folder, is_fitted=given is None)
        numeric = given.schema.numeric if given else numeric_fields(options, statistics.integers)
        if given:
            vocabulary = take_vocabulary(given, folder)
        else:
            vocabulary = fit_vocabulary(statistics, options, len(numeric), folder)

        reading.num_workers = memory.encoding_workers(
            options,
            reading.num_workers,
            _window_bytes(options, statistics, vocabulary, len(numeric)),
            vocabulary.lookup.size,
        )
        encoder = Encoder(numeric, vocabulary.lookup, vocabulary.ids_dtype, split, options, counts=not needs_counting)
        splits = write_splits(reading, encoder, options, statistics, folder, file_rows)
        if options.layout == "zoo":
            splits = lay_out_for_zoo(splits, folder)
        if not needs_counting:
            check_statistics(statistics, options, reading.name, folder, is_fitted=given is None)
            if not given:
                vocabulary = fit_vocabulary(statistics, options, len(numeric), folder)  # now with counts
        shutil.rmtree(work_folder)
        result = describe(reading, statistics, vocabulary, numeric, splits, options, folder)
        schema.write_schema(result, folder)
    rate = statistics.num_lines / (time.monotonic() - started)
    log.info("prepared %s: %s lines, %s rows/s", output, f"{statistics.num_lines:,}", f"{rate:,.0f}")
    return result


def _window_bytes(
    options: PrepareOptions, statistics: LogStatistics, vocabulary: UsedVocabulary, num_numeric: int
) -> int:
    """What WindowShuffle takes."""
    rows = min(options.shuffle_window_rows, statistics.num_training_rows or options.shuffle_window_rows)
    return rows * row_bytes(len(vocabulary.categorical), num_numeric, vocabulary.ids_dtype)
