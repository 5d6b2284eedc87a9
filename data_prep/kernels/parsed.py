"""Chunks of the raw log's lines, and the rows and rejects that they become."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.lists import Lists
from data_prep.kernels.strings import Strings, are_inexact_texts, with_whole_numbers
from data_prep.kernels.times import zone_table
from data_prep.options.columns import NumberGroup
from data_prep.options.log_format import INEXACT_ID, REASONS, LogFormat
from data_prep.prepared.schema import DAY

# A good line has less than 1 KiB. A line longer than this is rejected and only its start is kept, so that a file
# without line ends cannot fill the memory.
MAX_LINE_BYTES = 1 << 16


_ROWS_AT_ONCE = 4096  # whose categories are made together: the arithmetic of many columns stays in the cache
BARE_SEPARATOR = 0x1F  # ASCII's unit separator: stands between the cells of a chunk that has no quotes any more


@dataclass(frozen=True)
class FileOfLog:
    """The file of the log that a chunk is from."""

    place: int = 0  # among the files, from 0
    name: str = ""  # "" if the log is one file
    first_line: int = 0  # the number of its first line in the log
    num_header_lines: int = 0  # which come before the first line and have no number
    columns: tuple[str, ...] = ()  # in this file; () if they are those of the format


ONLY_FILE = FileOfLog()


@dataclass(frozen=True)
class Chunk:
    """Whole lines of a file of the log, each with its line end. `first_line` is the first one's number in the log."""

    first_line: int
    num_lines: int
    lines: bytes
    file: FileOfLog = ONLY_FILE
    is_bare: bool = False  # cells are separated by BARE_SEPARATOR and have no quotes, whatever the format
    kept: tuple[list[str], ...] = ()  # of a table: columns that are copied, which need not be fit for lines

    def load(self) -> Chunk:
        """Return the chunk itself. Other tasks, such as `raw_log.chunks.StoredChunk`, read it."""
        return self

    @property
    def first_line_number(self) -> int:
        """Number of the first line in its file, from 1."""
        return self.first_line - self.file.first_line + self.file.num_header_lines + 1

    def check_num_lines(self, num_lines: int) -> None:
        """Raise ValueError if the chunk has another number of lines now than when it was cut from the log."""
        if num_lines != self.num_lines:
            raise ValueError(
                f"the log changed while it was read: {self.num_lines:,} lines were counted from line "
                f"{self.first_line + 1:,} on, now there are {'more' if num_lines < 0 else f'{num_lines:,}'}; prepare "
                "it again when it no longer changes"
            )


class Cells(NamedTuple):
    """Cells of a column [n], side by side in memory. A missing one is 0 or "", and not `present`."""

    values: Any  # int64 of integers and times (ms since 1970), float64, uint32 of hex values, Strings of text
    present: NDArray[np.bool_]

    def take(self, indices: NDArray[np.int64]) -> Cells:
        return Cells(self.values.take(indices), self.present.take(indices))

    def copies(self, kept: NDArray[np.bool_]) -> Cells:
        """Return a copy of the cells for each row of `kept` [copies, n], one after the other, other cells missing."""
        cells, mask = self.take(np.tile(np.arange(len(self.present)), len(kept))), kept.ravel()
        values = cells.values
        if isinstance(values, Strings):
            values = replace(values, lengths=values.lengths * mask)
        else:
            values = np.where(mask, values, values.dtype.type(0))
        return Cells(values, cells.present & mask)


@dataclass(frozen=True)
class ParsedRows:
    """Rows of the log as columns."""

    row_numbers: NDArray[np.int64]  # [n] number of the line in the log, from 0; rejected lines count too
    labels: NDArray[np.bool_]  # [n]
    separate: dict[str, Cells]  # fields, by name
    lists: dict[str, Lists] = field(default_factory=dict)  # by column of kind list, see `with_lists`
    weights: NDArray[np.float32] | None = None  # [n]
    keys: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # by column of kind id, [n] each
    blocks: dict[tuple[str, ...], Cells] = field(default_factory=dict)  # fields side by side, as arrays [len(names), n]

    @functools.cached_property
    def columns(self) -> dict[str, Cells]:
        """All fields, by name."""
        columns = dict(self.separate)
        for names, block in self.blocks.items():
            columns |= zip(names, map(Cells, *block), strict=True)
        return columns

    def block(self, names: tuple[str, ...]) -> Cells:
        """Return fields of numbers as arrays [len(names), n]."""
        if names in self.blocks:
            return self.blocks[names]
        values, present = zip(*(self.columns[name] for name in names), strict=True)
        return Cells(np.stack(values), np.stack(present))

    def take(self, mask: NDArray[np.bool_]) -> ParsedRows:
        if mask.all():
            return self
        indices = np.flatnonzero(mask)
        return ParsedRows(
            row_numbers=self.row_numbers[indices],
            labels=self.labels[indices],
            separate={name: cells.take(indices) for name, cells in self.columns.items()},
            weights=None if self.weights is None else self.weights[indices],
            keys={name: keys[indices] for name, keys in self.keys.items()},
        )

    def with_lists(self, log_format: LogFormat, kernels: ModuleType) -> ParsedRows:
        """Return the rows with the columns of kind list split into their values. A list without any is missing."""
        lists, separate = {}, dict(self.separate)
        for name in log_format.list_fields:
            form, texts = log_format.list_form(name), separate[name].values
            lists[name] = kernels.split_lists(texts, form.separator, form.max_length, log_format.trim)
            separate[name] = Cells(texts, lists[name].lengths > 0)
        return replace(self, lists=lists, separate=separate) if lists else self

    def with_whole_numbers(self, forms: Mapping[str, bool | None]) -> ParsedRows:
        """Return the rows with whole numbers in columns of text, or in values of lists, written in one form.

        `forms` has True for a column that has them as 7.0, False for 7, None if they stay as they are.
        """
        lists, separate = dict(self.lists), dict(self.separate)
        for name, has_point in forms.items():
            if has_point is not None and name in lists:
                lists[name] = replace(lists[name], values=with_whole_numbers(lists[name].values, has_point))
            elif has_point is not None:
                separate[name] = Cells(with_whole_numbers(separate[name].values, has_point), separate[name].present)
        return replace(self, lists=lists, separate=separate)

    def have_inexact_ids(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return which rows [n] have, in these fields of text, a float that may stand for several ids."""
        are_bad = np.zeros(len(self.labels), np.bool_)
        for name in names:
            if lists := self.lists.get(name):
                are_bad[lists.rows[are_inexact_texts(lists.values)]] = True
            else:
                are_bad |= are_inexact_texts(self.columns[name].values)
        return are_bad

    def blanked(self, *names: str) -> ParsedRows:
        """Return the rows once for each of `names`, one copy after the other, each with all cells of its field missing.

        A name that is no field blanks nothing. The copies have neither weights nor keys.
        """
        of_copies, num_rows = np.array(names)[:, None], len(self.labels)
        is_kept = {name: np.broadcast_to(of_copies != name, (len(names), num_rows)) for name in self.columns}
        return ParsedRows(
            row_numbers=np.tile(self.row_numbers, len(names)),
            labels=np.tile(self.labels, len(names)),
            separate={name: cells.copies(is_kept[name]) for name, cells in self.columns.items()},
            lists={name: lists.copies(is_kept[name]) for name, lists in self.lists.items()},
        )

    def number_columns(self, groups: Sequence[NumberGroup]) -> Cells:
        """Return the categories of `columns.number_groups`, and which cells are there, both [M, n]."""
        if len(groups) == 1 and groups[0].kind == "hex32":
            return self.block(groups[0].sources)
        values = np.empty((sum(len(group.sources) for group in groups), len(self.labels)), np.uint32)
        present = np.empty(values.shape, np.bool_)
        end = 0
        for kind, timezone, sources in groups:
            of_kind, end = slice(end, end + len(sources)), end + len(sources)
            cells = self.block(sources)
            for first in range(0, len(self.labels), _ROWS_AT_ONCE):
                rows = slice(first, first + _ROWS_AT_ONCE)
                values[of_kind, rows] = _category(kind, timezone, cells.values[:, rows])
            present[of_kind] = cells.present
        return Cells(values, present)


def without_labels(weights: NDArray[np.float32] | None, unlabelled: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the weights of rows [n], 0 of those that are `unlabelled`. None stands for weights of 1."""
    return (~unlabelled).astype(np.float32) if weights is None else np.where(unlabelled, np.float32(0), weights)


HOUR = 3_600_000  # milliseconds
_WEEKDAY_OF_1970 = 3  # 1970 began on a Thursday; Monday is 0


def _category(kind: str, timezone: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values of a categorical column of numbers, made of hex values, times or integers [n]."""
    values = zone_table(timezone).to_local(values) if timezone else values
    if kind == "hour":
        return values // HOUR % 24
    if kind == "weekday":
        return (values // DAY + _WEEKDAY_OF_1970) % 7
    if kind == "present":
        return np.zeros(values.shape, np.uint32)
    return bucket_of(values) - SMALLEST_BUCKET if kind == "bucket" else values


@dataclass(frozen=True)
class ParsedChunk:
    """The good lines of a chunk as rows, its bad ones as lines of rejects.tsv."""

    rows: ParsedRows
    rejects_by_reason: Counter[str]
    rejects_tsv: bytes  # line number in its file (from 1), reason, raw line

    @classmethod
    def of(cls, chunk: Chunk, rows: ParsedRows, *rejects: NDArray[np.integer]) -> ParsedChunk:
        """Return `rows` with the rejected lines of `chunk`, as four arrays [rejects].

        These are the line's number in the chunk, its start and end in `chunk.lines` in ascending order, and the code
        of the reason. A log may consist of rejects, so they are written all at once, without an object for each.
        """
        counts = np.bincount(rejects[-1]).tolist()
        by_reason = Counter({REASONS[code]: count for code, count in enumerate(counts) if count})
        return cls(rows, by_reason, _rejects_tsv(chunk, *rejects) if by_reason else b"")

    def without_inexact_ids(self, chunk: Chunk, are_bad: NDArray[np.bool_]) -> ParsedChunk:
        """Return the parsed chunk with these of its rows [n] rejected as well."""
        lines = self.rows.row_numbers[are_bad] - chunk.first_line
        ends = np.flatnonzero(np.frombuffer(chunk.lines, np.uint8) == ord("\n"))
        starts = np.concatenate([[0], ends[:-1] + 1])
        more = ParsedChunk.of(
            chunk, self.rows.take(~are_bad), lines, starts[lines], ends[lines], np.full(len(lines), INEXACT_ID)
        )
        by_reason = self.rejects_by_reason + more.rejects_by_reason
        return ParsedChunk(more.rows, by_reason, self.rejects_tsv + more.rejects_tsv)


def _rejects_tsv(
    chunk: Chunk,
    lines: NDArray[np.integer],
    starts: NDArray[np.integer],
    ends: NDArray[np.integer],
    codes: NDArray[np.integer],
) -> bytes:
    """Return rejects as lines of text. See `ParsedChunk.of`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.large_binary()
    # The offsets of an array in which rejected lines alternate with what lies between them.
    offsets = np.stack([starts, np.minimum(ends, starts + MAX_LINE_BYTES)], axis=1).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(chunk.lines)]
    raw = pa.Array.from_buffers(text, 2 * len(lines) - 1, buffers).take(pa.array(np.arange(0, 2 * len(lines), 2)))
    name = f"{chunk.file.name}:" if chunk.file.name else ""
    numbers = pa.array(chunk.first_line_number + lines).cast(pa.large_string()).cast(text)
    reasons = pa.array([f"\t{reason}\t".encode() for reason in REASONS], text).take(pa.array(codes))
    rows = pc.binary_join_element_wise(
        pa.scalar(name.encode(), text), numbers, reasons, raw, pa.scalar(b"\n", text), pa.scalar(b"", text)
    )
    _, places, data = rows.buffers()
    return memoryview(data)[: np.frombuffer(places, np.int64)[len(rows)]].tobytes()


# A bucket is stored as its distance from this one, which keeps the integers' order. Smaller integers share it.
SMALLEST_BUCKET = -(2**31)


def bucket_of(integers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket of each integer x: floor(ln(x)²) for x > 2, else x itself.

    The transform of the BARS benchmarks (J. Zhu et al., "BARS: Towards open benchmarking for recommender systems",
    SIGIR 2022), from the winners of Criteo's contest.
    """
    squares = np.square(np.log(np.maximum(integers, 1).astype(np.float64)))
    return np.where(integers > 2, np.floor(squares).astype(np.int64), np.maximum(integers, SMALLEST_BUCKET))


def are_inexact(numbers: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which floats may stand for several whole numbers, as from 2**53 on in float64. Infinities do not."""
    return (np.abs(numbers) >= 2.0 ** (np.finfo(numbers.dtype).nmant + 1)) & np.isfinite(numbers)


MISSING = -1  # among values that are numbers; sorts before all of them, as "" sorts before all strings
