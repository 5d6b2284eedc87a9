"""A synthetic click log in the Criteo form, with the true click probability of each row in a side file.

    draw the fields (shape.py) -> log odds (clicks.py) -> label -> text

Rows are made in blocks of `BLOCK_ROWS`, each from its own counter-based random stream of (seed, block). So the bytes
depend on the seed alone, not on the number of workers, and a longer log starts with the rows of a shorter one.

Letters: N numeric fields, C categorical fields, n rows of a block.
"""

from __future__ import annotations

import gzip
import io
import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from common.console import progress_bar
from common.memory import num_cores
from data_prep.prepared.truth import TRUTH_SCHEMA, truth_path
from data_prep.sources.clicks import PlantedClicks, plant, sigmoid
from data_prep.sources.shape import (
    CATEGORICAL_NAMES,
    MISSING_RANK,
    NUMERIC_NAMES,
    LogShape,
    draw_fields,
    load_shape,
)

BLOCK_ROWS = 32_768
# The planted model is solved on rows that no log holds: blocks after any that a log can reach.
SOLVING_BLOCKS = range(1 << 62, (1 << 62) + 2)
GZIP_LEVEL = 1  # level 6 takes four times as long for a file a tenth smaller
_TEXT_FORM = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
_HEX_DIGITS = np.frombuffer("".join(f"{number:04x}" for number in range(1 << 16)).encode(), dtype="S4")


@dataclass(frozen=True)
class SyntheticSummary:
    """Files and counts of a written log."""

    log_path: Path
    truth_path: Path
    rows: int
    clicks: int


@dataclass(frozen=True)
class SyntheticLog:
    """An endless log. `draw_block` returns any part of it."""

    seed: int
    shape: LogShape
    planted: PlantedClicks


@dataclass(frozen=True)
class Block:
    """BLOCK_ROWS rows, by field. `numbers` are valid if `number_missing` is false."""

    numbers: np.ndarray  # [N, n] int64
    number_missing: np.ndarray  # [N, n] bool
    ranks: np.ndarray  # [C, n] int64, MISSING_RANK if missing
    logit_parts: np.ndarray  # [4, n] float64, see clicks.PART_SHARES
    probability: np.ndarray  # [n] float64, of a click
    label: np.ndarray  # [n] int8, drawn from it


def synthetic_log(seed: int) -> SyntheticLog:
    """Return the log of `seed`. Solving its planted model takes about a second."""
    shape = load_shape()
    fields = [draw_fields(shape, _uniforms(seed, block, shape.num_uniforms)) for block in SOLVING_BLOCKS]
    numbers, ranks, number_missing = (np.concatenate(parts, axis=1) for parts in zip(*fields, strict=True))
    return SyntheticLog(seed, shape, plant(seed, shape, numbers, ranks, number_missing))


def draw_block(log: SyntheticLog, block: int) -> Block:
    """Return the log's rows from `block` · BLOCK_ROWS."""
    uniforms = _uniforms(log.seed, block, log.shape.num_uniforms + 1)
    numbers, ranks, number_missing = draw_fields(log.shape, uniforms[:-1])
    parts = log.planted.logit_parts(numbers, ranks, number_missing)
    probability = sigmoid(parts.sum(axis=0) + log.planted.bias)
    label = (uniforms[-1] < probability).astype(np.int8)
    return Block(numbers, number_missing, ranks, parts, probability, label)


def block_text(block: Block, rows: int) -> bytes:
    """Return the first `rows` rows as text: label, I1-I13, C1-C26, separated by tabs."""
    columns = [pa.array(block.label[:rows])]
    for number, missing in zip(block.numbers, block.number_missing, strict=True):
        columns.append(pa.array(number[:rows], mask=missing[:rows]))
    # Hex digits in pyarrow's own layout (end to end, an offset every eight bytes), without a Python string per cell.
    offsets = pa.py_buffer(np.arange(0, 8 * rows + 1, 8, dtype=np.int32))
    for field, ranks in enumerate(block.ranks):
        codes, digits = value_codes(field, ranks[:rows]), np.empty((rows, 2), dtype="S4")
        digits[:, 0], digits[:, 1] = _HEX_DIGITS[codes >> 16], _HEX_DIGITS[codes & 0xFFFF]
        valid = pa.py_buffer(np.packbits(ranks[:rows] != MISSING_RANK, bitorder="little"))
        columns.append(pa.StringArray.from_buffers(rows, offsets, pa.py_buffer(digits), valid))
    text = io.BytesIO()
    csv.write_csv(pa.table(columns, names=["label", *NUMERIC_NAMES, *CATEGORICAL_NAMES]), text, _TEXT_FORM)
    return text.getvalue()


def value_codes(field: int, ranks: np.ndarray) -> np.ndarray:
    """Return the 32-bit codes [n] that stand for a field's values in the log, all different.

    The finalizer of MurmurHash3 (Appleby, fmix32), whose steps are all invertible.
    """
    code = ranks.astype(np.uint32) ^ np.uint32((field + 1) * 0x01000193)
    code = (code ^ (code >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    code = (code ^ (code >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return code ^ (code >> np.uint32(16))


def synthesize(
    output: Path, rows: int, seed: int = 0, workers: int | None = None, show_progress: bool = False
) -> SyntheticSummary:
    """Write a log of `rows` rows to `output` (compressed if it ends in .gz) and its truth beside it.

    `workers` processes make it, by default one per core. Both files appear whole or not at all. Raises ValueError for
    rows, seed or workers out of range, FileNotFoundError if the folder of `output` is missing, OSError if it cannot be
    written.
    """
    workers = num_cores() if workers is None else workers
    _check(output, rows, seed, workers)
    log = synthetic_log(seed)
    truth = truth_path(output)
    temporary = [path.with_name(path.name + ".tmp") for path in (output, truth)]
    sizes = [min(BLOCK_ROWS, rows - first) for first in range(0, rows, BLOCK_ROWS)]
    clicks = 0
    try:
        with ExitStack() as stack:
            text_file = stack.enter_context(temporary[0].open("wb"))
            truth_file = stack.enter_context(pq.ParquetWriter(temporary[1], TRUTH_SCHEMA))
            progress = stack.enter_context(
                progress_bar(total=rows, desc="synthesize", unit=" rows", unit_scale=True, disable=not show_progress)
            )
            for text, truth_rows in _made_in_order(log, sizes, output.suffix == ".gz", workers):
                text_file.write(text)
                truth_file.write_table(truth_rows)
                clicks += truth_rows["label"].to_numpy().sum()
                progress.update(len(truth_rows))
        # The truth first, so that a finished log always has it.
        temporary[1].replace(truth)
        temporary[0].replace(output)
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)
    return SyntheticSummary(output, truth, rows, int(clicks))


def _check(output: Path, rows: int, seed: int, workers: int) -> None:
    if rows <= 0:
        raise ValueError(f"a log needs at least 1 row, asked for {rows:,}")
    if not 0 <= seed < 1 << 62:
        raise ValueError(f"the seed must be from 0 to 2**62 - 1, found {seed}")
    if workers <= 0:
        raise ValueError(f"at least 1 worker is needed, asked for {workers}")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"cannot write {output}: there is no folder {output.parent}; make it first")
    if output.is_dir():
        raise IsADirectoryError(f"cannot write {output}: it is a folder; name a file, such as {output / 'train.txt'}")


def _made_in_order(
    log: SyntheticLog, sizes: list[int], compress: bool, workers: int
) -> Iterator[tuple[bytes, pa.Table]]:
    """Yield text and truth of each block. At most two blocks a worker are in memory."""
    if workers == 1 or len(sizes) == 1:
        for block, rows in enumerate(sizes):
            yield _make(log, block, rows, compress)
        return
    # "spawn", as a forked copy of a process with pyarrow's threads running may hang.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending: deque[Future[tuple[bytes, pa.Table]]] = deque()
        for block, rows in enumerate(sizes):
            pending.append(pool.submit(_make, log, block, rows, compress))
            if len(pending) == 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _make(log: SyntheticLog, block: int, rows: int, compress: bool) -> tuple[bytes, pa.Table]:
    made = draw_block(log, block)
    text = block_text(made, rows)
    if compress:
        # Each block is a gzip member of its own; a reader sees them as one stream (RFC 1952, 2.2).
        text = gzip.compress(text, GZIP_LEVEL, mtime=0)
    first_row = block * BLOCK_ROWS
    row_numbers = np.arange(first_row, first_row + rows)
    return text, pa.table([row_numbers, made.probability[:rows], made.label[:rows]], schema=TRUTH_SCHEMA)


def _uniforms(seed: int, block: int, streams: int) -> np.ndarray:
    """Return uniform numbers of [0, 1), [streams, BLOCK_ROWS], a pure function of (seed, block)."""
    key = np.array([seed, block], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).random((streams, BLOCK_ROWS))
