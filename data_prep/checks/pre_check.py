"""`pre-check`: examine the first rows of a log in seconds, before hours are spent on all of them.

It prints each column's figures, beside those of Criteo's log if the columns are the same, then what is wrong (the
preparation would fail, or a model learn nothing) and what is odd. MindSpore is not needed.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.text import number_text, shortened, show
from data_prep.checks.inspect import print_table
from data_prep.checks.reject_causes import Findings, check_rejects
from data_prep.kernels.crosses import text_columns
from data_prep.kernels.lists import Lists
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.parsed import Chunk, ParsedRows
from data_prep.options.columns import CategoricalColumn
from data_prep.options.format_checks import checked_format
from data_prep.options.log_format import LogFormat
from data_prep.prepared.truth import area_under_curve
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.sample import FileSample, sample_log
from data_prep.sources.shape import FACTS_FILE

DEFAULT_ROWS = 100_000
_FEW_ROWS = 1_000  # fewer are too uncertain to compare fractions
_NAMES = 5  # columns with the same finding that are named
_LEAK_AUC = 0.95  # the best models of public click logs, with all columns, reach 0.8
_COPIED = 0.01  # of the lines, at most, are copies that are no finding
_LONGEST_COPY = 50  # lines that are compared with others in their order
_MIN_TEST_ROWS = 50  # with so many clicks, and other rows, the AUC of chance is within 0.5 ± 0.2


@dataclass(frozen=True)
class Column:
    """A field in the sampled rows. `known_*` are figures of Criteo's whole log, None for another log."""

    name: str
    codes: NDArray[np.int64]  # [n] 0 if missing, else the value's number from 1; an integer's in rising order
    numbers: NDArray[np.number] | None  # the present cells of a numeric field; None for a categorical one
    known_missing: float | None = None
    known_range: tuple[int, int] | None = None
    is_time: bool = False  # in milliseconds since 1970

    @cached_property
    def missing(self) -> float:
        """Fraction of the rows."""
        return 1 - np.count_nonzero(self.codes) / len(self.codes)

    @cached_property
    def distinct(self) -> int:
        """Number of values, without missing."""
        return len(np.unique(self.codes[self.codes > 0]))

    @cached_property
    def range(self) -> tuple[float, float] | None:
        """Smallest and largest number, or None."""
        if self.numbers is None or not len(self.numbers):
            return None
        return self.numbers.min().item(), self.numbers.max().item()

    @property
    def shown_range(self) -> str:
        """The range for a table: whole numbers, floats with 4 digits, times as dates."""
        if self.range is None:
            return ""
        if self.is_time:
            return " … ".join(str(np.datetime64(int(time), "ms").astype("M8[s]")) for time in self.range)
        return " … ".join(f"{end:,}" if isinstance(end, int) else f"{end:.4g}" for end in self.range)


def pre_check(
    inputs: str | Path | Sequence[str | Path],
    num_rows: int = DEFAULT_ROWS,
    log_format: LogFormat | None = None,
    categorical: Sequence[CategoricalColumn] = (),
) -> Findings:
    """Print figures of the first rows and of the crosses among `categorical`. Return what is wrong and odd.

    Raises FileNotFoundError and ValueError as `find_log` and `open_log`, ValueError if num_rows is below 1.
    """
    if num_rows < 1:
        raise ValueError(f"pre-check needs at least 1 row to look at; found --rows {num_rows}")
    log_format = checked_format(log_format or LogFormat())
    samples = list(sample_log(find_log(inputs), log_format, num_rows))
    findings = Findings()
    chunks = [sample.chunk for sample in samples if sample.chunk is not None]
    if not chunks:
        findings.wrong.append("there are no lines: the log is empty")
        return findings
    parsed = [choose_kernels("auto").parse_chunk(chunk, log_format) for chunk in chunks]
    rejects: Counter[str] = sum((part.rejects_by_reason for part in parsed), Counter())
    rows = [part.rows for part in parsed]
    labels = np.concatenate([part.labels for part in rows])
    _print_size(samples, sum(chunk.num_lines for chunk in chunks), len(labels), log_format)
    if rejects:
        check_rejects(rejects, b"".join(part.rejects_tsv for part in parsed), chunks, log_format, findings)
    if len(labels):
        facts = json.loads(FACTS_FILE.read_text("utf-8")) if log_format.columns == LogFormat().columns else None
        columns = list(_columns(rows, log_format, facts))
        _print_columns([*columns, *cross_columns(rows, log_format, categorical)], facts is not None)
        show(log_format.label_in_words)
        is_labelled = np.concatenate([part.labels if part.weights is None else part.weights > 0 for part in rows])
        is_labelled |= labels | (log_format.label != "optional")
        _check_labels(labels[is_labelled], facts, findings)
        _check_columns(columns, len(labels), findings)
        _check_leaks([replace(each, codes=each.codes[is_labelled]) for each in columns], labels[is_labelled], findings)
        _check_order(rows[0], log_format, findings)
    _check_duplicates(chunks, findings)
    return findings


def print_findings(findings: Findings) -> None:
    """Print each finding on a line of its own."""
    for title, listed in (("wrong", findings.wrong), ("odd", findings.odd)):
        for text in listed:
            show(f"{title}: {text}")
    if not findings.wrong and not findings.odd:
        show("nothing is wrong or odd with these rows")


def _print_size(samples: Sequence[FileSample], num_lines: int, num_rows: int, log_format: LogFormat) -> None:
    total = sum(sample.file.state.size for sample in samples)
    lines = sum(sample.estimated_lines for sample in samples)
    about = "" if all(sample.is_whole for sample in samples) else "about "
    show(
        f"{len(samples)} file{'s' * (len(samples) > 1)}, {number_text(total, 'bytes')}, {about}{lines:,.0f} lines; "
        f"looked at the first {num_lines:,}, of which {num_rows:,} are good"
    )
    row_bytes = 4 * (len(log_format.categorical_fields) + 2 * len(log_format.numeric_fields) + 1)
    size = number_text(lines * row_bytes, "bytes")
    show(f"the prepared folder will take {about}{size}, up to twice that while it is made")


def cross_columns(
    rows: Sequence[ParsedRows], log_format: LogFormat, categorical: Sequence[CategoricalColumn]
) -> list[Column]:
    """Return the crosses of parsed rows as columns. One with a list has its values for rows, or the missing one."""
    by_name: dict[str, list[bytes]] = {column.name: [] for column in categorical if column.cross}
    kernels = choose_kernels("auto")
    for part in rows:
        for column, texts, present in text_columns(part.with_lists(log_format, kernels), categorical, kernels):
            if column.cross:
                values = texts.values if isinstance(texts, Lists) else texts.take(present)
                by_name[column.name] += [*values.tolist(), *[b""] * int((~present).sum())]
    return [Column(name, _codes(texts), None) for name, texts in by_name.items()]


def _codes(texts: Iterable[bytes]) -> NDArray[np.int64]:
    """Return the number of each text, 0 for the empty one."""
    code_of = {b"": 0}
    return np.array([code_of.setdefault(text, len(code_of)) for text in texts], np.int64)


def _columns(rows: Sequence[ParsedRows], log_format: LogFormat, facts: dict[str, Any] | None) -> Iterator[Column]:
    """Yield the fields of parsed rows, beside what is known of Criteo's."""

    for kind, names in (("integer", log_format.numeric_fields), ("categorical", log_format.value_fields)):
        for index, name in enumerate(names):
            values, present = map(np.concatenate, zip(*(part.columns[name] for part in rows), strict=True))
            codes = np.where(present, np.unique(values, return_inverse=True)[1] + 1, 0)
            known = facts[kind] if facts else None
            missing = known["missing_percent"][index] / 100 if known else None
            if kind == "categorical":
                yield Column(name, codes, None, missing)
            else:
                known_range = (known["min"][index], known["max"][index]) if known else None
                yield Column(name, codes, values[present], missing, known_range, name in log_format.time_fields)
    for name in log_format.text_fields:
        yield Column(name, _codes(text for part in rows for text in part.columns[name].values.tolist()), None)


def _print_columns(columns: Sequence[Column], is_criteo: bool) -> None:
    known = ["missing in Criteo's log"] * is_criteo
    print_table(
        "Columns of the good rows",
        ["missing", *known, "distinct", "range"],
        {
            c.name: [
                f"{c.missing:.2%}",
                *["" if c.known_missing is None else f"{c.known_missing:.2%}"] * is_criteo,
                c.distinct,
                c.shown_range,
            ]
            for c in columns
        },
    )
    show()


def _check_labels(labels: NDArray[np.bool_], facts: dict[str, Any] | None, findings: Findings) -> None:
    rate = float(labels.mean()) if len(labels) else 0.0
    expected = facts["clicks"] / facts["rows"] if facts else rate
    show(f"click rate {rate:.2%}" + (f" (Criteo: {expected:.2%})" if facts else ""))
    if rate in (0.0, 1.0) and len(labels) >= _FEW_ROWS:
        findings.wrong.append(
            f"all {len(labels):,} labels are {int(rate)}: a model learns nothing from them. If the log is "
            "sorted by label, shuffle it, or look at more rows with --rows"
        )
    elif len(labels) >= _FEW_ROWS and abs(rate - expected) > 0.1:
        findings.odd.append(f"the click rate is {rate:.1%}, in Criteo's log {expected:.1%}: is it another log?")


def _check_columns(columns: Sequence[Column], num_rows: int, findings: Findings) -> None:
    """Report each oddity in one line for all columns: the first days of a log may lack half of them."""
    is_enough = num_rows >= _FEW_ROWS
    empty = [c.name for c in columns if c.missing == 1]
    constant = [c.name for c in columns if c.missing < 1 and c.distinct == 1 and is_enough]
    unique = [c.name for c in columns if c.numbers is None and c.distinct > 0.99 * num_rows and is_enough]
    for names, of_one, of_more in (
        (empty, "is missing in all rows: a model learns nothing from it", "are missing in all rows"),
        (constant, "has one value only", "have one value only"),
        (unique, "has a new value in nearly every row, as row identifiers do", "have a new value in nearly every row"),
    ):
        if names:
            findings.odd.append(f"{shortened(names, _NAMES)} {of_one if len(names) == 1 else of_more}")
    unlike = [f"{c.name} {c.missing:.1%} for {c.known_missing:.1%}" for c in columns if _differs(c, num_rows)]
    if unlike:
        findings.odd.append(
            f"missing shares are not those of Criteo's log ({shortened(unlike, _NAMES)}): another log, or columns in "
            "another order?"
        )
    beyond = [
        f"{c.name} goes from {c.range[0]:,} to {c.range[1]:,}, in Criteo's log from {c.known_range[0]:,} to "
        f"{c.known_range[1]:,}"
        for c in columns
        if c.range and c.known_range and (c.range[0] < c.known_range[0] or c.range[1] > c.known_range[1])
    ]
    if beyond:
        findings.odd.append(shortened(beyond, _NAMES, between="; "))


def _differs(column: Column, num_rows: int) -> bool:
    """Return True if missing cells are 10 points (as days differ) and 5 standard deviations away from Criteo's."""
    expected = column.known_missing
    if expected is None or num_rows < _FEW_ROWS:
        return False
    return abs(column.missing - expected) > max(0.1, 5 * math.sqrt(max(expected * (1 - expected), 1e-4) / num_rows))


def _check_leaks(columns: Iterable[Column], labels: NDArray[np.bool_], findings: Findings) -> None:
    """Report each column that predicts the label by itself."""
    for name, auc in leaking_columns(columns, labels):
        findings.odd.append(
            f"{name} alone predicts clicks (AUC {auc:.3f}): it seems to be made from the label, or known "
            "only after the click. Unless it is known before, give it the kind ignored in the --data file"
        )


def leaking_columns(columns: Iterable[Column], labels: NDArray[np.bool_]) -> Iterator[tuple[str, float]]:
    """Yield the name and the AUC of each column that predicts the labels [n] by itself. Too few rows yield none."""
    is_test = np.random.default_rng(1).random(len(labels)) < 0.5
    num_clicks = int(labels[is_test].sum())
    if min(num_clicks, int(is_test.sum()) - num_clicks) < _MIN_TEST_ROWS:
        return
    for column in columns:
        auc = area_under_curve(_click_rates(column.codes, labels, is_test), labels[is_test])
        if column.numbers is not None:  # missing is below all numbers: it may be what predicts
            by_number = area_under_curve(column.codes, labels)
            auc = max(auc, by_number, 1 - by_number)
        if auc > _LEAK_AUC:
            yield column.name, auc


def _click_rates(
    codes: NDArray[np.int64], labels: NDArray[np.bool_], is_test: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the click rate of each test row's value among the other rows, shrunk to that of all of them.

    A value that is seen once, as a row identifier is, predicts nothing this way.
    """
    train_codes, train_labels = codes[~is_test], labels[~is_test]
    counts = np.bincount(train_codes, minlength=codes.max() + 1)
    clicks = np.bincount(train_codes, train_labels, minlength=codes.max() + 1)
    rates: NDArray[np.float64] = (clicks + train_labels.mean()) / (counts + 1)
    return rates[codes[is_test]]


def _check_order(rows: ParsedRows, log_format: LogFormat, findings: Findings) -> None:
    """Report neighbours of the first file that are alike more often than by chance."""
    labels = rows.labels
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
    for name in log_format.numeric_fields:
        numbers, is_there = rows.columns[name]
        present = numbers[is_there]
        if len(present) > _FEW_ROWS and len(np.unique(present)) > 2:
            steps = np.diff(present)
            if np.mean(steps >= 0) > 0.99 or np.mean(steps <= 0) > 0.99:
                findings.odd.append(
                    f"rows are sorted by {name}: if that is the time, take prepare.split=chronological, which tests on "
                    "the last rows; with hash a model is tested on rows of a time that it was trained on"
                )


def _check_duplicates(chunks: Sequence[Chunk], findings: Findings) -> None:
    lines = [line for chunk in chunks for line in chunk.lines.split(b"\n")[:-1] if line]
    copies = len(lines) - len(set(lines))
    if copies > _COPIED * len(lines) and _are_copied(lines):
        findings.odd.append(f"{copies:,} of {len(lines):,} lines are copies of another one: was a part written twice?")


def _are_copied(lines: Sequence[bytes]) -> bool:
    """Return True if lines are there again more often than by chance, as in tables of few distinct rows.

    Of a part that is there twice, the lines come again in their order. Lines that are there by chance follow Poisson's
    law, with any rates: if f of them come once, twice and three times, f₂² is at most 1.5 · f₁ · f₃.
    """
    counts = Counter(lines)
    once, twice, thrice = (Counter(counts.values())[times] for times in (1, 2, 3))
    if twice > 4 and (twice - 2 * math.sqrt(twice)) ** 2 > 1.5 * once * (thrice + 4 * math.sqrt(thrice) + 5):
        return True
    alike = sum(count * (count - 1) for count in counts.values()) / len(lines) ** 2  # of two lines, by chance
    length = math.ceil(math.log(0.01 / len(lines) ** 2) / math.log(alike))  # of what does not come again by chance
    others = [line for line, _ in itertools.groupby(lines)]  # a sorted log has equal ones side by side
    places = range(len(others) - length + 1) if length <= _LONGEST_COPY else range(0)
    return len(places) - len({tuple(others[place : place + length]) for place in places}) > _COPIED * len(lines)
