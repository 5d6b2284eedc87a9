"""Examine the first rows of a log that has a description, before hours are spent on preparing all rows.

The check prints figures of each column. If the log has Criteo's columns, it prints the figures of Criteo's log beside
them. It reports as wrong what would make the preparation fail or a model learn nothing, and reports other surprises as
odd. The check does not need MindSpore.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.text import number_text, shortened, show
from data_prep.checks.first_rows import DEFAULT_ROWS, Column
from data_prep.checks.held_out import leaking_columns
from data_prep.checks.inspect import print_table
from data_prep.checks.reject_causes import Finding, check_rejects
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.parsed import Chunk, ParsedRows, text_columns
from data_prep.kernels.strings import Lists
from data_prep.options.columns import CategoricalColumn
from data_prep.options.format_checks import checked_format
from data_prep.options.log_format import LogFormat
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.reading import FileSample, sample_log
from data_prep.sources.shape import FACTS_FILE

_FEW_ROWS = 1_000  # With fewer rows than this, fractions are too uncertain to be compared with the published ones.
_NAMES = 5  # Maximum number of columns that a finding names.
# Repeated lines are reported only if more than this fraction of all lines are copies of other lines.
_COPIED = 0.01
# To find a part of a log that was written twice, sequences of lines are compared that are too long to repeat by chance.
# If such a sequence would need more lines than this, no sequences are compared.
_LONGEST_COPY = 50


class KnownFigures(NamedTuple):
    """Published figures of one column of Criteo's log, for all its rows."""

    missing: float  # Fraction of the rows whose cell is missing.
    range: tuple[int, int] | None = None  # Smallest and largest number of a numeric field.


def pre_check(
    inputs: str | Path | Sequence[str | Path],
    num_rows: int = DEFAULT_ROWS,
    log_format: LogFormat | None = None,
    categorical: Sequence[CategoricalColumn] = (),
    version: int | None = None,
) -> list[Finding]:
    """Print figures of the first rows of a log. Return findings about what is wrong with them and what is odd.

    `inputs` are paths or URIs, and `version` the version of a table, as `find_log` takes them. At most `num_rows` rows
    are read, from all files together. If `categorical`, the categorical columns to derive from the log, contains
    crosses such as C1*C2, figures of the crosses are printed too. Raise FileNotFoundError if there is no log, and
    ValueError if a file cannot be read or if `num_rows` is below 1.
    """
    if num_rows < 1:
        raise ValueError(f"describe needs at least 1 row to look at; found --rows {num_rows}")
    log_format = checked_format(log_format or LogFormat())
    samples = list(sample_log(find_log(inputs, version), log_format, num_rows))
    chunks = [sample.chunk for sample in samples if sample.chunk is not None]
    if not chunks:
        return [Finding("there are no lines: the log is empty", is_wrong=True)]
    parsed = [choose_kernels("auto").parse_chunk(chunk, log_format) for chunk in chunks]
    rejects: Counter[str] = sum((part.rejects_by_reason for part in parsed), Counter())
    rows = [part.rows for part in parsed]
    labels = np.concatenate([part.labels for part in rows])
    _print_size(samples, sum(chunk.num_lines for chunk in chunks), len(labels), log_format)
    findings = list(check_rejects(rejects, b"".join(part.rejects_tsv for part in parsed), chunks, log_format))
    if len(labels):
        facts = json.loads(FACTS_FILE.read_text("utf-8")) if log_format.columns == LogFormat().columns else None
        known = _known_figures(log_format, facts) if facts else {}
        columns = list(_columns(rows, log_format))
        _print_columns([*columns, *cross_columns(rows, log_format, categorical)], known, log_format)
        show(log_format.label_in_words)
        is_labelled = np.concatenate([part.labelled for part in rows])
        findings += _check_labels(labels[is_labelled], facts["clicks"] / facts["rows"] if facts else None)
        findings += _check_columns(columns, known, len(labels))
        findings += [
            Finding(
                f"alone predicts clicks (AUC {auc:.3f}): it seems to be made from the label, or known only after the "
                "click",
                "unless it is known before, give it the kind ignored in the --data file",
                name,
            )
            for name, auc in leaking_columns(columns, labels, is_labelled)
        ]
        findings += _check_order(rows[0], log_format)
    return [*findings, *_check_duplicates(chunks)]


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
    """Compute those of the columns `categorical` that are crosses, for the parsed `rows`.

    Return each cross as a `Column`. A cross that involves a list has a cell for each combination of values in each row,
    and a missing cell for an empty list.
    """
    by_name: dict[str, list[bytes]] = {column.name: [] for column in categorical if column.cross}
    kernels = choose_kernels("auto")
    for part in rows:
        for column, texts, present in text_columns(part.with_lists(log_format, kernels), categorical, kernels):
            if column.cross:
                values = texts.values if isinstance(texts, Lists) else texts.take(present)
                by_name[column.name] += [*values.tolist(), *[b""] * int((~present).sum())]
    return [_text_column(name, texts) for name, texts in by_name.items()]


def _columns(rows: Sequence[ParsedRows], log_format: LogFormat) -> Iterator[Column]:
    """Yield each field of the parsed `rows` as a `Column`: numeric fields first, then other fields.

    A `Column` has the distinct values of a field, and the index of each row's value.
    """
    for name in (*log_format.numeric_fields, *log_format.value_fields):
        cells, present = map(np.concatenate, zip(*(part.columns[name] for part in rows), strict=True))
        values, places = np.unique(cells[present], return_inverse=True)
        codes = np.full(len(cells), -1)
        codes[present] = places
        yield Column(name, codes, values if name in log_format.numeric_fields else values.astype(object))
    for name in log_format.text_fields:
        yield _text_column(name, (text for part in rows for text in part.columns[name].values.tolist()))


def _text_column(name: str, texts: Iterable[bytes]) -> Column:
    code_of = {b"": -1}
    codes = np.array([code_of.setdefault(text, len(code_of) - 1) for text in texts], np.int64)
    return Column(name, codes, np.array([*code_of][1:], object))


def _known_figures(log_format: LogFormat, facts: Mapping[str, Any]) -> dict[str, KnownFigures]:
    """Return the published figures of each column of Criteo's log, by the column's name in `log_format`. `facts` is the
    content of configs/data/criteo_facts.json.
    """
    number, category = facts["integer"], facts["categorical"]
    ranges = zip(number["min"], number["max"], strict=True)
    numeric = zip(log_format.numeric_fields, number["missing_percent"], ranges, strict=True)
    others = zip(log_format.value_fields, category["missing_percent"], strict=True)
    return {name: KnownFigures(percent / 100, ends) for name, percent, ends in numeric} | {
        name: KnownFigures(percent / 100) for name, percent in others
    }


def _print_columns(columns: Sequence[Column], known: Mapping[str, KnownFigures], log_format: LogFormat) -> None:
    """Print a table with the fraction of missing cells, the number of distinct values and the range of each column.

    `known` has the published figures of Criteo's columns by name, which are printed beside those of `columns`. Floats
    have four significant digits, and times are printed as dates.
    """
    lines = {}
    for column in columns:
        figures = known.get(column.name)
        ends = [] if column.numbers is None else column.numbers[[0, -1][: len(column.values)]].tolist()
        if column.name in log_format.time_fields:
            shown = [str(np.datetime64(int(time), "ms").astype("M8[s]")) for time in ends]
        else:
            shown = [f"{end:,}" if isinstance(end, int) else f"{end:.4g}" for end in ends]
        of_criteo = [f"{figures.missing:.2%}" if figures else ""] * bool(known)
        lines[column.name] = [f"{column.missing:.2%}", *of_criteo, len(column.values), " … ".join(shown)]
    heads = ["missing", *["missing in Criteo's log"] * bool(known), "distinct", "range"]
    print_table("Columns of the good rows", heads, lines)
    show()


def _check_labels(labels: NDArray[np.bool_], known_rate: float | None) -> Iterator[Finding]:
    rate = float(labels.mean()) if len(labels) else 0.0
    show(f"click rate {rate:.2%}" + (f" (Criteo: {known_rate:.2%})" if known_rate else ""))
    if rate in (0.0, 1.0) and len(labels) >= _FEW_ROWS:
        what = f"all {len(labels):,} labels are {int(rate)}: a model learns nothing from them"
        advice = "if the log is sorted by label, shuffle it, or look at more rows with --rows"
        yield Finding(what, advice, is_wrong=True)
    elif known_rate and len(labels) >= _FEW_ROWS and abs(rate - known_rate) > 0.1:
        yield Finding(f"the click rate is {rate:.1%}, in Criteo's log {known_rate:.1%}: is it another log?")


def _check_columns(columns: Sequence[Column], known: Mapping[str, KnownFigures], num_rows: int) -> Iterator[Finding]:
    """Yield findings about columns that are empty, constant, different in each row, or unlike those of Criteo's log.

    A finding names all columns that it concerns, because half of the columns may be missing in the first days of a log.
    """
    is_enough = num_rows >= _FEW_ROWS
    empty = [c.name for c in columns if not len(c.values)]
    constant = [c.name for c in columns if len(c.values) == 1 and is_enough]
    unique = [c.name for c in columns if c.numbers is None and len(c.values) > 0.99 * num_rows and is_enough]
    for names, of_one, of_more in (
        (empty, "is missing in all rows: a model learns nothing from it", "are missing in all rows"),
        (constant, "has one value only", "have one value only"),
        (unique, "has a new value in nearly every row, as row identifiers do", "have a new value in nearly every row"),
    ):
        if names:
            yield Finding(of_one if len(names) == 1 else of_more, where=shortened(names, _NAMES))
    unlike, beyond = [], []
    for c in columns:
        if not (figures := known.get(c.name)):
            continue
        share, ends = figures
        # A difference from the published fraction of missing cells counts only if it is above 0.1, because the fraction
        # differs from day to day, and above what chance explains in few rows.
        chance = 5 * math.sqrt(max(share * (1 - share), 1e-4) / num_rows)
        if is_enough and abs(c.missing - share) > max(0.1, chance):
            unlike.append(f"{c.name} {c.missing:.1%} for {share:.1%}")
        if ends and c.numbers is not None and len(c.numbers) and (c.numbers[0] < ends[0] or c.numbers[-1] > ends[1]):
            low, high = c.numbers[[0, -1]].tolist()
            beyond.append(f"{c.name} goes from {low:,} to {high:,}, in Criteo's log from {ends[0]:,} to {ends[1]:,}")
    if unlike:
        shown = shortened(unlike, _NAMES)
        yield Finding(
            f"missing shares are not those of Criteo's log ({shown}): another log, or columns in another order?"
        )
    if beyond:
        yield Finding(shortened(beyond, _NAMES, between="; "))


def _check_order(rows: ParsedRows, log_format: LogFormat) -> Iterator[Finding]:
    """Yield findings if the rows, which are from the log's first file, seem sorted by label or by a numeric field."""
    labels = rows.labels
    n, rate = len(labels), float(labels.mean()) if len(labels) else 0.0
    if n < _FEW_ROWS:
        return
    changes = int(np.sum(labels[1:] != labels[:-1]))
    expected = 2 * rate * (1 - rate) * (n - 1)
    if changes < 0.5 * expected:
        what = (
            f"the label changes {changes:,} times from row to row, by chance it would {expected:,.0f} times: the rows "
            "seem sorted by label, or in groups"
        )
        yield Finding(what, "take prepare.split=hash, not chronological")
    for name in log_format.numeric_fields:
        numbers, is_there = rows.columns[name]
        present = numbers[is_there]
        if len(present) > _FEW_ROWS and len(np.unique(present)) > 2:
            steps = np.diff(present)
            if np.mean(steps >= 0) > 0.99 or np.mean(steps <= 0) > 0.99:
                yield Finding(
                    f"rows are sorted by {name}: if that is the time, take prepare.split=chronological, which tests on "
                    "the last rows; with hash a model is tested on rows of a time that it was trained on"
                )


def _check_duplicates(chunks: Sequence[Chunk]) -> Iterator[Finding]:
    lines = [line for chunk in chunks for line in chunk.lines.split(b"\n")[:-1] if line]
    copies = len(lines) - len(set(lines))
    if copies > _COPIED * len(lines) and _are_copied(lines):
        yield Finding(f"{copies:,} of {len(lines):,} lines are copies of another one: was a part written twice?")


def _are_copied(lines: Sequence[bytes]) -> bool:
    """Return True if so many lines occur repeatedly that a part of the log was probably written twice.

    In a log with few distinct rows, lines repeat by chance. The number of times that a line occurs then follows a
    mixture of Poisson distributions. If fₖ is the number of distinct lines that occur k times, such a mixture has f₂² ≤
    1.5 · f₁ · f₃. The result is True if the lines violate this inequality, or if a sequence of lines repeats in the
    same order.
    """
    counts = Counter(lines)
    once, twice, thrice = (Counter(counts.values())[times] for times in (1, 2, 3))
    if twice > 4 and (twice - 2 * math.sqrt(twice)) ** 2 > 1.5 * once * (thrice + 4 * math.sqrt(thrice) + 5):
        return True
    # `alike` is the probability that two random lines are equal. From it follows `length`, the number of lines of a
    # sequence that repeats by chance in only one of a hundred logs.
    alike = sum(count * (count - 1) for count in counts.values()) / len(lines) ** 2
    length = math.ceil(math.log(0.01 / len(lines) ** 2) / math.log(alike))
    # Equal lines that follow each other, as in a sorted log, are reduced to one line.
    others = [line for line, _ in itertools.groupby(lines)]
    places = range(len(others) - length + 1) if length <= _LONGEST_COPY else range(0)
    return len(places) - len({tuple(others[place : place + length]) for place in places}) > _COPIED * len(lines)
