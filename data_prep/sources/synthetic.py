"""Make a synthetic click log in Criteo's format, with the true click probability of each row in a second file.

    draw ranks and numbers of a row -> values at the row's time -> log odds (all in shape.py) -> label -> text

Rows are made in blocks of `BLOCK_ROWS`. Each block has its own stream of random numbers, determined by the seed and the
block's number. So the log's bytes do not depend on the number of workers, and a longer log starts with the rows of a
shorter one.
"""

from __future__ import annotations

import functools
import gzip
import io
import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from common.arrays.hashing import MURMUR3, mix32
from common.console import progress_bar
from common.files import is_at, room_for, sole_writer
from common.process import num_cores
from data_prep.prepared.truth import TRUTH_SCHEMA, truth_path
from data_prep.sources.shape import (
    CATEGORICAL_NAMES,
    MAX_DAYS,
    MISSING_RANK,
    NUMERIC_NAMES,
    START,
    Drift,
    LogShape,
    Now,
    PlantedClicks,
    draw_fields,
    load_shape,
    plant,
    sigmoid,
)

BLOCK_ROWS = 32_768
# Numbers of the blocks from whose rows the weights of the click model are computed. No log is long enough to contain
# these blocks.
SOLVING_BLOCKS = range(1 << 62, (1 << 62) + 2)
GZIP_LEVEL = 1  # Level of gzip's compression. Level 6 takes four times as long and makes the file only a tenth smaller.
_TEXT_FORM = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
_HEX_DIGITS = np.frombuffer("".join(f"{number:04x}" for number in range(1 << 16)).encode(), dtype="S4")

Piece: TypeAlias = tuple[int, int]  # A range of rows within one block: its first row, and the row after its last one.
# What is written for a `Piece`, a range of rows: their lines, true click probabilities, and labels.
WrittenPiece: TypeAlias = tuple[bytes, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class SyntheticSummary:
    """Paths of a synthetic log that was written and of its true probabilities, and its numbers of rows and clicks.

    For a log of several part files, `log_path` is their folder, and `truth_path` belongs to the first part.
    """

    log_path: Path
    truth_path: Path
    rows: int
    clicks: int


@dataclass(frozen=True)
class SyntheticLog:
    """The definition of a synthetic log, which has no end. `draw_block` makes the rows of any block of the log."""

    seed: int
    shape: LogShape
    planted: PlantedClicks
    drift: Drift | None = None


@dataclass(frozen=True)
class Block:
    """The BLOCK_ROWS rows of one block of a synthetic log, as arrays by field.

    `numbers` are only valid where `number_missing` is false.
    """

    numbers: np.ndarray  # [N, n] int64
    number_missing: np.ndarray  # [N, n] bool
    values: np.ndarray  # Values [C, n] int64, or MISSING_RANK. Without drift, values are ranks by frequency.
    # The four parts of the log odds of a click in each row, [4, n] float64, in the order of PART_SHARES.
    logit_parts: np.ndarray
    probability: np.ndarray  # [n] float64, the probability of a click
    label: np.ndarray  # [n] int8, drawn with `probability`
    times: np.ndarray | None  # [n] seconds since 1970 if the log drifts, else None


def synthetic_log(seed: int, drift: Drift | None = None) -> SyntheticLog:
    """Return the definition of the synthetic log with this seed. With `drift`, the log changes over time."""
    planted = planted_clicks(seed)
    return SyntheticLog(seed, planted.shape, planted, drift)


@functools.cache
def planted_clicks(seed: int) -> PlantedClicks:
    """Return the click model of the synthetic logs with this seed.

    Computing its weights takes about a second, so the result is cached.
    """
    shape = load_shape()
    fields = [draw_fields(shape, _uniforms(seed, block, shape.num_uniforms)) for block in SOLVING_BLOCKS]
    numbers, ranks, number_missing = (np.concatenate(parts, axis=1) for parts in zip(*fields, strict=True))
    return plant(seed, shape, numbers, ranks, number_missing)


def draw_block(log: SyntheticLog, block: int) -> Block:
    """Return the rows of block number `block` of a synthetic log.

    The first of these rows is row number `block` · BLOCK_ROWS of the log.
    """
    uniforms = _uniforms(log.seed, block, log.shape.num_uniforms + 1)
    numbers, ranks, number_missing = draw_fields(log.shape, uniforms[:-1])
    now, times, bias = None, None, np.array(log.planted.bias)
    if log.drift is not None:
        days = log.drift.days(np.arange(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS))
        now = Now(log.drift, days, log.drift.values(log.shape, ranks, days))
        times, bias = START.astype(np.int64) + (days * 86400).astype(np.int64), bias + log.drift.logits(days)
    parts = log.planted.logit_parts(numbers, ranks, number_missing, now)
    probability = sigmoid(parts.sum(axis=0) + bias)
    label = (uniforms[-1] < probability).astype(np.int8)
    return Block(numbers, number_missing, ranks if now is None else now.values, parts, probability, label, times)


def block_text(block: Block, rows: slice) -> bytes:
    """Return the given rows of a block as lines of text, whose cells are separated by tabs.

    The columns are label, I1-I13, C1-C26 and, if the log has `Drift`, the time in seconds since 1970.
    """
    columns = {"label": pa.array(block.label[rows])}
    for name, number, missing in zip(NUMERIC_NAMES, block.numbers, block.number_missing, strict=True):
        columns[name] = pa.array(number[rows], mask=missing[rows])
    # A categorical value is written as eight hex digits. The digits of all rows are put into one buffer, which is
    # pyarrow's layout of a string column, so that no Python string per cell is made.
    num_rows = len(block.label[rows])
    offsets = pa.py_buffer(np.arange(0, 8 * num_rows + 1, 8, dtype=np.int32))
    for field, (name, values) in enumerate(zip(CATEGORICAL_NAMES, block.values[:, rows], strict=True)):
        codes, digits = value_codes(field, values), np.empty((num_rows, 2), dtype="S4")
        digits[:, 0], digits[:, 1] = _HEX_DIGITS[codes >> 16], _HEX_DIGITS[codes & 0xFFFF]
        valid = pa.py_buffer(np.packbits(values != MISSING_RANK, bitorder="little"))
        columns[name] = pa.StringArray.from_buffers(num_rows, offsets, pa.py_buffer(digits), valid)
    if block.times is not None:
        columns["time"] = pa.array(block.times[rows])
    text = io.BytesIO()
    csv.write_csv(pa.table(columns), text, _TEXT_FORM)
    return text.getvalue()


def value_codes(field: int, values: np.ndarray) -> np.ndarray:
    """Return the 32-bit codes [n] that stand in the log for the `values` [n] of categorical field number `field`.

    Different values of a field below 2**32 have different codes: the function is the finalizer of MurmurHash3 (Appleby,
    fmix32), whose steps are all invertible.
    """
    code = values.astype(np.uint32) ^ np.uint32((field + 1) * 0x01000193)
    return mix32(code, *MURMUR3)


def synthesize(
    output: Path,
    rows: int,
    seed: int = 0,
    workers: int | None = None,
    show_progress: bool = False,
    drift: Drift | None = None,
    part_rows: int | None = None,
) -> SyntheticSummary:
    """Write a synthetic log of `rows` rows to `output`, and the true click probability of each row to a file beside it.

    The log is compressed if the name ends in .gz. With `part_rows`, `output` is a folder with the files part-00000.txt,
    part-00001.txt … of `part_rows` rows each. `workers` processes make the rows, by default one per core. Each file is
    written atomically. Raise ValueError for numbers out of range, FileNotFoundError if the parent folder of `output` is
    missing, and OSError if a file cannot be written.
    """
    workers = num_cores() if workers is None else workers
    _check(output, rows, seed, workers, drift, part_rows)
    log, paths = synthetic_log(seed, drift), [output]
    if part_rows is not None:
        output.mkdir(exist_ok=True)
        paths = [output / f"part-{number:05d}.txt" for number in range(-(-rows // part_rows))]
    pieces = [_pieces(first, min(first + (part_rows or rows), rows)) for first in range(0, rows, part_rows or rows)]
    clicks = 0
    blocks = _made_in_order(log, list(chain.from_iterable(pieces)), paths[0].suffix == ".gz", workers)
    with progress_bar(
        total=rows, desc="synthesize", unit=" rows", unit_scale=True, disable=not show_progress
    ) as progress:
        for path, of_part in zip(paths, pieces, strict=True):
            for truth_rows in _write(path, blocks, of_part):
                clicks += truth_rows["label"].to_numpy().sum()
                progress.update(len(truth_rows))
    return SyntheticSummary(output, truth_path(paths[0]), rows, int(clicks))


def _check(output: Path, rows: int, seed: int, workers: int, drift: Drift | None, part_rows: int | None) -> None:
    rows_per_day = None if drift is None else drift.rows_per_day
    for name, number in (("rows", rows), ("rows a part", part_rows), ("rows a day", rows_per_day)):
        if number is not None and number <= 0:
            raise ValueError(f"{name}: expected 1 or more, found {number:,}")
    if drift is not None and rows > MAX_DAYS * drift.rows_per_day:
        raise ValueError(f"{rows:,} rows are more than {MAX_DAYS} days of {drift.rows_per_day:,}; give more rows a day")
    if not 0 <= seed < 1 << 62:
        raise ValueError(f"the seed must be from 0 to 2**62 - 1, found {seed}")
    if workers <= 0:
        raise ValueError(f"at least 1 worker is needed, asked for {workers}")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"cannot write {output}: there is no folder {output.parent}; make it first")
    if part_rows is None and output.is_dir():
        raise IsADirectoryError(f"cannot write {output}: it is a folder; name a file, such as {output / 'train.txt'}")
    if part_rows is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"cannot write parts to {output}: it is there and no empty folder; name another one")


def _pieces(first: int, end: int) -> list[Piece]:
    """Divide the rows from `first` to `end` - 1 of the log into ranges (first, end).

    Each range lies within one block of BLOCK_ROWS rows.
    """
    cuts = [first, *range(first // BLOCK_ROWS * BLOCK_ROWS + BLOCK_ROWS, end, BLOCK_ROWS), end]
    return list(pairwise(cuts))


def _write(path: Path, texts: Iterator[WrittenPiece], pieces: list[Piece]) -> Iterator[pa.Table]:
    """Write a part of the log to `path`, and the true click probabilities of its rows to the file beside it.

    `pieces` are the row ranges of this part. `texts` yields their lines, probabilities and labels, and is advanced by
    one element per range. For each range, yield the table (row number, probability, label) that was written.
    """
    truth, first_row = truth_path(path), pieces[0][0]
    text_path, truth_file_path = (each.with_name(each.name + ".tmp") for each in (path, truth))
    with room_for(path), sole_writer(text_path, waits=False) as text_file:
        try:
            with pq.ParquetWriter(truth_file_path, TRUTH_SCHEMA) as truth_file:
                for start, end in pieces:
                    text, probability, label = next(texts)
                    text_file.write(text)
                    row_numbers = np.arange(start - first_row, end - first_row)
                    truth_rows = pa.table([row_numbers, probability, label], schema=TRUTH_SCHEMA)
                    truth_file.write_table(truth_rows)
                    yield truth_rows
            text_file.flush()
            # Rename the file of true probabilities first, so that there is never a finished log without it.
            truth_file_path.replace(truth)
            text_path.replace(path)
        finally:
            truth_file_path.unlink(missing_ok=True)
            # Remove the temporary file if it was not renamed. After the renaming, a file of its name belongs to another
            # process.
            if is_at(text_file, text_path):
                text_path.unlink()


def _made_in_order(log: SyntheticLog, pieces: list[Piece], compress: bool, workers: int) -> Iterator[WrittenPiece]:
    """Yield, for each row range in `pieces`, in order, the lines, click probabilities and labels of its rows.

    `workers` processes make the blocks. At most two blocks per worker are in memory. With `compress`, the lines of each
    range are compressed.
    """
    blocks = [list(of_block) for _, of_block in groupby(pieces, lambda piece: piece[0] // BLOCK_ROWS)]
    if workers == 1 or len(blocks) == 1:
        yield from chain.from_iterable(_make(log, of_block, compress) for of_block in blocks)
        return
    # Workers are spawned, because a forked copy of a process in which pyarrow's threads run may hang. They ignore
    # Ctrl-C (SIGINT), which this process handles.
    context, ignored = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(workers, context, signal.signal, ignored) as pool:
        pending: deque[Future[list[WrittenPiece]]] = deque()
        for of_block in blocks:
            pending.append(pool.submit(_make, log, of_block, compress))
            if len(pending) == 2 * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def _make(log: SyntheticLog, pieces: list[Piece], compress: bool) -> list[WrittenPiece]:
    """Return, for each row range in `pieces`, the lines, click probabilities and labels of its rows.

    All ranges are in the same block. With `compress`, the lines of each range are compressed.
    """
    block = pieces[0][0] // BLOCK_ROWS
    rows_drawn, texts = draw_block(log, block), list[WrittenPiece]()
    for start, end in pieces:
        rows = slice(start - block * BLOCK_ROWS, end - block * BLOCK_ROWS)
        text = block_text(rows_drawn, rows)
        if compress:
            # The lines of each row range are a gzip member of their own. Readers see the members as one stream (RFC
            # 1952, 2.2).
            text = gzip.compress(text, GZIP_LEVEL, mtime=0)
        texts.append((text, rows_drawn.probability[rows], rows_drawn.label[rows]))
    return texts


def _uniforms(seed: int, block: int, streams: int) -> np.ndarray:
    """Return the random numbers from which the rows of a block are drawn, as float64 [streams, BLOCK_ROWS].

    The numbers are uniform in [0, 1), and depend only on the seed and the number of the block.
    """
    key = np.array([seed, block], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).random((streams, BLOCK_ROWS))
