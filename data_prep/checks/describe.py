"""`describe`: propose the description of a log that the project has never seen, as a YAML file for `--data`.

It reads the first rows, finds separator, header, quotes and words for missing cells, and guesses each column's kind. A
guess is written with its reason, so that it can be corrected.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from data_prep.checks.pre_check import columns_of, leaking_columns
from data_prep.kernels.choose import choose_kernels
from data_prep.kernels.rows import MAX_LINE_BYTES, ONLY_FILE, Chunk, FileOfLog
from data_prep.options.log_format import MAX_LIST_LENGTH, Kind, ListForm, LogFormat, time_text
from data_prep.raw_log.files import LogFile, find_log, is_parquet
from data_prep.raw_log.reading import open_reader

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_ROWS = 100_000
_SEPARATORS = "\t,;|\x01 "
_MISSING_WORDS = ("NULL", "null", r"\N", "NA", "N/A", "NaN", "nan", "None", "none")
# Cells of a click and of no click, in the order in which a label is looked for.
_LABELS = (
    *(("1", "0"), ("1.0", "0.0"), ("true", "false"), ("True", "False"), ("TRUE", "FALSE")),
    *(("yes", "no"), ("Yes", "No"), ("Y", "N"), ("1", "-1")),
)
_LABEL_NAMES = re.compile(
    r"(is[_ ]?)?(label|click(ed|s)?|clk|target|y|conver(sion|ted)|response|outcome)", re.IGNORECASE
)
_CODE_NAMES = re.compile(
    r"((^|[_ -])(id|ids|type|code|cat|category|class|group|hour|day|weekday|month|zip|user|item|product|brand|ad|"
    r"campaign|creative|advertiser|publisher|placement|site|app|page|device)|(?-i:[a-z]I[dD]))$",
    re.IGNORECASE,
)
_INTEGER, _HEX = re.compile(r"-?[0-9]{1,18}"), re.compile("[0-9a-f]{8}")
_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?inf")
_ENOUGH = 1_000  # rows from which a share of distinct values means something
_UNIQUE = 0.99  # of the rows: a new value in nearly every one
_FEW_CODES = 50  # whole numbers with so few values, some of them large, are codes
_SHOWN = 3
_RATING_NAMES = re.compile(r"(user[_ ]?)?(rating|stars?|score)", re.IGNORECASE)
_TIME_NAMES = re.compile(r"(^|[_ -])(time|timestamp|ts|date|datetime|at|when|seen|day)$", re.IGNORECASE)
_GROUP_NAMES = re.compile(r"(^|[_ -])(user|session|query|request|visit|visitor)([_ -]?id)?$", re.IGNORECASE)
_TIME_FORMS = (
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%dT%H:%M:%SZ",
    "%Y-%m-%d %H:%M:%S.%f",
    "%Y-%m-%dT%H:%M:%S.%f",
    "%Y-%m-%dT%H:%M:%S.%fZ",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d",
    "%Y/%m/%d %H:%M:%S",
    "%d/%m/%Y %H:%M:%S",
    "%d/%m/%Y",
)
_OFFSET = re.compile(r"[+-][0-9]{2}:?[0-9]{2}$")  # from UTC, at the end of a time: the same in all rows
_PLAUSIBLE = range(10**12 * 6 // 10, 10**12 * 41 // 10)  # milliseconds: 1989 to 2099
_LIST_SEPARATORS = "|;, "
_BROKEN = 0.02  # of the lines, at most, have another number of columns, or a cell that is none of its column
_LISTS = 0.2  # of the cells, at least, have several values


@dataclass(frozen=True)
class _Guess:
    name: str
    kind: Kind
    reason: str
    form: str = ""  # of a timestamp
    list_form: ListForm | None = None


@dataclass(frozen=True)
class _Sample:
    """First rows of a log as text cells, column by column."""

    names: list[str]
    columns: list[list[str]]
    layout: dict[str, Any]  # separator, header, quotes: fields of LogFormat that are not its defaults
    lines: bytes  # the same rows as a chunk's lines; empty for a Parquet file
    file: FileOfLog = ONLY_FILE
    known: dict[str, _Guess] = field(default_factory=dict)  # by column of a Parquet file: what its type says


def describe(inputs: str | Sequence[str], num_rows: int = DEFAULT_ROWS) -> str:
    """Return the proposed description of a log as YAML with comments.

    Raises FileNotFoundError and ValueError as `find_log` and `open_log`, and ValueError for a log without rows or
    columns.
    """
    if num_rows < 1:
        raise ValueError(f"describe needs at least 1 row to look at; found --rows {num_rows}")
    file = find_log(inputs)[0]
    sample = _read_table(file, num_rows) if is_parquet(file.location) else _read_lines(file, num_rows)
    missing = _missing_words(sample.columns)
    labels, words = _label_columns(sample, missing)
    rule = "" if labels and _LABEL_NAMES.fullmatch(labels[0]) else _label_rule(sample, missing, labels)
    separator = sample.layout.get("separator", LogFormat().separator)
    guesses = [
        sample.known.get(name) or _guess(name, cells, missing, labels, separator)
        for name, cells in zip(sample.names, sample.columns, strict=True)
    ]
    log_format = _as_format(sample, guesses, missing, words, rule)
    comments = [f"Proposed from the first {len(sample.columns[0]):,} rows of {file.location}; please check it."]
    if log_format is not None and sample.lines:
        guesses, num_good = _without_leaks(sample, guesses, log_format)
        comments.append(f"{num_good:,} of these rows are good by this description.")
    comments += _label_comments(labels, len(sample.names))
    if broken := sum("\N{REPLACEMENT CHARACTER}" in "".join(row) for row in zip(*sample.columns, strict=True)):
        comments.append(
            f"{broken:,} of these rows are not valid UTF-8 and will be rejected: convert the log, as with iconv."
        )
    return _as_yaml(sample, guesses, missing, words, rule, comments)


def _read_lines(file: LogFile, num_rows: int) -> _Sample:
    wanted, parts, num_lines = num_rows + 1, [], 0
    with open_reader(file, LogFormat()) as reader:
        for task, _ in reader.chunks(1 << 20):
            parts.append(task.load().lines)
            num_lines += task.num_lines
            if num_lines >= wanted:
                break
    first_lines = b"".join(parts).split(b"\n")[:-1][:wanted]
    lines = [line.removesuffix(b"\r") for line in first_lines if len(line) <= MAX_LINE_BYTES]  # others are rejected
    if not lines:
        raise ValueError(f"{file.location} has no lines to describe")
    if any(b"\0" in line for line in lines[:100]):
        raise ValueError(f"{file.location} holds NUL bytes: it is no text, or it is UTF-16; convert it to UTF-8")
    if all(line.startswith(b"{") and line.endswith(b"}") for line in lines[:100]):
        raise ValueError(f"{file.location} holds JSON; a log is text with separators or Parquet: convert it")
    text = [line.decode("utf-8", errors="replace") for line in lines]
    separator, rows = _divide(text, file.location)
    header = _is_header(rows)
    if header and (twice := [name for name, times in Counter(rows[0]).items() if times > 1]):
        raise ValueError(f"{file.location}: its header names {twice[0]!r} twice; give each column a name of its own")
    kept = rows[header:][:num_rows]
    criteo, numbered = list(LogFormat().columns), [f"column_{number}" for number in range(1, len(rows[0]) + 1)]
    names = rows[0] if header else criteo if len(criteo) == len(numbered) else numbered
    if not kept:
        raise ValueError(f"{file.location} has a header and no rows to describe")
    quotes = any(cell.startswith('"') for line in text[:_ENOUGH] for cell in line.split(separator))
    first = int(not names[0])  # the numbers of the rows, as pandas writes them, have no name
    others = "ignored" if first else "refused"
    given = {"separator": separator, "header": header, "others": others, "quotes": quotes}
    layout = {key: value for key, value in given.items() if value != getattr(LogFormat(), key)}
    columns = [list(column) for column in zip(*kept, strict=True)][first:]
    of_file = replace(ONLY_FILE, columns=tuple(names)) if first else ONLY_FILE
    return _Sample(names[first:], columns, layout, b"\n".join(lines[header:][:num_rows]) + b"\n", of_file)


def _divide(lines: list[str], location: str) -> tuple[str, list[list[str]]]:
    """Return the separator by which most lines have the same number of columns, and the cells of those lines.

    Where two are nearly alike in that, the one that divides the first line so too, then the one of more columns: a text
    in each row may have a space more often than a row is whole.
    """
    found: list[tuple[float, bool, int, str]] = []
    for separator in _SEPARATORS:
        rows = _cells(lines, separator)
        width, count = Counter(map(len, rows)).most_common(1)[0]
        if width > 1:
            found.append((count / len(rows), len(rows[0]) == width, width, separator))
    if not found:
        raise ValueError(
            f"{location}: no separator divides its lines into columns; tried {', '.join(map(repr, _SEPARATORS))}. The "
            f"first line is {lines[0][:120]!r}"
        )
    most = max(share for share, *_ in found)
    _, _, width, separator = max((each for each in found if each[0] >= most - _BROKEN), key=lambda each: each[1:3])
    return separator, [row for row in _cells(lines, separator) if len(row) == width]


def _cells(lines: list[str], separator: str) -> list[list[str]]:
    # Each line alone, as in the preparation: a quote that is never closed must not join the lines after it.
    return [next(csv.reader([line.replace("\r", " ")], delimiter=separator)) for line in lines]


def _is_header(rows: list[list[str]]) -> bool:
    """Return True if the first row holds names: none is a number, and no column has its name as a value.

    The first may be empty, above the numbers of the rows.
    """
    names = rows[0]
    is_numbered = len(rows) > 1 and [row[0] for row in rows[1:3]] == ["0", "1"][: len(rows) - 1]
    if not all(names[is_numbered:]) or any(_DECIMAL.fullmatch(name) for name in names):
        return False
    return not any(name in column for name, *column in zip(*rows[: _ENOUGH + 1], strict=True))


def _read_table(file: LogFile, num_rows: int) -> _Sample:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from data_prep.raw_log import storage
    from data_prep.raw_log.parquet import naming_damage

    with storage.open_random(file.location) as stored, naming_damage(file.location), pq.ParquetFile(stored) as table:
        batches = list(itertools.islice(table.iter_batches(num_rows), 1))
        rows = pa.Table.from_batches(batches, table.schema_arrow)
    if not rows.num_rows:
        raise ValueError(f"{file.location} has no rows to describe")
    columns = [column.to_pylist() for column in rows.columns]
    found = [_of_type(*each) for each in zip(rows.column_names, rows.schema.types, columns, strict=True)]
    cells = [[_cell(value) for value in column] for column in columns]
    return _Sample(rows.column_names, cells, {}, b"", known={guess.name: guess for guess in found if guess})


def _of_type(name: str, of_type: pa.DataType, values: list[Any]) -> _Guess | None:
    """Return what the type of a column of a Parquet file says of it: times and lists; None of the others."""
    from data_prep.raw_log.parquet import is_list, is_moment, is_readable

    if not is_readable(of_type, "list" if is_list(of_type) else "string"):
        return _Guess(name, "ignored", f"of type {of_type}")
    distinct = list(dict.fromkeys(_cell(value) for value in values if value is not None))
    if len(distinct) < 2:
        return None
    shown = ", ".join(distinct[:_SHOWN])
    if is_moment(of_type):
        return _Guess(name, "timestamp", f"times: {shown}, …", "milliseconds")
    if not is_list(of_type):
        return None
    lists = [[_cell(value) for value in each] for each in values if each]
    texts = {text for each in lists for text in each}
    between = next((mark for mark in _LIST_SEPARATORS if not any(mark in text for text in texts)), "|")
    longest = min(max(map(len, lists), default=1), MAX_LIST_LENGTH)
    return _Guess(name, "list", f"{len(texts):,} values: {shown}", list_form=ListForm(between, longest))


def _cell(value: Any) -> str:
    """Return a value as the text that the preparation makes of it."""
    if value is None or value != value:
        return ""
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(int(value)) if isinstance(value, (float, Decimal)) and value % 1 == 0 else str(value)


def _missing_words(columns: list[list[str]]) -> tuple[str, ...]:
    """Return the words that stand for a missing cell: in the place of numbers, or in more than one column."""
    places: Counter[str] = Counter()
    for cells in columns:
        distinct = set(cells)
        words = distinct.intersection(_MISSING_WORDS)
        others = distinct - words - {""}
        is_number = bool(others) and all(_DECIMAL.fullmatch(c) or _HEX.fullmatch(c) for c in others)
        places.update(dict.fromkeys(words, 2 if is_number else 1))
    return tuple(word for word in _MISSING_WORDS if places[word] > 1)


def _label_columns(sample: _Sample, missing: tuple[str, ...]) -> tuple[list[str], tuple[str, str]]:
    """Return the columns that may be the label, the likeliest first, and the cells of a click and of no click."""
    found: list[tuple[bool, str, tuple[str, str]]] = []
    for name, cells in zip(sample.names, sample.columns, strict=True):
        counts = Counter(cell for cell in cells if cell and cell not in missing)
        is_named = bool(_LABEL_NAMES.fullmatch(name))
        # Rows with another cell in the label are rejected; a column of another name rather is no label.
        words = _label_words(counts, (1 - _BROKEN if is_named else 1) * counts.total())
        if words is not None:
            found.append((not is_named, name, words))
    found.sort(key=lambda candidate: candidate[0])  # stable: the log's order otherwise
    return [name for _, name, _ in found], found[0][2] if found else _LABELS[0]


def _label_words(counts: Counter[str], least: float) -> tuple[str, str] | None:
    """Return the words that are `least` of a column's cells together."""
    for pair in _LABELS:
        numbers = [counts[word] for word in pair]
        if all(numbers) and sum(numbers) >= least:
            return pair
    return None


def _label_rule(sample: _Sample, missing: tuple[str, ...], labels: list[str]) -> str:
    """Return the rule by which a column of ratings or counts is the label, put before `labels`; "" if there is none."""
    for name, cells in zip(sample.names, sample.columns, strict=True):
        present = [cell for cell in cells if cell and cell not in missing]
        values = Counter(present)
        if len(values) < 3:
            continue
        if _LABEL_NAMES.fullmatch(name) and "0" in values and all(map(_INTEGER.fullmatch, values)):
            labels.insert(0, name)
            return ">= 1"
        if _RATING_NAMES.fullmatch(name) and len(values) <= _FEW_CODES and all(map(_DECIMAL.fullmatch, values)):
            labels.insert(0, name)
            below = 0
            for value in sorted(values, key=float):
                below += values[value]
                if 2 * below > len(present):  # the median
                    return f">= {value}"
    return ""


def _time_form(name: str, counts: Counter[str]) -> str:
    """Return how the times of a column are written; "" if they are none, or may be other numbers."""
    if all(map(_INTEGER.fullmatch, counts)):
        for form, unit in (("seconds", 1000), ("milliseconds", 1)):
            if all(int(value) * unit in _PLAUSIBLE for value in counts) and (unit == 1 or _TIME_NAMES.search(name)):
                return form
    few = list(itertools.islice(counts, _ENOUGH))
    offset = _OFFSET.search(few[0])
    forms = (*_TIME_FORMS, *(f"{form}{offset[0]}" for form in _TIME_FORMS if offset))
    return next((form for form in forms if all(_is_time(value, form) for value in few)), "")


def _is_time(value: str, form: str) -> bool:
    try:
        moment = datetime.strptime(value, form)
    except ValueError:
        return False
    return time_text((moment - datetime(1970, 1, 1)) // timedelta(milliseconds=1), form) == value


def _list_form(counts: Counter[str], separator: str) -> ListForm | None:
    """Return the form of a column of lists: cells of several values, of which there are far fewer than cells."""
    for between in _LIST_SEPARATORS.replace(separator, ""):
        lists = [value.split(between) for value in counts]
        with_several = sum(counts[value] for value in counts if between in value)
        values = {part for parts in lists for part in parts}
        if with_several < _LISTS * counts.total() or max(map(len, lists)) < 2:
            continue
        if 2 * len(values) <= len(counts) and (between != " " or all(re.fullmatch(r"[\w-]+", v) for v in values)):
            return ListForm(between, min(max(map(len, lists)), MAX_LIST_LENGTH))
    return None


def _guess(name: str, cells: list[str], missing: tuple[str, ...], labels: list[str], separator: str) -> _Guess:
    present = [cell for cell in cells if cell and cell not in missing]
    counts = Counter(present)
    is_unique = len(cells) >= _ENOUGH and len(counts) > _UNIQUE * len(cells)
    shown = ", ".join(repr(value)[1:-1][:24] for value, _ in counts.most_common(_SHOWN))
    of = f"{len(counts):,} values: {shown}{', …' if len(counts) > _SHOWN else ''}"
    if labels and name == labels[0]:
        return _Guess(name, "label", of)
    if not counts:
        return _Guess(name, "ignored", "missing in all rows")
    if len(counts) == 1:
        return _Guess(name, "ignored", f"one value only: {shown}")
    if all(map(_HEX.fullmatch, counts)) and not all(map(_INTEGER.fullmatch, counts)):
        return _Guess(name, "hex32", of)
    if form := _time_form(name, counts):
        return _Guess(name, "timestamp", f"times, as they are written: {shown}, …", form)
    if all(map(_INTEGER.fullmatch, counts)):
        return _guess_integer(name, counts, is_unique, of)
    if all(map(_DECIMAL.fullmatch, counts)) and not all(map(str.isdigit, counts)):
        return _Guess(name, "float", of)
    if list_form := _list_form(counts, separator):
        return _Guess(name, "list", of, list_form=list_form)
    if is_unique:
        return _Guess(name, "ignored", f"a new value in nearly every row: {shown}, …")
    return _Guess(name, "string", _with_group(name, of) + _nearly(counts))


def _nearly(counts: Counter[str]) -> str:
    """Return the kind that nearly all cells of a column have, as a remark with the first of the others."""
    for kind, pattern in (("integer", _INTEGER), ("float", _DECIMAL), ("hex32", _HEX)):
        others = Counter({value: count for value, count in counts.items() if not pattern.fullmatch(value)})
        if 0 < others.total() <= _BROKEN * counts.total():
            shown = ", ".join(repr(value)[1:-1][:24] for value, _ in others.most_common(_SHOWN))
            return f"; {kind} in all cells but {others.total():,}: {shown}"
    return ""


def _with_group(name: str, of: str) -> str:
    return f"{of}; id if it is no feature, but metrics are grouped by it" if _GROUP_NAMES.search(name) else of


def _guess_integer(name: str, counts: Counter[str], is_unique: bool, of: str) -> _Guess:
    """Tell numbers from codes: a model may scale numbers, and looks codes up."""
    numbers = [int(value) for value in counts]
    is_code = bool(_CODE_NAMES.search(name)) or (len(counts) <= _FEW_CODES and max(map(abs, numbers)) > 1_000)
    if is_unique and (is_code or max(numbers) - min(numbers) > 100 * len(numbers) or min(numbers) > 10**6):
        return _Guess(name, "ignored", "a new number in nearly every row: an identifier, or a time")
    if is_code:
        return _Guess(name, "string", _with_group(name, f"{of}; integer if it is an amount"))
    return _Guess(name, "integer", f"{of}; string if these are codes")


def _as_format(
    sample: _Sample, guesses: list[_Guess], missing: tuple[str, ...], words: tuple[str, str], rule: str
) -> LogFormat | None:
    """Return the description as the preparation would read it; None if a label or a category is still to be named."""
    columns: dict[str, Kind] = {guess.name: guess.kind for guess in guesses}
    if "label" not in columns.values() or not {"hex32", "string", "list", "timestamp"} & set(columns.values()):
        return None
    clicks: dict[str, Any] = {"clicked": rule} if rule else {"clicked": words[:1], "not_clicked": words[1:]}
    return LogFormat(columns=columns, missing=missing, **clicks, **_forms(guesses), **sample.layout)


def _forms(guesses: list[_Guess]) -> dict[str, Any]:
    """Return the forms of times and lists, as fields of LogFormat."""
    timestamps = {guess.name: guess.form for guess in guesses if guess.kind == "timestamp"}
    lists = {guess.name: guess.list_form for guess in guesses if guess.kind == "list"}
    return {name: forms for name, forms in (("timestamps", timestamps), ("lists", lists)) if forms}


def _without_leaks(sample: _Sample, guesses: list[_Guess], log_format: LogFormat) -> tuple[list[_Guess], int]:
    """Ignore the columns that predict the label by themselves; return the guesses and the number of good rows."""
    chunk = Chunk(0, sample.lines.count(b"\n"), sample.lines, sample.file)
    rows = choose_kernels("auto").parse_chunk(chunk, log_format).rows
    leaks = dict(leaking_columns(columns_of([rows], log_format), rows.labels)) if len(rows.labels) else {}
    reason = "predicts the label by itself (AUC {:.3f}): made from it, or known only after the click"
    ignored = [
        replace(guess, kind="ignored", reason=reason.format(leaks[guess.name])) if guess.name in leaks else guess
        for guess in guesses
    ]
    return ignored, len(rows.labels)


def _label_comments(labels: list[str], num_columns: int) -> list[str]:
    if not labels:
        return [f"No column of the {num_columns} has two values such as 0 and 1: give one the kind label."]
    if len(labels) > 1:
        return [f"The label is taken to be {labels[0]}; it may also be {', '.join(labels[1:])}."]
    return []


def _as_yaml(
    sample: _Sample,
    guesses: list[_Guess],
    missing: tuple[str, ...],
    words: tuple[str, str],
    rule: str,
    comments: list[str],
) -> str:
    settings: dict[str, Any] = dict(sample.layout)
    if missing:
        settings["missing"] = list(missing)
    if rule:
        settings["clicked"] = rule
    elif words != _LABELS[0]:
        settings |= {"clicked": [words[0]], "not_clicked": [words[1]]}
    for name, forms in _forms(guesses).items():
        settings[name] = {
            column: asdict(form) if isinstance(form, ListForm) else form for column, form in forms.items()
        }
    lines = [f"# {comment}" for comment in comments]
    lines += yaml.safe_dump(settings, allow_unicode=True, sort_keys=False).splitlines() if settings else []
    lines.append("columns:")
    entries = [yaml.safe_dump({guess.name: guess.kind}, allow_unicode=True).strip() for guess in guesses]
    width = min(max(map(len, entries)), 40)
    lines += [f"  {entry:{width}}  # {guess.reason}" for entry, guess in zip(entries, guesses, strict=True)]
    return "\n".join(lines) + "\n"
