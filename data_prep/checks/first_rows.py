"""Read the first rows of an unknown log as columns of text, and find out the log's separator, header and quotes.

From these columns, `propose.describe` proposes a description of the log.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.text import first_line
from data_prep.checks.reject_causes import Finding, divided_rows
from data_prep.kernels.parse import is_utf8, quoted_cells
from data_prep.kernels.parsed import MAX_LINE_BYTES, ONLY_FILE, Chunk, FileOfLog
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.raw_log.formats import format_of, spread
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.reading import sample_log
from data_prep.raw_log.storage import LogFile
from data_prep.raw_log.text_lines import MOST_LINES_BEFORE, NUL_BYTES, cells_at_end, columns_of_header

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_ROWS = 100_000  # Number of rows that `describe` and `pre-check` read unless --rows says otherwise.
INTEGER = re.compile(r"-?[0-9]{1,18}")
_WHOLE = re.compile("-?[0-9]+")
DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?inf")
# Matches large whole numbers in the forms in which programs write floats.
_LARGE_FLOAT = re.compile(r"-?[0-9]{16,}\.0+|-?[0-9](\.[0-9]+)?e\+[0-9]{2,3}")
TYPE_IN_NAME = re.compile(r":(token|float|token_seq|float_seq)$")
CAPITAL = re.compile("(?<=[a-z])(?=[A-Z])")  # Matches the position between two words of a name in camelCase.
_SEPARATORS, _RARE_SEPARATORS = "\t,;|\x01 ", "^~\x02"
_MOST_FILES = 20  # If a log has several files, at most this many of them are read.
# This many lists of floats in a column are examined to decide whether they are vectors or lists of ids.
_LISTS_LOOKED_AT = 1_000
_LAYOUT_ROWS = 1_000  # The separator, the header and the quotes of a log are decided from its first 1,000 lines.
# The lines of a log count as written in another form than columns, such as libsvm's (1 3:0.5 7:2), if at least this
# fraction of them matches the form.
_MOST = 0.9
# A separator is accepted if at least this fraction of the lines has the same number of columns with it.
_MOST_BROKEN = 0.5
# Separators whose fractions of well-formed lines differ by at most this much count as equally good. At most this
# fraction of the lines may have quotes that do not match.
_BROKEN = 0.02
# In the decision whether the first line is a header, a column counts as numeric although up to this fraction of its
# cells are not numbers.
_SLIPS = 0.002
# If at least this many cells of the first line are 0, 1, 2 … in order, the line may be a header. pandas writes such a
# header for an array, whose columns have no names.
_LEAST_PLACES = 4
_SHOWN = 60  # Error messages show at most this many characters of a line.
# Parts of the names of files from a contest, such as submission.csv. These files often share a folder but are not one
# log. Parts of one log may also be named train or test, so these two words only count if both occur among the files.
_SUBMISSION, _TRAIN_AND_TEST = (
    re.compile("submission", re.IGNORECASE),
    tuple(re.compile(f"(?<![a-z]){part}") for part in ("train", "test")),
)
_DIGIT = re.compile(".*[0-9].*")
# Matches a cell that does not tell whether its column holds numbers or text, such as an empty cell or a word for a
# missing value.
_NOTHING = re.compile(r"(?i)\W*|\\N|[(<#]?(na|n/a|nan|nat|null|none|nil|unk|unknown|missing|undefined)[)>]?")
# Forms of lines whose columns are not separated by a single character: a regular expression for a line, a description
# of the form, and a sed expression that converts the lines to columns.
_OTHER_FORMS = {
    r"[-+.0-9eE]+([ \t]+(qid|[0-9]+)(:[0-9]+)?:[-+.0-9eE]+)+\s*(#.*)?": (
        "of libsvm's or libffm's form; to have a label and a list of features, without their values",
        r"s/ *#.*//; s/ qid:[^ ]+//; s/[ \t]+/ /g; s/ /\t/; s/([0-9]+:)?([0-9]+):[^ ]+/\2/g",
    ),
    r"[-+]?[0-9.]+( [0-9.]+)* *('[^ |]*)? *\|(\w+(:[0-9.]+)? +[^ |]|[^|]*[A-Za-z]\w*:-?[0-9.]|( +[^ |]+){2,} *$).*": (
        "of Vowpal Wabbit's form; to have a column for each namespace, if all lines have the same ones",
        r"s/ *[|][^ ]* */\t/g",
    ),
    r"[|+].*[|+]": (
        "a table with bars at its edges; to have tabs",
        r"/^[|+][-+:|= ]*$/d; s/^[| ]+|[| ]+$//g; s/ *[|] */\t/g",
    ),
    r"\w+=[^=]*([ ,;|\t&]\w+=[^=]*)+": (
        "of names with values; to have the values, if all lines have the same names",
        r"s/(^|[ ,;|\t&])\w+=/\1/g",
    ),
    r"[^:,;|\t]*(::[^:]*(:(?!:)[^:]*)*)+|[^|]*(\|\|[^|]*)+|[^@,;|\t]*(@@[^@]*)+": (
        "separated by two characters; to have tabs in their place",
        r"s/::|[|][|]|@@/\t/g",
    ),
    r"[^,;|\t]*\S {2,}\S[^,;|\t]*": ("aligned by blanks; to have tabs in their place", r"s/^ +//; s/ +/\t/g"),
}
_CLOCK = re.compile(r"[^:]*([ \t]+[0-2]?[0-9]:[0-5][0-9](:[0-5][0-9]([.,][0-9]+)?)?)+\s*")


@dataclass(frozen=True)
class Column:
    """A column of the first rows of a log: its distinct values, and for each cell the index of the cell's value.

    The values are texts. If the preparation's parser has parsed the column, they are an array instead: numbers in
    ascending order, or objects such as bytes.
    """

    name: str
    codes: NDArray[np.int64]  # The index of each cell's value [n] in `values`, or -1 if the cell is missing.
    values: Sequence[str] | NDArray[Any]  # The V distinct values.
    of_type: pa.DataType | None = None  # Type of the column in a Parquet file or an Arrow table. None in a text log.
    # If the cells are lists of numbers with a fraction: the length of each list [n], 0 for a missing list, and -1 for a
    # list with a missing, infinite or NaN number. All present cells then have the code 0, and `values` is an example.
    lengths: NDArray[np.int64] | None = None

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of rows that have each of the V distinct values of the column, int64 [V]."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.values))

    @property
    def plain_name(self) -> str:
        """The column's name, without a type at its end such as `:token`, and with `_` between words of camelCase."""
        return CAPITAL.sub("_", TYPE_IN_NAME.sub("", self.name))

    @property
    def num_present(self) -> int:
        return int(self.counts.sum())

    @property
    def missing(self) -> float:
        """Fraction of the rows whose cell in this column is missing."""
        return float(np.mean(self.codes < 0))

    @cached_property
    def numbers(self) -> NDArray[np.float64] | None:
        """The V distinct values of the column as numbers [V], or None if one of the values is not a number."""
        if isinstance(self.values, np.ndarray):
            return self.values if self.values.dtype.kind in "if" else None
        return np.array(self.values, np.float64) if self.all_match(DECIMAL) else None

    @property
    def ranks(self) -> NDArray[np.int64]:
        """For each cell [n], the rank of its value among the distinct values, from 1, or 0 if the cell is missing.

        Numbers are ranked in ascending order, and other values in the order in which they are stored.
        """
        if self.numbers is None:
            return self.codes + 1
        return np.append(np.unique(self.numbers, return_inverse=True)[1] + 1, 0)[self.codes]

    @property
    def are_inexact(self) -> bool:
        """True if the column has whole numbers that were floats and are so large that they may have lost digits.

        Such a number is 2**53 or more, or 2**24 or more in a column of type float32. pandas, for example, turns a
        column of integer ids into floats if one of its cells is missing.
        """
        import pyarrow as pa

        form, limit = _LARGE_FLOAT, 2.0**53
        if self.of_type is not None and pa.types.is_floating(self.of_type):
            form, limit = _WHOLE, 2.0 ** (np.finfo(self.of_type.to_pandas_dtype()).nmant + 1)
        return any(abs(float(value)) >= limit for value in filter(form.fullmatch, self.values))

    @cached_property
    def are_integers(self) -> bool:
        return self.all_match(INTEGER)

    def all_match(self, pattern: re.Pattern[str]) -> bool:
        """Return True if the column has values and all of them match the regular expression."""
        return bool(self.values) and all(map(pattern.fullmatch, self.values))

    def frequent(self, count: int) -> list[str]:
        """Return the `count` most frequent values of the column, the most frequent one first."""
        return [self.values[index] for index in np.argsort(-self.counts, kind="stable")[:count]]

    def count_of(self, values: Collection[str]) -> int:
        """Return the number of rows whose cell in this column has one of the given values."""
        value_set = set(values)
        return sum(int(count) for value, count in zip(self.values, self.counts, strict=True) if value in value_set)

    def cleaned(self, trim: bool, missing: Collection[str]) -> Column:
        """Return a copy of the column in which empty cells, and cells that equal a word in `missing`, are missing.

        If `trim` is True, blanks around the values are removed first.
        """
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
    """The first rows of a log as columns, and how the log's lines are written (separator, header, quotes)."""

    location: str
    columns: list[Column]
    # The settings of a `LogFormat` (such as separator and header) that describe these lines, without those that have
    # the default value.
    layout: dict[str, Any]
    lines: bytes = b""  # The rows as lines of text, or b"" for a table.
    table: pa.Table | None = None
    file: FileOfLog = field(default=ONLY_FILE)
    findings: tuple[Finding, ...] = ()  # Messages for the user about odd lines or files.
    # Text that says which rows of which files were read, or "" if they are the first rows of a single file.
    sampled: str = ""
    of_folders: tuple[str, ...] = ()  # Columns that the names of folders give: date for date=2026-11-01.

    @property
    def num_rows(self) -> int:
        return len(self.columns[0].codes)

    @property
    def num_lines(self) -> int:
        """Number of lines that were read. Lines with a wrong number of columns, which are not rows, count too."""
        return self.lines.count(b"\n") or self.num_rows

    @property
    def bad_lines(self) -> list[bytes]:
        """The lines that were read and are not valid UTF-8. If the log is a table, there are no lines."""
        return [] if is_utf8(self.lines) else [line for line in self.lines.split(b"\n") if not is_utf8(line)]

    def chunk(self, log_format: LogFormat) -> Chunk:
        """Return these rows as a `Chunk`, the object in which the preparation passes lines of a log to its parser.

        `log_format` is the description of the log.
        """
        if self.table is None:
            return Chunk(0, self.lines.count(b"\n"), self.lines, self.file)
        from data_prep.raw_log.arrow_to_text import TableChunk

        (batch,) = self.table.combine_chunks().to_batches()
        return TableChunk(0, len(batch), batch, log_format, ONLY_FILE).load()


def read_first_rows(log: Any, num_rows: int, version: int | None = None) -> FirstRows:
    """Read the first `num_rows` rows of a log.

    `log` is an Arrow table, a pandas DataFrame, or paths or URIs as `find_log` takes them, together with `version`. If
    the log has several files, the rows come from the starts of up to 20 of them. Raise FileNotFoundError if there is no
    log, and ValueError if a file cannot be read or has no rows or no columns.
    """
    if hasattr(log, "iloc") or hasattr(log, "to_batches"):
        import pyarrow as pa

        if version is not None:
            raise ValueError(f"--version {version} is for a Delta or Iceberg table, and the log is a table in memory")
        table = log if isinstance(log, pa.Table) else pa.Table.from_pandas(log.iloc[:num_rows], preserve_index=False)
        return _of_table("the table", table.slice(0, num_rows))
    all_files = find_log(log, version)
    names = [each.name for each in all_files]
    if any(map(_SUBMISSION.search, names)) or all(any(map(kind.search, names)) for kind in _TRAIN_AND_TEST):
        raise ValueError(f"by their names, {', '.join(names)[:500]} are no parts of one log; name the one to describe")
    of = format_of(all_files[0].location)
    files = spread([file for file in all_files if format_of(file.location) == of], _MOST_FILES)
    rows = _read_tables(files, num_rows) if of.is_table else _read_lines(files, num_rows)
    rows = replace(rows, of_folders=tuple(dict(files[0].constants)))
    if len(all_files) == 1:
        sampled = "" if of.has_lines else f"{rows.num_rows:,} rows from all over {rows.location}"
        return replace(rows, sampled=sampled)
    of_all = f" of {len(all_files):,}" * (len(files) < len(all_files))
    parts = f"the first rows of {len(files):,}{of_all} files, {files[0].name} to {files[-1].name}"
    return replace(rows, sampled=f"{rows.num_rows:,} rows, {parts} (the others were not looked at)")


def _read_lines(files: Sequence[LogFile], num_rows: int) -> FirstRows:
    import pyarrow.compute as pc

    file, (lines, starts, constants) = files[0], _first_lines(files, num_rows + 1)
    text = b"\n".join([*lines, b""]).replace(b"\r", b" ").decode(errors="replace")
    first_lines = text.split("\n", _LAYOUT_ROWS)[: min(len(lines), _LAYOUT_ROWS)]
    _check_form(first_lines, file.location)
    separator, skip_blanks = _divide(first_lines, file.location)
    first_cells = (cell for line in first_lines for cell in line.split(separator))
    quotes = any(cell.lstrip(" " * skip_blanks).startswith('"') for cell in first_cells)
    quotes |= any(separator in cell for cells in constants for cell in cells.values())
    if quotes:
        _check_quotes(lines[:_LAYOUT_ROWS], LogFormat(separator=separator, quotes=True, trim=skip_blanks), file)
    cells = _all_cells(text, separator, quotes, skip_blanks)
    rows = cells[: MOST_LINES_BEFORE + _LAYOUT_ROWS].to_pylist()
    width = _usual(map(len, rows[:_LAYOUT_ROWS]))[0]
    if starts and _header(rows[: starts[0]][:_LAYOUT_ROWS], width, file.location):
        _check_headers([cells[start].as_py() for start in starts], rows[0], file.location)
    found, first = _header(rows, width, file.location), rows[0]
    header, names = found is not None, found or _numbered(width)
    lines, cells, constants = lines[header:][:num_rows], cells[header:][:num_rows], constants[header:][:num_rows]
    # Columns that the names of folders such as date=2026-11-01 give come after the columns of the lines. A column that
    # the lines have too is not added.
    more = [name for name in constants[0] if name not in names] if constants else []
    ends = np.asarray(cells.offsets)
    widths = np.diff(ends)
    is_row = widths == width
    begins_alike = pc.equal(cells.values.take(ends[:-1][is_row]), names[0])
    names_again = [place for place in np.flatnonzero(is_row)[begins_alike] if cells[place].as_py() == found]
    is_row[names_again] = False
    if not is_row.any():
        raise ValueError(f"{file.location} has a header and no rows to describe")
    # True if a column has no name in the header, or if rows have more or fewer cells than the first line.
    has_others = "" in names or (header and len(first) != width)
    others = "ignored" if has_others else "refused"
    form = {"separator": separator, "header": header, "others": others, "quotes": quotes}
    layout = {key: value for key, value in form.items() if value != getattr(LogFormat(), key)}
    columns = [_column(name, cells.values.take(ends[:-1][is_row] + place)) for place, name in enumerate(names)]
    findings = tuple(_findings(columns, lines, np.flatnonzero(widths != width), names_again, 1 + header))
    if more:
        of_rows = [*itertools.compress(constants, is_row)]
        columns += [_column(name, [each[name] for each in of_rows]) for name in more]
        added = ([each[name] for name in more] for each in constants)
        lines = [line + cells_at_end(end, separator, quotes) for line, end in zip(lines, added, strict=True)]
    columns = [column for column in columns if column.name]
    is_spaced = header and any(name != name.strip(" ") for name in first)
    trim = separator != " " and (skip_blanks or is_spaced or any(map(_has_blanks, columns)))
    layout |= {"trim": True} if trim else {}
    of_file = replace(ONLY_FILE, columns=(*names, *more)) if has_others else ONLY_FILE
    return FirstRows(file.location, columns, layout, b"\n".join(lines) + b"\n", file=of_file, findings=findings)


def _findings(
    columns: list[Column], lines: list[bytes], broken: NDArray[np.int64], names_again: list[int], first: int
) -> Iterator[Finding]:
    """Yield findings about columns without a name, a repeated header, and lines with a wrong number of columns.

    `broken` are the indices in `lines` of the lines with a wrong number of columns, and `names_again` the indices of
    lines that repeat the header. `first` is the number of the first line that is a row, counted from 1.
    """
    for place, column in enumerate(columns):
        if not column.name and any(map(str.strip, column.values)) and not (place == 0 and column.are_integers):
            advice = "to have it, give it one in the first line"
            yield Finding("has no name and is left out", advice, f"column {place + 1}")
    if names_again:
        advice = "remove it there, or it may be read as a row"
        yield Finding("has the names again", advice, f"line {names_again[0] + first:,}")
    if len(broken):
        shown, limit = lines[broken[0]][:_SHOWN].decode(errors="backslashreplace"), PrepareOptions().max_reject_fraction
        yield Finding(
            f"{len(broken):,} of these {len(lines):,} lines have not {len(columns)} columns and will be rejected, such "
            f"as line {broken[0] + first:,}, {shown!r}",
            f"prepare stops above prepare.max_reject_fraction, {limit:.0%} of all lines",
            is_wrong=len(broken) > limit * len(lines),
        )


def _check_headers(rows: list[list[str]], names: list[str], location: str) -> None:
    """Raise ValueError if a later file of the log begins with a header that differs from the header of the first file.

    `names` is the header of the first file, and `rows` are the first rows of the later files. A row counts as a header
    if it contains at least two of `names`, and more than half of them. Upper and lower case count as the same.
    """
    given, lower = {*names}, {name.lower() for name in names}
    least = max(2, len(names) // 2 + 1)
    several = (row for row in rows if row != names and len(lower.intersection(map(str.lower, row))) >= least)
    if other := next(several, None):
        by_name = "describe one file alone, and set others: ignored in its description: columns are then taken by name"
        by_hand = "give all files the same names, or describe and prepare those that have them"
        raise ValueError(
            f"{location} has the columns {', '.join(names)[:200]}, and a later file {', '.join(other)[:200]}; "
            f"{by_name if given <= {*other} else by_hand}"
        )


def _numbered(width: int) -> list[str]:
    criteo = list(LogFormat().columns)
    return criteo if len(criteo) == width else [f"column_{number}" for number in range(1, width + 1)]


def _first_lines(files: Sequence[LogFile], num_lines: int) -> tuple[list[bytes], list[int], list[dict[str, str]]]:
    """Return the first lines of several files, and the indices of the lines with which later files begin.

    The third result has, for each line, the columns and texts that the names of its file's folders give, such as date
    and 2026-11-01. A header that is repeated in each file is included once. A line longer than `MAX_LINE_BYTES` is
    returned as an empty line. Raise ValueError if there are no lines, if all are empty or too long, if lines end in \\r
    alone or contain NUL bytes, or if the lines are JSON objects.
    """
    own = [replace(file, constants=()) for file in files]
    samples = [*sample_log(own, LogFormat(), num_lines + len(files) - 1, estimate_bytes=0)]
    parts = [[] if sample.chunk is None else sample.chunk.lines.split(b"\n")[:-1] for sample in samples]
    of_part = [dict(file.constants) for file, part in zip(files, parts, strict=False) if part]
    parts = [part for part in parts if part]
    parts = [part[part is not parts[0] and part[0] == parts[0][0] :] for part in parts]
    all_lines = list(itertools.chain(*parts))
    file = files[0]
    if len(all_lines) == 1 and b"\r" in all_lines[0].removesuffix(b"\r"):
        raise ValueError(
            f"{file.location}: its lines end in \\r alone, as on an old Mac; lines end in \\n or \\r\\n here. Change "
            "the line ends and describe the new file: tr '\\r' '\\n' < OLD > NEW"
        )
    # A line that is too long is replaced by an empty line, so that the numbers of later lines stay right. The
    # preparation will reject the line.
    lines = [line.removesuffix(b"\r") if len(line) <= MAX_LINE_BYTES else b"" for line in all_lines]
    if not lines:
        raise ValueError(f"{file.location} has no lines to describe")
    if not any(lines):
        raise ValueError(
            f"{file.location}: its first lines are longer than {MAX_LINE_BYTES:,} bytes, the most that a line may "
            "have (or they are empty); keep fewer columns, for example the first 1,000: cut -d, -f1-1000 OLD > NEW"
        )
    if any(b"\0" in line for line in lines[:100]):
        raise ValueError(f"{file.location} holds {NUL_BYTES}")
    if all(line.startswith(b"{") and line.endswith(b"}") for line in lines[:100]):
        raise ValueError(
            f"{file.location} holds JSON; a log with an object a line has a name that ends in .jsonl; rename it"
        )
    constants = [each for each, part in zip(of_part, parts, strict=True) for _ in part]
    return lines, [start for start in itertools.accumulate(map(len, parts)) if start < len(lines)], constants


def _check_form(lines: list[str], location: str) -> None:
    """Raise ValueError if most lines are not divided into columns but have another known form, such as libsvm's.

    The message names the file `location`, and contains a sed command that converts its lines to columns.
    """
    for pattern, (form, expression) in _OTHER_FORMS.items():
        num_alike = sum(bool(re.fullmatch(pattern, line)) for line in lines)
        if num_alike >= _MOST * len(lines) and not all(map(_CLOCK.fullmatch, lines)):
            raise ValueError(
                f"{location}: its lines, such as {lines[-1][:_SHOWN]!r}, are {form}: sed -E '{expression}' OLD > NEW"
            )


def _check_quotes(lines: list[bytes], log_format: LogFormat, file: LogFile) -> None:
    """Raise ValueError if more than a few lines have an opening quote without a closing one.

    A quote is not closed in its line if its cell contains a line end, so that the line is only a part of a row.
    """
    num_bad = sum(b'"' in line and quoted_cells(line, log_format) is None for line in lines)
    if num_bad > _BROKEN * len(lines):
        found = f"{num_bad:,} of its first {len(lines):,} lines have quotes that do not match"
        raise ValueError(f"{file.location}: {found}. {divided_rows(log_format)}")


def _divide(lines: list[str], location: str) -> tuple[str, bool]:
    """Return the separator between the cells of the lines, and whether blanks may stand before an opening quote.

    The separator is the one with which most lines have the same number of columns. If several separators are nearly as
    good, prefer one that divides the first line into the same number of columns as most lines, then the one with more
    columns. This second rule matters if each row has a text with one space in it, because then the space can divide
    more lines evenly than the true separator does. Raise ValueError if no separator divides half of the lines evenly.
    """
    trials: list[tuple[float, bool, int, str, bool]] = []
    for separator in _SEPARATORS + _RARE_SEPARATORS:
        if separator in _RARE_SEPARATORS and any(share >= _MOST_BROKEN for share, *_ in trials):
            break
        skip_blanks = separator != " " and any(f'{separator} "' in line for line in lines)
        widths = [len(row) for row in _cells(lines, separator, True, skip_blanks)]
        width, count = _usual(widths)
        if width > 1:
            trials.append((count / len(widths), widths[0] == width, width, separator, skip_blanks))
    if not trials or max(share for share, *_ in trials) < _MOST_BROKEN:
        raise ValueError(
            f"{location}: no separator divides its lines into columns; tried "
            f"{', '.join(map(repr, _SEPARATORS + _RARE_SEPARATORS))}. The first line is {lines[0][:120]!r}; if "
            r"other characters stand between its cells, put tabs in their place: sed 's/CHARACTERS/\t/g' OLD > NEW"
        )
    most = max(share for share, *_ in trials)
    *_, separator, skip_blanks = max((each for each in trials if each[0] >= most - _BROKEN), key=lambda each: each[1:3])
    return separator, skip_blanks


def _usual(widths: Iterable[int]) -> tuple[int, int]:
    return Counter(widths).most_common(1)[0]


def _all_cells(text: str, separator: str, quotes: bool, skip_blanks: bool) -> pa.ListArray:
    """Return the cells of the lines in `text` as an Arrow array, which has one list of texts (the cells) for each line.

    Each line ends with a line end.

    The cells are divided by `separator`. If `quotes` is True, a cell may be in double quotes, and if `skip_blanks` is
    True, blanks may stand before such a quote.
    """
    import pyarrow as pa

    # Search the bytes of all lines at once, which takes a third of the time of a search in each line.
    characters = np.frombuffer(encoded := text.encode(), np.uint8)
    ends = np.flatnonzero((characters == ord("\n")) | (characters == ord(separator)))
    row_ends = np.flatnonzero(characters[ends] == ord("\n")) + 1
    ends -= np.arange(len(ends))  # The places in the characters without separators and line ends.
    buffers = pa.py_buffer(np.append(0, ends)), pa.py_buffer(encoded.translate(None, f"\n{separator}".encode()))
    cells = pa.LargeStringArray.from_buffers(len(ends), *buffers)
    cells = pa.ListArray.from_arrays(pa.array(np.append(0, row_ends), pa.int32()), cells)
    lines = text.split("\n") if quotes else []
    quoted = [place for place, line in enumerate(lines) if '"' in line]
    if not quoted:
        return cells
    of_quoted = pa.array(_cells((lines[place] for place in quoted), separator, quotes, skip_blanks), cells.type)
    order = np.arange(len(cells))
    order[quoted] = len(cells) + np.arange(len(quoted))
    return pa.concat_arrays([cells, of_quoted]).take(order)


def _cells(lines: Iterable[str], separator: str, quotes: bool, skip_blanks: bool) -> Iterable[list[str]]:
    """Yield a list with the cells of each line, in which the cells are divided by `separator`.

    If `quotes` is True, a cell may be in double quotes, and if `skip_blanks` is True, blanks may stand before such a
    quote.
    """
    # Every line is split into cells separately, as in the preparation. If csv.reader got all lines together, a quote
    # that is not closed would join several lines to one row.
    how: dict[str, Any] = {"delimiter": separator, "skipinitialspace": skip_blanks}
    for line in lines:
        yield next(csv.reader([line], **how)) if quotes and '"' in line else line.split(separator)


def _header(rows: list[list[str]], width: int, location: str) -> list[str] | None:
    """Return the names of the columns if the first line is a header, or None if it is a row.

    `rows` are the cells of the first lines of the file `location`, and `width` is the number of cells that most lines
    have. A column without a name gets the name "". Raise ValueError if other lines stand before the header, if the
    header contains a name twice, or if it has one name fewer than the rows have cells.
    """
    names: list[str] = []
    for place, first in enumerate(rows[:MOST_LINES_BEFORE]):
        body = [row for row in rows[place + 1 : place + 1 + _LAYOUT_ROWS] if len(row) == width]
        names = columns_of_header([name.strip(" ") for name in first], body[0] if body else first)
        after = [body[at + 1 :] for at, row in enumerate(body[:2]) if row != names and _is_header(row, body[at + 1 :])]
        is_title = after and (2 * sum(map(bool, names)) < len(names) or _is_header(names, after[0]))
        if len(names) == width and not is_title:
            break
    if not _is_header(names, body):
        if _is_header(["", *(first := rows[0])], [row for row in rows[1:_LAYOUT_ROWS] if len(row) == width]):
            raise ValueError(
                f"{location}: its rows have {width} cells and its line of names {len(first)}, as R writes it; name "
                "the first column too, as by sed '1s/^/row,/' OLD > NEW if commas separate"
            )
        return None
    if place:
        raise ValueError(
            f"{location}: the names of its columns ({', '.join(names)[:_SHOWN]}) stand in line {place + 1}; remove the "
            f"lines before them, such as {'…'.join(rows[0])[:_SHOWN]!r}: tail -n +{place + 1} OLD > NEW. If that one "
            f"names them, and line {place + 1} their types or units, remove this one: sed {place + 1}d OLD > NEW"
        )
    if twice := [name for name, times in Counter(names).items() if name and times > 1]:
        raise ValueError(f"{location}: its header names {twice[0]!r} twice; give each column a name of its own")
    return names


def _is_header(names: list[str], rows: list[list[str]]) -> bool:
    """Return True if `names`, the cells of a line, are the names of the columns of `rows`, and False if they are a row.

    A name that has another form than the cells below it, such as a word above numbers, is evidence that the line is a
    header. A name that occurs among the cells below it is evidence that the line is a row. Names may be numbers or
    empty.
    """
    # Copies of the header among the rows, for example at the starts of later files, are removed, because they say
    # nothing about the cells below the header.
    rows = [row for row in rows if row != names]
    given = [name for name in names if name.strip()]
    if not rows or len(names) != len(rows[0]):
        return not rows and not any(map(DECIMAL.fullmatch, given))
    words, others, repeated = 0, 0, []
    for name, cells in zip(map(str.strip, names), zip(*rows, strict=True), strict=True):
        filled = {cell.strip(" ") for cell in cells if not _NOTHING.fullmatch(cell)}
        if name in filled:
            repeated.append(name)
        elif filled and not _NOTHING.fullmatch(name):
            is_number = bool(DECIMAL.fullmatch(name))
            words += not is_number and _are_nearly_all(DECIMAL, cells)
            others += not _DIGIT.fullmatch(name) and _are_nearly_all(_DIGIT, cells)
            others += is_number and not any(map(DECIMAL.fullmatch, filled))
    if len(given) >= _LEAST_PLACES - bool(others) and given[:-1] == [str(place) for place in range(len(given) - 1)]:
        # pandas names the columns of an array 0, 1, 2 … if they have no other names.
        return others > 0 or 2 * len(repeated) <= len(given)
    if len({*given}) < len(given) and repeated:
        return False
    if words or others:
        numbers = [float(name) for name in repeated if DECIMAL.fullmatch(name)]
        are_places = len(numbers) > 2 and numbers == list(np.arange(len(numbers)) + numbers[0])
        num_repeated = len(repeated) - len(numbers) * are_places
        return words + others > num_repeated or 0 < words == num_repeated
    is_numbered = all(INTEGER.fullmatch(row[0]) for row in rows)
    return not (repeated or any(map(DECIMAL.fullmatch, given)) or not all(map(str.strip, names[is_numbered:])))


def _are_nearly_all(form: re.Pattern[str], cells: Iterable[str]) -> bool:
    """Return True if nearly all cells match the regular expression `form`.

    Empty cells and words such as NULL do not count.
    """
    filled = [cell.strip(" ") for cell in cells if not _NOTHING.fullmatch(cell)]
    return sum(not form.fullmatch(cell) for cell in filled) <= _SLIPS * len(filled)


def _column(name: str, cells: Sequence[str] | pa.Array) -> Column:
    import pyarrow as pa

    encoded = pa.array(cells, pa.large_string()).dictionary_encode()
    return Column(name, np.asarray(encoded.indices).astype(np.int64), encoded.dictionary.to_pylist())


def _has_blanks(column: Column) -> bool:
    """Return True if the preparation should remove blanks around the cells of a column.

    This is the case if some cell consists of blanks only, or if more than a few cells begin or end with blanks.
    """
    spaced = [value for value in column.values if value != value.strip(" ")]
    slips = 0.001 * len(column.codes) + 2
    return any(value and not value.strip(" ") for value in spaced) or column.count_of(spaced) > slips


def _read_tables(files: Sequence[LogFile], num_rows: int) -> FirstRows:
    """Read the first rows of several files that are tables, such as Parquet files, and combine them into one table.

    If the types of a file's columns cannot be combined with those of the first file (text and numbers, for example),
    the rows of the file are left out and a finding names the file.
    """
    import pyarrow as pa

    each, location = -(-num_rows // len(files)), files[0].location
    of = format_of(location).reader()
    whole, *others = (of.first_rows(file, each, _MOST_FILES // len(files)) for file in files)
    left_out = []
    for file, table in zip(files[1:], others, strict=True):
        try:
            whole = pa.concat_tables([whole, table], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            left_out.append(f"{file.name} ({first_line(error)})")
    what = f"not looked at, as the types of their columns differ from {files[0].name}: {'; '.join(left_out)[:500]}"
    return replace(_of_table(location, whole.slice(0, num_rows)), findings=(Finding(what),) if left_out else ())


def _of_table(location: str, table: pa.Table) -> FirstRows:
    import pyarrow as pa

    if not table.num_rows:
        raise ValueError(f"{location} has no rows to describe")
    if table.num_rows == 1 and all(map(pa.types.is_struct, table.schema.types)):
        raise ValueError(
            f"{location} has one object with all rows, as pandas writes by default; write an object for each row: "
            "frame.to_json(NEW, orient='records', lines=True)"
        )
    # If a pandas DataFrame was stored with its index, the index is a column of the table. The index is removed, because
    # data frames that are scored later do not have it as a column.
    index = (table.schema.pandas_metadata or {}).get("index_columns", ())
    table = table.drop_columns([name for name in table.column_names if name in index or name.startswith("__index_")])
    columns = [_of_arrow(name, table.column(name)) for name in table.column_names]
    # A table has no lines of text. The layout describes a CSV file with the same columns as the table, so that a model
    # trained on the table can also score such a file.
    layout: dict[str, Any] = {"separator": ",", "header": True, "quotes": True}
    layout |= {"trim": True} if any(map(_has_blanks, columns)) else {}
    return FirstRows(location, columns, layout, table=table)


def _of_arrow(name: str, cells: pa.ChunkedArray) -> Column:
    """Convert a column of an Arrow table to a `Column`.

    If a cell is a list, its values are joined with tabs to one text.
    """
    import pyarrow as pa

    from data_prep.raw_log.arrow_to_text import cells_as_text, decoded, is_list

    if is_list(cells.type) and pa.types.is_floating(cells.type.value_type):
        column = _of_vectors(name, cells.combine_chunks())
        if column is not None:
            return column
    # Decode Arrow dictionaries, which may contain values that occur in no row.
    encoded = decoded(cells.combine_chunks())
    try:
        encoded = encoded.dictionary_encode()
        cells_of_values = cells_as_text(encoded.dictionary, "float", b"\n")
        texts = [text.decode(errors="replace") for text in cells_of_values.to_pylist()]
        places = np.asarray(encoded.indices.fill_null(-1)).astype(np.int64)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # Arrow cannot encode lists and structs as dictionaries.
        column = _column(name, [cell_text(value) for value in encoded.to_pylist()])
        return replace(column, of_type=cells.type)
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(text, len(numbers)) for text in texts]
    return Column(name, np.array([*codes, -1])[places], list(numbers), cells.type)


def _of_vectors(name: str, cells: pa.Array) -> Column | None:
    """Convert an Arrow column of lists of floats to a `Column` that has the `lengths` of these lists.

    Return None if all floats in the first lists are whole, because the lists may then be lists of ids.
    """
    from data_prep.raw_log.arrow_to_text import list_numbers

    first = cells.drop_null()[:_LISTS_LOOKED_AT]
    numbers = list_numbers(first)[1]
    if not (numbers[np.isfinite(numbers)] % 1).any():
        return None
    lengths, numbers = list_numbers(cells)
    bad = np.flatnonzero(~np.isfinite(numbers))
    lengths[np.searchsorted(np.cumsum(lengths), bad, side="right")] = -1
    return Column(name, np.where(lengths == 0, -1, 0), [str(first[0].as_py())], cells.type, lengths)


def cell_text(value: Any) -> str:
    """Return `value`, a cell in an Arrow column of lists or structs, as text. A missing value (None or NaN) becomes "".

    The values of a list are joined with tabs.
    """
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, list):
        return "\t".join(map(cell_text, value))
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(int(value)) if isinstance(value, (float, Decimal)) and value % 1 == 0 else str(value)
