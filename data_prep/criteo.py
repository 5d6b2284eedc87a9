"""The raw form of the Criteo DAC log: which columns a line has, and lines to arrays.

A line is 40 columns between tabs: a label (0 or 1), 13 integers, 26 categorical values of eight lower-case
hex digits. An integer or categorical cell may be empty, that is: missing.

All lines of a chunk are parsed at once, column by column, with NumPy on the raw bytes. One definition of a
good line holds for every line, where a general CSV reader takes quotes, blanks, `0x1f` or a lone carriage
return for something else (and is slower).

Letters: n rows, N numeric fields, C categorical fields.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUMERIC_FIELDS = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL_FIELDS = tuple(f"C{i}" for i in range(1, 27))
NUM_COLUMNS = 1 + len(NUMERIC_FIELDS) + len(CATEGORICAL_FIELDS)

# A good line has less than 1 KiB. A longer one than this is rejected and only its start is kept, so that a
# file without line ends cannot fill the memory.
MAX_LINE_BYTES = 1 << 16

# Why a line is rejected: the first of these that holds. The code of a reason is its place; 0 is a kept line.
REASONS = ("", "too long", "columns", "label", "integer", "categorical")
TOO_LONG, COLUMNS, LABEL, INTEGER, CATEGORICAL = range(1, 6)

_TAB, _NEWLINE, _CARRIAGE_RETURN, _MINUS, _ZERO = b"\t\n\r-0"
_HEX_DIGITS = 8
_INTEGER_DIGITS = 19  # of the largest int64
_WORD_BYTES = 8
# Words are read backwards from a cell's end (three of them, for 19 digits) or forwards from its start.
_PAD_BEFORE = b"0" * (3 * _WORD_BYTES)
_PAD_AFTER = b"0" * _WORD_BYTES


@dataclass(frozen=True)
class FileOfLog:
    """Which of the log's files some lines are of."""

    place: int = 0  # among the files, from 0
    name: str = ""  # "" where the log is one file
    first_line: int = 0  # the number of its first line in the log


ONLY_FILE = FileOfLog()


@dataclass(frozen=True)
class Chunk:
    """Whole lines of a file of the log, each with its line end; `first_line` is the first one's number in the log."""

    first_line: int
    num_lines: int
    lines: bytes
    file: FileOfLog = ONLY_FILE

    def load(self) -> Chunk:
        """Itself; a `raw_log.StoredChunk` reads its lines."""
        return self

    def reject(self, line: int, code: int, text: NDArray[np.uint8]) -> bytes:
        """The line of rejects.tsv for the chunk's line-th one, from 0."""
        where = self.first_line - self.file.first_line + line + 1
        name = self.file.name.encode() + b":" if self.file.name else b""
        return b"%s%d\t%s\t%s\n" % (name, where, REASONS[code].encode(), text[:MAX_LINE_BYTES].tobytes())


@dataclass(frozen=True)
class LogRows:
    """Rows of the log as columns; a missing cell holds 0 and is not `present`."""

    row_numbers: NDArray[np.int64]  # [n] number of the line in the log, from 0; rejected lines count too
    labels: NDArray[np.bool_]  # [n]
    integers: NDArray[np.int64]  # [N, n]
    integers_present: NDArray[np.bool_]  # [N, n]
    values: NDArray[np.uint32]  # [C, n]
    values_present: NDArray[np.bool_]  # [C, n]

    def take(self, chosen: NDArray[np.bool_]) -> LogRows:
        """The rows where `chosen` [n] is true."""
        if chosen.all():
            return self
        return LogRows(
            row_numbers=self.row_numbers[chosen],
            labels=self.labels[chosen],
            integers=self.integers[:, chosen],
            integers_present=self.integers_present[:, chosen],
            values=self.values[:, chosen],
            values_present=self.values_present[:, chosen],
        )


@dataclass(frozen=True)
class ParsedChunk:
    """The good lines of a chunk as rows, its bad ones as lines of rejects.tsv."""

    rows: LogRows
    rejects_by_reason: Counter[str]
    rejects_tsv: bytes  # line number in its file (from 1), reason, raw line


class _Text:
    """The bytes of a chunk: singly, or as little-endian words of eight that start at any byte."""

    def __init__(self, lines: bytes) -> None:
        padded = _PAD_BEFORE + lines + _PAD_AFTER
        self.first = len(_PAD_BEFORE)
        self.end = self.first + len(lines)
        self.bytes: NDArray[np.uint8] = np.frombuffer(padded, np.uint8)
        self.words: NDArray[np.uint64] = np.ndarray((len(padded) - _WORD_BYTES + 1,), "<u8", padded, strides=(1,))


def parse_chunk(chunk: Chunk) -> ParsedChunk:
    """Arrays from lines: every line is a row or a reject."""
    text = _Text(chunk.lines)
    # Tab and newline are neighbours in ASCII (9 and 10), so one comparison finds both.
    separators = np.flatnonzero(text.bytes[: text.end] - np.uint8(_TAB) < 2)
    line_lasts = np.flatnonzero(text.bytes[separators] == _NEWLINE)  # places in `separators`
    line_ends = separators[line_lasts]
    check_num_lines(chunk, len(line_ends))
    line_starts = np.concatenate([[text.first], line_ends[:-1] + 1])

    reasons = np.zeros(len(line_ends), np.int8)
    reasons[np.diff(line_lasts, prepend=-1) != NUM_COLUMNS] = COLUMNS
    reasons[line_ends - line_starts > MAX_LINE_BYTES] = TOO_LONG
    shaped = np.flatnonzero(reasons == 0)

    starts, ends = _cells(text, separators, line_lasts[shaped], line_starts[shaped])
    rows, reasons[shaped] = _parse_cells(text, starts, ends, row_numbers=chunk.first_line + shaped)
    bad = np.flatnonzero(reasons)
    return ParsedChunk(
        rows=rows.take(reasons[shaped] == 0),
        rejects_by_reason=Counter({REASONS[code]: int(np.sum(reasons == code)) for code in np.unique(reasons[bad])}),
        rejects_tsv=b"".join(
            chunk.reject(int(line), reasons[line], text.bytes[line_starts[line] : line_ends[line]]) for line in bad
        ),
    )


def check_num_lines(chunk: Chunk, num_lines: int) -> None:
    """Raise ValueError where a chunk, which a worker may have read itself, has not the lines that were counted."""
    if num_lines != chunk.num_lines:
        raise ValueError(
            f"the log changed while it was read: {chunk.num_lines:,} lines were counted from line "
            f"{chunk.first_line + 1:,} on, now there are {'more' if num_lines < 0 else f'{num_lines:,}'}; prepare it "
            "again when it is at rest"
        )


def _cells(
    text: _Text, separators: NDArray[np.int64], line_lasts: NDArray[np.int64], line_starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and end offsets [columns, n] of every cell of lines that have the right number of columns."""
    if len(line_lasts) * NUM_COLUMNS == len(separators):
        by_line = separators.reshape(-1, NUM_COLUMNS)
    else:
        by_line = separators[line_lasts[:, None] + np.arange(1 - NUM_COLUMNS, 1)]
    ends = np.ascontiguousarray(by_line.T)
    starts = np.empty_like(ends)
    starts[0] = line_starts
    starts[1:] = ends[:-1] + 1
    ends[-1] -= text.bytes[ends[-1] - 1] == _CARRIAGE_RETURN  # a line may end in \r\n
    return starts, ends


def _parse_cells(
    text: _Text, starts: NDArray[np.int64], ends: NDArray[np.int64], row_numbers: NDArray[np.int64]
) -> tuple[LogRows, NDArray[np.int8]]:
    """Rows of all the lines, and per line the code of the reason to reject it or 0."""
    num_rows, num_numeric, num_categorical = len(row_numbers), len(NUMERIC_FIELDS), len(CATEGORICAL_FIELDS)
    rows = LogRows(
        row_numbers=row_numbers,
        labels=text.bytes[starts[0]] == _ZERO + 1,
        integers=np.empty((num_numeric, num_rows), np.int64),
        integers_present=np.empty((num_numeric, num_rows), np.bool_),
        values=np.empty((num_categorical, num_rows), np.uint32),
        values_present=np.empty((num_categorical, num_rows), np.bool_),
    )
    reasons = np.zeros(num_rows, np.int8)
    # From the last reason to the first, so that the first one stays.
    for field in range(num_categorical):
        column = 1 + num_numeric + field
        rows.values[field], rows.values_present[field], good = _parse_hex(text, starts[column], ends[column])
        reasons[~good] = CATEGORICAL
    for field in range(num_numeric):
        column = 1 + field
        rows.integers[field], rows.integers_present[field], good = _parse_integers(text, starts[column], ends[column])
        reasons[~good] = INTEGER
    is_label = (ends[0] - starts[0] == 1) & (rows.labels | (text.bytes[starts[0]] == _ZERO))
    reasons[~is_label] = LABEL
    return rows, reasons


def _parse_hex(
    text: _Text, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Values, where present, and where good, of cells [n] that hold eight lower-case hex digits or nothing.

    The eight characters of a cell are worked on side by side in one 64-bit word.
    """
    present = ends > starts
    words = text.words[starts]
    is_letter = words >> 6 & _bytes(0x01)  # bit 6 is set in 'a'-'f' (0x61-0x66), not in '0'-'9' (0x30-0x39)
    low = words ^ (_bytes(0x30) + is_letter * 0x30)  # of a good byte: 0-9, or 1-6 of a letter
    digits = low + is_letter * 9
    is_zero_letter = is_letter & ~(low | low >> 1 | low >> 2)  # '`', the character before 'a'
    bad = _above_9(low) | digits & _bytes(0xF0) | is_zero_letter
    good = (bad == 0) & (ends - starts == _HEX_DIGITS)

    # Neighbours join: 8 digits of 4 bits to 4 of 8, to 2 of 16, to 1 of 32. The first character is the lowest byte.
    pairs = (digits << 4 | digits >> 8) & 0x00FF00FF00FF00FF
    quads = (pairs << 8 | pairs >> 16) & 0x0000FFFF0000FFFF
    values = (quads << 16 | quads >> 32).astype(np.uint32)  # keeps the low 32 bits
    values[~present] = 0
    return values, present, good | ~present


def _parse_integers(
    text: _Text, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Integers, where present, and where good, of cells [n] that hold -?[0-9]{1,19} within int64 or nothing."""
    present = ends > starts
    negative = present & (text.bytes[starts] == _MINUS)
    num_digits = ends - starts - negative
    good = (num_digits >= 1) & (num_digits <= _INTEGER_DIGITS)
    longest = int(num_digits.max(initial=0, where=good))

    magnitudes = np.zeros(len(starts), np.uint64)
    for skipped in range(0, longest, _WORD_BYTES):  # from the last eight digits to the first ones
        words = text.words[ends - skipped - _WORD_BYTES]
        # The last characters are the highest bytes; what stands before the cell becomes digit 0.
        num_foreign = (_WORD_BYTES - np.clip(num_digits - skipped, 0, _WORD_BYTES)).astype(np.uint64)
        digits = (words ^ _bytes(0x30)) & _FOREIGN_MASKS[num_foreign]
        good &= _above_9(digits) == 0
        magnitudes += _join_decimal(digits) * 10**skipped
    good &= magnitudes <= np.uint64(2**63 - 1) + negative
    integers = magnitudes.astype(np.int64)
    np.negative(integers, out=integers, where=negative)
    integers[~present] = 0
    return integers, present, good | ~present


def _bytes(byte: int) -> np.uint64:
    """A word of eight times the same byte."""
    return np.uint64(byte * 0x0101010101010101)


# By the number of low bytes to clear, 0-8.
_FOREIGN_MASKS = np.array([2**64 - 2 ** (8 * n) for n in range(_WORD_BYTES + 1)], np.uint64)


def _above_9(words: NDArray[np.integer]) -> NDArray[np.integer]:
    """Words that are not 0 where a byte is above 9: adding 0x76 sets the byte's bit 7 from 10 on.

    A byte that carries into the next one has bit 7 set itself, so no bad word is missed.
    """
    return (words + _bytes(0x76) | words) & _bytes(0x80)


def _join_decimal(digits: NDArray[np.integer]) -> NDArray[np.integer]:
    """Numbers from words of eight decimal digits, the first digit in the lowest byte.

    Neighbours join to pairs, fours, eight: one multiplication adds 10, 100 or 10,000 times a digit group to
    the one above it. (D. Lemire, "Quickly parsing eight digits", 2018.)
    """
    pairs = digits * (1 + (10 << 8)) >> 8 & 0x00FF00FF00FF00FF
    quads = pairs * (1 + (100 << 16)) >> 16 & 0x0000FFFF0000FFFF
    return quads * (1 + (10_000 << 32)) >> 32
