"""Turn the rows of Arrow tables into lines of text, so that the same parser checks the rows of all logs.

The tables come from files of formats such as Parquet, or from the caller. Columns are found by name, and columns that
the format of the log does not describe are ignored. Cells become text as follows: null and NaN are missing values.
Whole floats are written as integers, other floats as the shortest decimals that are read back as the same number. A
whole number in a `hex32` column becomes eight hex digits. Booleans become the texts that the format defines for them.
An Arrow list becomes its values, joined by the separator of the list column. Vectors do not become text: they are
copied beside the lines.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.text import first_line
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.parse import cell_of_bad_vector, vector_text
from data_prep.kernels.parsed import BARE_SEPARATOR, MISSING, ONLY_FILE, Cells, Chunk, FileOfLog, are_inexact
from data_prep.kernels.strings import PADDING_BYTES, Strings
from data_prep.kernels.times import zone_table
from data_prep.options.kinds import ISO, KINDS, UNITS, Kind, has_zone, time_text
from data_prep.options.log_format import INEXACT, NO_BOOLEANS, FormatToScore, LogFormat
from data_prep.raw_log import storage
from data_prep.raw_log.formats import START_BYTES, binary_kind, format_of
from data_prep.raw_log.storage import Fingerprint, LogFile, StoredFile, contradiction, where_folders_have

log = logging.getLogger(__name__)

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)

# Assumed size of a cell as text, from which the number of rows that a worker gets at a time is computed.
_CELL_BYTES = 6
# Number of units in a second, by the name that Arrow gives the unit.
_UNITS_OF_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
NO_INT128 = (
    "cast them before the table is written or given: in polars frame.with_columns(pl.col(NAME).cast(pl.UInt64)), or "
    "pl.String for larger ones. polars.read_parquet_schema(FILE) names the columns of a file"
)
# What to do about files that are not damaged, by a part of Arrow's error message.
_ADVICE = {
    "Expected all lists to be of size": "pyarrow 25 cannot read lists of a fixed size from Parquet if some are null, "
    "so write lists of any size, such as "
    "pl.read_parquet(OLD).with_columns(pl.col(COLUMN).arr.to_list()).write_parquet(NEW) with polars, or "
    "table[COLUMN].cast(pa.list_(pa.float32())) with pyarrow",
    "not in range": "the table's type for this column has no room for the number; write the column as text, or with a "
    "wider type",
}
_READABLE = "strings, whole numbers, floats, decimals or booleans"
_VECTORS = "lists or arrays of numbers, or strings such as [0.1, 0.2]"
# The error message about a column whose Arrow type cannot be read lists the types that can be: before those of
# `_READABLE`, these texts for the further types that the column's kind accepts (`ColumnKind.arrow`).
_ALSO_READABLE = {
    "moments": "timestamps, dates, ",
    "times": "times of a known zone, ",
    "lists": "lists of texts, numbers or times of a known zone, ",
}


@dataclass(frozen=True)
class TableChunk:
    """A chunk of rows of an Arrow table, as a task for a worker. `load` turns the rows into lines of text."""

    first_line: int
    num_lines: int
    rows: pa.RecordBatch
    log_format: LogFormat
    file: FileOfLog

    def load(self) -> Chunk:
        is_bare = self.log_format.quotes
        separator = bytes([BARE_SEPARATOR]) if is_bare else self.log_format.separator.encode()
        vectors = {name: self._vectors(name, separator) for name in self.log_format.vector_fields}
        columns = [
            vectors[name][1] if name in vectors else self._cells_between(name, separator)
            for name in self.log_format.columns
        ]
        empty = pa.repeat(pa.scalar(b"", pa.large_binary()), self.num_lines)
        # A second join, with the line end as its separator, appends a line end to each line.
        lines = pc.binary_join_element_wise(*columns, pa.scalar(separator, pa.large_binary()))
        lines_with_ends = pc.binary_join_element_wise(lines, empty, pa.scalar(b"\n", pa.large_binary()))
        text = b"".join(lines_with_ends.to_pylist())
        columns_kept = tuple(self._kept(name) for name in columns_to_keep(self.log_format))
        beside = {name: cells for name, (cells, _) in vectors.items()}
        return Chunk(self.first_line, self.num_lines, text, self.file, is_bare, columns_kept, beside)

    def _vectors(self, name: str, separator: bytes) -> tuple[Cells, pa.LargeBinaryArray]:
        """Return the vectors of a column, and the column's cells in the lines of text.

        The cell of a good vector is empty. The cell of a bad vector is its text, so that the parser rejects the
        line.
        """
        log_format, width = self.log_format, self.log_format.vectors[name].width
        if name not in self.rows.schema.names:
            values = np.zeros((self.num_lines, width), np.float32)
            return Cells(values, np.zeros(self.num_lines, np.bool_)), self._cells_between(name, separator)
        cells, good = vectors_of(decoded(self.rows.column(name)), width, log_format)
        if good.all():
            return cells, pa.repeat(pa.scalar(b"", pa.large_binary()), self.num_lines)
        bad = np.flatnonzero(~good)
        texts = np.full(self.num_lines, b"", object)
        for row, value in zip(bad, self.rows.column(name).take(bad).to_pylist(), strict=True):
            texts[row] = cell_of_bad_vector(vector_text(value), separator.decode()).encode()
        return cells, pa.array(texts, pa.large_binary())

    def _cells_between(self, name: str, separator: bytes) -> pa.LargeBinaryArray:
        kind = self.log_format.columns[name]
        if kind == "ignored" or name not in self.rows.schema.names:
            return pa.repeat(pa.scalar(self.log_format.blank_row[name].encode(), pa.large_binary()), self.num_lines)
        return cells_as_text(self._cells(name), kind, separator, self.log_format.texts_of_booleans(name))

    def _kept(self, name: str) -> list[str]:
        """Return, as texts, the cells of a column that is copied to the output of a prediction beside the scores.

        The texts may contain separators, because they are not part of the lines.
        """
        if self.log_format.columns[name] == "ignored":
            cells = cells_as_text(decoded(self.rows.column(name)), "string", b"\n", ("true", "false"))
        else:
            cells = self._cells_between(name, b"\n")
        return [cell.decode(errors="replace") for cell in cells.to_pylist()]

    def _cells(self, name: str) -> pa.Array:
        """Return the cells of a column as an Arrow array.

        Lists are joined to texts, and times are written in the form that the log's format gives for the column.
        """
        cells = decoded(self.rows.column(name))
        if is_list(cells.type):
            return _joined(cells, self.log_format, name)
        if "moments" not in KINDS[self.log_format.columns[name]].arrow or not is_moment(cells.type):
            return cells
        return times_as_text(cells, self.log_format.time_form(name), self.log_format.timezone.get(name, ""))


@dataclass
class TableReader:
    """Reads a file with typed columns, such as Parquet. It has the interface of `formats.FormatReader`."""

    file: LogFile
    log_format: LogFormat
    num_rows: int
    names: Sequence[str]  # Columns of the file, without those from names of folders.
    # Function that takes the names of columns and a maximum number of rows, and yields these columns in batches that do
    # not exceed this number of rows.
    batches: Callable[[list[str], int], Iterator[pa.RecordBatch]]
    # False, because a worker cannot read rows from the middle of a Parquet or Feather file. This process sends the rows
    # to the worker.
    is_plain = False
    _num_rows_read = 0

    @property
    def stored_bytes_read(self) -> int:
        return self.file.state.size * self._num_rows_read // max(self.num_rows, 1)

    @property
    def fingerprint(self) -> Fingerprint:
        with storage.open_stream(self.file.location) as raw, StoredFile(raw) as stored:
            return stored.fingerprint()

    def chunks(self, chunk_bytes: int, file: FileOfLog = ONLY_FILE) -> Iterator[tuple[TableChunk, None]]:
        """Yield the rows of the file as pairs (task, None). A task has the rows of about `chunk_bytes` bytes of text.

        Readers of other formats yield a second task instead of None, with which later passes over the log read the same
        rows. A worker cannot read a part of this file itself.
        """
        names = columns_to_read(self.log_format)
        row_bytes = _CELL_BYTES * len(names) + sum(4 * form.width for form in self.log_format.vectors.values())
        # A batch without columns would not have a number of rows, so at least one column is read.
        own = [name for name in names if name in self.names] or [*self.names[:1]]
        for stored in self.batches(own, max(chunk_bytes // row_bytes, 1)):
            rows = with_constants(stored, self.file, names)
            first_line = file.first_line + self._num_rows_read
            self._num_rows_read += len(rows)
            check_exact(self.file.location, rows, self.log_format, self.file.state)
            yield TableChunk(first_line, len(rows), rows, self.log_format, file), None


def with_constants(rows: Rows, file: LogFile, names: Collection[str] | None = None) -> Rows:
    """Add to a file's rows the columns that names of its folders give, such as date for date=2026-11-01.

    If `names` is given, only columns in it are added. An added column is text, and replaces a column of the same name.
    Raise ValueError if that column has another value in a row.
    """
    for name, text in file.constants:
        if names is not None and name not in names:
            continue
        cells = pa.repeat(pa.scalar(text or None, pa.large_string()), rows.num_rows)
        place = rows.schema.get_field_index(name)
        if place < 0:
            rows = rows.append_column(name, cells)
            continue
        if (found := _another_text(rows.column(name), text)) is not None:
            raise ValueError(contradiction(file, name, found))
        rows = rows.set_column(place, name, cells)
    return rows


def schema_with_constants(schema: pa.Schema, file: LogFile) -> pa.Schema:
    """Return the schema of a file's columns, together with the columns that names of its folders give.

    A folder such as date=2026-11-01 gives a column of texts, which replaces a column of the same name.
    """
    own = [each for each in schema if each.name not in dict(file.constants)]
    return pa.schema([*own, *((name, pa.large_string()) for name, _ in file.constants)], schema.metadata)


def _another_text(cells: pa.Array | pa.ChunkedArray, text: str) -> str | None:
    """Return the first value of an Arrow column that differs from `text`, as a text, or None if all are the same.

    A value is the same if it has the same text, or if Arrow reads the text as that value: 7.0 and 007 are the number 7.
    """
    cells = decoded(cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells)
    same = [pa.array([text or None], pa.string())]
    with suppress(pa.ArrowException):  # Arrow raises this error if `text` is no value of the column's type.
        same.append(same[0].cast(cells.type))
    found, expected = (
        {each for part in parts for each in cells_as_text(part, "string", b"\n", ("true", "false")).to_pylist()}
        for parts in ([cells.unique()], same)
    )
    return next((each.decode(errors="replace") for each in sorted(found - expected)), None)


@contextmanager
def opened_table(location: str) -> Iterator[pa.NativeFile]:
    """Open a file with typed columns for random access.

    Turn errors of Arrow, also those raised inside the `with` block, into a ValueError: the file is damaged, its format
    is not the one that its name's ending says, or a column has a type that cannot be read.
    """
    with storage.open_random(location) as stored:
        try:
            yield stored
        # UnicodeDecodeError can be raised inside the `with` block, because names of columns are decoded when they are
        # used.
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            of, start = format_of(location), storage.read_range(location, 0, START_BYTES)
            what = binary_kind(start) or "if it is text, rename it to end in .csv" * (b"\0" not in start)
            if not what or of.matches(start):
                what = first_line(error)
            if advice := next((advice for part, advice in _ADVICE.items() if part in what), None):
                raise ValueError(f"{location} cannot be read ({what}); {advice}") from error
            raise ValueError(f"{location} is damaged or not a {of.name} file ({what})") from error
        except pa.ArrowNotImplementedError as error:
            what = f"{location} has a column of a type that pyarrow cannot read ({first_line(error)})"
            if "64 bits" in str(error):
                what = f"{location} has whole numbers of 128 bits, which pyarrow cannot read; {NO_INT128}"
            raise ValueError(what) from error
        except OSError as error:
            if error.errno is not None:
                raise
            # An OSError without errno is an error of Arrow, about a damaged page or a cloud store. The message of such
            # an error does not name the file.
            raise ValueError(f"{location} cannot be read ({first_line(error)})") from error


def columns_to_keep(log_format: LogFormat) -> tuple[str, ...]:
    """Return the names of the columns that are copied to the output of a prediction beside the scores.

    The result is () unless rows are scored.
    """
    return log_format.keep if isinstance(log_format, FormatToScore) else ()


def columns_to_read(log_format: LogFormat) -> list[str]:
    """Return the names of all columns of a table that must be read.

    The result has the columns that are not ignored, and then the further columns that are copied to the output beside
    the scores.
    """
    names = [name for name, kind in log_format.columns.items() if kind != "ignored"]
    return names + [name for name in columns_to_keep(log_format) if name not in names]


def check_columns(location: str, schema: pa.Schema, log_format: LogFormat) -> None:
    """Raise ValueError if a table lacks a column of the format, or if the type of a column does not fit its kind.

    The table may have other columns too. `location` is the part of the message that says where the table is from.
    """
    to_keep: dict[str, Kind] = dict.fromkeys(columns_to_keep(log_format), "string")
    expected = to_keep | {name: kind for name, kind in log_format.columns.items() if kind != "ignored"}
    missing = [name for name in expected if schema.names.count(name) != 1]
    if missing:
        raise ValueError(
            f"{location} lacks columns of {log_format.origin}: not found, or not once: {', '.join(missing)}; "
            f"found {', '.join(schema.names)}; a column that only some files have can be ignored, or be added"
            f"{where_folders_have(location, missing)}"
        )
    for name, kind in expected.items():
        if not is_readable(schema.field(name).type, kind):
            others = "".join(_ALSO_READABLE[each] for each in KINDS[kind].arrow)
            raise ValueError(
                f"{location}: column {name!r} is of type {schema.field(name).type}; expected for kind {kind}: "
                f"{_VECTORS if kind == 'vector' else others + _READABLE}"
            )
        if name in to_keep and log_format.columns[name] == "ignored":
            continue
        if holds_booleans(schema.field(name).type) and not log_format.texts_of_booleans(name):
            cells = f": {log_format.label_in_words}" if kind == "label" else ""
            raise ValueError(f"{location}: column {name!r} of kind {kind} holds booleans; {NO_BOOLEANS}{cells}")


def holds_booleans(of_type: pa.DataType) -> bool:
    """Return True if `of_type` is Arrow's type of booleans, or of lists or dictionaries of booleans."""
    while is_list(of_type := plain_type(of_type)):
        of_type = of_type.value_type
    return bool(pa.types.is_boolean(of_type))


def plain_type(of_type: pa.DataType) -> pa.DataType:
    """Return the Arrow type that cells of type `of_type` have after the function `decoded` has converted them."""
    types = pa.types
    if types.is_dictionary(of_type):
        return plain_type(of_type.value_type)
    if types.is_string_view(of_type) or isinstance(of_type, pa.UuidType | pa.JsonType):
        return pa.large_string()
    if types.is_binary_view(of_type) or types.is_fixed_size_binary(of_type):
        return pa.large_binary()
    return pa.bool_() if isinstance(of_type, pa.Bool8Type) else of_type


def decoded(cells: pa.Array) -> pa.Array:
    """Convert an Arrow column of dictionaries, views or extension types to a plain type, which more functions support.

    A UUID becomes its usual text: 32 lower-case hex digits with hyphens.
    """
    if pa.types.is_dictionary(cells.type):
        return decoded(cells.dictionary).take(cells.indices)
    if isinstance(cells.type, pa.UuidType):
        return pa.array([each if each is None else str(each) for each in cells.to_pylist()], pa.large_string())
    cells = cells.storage if isinstance(cells, pa.ExtensionArray) else cells
    of_type = plain_type(cells.type)
    return cells if cells.type == of_type else cells.cast(of_type)


def is_moment(of_type: pa.DataType) -> bool:
    """Return True if `of_type` is Arrow's type of timestamps or dates, which fit a column of kind timestamp.

    A time of day is not such a type.
    """
    return pa.types.is_timestamp(of_type) or pa.types.is_date(of_type)


# Matches a fixed offset from UTC, such as +02:00, at the end of a form of times.
_ZONE = re.compile("%[HMSfp] ?([+-])([0-9]{2}):?([0-9]{2})$")


def times_as_text(times: pa.Array, form: str, zone: str = "") -> pa.Array:
    """Convert timestamps or dates to cells in the form `form`, rounded down to the precision of the form.

    Dates, and timestamps without a time zone, are taken as times by the clock of the time zone `zone`. If the form does
    not contain a zone, timestamps with a time zone are converted: to the fixed offset in the form, as in %H:%M+02:00,
    or else to the clock of `zone`.
    """
    milliseconds, is_missing = _milliseconds(times), np.asarray(times.is_null())
    is_local = not (pa.types.is_timestamp(times.type) and times.type.tz)
    if form == ISO:
        moments = pa.array(milliseconds, pa.timestamp("ms", None if is_local else "UTC"), mask=is_missing)
        return moments.cast(pa.string())
    if has_zone(form) and is_local:
        milliseconds = zone_table(zone).to_utc(milliseconds)
    elif not has_zone(form) and not is_local:
        ahead = _ZONE.search(form)
        if ahead:
            milliseconds = milliseconds + int(f"{ahead[1]}1") * (60 * int(ahead[2]) + int(ahead[3])) * 60_000
        else:
            milliseconds = zone_table(zone).to_local(milliseconds)
    if UNITS.get(form, -1) >= 0:
        return pa.array(milliseconds // 10 ** UNITS[form], mask=is_missing)
    texts = [time_text(time, form) for time in milliseconds.tolist()]
    return pa.array(texts, pa.string(), mask=is_missing)


def _milliseconds(times: pa.Array) -> NDArray[np.int64]:
    """Convert timestamps or dates to milliseconds since 1970, int64 [n], rounded down. A missing time becomes 0.

    Arrow's own cast is not used, because it rounds toward 1970. Times that do not fit in int64 are clipped. They stay
    outside the years 1 to 9999, so their lines are rejected.
    """
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("s"))
    units = _UNITS_OF_A_SECOND[times.type.unit]
    # The stored numbers are in UTC, even if the timestamps have a time zone.
    numbers: NDArray[np.int64] = times.cast(pa.int64()).fill_null(0).to_numpy()
    if units < 1000:
        return np.clip(numbers, -(2**52), 2**52) * (1000 // units)
    return numbers // (units // 1000)


def check_exact(where: str, rows: pa.RecordBatch, log_format: LogFormat, version: object = None) -> None:
    """Check that columns of ids contain no floats so large that several whole numbers round to the same float.

    If a column does, raise ValueError for rows to score. For rows of a preparation, log a warning, once for each column
    and each `version` (an object that changes if the file changes). `where` names the file at the start of the message.
    """
    for name in rows.schema.names:
        is_exact = KINDS[log_format.columns.get(name, "ignored")].is_exact
        found = _inexact(decoded(rows.column(name))) if is_exact else None
        if found is not None and isinstance(log_format, FormatToScore):
            raise ValueError(f"{where}, column {name!r}: found {found!r}; {INEXACT}")
        if found is not None:
            _warn_of_inexact(f"{where}, column {name!r}", version)


def _inexact(cells: pa.Array) -> float | None:
    """Return the first float in a column or in its lists to which several whole numbers round.

    Return None if the column has no such float.
    """
    cells = decoded(cells.flatten()) if is_list(cells.type) else cells
    if not pa.types.is_floating(cells.type):
        return None
    numbers: NDArray[np.floating] = cells.drop_null().to_numpy(zero_copy_only=False)
    large = numbers[are_inexact(numbers)]
    return float(large[0]) if len(large) else None


# The cache makes the warning of a column appear once, although every pass over the log checks all rows.
@functools.lru_cache(maxsize=1024)
def _warn_of_inexact(what: str, _version: object) -> None:
    log.warning("%s: %s", what, INEXACT)


def is_list(of_type: pa.DataType) -> bool:
    """Return True if `of_type` is one of Arrow's list types that a column of kind list may have."""
    return pa.types.is_list(of_type) or pa.types.is_large_list(of_type) or pa.types.is_fixed_size_list(of_type)


def _joined(lists: pa.Array, log_format: LogFormat, name: str) -> pa.Array:
    """Return a cell of text for each list in an Arrow column: the list's values, joined by the list's separator.

    A value that contains the separator is replaced by a line end, so that `cells_as_text` turns the row into a line
    that the parser rejects.
    """
    separator = log_format.list_form(name).separator.encode()
    values = cells_as_text(decoded(lists.flatten()), "list", b"\n", log_format.texts_of_booleans(name))
    values = pc.if_else(pc.match_substring(values, separator), pa.scalar(b"\n", pa.large_binary()), values)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, values), pa.scalar(separator, pa.large_binary()))


def vectors_of(cells: pa.Array, width: int, log_format: LogFormat) -> tuple[Cells, NDArray[np.bool_]]:
    """Convert an Arrow column of lists of numbers, or of texts, to vectors with `width` components.

    Return the vectors, and a mask [n] of the cells that are good: missing, or with `width` finite numbers. Floats are
    rounded to float32. Whole numbers and decimals become float64 first, and then float32. A bad vector is all zeros,
    and counts as missing.
    """
    if not is_list(cells.type):
        texts = cells.cast(pa.large_binary()).fill_null(b"")
        _, offsets, data = texts.buffers()
        ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        padded = np.concatenate([np.frombuffer(data or b"", np.uint8), np.zeros(PADDING_BYTES, np.uint8)])
        parsed = choose_kernels("auto").parse_vectors(
            Strings(padded, ends[:-1], np.diff(ends)), width, log_format.decimal
        )
        return Cells(*parsed[:2]), parsed[2]
    lengths, numbers = list_numbers(cells)
    if (lengths == width).all():
        values = numbers.reshape(-1, width)
        good = np.isfinite(values).all(axis=1)
    else:
        has_width = lengths == width
        good, values = has_width | (lengths == 0), np.zeros((len(cells), width), np.float32)
        values[has_width] = numbers[np.repeat(has_width, lengths)].reshape(-1, width)
        good &= np.isfinite(values).all(axis=1)
    if not good.all():
        values = np.where(good[:, None], values, np.float32(0))
    return Cells(values, good & (lengths > 0)), good


def list_numbers(lists: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the lengths [n] of the lists of numbers in an Arrow column, and all their numbers one after the other.

    A missing list has the length 0, and a missing number is NaN.
    """
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    numbers = decoded(lists.flatten())
    if pa.types.is_decimal(numbers.type):  # A direct cast would be inexact, see `cells_as_text`.
        numbers = numbers.cast(pa.string())
    if not pa.types.is_floating(numbers.type):
        numbers = numbers.cast(pa.float64(), safe=False)
    # A float64 that is too large for float32 becomes infinite, so that its row is rejected.
    with np.errstate(over="ignore"):
        return lengths, numbers.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)


def is_readable(of_type: pa.DataType, kind: Kind) -> bool:
    """Return True if an Arrow column of type `of_type` can be read as a column of kind `kind`."""
    types = KINDS[kind].arrow
    if "lists" in types and is_list(of_type):
        return is_readable(of_type.value_type, "string")
    if "vectors" in types:
        number = plain_type(of_type.value_type) if is_list(of_type) else None
        return pa.types.is_null(of_type) or (_is_number(number) if is_list(of_type) else _is_text(plain_type(of_type)))
    of_type = plain_type(of_type)
    # A duration counts as a number, because it is written as a number of seconds.
    is_number = _is_number(of_type) or pa.types.is_boolean(of_type) or pa.types.is_duration(of_type)
    is_time = ("times" in types and _is_written_time(of_type)) or ("moments" in types and is_moment(of_type))
    return _is_text(of_type) or is_number or is_time or pa.types.is_null(of_type)


def _is_text(of_type: pa.DataType) -> bool:
    is_binary = pa.types.is_binary(of_type) or pa.types.is_large_binary(of_type)
    return is_binary or pa.types.is_string(of_type) or pa.types.is_large_string(of_type)


def _is_number(of_type: pa.DataType) -> bool:
    is_float = pa.types.is_floating(of_type) or pa.types.is_decimal(of_type)
    return is_float or pa.types.is_integer(of_type) or pa.types.is_null(of_type)


def _is_written_time(of_type: pa.DataType) -> bool:
    """Return True if `of_type` is one of Arrow's types of times that pyarrow can write as text.

    pyarrow cannot write intervals, nor timestamps with a time zone that is unknown to it.
    """
    try:
        return bool(pa.types.is_temporal(of_type)) and pa.nulls(1, of_type).cast(pa.large_string()).null_count == 1
    except pa.ArrowException:
        return False


def cells_as_text(
    cells: pa.Array, kind: Kind, separator: bytes, booleans: tuple[str, ...] = ("1", "0")
) -> pa.LargeBinaryArray:
    """Convert an Arrow column of the given kind to the texts that a log would have as cells. Missing cells become "".

    A line end in a cell becomes `separator`, so that the row has too many cells and is rejected. `booleans` are the
    texts for true and false.
    """
    if pa.types.is_boolean(cells.type):
        cells = pc.if_else(cells, *booleans)
    has_hex_digits, keeps_zeros = KINDS[kind].has_hex_digits, KINDS[kind].keeps_zeros
    if pa.types.is_decimal(cells.type) and (has_hex_digits or (cells.type.scale > 0 and not keeps_zeros)):
        # Decimals are cast to text and then to floats, because Arrow's direct cast turns 4.02 into 4.0200000000000005.
        cells = cells.cast(pa.string()).cast(pa.float64())
    if has_hex_digits and (pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type)):
        text = _number_hex(cells)
    elif pa.types.is_floating(cells.type):
        text = _float_text(cells)
    elif pa.types.is_binary(cells.type) or pa.types.is_large_binary(cells.type):
        text = cells
    # Trailing zeros of a fraction of a second are removed, so that the text does not depend on the unit of the type.
    elif pa.types.is_timestamp(cells.type) or pa.types.is_time(cells.type):
        text = pc.replace_substring_regex(cells.cast(pa.large_string()), r"\.([0-9]*?)0+($|Z|[+-])", r".\1\2")
        text = pc.replace_substring_regex(text, r"\.($|Z|[+-])", r"\1")
    elif pa.types.is_duration(cells.type):  # Durations are written as decimal numbers of seconds.
        units, numbers = _UNITS_OF_A_SECOND[cells.type.unit], cells.cast(pa.int64()).to_pylist()
        text = pa.array([each if each is None else f"{Decimal(each) / units:f}" for each in numbers], pa.string())
    else:
        text = cells.cast(pa.large_string())
    text = pc.fill_null(text.cast(pa.large_binary()), b"")
    return pc.replace_substring(text, b"\n", separator)


def _float_text(cells: pa.Array) -> pa.Array:
    """Convert floats to text: whole floats to integers, other floats to the shortest decimals that identify them.

    How many digits are needed depends on the type: fewer for a float32 than for a float64.
    """
    if pa.types.is_float16(cells.type):  # Arrow would write as many digits of a float16 as of a float32.
        shortest = [None if each is None else float(str(np.float16(each))) for each in cells.to_pylist()]
        cells = pa.array(shortest, pa.float64())
    numbers: Any = cells.cast(pa.float64())
    numbers = pc.if_else(pc.is_nan(numbers), None, numbers)
    is_whole = pc.and_(pc.equal(numbers, pc.round(numbers)), pc.less(pc.abs(numbers), 2.0**63))
    whole = pc.if_else(is_whole, numbers, 0.0).cast(pa.int64()).cast(pa.large_string())
    if not pa.types.is_float64(cells.type):
        # A float32 is written as the shortest decimal that identifies it, because the writer of the file most likely
        # meant this decimal.
        numbers = numbers.cast(pa.float32())
    return pc.if_else(is_whole, whole, numbers.cast(pa.large_string()))


def _number_hex(cells: pa.Array) -> pa.Array:
    """Convert whole numbers of 32 bits, signed or unsigned, to eight hex digits, and other numbers to decimals.

    The parser rejects these decimals, because they never look like eight hex digits: they have another length, a
    decimal point, or a sign in the exponent.
    """
    decimal = _float_text(cells) if pa.types.is_floating(cells.type) else cells.cast(pa.large_string())
    # A float64 represents whole numbers of up to 53 bits exactly, so it represents numbers of 32 bits.
    numbers = cells.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
    fits = (numbers >= -(2**31)) & (numbers < 2**32) & (numbers == np.floor(numbers))
    whole = np.where(fits, numbers, MISSING).astype(np.int64)
    digits = hex_text(np.where(fits, whole & 0xFFFFFFFF, MISSING)).cast(pa.large_string())
    return pc.if_else(pa.array(fits), digits, decimal)


_HEX_DIGITS = np.frombuffer("".join(f"{number:04x}" for number in range(1 << 16)).encode(), "S4")


def hex_text(values: NDArray[np.int64]) -> pa.Array:
    """Convert each value to a text of eight hex digits. MISSING becomes ""."""
    # The array is built from its buffers (all digits without gaps, and offsets), which avoids a Python string for each
    # value.
    lengths = np.where(values == MISSING, 0, 8)
    digits = np.stack([_HEX_DIGITS[values >> 16 & 0xFFFF], _HEX_DIGITS[values & 0xFFFF]], axis=1)[values != MISSING]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits)))
