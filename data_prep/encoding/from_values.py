"""Convert rows that a program passes, as lines of text or as mappings from columns to values, to a chunk of lines.

If a row to score has no label, an arbitrary valid label is inserted, so that the parser of logs can check and parse the
row like any other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels import parse
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.parsed import BARE_SEPARATOR, Cells, Chunk, ParsedChunk, are_inexact
from data_prep.kernels.strings import Strings
from data_prep.options.kinds import KINDS, LIKELY_SECONDS, UNITS, Kind, time_text
from data_prep.options.log_format import INEXACT, INEXACT_ID, NO_BOOLEANS, REASONS, LogFormat

_BARE = bytes([BARE_SEPARATOR])
_HEX32 = range(-(2**31), 2**32)
_MOMENTS = (date, np.datetime64)
_TIMES = (*_MOMENTS, time, timedelta, np.timedelta64)


def lines_of(rows: Any, log_format: LogFormat) -> Chunk:
    """Convert rows, which are all lines of text or all mappings from column names to values, to a `Chunk` of lines.

    Raise ValueError or TypeError if a row is bad. The message names the first bad row.
    """
    if isinstance(rows, str | bytes | Mapping):
        raise TypeError(f"rows must be a sequence or a table; for one row give [row], found {type(rows).__name__}")
    if len(rows) and isinstance(rows[0], Mapping):
        return mappings_to_chunk(rows, log_format)
    return lines_to_chunk(rows, log_format)


def lines_to_chunk(lines: Sequence[str | bytes], log_format: LogFormat) -> Chunk:
    """Convert lines of text to a chunk. If the first line has one column too few, insert a valid label into all lines.

    Raise ValueError if a line contains a line end, and TypeError if a row is not text.
    """
    wrong = next((line for line in lines if not isinstance(line, str | bytes)), None)
    if wrong is not None:
        raise TypeError(f"expected rows as lines of text, mappings or a table; found {type(wrong).__name__}")
    rows = [line.encode() if isinstance(line, str) else line for line in lines]
    rows = [row.removesuffix(b"\n").removesuffix(b"\r") for row in rows]
    for number, row in enumerate(rows):
        if b"\n" in row:
            raise ValueError(f"row {number} has a line end inside; give one line a row")
    chunk = Chunk(0, len(rows), b"\n".join([*rows, b""]))
    return chunk if not rows or has_label(rows[0], log_format) else add_label(chunk, log_format)


def split_line(line: bytes, log_format: LogFormat, is_bare: bool = False) -> list[str]:
    """Return the cells of a line as texts. If the quotes of the line are wrong, it is split as well as possible.

    If `is_bare` is True, quotes are already removed from the line, and its cells are separated by BARE_SEPARATOR.
    """
    if log_format.quotes and not is_bare:
        line, is_bare = parse.take_quotes_off(line.removesuffix(b"\n") + b"\n", log_format)[0], True
    separator = _BARE if is_bare else log_format.separator.encode()
    cells = line.removesuffix(b"\n").removesuffix(b"\r").split(separator)
    return [cell.decode("utf-8", errors="replace") for cell in cells]


def has_label(line: bytes, log_format: LogFormat, is_bare: bool = False) -> bool:
    """Return False if a line has exactly one column less than the format, because then the label is left out."""
    if log_format.quotes and not is_bare:
        line, is_bare = parse.take_quotes_off(line + b"\n", log_format)[0], True
    return line.count(_BARE if is_bare else log_format.separator.encode()) != len(log_format.columns) - 2


def add_label(chunk: Chunk, log_format: LogFormat) -> Chunk:
    """Return a copy of a chunk, whose lines have no label, with a valid label inserted into each line.

    Wrong quotes in a line are not corrected. If the chunk's file has a header, the chunk itself is returned, because
    the parser then does not expect a label in the lines.
    """
    if chunk.file.columns:
        return chunk
    has_quotes = log_format.quotes and not chunk.is_bare
    separator = _BARE if chunk.is_bare else log_format.separator.encode()
    place = list(log_format.columns).index(log_format.label_column)
    label = log_format.any_label.encode()
    if has_quotes and (separator in label or b'"' in label):
        label = _quoted(label)
    if place == 0:
        start = label + separator
        return replace(chunk, lines=start + chunk.lines[:-1].replace(b"\n", b"\n" + start) + b"\n")
    labelled = []
    for line in chunk.lines[:-1].split(b"\n"):
        line = line.removesuffix(b"\r")
        row = line.split(separator, place)
        if has_quotes and b'"' in line:
            cells = parse.quoted_cells(line, log_format)
            row = [line] if cells is None else [_quoted(cell) for cell in cells]
        # If a line has fewer cells than stand before the label, the label is appended to the line, whose number of
        # columns stays wrong.
        labelled.append(separator.join([*row[:place], label, *row[place:]]))
    return replace(chunk, lines=b"\n".join([*labelled, b""]))


def _quoted(cell: bytes) -> bytes:
    return b'"' + cell.replace(b'"', b'""') + b'"'


def mappings_to_chunk(rows: Sequence[Mapping[str, Any]], log_format: LogFormat) -> Chunk:
    """Convert rows that are mappings from column names to values to a chunk of lines. None and NaN become empty cells.

    A text is used as the cell of a line, even in a column of numbers. Keys that are not fields are ignored. Raise
    ValueError if a field is missing, and TypeError if a value does not fit the kind of its column.
    """
    columns = dict(log_format.fields)
    separator = chr(BARE_SEPARATOR) if log_format.quotes else log_format.separator
    vectors = {
        name: Cells(np.zeros((len(rows), form.width), np.float32), np.zeros(len(rows), np.bool_))
        for name, form in log_format.vectors.items()
    }
    lines = []
    for number, row in enumerate(rows):
        if not row.keys() >= columns.keys():
            row = {str(name): value for name, value in row.items()}
            check_names(f"row {number}", row, log_format)
        cells = dict(log_format.blank_row)
        for name, kind in columns.items():
            value = row[name]
            if type(value) is str and kind != "vector":
                cells[name] = value
            elif type(value) is int and kind == "integer":
                cells[name] = str(value)
            elif value is not None:
                try:
                    if kind == "vector":
                        text = _put_vector(value, vectors[name].values[number], log_format)
                        vectors[name].present[number] = text is None
                        cells[name] = parse.cell_of_bad_vector(text or "", separator)
                    else:
                        cells[name] = _text(value, name, log_format)
                except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
                    raise TypeError(f"row {number}, column {name!r} of kind {kind}: {error}") from None
        try:
            lines.append(_line(cells.values(), separator))
        except ValueError:
            raise _bad_cell(cells, separator, number, log_format) from None
    return Chunk(0, len(lines), b"\n".join([*lines, b""]), is_bare=log_format.quotes, vectors=vectors)


def _put_vector(value: Any, row: NDArray[np.float32], log_format: LogFormat) -> str | None:
    """Write a vector, given as a sequence of numbers or as text, into `row` [W], which has zeros.

    Return None for a vector, "" if it is missing, and its text if it is bad. Raise TypeError for other values.
    """
    if isinstance(value, (list, tuple, np.ndarray)):
        are_numbers = all(issubclass(each, Real) and each is not bool for each in {*map(type, value)})
        array = np.asarray(value if are_numbers else None)
        if array.dtype.kind in "fiu" and array.shape in ((0,), row.shape):
            with np.errstate(over="ignore"):
                numbers = (array if array.dtype.kind == "f" else array.astype(np.float64)).astype(np.float32)
            if np.isfinite(numbers).all():
                row[: len(numbers)] = numbers
                return None if len(numbers) else ""
    elif not isinstance(value, str | bytes):
        if value is None or type(value).__name__ == "NAType" or value != value:
            return ""
        raise TypeError(f"expected {len(row):,} numbers, text or None, found {value!r}")
    text = parse.vector_text(value)
    if text in log_format.missing:
        return ""
    cells = Strings.of([text.encode()])
    values, present, good = choose_kernels("auto").parse_vectors(cells, len(row), log_format.decimal)
    row[:] = values[0]
    return text if not good[0] else None if present[0] else ""


def _line(cells: Collection[str], separator: str) -> bytes:
    """Return the line, without line end, that consists of `cells`, joined by the separator.

    Raise ValueError if a cell contains a line end or the separator.
    """
    text = separator.join(cells)
    if text.count(separator) >= len(cells) or "\n" in text or "\r" in text:
        raise ValueError(
            f"{text!r} has a line end or the separator {separator.encode()!r} in it, which no cell of the log has"
        )
    return text.encode()


def _bad_cell(cells: Mapping[str, str], separator: str, number: int, log_format: LogFormat) -> TypeError:
    """Return a TypeError that names the first cell in row `number` that contains a line end or the separator."""
    for name, cell in cells.items():
        try:
            _line([cell], separator)
        except ValueError as error:
            return TypeError(f"row {number}, column {name!r} of kind {log_format.columns[name]}: {error}")
    raise AssertionError("every cell stands in a line")


def cells_to_chunk(cells: dict[str, str], log_format: LogFormat) -> Chunk:
    """Return a `Chunk` (lines for the parser) of one line with the cells in `cells`, which maps column names to texts.

    All other fields are missing in the line, and its label is any valid one (`log_format.blank_row`).
    """
    between = chr(BARE_SEPARATOR) if log_format.quotes else log_format.separator
    return Chunk(0, 1, f"{between.join((log_format.blank_row | cells).values())}\n".encode(), is_bare=log_format.quotes)


def chunk_to_mapping(chunk: Chunk, log_format: LogFormat) -> dict[str, Any]:
    """Convert a `Chunk` of a single line to a mapping from field names to values. A missing value becomes None."""
    cells = dict(zip(log_format.columns, split_line(chunk.lines, log_format, chunk.is_bare), strict=True))
    return {name: _value(cells[name], kind, log_format) for name, kind in log_format.fields}


def _value(cell: str, kind: Kind, log_format: LogFormat) -> Any:
    if cell == "" or cell in log_format.missing:
        return None
    cell = cell.replace(log_format.decimal, ".") if kind in ("float", "integer") else cell
    return KINDS[kind].value(cell.partition(".")[0] if kind == "integer" else cell)


def check_names(where: str, names: Iterable[Any], log_format: LogFormat) -> None:
    """Raise ValueError unless each field of the format occurs exactly once among the column names `names`.

    Other names may occur too. In the error message, `where` names the object with these columns, such as "the table".
    """
    counts = Counter(list(names))
    fields = [name for name, _ in log_format.fields]
    missing = [name for name in fields if not counts[name]]
    if twice := [name for name in fields if counts[name] > 1]:
        raise ValueError(f"{where} has columns of the model twice: {_some(twice)}")
    if missing:
        others = sorted({str(name) for name in counts} - log_format.columns.keys())
        raise ValueError(
            f"{where} has not the columns of the model: missing {_some(missing)}; others there: {_some(others)}. Give "
            "None (null in JSON) for a value that is not there"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + ", …" * (len(names) > 8) or "none"


def _text(value: Any, name: str, log_format: LogFormat) -> str:
    """Return `value` as the text of a cell in the column `name`.

    It is the text to which the same value in a Parquet column would be converted.
    """
    if log_format.columns[name] == "list" and isinstance(value, (list, tuple, np.ndarray)):
        between = log_format.list_form(name).separator
        texts = [_value_text(each, name, log_format) for each in value]
        wrong = next((text for text in texts if between in text), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} has the separator {between!r} of the list's values in it")
        return between.join(texts)
    return _value_text(value, name, log_format)


def _value_text(value: Any, name: str, log_format: LogFormat) -> str:
    kind = KINDS[log_format.columns[name]]
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | UUID):
        return value.decode() if isinstance(value, bytes) else str(value)
    if value is None or type(value).__name__ == "NAType" or (not isinstance(value, np.ndarray) and value != value):
        return ""
    if isinstance(value, (bool, np.bool_)):
        texts = log_format.texts_of_booleans(name)
        if not texts:
            raise TypeError(f"found {value!r}; {NO_BOOLEANS}")
        return texts[0] if value else texts[1]
    if isinstance(value, Decimal):
        if kind.keeps_zeros:
            return _text_of_column(value, name, log_format)
        if not (kind.has_hex_digits or value.as_tuple().exponent):
            return format(value, "f")
        value = float(value)
    if isinstance(value, (float, np.floating)):
        if kind.is_exact and are_inexact(np.asarray(value)):
            raise TypeError(f"found {value!r}; {INEXACT}")
        if isinstance(value, np.float16):
            # Write the fewest digits that identify a float16, as for a float16 column of a table.
            value = float(str(value))
        if not (float(value).is_integer() and abs(float(value)) < 2.0**63):
            return _text_of_column(value, name, log_format) if kind.array == "strings" else str(value)
        value = int(value)
    if isinstance(value, _TIMES if kind.array == "strings" else _MOMENTS * ("moments" in kind.arrow)):
        return _text_of_column(value, name, log_format)
    if isinstance(value, (int, np.integer)) and not isinstance(value, np.timedelta64):
        return _hex_text(int(value)) if kind.has_hex_digits else str(value)
    raise TypeError(f"expected text, a number or None, found {value!r}")


def _text_of_column(value: Any, name: str, log_format: LogFormat) -> str:
    """Return a fractional number or a time as text, converted by Arrow, as the cells of a Parquet column are.

    Arrow and Python write some numbers differently: 0.00001 and 1e-05.
    """
    if isinstance(value, float) and 1e-4 <= abs(value) < 1e10:
        # Arrow and Python write numbers between 0.0001 and 10 billion in the same way, and converting an Arrow array of
        # one value would take about 100 times as long.
        return str(value)
    import pyarrow as pa

    from data_prep.raw_log.arrow_to_text import cells_as_text, times_as_text

    value, zone = float(value) if isinstance(value, np.longdouble) else value, getattr(value, "tz", None)
    # Arrow drops the nanoseconds of a pandas timestamp, but keeps those of a NumPy array, so the value becomes an array
    # first.
    cells = pa.array(np.array([getattr(value, "to_numpy", lambda: value)()]))
    cells = cells.cast(pa.timestamp(cells.type.unit, zone)) if zone else cells
    if "moments" in KINDS[log_format.columns[name]].arrow:
        form, timezone = log_format.time_form(name), log_format.timezone.get(name, "")
        return str(times_as_text(cells, form, timezone)[0].as_py())
    text: bytes = cells_as_text(cells, log_format.columns[name], b"\n")[0].as_py()
    return text.decode()


def _hex_text(value: int) -> str:
    if value not in _HEX32:
        raise TypeError(f"expected a number of 32 bits, found {value}")
    return f"{value & 0xFFFFFFFF:08x}"


def rejected(chunk: Chunk, parsed: ParsedChunk) -> dict[int, str]:
    """Return why the parser rejected lines of `chunk`: a mapping from the index of each rejected line to the reason."""
    if not parsed.rejects_tsv:
        return {}
    reasons = {}
    for line in parsed.rejects_tsv.split(b"\n")[:-1]:
        where, reason, _ = line.split(b"\t", 2)
        reasons[int(where.rpartition(b":")[2]) - chunk.first_line_number] = reason.decode()
    return reasons


def bad_cell(chunk: Chunk, row: int, log_format: LogFormat, reason: str) -> str:
    """Describe why the parser rejected a line for `reason`: name the bad cell, or the wrong number of cells.

    `row` is the index of the line in `chunk`. All lines of the chunk must have labels.
    """
    cells = split_line(chunk.lines.split(b"\n")[row], log_format, chunk.is_bare)
    if len(cells) != len(log_format.columns):
        return (
            f"found {len(cells)} cells, expected {len(log_format.columns)} columns, "
            f"{', '.join(log_format.columns)}, between {log_format.separator!r}; the label may be left out"
        )
    for name, cell in zip(log_format.columns, cells, strict=True):
        kind = log_format.columns[name]
        kernels = choose_kernels("auto")
        parsed = kernels.parse_chunk(cells_to_chunk({name: cell}, log_format), log_format)
        of_texts = [name] if reason == REASONS[INEXACT_ID] and name in log_format.text_fields else []
        if parsed.rows.with_lists(log_format, kernels).have_inexact_ids(of_texts).any():
            return f"column {name!r} of kind {kind}, found {cell!r}; {INEXACT}"
        if reason in parsed.rejects_by_reason and kind == "vector":
            numbers = parse.vector_parts(cell.encode(), log_format.decimal)
            return (
                f"column {name!r} of kind {kind}, found {parse.vector_fault(numbers, log_format.vectors[name].width)}"
            )
        if reason in parsed.rejects_by_reason:
            form = f" in the form {log_format.time_form(name)}" * (kind == "timestamp")
            return f"column {name!r} of kind {kind}{form}, found {cell!r}{_other_unit(cell, kind, log_format, name)}"
    return "the line"


def _other_unit(cell: str, kind: Kind, log_format: LogFormat, name: str) -> str:
    """Return a hint if `cell`, a bad time, would be plausible in another unit, such as milliseconds instead of seconds.

    Otherwise return "".
    """
    form = log_format.time_form(name)
    if kind != "timestamp" or form not in UNITS or not re.fullmatch("[0-9]{9,19}", cell):
        return ""
    for other, power in UNITS.items():
        seconds = int(cell) // 10 ** (3 - power)
        if other != form and seconds in LIKELY_SECONDS:
            day = time_text(seconds * 1000, "%Y-%m-%d")
            return f", in {other} a time of {day}: give {form}, or prepare with timestamps: {{{name}: {other}}}"
    return ""
