"""`pre-check`: the first rows of a log judged in seconds, before hours are spent on all of them.

It tells what each column holds beside what is known of Criteo's log, what is wrong (the preparation would fail, or a
model learn nothing) and what is odd. MindSpore is not needed.

Letters: n rows.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.html.axes import number_text
from data_prep.checks.leaks import judge_leaks
from data_prep.checks.rejects import Findings, judge_rejects
from data_prep.kernels.choose import choose_kernels
from data_prep.kernels.rows import Chunk, LogRows
from data_prep.options.log_format import LogFormat
from data_prep.raw_log.files import find_log
from data_prep.raw_log.sample import FileSample, sample_log

DEFAULT_ROWS = 100_000
FACTS_PATH = Path(__file__).parents[2] / "configs" / "data" / "criteo_facts.json"
_FEW_ROWS = 1_000  # below, shares are too uncertain to be judged
_SHOWN = 5  # columns of which the same is told, in one line


@dataclass(frozen=True)
class Column:
    """A field in the rows that were looked at; `known_*` are of Criteo's whole log, None of another one."""

    name: str
    missing: float
    distinct: int
    smallest: int | None  # of integers
    largest: int | None
    known_missing: float | None
    known_range: tuple[int, int] | None


def pre_check(
    inputs: str | Path | Sequence[str | Path], num_rows: int = DEFAULT_ROWS, log_format: LogFormat | None = None
) -> Findings:
    """Look at the first rows, print what they hold, and return what is wrong and odd.

    Raises FileNotFoundError and ValueError as `find_log` and `open_log`, ValueError where num_rows is below 1.
    """
    if num_rows < 1:
        raise ValueError(f"pre-check needs at least 1 row to look at; found --rows {num_rows}")
    log_format = log_format or LogFormat()
    samples = list(sample_log(find_log(inputs), log_format, num_rows))
    findings = Findings()
    chunks = [sample.chunk for sample in samples if sample.chunk is not None]
    if not chunks:
        findings.wrong.append("there are no lines: the log is empty")
        return findings
    parsed = [choose_kernels("auto").parse_chunk(chunk, log_format) for chunk in chunks]
    rejects: Counter[str] = sum((part.rejects_by_reason for part in parsed), Counter())
    num_lines, good = sum(chunk.num_lines for chunk in chunks), sum(len(part.rows.labels) for part in parsed)
    _print_size(samples, num_lines, good, log_format)
    if rejects:
        judge_rejects(rejects, b"".join(part.rejects_tsv for part in parsed), chunks, log_format, findings)
    if good:
        rows = [part.rows for part in parsed]
        facts = _facts() if log_format.columns == LogFormat().columns else None
        columns = _columns(rows, log_format, facts)
        _print_columns(columns, facts)
        _judge_labels(rows, facts, findings)
        _judge_columns(columns, good, findings)
        judge_leaks(rows, log_format, findings)
        _judge_order(rows, log_format, findings)
    _judge_duplicates(chunks, findings)
    return findings


def print_findings(findings: Findings) -> None:
    """Each in a line of its own."""
    for title, listed in (("wrong", findings.wrong), ("odd", findings.odd)):
        for text in listed:
            print(f"{title}: {text}")
    if not findings.wrong and not findings.odd:
        print("nothing is wrong or odd with these rows")


def _print_size(samples: Sequence[FileSample], num_lines: int, num_rows: int, log_format: LogFormat) -> None:
    total = sum(sample.file.state.size for sample in samples)
    lines = sum(sample.estimated_lines for sample in samples)
    about = "" if all(sample.is_whole for sample in samples) else "about "
    print(
        f"{len(samples)} file{'s' * (len(samples) > 1)}, {number_text(total, 'bytes')}, {about}{lines:,.0f} lines; "
        f"looked at the first {num_lines:,}, of which {num_rows:,} are good"
    )
    row_bytes = 4 * (len(log_format.categorical_fields) + 2 * len(log_format.numeric_fields) + 1)
    size = number_text(lines * row_bytes, "bytes")
    print(f"the prepared folder will take {about}{size}, while it is made up to twice that")


def _facts() -> dict[str, Any]:
    return dict(json.loads(FACTS_PATH.read_text(encoding="utf-8")))


def _columns(rows: Sequence[LogRows], log_format: LogFormat, facts: dict[str, Any] | None) -> list[Column]:
    columns = []
    for place, name in enumerate(log_format.numeric_fields):
        integers = np.concatenate([part.integers[place][part.integers_present[place]] for part in rows])
        ends = (int(integers.min()), int(integers.max())) if len(integers) else None
        known = (facts["integer"]["min"][place], facts["integer"]["max"][place]) if facts else None
        columns.append(
            _column(name, "integer", place, rows, len(np.unique(integers)), len(integers), facts, ends, known)
        )
    for place, name in enumerate(log_format.hex_fields):
        values = np.concatenate([part.values[place][part.values_present[place]] for part in rows])
        columns.append(_column(name, "categorical", place, rows, len(np.unique(values)), len(values), facts))
    for place, name in enumerate(log_format.text_fields):
        texts = [text for part in rows for text in part.texts[place].take(part.texts_present[place]).tolist()]
        columns.append(_column(name, "string", place, rows, len(set(texts)), len(texts), None))
    return columns


def _column(
    name: str,
    kind: str,
    place: int,
    rows: Sequence[LogRows],
    distinct: int,
    num_present: int,
    facts: dict[str, Any] | None,
    ends: tuple[int, int] | None = None,
    known_range: tuple[int, int] | None = None,
) -> Column:
    missing = 1 - num_present / sum(len(part.labels) for part in rows)
    smallest, largest = ends or (None, None)
    known_missing = facts[kind]["missing_percent"][place] / 100 if facts else None
    return Column(name, missing, distinct, smallest, largest, known_missing, known_range)


def _print_columns(columns: Sequence[Column], facts: dict[str, Any] | None) -> None:
    width = max(len(column.name) for column in columns)
    print(f"\n{'field':{width}} {'missing':>9} {'Criteo' if facts else '':>9} {'distinct':>10}   range")
    for column in columns:
        bounds = "" if column.smallest is None else f"{column.smallest:,} … {column.largest:,}"
        known = "" if column.known_missing is None else f"{column.known_missing:.2%}"
        print(f"{column.name:{width}} {column.missing:9.2%} {known:>9} {column.distinct:10,}   {bounds}".rstrip())
    print()


def _judge_labels(rows: Sequence[LogRows], facts: dict[str, Any] | None, findings: Findings) -> None:
    labels = np.concatenate([part.labels for part in rows])
    rate = float(labels.mean())
    expected = facts["clicks"] / facts["rows"] if facts else rate
    print(f"click rate {rate:.2%}" + (f" (Criteo: {expected:.2%})" if facts else ""))
    if rate in (0.0, 1.0) and len(labels) >= _FEW_ROWS:
        findings.wrong.append(
            f"all {len(labels):,} labels are {int(rate)}: a model learns nothing from them. If the log is "
            "sorted by label, shuffle it, or look at more rows with --rows"
        )
    elif len(labels) >= _FEW_ROWS and abs(rate - expected) > 0.1:
        findings.odd.append(f"the click rate is {rate:.1%}, in Criteo's log {expected:.1%}: is it another log?")


def _judge_columns(columns: Sequence[Column], num_rows: int, findings: Findings) -> None:
    """Tell what is odd, each in one line for all columns: early days of a log may lack half of them."""
    is_enough = num_rows >= _FEW_ROWS
    empty = [c.name for c in columns if c.missing == 1]
    constant = [c.name for c in columns if c.missing < 1 and c.distinct == 1 and is_enough]
    unique = [c.name for c in columns if c.smallest is None and c.distinct > 0.99 * num_rows and is_enough]
    for names, of_one, of_more in (
        (empty, "is missing in all rows: it will tell a model nothing", "are missing in all rows: they tell nothing"),
        (constant, "has one value only", "have one value only"),
        (
            unique,
            "has a new value in nearly every row, as an identifier of rows does",
            "have a new value in nearly every row, as identifiers of rows do",
        ),
    ):
        if names:
            findings.odd.append(f"{_shown(names)} {of_one if len(names) == 1 else of_more}")
    unlike = [
        f"{c.name} {c.missing:.1%} for {c.known_missing:.1%}" for c in columns if is_enough and _is_far(c, num_rows)
    ]
    if unlike:
        findings.odd.append(
            f"missing shares are not those of Criteo's log ({_shown(unlike)}): another log, or columns in another "
            "order?"
        )
    beyond = [text for text in map(_beyond_range, columns) if text]
    if beyond:
        findings.odd.append(_shown(beyond, between="; "))


def _shown(texts: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return between.join(texts[:_SHOWN]) + more


def _beyond_range(column: Column) -> str | None:
    """How an integer column goes beyond Criteo's; None where it does not."""
    if column.known_range is None or column.smallest is None or column.largest is None:
        return None
    low, high = column.known_range
    if low <= column.smallest and column.largest <= high:
        return None
    return (
        f"{column.name} goes from {column.smallest:,} to {column.largest:,}, in Criteo's log from {low:,} to {high:,}"
    )


def _is_far(column: Column, num_rows: int) -> bool:
    """Whether missing cells are 10 points away from Criteo's, as days and samples are not alike, and not by chance."""
    expected = column.known_missing
    if expected is None:
        return False
    return abs(column.missing - expected) > max(0.1, 5 * math.sqrt(max(expected * (1 - expected), 1e-4) / num_rows))


def _judge_order(rows: Sequence[LogRows], log_format: LogFormat, findings: Findings) -> None:
    """Neighbours that are alike where chance would have them differ; of the first file."""
    labels = rows[0].labels
    n, rate = len(labels), float(labels.mean()) if len(labels) else 0.0
    if n < _FEW_ROWS:
        return
    changes = int(np.sum(labels[1:] != labels[:-1]))
    expected = 2 * rate * (1 - rate) * (n - 1)
    if changes < 0.5 * expected:
        findings.odd.append(
            f"the label changes {changes:,} times from row to row, by chance it would {expected:,.0f} times: the rows "
            "seem sorted by label, or in groups; take prepare.split=hash, not chronological"
        )
    for place, name in enumerate(log_format.numeric_fields):
        present = rows[0].integers[place][rows[0].integers_present[place]]
        if len(present) > _FEW_ROWS and len(np.unique(present)) > 2:
            steps = np.diff(present)
            if np.mean(steps >= 0) > 0.99 or np.mean(steps <= 0) > 0.99:
                findings.odd.append(
                    f"rows are sorted by {name}: if that is the time, take prepare.split=chronological, which tests on "
                    "the last rows; with hash a model is tested on rows of a time that it was trained on"
                )


def _judge_duplicates(chunks: Sequence[Chunk], findings: Findings) -> None:
    lines = [line for chunk in chunks for line in chunk.lines.split(b"\n")[:-1] if line]
    copies = len(lines) - len(set(lines))
    if copies > 0.01 * len(lines):
        findings.odd.append(f"{copies:,} of {len(lines):,} lines are copies of another one: was a part written twice?")
