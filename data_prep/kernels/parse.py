"""Parse lines of the raw log into arrays with NumPy, and reject bad lines, each with a reason.

All lines of a chunk are parsed at once, column by column, on the raw bytes. Whether a line is good does not depend on
other lines. A general CSV reader would be slower, and it would treat blanks, the byte 0x1f and single carriage returns
in its own way.

A vector is written as numbers between blanks, commas, semicolons or bars, with or without brackets around them, such as
`[0.1, 0.2]` or `0.1 0.2`. An empty cell and empty brackets are a missing vector.

Array shapes use these letters: n rows, N numeric fields, H fields of hex values.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.parsed import (
    BARE_SEPARATOR,
    MAX_LINE_BYTES,
    Cells,
    Chunk,
    ParsedChunk,
    ParsedRows,
    weights_of_labelled,
)
from data_prep.kernels.strings import Strings, trim_blanks
from data_prep.kernels.times import Parsed, parse_times, parse_whole_numbers
from data_prep.options.kinds import KINDS, UNITS
from data_prep.options.log_format import BOOLEANS, COLUMNS, LABEL, QUOTES, REASONS, TOO_LONG, VECTOR, WEIGHT, LogFormat

_BARE = bytes([BARE_SEPARATOR])
_NEWLINE, _CARRIAGE_RETURN, _MINUS = b"\n\r-"
_HEX_DIGITS = 8
_INTEGER_DIGITS = 19  # Number of digits of the largest int64.
_WORD_BYTES = 8
_VALUE_OF_WORD = {word.lower().encode(): value for yes, no in BOOLEANS for word, value in ((yes, 1), (no, 0))}
_RELATIONS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}
# Padding before and after the bytes of a chunk. The parser reads words of eight bytes, up to three of them backwards
# from the end of a cell (for 19 digits) or one forwards from its start, so it may read bytes outside the chunk.
_PAD_BEFORE = b"0" * (3 * _WORD_BYTES)
_PAD_AFTER = b"0" * _WORD_BYTES
DECIMAL = re.compile(rb"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_BRACKETS = (b"[]", b"()", b"{}")

# Three arrays: vectors [n, W], a mask [n] of the vectors that are not missing, and a mask [n] of the good cells, whose
# rows are not rejected because of them.
ParsedVectors = tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]


class _Text:
    """The bytes of lines with padding around them, and for each byte the little-endian 8-byte word that begins there.

    Padding and words let the parser read eight bytes at a time.
    """

    def __init__(self, lines: bytes) -> None:
        padded = _PAD_BEFORE + lines + _PAD_AFTER
        self.first = len(_PAD_BEFORE)
        self.end = self.first + len(lines)
        self.bytes: NDArray[np.uint8] = np.frombuffer(padded, np.uint8)
        self.words: NDArray[np.uint64] = np.ndarray((len(padded) - _WORD_BYTES + 1,), "<u8", padded, strides=(1,))

    @functools.cached_property
    def is_utf8(self) -> bool:
        """True if all bytes of the chunk are valid UTF-8.

        Then each cell is valid UTF-8 too, because the separators between cells are ASCII.
        """
        return is_utf8(self.bytes.tobytes())

    def cells(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Strings:
        return Strings(self.bytes, starts, ends - starts)


def parse_chunk(chunk: Chunk, log_format: LogFormat) -> ParsedChunk:
    """Parse a chunk of lines. Return the good lines as rows, and the other lines as rejected, each with a reason."""
    if chunk.is_bare:
        return _parse_lines(chunk, chunk.lines, BARE_SEPARATOR, (), log_format)
    if not log_format.quotes:
        return _parse_lines(chunk, chunk.lines, ord(log_format.separator), (), log_format)
    lines, badly_quoted = take_quotes_off(chunk.lines, log_format)
    return _parse_lines(chunk, lines, BARE_SEPARATOR, badly_quoted, log_format)


def take_quotes_off(lines: bytes, log_format: LogFormat) -> tuple[bytes, list[int]]:
    """Remove the quotes from lines, and replace the separators between cells by BARE_SEPARATOR.

    Return the new lines and the indices of the badly quoted lines. Quotes are those of RFC 4180: a cell in double
    quotes may contain separators and doubled quotes. A row with a line end within quotes is rejected, because chunks
    are cut at line ends and each part of the row is a badly quoted line. Only lines with a quote take noticeable time.
    """
    divided = log_format.separator.encode()
    if b'"' not in lines and _BARE not in lines:
        return lines.replace(divided, _BARE), []
    bare, badly_quoted = [], []
    for number, line in enumerate(lines.removesuffix(b"\n").split(b"\n")):
        if len(line) > MAX_LINE_BYTES:
            bare.append(line)  # This line is too long, so that the parser will reject it.
        elif _BARE in line:  # No cell may contain BARE_SEPARATOR, so this line alone is rejected.
            badly_quoted.append(number)
            bare.append(b"")
        elif b'"' not in line:
            # A line without quotes gets the same cells as in a chunk without any quotes, because the cells of a line
            # must not depend on the other lines of its chunk.
            bare.append(line.replace(divided, _BARE))
        else:
            cells = quoted_cells(line, log_format)
            if cells is None:
                badly_quoted.append(number)
            bare.append(_BARE.join(cells or []))
    return b"\n".join(bare) + b"\n", badly_quoted


def quoted_cells(line: bytes, log_format: LogFormat) -> list[bytes] | None:
    """Return the cells of a line without their quotes, or None if the quotes of the line do not match.

    If the format trims blanks, blanks may stand before and after the quotes of a cell.
    """
    line = line.removesuffix(b"\r")
    if b"\r" in line:
        return None
    cells, at, cell = [], -1, _quoted_cell(log_format.separator, log_format.trim)
    while at < len(line):
        match = cell.match(line, at + 1)
        if match is None:
            return None
        cells.append(match[2] if match[1] is None else match[1].replace(b'""', b'"'))
        at = match.end()
    return cells


@functools.lru_cache(maxsize=16)
def _quoted_cell(separator: str, trim: bool) -> re.Pattern[bytes]:
    """Return a regular expression for a cell and the blanks around it.

    Group 1 is the text within the quotes of a quoted cell. Group 2 is the text of a cell without quotes.
    """
    blanks, end = "[ ]*" * trim, re.escape(separator)
    return re.compile(
        rf'{blanks}(?:"((?:[^"]|"")*+)"{blanks}|(?!{blanks}")([^{end}]*))(?={end}|\Z)'.encode(), re.DOTALL
    )


def _parse_lines(
    chunk: Chunk, lines: bytes, separator: int, badly_quoted: Sequence[int], log_format: LogFormat
) -> ParsedChunk:
    """Parse the lines of a chunk, whose cells have no quotes and are divided by the byte `separator`.

    `lines` is the text of the chunk, from which `take_quotes_off` has removed the quotes if the format has quotes.
    `badly_quoted` are the indices of the lines to reject with the reason QUOTES.
    """
    text = _Text(lines)
    # The padding is left out of the search for separators, because it consists of "0", which may be the separator.
    in_lines = text.bytes[text.first : text.end]
    separators = text.first + np.flatnonzero((in_lines == separator) | (in_lines == _NEWLINE))
    # For each line, the index of its line end in the array `separators`, which has the offsets of separators and line
    # ends.
    line_lasts = np.flatnonzero(text.bytes[separators] == _NEWLINE)
    line_ends = separators[line_lasts]
    chunk.check_num_lines(len(line_ends))
    line_starts = np.concatenate([[text.first], line_ends[:-1] + 1])

    reasons = np.zeros(len(line_ends), np.int8)
    names = chunk.file.columns or tuple(log_format.columns)
    reasons[np.diff(line_lasts, prepend=-1) != len(names)] = COLUMNS
    reasons[list(badly_quoted)] = QUOTES
    reasons[line_ends - line_starts > MAX_LINE_BYTES] = TOO_LONG
    shaped = np.flatnonzero(reasons == 0)

    starts, ends = _cells(text, separators, line_lasts[shaped], line_starts[shaped], len(names))
    rows, reasons[shaped] = _parse_cells(text, starts, ends, names, chunk.first_line + shaped, log_format)
    rows, shaped = rows.take(reasons[shaped] == 0), shaped[reasons[shaped] == 0]
    if log_format.vector_fields:
        rows, are_bad = with_vectors(rows, chunk, log_format, parse_vectors)
        rows, reasons[shaped[are_bad]] = rows.take(~are_bad), VECTOR
    bad = np.flatnonzero(reasons)
    return ParsedChunk.of(chunk, rows, bad, *chunk.offsets_of(bad), reasons[bad])


def _cells(
    text: _Text,
    separators: NDArray[np.int64],
    line_lasts: NDArray[np.int64],
    line_starts: NDArray[np.int64],
    num_columns: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the start and end offsets, [columns, n] each, of the cells of n lines that have `num_columns` columns.

    `separators` are the offsets of all separators and line ends of the chunk. `line_lasts` [n] are the indices, in
    `separators`, of the ends of the n lines. `line_starts` [n] are the offsets at which the lines start.
    """
    if len(line_lasts) * num_columns == len(separators):
        by_line = separators.reshape(-1, num_columns)
    else:
        by_line = separators[line_lasts[:, None] + np.arange(1 - num_columns, 1)]
    ends = np.ascontiguousarray(by_line.T)
    starts = np.empty_like(ends)
    starts[0] = line_starts
    starts[1:] = ends[:-1] + 1
    ends[-1] -= text.bytes[ends[-1] - 1] == _CARRIAGE_RETURN  # Remove the \r of lines that end in \r\n.
    return starts, ends


def _parse_cells(
    text: _Text,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    names: tuple[str, ...],
    row_numbers: NDArray[np.int64],
    log_format: LogFormat,
) -> tuple[ParsedRows, NDArray[np.int8]]:
    """Parse the cells of n lines. `starts` and `ends`, [columns, n] each, are the offsets of the cells in `text`.

    `names` are the names of the columns in the order of these offsets, and `row_numbers` [n] the indices of the lines
    in the log. Return all n lines as rows, and for each line the code of the reason to reject it, or 0 if the line is
    good.
    """
    if log_format.trim:
        starts, ends = trim_blanks(text.bytes, starts, ends)
    if log_format.missing:
        missing = [text.cells(*cells).one_of(log_format.missing) for cells in zip(starts, ends, strict=True)]
        ends = np.where(missing, starts, ends)
    columns = {name: (starts[index], ends[index]) for index, name in enumerate(names)}
    columns.setdefault(log_format.label_column, (starts[0], starts[0]))  # A log to score may lack the label.
    labels, labelled, good_labels = parse_labels(text.cells(*columns[log_format.label_column]), log_format)
    bad, parsed, weights = {LABEL: ~good_labels}, {}, None
    for name, kind in log_format.fields:
        values, present, good = _parse_column(text, *columns[name], name, log_format)
        parsed[name], reason = Cells(values, present), REASONS.index(KINDS[kind].reason)
        bad[reason] = bad[reason] | ~good if reason in bad else ~good
    if log_format.weight:
        numbers, present, good = _parse_floats(text.cells(*columns[log_format.weight]), log_format)
        weights, bad[WEIGHT] = numbers.astype(np.float32), ~(present & good & (numbers >= 0))
    rows = ParsedRows(
        row_numbers=row_numbers,
        labels=labels,
        labelled=labelled,
        separate=parsed,
        weights=weights_of_labelled(weights, labelled) if log_format.label == "optional" else weights,
        keys={name: text.cells(*columns[name]).keys().view(np.int64) for name in log_format.key_fields},
    )
    reasons = np.zeros(len(row_numbers), np.int8)
    # If there are several reasons to reject a line, the one with the smallest code is assigned last and stays.
    for reason in sorted(bad, reverse=True):
        reasons[bad[reason]] = reason
    return rows, reasons


def _parse_column(
    text: _Text, starts: NDArray[np.int64], ends: NDArray[np.int64], name: str, log_format: LogFormat
) -> tuple[Any, NDArray[np.bool_], NDArray[np.bool_]]:
    """Parse the cells [n] of the field `name`, which lie between the offsets `starts` and `ends`.

    Return three arrays: the values (`Strings` for a text column), a mask of the cells that are not missing, and a mask
    of the good cells, whose rows are not rejected because of this column.
    """
    kind = log_format.columns[name]
    if kind == "integer":
        return _parse_integers(text, starts, _without_point_zero(text, starts, ends, log_format))
    if kind == "hex32":
        return _parse_hex(text, starts, ends)
    if kind == "timestamp":
        form, zone = log_format.time_form(name), log_format.timezone.get(name, "")
        return _parse_times(text, starts, ends, form, zone)
    cells = text.cells(starts, ends)
    if kind == "boolean":
        return _parse_booleans(cells)
    if kind == "float":
        return _parse_floats(cells, log_format)
    # The function `with_vectors` parses the texts of vectors later, so all of them count as good here.
    good = np.ones(len(cells), np.bool_) if kind == "vector" else _are_utf8(text, cells)
    return cells, cells.lengths > 0, good


def parse_labels(cells: Strings, log_format: LogFormat) -> Parsed:
    """Parse the cells [n] of the label column.

    Return three arrays [n]: the labels (True for a click), a mask that is False for a cell without a label if the
    format allows rows without one, and a mask of the good cells, whose rows are not rejected because of the label.
    """
    if log_format.click_rule is None:
        clicked, not_clicked, rest = log_format.label_cells
        labels, others = cells.one_of(clicked), cells.one_of(not_clicked)
        in_rest = ~(labels | others) & (cells.lengths > 0) if rest else np.zeros(len(cells), np.bool_)
        good = labels | others | in_rest
        labels |= in_rest & (rest == "clicked")
    else:
        relation, bound = log_format.click_rule
        numbers, present, good = _parse_floats(cells, log_format)
        good &= present
        labels = good & _RELATIONS[relation](numbers, bound)
    unlabelled = (cells.lengths == 0) & ~good & (log_format.label == "optional")
    return labels, ~unlabelled, good | unlabelled


def _are_utf8(text: _Text, cells: Strings) -> NDArray[np.bool_]:
    """Return a mask [n] of the cells that are valid UTF-8.

    Other cells are bad, because the vocabulary stores only text.
    """
    good = np.ones(len(cells), np.bool_)
    if not text.is_utf8:
        for index in np.flatnonzero(~cells.are_ascii()):
            good[index] = is_utf8(cells.take(slice(index, index + 1)).tolist()[0])
    return good


def is_utf8(text: bytes) -> bool:
    """Return True if the bytes are valid UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parse_hex(text: _Text, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Parsed:
    """Parse the cells [n] of a column of kind hex32. A good cell is empty or has eight lower-case hex digits.

    Return the values, a mask of the present cells, and a mask of the good ones. The eight characters of a cell are
    processed together in one 64-bit word.
    """
    present = ends > starts
    words = text.words[starts]
    # Bit 6 of the byte is set in 'a'-'f' (0x61-0x66), but not in '0'-'9' (0x30-0x39).
    is_letter = words >> 6 & _bytes(0x01)
    # Each byte of `low` is 0 to 9 for a valid digit, and 1 to 6 for a valid letter.
    low = words ^ (_bytes(0x30) + is_letter * 0x30)
    digits = low + is_letter * 9
    # `is_zero_letter` marks each invalid character '`', which comes right before 'a' in ASCII.
    is_zero_letter = is_letter & ~(low | low >> 1 | low >> 2)
    bad = _above_9(low) | digits & _bytes(0xF0) | is_zero_letter
    good = (bad == 0) & (ends - starts == _HEX_DIGITS)

    # Neighbours are joined step by step: 8 digits of 4 bits become 4 numbers of 8 bits, then 2 of 16 bits, then 1 of
    # 32 bits. The first character is in the lowest byte.
    pairs = (digits << 4 | digits >> 8) & 0x00FF00FF00FF00FF
    quads = (pairs << 8 | pairs >> 16) & 0x0000FFFF0000FFFF
    values = (quads << 16 | quads >> 32).astype(np.uint32)  # The conversion to uint32 drops the upper 32 bits.
    values[~present] = 0
    return values, present, good | ~present


def _parse_integers(text: _Text, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Parsed:
    """Parse cells [n] as integers. Return the integers, a mask of the present cells, and a mask of the good ones.

    A good cell is empty or matches -?[0-9]{1,19} within the range of int64.
    """
    present = ends > starts
    negative = present & (text.bytes[starts] == _MINUS)
    num_digits = ends - starts - negative
    good = (num_digits >= 1) & (num_digits <= _INTEGER_DIGITS)
    longest = int(num_digits.max(initial=0, where=good))

    magnitudes = np.zeros(len(starts), np.uint64)
    # Each round converts eight digits of all cells, beginning with their last eight digits.
    for skipped in range(0, longest, _WORD_BYTES):
        words = text.words[ends - skipped - _WORD_BYTES]
        # The last characters are in the highest bytes of a word. Bytes that lie before the cell are replaced by the
        # digit 0.
        num_foreign = (_WORD_BYTES - np.clip(num_digits - skipped, 0, _WORD_BYTES)).astype(np.uint64)
        digits = (words ^ _bytes(0x30)) & _FOREIGN_MASKS[num_foreign]
        good &= _above_9(digits) == 0
        magnitudes += _join_decimal(digits) * 10**skipped
    good &= magnitudes <= np.uint64(2**63 - 1) + negative
    integers = magnitudes.astype(np.int64)
    np.negative(integers, out=integers, where=negative)
    integers[~present] = 0
    return integers, present, good | ~present


def _without_point_zero(
    text: _Text, starts: NDArray[np.int64], ends: NDArray[np.int64], log_format: LogFormat
) -> NDArray[np.int64]:
    """Return the offsets [n] at which cells end if a decimal point and only zeros after it are cut off, as in 12.0."""
    points = [ord("."), ord(log_format.decimal)]
    places = np.flatnonzero((ends - starts > 2) & (text.bytes[ends - 1] == ord("0")))
    firsts, at = starts[places], ends[places]
    while (zero := (at > firsts) & (text.bytes[at - 1] == ord("0"))).any():
        at -= zero
    has_point = (at > firsts + 1) & np.isin(text.bytes[at - 1], points)
    ends = ends.copy()
    ends[places[has_point]] = at[has_point] - 1
    return ends


def _parse_booleans(cells: Strings) -> Parsed:
    """Parse cells [n] as booleans. Return the values, a mask of the present cells, and a mask of the good ones.

    A good cell is empty or has a word for true (1) or false (0). `log_format.BOOLEANS` lists the words, which may be in
    upper or lower case.
    """
    values = [_VALUE_OF_WORD.get(cell.lower()) for cell in cells.tolist()]
    present, known = cells.lengths > 0, np.array([value is not None for value in values], np.bool_)
    return np.array([value or 0 for value in values], np.uint32), present, known | ~present


def _parse_floats(cells: Strings, log_format: LogFormat) -> Parsed:
    """Parse cells [n] as floats. Return the floats, a mask of the present cells, and a mask of the good ones.

    A good cell is empty or has a decimal number in the range of float32. Numbers are rounded to float64 in the same way
    as by Python's float. Numbers too small for a normal float64 become 0.
    """
    texts, present = cells.tolist(), cells.lengths > 0
    if log_format.decimal == ",":
        texts = [text.replace(b",", b".") for text in texts]
    numbers = np.array([float(text) if DECIMAL.fullmatch(text) else np.inf for text in texts], np.float64)
    with np.errstate(over="ignore"):
        good = np.isfinite(numbers.astype(np.float32))
    numbers[~good | (np.abs(numbers) < np.finfo(np.float64).smallest_normal)] = 0
    return numbers, present, good | ~present


def _parse_times(text: _Text, starts: NDArray[np.int64], ends: NDArray[np.int64], form: str, zone: str) -> Parsed:
    """Parse cells [n] as times. Return milliseconds since 1970 (UTC), a mask of present cells, and a mask of good ones.

    An empty cell is good, and its value is missing. `form` says how the times are written, such as seconds or %Y-%m-%d
    (a value of LogFormat.timestamps), and `zone` is the time zone of cells that do not name one.
    """
    present, good = ends > starts, np.ones(len(starts), np.bool_)
    times, rest = np.zeros(len(starts), np.int64), present
    if form in UNITS:  # Whole numbers are parsed together, and only the remaining cells one at a time.
        numbers, _, are_whole = _parse_integers(text, starts, ends)
        whole = np.flatnonzero(present & are_whole)
        rest = present & ~are_whole
        times[whole], present[whole], good[whole] = parse_whole_numbers(numbers[whole], form)
    places = np.flatnonzero(rest)
    cells = text.cells(starts[places], ends[places]).tolist()
    times[places], present[places], good[places] = parse_times(cells, form, zone)
    times[~(present & good)] = 0
    return times, present, good


def _bytes(byte: int) -> np.uint64:
    """Return a 64-bit word in which all eight bytes are `byte`."""
    return np.uint64(byte * 0x0101010101010101)


# The mask with index n clears the n lowest bytes of a word.
_FOREIGN_MASKS = np.array([2**64 - 2 ** (8 * n) for n in range(_WORD_BYTES + 1)], np.uint64)


def _above_9(words: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return, for each 64-bit word, a word that is 0 if and only if none of the eight bytes is above 9.

    Adding 0x76 to a byte sets its bit 7 if the byte is 10 or more. A byte that carries into the next byte has bit 7 set
    itself, so no bad word is missed.
    """
    return (words + _bytes(0x76) | words) & _bytes(0x80)


def _join_decimal(digits: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return the number that each word of eight decimal digits means. The first digit is in the lowest byte.

    Digits are joined to pairs, then to groups of four, then to eight digits. One multiplication adds 10, 100 or 10,000
    times each group to the group above it (D. Lemire, "Quickly parsing eight digits", 2018).
    """
    pairs = digits * (1 + (10 << 8)) >> 8 & 0x00FF00FF00FF00FF
    quads = pairs * (1 + (100 << 16)) >> 16 & 0x0000FFFF0000FFFF
    return quads * (1 + (10_000 << 32)) >> 32


def parse_vectors(cells: Strings, width: int, decimal: str) -> ParsedVectors:
    """Parse cells [n] as vectors with `width` components. The vector of a missing or bad cell is all zeros.

    A good cell is empty, or has `width` decimal numbers in the range of float32. A number is rounded to float64 and
    then to float32. `decimal` is the decimal point of the numbers. If it is a comma, commas do not separate numbers.
    """
    values = np.zeros((len(cells), width), np.float32)
    present, good = np.zeros(len(cells), np.bool_), np.ones(len(cells), np.bool_)
    for row, cell in enumerate(cells.tolist()):
        numbers = vector_parts(cell, decimal)
        good[row] = not numbers or vector_fault(numbers, width) == ""
        present[row] = good[row] and bool(numbers)
        if present[row]:
            in_row = np.array(list(map(float, numbers)))
            in_row[np.abs(in_row) < np.finfo(np.float64).smallest_normal] = 0
            values[row] = in_row
    return values, present, good


def vector_parts(cell: bytes, decimal: str) -> list[bytes]:
    """Return the texts of the numbers in a cell, with a point as decimal point. Return [] for a missing vector."""
    text = cell.strip(b" \t")
    if text[:1] + text[-1:] in _BRACKETS and len(text) > 1:
        text = text[1:-1].strip(b" \t")
    parts = _separators(decimal).split(text) if text else []
    return [part.replace(b",", b".") for part in parts] if decimal == "," else parts


def vector_fault(numbers: list[bytes], width: int) -> str:
    """Return what is wrong with a vector whose numbers are written as `numbers`, or "" if nothing is wrong. A vector
    must have `width` numbers in the range of float32.
    """
    if len(numbers) != width:
        return f"a vector of {len(numbers):,} numbers, expected {width:,}"
    for place, number in enumerate(numbers, 1):
        if not DECIMAL.fullmatch(number):
            return f"{number.decode(errors='replace')[:40]!r} as component {place:,} of {width:,}, expected a number"
        with np.errstate(over="ignore"):
            if not np.isfinite(np.float32(float(number))):
                return (
                    f"{number.decode()[:40]} as component {place:,} of {width:,}, which is beyond the range of float32"
                )
    return ""


def vector_text(value: Any) -> str:
    """Return a vector as text, such as [0.1;null]. A value that is a text itself is returned as it is."""
    if isinstance(value, str | bytes):
        return value.decode(errors="replace") if isinstance(value, bytes) else value
    return f"[{';'.join('null' if number is None else str(number) for number in value)}]"


def cell_of_bad_vector(text: str, separator: str) -> str:
    """Return the text of a bad vector as a cell of a line, whose cells are divided by `separator`.

    The separator becomes another mark that may stand between the numbers of a vector, and a line end becomes a blank.
    """
    return text.replace(separator, "|" if separator == ";" else ";").replace("\n", " ")


@functools.cache
def _separators(decimal: str) -> re.Pattern[bytes]:
    marks = rb"[;|]" if decimal == "," else rb"[,;|]"
    return re.compile(rb"[ \t]*" + marks + rb"[ \t]*|[ \t]+")


def with_vectors(
    rows: ParsedRows, chunk: Chunk, log_format: LogFormat, parse: Callable[[Strings, int, str], ParsedVectors]
) -> tuple[ParsedRows, NDArray[np.bool_]]:
    """Replace the texts in the vector columns of the `rows` [n] of a chunk by vectors.

    Return the new rows, and a mask [n] of the rows with a bad vector. A vector may also be in `chunk.vectors`; its cell
    in the line is then empty. `parse` is a kernel `parse_vectors`.
    """
    separate, are_bad = dict(rows.separate), np.zeros(len(rows.labels), np.bool_)
    for name in log_format.vector_fields:
        texts: Strings = separate[name].values
        width = log_format.vectors[name].width
        if name in chunk.vectors:
            cells = chunk.vectors[name]
            lines = rows.row_numbers - chunk.first_line
            cells = cells if len(lines) == len(cells.present) else cells.take(lines)
            # A bad vector of a table (such as a Parquet file) is written as text in its line. A line with such a text
            # is bad.
            are_bad |= texts.lengths > 0
        else:
            values, present, good = parse(texts, width, log_format.decimal)
            cells, are_bad = Cells(values, present), are_bad | ~good
        separate[name] = cells
    return replace(rows, separate=separate), are_bad
