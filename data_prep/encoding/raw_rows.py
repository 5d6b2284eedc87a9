"""Raw rows outside of a preparation: lines, mappings and tables as chunks, with or without a label, and a pass over a
log that has them.

A row without a label gets the cell of a good one, so that one parser decides what a good row is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from data_prep.execution.pieces import Pieces
from data_prep.execution.pools import KINDS, ExecutorChoice, Pools
from data_prep.execution.stopping import Stopped, check_stop, stop_by_signals
from data_prep.kernels.parse import quoted_cells, take_quotes_off
from data_prep.kernels.rows import BARE_SEPARATOR, ONLY_FILE, Chunk, LogRows, ParsedChunk
from data_prep.options.log_format import FIELD_KINDS, LogFormat
from data_prep.raw_log.compression import MAGIC
from data_prep.raw_log.files import LogFile, absolute, find_log, is_parquet
from data_prep.raw_log.reading import LogReading, open_reader
from data_prep.raw_log.sample import sample_log

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "KINDS",
    "MAGIC",
    "ExecutorChoice",
    "LogFile",
    "Stopped",
    "absolute",
    "check_stop",
    "find_log",
    "stop_by_signals",
]

Result = TypeVar("Result")

_BARE = bytes([BARE_SEPARATOR])
SAMPLED_LINES = 100
_NIBBLE_OF = np.full(256, 255, np.uint8)  # by the digit's byte
_NIBBLE_OF[list(b"0123456789abcdef")] = np.arange(16)
_HEX32 = range(-(2**31), 2**32)


@dataclasses.dataclass(frozen=True)
class _Unlabelled(LogFormat):
    """The format of the same log without its column of labels, to find the other columns by."""

    def __post_init__(self) -> None:
        """Take a format without a label, which no preparation does."""


def without_label(log_format: LogFormat) -> LogFormat:
    """Return the format of a log of the same columns but the label."""
    values = {field.name: getattr(log_format, field.name) for field in dataclasses.fields(log_format)}
    columns = {name: kind for name, kind in log_format.columns.items() if kind != "label"}
    return _Unlabelled(**{**values, "columns": columns})


def lines_to_chunk(lines: Sequence[str | bytes], log_format: LogFormat) -> Chunk:
    """Return raw lines as a chunk; whether they have labels is decided by the first one's number of columns.

    Raises ValueError for a line with a line end inside, TypeError for what is no text.
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


def has_label(line: bytes, log_format: LogFormat, is_bare: bool = False) -> bool:
    """Return False for a line that has one column less than the format: that is the label's."""
    separator = _BARE if is_bare else log_format.separator.encode()
    if log_format.quotes and not is_bare:
        line, separator = take_quotes_off(line + b"\n", log_format.separator)[0], _BARE
    return line.count(separator) != len(log_format.columns) - 2


def add_label(chunk: Chunk, log_format: LogFormat) -> Chunk:
    """Return lines without labels as lines with them; a badly quoted line stays badly quoted.

    Lines of a file whose header decides its columns stay as they are: it names no label.
    """
    if chunk.file.columns:
        return chunk
    has_quotes = log_format.quotes and not chunk.is_bare
    separator = _BARE if chunk.is_bare else log_format.separator.encode()
    (place,) = log_format.places([log_format.label_column])
    label = log_format.any_label.encode()
    if has_quotes and (separator in label or b'"' in label):
        label = _quoted(label)
    if place == 0:
        start = label + separator
        return dataclasses.replace(chunk, lines=start + chunk.lines[:-1].replace(b"\n", b"\n" + start) + b"\n")
    labelled = []
    for line in chunk.lines[:-1].split(b"\n"):
        line = line.removesuffix(b"\r")
        row = line.split(separator, place)
        if has_quotes and b'"' in line:
            cells = quoted_cells(line, log_format.separator)
            row = [line] if cells is None else [_quoted(cell) for cell in cells]
        # A line that ends before the label's place keeps a wrong number of columns.
        labelled.append(separator.join([*row[:place], label, *row[place:]]))
    return dataclasses.replace(chunk, lines=b"\n".join([*labelled, b""]))


def _quoted(cell: bytes) -> bytes:
    return b'"' + cell.replace(b'"', b'""') + b'"'


def mappings_to_chunk(rows: Sequence[Mapping[str, Any]], log_format: LogFormat) -> Chunk:
    """Return rows that are mappings from columns to values as a chunk; None and NaN are missing values.

    Raises ValueError for a column that is missing or unknown, TypeError for a value that no cell of its kind holds.
    """
    columns = {name: kind for name, kind in log_format.columns.items() if kind in FIELD_KINDS}
    optional = log_format.columns.keys() - columns.keys()
    separator = _BARE if log_format.quotes else log_format.separator.encode()
    # A weight changes no score.
    others: dict[str, bytes] = {"label": log_format.any_label.encode(), "weight": b"1"}
    lines = []
    for number, row in enumerate(rows):
        if row.keys() != columns.keys():
            missing, unknown = columns.keys() - row.keys(), row.keys() - columns.keys() - optional
            if missing or unknown:
                raise ValueError(
                    f"row {number} has not the columns of the model: missing {_some(missing)}; unknown "
                    f"{_some(unknown)}. Give None (null in JSON) for a value that is not there"
                )
        cells = []
        for name, kind in log_format.columns.items():
            if name not in columns:
                cells.append(others.get(kind, b""))
                continue
            value = row[name]
            if value is None:
                cells.append(b"")
            elif type(value) is int and kind == "integer":
                cells.append(b"%d" % value)
            else:
                try:
                    if kind == "list" and isinstance(value, (list, tuple, np.ndarray)):
                        value = _joined(list(value), log_format.list_form(name).separator)
                    cells.append(_cell(value, kind, separator))
                except (TypeError, ValueError, OverflowError) as error:
                    raise TypeError(f"row {number}, column {name!r} of kind {kind}: {error}") from None
        lines.append(separator.join(cells))
    return Chunk(0, len(lines), b"\n".join([*lines, b""]), is_bare=log_format.quotes)


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:8]) or "none"


def _joined(values: Sequence[Any], separator: str) -> str | None:
    """Return the values of a list as its cell."""
    texts = [_cell(value, "string", separator.encode()).decode() for value in values]
    return separator.join(texts) or None


def _cell(value: Any, kind: str, separator: bytes) -> bytes:
    """Return a value as it would stand in a line."""
    if type(value) is str and kind != "integer":
        return _checked_cell(value, separator)
    if value is None or value != value:
        return b""
    if isinstance(value, np.generic):
        value = value.item()
    if kind in ("integer", "timestamp", "hex32") and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind == "integer":
        if isinstance(value, int):  # True and False are 1 and 0, as in a Parquet file
            return b"%d" % int(value)
        raise TypeError(f"expected a whole number or None, found {value!r}")
    if kind == "float" and isinstance(value, (int, float)):
        return repr(float(value)).encode()
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, int) and kind == "hex32":
        if value not in _HEX32:
            raise TypeError(f"expected a number of 32 bits, found {value}")
        return b"%08x" % (value & 0xFFFFFFFF)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise TypeError(f"expected text or None, found {value!r}")
    return _checked_cell(value, separator)


def _checked_cell(value: str, separator: bytes) -> bytes:
    cell = value.encode()
    if b"\n" in cell or b"\r" in cell or separator in cell:
        raise ValueError(f"{value!r} has a line end or the separator {separator!r} in it, which no cell of the log has")
    return cell


def arrow_table(rows: Any) -> pa.Table | None:
    """Return a table of pandas (without its index), polars or pyarrow as one of pyarrow; None for what is no table.

    Raises TypeError for a column of values of several types.
    """
    import pyarrow as pa

    if hasattr(rows, "collect_schema") and hasattr(rows, "collect"):
        raise TypeError(f"a {type(rows).__name__} of polars has no rows yet; give the table that its collect() returns")
    if hasattr(rows, "to_arrow"):  # polars
        rows = rows.to_arrow()
    if hasattr(rows, "schema"):
        return pa.table(rows)
    if not hasattr(rows, "iloc"):
        return None
    try:
        return pa.Table.from_pandas(rows, preserve_index=False)
    except pa.ArrowException as error:
        raise TypeError(f"a column of the table holds values of several types: {error}") from error


def table_to_chunk(table: pa.Table, log_format: LogFormat) -> Chunk:
    """Return the rows of an Arrow table as a chunk.

    Raises ValueError for a column that is missing or unknown, or whose type no cell of its kind has.
    """
    import pyarrow as pa

    from data_prep.raw_log.parquet import TableChunk, check_columns

    unknown = set(table.schema.names) - log_format.columns.keys() - _index_of_pandas(table)
    if unknown:
        raise ValueError(f"the table has columns that the model does not know: {_some(unknown)}")
    for name in {*log_format.of_kind("weight", "id")} - {*table.schema.names}:  # which change no score
        table = table.append_column(name, pa.array(["1"] * table.num_rows))
    labelled = log_format.label_column in table.schema.names
    written_as = log_format if labelled else without_label(log_format)
    check_columns("the table", table.schema, written_as)
    # A column of more than 2 GiB of text comes in several batches, whatever one does.
    parts = [TableChunk(0, len(part), part, written_as, ONLY_FILE).load() for part in table.to_batches() if len(part)]
    if not parts:
        return Chunk(0, 0, b"")
    chunk = dataclasses.replace(parts[0], num_lines=table.num_rows, lines=b"".join(part.lines for part in parts))
    return chunk if labelled else add_label(chunk, log_format)


def _index_of_pandas(table: pa.Table) -> set[str]:
    """Return the columns that hold the index of a pandas table, not a column of it."""
    index = (table.schema.pandas_metadata or {}).get("index_columns", ())
    return {name for name in index if isinstance(name, str)}


@dataclasses.dataclass(frozen=True)
class TableRows:
    """Rows of a table whose cells are all good, to be encoded without being written as lines."""

    rows: LogRows
    is_bare: None = None

    @property
    def num_lines(self) -> int:
        return len(self.rows.labels)


def join_table_rows(parts: Sequence[TableRows]) -> TableRows:
    """Return the rows of several tables as those of one."""
    names = ("integers", "integers_present", "values", "values_present")
    columns = {name: np.concatenate([getattr(part.rows, name) for part in parts], axis=1) for name in names}
    return _table_rows(**columns)


def _table_rows(**columns: Any) -> TableRows:
    count = columns["values"].shape[1]
    return TableRows(LogRows(row_numbers=np.arange(count), labels=np.zeros(count, np.bool_), **columns))


def table_to_rows(table: pa.Table, log_format: LogFormat) -> TableRows | None:
    """Return an Arrow table without labels as rows; None for what only the parser of lines decides.

    Columns are of kind integer, in numbers, and hex32, in texts, and every cell is good. They become the rows that
    `table_to_chunk` and the parser would make of them, in a twentieth of the time.
    """
    fields = [*log_format.integer_fields, *log_format.hex_fields]
    others = len(log_format.columns) - 1 - len(fields)
    if others or log_format.missing or sorted(table.schema.names) != sorted(fields) or not table.num_rows:
        return None
    (batch, *more) = table.combine_chunks().to_batches()
    if more:
        return None
    shape = len(log_format.integer_fields), table.num_rows
    integers, integers_present = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    for place, name in enumerate(log_format.integer_fields):
        found = _whole_numbers(batch.column(name))
        if found is None:
            return None
        integers[place], integers_present[place] = found
    lengths, digits = [], []
    for name in log_format.hex_fields:
        texts = _texts_of(batch.column(name))
        if texts is None:
            return None
        lengths.append(texts[0])
        digits.append(texts[1])
    values_present = np.array(lengths).reshape(-1, table.num_rows) > 0
    values = np.zeros(values_present.shape, np.uint32)
    nibbles = _NIBBLE_OF[np.concatenate([np.zeros(0, np.uint8), *digits])].reshape(-1, 8)
    if len(nibbles) != values_present.sum() or (nibbles > 15).any():
        return None
    values[values_present] = np.ascontiguousarray(nibbles[:, ::2] << 4 | nibbles[:, 1::2]).view(">u4")[:, 0]
    return _table_rows(
        integers=integers, integers_present=integers_present, values=values, values_present=values_present
    )


def _whole_numbers(cells: pa.Array) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the cells of a column of numbers as int64, and where they are present; None if one is no such number."""
    import pyarrow as pa

    present: np.ndarray = np.asarray(cells.is_valid()) if cells.null_count else np.ones(len(cells), np.bool_)
    if pa.types.is_signed_integer(cells.type):
        return np.asarray(cells.fill_null(0)).astype(np.int64), present
    if not (pa.types.is_float32(cells.type) or pa.types.is_float64(cells.type)):
        return None
    numbers = np.asarray(cells.fill_null(np.nan)).astype(np.float64)
    present = ~np.isnan(numbers)
    numbers = np.where(present, numbers, 0)
    if not ((np.abs(numbers) < 2.0**63) & (numbers == np.floor(numbers))).all():
        return None
    return numbers.astype(np.int64), present


def _texts_of(cells: pa.Array) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lengths of a column of texts of no or eight bytes, and all bytes; None for another column."""
    import pyarrow as pa

    of_type = cells.type
    is_large = pa.types.is_large_string(of_type) or pa.types.is_large_binary(of_type)
    if not (is_large or pa.types.is_string(of_type) or pa.types.is_binary(of_type)):
        return None
    _, places, data = cells.buffers()
    offsets = np.frombuffer(places, np.int64 if is_large else np.int32)[cells.offset : cells.offset + len(cells) + 1]
    lengths = np.diff(offsets)
    if cells.null_count:  # a null may have bytes of its own
        lengths = np.where(np.asarray(cells.is_valid()), lengths, 0)
    num_present = np.count_nonzero(lengths)
    if offsets[-1] - offsets[0] != 8 * num_present or np.count_nonzero(lengths == 8) != num_present:
        return None
    return lengths, np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]


def rejected(chunk: Chunk, parsed: ParsedChunk) -> dict[int, str]:
    """Return the reason of each rejected line of a chunk, by its place among the chunk's lines."""
    first = first_line_number(chunk)
    found = {}
    for line in parsed.rejects_tsv.split(b"\n")[:-1]:
        where, reason, _ = line.split(b"\t", 2)
        found[int(where.rpartition(b":")[2]) - first] = reason.decode()
    return found


def first_line_number(chunk: Chunk) -> int:
    """Return the number, from 1, of a chunk's first line in its file."""
    return chunk.first_line - chunk.file.first_line + chunk.file.num_header_lines + 1


def log_has_label(files: Sequence[LogFile], log_format: LogFormat) -> bool:
    """Return whether a log has labels: by the first file's header, columns or first line.

    Raises as `open_reader` where the file is of neither form.
    """
    if log_format.header or is_parquet(files[0].location):
        try:
            with open_reader(files[0], log_format):
                return True
        except ValueError as error:
            try:
                with open_reader(files[0], without_label(log_format)):
                    return False
            except ValueError:
                raise error from None
    sample = next(sample_log(files[:1], log_format, SAMPLED_LINES), None)
    if sample is None or sample.chunk is None:
        return True
    lines = sample.chunk.lines.split(b"\n")[:-1]  # of which some may be bad
    return 2 * sum(has_label(line, log_format, sample.chunk.is_bare) for line in lines) >= len(lines)


def read_log(
    files: Sequence[LogFile],
    log_format: LogFormat,
    function: Callable[[Chunk], Result],
    consume: Callable[[Result], None],
    title: str,
    work_folder: Path,
    executor: ExecutorChoice,
    num_workers: int,
    chunk_bytes: int,
) -> None:
    """Call `function` on each chunk of a log on the workers, and `consume` with the results in the log's order.

    Results stay in `work_folder`, where the same pass finds them again after it was stopped.
    """
    pieces = Pieces(work_folder)
    pieces.clear_unfinished()
    with closing(Pools(executor)) as pools:
        LogReading(files, log_format, pools, num_workers, chunk_bytes, pieces).run(function, consume, title)


def split_line(line: bytes, log_format: LogFormat, is_bare: bool = False) -> list[str]:
    """Return the cells of a line, those of a badly quoted one as far as they can be told apart."""
    if log_format.quotes and not is_bare:
        line, is_bare = take_quotes_off(line.removesuffix(b"\n") + b"\n", log_format.separator)[0], True
    separator = _BARE if is_bare else log_format.separator.encode()
    cells = line.removesuffix(b"\n").removesuffix(b"\r").split(separator)
    return [cell.decode("utf-8", errors="replace") for cell in cells]
