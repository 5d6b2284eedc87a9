"""Split the cells of a list column into their values."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.strings import PADDING_BYTES, Strings, trim_blanks


@dataclass(frozen=True)
class Lists:
    """The lists of n rows. The M values of all rows follow each other, row by row."""

    values: Strings  # Values of all rows [M].
    lengths: NDArray[np.int64]  # Number of values of each row [n], 0 if the cell is missing.
    cut: NDArray[np.bool_]  # Mask [n] of the rows that had more values than are kept.

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row index of each value [M]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def places(self) -> NDArray[np.int64]:
        """Index of each value [M] within its list, from 0."""
        return places_in_lists(self.lengths)

    def copies(self, kept: NDArray[np.bool_]) -> Lists:
        """Return several copies of the lists, one after the other. In each copy, only the lists in a mask keep values.

        `kept` [copies, n] has one mask per copy. All other lists become empty.
        """
        values = self.values.take(np.nonzero(kept[:, self.rows])[1])
        return Lists(values, (self.lengths * kept).ravel(), (self.cut & kept).ravel())


def places_in_lists(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of each value within its list, from 0, for lists of the given lengths."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def shorten(lengths: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Shorten the K lists of each row until there are at most `most` combinations of their values.

    `lengths` [K, n] are the numbers of values, and so is the result. As long as a row has too many combinations, its
    longest list loses the last value. Among equally long lists, the last one is shortened.
    """
    num_values = lengths.copy()
    while len(rows := np.flatnonzero(num_values.prod(axis=0) > most)):
        longest = len(num_values) - 1 - num_values[::-1, rows].argmax(axis=0)
        num_values[longest, rows] -= 1
    return num_values


def combinations(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Enumerate the combinations of the values of K lists in each row. `lengths` [K, n] are the lists' lengths.

    Return the row of each combination [M], and the indices [K, M] of its values within their lists. Within a row, the
    index in the last list changes fastest.
    """
    of_row = lengths.prod(axis=0)
    rows, rest = np.repeat(np.arange(len(of_row)), of_row), places_in_lists(of_row)
    places = np.empty((len(lengths), len(rows)), np.int64)
    for index in reversed(range(len(lengths))):
        rest, places[index] = np.divmod(rest, lengths[index, rows])
    return rows, places


# Opening and closing brackets with which Python, JSON, NumPy and PostgreSQL write a list as text. Parentheses only
# count if there is a separator between them, because `(no genres listed)` is a plain text.
_CLOSING = {b"[": b"]", b"{": b"}", b"(": b")"}


def split_lists(cells: Strings, separator: str, max_length: int, trim: bool = False) -> Lists:
    """Split each cell [n] into its values, and keep the first `max_length` values.

    With `trim`, blanks around the values are removed. Two separators in a row have no value between them. A cell in
    brackets, such as [3, 7], is split by `spans_in_brackets`.
    """
    cells = cells.compact()
    filled = np.flatnonzero(cells.lengths)
    starts, ends = cells.starts[filled], (cells.starts + cells.lengths)[filled]
    separators = np.flatnonzero(cells.data[:-PADDING_BYTES] == ord(separator))
    # Cells follow each other without gaps, so the starts and the ends of values match once both are sorted.
    value_starts, value_ends = (
        np.sort(np.concatenate(both)) for both in ((starts, separators + 1), (ends, separators))
    )
    rows = filled[np.searchsorted(starts, value_starts, side="right") - 1]
    if trim:
        value_starts, value_ends = trim_blanks(cells.data, value_starts, value_ends)
    in_brackets = {}
    for row in filled[np.isin(cells.data[starts], [*map(ord, _CLOSING)])].tolist():
        if (spans := spans_in_brackets(cells.take(slice(row, row + 1)).tolist()[0], separator)) is not None:
            in_brackets[row] = [
                (cells.starts[row] + start, cells.starts[row] + end) for start, end in spans if start < end
            ]
    is_plain = (value_ends > value_starts) & ~np.isin(rows, [*in_brackets])
    plain = np.stack([rows, value_starts, value_ends], axis=1)[is_plain]
    others = [(row, *span) for row, spans in in_brackets.items() for span in spans]
    every = np.concatenate([plain, np.array(others, np.int64).reshape(-1, 3)])
    rows, value_starts, value_ends = every[np.argsort(every[:, 0], kind="stable")].T
    lengths = np.bincount(rows, minlength=len(cells))
    fits = places_in_lists(lengths) < max_length
    values = Strings(cells.data, value_starts[fits], (value_ends - value_starts)[fits])
    return Lists(values, np.minimum(lengths, max_length), lengths > max_length)


def spans_in_brackets(cell: bytes, separator: str) -> list[tuple[int, int]] | None:
    """Return the start and end of each value in a cell such as `[3, 7]` or `['a', "b"]`, or None for any other cell.

    `divider_in_brackets` finds the character between the values. Blanks and quotes around a value are not part of it.
    Within quotes, the separator does not end the value, and a character after a backslash does not either. The result
    is None for a list of lists.
    """
    opening, closing = cell[:1], cell[-1:]
    if len(cell) < 2 or _CLOSING.get(opening) != closing:
        return None
    separator = divider_in_brackets(cell[1:-1], separator)
    if opening == b"(" and separator.encode() not in cell:
        return None
    spans, at, end = [], 1, len(cell) - 1
    while at <= end:
        match = _value_in_brackets(separator).match(cell, at, end)
        assert match is not None  # The pattern matches any text as a plain value.
        plain = match["plain"]
        if plain is None:
            spans.append(match.span("quoted"))
        elif opening in plain or closing in plain:
            return None
        else:
            spans.append((match.start("plain"), match.start("plain") + len(plain.rstrip(b" "))))
        at = match.end() + 1
    return spans


def divider_in_brackets(text: bytes, separator: str) -> str:
    """Return what divides the values of a list, given its text without the brackets.

    It is the separator if that is there outside of quotes, else a comma: in CSV files pandas, polars and duckdb write
    lists so, whatever the separator of the column is. Arrays of NumPy have blanks between numbers or quoted values.
    """
    unquoted = _quoted_values(separator).sub(b"", text)
    marks = (",", separator) if separator == " " else (separator, ",")
    divider = next((mark for mark in marks if mark.encode() in unquoted), None)
    return divider or (" " if _OF_NUMPY.fullmatch(unquoted) else separator)


_OF_NUMPY = re.compile(rb"[-+.0-9e ]*")


@functools.lru_cache(maxsize=16)
def _quoted_values(separator: str) -> re.Pattern[bytes]:
    """Return the pattern of text in quotes at the beginning of a value."""
    pattern = rf"""(?<![^ ,{re.escape(separator)}])(?P<quote>["'])(?:\\.|(?!(?P=quote)|\\).)*+(?P=quote)"""
    return re.compile(pattern.encode(), re.DOTALL)


@functools.lru_cache(maxsize=16)
def _value_in_brackets(separator: str) -> re.Pattern[bytes]:
    """Return a regular expression for a value of a list in brackets, which may be quoted or plain."""
    end = re.escape(separator)
    quoted = rf"""(?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote)|\\).)*+)(?P=quote) *(?={end}|\Z)"""
    return re.compile(rf" *+(?:{quoted}|(?P<plain>[^{end}]*))".encode(), re.DOTALL)
