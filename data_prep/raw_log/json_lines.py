"""Read a file of the log that has one JSON object per line. Objects become tables, which are read like Parquet.

If an object lacks a key, its value is missing, as if it were null. The text of a cell depends only on its own value: in
a column with values of several types, each value gets the text that it would have in a column of its own type. A line
that is not an object is rejected.

Lines are parsed by Python's JSON parser, which supports whole numbers of any size and leaves texts as they are. The
JSON reader of Arrow 26.0.1 turns large whole numbers into floats and some texts into times, and a file with the single
line `null` crashes its process.
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

from data_prep.kernels.parse import vector_text
from data_prep.kernels.parsed import BARE_SEPARATOR, ONLY_FILE, Chunk, FileOfLog
from data_prep.options.kinds import KINDS
from data_prep.options.log_format import NO_BOOLEANS, LogFormat
from data_prep.raw_log import arrow_to_text, text_lines
from data_prep.raw_log.arrow_to_text import TableChunk, holds_booleans, is_list, is_readable
from data_prep.raw_log.storage import Fingerprint, LogFile
from data_prep.raw_log.text_lines import StoredChunk, TextReader

# Size in bytes of the blocks of lines that are read from the start of a file to find its columns.
_FIRST_BYTES = 1 << 20
_FIRST_OBJECTS = 1000  # The columns of a file are found from this many of its first objects.
_INT64 = range(-(2**63), 2**63)
_SCALARS = int, float, bool

Row = dict[str, Any]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JsonChunk:
    """A chunk of lines with JSON objects, as a task for a worker. `load` parses the lines."""

    lines: Chunk | StoredChunk
    log_format: LogFormat
    log_file: LogFile

    @property
    def first_line(self) -> int:
        return self.lines.first_line

    @property
    def num_lines(self) -> int:
        return self.lines.num_lines

    def load(self) -> Chunk:
        """Convert the JSON objects of the chunk to a chunk of lines of text, with cells in the order of the format.

        Raise ValueError if a value cannot be in a column of its kind, such as an object in a column of numbers.
        """
        chunk = self.lines.load()
        parsed = _parsed(chunk)
        rows = _completed([row or {} for row in parsed], self.log_file)
        columns = {name: self._column(name, rows, chunk) for name in arrow_to_text.columns_to_read(self.log_format)}
        batch = arrow_to_text.with_constants(pa.record_batch(columns), self.log_file, columns)
        arrow_to_text.check_exact(self.log_file.location, batch, self.log_format)
        table = TableChunk(self.first_line, self.num_lines, batch, self.log_format, chunk.file).load()
        if None not in parsed:
            return table
        separator = bytes([BARE_SEPARATOR]) if table.is_bare else self.log_format.separator.encode()
        # A line that is not an object gets too many cells, so that the parser rejects it.
        too_many = separator * len(self.log_format.columns)
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
                cell: bytes = arrow_to_text.cells_as_text(pa.array([value]), kind, b"\n", booleans)[0].as_py()
                return cell.decode()
            if kind == "vector" and isinstance(value, list):
                return vector_text(value)
            if isinstance(value, list) and not in_list and "lists" in KINDS[kind].arrow:
                texts = [text(each, in_list=True) for each in value]
                # A value that contains the separator is replaced by a line end, as for Parquet, so that the parser
                # rejects its row.
                return between.join("\n" if between in each else each for each in texts)
            raise TypeError(f"; {NO_BOOLEANS}" if type(value) is bool else "")

        texts = []
        for place, value in enumerate(values):
            try:
                texts.append(text(value))
            except TypeError as error:
                number = chunk.first_line_number + place
                raise ValueError(
                    f"{self.log_file.location}, line {number}: column {name!r} of kind {kind} holds "
                    f"{json.dumps(value)[:120]}; expected text, a number or null{error}"
                ) from None
        return pa.array(texts, pa.large_string())


@dataclass(frozen=True)
class JsonReader:
    """Reads a file with a JSON object in each line. The class has the interface of `formats.FormatReader`."""

    lines: TextReader
    log_format: LogFormat
    log_file: LogFile
    # False: positions of chunks in the file are not recorded, so this process reads the file again in each pass over
    # the log and sends the lines to workers.
    is_plain = False

    @property
    def stored_bytes_read(self) -> int:
        return self.lines.stored_bytes_read

    @property
    def fingerprint(self) -> Fingerprint | None:
        return self.lines.fingerprint

    def chunks(self, chunk_bytes: int, file: FileOfLog = ONLY_FILE) -> Iterator[tuple[JsonChunk, None]]:
        for lines, _ in self.lines.chunks(chunk_bytes, file):
            yield JsonChunk(lines, self.log_format, self.log_file), None


@contextmanager
def open_reader(file: LogFile, log_format: LogFormat) -> Iterator[JsonReader]:
    """Open a file of JSON lines, and yield a reader that reads it once from start to end.

    Raise ValueError, also inside the `with` block, if the file is damaged, does not begin with JSON objects, or if its
    first objects lack a required label or all fields. If they lack only some columns, log a warning.
    """
    names = read_schema(file).names
    missing = [name for name in arrow_to_text.columns_to_read(log_format) if name not in names]
    fields = [name for name, _ in log_format.fields]
    must = [name for name in log_format.columns_of_kind("label") if log_format.label == "required"]
    if names and (not set(must) <= set(names) or not set(fields) & set(names)):
        raise ValueError(
            f"{file.location}: its first objects lack columns of {log_format.origin}: not found: "
            f"{', '.join(missing)}; found {', '.join(names)}"
        )
    if names and missing:
        _warn_of_missing(file.location, ", ".join(missing))
    with text_lines.open_reader(file, replace(log_format, header=False)) as reader:
        yield JsonReader(reader, log_format, file)


# The cache makes the warning appear once, although each pass over the log opens the file again.
@functools.lru_cache(maxsize=1024)
def _warn_of_missing(location: str, names: str) -> None:
    log.warning("%s: none of its first objects has %s: a missing value where there is none", location, names)


def read_schema(file: LogFile) -> pa.Schema:
    """Return the keys that occur in the first objects of a file as the columns of a table, with types.

    Raise ValueError if no line is an object, or if the file is a JSON array.
    """
    rows = _first_objects(file, _FIRST_OBJECTS)
    return arrow_to_text.schema_with_constants(_as_table(rows).schema, file) if rows else pa.schema([])


def first_rows(file: LogFile, num_rows: int, num_parts: int = 1) -> pa.Table:
    """Return the first `num_rows` objects of a file as a table.

    `num_parts` is ignored, because a JSON file cannot be read from the middle. Raise ValueError if no line is an
    object, or if the file is a JSON array.
    """
    return arrow_to_text.with_constants(_as_table(_completed(_first_objects(file, num_rows)[:num_rows], file)), file)


def _completed(rows: Sequence[Row], file: LogFile) -> list[Row]:
    """Return copies of JSON objects with the keys that names of the file's folders give, such as date=2026-11-01.

    A key that an object has already keeps its value.
    """
    return [row | {name: text for name, text in file.constants if name not in row} for row in rows]


def _as_table(rows: Sequence[Row]) -> pa.Table:
    """Convert JSON objects to a table with a column for each key.

    A column with values of several types becomes text. A column with nested objects gets the type struct without
    fields.
    """
    columns = {}
    for name in dict.fromkeys(itertools.chain(*rows)):
        values = [row.get(name) for row in rows]
        cells = pa.array([{}] * len(rows)) if dict in map(type, values) else _array(values)
        texts = (each if each is None or isinstance(each, str) else json.dumps(each) for each in values)
        columns[name] = pa.array(texts, pa.string()) if cells is None else cells
    return pa.table(columns)


def _first_objects(file: LogFile, num_rows: int) -> list[Row]:
    """Return at least `num_rows` JSON objects from the start of a file, or all of its objects if it has fewer.

    Raise ValueError if the file is a JSON array, or if no line is an object.
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


def _chunks_of(file: LogFile) -> Generator[Chunk, None, None]:
    with text_lines.open_reader(file, LogFormat()) as reader:
        for lines, _ in reader.chunks(_FIRST_BYTES):
            yield lines.load()


def _parsed(chunk: Chunk) -> list[Row | None]:
    """Return the JSON object in each line of a chunk of lines, or None for a line that is not an object.

    If an object has a key twice, the last value is used.
    """
    return list(map(_object, chunk.lines.split(b"\n")[:-1]))


def _object(line: bytes) -> Row | None:
    try:
        row = json.loads(line.decode())
        if b"\\u" in line:
            # An escaped half of a surrogate pair is not valid text. Encoding it raises UnicodeEncodeError, which is a
            # ValueError.
            json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _array(values: Sequence[Any]) -> pa.Array | None:
    """Convert values from JSON to an Arrow array. Return None if Arrow has no common type for them."""
    try:
        cells = pa.array(values)
    except (OverflowError, TypeError, ValueError):
        return None
    in_lists = is_list(cells.type)
    is_float = pa.types.is_floating(cells.type.value_type if in_lists else cells.type)
    each = itertools.chain.from_iterable(filter(None, values)) if in_lists else values
    # If booleans are mixed with floats, Arrow converts true to 1.0, so these values count as having no common type.
    return None if is_float and bool in map(type, each) else cells
