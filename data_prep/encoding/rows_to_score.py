"""Read rows to score with a model, from a log or from a table in memory.

The rows may lack the label, may have other columns than the model, and may have the columns in another order. Some
columns of a log can be copied to the output beside the scores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from data_prep.encoding.from_values import check_names, has_label, lines_of, mappings_to_chunk
from data_prep.execution.pieces import Pieces
from data_prep.execution.tasks import Pools
from data_prep.kernels.parsed import BARE_SEPARATOR, ONLY_FILE, Cells, Chunk, ParsedRows
from data_prep.options.executor import ExecutorChoice
from data_prep.options.kinds import FIELD_KINDS, Kind
from data_prep.options.log_format import FormatToScore, LogFormat
from data_prep.raw_log.formats import ending_of, format_of
from data_prep.raw_log.lake.lake_tables import version_read
from data_prep.raw_log.log_files import absolute, find_log
from data_prep.raw_log.reading import LogReading, column_names, file_of_log, first_chunks
from data_prep.raw_log.storage import LogFile, StoredFile, open_stream

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_BARE = bytes([BARE_SEPARATOR])
# Value of each hexadecimal digit, indexed by its byte. The value of all other bytes is 255.
_NIBBLE_OF = np.full(256, 255, np.uint8)
_NIBBLE_OF[list(b"0123456789abcdef")] = np.arange(16)


Result = TypeVar("Result")
__all__ = ["LogToScore", "ending_of"]
_SAMPLED_LINES = 100
_CHUNK_BYTES = 1 << 20


def arrow_table(rows: Any, log_format: LogFormat | None = None) -> pa.Table | None:
    """Convert a table of pandas (without its index), polars or pyarrow to a pyarrow table.

    Return None for other objects. If `log_format` is given, the result has only the columns that are fields of it.
    Raise ValueError if a field is missing, and TypeError if `rows` is a single column or if a column has values of
    several types.
    """
    import pyarrow as pa

    from data_prep.raw_log.arrow_to_text import NO_INT128

    if type(rows).__name__ == "Series":
        raise TypeError(
            "expected rows as a table, found a Series: for one row give frame.iloc[[i]] or [series.to_dict()], for a "
            "column series.to_frame()"
        )
    if hasattr(rows, "collect_schema") and hasattr(rows, "collect"):
        raise TypeError(f"a {type(rows).__name__} of polars has no rows yet; give the table that its collect() returns")
    if hasattr(rows, "to_arrow"):  # polars
        if wide := [
            name for name, of_type in dict(getattr(rows, "schema", {})).items() if str(of_type) in ("Int128", "UInt128")
        ]:
            raise TypeError(f"columns of 128 bits, which Arrow does not have: {', '.join(wide)}; {NO_INT128}")
        rows = rows.to_arrow()
    if not (is_table := hasattr(rows, "schema")) and not hasattr(rows, "iloc"):
        return None
    if is_table:
        rows = pa.table(rows)
    elif not all(isinstance(name, str) for name in rows.columns):
        # Column names such as 0 become strings, as in Arrow's own conversion of a data frame.
        rows = rows.set_axis(list(map(str, rows.columns)), axis="columns")
    if log_format is not None:
        check_names("the table", rows.column_names if is_table else rows.columns, log_format)
        names = [name for name, _ in log_format.fields]
        rows = rows.select(names) if is_table else rows[names]
    if not is_table:
        # Arrow has no intervals and periods. Columns of these types become texts, as in a CSV file of the table.
        kinds = {name: getattr(getattr(of, "categories", None), "dtype", of) for name, of in rows.dtypes.items()}
        if texts := [name for name, of in kinds.items() if type(of).__name__ in ("IntervalDtype", "PeriodDtype")]:
            rows = rows.astype(dict.fromkeys(texts, "string"))
    try:
        return rows if is_table else pa.Table.from_pandas(rows, preserve_index=False)
    except pa.ArrowException as error:
        raise TypeError(f"a column of the table holds values of several types: {_mixed(rows) or error}") from error


def chunk_of(rows: Any, log_format: LogFormat) -> Chunk | RawTable:
    """Convert rows to score (lines, mappings or a table) to a chunk of lines or to a `RawTable`, for the encoder.

    The result is a `RawTable` if `table_to_rows` supports the table. Raise ValueError or TypeError if a row is bad. The
    message names the first bad row.
    """
    table = arrow_table(rows, log_format)
    if table is None:
        return lines_of(rows, log_format)
    return table_to_rows(table, log_format) or table_to_chunk(table, log_format)


def _mixed(rows: pd.DataFrame) -> str:
    """Describe the first value in a pandas table whose type differs from that of the first value of its column.

    Return "" if there is no such value.
    """
    for name, column in rows.items():
        present = [each for each, is_missing in zip(enumerate(column), column.isna(), strict=True) if not is_missing]
        for row, value in present:
            if type(value) is not type(present[0][1]):
                return f"row {row}, column {name!r}: {value!r} beside {present[0][1]!r}"
    return ""


def table_to_chunk(table: pa.Table, log_format: LogFormat) -> Chunk:
    """Convert an Arrow table to a chunk of lines, without the columns that are not fields of `log_format`.

    Raise ValueError if a field is missing, if its type does not fit its kind, or if a cell contains a line end or a
    separator.
    """
    from data_prep.raw_log.arrow_to_text import TableChunk, check_columns, check_exact

    fields = [name for name, _ in log_format.fields]
    check_columns("the table", table.schema, FormatToScore.of(log_format, columns=dict(log_format.fields)))
    # Arrow splits a column of more than 2 GiB of text into several batches, so there can be more than one.
    batches = [batch for batch in table.select(fields).to_batches() if len(batch)]
    to_score = FormatToScore.of(log_format)
    for batch in batches:
        check_exact("the table", batch, to_score)
    parts = [TableChunk(0, len(batch), batch, to_score, ONLY_FILE).load() for batch in batches]
    separator = _BARE if log_format.quotes else log_format.separator.encode()
    for number, part in enumerate(parts):
        num_cells = part.num_lines * (len(log_format.columns) - 1)
        if (part.lines.count(separator), part.lines.count(b"\n")) != (num_cells, part.num_lines) or b"\r" in part.lines:
            first = sum(len(batch) for batch in batches[:number])
            _refuse_cell(batches[number], log_format, first)
    vectors = {
        name: Cells(*map(np.concatenate, zip(*(part.vectors[name] for part in parts), strict=True)))
        for name in log_format.vector_fields * bool(parts)
    }
    text = b"".join(part.lines for part in parts)
    return Chunk(0, table.num_rows, text, is_bare=log_format.quotes, vectors=vectors)


def _refuse_cell(rows: pa.RecordBatch, log_format: LogFormat, first_row: int) -> NoReturn:
    """Raise ValueError about the first cell of `rows` that contains a line end or a separator.

    `first_row` is the index, in the whole table, of the first of these rows. The message needs it to name the row.
    """
    for number, row in enumerate(rows.to_pylist()):
        try:
            mappings_to_chunk([row], log_format)
        except TypeError as error:
            raise ValueError(str(error).replace("row 0", f"row {first_row + number}", 1)) from None
    raise AssertionError("no cell has a line end or a separator in it")


@dataclass(frozen=True)
class RawTable:
    """The rows of a table in memory whose cells are all valid, so that they need not be written as lines and parsed."""

    integers: Cells  # Cells of the N integer fields [N, n].
    hex_values: Cells  # Cells of the H fields of kind hex32 [H, n].
    log_format: LogFormat
    is_bare: None = None

    @property
    def num_lines(self) -> int:
        return self.hex_values.present.shape[1]

    @functools.cached_property
    def rows(self) -> ParsedRows:
        blocks = {self.log_format.integer_fields: self.integers, self.log_format.hex_fields: self.hex_values}
        # A table to score has no labels, so the labels are False and the weights 0.
        labels, weights = np.zeros(self.num_lines, np.bool_), np.zeros(self.num_lines, np.float32)
        return ParsedRows(np.arange(self.num_lines), labels, labels, {}, weights=weights, blocks=blocks)


def table_to_rows(table: pa.Table, log_format: LogFormat) -> RawTable | None:
    """Convert an Arrow table directly to parsed rows.

    Return None if the table must be written as lines of text and parsed instead. A direct conversion is possible if all
    columns are numbers of kind integer or texts of kind hex32, and all cells are valid. The rows equal those that
    `table_to_chunk` and the parser return, in a twentieth of the time.
    """
    fields = [*log_format.integer_fields, *log_format.hex_fields]
    has_others = len(fields) < len(log_format.fields)
    if has_others or log_format.missing or sorted(table.schema.names) != sorted(fields) or not table.num_rows:
        return None
    (batch, *more) = table.combine_chunks().to_batches()
    if more:
        return None
    integers = _integers([batch.column(name) for name in log_format.integer_fields], table.num_rows)
    hex_values = _hex_values([batch.column(name) for name in log_format.hex_fields], table.num_rows)
    return RawTable(integers, hex_values, log_format) if integers and hex_values else None


def _integers(columns: Sequence[pa.Array], num_rows: int) -> Cells | None:
    """Convert N Arrow columns of numbers to int64 cells [N, n]. Return None if one of the numbers is not an integer."""
    shape = len(columns), num_rows
    block = Cells(np.empty(shape, np.int64), np.empty(shape, np.bool_))
    for place, column in enumerate(columns):
        cells = _whole_numbers(column)
        if cells is None:
            return None
        block.values[place], block.present[place] = cells
    return block


def _hex_values(columns: Sequence[pa.Array], num_rows: int) -> Cells | None:
    """Convert H Arrow columns of texts to uint32 cells [H, n].

    Return None if a text is neither empty nor eight hex digits.
    """
    texts = [_texts_of(column) for column in columns]
    good = [text for text in texts if text is not None]
    if len(good) < len(texts):
        return None
    lengths, digits = zip(*good, strict=True) if good else ((), ())
    present = np.array(lengths).reshape(-1, num_rows) > 0
    values = np.zeros(present.shape, np.uint32)
    nibbles = _NIBBLE_OF[np.concatenate([np.zeros(0, np.uint8), *digits])].reshape(-1, 8)
    if len(nibbles) != present.sum() or (nibbles > 15).any():
        return None
    values[present] = np.ascontiguousarray(nibbles[:, ::2] << 4 | nibbles[:, 1::2]).view(">u4")[:, 0]
    return Cells(values, present)


def _whole_numbers(cells: pa.Array) -> Cells | None:
    """Convert an Arrow column of numbers to int64 cells [n]. Return None if one of the numbers is not an integer."""
    import pyarrow as pa

    present: np.ndarray = np.asarray(cells.is_valid()) if cells.null_count else np.ones(len(cells), np.bool_)
    if pa.types.is_signed_integer(cells.type):
        return Cells(np.asarray(cells.fill_null(0)).astype(np.int64), present)
    if not (pa.types.is_float32(cells.type) or pa.types.is_float64(cells.type)):
        return None
    numbers = np.asarray(cells.fill_null(np.nan)).astype(np.float64)
    present = ~np.isnan(numbers)
    numbers = np.where(present, numbers, 0)
    if not ((np.abs(numbers) < 2.0**63) & (numbers == np.floor(numbers))).all():
        return None
    return Cells(numbers.astype(np.int64), present)


def _texts_of(cells: pa.Array) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the length in bytes of each text in an Arrow column, and the bytes of all texts without gaps.

    Return None if the column does not hold texts, or if a text is neither empty nor eight bytes long.
    """
    import pyarrow as pa

    of_type = cells.type
    is_large = pa.types.is_large_string(of_type) or pa.types.is_large_binary(of_type)
    if not (is_large or pa.types.is_string(of_type) or pa.types.is_binary(of_type)):
        return None
    _, places, data = cells.buffers()
    offsets = np.frombuffer(places, np.int64 if is_large else np.int32)[cells.offset : cells.offset + len(cells) + 1]
    lengths = np.diff(offsets)
    if cells.null_count:  # Arrow allows a null cell to have bytes, which must not become part of a text.
        lengths = np.where(np.asarray(cells.is_valid()), lengths, 0)
    num_present = np.count_nonzero(lengths)
    if offsets[-1] - offsets[0] != 8 * num_present or np.count_nonzero(lengths == 8) != num_present:
        return None
    return lengths, np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]


@dataclass(frozen=True)
class LogToScore:
    """A log whose rows are to be scored: its files, and its format, which depends on the columns of its first file."""

    files: tuple[LogFile, ...]
    log_format: LogFormat

    @classmethod
    def of(
        cls,
        inputs: Sequence[str],
        log_format: LogFormat,
        keep: Sequence[str] = (),
        version: int | None = None,
        earlier: Mapping[str, Any] | None = None,
    ) -> LogToScore:
        """Find the log to score that `inputs` (files, folders, globs, URIs) name.

        The model was trained on rows of the format `log_format`. A log that names its columns may have the columns in
        any order, may have further columns, and may lack the label and all other columns that do not affect scores. In
        a log without names only the label may be missing. `keep` names columns whose cells are copied to the output.
        `version` is the version of a Delta table or the id of a snapshot of an Iceberg table; if it is None, it is the
        version in `earlier`, which an earlier command has read, or else the newest one. Raise FileNotFoundError if an
        input has no files, and ValueError if a column in `keep` is missing or if a file cannot be read.
        """
        files = find_log(list(inputs), version, earlier)
        return cls(files, _format_to_score(files, log_format, keep))

    @property
    def has_labels(self) -> bool:
        return bool(self.log_format.columns_of_kind("label"))

    @property
    def table_version(self) -> dict[str, Any]:
        """Location and version of the log if it is a Delta or Iceberg table. {} for any other log."""
        return version_read(self.files)

    @property
    def identity(self) -> list[list[Any]]:
        """Location, size in bytes and modification time in ns of each file.

        If these are equal, the log is taken to be the same and unchanged.
        """
        return [[file.location, file.state.size, file.state.modified_ns] for file in self.files]

    def files_among(self, recorded: Iterable[Mapping[str, Any]]) -> list[str]:
        """Return the names of those files of this log whose size and checksum equal those of a file in `recorded`.

        Each element of `recorded` has the keys `size_bytes` and `checksum`. Only files of a recorded size are read.
        """
        known = {(file["size_bytes"], file["checksum"]) for file in recorded}
        sizes, names = {size for size, _ in known}, []
        for file in self.files:
            if file.state.size in sizes:
                with open_stream(file.location) as raw, StoredFile(raw) as stored:
                    found = stored.fingerprint()
                names += [file.name] * ((found.size_bytes, found.checksum) in known)
        return names

    def chunks(self) -> Generator[Chunk, None, None]:
        """Read the log in this process, and yield its chunks (blocks of lines) in order.

        Raise ValueError if a file is damaged or lacks columns of the format.
        """
        return _chunks_of(self.files, self.log_format)

    def run(
        self,
        function: Callable[[Chunk], Result],
        consume: Callable[[Result], None],
        title: str,
        work_folder: Path,
        executor: ExecutorChoice,
        num_workers: int,
        chunk_bytes: int,
    ) -> None:
        """Let worker processes call `function` on every chunk of the log. Call `consume` with each result.

        `consume` gets the results in the order of the log. They are also stored in files of `work_folder` whose names
        contain `title`. If an interrupted call is repeated, it uses the stored results.
        """
        pieces = Pieces(work_folder)
        pieces.clear_unfinished()
        # Workers on other machines may have another working directory, so they get absolute paths.
        is_local = executor.kind == "processes"
        files = self.files if is_local else tuple(map(absolute, self.files))
        with closing(Pools(executor)) as pools:
            LogReading(files, self.log_format, pools, num_workers, chunk_bytes, pieces).run(function, consume, title)


def _format_to_score(files: Sequence[LogFile], log_format: LogFormat, keep: Sequence[str]) -> LogFormat:
    has_names = log_format.header or format_of(files[0].location).is_table
    columns = dict(log_format.columns)
    if not has_names and not _has_labels(files, log_format):
        del columns[log_format.label_column]
    names = column_names(files[0], log_format) if has_names else tuple(columns)
    for name in keep:
        if name not in names:
            raise ValueError(f"--keep {name}: {files[0].location} has no such column; it has {', '.join(names)}")
    if not has_names:
        return FormatToScore.of(log_format, columns=columns)
    columns = {
        name: kind
        for name, kind in log_format.columns.items()
        if kind in FIELD_KINDS or (name in names and kind != "ignored")
    }
    to_keep: dict[str, Kind] = {name: "ignored" for name in keep if name not in columns}
    other_columns = "ignored" if log_format.header else "refused"
    return FormatToScore.of(log_format, columns=columns | to_keep, others=other_columns, keep=tuple(keep))


def _has_labels(files: Sequence[LogFile], log_format: LogFormat) -> bool:
    labelled: list[bool] = []
    with closing(_chunks_of(files[:1], log_format)) as chunks:
        for chunk in chunks:
            lines = chunk.lines.split(b"\n")[: min(chunk.num_lines, _SAMPLED_LINES - len(labelled))]
            labelled += [has_label(line, log_format, chunk.is_bare) for line in lines]
            if len(labelled) == _SAMPLED_LINES:
                break
    # The majority of the lines decides whether the log has labels, because some lines may be bad.
    return 2 * sum(labelled) >= len(labelled)


def _chunks_of(files: Sequence[LogFile], log_format: LogFormat) -> Generator[Chunk, None, None]:
    num_lines = 0
    for place, file in enumerate(files):
        of_log = file_of_log(place, file.name if len(files) > 1 else "", num_lines, file, log_format)
        with closing(first_chunks(file, log_format, of_log, _CHUNK_BYTES)) as chunks:
            for _, task in chunks:
                num_lines += task.num_lines
                yield task.load()
