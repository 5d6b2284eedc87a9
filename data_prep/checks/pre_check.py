"""Examine the first rows of a log in seconds, before hours are spent on all rows, for the command `pre-check`.

It prints figures of each column. If the log has Criteo's columns, it also prints the figures of Criteo's log beside
them. Then it prints what is wrong, so that the preparation would fail or a model would learn nothing, and what is odd.
It does not need MindSpore.
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
_FEW_ROWS = 1_000  # With fewer rows, fractions are too uncertain to be compared.
_NAMES = 5  # Maximum number of columns that a finding names.
# A single column with a higher AUC is a leak. The best models of public click logs reach 0.8 with all columns.
_LEAK_AUC = 0.95
_COPIED = 0.01  # Fraction of lines that may be copies without a finding.
_LONGEST_COPY = 50  # Maximum number of successive lines that are compared with other sequences of lines.
# Minimum number of clicks, and of other rows, for an AUC. By chance it is then within 0.5 ± 0.2.
_MIN_TEST_ROWS = 50


@dataclass(frozen=True)
class DataColumn:
    """A field in the sampled rows.

    `known_missing` and `known_range` are the figures of Criteo's whole log, or None if the log has other columns.
    """

    name: str
    # Number of the value of each row [n] from 1, or 0 if it is missing. Numbers are counted in ascending order.
    codes: NDArray[np.int64]
    numbers: NDArray[np.number] | None  # The present cells of a numeric field, or None for a categorical field.
    known_missing: float | None = None
    known_range: tuple[int, int] | None = None
    is_time: bool = False  # Numbers are times in milliseconds since 1970.

    @cached_property
    def missing(self) -> float:
        """Fraction of the rows in which the field is missing."""
        return 1 - np.count_nonzero(self.codes) / len(self.codes)

    @cached_property
    def distinct(self) -> int:
        """Number of distinct values, without the missing value."""
        return len(np.unique(self.codes[self.codes > 0]))

    @cached_property
    def range(self) -> tuple[float, float] | None:
        """Smallest and largest number, or None if there are no numbers."""
        if self.numbers is None or not len(self.numbers):
            return None
        return self.numbers.min().item(), self.numbers.max().item()

    @property
    def shown_range(self) -> str:
        """Text of the range for a table. Floats have four significant digits, and times are written as dates."""
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
    """Print figures of the first rows of a log, and return what is wrong and what is odd.

    `inputs` name the log as for `find_log`. `num_rows` rows are read in all. Crosses among the columns `categorical`
    are shown too. Raise FileNotFoundError if there is no log, and ValueError if a file cannot be read or if `num_rows`
    is below 1.
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
    """Print each finding on a line of its own, what is wrong first."""
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
) -> list[DataColumn]:
    """Return the crosses of parsed rows as columns.

    For a cross with a list, each value of a list counts as a row, and an empty list counts as a missing cell.
    """
    by_name: dict[str, list[bytes]] = {column.name: [] for column in categorical if column.cross}
    kernels = choose_kernels("auto")
    for part in rows:
        for column, texts, present in text_columns(part.with_lists(log_format, kernels), categorical, kernels):
            if column.cross:
                values = texts.values if isinstance(texts, Lists) else texts.take(present)
                by_name[column.name] += [*values.tolist(), *[b""] * int((~present).sum())]
    return [DataColumn(name, _codes(texts), None) for name, texts in by_name.items()]


def _codes(texts: Iterable[bytes]) -> NDArray[np.int64]:
    """Number the distinct texts from 1 and return the number of each text. The empty text has number 0."""
    code_of = {b"": 0}
    return np.array([code_of.setdefault(text, len(code_of)) for text in texts], np.int64)


def _columns(rows: Sequence[ParsedRows], log_format: LogFormat, facts: dict[str, Any] | None) -> Iterator[DataColumn]:
    """Yield the fields of parsed rows as columns. `facts` are the figures of Criteo's log, if it has these fields."""

    for kind, names in (("integer", log_format.numeric_fields), ("categorical", log_format.value_fields)):
        for index, name in enumerate(names):
            values, present = map(np.concatenate, zip(*(part.columns[name] for part in rows), strict=True))
            codes = np.where(present, np.unique(values, return_inverse=True)[1] + 1, 0)
            known = facts[kind] if facts else None
            missing = known["missing_percent"][index] / 100 if known else None
            if kind == "categorical":
                yield DataColumn(name, codes, None, missing)
            else:
                known_range = (known["min"][index], known["max"][index]) if known else None
                yield DataColumn(name, codes, values[present], missing, known_range, name in log_format.time_fields)
    for name in log_format.text_fields:
        yield DataColumn(name, _codes(text for part in rows for text in part.columns[name].values.tolist()), None)


def _print_columns(columns: Sequence[DataColumn], is_criteo: bool) -> None:
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


def _check_columns(columns: Sequence[DataColumn], num_rows: int, findings: Findings) -> None:
    """Add findings about columns that are empty, constant, unique, or unlike those of Criteo's log.

    Each kind of finding is one line for all columns, because the first days of a log may lack half of them.
    """
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


def _differs(column: DataColumn, num_rows: int) -> bool:
    """Return True if the fraction of missing cells clearly differs from that in Criteo's log.

    It must differ by more than 0.1, since days differ among themselves, and by more than 5 standard deviations.
    """
    expected = column.known_missing
    if expected is None or num_rows < _FEW_ROWS:
        return False
    return abs(column.missing - expected) > max(0.1, 5 * math.sqrt(max(expected * (1 - expected), 1e-4) / num_rows))


def _check_leaks(columns: Iterable[DataColumn], labels: NDArray[np.bool_], findings: Findings) -> None:
    """Add a finding for each column that predicts the label by itself."""
    for name, auc in leaking_columns(columns, labels):
        findings.odd.append(
            f"{name} alone predicts clicks (AUC {auc:.3f}): it seems to be made from the label, or known "
            "only after the click. Unless it is known before, give it the kind ignored in the --data file"
        )


def leaking_columns(columns: Iterable[DataColumn], labels: NDArray[np.bool_]) -> Iterator[tuple[str, float]]:
    """Yield the name and the AUC of each column that predicts the labels [n] by itself.

    With too few clicks or other rows, nothing is yielded.
    """
    is_test = np.random.default_rng(1).random(len(labels)) < 0.5
    num_clicks = int(labels[is_test].sum())
    if min(num_clicks, int(is_test.sum()) - num_clicks) < _MIN_TEST_ROWS:
        return
    for column in columns:
        auc = area_under_curve(_click_rates(column.codes, labels, is_test), labels[is_test])
        # A missing cell counts as below all numbers, so the AUC also shows whether missing cells predict the label.
        if column.numbers is not None:
            by_number = area_under_curve(column.codes, labels)
            auc = max(auc, by_number, 1 - by_number)
        if auc > _LEAK_AUC:
            yield column.name, auc


def _click_rates(
    codes: NDArray[np.int64], labels: NDArray[np.bool_], is_test: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Predict the label of each test row by the click rate that its value has in the training rows.

    Rates are shrunk toward the click rate of all training rows. So a value that occurs only once, such as a row
    identifier, predicts nothing.
    """
    train_codes, train_labels = codes[~is_test], labels[~is_test]
    counts = np.bincount(train_codes, minlength=codes.max() + 1)
    clicks = np.bincount(train_codes, train_labels, minlength=codes.max() + 1)
    rates: NDArray[np.float64] = (clicks + train_labels.mean()) / (counts + 1)
    return rates[codes[is_test]]


def _check_order(rows: ParsedRows, log_format: LogFormat, findings: Findings) -> None:
    """Add findings if the rows of the first file seem to be sorted by the label or by a numeric field."""
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
    """Return True if lines occur repeatedly more often than by chance, because a part of the log was written twice.

    In a log with few distinct rows, lines repeat by chance. Their counts then follow a mixture of Poisson
    distributions. If fₖ is the number of distinct lines that occur k times, f₂² is at most 1.5 · f₁ · f₃ in any such
    mixture. Lines of a part that was written twice violate this, or they repeat in the same order.
    """
    counts = Counter(lines)
    once, twice, thrice = (Counter(counts.values())[times] for times in (1, 2, 3))
    if twice > 4 and (twice - 2 * math.sqrt(twice)) ** 2 > 1.5 * once * (thrice + 4 * math.sqrt(thrice) + 5):
        return True
    # Probability that two random lines are equal, and the length of a sequence of lines that does not repeat by chance.
    alike = sum(count * (count - 1) for count in counts.values()) / len(lines) ** 2
    length = math.ceil(math.log(0.01 / len(lines) ** 2) / math.log(alike))
    others = [line for line, _ in itertools.groupby(lines)]  # In a sorted log, equal lines are adjacent and count once.
    places = range(len(others) - length + 1) if length <= _LONGEST_COPY else range(0)
    return len(places) - len({tuple(others[place : place + length]) for place in places}) > _COPIED * len(lines)
