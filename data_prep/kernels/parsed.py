"""Define chunks of lines of the raw log, and the rows and rejected lines into which the parser turns them.

The texts of categorical columns are made here too, also those of crosses. A cross joins the values of several columns
in one text. It consists of the values, written as in vocabulary.parquet and separated by *, such as 05db9164*38a947a1.
A * or a backslash within a value gets a backslash before it, so that different combinations have different texts. A
cross is missing in a row if any of its columns is missing there.

A cross with a list column is a list too. In each row it has all combinations of the values of its columns. If there
would be more than `max_length` combinations, the lists in the row are first shortened at their ends, and the remaining
values are combined.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.strings import (
    PADDING_BYTES,
    Lists,
    Strings,
    are_inexact_texts,
    combinations,
    shorten,
    with_whole_numbers,
)
from data_prep.kernels.times import zone_table
from data_prep.options.columns import CategoricalColumn, NumberGroup, number_groups
from data_prep.options.log_format import INEXACT_ID, REASONS, LogFormat
from data_prep.prepared.schema import DAY

# Longer lines are rejected, and only their beginning is kept, so that a file without line ends cannot fill the memory.
# Good lines usually have less than 1 KiB.
MAX_LINE_BYTES = 1 << 16


# Functions such as `number_columns` process this many rows at a time, so that the arrays of many columns fit in the
# processor's cache.
_ROWS_AT_ONCE = 4096
# ASCII's unit separator. This byte stands between the cells of a chunk of lines from which quotes were removed.
BARE_SEPARATOR = 0x1F
_HEX_PAIRS = np.frombuffer("".join(f"{number:02x}" for number in range(256)).encode(), "u2")


@dataclass(frozen=True)
class FileOfLog:
    """Facts about the file of the log from which a chunk of lines was read."""

    place: int = 0  # Index of the file in the log.
    # Name of the file in messages and in rejects.tsv, or "" if the log has only one file.
    name: str = ""
    first_line: int = 0  # Number of the file's first line among all lines of the log.
    # Number of lines at the start of the file, such as a header, that do not count as lines of the log.
    num_header_lines: int = 0
    columns: tuple[str, ...] = ()  # Names of the columns in this file, or () for the columns of the format.
    # Text that is put at the end of each line of a text file: a separator and a cell for each column whose value the
    # name of one of the file's folders gives, such as date=2026-11-01.
    at_end: bytes = b""


ONLY_FILE = FileOfLog()


@dataclass(frozen=True)
class Chunk:
    """A part of a log that a worker parses as one task: whole lines of one file, each with its line end."""

    first_line: int  # Index of the chunk's first line among all lines of the log, from 0.
    num_lines: int
    lines: bytes
    file: FileOfLog = ONLY_FILE
    # True if the cells are separated by BARE_SEPARATOR and have no quotes, even if the format has quotes.
    is_bare: bool = False
    # Columns of cells that a prediction copies from a table (such as a Parquet file) to the output beside the scores.
    # The cells may contain separators.
    kept: tuple[list[str], ...] = ()
    # Vectors [num_lines, W] float32 of a chunk that was read from a table (such as a Parquet file), by the name of
    # their column. The cell of this column in a line is empty, unless the vector is bad.
    vectors: dict[str, Cells] = field(default_factory=dict)

    def load(self) -> Chunk:
        """Return the chunk itself, which already holds its lines.

        Objects of other classes, such as `text_lines.StoredChunk`, read the lines from the file in this method.
        """
        return self

    @property
    def first_line_number(self) -> int:
        """Number of the chunk's first line within its file, counted from 1."""
        return self.first_line - self.file.first_line + self.file.num_header_lines + 1

    def offsets_of(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offsets [k] in `lines` at which k of the lines start, and the offsets [k] at which they end.

        `numbers` [k] are the indices of these lines in the chunk.
        """
        if not len(numbers):
            return numbers, numbers
        ends = np.flatnonzero(np.frombuffer(self.lines, np.uint8) == ord("\n"))
        return np.append(0, ends[:-1] + 1)[numbers], ends[numbers]

    def check_num_lines(self, num_lines: int) -> None:
        """Raise ValueError unless the chunk has `num_lines` lines, which are the lines that the parser has found in it.

        If the numbers differ, the file changed after it was cut into chunks.
        """
        if num_lines != self.num_lines:
            raise ValueError(
                f"the log changed while it was read: {self.num_lines:,} lines were counted from line "
                f"{self.first_line + 1:,} on, now there are {'more' if num_lines < 0 else f'{num_lines:,}'}; prepare "
                "it again when it no longer changes"
            )


class Cells(NamedTuple):
    """The n cells of a column in n rows, contiguous in memory. If a cell is missing, its value is 0 or ""."""

    # An array, int64 for integers and times (ms since 1970), float64 for floats, uint32 for hex values, or `Strings`
    # for text. The vectors of a column of width W are float32 [n, W].
    values: Any
    present: NDArray[np.bool_]  # Mask of the cells that are not missing.

    def take(self, indices: NDArray[np.int64]) -> Cells:
        values = (
            self.values.take(indices) if isinstance(self.values, Strings) else np.take(self.values, indices, axis=0)
        )
        return Cells(values, self.present.take(indices))

    def copies(self, kept: NDArray[np.bool_]) -> Cells:
        """Return several copies of the cells, one after the other, in which different cells are missing.

        `kept` [copies, n] has a mask for each copy. Cells that the mask of a copy does not mark are missing in it.
        """
        cells, mask = self.take(np.tile(np.arange(len(self.present)), len(kept))), kept.ravel()
        values = cells.values
        if isinstance(values, Strings):
            values = replace(values, lengths=values.lengths * mask)
        else:
            values = np.where(mask.reshape(-1, *[1] * (values.ndim - 1)), values, values.dtype.type(0))
        return Cells(values, cells.present & mask)


@dataclass(frozen=True)
class ParsedRows:
    """The n parsed rows of a part of the log, stored by column: all cells of a field lie together."""

    # Index of each row's line [n] among all lines of the log, from 0, including rejected lines.
    row_numbers: NDArray[np.int64]
    labels: NDArray[np.bool_]  # Label of each row [n]: True for a click.
    labelled: NDArray[np.bool_]  # Mask [n] of the rows that have a label. Rows without one have the label False.
    separate: dict[str, Cells]  # Cells of the fields with arrays of their own, by name. The others are in `blocks`.
    # Lists of the rows in each column of kind list, by name of the column. The mapping is empty until `with_lists`
    # fills it.
    lists: dict[str, Lists] = field(default_factory=dict)
    weights: NDArray[np.float32] | None = None  # Weight of each row [n], or None if all weights are 1.
    # For each column of kind id (its cells identify rows, and the model does not see them), by name, the hashes [n] of
    # its cells.
    keys: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    # Cells of the fields that are stored together in arrays [len(names), n], by the tuple of their names.
    blocks: dict[tuple[str, ...], Cells] = field(default_factory=dict)

    @property
    def counting(self) -> NDArray[np.bool_]:
        """Mask [n] of the rows with a label and a weight above 0. Only these rows change anything in a training."""
        return np.ones(len(self.labels), np.bool_) if self.weights is None else self.weights > 0

    @functools.cached_property
    def columns(self) -> dict[str, Cells]:
        """The cells of each field, by the name of the field."""
        columns = dict(self.separate)
        for names, block in self.blocks.items():
            columns |= zip(names, map(Cells, *block), strict=True)
        return columns

    def block(self, names: tuple[str, ...]) -> Cells:
        """Return the cells of the fields `names`, whose values are numbers.

        The values and the mask of present cells are [len(names), n] each.
        """
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
            labelled=self.labelled[indices],
            separate={name: cells.take(indices) for name, cells in self.columns.items()},
            weights=None if self.weights is None else self.weights[indices],
            keys={name: keys[indices] for name, keys in self.keys.items()},
        )

    def with_lists(self, log_format: LogFormat, kernels: ModuleType) -> ParsedRows:
        """Return a copy of the rows in which the cells of list columns are split into values.

        `kernels` is the module `native` or `numpy_kernels`. A list without values counts as missing. If the log has no
        list columns, return this object and not a copy.
        """
        lists, separate = {}, dict(self.separate)
        for name in log_format.list_fields:
            form, texts = log_format.list_form(name), separate[name].values
            lists[name] = kernels.split_lists(texts, form.separator, form.max_length, log_format.trim)
            separate[name] = Cells(texts, lists[name].lengths > 0)
        return replace(self, lists=lists, separate=separate) if lists else self

    def with_whole_numbers(self, forms: Mapping[str, bool | None]) -> ParsedRows:
        """Return a copy of the rows in which the texts of a column (or list column) that are whole numbers have one
        form.

        `forms` gives the form by column name: True for 7.0, False for 7, or None to leave the texts as they are. It may
        name columns that the rows do not have. Texts that only contain a whole number, such as v7, stay unchanged.
        """
        lists, separate = dict(self.lists), dict(self.separate)
        for name, has_point in forms.items():
            if has_point is not None and name in lists:
                lists[name] = replace(lists[name], values=with_whole_numbers(lists[name].values, has_point))
            elif has_point is not None and name in separate:
                separate[name] = Cells(with_whole_numbers(separate[name].values, has_point), separate[name].present)
        return replace(self, lists=lists, separate=separate)

    def have_inexact_ids(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return a mask of the rows [n] in which a text field of `names` has a float that is too large to be exact.

        Several whole numbers round to the same such float (2**53 or more), so it may stand for several ids.
        """
        are_bad = np.zeros(len(self.labels), np.bool_)
        for name in names:
            if lists := self.lists.get(name):
                are_bad[lists.rows[are_inexact_texts(lists.values)]] = True
            else:
                are_bad |= are_inexact_texts(self.columns[name].values)
        return are_bad

    def blanked(self, *names: str) -> ParsedRows:
        """Return a copy of the rows for each name in `names`, one copy after the other.

        In each copy, the cells of the field with this name are missing. If no field has the name, the copy has all
        cells. The copies have neither weights nor keys (hashes of cells that identify rows).
        """
        of_copies, num_rows = np.array(names)[:, None], len(self.labels)
        is_kept = {name: np.broadcast_to(of_copies != name, (len(names), num_rows)) for name in self.columns}
        return ParsedRows(
            row_numbers=np.tile(self.row_numbers, len(names)),
            labels=np.tile(self.labels, len(names)),
            labelled=np.tile(self.labelled, len(names)),
            separate={name: cells.copies(is_kept[name]) for name, cells in self.columns.items()},
            lists={name: lists.copies(is_kept[name]) for name, lists in self.lists.items()},
        )

    def number_columns(self, groups: Sequence[NumberGroup]) -> Cells:
        """Return the cells of the M categorical columns that have integer values: values and a mask, both [M, n].

        The mask marks the cells that are not missing. `groups`, the result of `columns.number_groups`, describe the M
        columns.
        """
        if len(groups) == 1 and groups[0].kind == "hex32":
            return self.block(groups[0].sources)
        if len(groups) == 1 and groups[0].kind == "present":
            present = np.stack([self.columns[name].present for name in groups[0].sources])
            return Cells(np.zeros(present.shape, np.uint32), present)
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


def weights_of_labelled(weights: NDArray[np.float32] | None, labelled: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the weights of rows [n], with weight 0 for the rows that `labelled` [n] does not mark.

    If `weights` is None, the rows that it marks get the weight 1.
    """
    return labelled.astype(np.float32) if weights is None else np.where(labelled, weights, np.float32(0))


HOUR = 3_600_000  # An hour in milliseconds.
_WEEKDAY_OF_1970 = 3  # Weekday of 1970-01-01, a Thursday. Monday is 0.


def _category(kind: str, timezone: str, values: NDArray[Any]) -> NDArray[Any]:
    """Convert parsed hex values, times or integers to the values of a categorical column of the given kind.

    These are integers: for example, the hour of a time from 0 to 23, or the bucket of an integer.
    """
    values = zone_table(timezone).to_local(values) if timezone else values
    if kind == "hour":
        return values // HOUR % 24
    if kind == "weekday":
        return (values // DAY + _WEEKDAY_OF_1970) % 7
    return bucket_of(values) - SMALLEST_BUCKET if kind == "bucket" else values


@dataclass(frozen=True)
class ParsedChunk:
    """The result of parsing a chunk of lines: good lines as rows, and bad lines as text for the file rejects.tsv."""

    rows: ParsedRows
    rejects_by_reason: Counter[str]
    # A line for each rejected line, with its number in the file (from 1), the reason and the raw text.
    rejects_tsv: bytes

    @classmethod
    def of(cls, chunk: Chunk, rows: ParsedRows, *rejects: NDArray[np.integer]) -> ParsedChunk:
        """Return the result of parsing `chunk`, made from its good lines, `rows`, and from its rejected lines.

        `rejects` are four arrays with an element for each rejected line: its index in the chunk, the offsets of its
        start and its end in `chunk.lines` (both ascending), and the code of the reason. All lines of the chunk may be
        rejected, so the texts of many rejected lines are made at once, without a Python object for each.
        """
        counts = np.bincount(rejects[-1]).tolist()
        by_reason = Counter({REASONS[code]: count for code, count in enumerate(counts) if count})
        starts = range(0, len(rejects[-1]), _ROWS_AT_ONCE)
        texts = (_rejects_tsv(chunk, *(part[first : first + _ROWS_AT_ONCE] for part in rejects)) for first in starts)
        return cls(rows, by_reason, b"".join(texts))

    def without_inexact_ids(self, chunk: Chunk, are_bad: NDArray[np.bool_]) -> ParsedChunk:
        """Return a copy in which the rows that `are_bad` [n] marks are rejected too.

        The reason is an inexact id: a float so large that several whole numbers round to it.
        """
        lines, kept = self.rows.row_numbers[are_bad] - chunk.first_line, self.rows.take(~are_bad)
        more = ParsedChunk.of(chunk, kept, lines, *chunk.offsets_of(lines), np.full(len(lines), INEXACT_ID))
        by_reason = self.rejects_by_reason + more.rejects_by_reason
        return ParsedChunk(more.rows, by_reason, self.rejects_tsv + more.rejects_tsv)


def _rejects_tsv(
    chunk: Chunk,
    lines: NDArray[np.integer],
    starts: NDArray[np.integer],
    ends: NDArray[np.integer],
    codes: NDArray[np.integer],
) -> bytes:
    """Return the text that is written to rejects.tsv about some rejected lines of a chunk.

    `lines`, `starts`, `ends` and `codes` are slices of the four arrays that `ParsedChunk.of` gets as `rejects`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.large_binary()
    # The text of the chunk becomes an Arrow array without a copy: its elements are, alternately, a rejected line and
    # the bytes up to the next rejected line.
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


# Smallest bucket of an integer (see `bucket_of`). Smaller integers are in this bucket too. A categorical column stores
# the difference between a bucket and this one, which is not negative and keeps the order of the buckets.
SMALLEST_BUCKET = -(2**31)


def bucket_of(integers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket of each integer x: floor(ln(x)²) if x > 2, else x itself, but at least SMALLEST_BUCKET.

    The winners of Criteo's contest used this transform, and so do the BARS benchmarks (J. Zhu et al., "BARS: Towards
    open benchmarking for recommender systems", SIGIR 2022).
    """
    squares = np.square(np.log(np.maximum(integers, 1).astype(np.float64)))
    return np.where(integers > 2, np.floor(squares).astype(np.int64), np.maximum(integers, SMALLEST_BUCKET))


def are_inexact(numbers: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return a mask of `numbers` that is True for finite floats so large that several whole numbers round to them.

    In float64 these are all floats of magnitude 2**53 or more.
    """
    return (np.abs(numbers) >= 2.0 ** (np.finfo(numbers.dtype).nmant + 1)) & np.isfinite(numbers)


# Number for the missing value of a column of integers. It is below all values, as "" is below all other strings.
MISSING = -1


def presence(rows: ParsedRows, columns: Sequence[CategoricalColumn]) -> list[NDArray[np.bool_]]:
    """Return, for each categorical column [C], a mask [n] of the rows in which the column's cell is not missing."""
    by_name: dict[str, NDArray[np.bool_]] = {}
    for column in columns:
        if column.cross:
            by_name[column.name] = functools.reduce(np.logical_and, (by_name[part] for part in column.cross))
        else:
            by_name[column.name] = rows.columns[column.source].present
    return list(by_name.values())


def text_columns(
    rows: ParsedRows, columns: Sequence[CategoricalColumn], kernels: ModuleType
) -> Iterator[tuple[CategoricalColumn, Strings | Lists, NDArray[np.bool_]]]:
    """Yield each text column and each cross, with its texts [n] or lists of texts, and a mask [n] of its cells.

    The mask is False in rows whose cell is missing. The texts of a cross are made when the cross is yielded, so that
    memory holds the texts of one cross at a time. `kernels` is the module `native` or `numpy_kernels`, which joins the
    texts.
    """
    present = dict(zip((column.name for column in columns), presence(rows, columns), strict=True))
    by_name = {
        c.name: rows.lists.get(c.name, rows.columns[c.name].values) for c in columns if c.is_text and not c.cross
    }
    numbers = rows.number_columns(number_groups(columns))[0] if any(column.cross for column in columns) else None
    for column in columns:
        if column.is_text and not column.cross:
            yield column, by_name[column.name], present[column.name]
        elif column.cross:
            for part in columns:
                if part.name in column.cross and part.name not in by_name:
                    assert numbers is not None
                    by_name[part.name] = number_texts(numbers[part.place], part.kind)
            parts, is_present = [by_name[part] for part in column.cross], present[column.name]
            texts = (
                _cross_lists(parts, is_present, column.max_length, kernels)
                if column.is_list
                else kernels.join_strings(parts, is_present)
            )
            yield column, texts, is_present


def _cross_lists(
    parts: Sequence[Strings | Lists], present: NDArray[np.bool_], max_length: int, kernels: ModuleType
) -> Lists:
    """Return, for each row [n], the list of the combinations of its values of several columns, each as one text.

    `parts` has the texts, or lists of texts, of each of the columns. A list of combinations has at most `max_length`
    elements. Rows that `present` [n] does not mark get empty lists.
    """
    lengths = np.where(present, [part.lengths if isinstance(part, Lists) else present for part in parts], 0)
    num_values = shorten(lengths, max_length)
    rows, places = combinations(num_values)
    texts = [
        part.values.take((np.cumsum(part.lengths) - part.lengths)[rows] + place)
        if isinstance(part, Lists)
        else part.take(rows)
        for part, place in zip(parts, places, strict=True)
    ]
    crossed = kernels.join_strings(texts, np.ones(len(rows), np.bool_))
    return Lists(crossed, num_values.prod(axis=0), lengths.prod(axis=0) > max_length)


def number_texts(values: NDArray[np.uint32], kind: str) -> Strings:
    """Return, for each of `values` [n] of a column of the given `kind` (such as hex32 or bucket), whose values are
    integers, the text that stands for the value in vocabulary.parquet.
    """
    if kind == "hex32":
        digits = _HEX_PAIRS[values.astype(">u4").view(np.uint8)].view(np.uint8)
        data = np.concatenate([digits, np.zeros(PADDING_BYTES, np.uint8)])
        return Strings(data, 8 * np.arange(len(values)), np.full(len(values), 8))
    smallest = SMALLEST_BUCKET if kind == "bucket" else 0
    distinct, places = np.unique(values, return_inverse=True)
    return Strings.of([b"%d" % (value + smallest) for value in distinct.tolist()]).take(places)
