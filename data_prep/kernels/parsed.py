"""Chunks of the raw log's lines, and the rows and rejects that they become.

Letters: n rows, N integer fields, F float fields, S timestamps, H fields of hex values, T fields of text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.lists import Lists
from data_prep.kernels.strings import Strings
from data_prep.options.columns import CategoricalColumn
from data_prep.options.log_format import REASONS, LogFormat
from data_prep.prepared.schema import DAY

# A good line has less than 1 KiB. A line longer than this is rejected and only its start is kept, so that a file
# without line ends cannot fill the memory.
MAX_LINE_BYTES = 1 << 16


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
    """Whole lines of a file of the log, each with its line end; `first_line` is the first one's number in the log."""

    first_line: int
    num_lines: int
    lines: bytes
    file: FileOfLog = ONLY_FILE
    is_bare: bool = False  # cells are separated by BARE_SEPARATOR and have no quotes, whatever the format
    kept: tuple[list[str], ...] = ()  # of a table: columns that are copied, which need not be fit for lines

    def load(self) -> Chunk:
        """Return the chunk itself; other tasks, such as `raw_log.chunks.StoredChunk`, read it."""
        return self

    @property
    def first_line_number(self) -> int:
        """Number of the first line in its file, from 1."""
        return self.first_line - self.file.first_line + self.file.num_header_lines + 1

    def reject(self, line: int, code: int, text: NDArray[np.uint8]) -> bytes:
        """Return the line of rejects.tsv for the chunk's line number `line`, from 0."""
        name = self.file.name.encode() + b":" if self.file.name else b""
        return b"%s%d\t%s\t%s\n" % (
            name,
            self.first_line_number + line,
            REASONS[code].encode(),
            text[:MAX_LINE_BYTES].tobytes(),
        )

    def check_num_lines(self, num_lines: int) -> None:
        """Raise ValueError if the chunk has another number of lines now than when it was cut from the log."""
        if num_lines != self.num_lines:
            raise ValueError(
                f"the log changed while it was read: {self.num_lines:,} lines were counted from line "
                f"{self.first_line + 1:,} on, now there are {'more' if num_lines < 0 else f'{num_lines:,}'}; prepare "
                "it again when it no longer changes"
            )


@dataclass(frozen=True)
class ParsedRows:
    """Rows of the log as columns: each field's cells are contiguous. A missing cell is 0 or "", and not `present`."""

    row_numbers: NDArray[np.int64]  # [n] number of the line in the log, from 0; rejected lines count too
    labels: NDArray[np.bool_]  # [n]
    integers: NDArray[np.int64]  # [N, n]
    integers_present: NDArray[np.bool_]  # [N, n]
    values: NDArray[np.uint32]  # [H, n]
    values_present: NDArray[np.bool_]  # [H, n]
    texts: tuple[Strings, ...] = ()  # T of them, [n] each
    strings_present: tuple[NDArray[np.bool_], ...] = ()  # T of them, [n] each
    lists: dict[str, Lists] = field(default_factory=dict)  # by column of kind list, see `with_lists`
    weights: NDArray[np.float32] | None = None  # [n]
    keys: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # by column of kind id, [n] each
    floats: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))  # [F, n]
    floats_present: NDArray[np.bool_] = field(default_factory=lambda: np.empty((0, 0), np.bool_))  # [F, n]
    times: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 0), np.int64))  # [S, n] ms since 1970
    times_present: NDArray[np.bool_] = field(default_factory=lambda: np.empty((0, 0), np.bool_))  # [S, n]

    def take(self, chosen: NDArray[np.bool_]) -> ParsedRows:
        if chosen.all():
            return self
        indices = np.flatnonzero(chosen)
        # Not integers[:, chosen], whose result is laid out by rows: the native kernels need contiguous columns.
        return ParsedRows(
            row_numbers=self.row_numbers[chosen],
            labels=self.labels[chosen],
            integers=self.integers.take(indices, axis=1),
            integers_present=self.integers_present.take(indices, axis=1),
            values=self.values.take(indices, axis=1),
            values_present=self.values_present.take(indices, axis=1),
            texts=tuple(texts.take(chosen) for texts in self.texts),
            strings_present=tuple(present[chosen] for present in self.strings_present),
            weights=None if self.weights is None else self.weights[chosen],
            keys={name: keys[chosen] for name, keys in self.keys.items()},
            floats=_take(self.floats, indices),
            floats_present=_take(self.floats_present, indices),
            times=_take(self.times, indices),
            times_present=_take(self.times_present, indices),
        )

    def without_label(self, unlabelled: NDArray[np.bool_]) -> ParsedRows:
        """Return the rows with weight 0 where they are `unlabelled` [n]."""
        weights = np.ones(len(self.labels), np.float32) if self.weights is None else self.weights
        return replace(self, weights=np.where(unlabelled, np.float32(0), weights))

    def with_lists(self, log_format: LogFormat, kernels: ModuleType) -> ParsedRows:
        """Return the rows with the columns of kind list split into their values; a list without any is missing."""
        lists, present = {}, list(self.strings_present)
        for place, name in enumerate(log_format.text_fields):
            if log_format.columns[name] == "list":
                form = log_format.list_form(name)
                lists[name] = kernels.split_lists(self.texts[place], form.separator, form.max_length, log_format.trim)
                present[place] = lists[name].lengths > 0
        return replace(self, lists=lists, strings_present=tuple(present)) if lists else self

    def blanked(self, log_format: LogFormat, name: str) -> ParsedRows:
        """Return the rows with all cells of a field missing."""
        if name in log_format.text_fields:
            place = log_format.text_fields.index(name)
            texts, present = list(self.texts), list(self.strings_present)
            none = np.zeros(len(self.labels), np.int64)
            texts[place] = replace(texts[place], lengths=none)
            present[place] = none.astype(np.bool_)
            lists = self.lists
            if name in lists:
                lists = {**lists, name: Lists(Strings.of([]), none, present[place])}
            return replace(self, texts=tuple(texts), strings_present=tuple(present), lists=lists)
        array, place = log_format.stored_in(name)
        changed = {key: getattr(self, key).copy() for key in (array, f"{array}_present")}
        for cells in changed.values():
            cells[place] = 0
        return replace(self, **changed)

    def number_columns(self, columns: Sequence[CategoricalColumn]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Return those of the categorical `columns` that are numbers, and where they are present, both [M, n]."""
        derived = [column for column in columns if column.kind in _SOURCES]
        if not derived:
            return self.values, self.values_present
        values = np.empty((len(self.values) + len(derived), len(self.labels)), np.uint32)
        values[: len(self.values)] = self.values
        for column in derived:
            cells = getattr(self, _SOURCES[column.kind])[column.source]
            values[column.place] = _derived(column.kind, cells)
        return values, np.stack(self.numbers_present(columns))

    def numbers_present(self, columns: Sequence[CategoricalColumn]) -> list[NDArray[np.bool_]]:
        """Return where each of the columns that are numbers is present [n]."""
        derived = (column for column in columns if column.kind in _SOURCES)
        return [
            *self.values_present,
            *(getattr(self, f"{_SOURCES[column.kind]}_present")[column.source] for column in derived),
        ]

    def numbers(self, array: str, places: int | list[int]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the cells of numeric fields, stored in `array` at `places`, and where they are present."""
        return getattr(self, array)[places], getattr(self, f"{array}_present")[places]


def _take(columns: NDArray[Any], indices: NDArray[np.int64]) -> NDArray[Any]:
    """Return some rows of columns [M, n], side by side in memory; columns [0, 0] stand for none."""
    return columns.take(indices, axis=1) if columns.shape[1] else columns


HOUR = 3_600_000  # milliseconds
_WEEKDAY_OF_1970 = 3  # 1970 began on a Thursday; Monday is 0


# By kind of a categorical column that is made from other cells: the array of ParsedRows that has them.
_SOURCES = {"hour": "times", "weekday": "times", "bucket": "integers"}


def _derived(kind: str, cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the values of a categorical column that is made from times or integers [n]."""
    if kind == "hour":
        return cells // HOUR % 24
    return (cells // DAY + _WEEKDAY_OF_1970) % 7 if kind == "weekday" else bucket_of(cells) - SMALLEST_BUCKET


@dataclass(frozen=True)
class ParsedChunk:
    """The good lines of a chunk as rows, its bad ones as lines of rejects.tsv."""

    rows: ParsedRows
    rejects_by_reason: Counter[str]
    rejects_tsv: bytes  # line number in its file (from 1), reason, raw line


# A bucket is stored as its distance from this one, which keeps the integers' order; smaller integers share it.
SMALLEST_BUCKET = -(2**31)


def bucket_of(integers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket of each integer x: floor(ln(x)²) for x > 2, else x itself.

    The transform of the BARS benchmarks (J. Zhu et al., "BARS: Towards open benchmarking for recommender systems",
    SIGIR 2022), from the winners of Criteo's contest.
    """
    squares = np.square(np.log(np.maximum(integers, 1).astype(np.float64)))
    return np.where(integers > 2, np.floor(squares).astype(np.int64), np.maximum(integers, SMALLEST_BUCKET))


MISSING = -1  # among values that are numbers; sorts before all of them, as "" sorts before all strings
