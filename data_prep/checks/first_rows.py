"""The first rows of a log as columns of text cells, and how its lines are written, for `describe`."""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.parsed import MAX_LINE_BYTES, ONLY_FILE, Chunk, FileOfLog
from data_prep.options.log_format import LogFormat
from data_prep.raw_log.chunks import TO_UTF8
from data_prep.raw_log.log_files import LogFile, find_log, is_json, is_table
from data_prep.raw_log.sample import sample_log

if TYPE_CHECKING:
    import pyarrow as pa

INTEGER = re.compile(r"-?[0-9]{1,18}")
DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?inf")
TYPE_IN_NAME = re.compile(r":(token|float|token_seq|float_seq)$")
_SEPARATORS = "\t,;|\x01 "
_LAYOUT_ROWS = 1_000  # rows from which separator, header and quotes are seen
_BROKEN = 0.02  # of the lines, at most, have another number of columns


@dataclass(frozen=True)
class Column:
    """A column's cells as numbers of its distinct values."""

    name: str
    codes: NDArray[np.int64]  # [n] index of the cell among `values`; -1 if it is missing
    values: list[str]  # V of them
    of_type: pa.DataType | None = None  # of a table's column

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rows of each value [V]."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.values))

    @property
    def num_present(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def numbers(self) -> NDArray[np.float64] | None:
        """The values [V] as numbers. None if one of them is no number."""
        return np.array(self.values, np.float64) if self.all_match(DECIMAL) else None

    @cached_property
    def are_integers(self) -> bool:
        return self.all_match(INTEGER)

    def all_match(self, pattern: re.Pattern[str]) -> bool:
        """Return True if there are values, and all of them match."""
        return bool(self.values) and all(map(pattern.fullmatch, self.values))

    def frequent(self, count: int) -> list[str]:
        """Return the most frequent values."""
        return [self.values[index] for index in np.argsort(-self.counts, kind="stable")[:count]]

    def count_of(self, values: Collection[str]) -> int:
        """Return the rows with one of these values."""
        value_set = set(values)
        return sum(int(count) for value, count in zip(self.values, self.counts, strict=True) if value in value_set)

    def cleaned(self, trim: bool, missing: Collection[str]) -> Column:
        """Return the column with blanks trimmed and these words missing, besides the empty one."""
        if trim and any(value != value.strip(" ") for value in self.values):
            trimmed = _column(self.name, [value.strip(" ") for value in self.values])
            codes = np.array([*trimmed.codes, -1])[self.codes]
            return replace(trimmed, codes=codes, of_type=self.of_type).cleaned(False, missing)
        words = {"", *missing}.intersection(self.values)
        if not words:
            return self
        is_present = np.array([value not in words for value in self.values])
        new = np.where(is_present, np.cumsum(is_present) - 1, -1)
        values = list(itertools.compress(self.values, is_present))
        return replace(self, codes=np.array([*new, -1])[self.codes], values=values)


@dataclass(frozen=True)
class FirstRows:
    """First rows of a log."""

    location: str
    columns: list[Column]
    layout: dict[str, Any]  # separator, header, quotes: fields of LogFormat that are not its defaults
    lines: bytes = b""  # the same rows as a chunk's lines; empty for a table
    table: pa.Table | None = None
    file: FileOfLog = field(default=ONLY_FILE)

    @property
    def num_rows(self) -> int:
        return len(self.columns[0].codes)

    def chunk(self, log_format: LogFormat) -> Chunk:
        """Return the rows as the preparation would read them."""
        if self.table is None:
            return Chunk(0, self.lines.count(b"\n"), self.lines, self.file)
        from data_prep.raw_log.parquet import TableChunk

        (batch,) = self.table.combine_chunks().to_batches()
        return TableChunk(0, len(batch), batch, log_format, ONLY_FILE).load()


def read_first_rows(log: Any, num_rows: int) -> FirstRows:
    """Read the first rows of a log: paths or URIs as for `find_log`, an Arrow table or a pandas DataFrame.

    Raises FileNotFoundError and ValueError as `find_log` and `open_log`, and ValueError for a log without rows or
    columns.
    """
    if hasattr(log, "iloc") or hasattr(log, "to_batches"):
        import pyarrow as pa

        table = log if isinstance(log, pa.Table) else pa.Table.from_pandas(log.iloc[:num_rows], preserve_index=False)
        return _of_table("the table", table.slice(0, num_rows))
    file = find_log(log)[0]
    return _read_table(file, num_rows) if is_table(file.location) else _read_lines(file, num_rows)


def _read_lines(file: LogFile, num_rows: int) -> FirstRows:
    lines = _first_lines(file, num_rows + 1)
    text = [line.decode("utf-8", errors="replace").replace("\r", " ") for line in lines]
    separator, skip_blanks = _divide(text[:_LAYOUT_ROWS], file.location)
    first_cells = (cell for line in text[:_LAYOUT_ROWS] for cell in line.split(separator))
    quotes = any(cell.lstrip(" " * skip_blanks).startswith('"') for cell in first_cells)
    rows = list(_cells(text, separator, quotes, skip_blanks))
    width = _usual(map(len, rows[:_LAYOUT_ROWS]))[0]
    rows = [row for row in rows if len(row) == width]
    header = _is_header(rows)
    names = [name.strip(" ") for name in rows[0]] if header else _numbered(width)
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"{file.location}: its header names {twice[0]!r} twice; give each column a name of its own")
    body = rows[header:][:num_rows]
    if not body:
        raise ValueError(f"{file.location} has a header and no rows to describe")
    first = int(not names[0])  # the numbers of the rows, as pandas writes them, have no name
    form = {"separator": separator, "header": header, "others": "ignored" if first else "refused", "quotes": quotes}
    layout = {key: value for key, value in form.items() if value != getattr(LogFormat(), key)}
    columns = [_column(name, cells) for name, cells in zip(names, zip(*body, strict=True), strict=True)][first:]
    trim = separator != " " and (skip_blanks or (header and names != rows[0]) or any(map(_has_blanks, columns)))
    layout |= {"trim": True} if trim else {}
    of_file = replace(ONLY_FILE, columns=tuple(names)) if first else ONLY_FILE
    return FirstRows(file.location, columns, layout, b"\n".join(lines[header:][:num_rows]) + b"\n", file=of_file)


def _numbered(width: int) -> list[str]:
    criteo = list(LogFormat().columns)
    return criteo if len(criteo) == width else [f"column_{number}" for number in range(1, width + 1)]


def _first_lines(file: LogFile, num_lines: int) -> list[bytes]:
    """Return the first lines that are not too long."""
    chunks = [sample.chunk for sample in sample_log([file], LogFormat(), num_lines) if sample.chunk is not None]
    all_lines = b"".join(chunk.lines for chunk in chunks).split(b"\n")[:-1]
    if len(all_lines) == 1 and b"\r" in all_lines[0].removesuffix(b"\r"):
        raise ValueError(
            f"{file.location}: its lines end in \\r alone, as on an old Mac; lines end in \\n or \\r\\n here. Change "
            "the line ends and describe the new file: tr '\\r' '\\n' < OLD > NEW"
        )
    lines = [line.removesuffix(b"\r") for line in all_lines if len(line) <= MAX_LINE_BYTES]  # others are rejected
    if not lines:
        raise ValueError(f"{file.location} has no lines to describe")
    if any(b"\0" in line for line in lines[:100]):
        raise ValueError(f"{file.location} holds NUL bytes: it is no text, or it is UTF-16; {TO_UTF8}")
    if all(line.startswith(b"{") and line.endswith(b"}") for line in lines[:100]):
        raise ValueError(
            f"{file.location} holds JSON; a log with an object a line has a name that ends in .jsonl; rename it"
        )
    return lines


def _divide(lines: list[str], location: str) -> tuple[str, bool]:
    """Return the separator by which most lines have the same number of columns, and if blanks stand before quotes.

    Where two are nearly alike in that, the one that divides the first line so too, then the one of more columns: a text
    in each row may have a space more often than a row is whole.
    """
    trials: list[tuple[float, bool, int, str, bool]] = []
    for separator in _SEPARATORS:
        skip_blanks = separator != " " and any(f'{separator} "' in line for line in lines)
        widths = [len(row) for row in _cells(lines, separator, True, skip_blanks)]
        width, count = _usual(widths)
        if width > 1:
            trials.append((count / len(widths), widths[0] == width, width, separator, skip_blanks))
    if not trials:
        raise ValueError(
            f"{location}: no separator divides its lines into columns; tried {', '.join(map(repr, _SEPARATORS))}. The "
            f"first line is {lines[0][:120]!r}"
        )
    most = max(share for share, *_ in trials)
    *_, separator, skip_blanks = max((each for each in trials if each[0] >= most - _BROKEN), key=lambda each: each[1:3])
    return separator, skip_blanks


def _usual(widths: Iterable[int]) -> tuple[int, int]:
    return Counter(widths).most_common(1)[0]


def _cells(lines: Iterable[str], separator: str, quotes: bool, skip_blanks: bool) -> Iterable[list[str]]:
    # Each line alone, as in the preparation: a quote that is never closed must not join the lines after it.
    for line in lines:
        if quotes and '"' in line:
            yield next(csv.reader([line], delimiter=separator, skipinitialspace=skip_blanks))
        else:
            yield line.split(separator)


def _is_header(rows: list[list[str]]) -> bool:
    """Return True if the first row holds names: none is a number, and fewer columns have theirs as a value than are of
    numbers alone.

    The first may be empty, above the numbers of the rows, which a sorted table has in any order.
    """
    names = rows[0]
    has_numbers = len(rows) > 1 and all(INTEGER.fullmatch(row[0]) for row in rows[1:_LAYOUT_ROWS])
    if not all(map(str.strip, names[has_numbers:])) or any(DECIMAL.fullmatch(name.strip(" ")) for name in names):
        return False
    columns = list(zip(*rows[: _LAYOUT_ROWS + 1], strict=True))
    num_found = sum(name in column for name, *column in columns)
    return not num_found or num_found < sum(_has_only_numbers(column) for _, *column in columns)


def _has_only_numbers(cells: Sequence[str]) -> bool:
    """Return True if all cells but empty ones are numbers."""
    filled = [cell for cell in cells if cell.strip(" ")]
    return bool(filled) and all(DECIMAL.fullmatch(cell.strip(" ")) for cell in filled)


def _column(name: str, cells: Sequence[str]) -> Column:
    import pyarrow as pa

    encoded = pa.array(cells, pa.string()).dictionary_encode()
    return Column(name, np.asarray(encoded.indices).astype(np.int64), encoded.dictionary.to_pylist())


def _has_blanks(column: Column) -> bool:
    """Return True if some cells begin or end with blanks: one of blanks alone, or of others more than a slip."""
    spaced = [value for value in column.values if value != value.strip(" ")]
    slips = 0.001 * len(column.codes) + 2
    return any(value and not value.strip(" ") for value in spaced) or column.count_of(spaced) > slips


def _read_table(file: LogFile, num_rows: int) -> FirstRows:
    import pyarrow as pa

    from data_prep.raw_log.json_lines import columns_of, first_objects
    from data_prep.raw_log.parquet import parquet_file

    if is_json(file.location):
        return _of_table(file.location, pa.table(columns_of(first_objects(file, num_rows)[:num_rows])))
    with parquet_file(file.location) as table:
        batches: list[pa.RecordBatch] = []
        for batch in table.iter_batches(num_rows):  # none is of several row groups
            batches.append(batch)
            if sum(map(len, batches)) >= num_rows:
                break
        return _of_table(file.location, pa.Table.from_batches(batches, table.schema_arrow).slice(0, num_rows))


def _of_table(location: str, table: pa.Table) -> FirstRows:
    if not table.num_rows:
        raise ValueError(f"{location} has no rows to describe")
    # A column that pandas made of its index is none of the table's, and a frame to score has none.
    index = (table.schema.pandas_metadata or {}).get("index_columns", ())
    table = table.drop_columns([name for name in table.column_names if name in index or name.startswith("__index_")])
    columns = [_of_arrow(name, table.column(name)) for name in table.column_names]
    layout: dict[str, Any] = {"separator": ",", "header": True, "quotes": True}  # of a CSV file to score
    layout |= {"trim": True} if any(map(_has_blanks, columns)) else {}
    return FirstRows(location, columns, layout, table=table)


def _of_arrow(name: str, cells: pa.ChunkedArray) -> Column:
    """Return a column of a table by its distinct values. A list is its values between tabs."""
    import pyarrow as pa

    from data_prep.raw_log.parquet import cells_as_text, decoded

    encoded = decoded(cells.combine_chunks())  # a dictionary may have values that no row has
    try:
        encoded = encoded.dictionary_encode()
        cells_of_values = cells_as_text(encoded.dictionary, "float", b"\n")
        texts = [text.decode(errors="replace") for text in cells_of_values.to_pylist()]
        places = np.asarray(encoded.indices.fill_null(-1)).astype(np.int64)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # lists, structs
        column = _column(name, [cell_text(value) for value in encoded.to_pylist()])
        return replace(column, of_type=cells.type)
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(text, len(numbers)) for text in texts]
    return Column(name, np.array([*codes, -1])[places], list(numbers), cells.type)


def cell_text(value: Any) -> str:
    """Return a value of a list or a struct as text."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, list):
        return "\t".join(map(cell_text, value))
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(int(value)) if isinstance(value, (float, Decimal)) and value % 1 == 0 else str(value)
