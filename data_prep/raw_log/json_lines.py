"""Read a file of the log that has a JSON object a line. Its lines become tables, which are read as those of Parquet.

A key that a line lacks is missing, as null is. A cell's text depends on its own value alone, so a column of several
types has for each value the text of a column of its type. A line that is no object is rejected. Python's parser has
whole numbers of any size and takes no text for a time. Arrow's, of 26.0.1, does neither, and a file of one line `null`
ends the process.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from data_prep.kernels.parsed import BARE_SEPARATOR, ONLY_FILE, Chunk, FileOfLog
from data_prep.options.kinds import KINDS
from data_prep.options.log_format import NO_BOOLEANS, LogFormat
from data_prep.raw_log.chunks import Fingerprint, LogReader, StoredChunk, open_log
from data_prep.raw_log.log_files import LogFile
from data_prep.raw_log.parquet import (
    TableChunk,
    cells_as_text,
    check_exact,
    columns_to_read,
    holds_booleans,
    is_readable,
)

_FIRST_BYTES = 1 << 20  # of a file, which show its columns
_INT64 = range(-(2**63), 2**63)
_SCALARS = int, float, bool

Row = dict[str, Any]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JsonChunk:
    """Lines of a file. A worker parses them."""

    lines: Chunk | StoredChunk
    log_format: LogFormat
    location: str

    @property
    def first_line(self) -> int:
        return self.lines.first_line

    @property
    def num_lines(self) -> int:
        return self.lines.num_lines

    def load(self) -> Chunk:
        """Return the rows as lines of text. Raises ValueError for a value that no column of its kind has."""
        chunk = self.lines.load()
        parsed = _parsed(chunk)
        rows = [row or {} for row in parsed]
        columns = {name: self._column(name, rows, chunk) for name in columns_to_read(self.log_format)}
        batch = pa.record_batch(columns)
        check_exact(self.location, batch, self.log_format)
        table = TableChunk(self.first_line, self.num_lines, batch, self.log_format, chunk.file).load()
        if None not in parsed:
            return table
        separator = bytes([BARE_SEPARATOR]) if table.is_bare else self.log_format.separator.encode()
        too_many = separator * len(self.log_format.columns)  # for a row, so that the line is rejected
        lines = zip(parsed, table.lines.split(b"\n"), chunk.lines.split(b"\n"), strict=False)
        texts = [text if row is not None else line.rstrip(b"\r") + too_many for row, text, line in lines]
        return replace(table, lines=b"\n".join([*texts, b""]))

    def _column(self, name: str, rows: Sequence[Row], chunk: Chunk) -> pa.Array:
        is_copied = self.log_format.columns[name] == "ignored"
        kind = "string" if is_copied else self.log_format.columns[name]
        booleans = ("true", "false") if is_copied else self.log_format.texts_of_booleans(name)
        values = [row.get(name) for row in rows]
        cells = _array(values)
        if cells is not None and is_readable(cells.type, kind) and (booleans or not holds_booleans(cells.type)):
            return cells
        between = self.log_format.list_form(name).separator

        def text(value: Any, in_list: bool = False) -> str:
            if value is None or isinstance(value, str):
                return value or ""
            if type(value) is int and value not in _INT64:
                return str(value)
            if isinstance(value, _SCALARS) and (booleans or type(value) is not bool):
                cell: bytes = cells_as_text(pa.array([value]), kind, b"\n", booleans)[0].as_py()
                return cell.decode()
            if isinstance(value, list) and not in_list and "lists" in KINDS[kind].arrow:
                texts = [text(each, in_list=True) for each in value]
                return between.join("\n" if between in each else each for each in texts)  # as in a table
            raise TypeError(f"; {NO_BOOLEANS}" if type(value) is bool else "")

        texts = []
        for place, value in enumerate(values):
            try:
                texts.append(text(value))
            except TypeError as error:
                raise ValueError(
                    f"{self.location}, line {chunk.first_line_number + place}: column {name!r} of kind {kind} holds "
                    f"{json.dumps(value)[:120]}; expected text, a number or null{error}"
                ) from None
        return pa.array(texts, pa.large_string())


@dataclass(frozen=True)
class JsonReader:
    """Reads a file once, as chunks.LogReader does."""

    lines: LogReader
    log_format: LogFormat
    location: str
    is_plain = False  # no position of a JsonChunk is kept for the next pass

    @property
    def stored_bytes_read(self) -> int:
        return self.lines.stored_bytes_read

    @property
    def fingerprint(self) -> Fingerprint | None:
        return self.lines.fingerprint

    def chunks(self, chunk_bytes: int, file: FileOfLog = ONLY_FILE) -> Iterator[tuple[JsonChunk, None]]:
        for lines, _ in self.lines.chunks(chunk_bytes, file):
            yield JsonChunk(lines, self.log_format, self.location), None


@contextmanager
def open_json_lines(file: LogFile, log_format: LogFormat) -> Iterator[JsonReader]:
    """Open a file of the log to be read once.

    Raises ValueError, inside the `with` block too, if it is damaged, begins with other JSON, or if its first objects
    have no label, or no field. Other columns that they lack are a warning.
    """
    names = names_in(file)
    missing = [name for name in columns_to_read(log_format) if name not in names]
    fields = [name for name, _ in log_format.fields]
    must = [name for name in log_format.columns_of_kind("label") if log_format.label == "required"]
    if names and (not set(must) <= set(names) or not set(fields) & set(names)):
        raise ValueError(
            f"{file.location}: its first objects lack columns of {log_format.origin}: not found: "
            f"{', '.join(missing)}; found {', '.join(names)}"
        )
    if names and missing:
        _warn_of_missing(file.location, ", ".join(missing))
    with open_log(file, replace(log_format, header=False)) as reader:
        yield JsonReader(reader, log_format, file.location)


@functools.lru_cache(maxsize=1024)  # each pass opens the file again
def _warn_of_missing(location: str, names: str) -> None:
    log.warning("%s: none of its first objects has %s: a missing value where there is none", location, names)


def names_in(file: LogFile) -> list[str]:
    """Return the keys of the first objects. Raises as `first_objects`."""
    return list(dict.fromkeys(itertools.chain(*first_objects(file))))


def first_objects(file: LogFile, num_rows: int = 1000) -> list[Row]:
    """Return the objects of the first lines, `num_rows` or more if there are as many.

    Raises ValueError if there are only other lines, or if the file is an array.
    """
    rows: list[Row] = []
    text = b""
    with closing(_chunks_of(file)) as chunks:
        for chunk in chunks:
            text = text or chunk.lines.lstrip()
            rows += [row for row in _parsed(chunk) if row is not None]
            if len(rows) >= num_rows or text.startswith(b"[") or (not rows and chunk.first_line):
                break
    if text.startswith(b"[") or (text and not rows):
        raise ValueError(
            f"{file.location} has no JSON object a line; make it so: jq -c '.[]' OLD > NEW for an array of objects, "
            "jq -c . OLD > NEW for objects of several lines. Lines of cells need a name that ends in .csv or .txt"
        )
    return rows


def columns_of(rows: Sequence[Row]) -> dict[str, pa.Array]:
    """Return objects as columns, one of several types as texts, one with objects inside as empty structs."""
    columns = {}
    for name in dict.fromkeys(itertools.chain(*rows)):
        values = [row.get(name) for row in rows]
        cells = pa.array([{}] * len(rows)) if dict in map(type, values) else _array(values)
        texts = (each if each is None or isinstance(each, str) else json.dumps(each) for each in values)
        columns[name] = pa.array(texts, pa.string()) if cells is None else cells
    return columns


def _chunks_of(file: LogFile) -> Generator[Chunk, None, None]:
    with open_log(file, LogFormat()) as reader:
        for lines, _ in reader.chunks(_FIRST_BYTES):
            yield lines.load()


def _parsed(chunk: Chunk) -> list[Row | None]:
    """Return each line's object, the last of the values of a key that is there twice. None for any other line."""
    return list(map(_object, chunk.lines.split(b"\n")[:-1]))


def _object(line: bytes) -> Row | None:
    try:
        row = json.loads(line.decode())
        if b"\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # fails for half a surrogate pair, which is no text
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _array(values: Sequence[Any]) -> pa.Array | None:
    """Return values as one of Arrow's arrays, or None if they have several types."""
    try:
        return pa.array(values)
    except (OverflowError, TypeError, ValueError):
        return None
