"""Store and process arrays of byte strings, many strings at a time, and the lists of values in list columns.

The key of a string is a 64-bit hash, by which the string is found quickly. Whether strings are equal is decided by
their bytes, so different strings with the same key stay different. Somebody can easily construct strings that share a
key, so such strings must not take longer to process.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.arrays.hashing import GOLDEN, mix64

_WORD_BYTES = 8
PADDING_BYTES = _WORD_BYTES  # The buffer `data` of `Strings` has this many bytes after its last string.
_PADDING = np.zeros(PADDING_BYTES, np.uint8)
# Matches floats without a fraction as pandas, C and Java write large ones. A point or a sign distinguishes them from
# hexadecimal numbers such as 12e7.
_LARGE_FLOAT = re.compile(rb"-?(?:[0-9]{16,}\.0|[0-9](?:\.[0-9]+)?[eE]\+[0-9]{2,3}|[0-9]\.[0-9]+[eE][0-9]{2,3})")
_WHOLE, _WHOLE_WITH_POINT = re.compile(rb"-?[0-9]{1,15}"), re.compile(rb"-?[0-9]{1,15}\.0")
# The mask with index n keeps the n lowest bytes of a word, and clears the bytes that follow a string of n bytes.
_OWN_MASKS = np.array([2 ** (8 * n) - 1 for n in range(_WORD_BYTES + 1)], np.uint64)


# Closing bracket of each opening bracket with which Python, JSON, NumPy and PostgreSQL write a list as text. A text in
# parentheses is only a list if there is a separator in it, because `(no genres listed)` is a plain text.
_CLOSING = {b"[": b"]", b"{": b"}", b"(": b")"}
_OF_NUMPY = re.compile(rb"[-+.0-9e ]*")


@dataclass(frozen=True)
class Strings:
    """An array of n byte strings, which are slices of the shared buffer `data`.

    `data` has at least seven more bytes after the end of every string, so that words of eight bytes can be read.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]  # Offset of each string [n] in `data`.
    lengths: NDArray[np.int64]  # Length of each string [n] in bytes.

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> Strings:
        lengths = np.array([len(string) for string in strings], np.int64)
        data = np.concatenate([np.frombuffer(b"".join(strings), np.uint8), _PADDING])
        return cls(data, np.cumsum(lengths) - lengths, lengths)

    def __len__(self) -> int:
        return len(self.starts)

    def tolist(self) -> list[bytes]:
        ends = self.starts + self.lengths
        return [self.data[start:end].tobytes() for start, end in zip(self.starts, ends, strict=True)]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.starts.nbytes + self.lengths.nbytes

    def take(self, selection: NDArray[np.generic] | slice) -> Strings:
        """Return the strings that `selection`, a mask, an index array or a slice, selects.

        The result shares the buffer with this array.
        """
        return Strings(self.data, self.starts[selection], self.lengths[selection])

    def compact(self) -> Strings:
        """Return a copy of the strings in a new buffer, where they follow each other without gaps."""
        starts = np.cumsum(self.lengths) - self.lengths
        positions = np.arange(int(self.lengths.sum())) + np.repeat(self.starts - starts, self.lengths)
        return Strings(np.concatenate([self.data[positions], _PADDING]), starts, self.lengths.copy())

    def keys(self) -> NDArray[np.uint64]:
        """Return the key of each string [n], which is a 64-bit hash.

        Different strings of the same length, up to eight bytes, always have different keys.
        """
        keys = self.lengths.astype(np.uint64) * GOLDEN
        for number in range(-(-int(self.lengths.max(initial=0)) // _WORD_BYTES)):
            longer = np.flatnonzero(self.lengths > number * _WORD_BYTES)
            mixed = (keys[longer] ^ self._words(number, longer)) * np.uint64(0xD6E8FEB86659FD93)
            keys[longer] = mixed ^ mixed >> np.uint64(32)
        return mix64(keys)

    def equal(self, others: Strings) -> NDArray[np.bool_]:
        """Return a mask [n] of the strings that equal the string at the same index in `others` [n]."""
        same = self.lengths == others.lengths
        for number in range(-(-int(self.lengths.max(initial=0, where=same)) // _WORD_BYTES)):
            longer = np.flatnonzero(same & (self.lengths > number * _WORD_BYTES))
            same[longer] = self._words(number, longer) == others._words(number, longer)
        return same

    def are_ascii(self) -> NDArray[np.bool_]:
        """Return a mask [n] of the strings that have no byte above 127."""
        ascii_only = np.ones(len(self), np.bool_)
        for number in range(-(-int(self.lengths.max(initial=0)) // _WORD_BYTES)):
            longer = np.flatnonzero(self.lengths > number * _WORD_BYTES)
            ascii_only[longer] &= self._words(number, longer) & np.uint64(0x8080808080808080) == 0
        return ascii_only

    def one_of(self, strings: Iterable[str]) -> NDArray[np.bool_]:
        """Return a mask [n] of the strings of this array that equal one of `strings`.

        The time is proportional to the number of `strings`, so there should be only a few.
        """
        is_among = np.zeros(len(self), np.bool_)
        for string in strings:
            one = Strings.of([string.encode()])
            is_among |= self.equal(one.take(np.zeros(len(self), np.int64)))
        return is_among

    def _words(self, number: int, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return eight bytes of each string whose index is in `places`, from byte 8 * number on, as a 64-bit word.

        The word is little-endian. Bytes after the end of the string are 0 in it.
        """
        words: NDArray[np.uint64] = np.ndarray((len(self.data) - _WORD_BYTES + 1,), "<u8", self.data, strides=(1,))
        num_bytes = np.clip(self.lengths[places] - number * _WORD_BYTES, 0, _WORD_BYTES)
        return words[self.starts[places] + number * _WORD_BYTES] & _OWN_MASKS[num_bytes]


def end_in_point_zero(texts: Strings) -> NDArray[np.bool_]:
    """Return a mask [n] of the strings that end in .0 and have at least one byte before the point, such as 7.0."""
    ends = texts.starts + texts.lengths
    return (texts.lengths > 2) & (texts.data[ends - 2] == ord(".")) & (texts.data[ends - 1] == ord("0"))


def are_whole(texts: Strings, has_point: bool) -> NDArray[np.bool_]:
    """Return a mask [n] of the strings that consist of a whole number, in the form 7.0 if `has_point` is True,
    otherwise in the form 7.

    Only numbers of up to 15 digits count, because a float may not represent longer numbers exactly.
    """
    lasts = texts.data[texts.starts + texts.lengths - 1] - np.uint8(ord("0"))
    are_whole = (texts.lengths > 0) & (lasts <= 9) & (end_in_point_zero(texts) == has_point)
    places, form = np.flatnonzero(are_whole), _WHOLE_WITH_POINT if has_point else _WHOLE
    are_whole[places] = [form.fullmatch(text) is not None for text in texts.take(places).tolist()]
    return are_whole


def are_inexact_texts(texts: Strings) -> NDArray[np.bool_]:
    """Return a mask [n] of the strings that are floats of magnitude 2**53 or more, as programs write them.

    Several whole numbers round to the same such float, so it is not clear which of them was meant.
    """
    are_inexact, ends = (texts.lengths >= 5) & (texts.lengths <= 320), texts.starts + texts.lengths
    marks = [texts.data[ends - place] for place in (3, 4)]
    has_mark = np.any([np.isin(each, np.frombuffer(b"+eE", np.uint8)) for each in marks], axis=0)
    are_inexact &= has_mark | (end_in_point_zero(texts) & (texts.lengths >= 18))
    places = np.flatnonzero(are_inexact)
    found = texts.take(places).tolist()
    are_inexact[places] = [bool(_LARGE_FLOAT.fullmatch(text)) and abs(float(text)) >= 2.0**53 for text in found]
    return are_inexact


def with_whole_numbers(texts: Strings, has_point: bool) -> Strings:
    """Return the strings [n] with those that consist of a whole number alone in one form: 7.0 if `has_point` is True,
    else 7. All other strings, such as 7.5 or v7, stay unchanged.
    """
    changed = are_whole(texts, not has_point)
    if not has_point:
        return Strings(texts.data, texts.starts, texts.lengths - 2 * changed)
    if not changed.any():
        return texts
    return Strings.of([text + b".0" * change for text, change in zip(texts.tolist(), changed.tolist(), strict=True)])


def trim_blanks(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offsets in `data` at which texts start and end if the blanks at their beginning and end are cut off.

    `starts` and `ends` [n] are the offsets in `data` at which the texts start and end including these blanks.
    """
    starts, ends = starts.copy(), ends.copy()
    for edges, step in ((starts, 1), (ends, -1)):
        at = 0 if step > 0 else -1
        while (blank := (ends > starts) & (data[np.minimum(edges + at, len(data) - 1)] == ord(" "))).any():
            edges[blank] += step
    return starts, ends


@dataclass(frozen=True)
class Lists:
    """The lists of a column in n rows. The M values of all lists are stored one after the other, row by row."""

    values: Strings  # Values of all rows [M].
    lengths: NDArray[np.int64]  # Number of values in each row's list [n], which is 0 if the cell is missing.
    # Mask [n] of the rows whose lists had more than the allowed number of values, so that their last values were
    # dropped.
    cut: NDArray[np.bool_]

    @property
    def rows(self) -> NDArray[np.int64]:
        """For each value [M], the index of the row whose list contains it."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def places(self) -> NDArray[np.int64]:
        """For each value [M], its index within its list, from 0."""
        return places_in_lists(self.lengths)

    def copies(self, kept: NDArray[np.bool_]) -> Lists:
        """Return several copies of the lists, one after the other, in which different lists are empty.

        `kept` [copies, n] has a mask for each copy. Lists that the mask of a copy does not mark are empty in it.
        """
        values = self.values.take(np.nonzero(kept[:, self.rows])[1])
        return Lists(values, (self.lengths * kept).ravel(), (self.cut & kept).ravel())


def places_in_lists(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of each value within its list, from 0.

    The lists follow each other and have the given lengths.
    """
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def shorten(lengths: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return how many values to keep of each of K lists in each row, so that at most `most` combinations remain.

    A combination has one value from each list. `lengths` [K, n] are the numbers of values in the lists, and the result
    [K, n] are the numbers to keep. As long as a row has too many combinations, its longest list loses its last value.
    If several lists are equally long, the last of them is shortened.
    """
    num_values = lengths.copy()
    while len(rows := np.flatnonzero(num_values.prod(axis=0) > most)):
        longest = len(num_values) - 1 - num_values[::-1, rows].argmax(axis=0)
        num_values[longest, rows] -= 1
    return num_values


def combinations(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """List all M combinations of one value from each of K lists, for n rows. `lengths` [K, n] are the lists' lengths.

    Return the row of each combination [M], and the indices [K, M] of its values within their lists. Within a row, the
    index in the last list changes fastest.
    """
    of_row = lengths.prod(axis=0)
    rows, rest = np.repeat(np.arange(len(of_row)), of_row), places_in_lists(of_row)
    places = np.empty((len(lengths), len(rows)), np.int64)
    for index in reversed(range(len(lengths))):
        rest, places[index] = np.divmod(rest, lengths[index, rows])
    return rows, places


def split_lists(cells: Strings, separator: str, max_length: int, trim: bool = False) -> Lists:
    """Split each cell [n] of a list column into its values, and keep the first `max_length` values of each.

    If `trim` is True, blanks around the values are removed. There is no value between two adjacent separators. A cell
    in brackets, such as [3, 7], is split by `spans_in_brackets`.
    """
    cells = cells.compact()
    filled = np.flatnonzero(cells.lengths)
    starts, ends = cells.starts[filled], (cells.starts + cells.lengths)[filled]
    separators = np.flatnonzero(cells.data[:-PADDING_BYTES] == ord(separator))
    # The cells follow each other without gaps, and so do their values. Therefore, after the starts of all values and
    # the ends of all values are sorted, the start and the end of a value have the same index.
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

    Offsets count from the start of the cell. `divider_in_brackets` finds the character between the values. Blanks and
    quotes around a value are not part of it. Within quotes, neither the separator nor a quote after a backslash ends
    the value. The result is None for a list of lists.
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
    """Return the character that divides the values of a list, given the list's text without its brackets.

    The result is `separator` if `separator` occurs outside of quotes. Otherwise it is a comma, if one occurs: pandas,
    polars and duckdb write lists in CSV files with commas, whatever the separator of the column is. NumPy writes arrays
    with blanks between numbers or quoted values.
    """
    unquoted = _quoted_values(separator).sub(b"", text)
    marks = (",", separator) if separator == " " else (separator, ",")
    divider = next((mark for mark in marks if mark.encode() in unquoted), None)
    return divider or (" " if _OF_NUMPY.fullmatch(unquoted) else separator)


@functools.lru_cache(maxsize=16)
def _quoted_values(separator: str) -> re.Pattern[bytes]:
    """Return a regular expression for a quoted text, with its quotes, with which a value of a list begins. Most values
    end with the text.
    """
    pattern = rf"""(?<![^ ,{re.escape(separator)}])(?P<quote>["'])(?:\\.|(?!(?P=quote)|\\).)*+(?P=quote)"""
    return re.compile(pattern.encode(), re.DOTALL)


@functools.lru_cache(maxsize=16)
def _value_in_brackets(separator: str) -> re.Pattern[bytes]:
    """Return a regular expression for a value of a list in brackets.

    Its group `quoted` is the text within the quotes of a value, and its group `plain` a value without quotes.
    """
    end = re.escape(separator)
    quoted = rf"""(?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote)|\\).)*+)(?P=quote) *(?={end}|\Z)"""
    return re.compile(rf" *+(?:{quoted}|(?P<plain>[^{end}]*))".encode(), re.DOTALL)
