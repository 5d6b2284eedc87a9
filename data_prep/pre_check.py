"""`pre-check`: the first rows of a log judged in seconds, before hours are spent on all of them.

It tells what each column holds beside what is known of Criteo's log, what is wrong (the preparation would fail, or a
model learn nothing) and what is odd. MindSpore is not needed.

Letters: n rows, N numeric fields, C categorical fields.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.axes import number_text
from data_prep.criteo import CATEGORICAL_FIELDS, NUM_COLUMNS, NUMERIC_FIELDS, Chunk, LogRows
from data_prep.kernels import choose_kernels
from data_prep.log_files import find_log
from data_prep.log_sample import FileSample, sample_log
from data_prep.options import PrepareOptions

DEFAULT_ROWS = 100_000
FACTS_PATH = Path(__file__).parents[1] / "configs" / "data" / "criteo_facts.json"
_SEPARATORS = {b",": "a comma", b";": "a semicolon", b"|": "a bar", b"\x01": "byte 1 (Ctrl-A)", b" ": "a space"}
_EXAMPLE_BYTES = 120
_FEW_ROWS = 1_000  # below, shares are too uncertain to be judged
_NUMBER_TEXT = b"+-.0123456789eE"


@dataclass
class Findings:
    """What is wrong, so that `prepare` would fail or be in vain; and what is odd, which may be right."""

    wrong: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Column:
    """A field in the rows that were looked at; `expected_*` are of Criteo's whole log."""

    name: str
    missing: float
    distinct: int
    smallest: int | None  # of integers
    largest: int | None
    expected_missing: float
    expected_range: tuple[int, int] | None


def pre_check(inputs: str | Path | Sequence[str | Path], num_rows: int = DEFAULT_ROWS) -> Findings:
    """Look at the first rows, print what they hold, and return what is wrong and odd.

    Raises FileNotFoundError and ValueError as `find_log` and `open_log`, ValueError where num_rows is below 1.
    """
    if num_rows < 1:
        raise ValueError(f"pre-check needs at least 1 row to look at; found --rows {num_rows}")
    files = find_log(inputs)
    samples = list(sample_log(files, num_rows))
    findings = Findings()
    chunks = [sample.chunk for sample in samples if sample.chunk is not None]
    if not chunks:
        findings.wrong.append("there are no lines: the log is empty")
        return findings
    parsed = [choose_kernels("auto").parse_chunk(chunk) for chunk in chunks]
    rejects: Counter[str] = sum((part.rejects_by_reason for part in parsed), Counter())
    rows = _concatenate([part.rows for part in parsed])
    num_lines = sum(chunk.num_lines for chunk in chunks)
    _print_size(samples, num_lines, len(rows.labels))
    if rejects:
        _judge_rejects(rejects, b"".join(part.rejects_tsv for part in parsed), chunks, num_lines, findings)
    if len(rows.labels):
        columns = _columns(rows)
        _print_columns(columns)
        _judge_labels(rows, findings)
        _judge_columns(columns, rows, findings)
        _judge_order(rows, findings)
    _judge_duplicates(chunks, findings)
    return findings


def print_findings(findings: Findings) -> None:
    """Each in a line of its own."""
    for title, listed in (("wrong", findings.wrong), ("odd", findings.odd)):
        for text in listed:
            print(f"{title}: {text}")
    if not findings.wrong and not findings.odd:
        print("nothing is wrong or odd with these rows")


def _concatenate(parts: Sequence[LogRows]) -> LogRows:
    return LogRows(
        *(np.concatenate(arrays, axis=-1) for arrays in zip(*(vars(part).values() for part in parts), strict=True))
    )


def _print_size(samples: Sequence[FileSample], num_lines: int, num_rows: int) -> None:
    total = sum(sample.file.state.size for sample in samples)
    lines = sum(sample.estimated_lines for sample in samples)
    about = "" if all(sample.is_whole for sample in samples) else "about "
    print(
        f"{len(samples)} file{'s' * (len(samples) > 1)}, {number_text(total, 'bytes')}, {about}{lines:,.0f} lines; "
        f"looked at the first {num_lines:,}, of which {num_rows:,} are good"
    )
    row_bytes = 4 * (len(CATEGORICAL_FIELDS) + 2 * len(NUMERIC_FIELDS) + 1)
    size = number_text(lines * row_bytes, "bytes")
    print(f"the prepared folder will take {about}{size}, while it is made up to twice that")


def _facts() -> dict[str, Any]:
    return dict(json.loads(FACTS_PATH.read_text(encoding="utf-8")))


def _columns(rows: LogRows) -> list[Column]:
    facts = _facts()
    integer, categorical = facts["integer"], facts["categorical"]
    columns = []
    for place, name in enumerate(NUMERIC_FIELDS):
        present = rows.integers[place][rows.integers_present[place]]
        smallest, largest = (int(present.min()), int(present.max())) if len(present) else (None, None)
        expected = integer["missing_percent"][place] / 100
        columns.append(
            Column(
                name,
                1 - len(present) / len(rows.labels),
                len(np.unique(present)),
                smallest,
                largest,
                expected,
                (integer["min"][place], integer["max"][place]),
            )
        )
    for place, name in enumerate(CATEGORICAL_FIELDS):
        values = rows.values[place][rows.values_present[place]]
        expected = categorical["missing_percent"][place] / 100
        columns.append(
            Column(name, 1 - len(values) / len(rows.labels), len(np.unique(values)), None, None, expected, None)
        )
    return columns


def _print_columns(columns: Sequence[Column]) -> None:
    print(f"\n{'field':6} {'missing':>9} {'Criteo':>9} {'distinct':>10}   range")
    for column in columns:
        bounds = "" if column.smallest is None else f"{column.smallest:,} … {column.largest:,}"
        shares = f"{column.missing:9.2%} {column.expected_missing:9.2%}"
        print(f"{column.name:6} {shares} {column.distinct:10,}   {bounds}".rstrip())
    print()


def _judge_rejects(
    rejects: Counter[str], rejects_tsv: bytes, chunks: Sequence[Chunk], num_lines: int, findings: Findings
) -> None:
    limit = PrepareOptions().max_reject_fraction
    fraction = rejects.total() / num_lines
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in rejects.most_common())
    first = rejects_tsv.split(b"\n", 1)[0].split(b"\t", 2)
    where, text = first[0].decode(), first[2][:_EXAMPLE_BYTES].decode("utf-8", errors="backslashreplace")
    told = (
        f"{rejects.total():,} of {num_lines:,} lines ({fraction:.2%}) would be rejected: {reasons}. "
        f"The first is line {where}: {text!r}"
    )
    more = f"; prepare stops above prepare.max_reject_fraction={limit:g}" if fraction > limit else ""
    (findings.wrong if fraction > limit else findings.odd).append(told + more)
    for chunk in chunks:
        hint = _explain(chunk)
        if hint:
            findings.wrong.append(f"{chunk.file.name}: {hint}" if chunk.file.name else hint)
            break


def _explain(chunk: Chunk) -> str | None:
    """Why nearly all lines of a file are bad, or the first one is."""
    lines = [line.rstrip(b"\r") for line in chunk.lines.split(b"\n", 200)[:200] if line]
    if not lines:
        return None
    usual = _most_common(line.count(b"\t") for line in lines)
    if b"\0" in b"".join(lines):
        return "there are NUL bytes: it is no text, or UTF-16; convert it to UTF-8"
    if usual != NUM_COLUMNS - 1:
        return _explain_columns(lines, usual)
    columns = [line.split(b"\t") for line in lines if line.count(b"\t") == usual]
    if _is_header(columns):
        return f"the first line is a header ({lines[0][:60].decode(errors='backslashreplace')!r} …): remove it"
    cells = [cell for row in columns[1:] for cell in row[14:] if cell]
    if cells and sum(cell != cell.lower() for cell in cells) > len(cells) / 10:
        return "categorical cells have upper-case digits: make them lower-case (tr A-F a-f), or each value would be two"
    floats = [cell for row in columns[1:] for cell in row[1:14] if b"." in cell and not cell.strip(_NUMBER_TEXT)]
    if floats:
        return f"integer columns hold numbers with a point ({floats[0].decode()}): round them first"
    return None


def _explain_columns(lines: Sequence[bytes], usual: int) -> str:
    for separator, name in _SEPARATORS.items():
        if _most_common(line.count(separator) for line in lines) == NUM_COLUMNS - 1:
            return f"columns are separated by {name}, expected a tab: replace it (tr '{separator.decode()}' '\\t')"
    if usual == NUM_COLUMNS - 2:
        return (
            f"lines have {NUM_COLUMNS - 1} columns, one less than expected: it seems to be Criteo's test.txt, which "
            "has no labels; prepare train.txt"
        )
    return f"lines have {usual + 1} columns between tabs, expected {NUM_COLUMNS} (label, 13 integers, 26 hex values)"


def _is_header(columns: Sequence[Sequence[bytes]]) -> bool:
    """Whether the first label is a word, and others are not."""
    return len(columns) > 1 and columns[0][0] not in (b"0", b"1") and columns[1][0] in (b"0", b"1")


def _most_common(numbers: Any) -> int:
    return int(Counter(numbers).most_common(1)[0][0])


def _judge_labels(rows: LogRows, findings: Findings) -> None:
    rate = float(rows.labels.mean())
    facts = _facts()
    expected = facts["clicks"] / facts["rows"]
    print(f"click rate {rate:.2%} (Criteo: {expected:.2%})")
    if rate in (0.0, 1.0) and len(rows.labels) >= _FEW_ROWS:
        findings.wrong.append(
            f"all {len(rows.labels):,} labels are {int(rate)}: a model learns nothing from them. If the log is "
            "sorted by label, shuffle it, or look at more rows with --rows"
        )
    elif len(rows.labels) >= _FEW_ROWS and abs(rate - expected) > 0.1:
        findings.odd.append(f"the click rate is {rate:.1%}, in Criteo's log {expected:.1%}: is it another log?")


def _judge_columns(columns: Sequence[Column], rows: LogRows, findings: Findings) -> None:
    num_rows = len(rows.labels)
    for column in columns:
        if column.missing == 1:
            findings.odd.append(f"{column.name} is missing in all rows: it will tell a model nothing")
        elif column.distinct == 1 and num_rows >= _FEW_ROWS:
            findings.odd.append(f"{column.name} has one value only")
        elif column.smallest is None and column.distinct > 0.99 * num_rows >= 0.99 * _FEW_ROWS:
            findings.odd.append(f"{column.name} has a new value in nearly every row, as an identifier of rows does")
    unlike = [c for c in columns if num_rows >= _FEW_ROWS and _is_far(c.missing, c.expected_missing, num_rows)]
    if unlike:
        listed = ", ".join(f"{c.name} {c.missing:.1%} for {c.expected_missing:.1%}" for c in unlike[:5])
        more = f" and {len(unlike) - 5} more" if len(unlike) > 5 else ""
        findings.odd.append(
            f"missing shares are not those of Criteo's log ({listed}{more}): another log, or columns in another order?"
        )
    for c in columns:
        if c.expected_range and c.smallest is not None and c.largest is not None:
            low, high = c.expected_range
            if c.smallest < low or c.largest > high:
                findings.odd.append(
                    f"{c.name} goes from {c.smallest:,} to {c.largest:,}, in Criteo's log from {low:,} to {high:,}"
                )


def _is_far(share: float, expected: float, num_rows: int) -> bool:
    """Further than 10 points, days and samples being unlike, and than chance."""
    return abs(share - expected) > max(0.1, 5 * math.sqrt(max(expected * (1 - expected), 1e-4) / num_rows))


def _judge_order(rows: LogRows, findings: Findings) -> None:
    """Neighbours that are alike where chance would have them differ."""
    n, rate = len(rows.labels), float(rows.labels.mean())
    if n < _FEW_ROWS:
        return
    changes = int(np.sum(rows.labels[1:] != rows.labels[:-1]))
    expected = 2 * rate * (1 - rate) * (n - 1)
    if changes < 0.5 * expected:
        findings.odd.append(
            f"the label changes {changes:,} times from row to row, by chance it would {expected:,.0f} times: the rows "
            "seem sorted by label, or in groups; take prepare.split=hash, not chronological"
        )
    for place, name in enumerate(NUMERIC_FIELDS):
        present: NDArray[np.int64] = rows.integers[place][rows.integers_present[place]]
        if len(present) > _FEW_ROWS and len(np.unique(present)) > 2:
            steps = np.diff(present)
            if np.mean(steps >= 0) > 0.99 or np.mean(steps <= 0) > 0.99:
                findings.odd.append(f"rows are sorted by {name}; take prepare.split=hash, not chronological")


def _judge_duplicates(chunks: Sequence[Chunk], findings: Findings) -> None:
    lines = [line for chunk in chunks for line in chunk.lines.split(b"\n")[:-1] if line]
    copies = len(lines) - len(set(lines))
    if copies > 0.01 * len(lines):
        findings.odd.append(f"{copies:,} of {len(lines):,} lines are copies of another one: was a part written twice?")
