"""Raw rows outside of a preparation: lines, mappings and tables as chunks, with or without a label, and a pass over a
log that has them.

A row without a label gets the cell of a good one, so that one parser decides what a good row is.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from data_prep.execution.pieces import Pieces
from data_prep.execution.pools import KINDS, ExecutorChoice, Pools
from data_prep.execution.stopping import Stopped, check_stop, stop_by_signals
from data_prep.kernels.parse import quoted_cells, take_quotes_off
from data_prep.kernels.parsed import BARE_SEPARATOR, ONLY_FILE, Chunk, ParsedChunk, ParsedRows
from data_prep.options.log_format import FIELD_KINDS, NO_BOOLEANS, FormatToScore, Kind, LogFormat
from data_prep.raw_log.compression import MAGIC
from data_prep.raw_log.log_files import LogFile, absolute, find_log, is_parquet
from data_prep.raw_log.reading import LogReading, column_names
from data_prep.raw_log.sample import sample_log

if TYPE_CHECKING:
    import pandas as pd
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


def without_label(log_format: LogFormat) -> LogFormat:
    """Return the format of a log of the same columns but the label."""
    return _to_score(log_format, columns={name: kind for name, kind in log_format.columns.items() if kind != "label"})


def _to_score(log_format: LogFormat, **changes: Any) -> LogFormat:
    values = {field.name: getattr(log_format, field.name) for field in dataclasses.fields(log_format)}
    return FormatToScore(**{**values, **changes})


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
        line, separator = take_quotes_off(line + b"\n", log_format)[0], _BARE
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
            cells = quoted_cells(line, log_format)
            row = [line] if cells is None else [_quoted(cell) for cell in cells]
        # A line that ends before the label's place keeps a wrong number of columns.
        labelled.append(separator.join([*row[:place], label, *row[place:]]))
    return dataclasses.replace(chunk, lines=b"\n".join([*labelled, b""]))


def _quoted(cell: bytes) -> bytes:
    return b'"' + cell.replace(b'"', b'""') + b'"'


def mappings_to_chunk(rows: Sequence[Mapping[str, Any]], log_format: LogFormat) -> Chunk:
    """Return rows that are mappings from columns to values as a chunk; None and NaN are missing values.

    Text is the cell as the log has it, of a number too; other columns are ignored. Raises ValueError for a column that
    is missing, TypeError for a value that no cell of its kind holds.
    """
    columns = {name: kind for name, kind in log_format.columns.items() if kind in FIELD_KINDS}
    separator = _BARE if log_format.quotes else log_format.separator.encode()
    lines = []
    for number, row in enumerate(rows):
        if not row.keys() >= columns.keys():
            _check_names(f"row {number}", row, log_format)
        cells = []
        for name, kind in log_format.columns.items():
            if name not in columns:
                cells.append(log_format.any_cell(name).encode())
                continue
            value = row[name]
            if value is None:
                cells.append(b"")
            elif type(value) is int and kind == "integer":
                cells.append(b"%d" % value)
            else:
                try:
                    text = value if type(value) is str else _text(value, name, log_format)
                    cells.append(_checked_cell(text, separator))
                except (TypeError, ValueError, OverflowError) as error:
                    raise TypeError(f"row {number}, column {name!r} of kind {kind}: {error}") from None
        lines.append(separator.join(cells))
    return Chunk(0, len(lines), b"\n".join([*lines, b""]), is_bare=log_format.quotes)


def cells_to_chunk(cells: Mapping[str, str], log_format: LogFormat) -> Chunk:
    """Return one row with these cells, and others that are good, as a chunk."""
    texts = [cells.get(name, log_format.any_cell(name)) for name in log_format.columns]
    between = chr(BARE_SEPARATOR) if log_format.quotes else log_format.separator
    return Chunk(0, 1, f"{between.join(texts)}\n".encode(), is_bare=log_format.quotes)


def _check_names(where: str, names: Iterable[Any], log_format: LogFormat) -> None:
    """Raise ValueError for names of columns, of which others may be there, where a field is missing or there twice."""
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
    """Return a value as the cell of a line, as `raw_log.parquet` does it with a column."""
    kind = log_format.columns[name]
    if kind == "list" and isinstance(value, (list, tuple, np.ndarray)):
        between = log_format.list_form(name).separator
        texts = [_value_text(each, name, log_format) for each in value]
        wrong = next((text for text in texts if between in text), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} has the separator {between!r} of the list's values in it")
        return between.join(texts)
    return _value_text(value, name, log_format)


def _value_text(value: Any, name: str, log_format: LogFormat) -> str:
    kind = log_format.columns[name]
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    if value is None or type(value).__name__ == "NAType" or (not isinstance(value, np.ndarray) and value != value):
        return ""
    if isinstance(value, (bool, np.bool_)):
        texts = log_format.texts_of_booleans(name)
        if not texts:
            raise TypeError(f"found {value!r}; {NO_BOOLEANS}")
        return texts[0] if value else texts[1]
    if isinstance(value, (int, np.integer)):
        return _hex_text(int(value)) if kind == "hex32" else str(int(value))
    if isinstance(value, Decimal):
        if kind == "string" or (kind != "hex32" and not value.as_tuple().exponent):
            return format(value, "f")
        value = float(value)
    if isinstance(value, (float, np.floating)):
        if float(value).is_integer() and abs(float(value)) < 2.0**63:
            return _hex_text(int(value)) if kind == "hex32" else str(int(value))
        return str(value)
    if kind == "timestamp" and isinstance(value, (date, np.datetime64)):
        return _time_text(value, log_format.time_form(name))
    raise TypeError(f"expected text, a number or None, found {value!r}")


def _time_text(value: date | np.datetime64, form: str) -> str:
    import pyarrow as pa

    from data_prep.raw_log.parquet import times_as_text

    value = getattr(value, "to_datetime64", lambda: value)()  # of pandas, whose nanoseconds a datetime has not
    times = pa.array(np.array([value]) if isinstance(value, np.datetime64) else [value])
    return str(times_as_text(times, form)[0].as_py())


def _hex_text(value: int) -> str:
    if value not in _HEX32:
        raise TypeError(f"expected a number of 32 bits, found {value}")
    return f"{value & 0xFFFFFFFF:08x}"


def _checked_cell(value: str, separator: bytes) -> bytes:
    cell = value.encode()
    if b"\n" in cell or b"\r" in cell or separator in cell:
        raise ValueError(f"{value!r} has a line end or the separator {separator!r} in it, which no cell of the log has")
    return cell


def arrow_table(rows: Any, log_format: LogFormat | None = None) -> pa.Table | None:
    """Return a table of pandas (without its index), polars or pyarrow as one of pyarrow; None for what is no table.

    With a format it has the fields alone. Raises ValueError for one that is missing, TypeError for a single column, or
    one of values of several types.
    """
    import pyarrow as pa

    if type(rows).__name__ == "Series":
        raise TypeError(
            "expected rows as a table, found a Series: for one row give frame.iloc[[i]] or [series.to_dict()], for a "
            "column series.to_frame()"
        )
    if hasattr(rows, "collect_schema") and hasattr(rows, "collect"):
        raise TypeError(f"a {type(rows).__name__} of polars has no rows yet; give the table that its collect() returns")
    if hasattr(rows, "to_arrow"):  # polars
        rows = rows.to_arrow()
    if not (is_table := hasattr(rows, "schema")) and not hasattr(rows, "iloc"):
        return None
    rows = pa.table(rows) if is_table else rows
    if log_format is not None:
        _check_names("the table", rows.column_names if is_table else rows.columns, log_format)
        names = [name for name, _ in log_format.fields]
        rows = rows.select(names) if is_table else rows[names]
    try:
        return rows if is_table else pa.Table.from_pandas(rows, preserve_index=False)
    except pa.ArrowException as error:
        raise TypeError(f"a column of the table holds values of several types: {_mixed(rows) or error}") from error


def _mixed(rows: pd.DataFrame) -> str:
    """Return the first value of a table of pandas that is of another type than those before it."""
    for name, column in rows.items():
        present = [each for each, is_missing in zip(enumerate(column), column.isna(), strict=True) if not is_missing]
        for row, value in present:
            if type(value) is not type(present[0][1]):
                return f"row {row}, column {name!r}: {value!r} beside {present[0][1]!r}"
    return ""


def table_to_chunk(table: pa.Table, log_format: LogFormat) -> Chunk:
    """Return the rows of an Arrow table as a chunk; other columns than fields are ignored.

    Raises ValueError for a column that is missing, whose type no cell of its kind has, or with a cell that no line has.
    """
    from data_prep.raw_log.parquet import TableChunk, check_columns

    fields = [name for name, _ in log_format.fields]
    check_columns("the table", table.schema, _to_score(log_format, columns=dict(log_format.fields)))
    # A column of more than 2 GiB of text comes in several batches, whatever one does.
    batches = [batch for batch in table.select(fields).to_batches() if len(batch)]
    parts = [TableChunk(0, len(batch), batch, log_format, ONLY_FILE).load() for batch in batches]
    separator = _BARE if log_format.quotes else log_format.separator.encode()
    for number, part in enumerate(parts):
        num_cells = part.num_lines * (len(log_format.columns) - 1)
        if (part.lines.count(separator), part.lines.count(b"\n")) != (num_cells, part.num_lines) or b"\r" in part.lines:
            first = sum(len(batch) for batch in batches[:number])
            _refuse_cell(batches[number], log_format, first)
    return Chunk(0, table.num_rows, b"".join(part.lines for part in parts), is_bare=log_format.quotes)


def _refuse_cell(rows: pa.RecordBatch, log_format: LogFormat, first_row: int) -> NoReturn:
    """Raise ValueError for the first cell with a line end or a separator in it."""
    for number, row in enumerate(rows.to_pylist()):
        try:
            mappings_to_chunk([row], log_format)
        except TypeError as error:
            raise ValueError(str(error).replace("row 0", f"row {first_row + number}", 1)) from None
    raise AssertionError("no cell has a line end or a separator in it")


@dataclasses.dataclass(frozen=True)
class RawTable:
    """Rows of a table whose cells are all good, to be encoded without being written as lines."""

    rows: ParsedRows
    is_bare: None = None

    @property
    def num_lines(self) -> int:
        return len(self.rows.labels)


def join_table_rows(parts: Sequence[RawTable]) -> RawTable:
    """Return the rows of several tables as those of one."""
    names = ("integers", "integers_present", "values", "values_present")
    columns = {name: np.concatenate([getattr(part.rows, name) for part in parts], axis=1) for name in names}
    return _table_rows(**columns)


def _table_rows(**columns: Any) -> RawTable:
    count = columns["values"].shape[1]
    return RawTable(ParsedRows(row_numbers=np.arange(count), labels=np.zeros(count, np.bool_), **columns))


def table_to_rows(table: pa.Table, log_format: LogFormat) -> RawTable | None:
    """Return an Arrow table of fields alone as rows; None for what only the parser of lines decides.

    Columns are of kind integer, in numbers, and hex32, in texts, and every cell is good. They become the rows that
    `table_to_chunk` and the parser would make of them, in a twentieth of the time.
    """
    fields = [*log_format.integer_fields, *log_format.hex_fields]
    others = len(log_format.fields) - len(fields)
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


def format_to_score(files: Sequence[LogFile], log_format: LogFormat, keep: Sequence[str]) -> LogFormat:
    """Return the format of a log to score, as its first file shows it.

    Where names decide, it may have other columns than those of the description, in any order, and lack the label and
    whatever else changes no score; the columns to `keep` are among its columns. Where the place decides, it may lack
    the label. Raises ValueError for a column to keep that is not there, and as `open_reader`.
    """
    has_names = log_format.header or is_parquet(files[0].location)
    by_place = log_format if has_names or _has_labels(files, log_format) else without_label(log_format)
    names = column_names(files[0], log_format) if has_names else tuple(by_place.columns)
    for name in keep:
        if name not in names:
            raise ValueError(f"--keep {name}: {files[0].location} has no such column; it has {', '.join(names)}")
    if not has_names:
        return by_place
    columns = {name: kind for name, kind in log_format.columns.items() if kind in FIELD_KINDS or name in {*names}}
    columns = {name: kind for name, kind in columns.items() if kind != "ignored"}
    kept: dict[str, Kind] = {name: "ignored" for name in keep if name not in columns}
    others = "ignored" if log_format.header else "refused"
    return _to_score(log_format, columns=columns | kept, others=others, keep=tuple(keep))


def _has_labels(files: Sequence[LogFile], log_format: LogFormat) -> bool:
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
        line, is_bare = take_quotes_off(line.removesuffix(b"\n") + b"\n", log_format)[0], True
    separator = _BARE if is_bare else log_format.separator.encode()
    cells = line.removesuffix(b"\n").removesuffix(b"\r").split(separator)
    return [cell.decode("utf-8", errors="replace") for cell in cells]
