"""Find the column of a log that is the label, by weighing evidence, and decide which of its values mean a click."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.checks.first_rows import CAPITAL, DECIMAL, INTEGER, TYPE_IN_NAME, Column
from data_prep.checks.held_out import category_losses, entropy, some_rows
from data_prep.kernels.parse import parse_labels
from data_prep.kernels.strings import Strings
from data_prep.options.format_checks import checked_format
from data_prep.options.kinds import Kind
from data_prep.options.log_format import BOOLEANS, RELATIONS, REST, LogFormat

# In a label column, these cells mean that the label is missing.
NO_LABEL = ("", "NULL", "null", r"\N", "NA", "N/A", "NaN", "nan", "?")
# A column with more distinct values than this can be a label only if nearly all of its cells have one of two values.
_MOST_VALUES = 50
# A column with more distinct values than this is not a label, even if nearly all cells have one of two values.
_MOST_WITH_SLIPS = 1_000
# Up to this fraction of a label's cells may differ from its two values, because some rows of a log are broken.
_BROKEN_SHARE = 0.02
# A label is accepted without asking the user if its weight (the sum of its evidence) is at least `_SURE_WITH_NAMES`, or
# `_SURE_WITHOUT_NAMES` if the log has no column names, and exceeds the weight of the second-best column by at least
# `_LEAD`. With names the limit is higher, because the position of a column is then too little evidence.
_SURE_WITH_NAMES, _SURE_WITHOUT_NAMES, _LEAD = 2.5, 2.0, 1.0
# If no other column, used alone to predict the label, lowers the log loss by at least this fraction, the label counts
# as unpredictable.
_NO_GAIN = 0.002
_MOST_CANDIDATES = 5  # Messages list at most this many columns that may be the label.

_NAMED = "named like a label"
_FIRST, _LAST = "in the first column that has values of several rows", "in the last column"
_YES_AND_NO, _MORE_THAN_TWO = "two values, of yes and no", "more than two values"

_LETTERS = re.compile(r"[^\W\d_]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words of several languages that occur in the names of label columns.
_LABEL_WORDS = _words(
    """
    label labels target class outcome y response clicked click clicks clk converted conversion churn churned
    survived survival noshow attrition exited left canceled cancelled cancellation fraud fraudulent spam
    subscribed subscription deposit bought buy purchased purchase attributed approved approval died death
    deceased readmitted readmission diagnosis default defaulted delinquent won win winner success successful
    satisfied satisfaction hired promoted returned installed install donated dropout graduated passed
    malignant booked ordered converts delayed late failure failed fault faulty defect defective recid
    recidivism claim claimed duplicate phishing malware toxic admitted accepted acceptance arrested ziel klick geklickt
    klasse gekauft kündigung gekündigt clic cliqué cible classe étiquette résultat objetivo etiqueta clase
    resultado cliques alvo rótulo comprou cancelado abandono esito acquistato 标签 点击 目标 クリック 购买 流失
    """
)
# Words of `_LABEL_WORDS` that often occur in the names of features too.
_LABEL_WORDS_OF_FEATURES = _words("default left late response passed returned promoted deposit")
# Words that are evidence neither for nor against a label if they occur in a column's name.
_NEUTRAL_WORDS = _words(
    """
    is was did has flag ind indicator status yn n on ad ads the a next month payment customer user client in of
    to value loan item order booking hotel email hospital card account reservation transaction product session
    visit binary col column event reported
    """
)
# Words that are weak evidence for a label if they occur in a column's name.
_HINT_WORDS = _words(
    """
    status result action income salary revenue risk attack tomorrow future next decision paid reached visit
    approve interested quality species variety num disease stroke diabetes cancer intrusion intent repaid
    engaged retained final bad complete completed eligible
    """
)
# Words that are evidence against a label if they occur in a column's name.
_OTHER_WORDS = _words(
    """
    sex gender weekend holiday weekday day week hour mobile phone married partner senior train test split fold
    missing treatment group flagged predicted estimated prior previous previously last insured license name id
    count time date number rate amount lat lon index
    """
)
_RATING_WORDS = {"rating", "ratings", "stars", "star", "score", "quality", "overall"}
# If one of a label's two values is among these words, the value means a click (`_YES`) or no click (`_NO`).
_YES = _words(
    """
    yes y true t 1 ja oui si sí sim да 是 はい on click clicked churn churned converted bought positive pos spam
    fraud attack malignant success approved won win died accepted subscribed >50k hit buy
    """
)
_NO = _words(
    """
    no n false f 0 nein non não нет 否 いいえ off normal benign negative neg none ham legit legitimate alive never
    -1 retained stayed ok rejected lost loss
    """
)
# If one of these words occurs in a column with more than two values, that is evidence that the column is a label: the
# word means no click, and all other values mean a click.
_CLEAR_NO = _NO - {"no", "n", "false", "f", "0", "-1", "off", "none", "ok"}
_WORD_VALUES = {word.lower(): word is yes for yes, no in BOOLEANS for word in (yes, no)}
_PEOPLE = ({"male", "female"}, {"m", "f"}, {"man", "woman"}, {"h", "m"})
_NEGATION = re.compile(r"^(not|no|non|un|dis|in|im|il)[\s_-]*|[\s_-](not|no|dis|un|non)[\s_-]*", re.IGNORECASE)
_CHOICE = re.compile(rf"(?P<name>.+?)\s*(?P<relation>{'|'.join(RELATIONS)}|=)\s*(?P<value>.*)", re.DOTALL)


class Evidence(NamedTuple):
    """A reason for or against a column being the label: a positive or negative weight, and a text for messages.

    If the text is empty, messages leave it out, but the weight counts all the same.
    """

    weight: float
    text: str


@dataclass(frozen=True)
class Label:
    """A column that may be the label, with the cells that mean a click or no click, and evidence that it is the label.

    `clicked` and `not_clicked` list cells, or are a rule such as ">= 4" or `REST`, as in LogFormat.
    """

    name: str
    clicked: tuple[str, ...] | str
    not_clicked: tuple[str, ...] | str = ("0",)
    evidence: tuple[Evidence, ...] = ()
    close: tuple[str, ...] = ()  # Names of other columns that are nearly as likely to be the label.

    @property
    def weight(self) -> float:
        return sum(each.weight for each in self.evidence)

    @property
    def why(self) -> str:
        """The reasons why this column may be the label, as one text for messages, separated by semicolons."""
        return "; ".join(each.text for each in self.evidence if each.text)

    @property
    def format(self) -> LogFormat:
        """A `LogFormat` with this label column and one dummy column, with which the cells of the label are parsed."""
        columns: dict[str, Kind] = {self.name: "label", f"not {self.name}": "string"}
        return checked_format(LogFormat(columns, clicked=self.clicked, not_clicked=self.not_clicked))

    @property
    def settings(self) -> dict[str, tuple[str, ...] | str]:
        """The settings `clicked` and `not_clicked` of a LogFormat with this label, by name, with their values.

        A setting whose value is LogFormat's default is left out.
        """
        cells = {"clicked": self.clicked, "not_clicked": self.not_clicked}
        return {name: value for name, value in cells.items() if value != getattr(LogFormat(), name)}

    @property
    def cells(self) -> tuple[str, ...]:
        """All cells that `clicked` and `not_clicked` list. A setting that is a rule or `REST` lists no cells."""
        return tuple(cell for cells in (self.clicked, self.not_clicked) if isinstance(cells, tuple) for cell in cells)

    @property
    def has_rest(self) -> bool:
        """True if the setting `clicked` or `not_clicked` is `REST` (the word rest).

        Then only the cells of one class are listed, and all other cells mean the other class.
        """
        return REST in (self.clicked, self.not_clicked)

    @property
    def has_gaps(self) -> bool:
        """True if an empty cell of the label, or a word such as NULL, means no click.

        Logs in which clicks were joined to impressions have such labels.
        """
        return not {*NO_LABEL}.isdisjoint(self.not_clicked)

    def of(self, column: Column) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Parse the cells of `column` as labels.

        Return a mask [n] of the clicks, and a mask [n] of the rows with a valid label.
        """
        # Missing cells have the code -1, which indexes the last element of `cells`. So `cells` ends with an empty cell.
        cells = Strings.of([*(value.encode() for value in column.values), b""])
        clicks, _, good = parse_labels(cells, self.format)
        return clicks[column.codes], good[column.codes]


def words_of(name: str) -> list[str]:
    """Return the words in the name of a column, in lower case, without a type at its end such as `:token`."""
    return [word.lower() for word in _LETTERS.findall(CAPITAL.sub(" ", TYPE_IN_NAME.sub("", name)))]


def find_label(columns: Sequence[Column], has_names: bool) -> Label:
    """Return the column of a log that is most likely the label, with the cells that mean a click.

    `has_names` is False if the log has no header. Raise ValueError if it is not sure which column is the label. The
    message lists the likeliest columns.
    """
    candidates = sorted(_candidates(columns, has_names), key=lambda each: -each.weight)
    near = [each for each in candidates if candidates[0].weight - each.weight < _LEAD + 1]
    weighed = sorted((_with_predictor(each, columns) for each in near), key=lambda each: -each.weight)
    if not weighed or weighed[0].weight <= 0:
        filled = [each for each in columns[::-1] if each.values]
        named = [each for each in filled if has_names and _evidence_of_name(each.name).weight > 0]
        named = named or [each for each in filled if len(each.values) <= _MOST_VALUES or each.numbers is not None]
        shown = "\n".join(f"  {_how_to_choose(each)}" for each in named[:_MOST_CANDIDATES])
        raise ValueError(
            "no column looks like a label: none has two values, or one in most rows and a name such as click. Name it: "
            f"--label NAME=VALUE (all others are no click), or --label 'NAME>=4' for numbers. The likeliest:\n{shown}"
        )
    best, *runners_up = [*weighed, *candidates[len(near) :]]
    is_sure = best.weight >= (_SURE_WITH_NAMES if has_names and runners_up else _SURE_WITHOUT_NAMES)
    if is_sure and not any(best.weight - other.weight < _LEAD or _casts_doubt(other, best) for other in runners_up):
        close = tuple(each.name for each in runners_up if best.weight - each.weight < _LEAD + 1)
        return replace(best, close=close)
    listed = "\n".join(
        f"  {each.name}: {each.format.label_in_words.partition(', ')[2]}; {each.why}"
        for each in [best, *runners_up][:_MOST_CANDIDATES]
    )
    more = f"\n  … and {len(runners_up) + 1 - _MOST_CANDIDATES} more" if len(runners_up) >= _MOST_CANDIDATES else ""
    raise ValueError(
        "which column is the label is not sure. Name it: --label NAME, with --label NAME=VALUE for another value of a "
        f"click. The candidates, the likeliest first:\n{listed}{more}"
    )


def _casts_doubt(other: Label, best: Label) -> bool:
    """Return True if `other` is so likely to be the label instead of `best` that the user has to choose one of the two.

    Return True if both columns are clearly named like labels, such as click and buy. Return True also if `other` is the
    last column and has values such as yes and no, while `best` is neither the first nor the last column and has an
    ambiguous name such as default.
    """
    of_best, of_other = ({each.text for each in label.evidence} for label in (best, other))
    if _NAMED in of_best & of_other and not any(map(_has_a_feature_s_name, (best.name, other.name))):
        return True
    has_the_form = {_LAST, _YES_AND_NO} <= of_other and other.weight >= 2
    return not {_FIRST, _LAST} & of_best and _has_a_feature_s_name(best.name) and has_the_form


def _has_a_feature_s_name(name: str) -> bool:
    return bool(_LABEL_WORDS_OF_FEATURES.intersection(words_of(name)))


def is_another_label(column: Column) -> bool:
    """Return True if a column that was not chosen as the label seems to be a label too, by its name and values.

    Such a column should not be a feature: it is often made from the label, or known only after the label.
    """
    label = _meaning(column)
    is_named = _evidence_of_name(column.name).text == _NAMED and not _has_a_feature_s_name(column.name)
    return is_named and label is not None and not label.has_rest


def _how_to_choose(column: Column) -> str:
    """Return a text that describes the values of a column, and the option `--label` that makes the column the label."""
    if len(column.values) == 1:
        return (
            f"{column.name} has one value, {column.values[0]!r}, in these rows, and a label two; look at more (--rows)"
        )
    or_rest = f", or --label {column.name}={REST} if each filled cell is a click" if _gaps(column) else ""
    if column.numbers is None:
        click = next((value for value in column.values if value.lower() in _YES), column.frequent(2)[-1])
        return f"{column.name}: {_values_of(column)}; --label {column.name}={click}{or_rest}"
    numbers = column.numbers[column.codes[column.codes >= 0]]
    low, high, middle = numbers.min(), numbers.max(), np.median(numbers)
    middle = middle if middle > low else numbers[numbers > low].min()
    rates = " (no kind has labels between them)" if (low, high) == (0, 1) or 0 < high - low < 1 else ""
    return f"{column.name} has numbers from {low:g} to {high:g}{rates}; --label '{column.name}>={middle:g}'{or_rest}"


def chosen_label(columns: Sequence[Column], choice: str) -> Label:
    """Return the label that the user chose with the option `--label`: NAME, NAME=VALUE or a rule such as NAME>=4.

    NAME is a column of the log, and VALUE the value that means a click. Raise ValueError if the log has no such column
    or value, or if only NAME is given and the values of the column do not show which of them mean a click.
    """
    by_name = {column.name: column for column in columns}
    evidence = (Evidence(0.0, "chosen by --label"),)
    if (column := by_name.get(choice)) is not None:
        proposed = _meaning(column)
        if proposed is None and len(column.values) == 1:
            raise ValueError(f"--label {choice}: {_how_to_choose(column)}")
        if proposed is None:
            raise ValueError(
                f"--label {choice}: {_values_of(column)}; which of them is a click? Give --label {choice}=VALUE, or "
                f"--label '{choice}>=NUMBER' for numbers"
            )
        return replace(proposed, evidence=evidence)
    match = _CHOICE.fullmatch(choice)
    column = by_name.get(match["name"]) if match else None
    if match is None or column is None:
        raise ValueError(f"--label {choice}: no column has that name; found {', '.join(by_name)[:500]}")
    if match["relation"] != "=":
        return Label(column.name, f"{match['relation']} {match['value'].strip()}", evidence=evidence)
    if match["value"] == REST and _gaps(column):
        return Label(column.name, REST, _gaps(column), evidence=evidence)
    if match["value"] not in column.values:
        raise ValueError(f"--label {choice}: {column.name} has no such value; {_values_of(column)}")
    other_values = [value for value in column.values if value != match["value"] and value not in NO_LABEL]
    rest = tuple(other_values) if len(other_values) == 1 else REST if other_values else _gaps(column)
    return Label(column.name, (match["value"],), rest, evidence=evidence)


def _values_of(column: Column) -> str:
    examples = ", ".join(map(repr, column.frequent(_MOST_CANDIDATES)))
    return f"it has {len(column.values):,} values: {examples}{', …' * (len(column.values) > _MOST_CANDIDATES)}"


def _candidates(columns: Sequence[Column], has_names: bool) -> Iterator[Label]:
    labels = [(column, label) for column in columns if (label := _meaning(column)) is not None]
    repeated = [column.name for column in columns if len(column.values) < 0.9 * max(column.num_present, 1)]
    two_valued = [column for column, label in labels if not (label.has_rest or label.has_gaps or _are_people(column))]
    of_yes_and_no = [column.name for column in two_valued if _are_yes_and_no(column)]
    for column, label in labels:
        is_last = column.name == columns[-1].name
        name = _evidence_of_name(column.name) if has_names else Evidence(0.0, "")
        evidence = [name]
        if is_last:
            evidence.append(Evidence(1.5 if has_names else 2.0, _LAST))
        elif [column.name] == repeated[:1]:
            evidence.append(Evidence(1.0 if has_names else 1.5, _FIRST))
        evidence.append(_evidence_of_values(column, label))
        if [each.name for each in two_valued] == [column.name]:
            evidence.append(Evidence(1.0, "no other column has two values of the kind"))
        elif of_yes_and_no == [column.name] and is_last:
            evidence.append(Evidence(1.0, "no other column has values of yes and no"))
        # A label column is plain if each of its cells is one of two values, none of which is empty or means "all
        # others". A column that is not plain is only a candidate if its name suggests a label or, in a log without
        # column names, if it is the last column.
        is_plain = not label.has_rest and not label.has_gaps and not isinstance(label.clicked, str)
        if is_plain or (name.weight >= 1 if has_names else is_last):
            yield replace(label, evidence=tuple(evidence))


def _evidence_of_name(name: str) -> Evidence:
    words = words_of(name)
    labels, other_words = {word for word in words if _is_label_word(word)}, _OTHER_WORDS.intersection(words)
    labels |= {label for label in _LABEL_WORDS if not label.isascii() and any(label in word for word in words)}
    if "no" in words and "show" in words:
        labels, words = {"noshow"}, ["noshow"]
    if labels == {"y"} and len(words) > 1:
        labels = set()
    is_sure = "label" in words or all(word in labels or word in _NEUTRAL_WORDS for word in words)
    if labels and not other_words and is_sure:
        return Evidence(4.0, _NAMED)
    if any(word.startswith("non") and word[3:] in _LABEL_WORDS for word in words):
        return Evidence(-2.0, "named like the opposite of a label")
    hints = _HINT_WORDS.intersection(words)
    if other_words:
        return Evidence(0.5, "") if labels or hints else Evidence(-1.5, "named like another thing")
    if labels:
        return Evidence(2.5, f"{min(labels)!r} in its name")
    if _RATING_WORDS.intersection(words):
        return Evidence(3.0, "named like a rating")
    if hints:
        return Evidence(1.5, f"{min(hints)!r} in its name")
    return Evidence(0.0, "")


def _is_label_word(word: str) -> bool:
    """Return True if `word` is in `_LABEL_WORDS`, or is another form of a word in it, as subscribe is of subscribed."""
    if word in _LABEL_WORDS:
        return True
    return len(word) >= 5 and any(
        (len(known) >= 5 and word.startswith(known)) or (known.startswith(word) and len(known) <= len(word) + 2)
        for known in _LABEL_WORDS
    )


def _are_people(column: Column) -> bool:
    return {value.lower() for value in column.values} in _PEOPLE


def _are_yes_and_no(column: Column) -> bool:
    values = {value.lower() for value in column.values}
    return bool(values & _YES) and bool(values & _NO)


def _evidence_of_values(column: Column, label: Label) -> Evidence:
    if _are_people(column):
        return Evidence(-2.0, "values of a gender")
    if label.has_rest:
        telling = {value.lower().strip(".") for value in column.values} & _CLEAR_NO
        return Evidence(1.5, f"one of its values is {min(telling)!r}") if telling else Evidence(-1.5, _MORE_THAN_TWO)
    if isinstance(label.clicked, str):
        return Evidence(-0.5, "")
    return Evidence(0.5, _YES_AND_NO) if _are_yes_and_no(column) else Evidence(0.0, "two values")


def _with_predictor(label: Label, columns: Sequence[Column]) -> Label:
    """Return the candidate `label` with additional evidence: how well one other column alone predicts the label.

    The other column is the one that predicts the label best. Return `label` unchanged if there are fewer than 100 rows,
    no other column, or only labels of one class.
    """
    (label_column,) = [column for column in columns if column.name == label.name]
    labels, good = label.of(label_column)
    rows = some_rows(good)
    uncertain = entropy(labels[rows])
    gains = {
        column.name: 1 - float(category_losses(column.codes[rows], labels[rows]).mean()) / uncertain
        for column in columns
        if column is not label_column and 1 < len(column.values) <= len(rows) / 2 and uncertain and len(rows) >= 100
    }
    if not gains:
        return label
    best = max(gains, key=lambda name: gains[name])
    evidence = Evidence(0.25, f"{best} lowers its log loss by {gains[best]:.0%}")
    if gains[best] < _NO_GAIN:
        evidence = Evidence(-0.5, "no other column alone predicts it")
    return replace(label, evidence=(*label.evidence, evidence))


def _meaning(column: Column) -> Label | None:
    """Return a column as a candidate for the label, with the cells that mean a click, or None if it cannot be a label.

    A label has two values, or numbers with a rule such as ">= 1", or one value that means a click or no click while all
    other values mean the opposite.
    """
    if len(column.values) > _MOST_WITH_SLIPS:
        return None
    counts = {value: count for value, count in zip(column.values, column.counts, strict=True) if value not in NO_LABEL}
    present = list(counts)
    words = words_of(column.name)
    ways = _ways_of_writing(sorted(counts, key=lambda value: -counts[value]))
    if len(ways) == 1 and _is_yes(ways[0][0]) and (gaps := _gaps(column)):
        return Label(column.name, ways[0], gaps)
    if len(ways) == 2:
        clicked, not_clicked = ways if _positive(ways[0][0], ways[1][0]) == ways[0][0] else ways[::-1]
        return Label(column.name, clicked, not_clicked)
    if len(present) > 2 and all(map(DECIMAL.fullmatch, present)) and len(present) <= max(_MOST_VALUES, 2):
        if _RATING_WORDS.intersection(words):
            ordered = sorted(Counter(counts).elements(), key=float)
            return Label(column.name, f">= {ordered[len(ordered) // 2]}")
        if "0" in present and all(map(INTEGER.fullmatch, present)) and not _is_nearly_two(counts):
            return Label(column.name, ">= 1") if {*_LABEL_WORDS, "num"}.intersection(words) else None
    if len(ways) < 2:
        return None
    first, second = sorted(counts, key=lambda value: -counts[value])[:2]
    if _is_nearly_two(counts):
        positive = _positive(first, second)
        return Label(column.name, (positive,), (second if positive == first else first,))
    if len(present) > _MOST_VALUES or all(map(DECIMAL.fullmatch, present)):
        return None
    telling = [value for value in present if len(value) > 1 and value.lower().strip(".") in _NO]
    if len(telling) == 1:
        return Label(column.name, REST, (telling[0],))
    if 2 * counts[first] >= sum(counts.values()):
        is_yes = first.lower() in _YES
        return Label(column.name, (first,), REST) if is_yes else Label(column.name, REST, (first,))
    return None


def _gaps(column: Column) -> tuple[str, ...]:
    """Return the cells of a label column that stand for a missing label.

    The result has those of the cells in `NO_LABEL`, such as "" and NULL, that occur in the column.
    """
    return ("",) * bool((column.codes < 0).any()) + tuple(value for value in column.values if value in NO_LABEL)


def _is_yes(value: str) -> bool:
    return value.lower() in _YES or (DECIMAL.fullmatch(value) is not None and float(value) > 0)


def _ways_of_writing(values: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the values of a label column in groups, each of which has all ways of writing one value.

    A group has equal numbers, such as 1 and 1.0, or words that differ only in capital letters, such as Yes and YES. If
    all values are words for true or false, the words for true are one group, and those for false another.
    """
    are_booleans = all(value.lower() in _WORD_VALUES for value in values)
    groups: dict[object, list[str]] = {}
    for value in values:
        word = _WORD_VALUES[value.lower()] if are_booleans else value.lower()
        groups.setdefault(float(value) if DECIMAL.fullmatch(value) and not are_booleans else word, []).append(value)
    return [tuple(group) for group in groups.values()]


def _is_nearly_two(counts: dict[str, int]) -> bool:
    """Return True if nearly all rows of a column have one of two opposite values.

    Such values are yes and no, or sick and notsick. `counts` maps each value of the column to its number of rows.
    """
    largest = sorted(counts, key=lambda value: -counts[value])[:2]
    pair = {value.lower() for value in largest}
    most = sum(counts[value] for value in largest) >= (1 - _BROKEN_SHARE) * sum(counts.values())
    are_opposites = any(f"{word}{value}" in pair for word in ("not", "no", "non", "un") for value in pair)
    return most and (are_opposites or (bool(pair & _YES) and bool(pair & _NO)))


def _positive(common: str, rare: str) -> str:
    """Return which of the two values of a label means a click.

    Fewer rows have the value `rare` than the value `common`. The meaning of the words decides, or the larger of two
    numbers. If neither tells, `rare` means a click.
    """
    pair = (common, rare)
    if all(map(DECIMAL.fullmatch, pair)):
        return max(pair, key=float)
    for words, is_yes in ((_YES, True), (_NO, False)):
        values = [value for value in pair if value.lower().strip(".") in words]
        if len(values) == 1:
            return values[0] if is_yes else (rare if values[0] == common else common)
    above = [value for value in pair if value.lstrip().startswith((">", "≥"))]
    if len(above) == 1:
        return above[0]
    for value, other in (pair, pair[::-1]):
        without = _NEGATION.sub("", value).strip().lower()
        if without != value.strip().lower() and other.lower() in (without, value.lower()):
            return other
        # The negated value may contain the other value among more words: "neutral or dissatisfied" contains
        # "satisfied".
        if other.lower() in value.lower() and _NEGATION.search(value):
            return other
    return rare
