"""Propose the description of an unknown log: a YAML file for the option `--data`. The command `describe` uses this.

`describe` reads the first rows of the log, finds the separator, the header, the quotes and the words for missing cells,
decides which column is the label, and guesses the kind of each column. The YAML file gives a reason for every guess, so
that users can correct it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import yaml

from data_prep.checks.first_rows import DEFAULT_ROWS, Column, FirstRows, read_first_rows
from data_prep.checks.guess_kind import Guess, Labels, guess, missing_words, some_values
from data_prep.checks.held_out import leaking_columns
from data_prep.checks.label import NO_LABEL, Label, chosen_label, find_label, is_another_label
from data_prep.checks.reject_causes import Finding, to_utf8
from data_prep.kernels.native import choose_kernels
from data_prep.options.format_checks import checked_format
from data_prep.options.kinds import KINDS
from data_prep.options.log_format import INEXACT, TIME_FEATURES, ListForm, LogFormat, VectorForm
from data_prep.options.prepare_options import PrepareOptions

# If all rows with a certain value of a column are clicks, that is chance if they are fewer than this, and otherwise the
# column was probably made from the label.
_MOST_BY_CHANCE = 50
_NO_TEXT = "\N{REPLACEMENT CHARACTER}"  # Character that replaces bytes that are not valid UTF-8.
# A column that alone predicts the label with at least this AUC gets the kind ignored. A column whose AUC only exceeds
# the lower limit in `held_out` is kept, with a remark.
_LEAK_AUC = 0.99
_ANOTHER_LABEL = "named like a label too: it may be known only when {} is; give it a kind if it is known before"
_WEIGHT = "; weight if it is the row's weight in the loss"
_WEIGHT_NAME = re.compile(r"(^|[_ .-])(weights?|wgt)$", re.IGNORECASE)
_IMPRESSIONS = re.compile(
    r"(^|[_ .-])(impressions?|imps?|impr\.?|exposures?|shows?|shown|views?|displays?|served|delivered|pv)$",
    re.IGNORECASE,
)
_IN_CLICKS_ALONE = "{}; {!r} is in clicks alone: ignored if it is known only after the click"
_LEAK_REASON = "predicts the label by itself (AUC {:.3f}): made from it, or known only after the click"
_REMARK = "{}; alone it predicts the label with AUC {:.3f}: ignored if it is known only after the click"


@dataclass(frozen=True, repr=False)
class Proposal:
    """A proposed description of a log: its label, the kind of each column, and the format of its lines."""

    rows: FirstRows
    label: Label
    click_rate: float
    guesses: tuple[Guess, ...]  # The guess for each column, in the order of the log.
    settings: dict[str, Any]  # The settings of LogFormat, except `columns`, whose values differ from the defaults.

    def as_format(self) -> LogFormat:
        """Return the proposed description of the log as a `LogFormat`, which is an option of `prepare`."""
        return checked_format(LogFormat(columns={each.name: each.kind for each in self.guesses}, **self.settings))

    @property
    def label_line(self) -> str:
        """Sentence about the label: its cells, the click rate, the evidence, and columns that are nearly as likely."""
        close = "".join(f"; nearly as likely: --label {name}" for name in self.label.close)
        return f"{self.as_format().label_in_words}; click rate {self.click_rate:.2%} ({self.label.why}{close})"

    @property
    def findings(self) -> list[Finding]:
        """Messages about what may be wrong with the described log, each with advice on what to do."""
        findings = list(self.rows.findings)
        if bad := self.rows.bad_lines:
            what = f"{len(bad):,} of these rows are not valid UTF-8 and will be rejected"
            is_wrong = len(bad) > PrepareOptions.max_reject_fraction * self.rows.num_lines
            findings.append(Finding(what, to_utf8(b"\n".join(bad)), is_wrong=is_wrong))
        elif any(_NO_TEXT in each.name for each in self.guesses):
            findings.append(Finding("the names of the columns are not valid UTF-8", to_utf8(b"")))
        shown = next((each.name for each in self.rows.columns if _IMPRESSIONS.search(each.plain_name)), "")
        if shown and self.label.clicked == ">= 1":
            what = f"a row with clicks of several impressions ({shown}) is one click here"
            findings.append(Finding(what, "write a row for each click and each other one"))
        return findings

    def __repr__(self) -> str:
        """Return the text of the proposed YAML file, so that a notebook displays it."""
        return self.as_yaml()

    def as_yaml(self) -> str:
        """Return the text of the proposed YAML file, for the option `--data`.

        Comments in it give the reason of each guess.
        """
        settings = {name: _plain(value) for name, value in self.settings.items()}
        lines = [f"# {comment}" for comment in self._comments()]
        lines += yaml.safe_dump(settings, allow_unicode=True, sort_keys=False).splitlines() if settings else []
        lines.append("columns:")
        entries = [yaml.safe_dump({each.name: each.kind}, allow_unicode=True).strip() for each in self.guesses]
        width = min(max(map(len, entries)), 40)
        lines += [f"  {entry:{width}}  # {each.reason}" for entry, each in zip(entries, self.guesses, strict=True)]
        return "\n".join(lines) + "\n"

    def _comments(self) -> list[str]:
        chunk, log_format = self.rows.chunk(self.as_format()), self.as_format()
        good = len(choose_kernels("auto").parse_chunk(chunk, log_format).rows.labels)
        first = f"the first {self.rows.num_lines:,} rows of {self.rows.location}"
        comments = [
            f"Proposed from {self.rows.sampled or first}; please check it.",
            f"{good:,} of these rows are good by this description.",
            f"The {self.label_line}. For another one: --label NAME, or NAME=VALUE of a click.",
        ]
        if keys := self.rows.of_folders:
            comments.append(f"The names of the log's folders ({keys[0]}=…) give these columns: {', '.join(keys)}.")
        if bucketed := [each.name for each in self.guesses if each.is_bucketed]:
            comments.append(
                f"prepare.integer_buckets=true gives {', '.join(bucketed)} a category of their size as well: the order "
                "of their numbers tells more of the label than single values."
            )
        # The comment also names columns of kind ignored: a column may be ignored because its large ids were rounded
        # when they became floats, for example if all of them became equal.
        exact = {each.name for each in self.guesses if KINDS[each.kind].is_exact or each.kind == "ignored"}
        if names := [column.name for column in self.rows.columns if column.name in exact and column.are_inexact]:
            comments.append(f"In {', '.join(names)} {INEXACT}.")
        return [*comments, *map(str, self.findings)]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: asdict(each) if isinstance(each, ListForm | VectorForm) else _plain(each)
            for name, each in value.items()
        }
    return list(value) if isinstance(value, tuple) else value


def describe(log: Any, num_rows: int = DEFAULT_ROWS, label: str | None = None, version: int | None = None) -> Proposal:
    """Propose the description of a log from its first `num_rows` rows.

    - `log`: paths or URIs as for `find_log`, an Arrow table, or a pandas DataFrame.
    - `label`: the column of the label, if it is known: NAME, NAME=VALUE where VALUE means a click, or a rule such as
      NAME>=4. By default the label is found by its name and values.
    - `version`: the version of a Delta table, or the id of a snapshot of an Iceberg table; by default the newest.

    Return a `Proposal`. Raise FileNotFoundError if there is no log, and ValueError if it cannot be read, if it has no
    rows or no columns, or if the label is not sure. The message then lists the candidates.

    >>> import pyarrow as pa
    >>> table = pa.table({"site": list("abcd") * 50, "price": [1.5, 2.5] * 100, "click": [0, 0, 1, 0, 1] * 40})
    >>> proposal = describe(table)
    >>> proposal.label.name, [guess.kind for guess in proposal.guesses]
    ('click', ['string', 'float', 'label'])
    """
    if num_rows < 1:
        raise ValueError(f"describe needs at least 1 row to look at; found --rows {num_rows}")
    rows = read_first_rows(log, num_rows, version)
    trim, separator = rows.layout.get("trim", False), rows.layout.get("separator", LogFormat().separator)
    # `separator` is the character that cannot separate the values of a list. In a log with quotes there is none,
    # because a quoted cell may contain the log's separator.
    separator *= not rows.layout.get("quotes", False)
    columns = [column.cleaned(trim, ()) for column in rows.columns]
    has_names = rows.table is not None or rows.layout.get("header", False)
    of_log = chosen_label(columns, label) if label else find_label(columns, has_names)
    target = next(column for column in columns if column.name == of_log.name)
    clicks, good = of_log.of(target)
    labels = Labels.of(clicks, good)
    others = [column for column in columns if column is not target]
    missing = missing_words(others, {*of_log.cells}.difference(NO_LABEL))
    # The preparation empties cells with a word for missing values (such as NULL) before it reads labels. If such a word
    # means no click, the empty cell must therefore mean no click too.
    if {*missing}.intersection(of_log.not_clicked):
        of_log = replace(of_log, not_clicked=tuple(dict.fromkeys(["", *of_log.not_clicked])))
    cleaned = [column if column is target else column.cleaned(trim, missing) for column in columns]
    sure_labels = labels if labels.are_enough else None
    guesses = [
        Guess(target.name, "label", some_values(target)) if column is target else guess(column, separator, sure_labels)
        for column in cleaned
    ]
    guesses = _without_leaks(guesses, cleaned, clicks, good, of_log.name)
    if not any(KINDS[each.kind].role for each in guesses):
        raise ValueError("besides the label no column tells rows apart, or tells anything: there is nothing to learn")
    rate = float(clicks[good].mean()) if good.any() else 0.0
    return Proposal(rows, of_log, rate, tuple(guesses), _settings(rows.layout, missing, target, of_log, guesses))


def _settings(
    layout: dict[str, Any], missing: tuple[str, ...], label_column: Column, label: Label, guesses: Sequence[Guess]
) -> dict[str, Any]:
    """Return the settings of the proposed LogFormat by name, except `columns`.

    `layout` has the settings of the lines, such as separator and header. `missing` are the words for missing values.
    `label` says which cells of `label_column` mean a click, and `guesses` has the guess for each other column. Settings
    whose values are the defaults are left out.
    """
    settings = dict(layout)
    if any(each.has_blanks for each in guesses):
        settings["trim"] = True
    if any(each.decimal == "," for each in guesses):
        settings["decimal"] = ","
    if missing:
        settings["missing"] = missing
    is_partly_missing = label_column.count_of(NO_LABEL) or label_column.num_present < len(label_column.codes)
    if is_partly_missing and not label.has_gaps:
        settings["label"] = "optional"
        settings["missing"] = tuple(
            dict.fromkeys([*missing, *(value for value in label_column.values if value in NO_LABEL)])
        )
    settings |= label.settings
    settings["timestamps"] = {each.name: each.form for each in guesses if each.kind == "timestamp"}
    names = {each.name for each in guesses}
    features = {each.name: [part for part in ("hour", "weekday") if each.name + TIME_FEATURES[part] not in names]
                for each in guesses if each.kind == "timestamp"}  # fmt: skip
    settings["features"] = {name: tuple(parts) for name, parts in features.items() if len(parts) < 2}
    settings["lists"] = {each.name: each.list_form for each in guesses if each.kind == "list"}
    settings["vectors"] = {each.name: VectorForm(each.width) for each in guesses if each.kind == "vector"}
    return {name: value for name, value in settings.items() if value not in ((), {})}


def _without_leaks(
    guesses: list[Guess], columns: Sequence[Column], clicks: np.ndarray, good: np.ndarray, label: str
) -> list[Guess]:
    """Return the guesses, changed for columns that seem to be made from the label or known only after it.

    A column that predicts the label by itself, or that is another label, gets the kind ignored. A column that may be
    made from the label keeps its guessed kind and gets a remark. `label` is the name of the label column, `clicks` [n]
    is True for clicks, and `good` [n] for rows with a valid label.
    """
    with_columns = [*zip(guesses, columns, strict=True)]
    looked_at = [column for each, column in with_columns if each.kind not in ("label", "ignored")]
    leaks = dict(leaking_columns(looked_at, clicks, good))
    new_guesses = []
    for each, column in with_columns:
        auc, reason = leaks.get(each.name, 0.0), each.reason
        if each.name != label and is_another_label(column):
            each, reason = Guess(each.name, "ignored", ""), _ANOTHER_LABEL.format(label)
        elif auc >= _LEAK_AUC:
            each, reason = Guess(each.name, "ignored", ""), _LEAK_REASON.format(auc)
        elif auc:
            reason = _REMARK.format(reason, auc)
        elif each.name != label and (value := _value_in_clicks_alone(column, clicks, good)):
            reason = _IN_CLICKS_ALONE.format(reason, value)
        is_weight = each.name != label and column.numbers is not None and _WEIGHT_NAME.search(column.plain_name)
        new_guesses.append(replace(each, reason=reason + _WEIGHT * bool(is_weight)))
    return new_guesses


def _value_in_clicks_alone(column: Column, clicks: np.ndarray, good: np.ndarray) -> str:
    """Return a value of `column` that at least 50 rows have, all of them clicks, or "" if there is none.

    Only columns with exactly two values are examined, and only if at most half of the rows are clicks.
    """
    if len(column.values) != 2 or 2 * clicks[good].mean() > 1:
        return ""
    counts, of_clicks = (np.bincount(column.codes[rows] + 1, minlength=3)[1:] for rows in (good, good & clicks))
    known = np.flatnonzero((counts == of_clicks) & (counts >= _MOST_BY_CHANCE))
    return column.values[known[0]] if len(known) else ""
