"""Guess the kind (such as string or float) of each column of a log.

The cells and the name of a column decide, and how well the column predicts the label.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.checks.first_rows import DECIMAL, INTEGER, TYPE_IN_NAME, Column
from data_prep.checks.guess_time import time_form
from data_prep.checks.held_out import category_losses, deviations, entropy, number_losses, some_rows
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.parse import DECIMAL as DECIMAL_BYTES
from data_prep.kernels.parse import vector_parts
from data_prep.kernels.strings import Strings, spans_in_brackets, split_lists
from data_prep.options.kinds import ISO, Kind
from data_prep.options.log_format import BOOLEANS, MAX_LIST_LENGTH, MAX_WIDTH, ListForm
from data_prep.options.prepare_options import PrepareOptions

_HARD_WORDS = (
    *("NULL", "null", "(null)", r"\N", "NA", "<NA>", "N/A", "n/a", "#N/A", "NaN", "nan", "NaT", "nil"),
    *("?", "??", "-", "--", "---", ".", "None", "0000-00-00", "0000-00-00 00:00:00"),
    *("#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!", "1.#INF", "-1.#INF", "1.#QNAN", "-1.#IND"),
    *("9999-12-31", "9999-12-31 00:00:00", "9999-12-31 23:59:59", "9999-12-31T00:00:00", "9999-12-31T23:59:59"),
)
_SOFT_WORDS = ("unknown", "unk", "missing", "undefined", "unspecified", "not available", "not set", "(not set)", "none")
_MISSING_WORDS = {*_HARD_WORDS, *(way(word) for word in _SOFT_WORDS for way in (str, str.capitalize, str.upper))}
_CODE_NAMES = re.compile(
    r"((^|[_ .-])(type|code|cat|category|class|group|hour|day|weekday|month|zip|zipcode|user|item|product|brand|ad|"
    r"campaign|creative|advertiser|publisher|placement|site|app|page|device|region|store|shop|channel|os)|code)$",
    re.IGNORECASE,
)
_ID_NAMES = re.compile(
    r"(^|[_ .-])(id|uid|guid|uuid|key|idx|index|no|nr|upc|ean|gtin|isbn|sku|barcode|phone|msisdn|imei)$"
    r"|^id(?=[_ .-]|$)",
    re.IGNORECASE,
)
_GROUP_NAMES = re.compile(r"(^|[_ .-])(user|session|query|request|visit|visitor)([_ .-]?id)?$", re.IGNORECASE)
_WORD = re.compile("[^0-9]{1,20}")
_HEX = re.compile("[0-9a-f]{8}")
_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+|[-+]?[0-9]+")
_THOUSANDS = re.compile(r"[-+]?[1-9][0-9]{0,2}(,[0-9]{3})+|[-+]?[0-9]{1,3}")
# Matches numbers with marks between thousands: 1,234.50 or 1.234,50.
_GROUPED = re.compile(r"[-+]?[0-9]{1,3}(,[0-9]{3})*(\.[0-9]+)?|[-+]?[0-9]{1,3}(\.[0-9]{3})*(,[0-9]+)?")
# Matches numbers with other characters: 12.5%, $3,000, (2.50), 5'000 and 61 kg.
_MARKED = re.compile(
    r"[-+\u2212(]?[$€£¥]?[-+\u2212]?[0-9]+([.,][0-9]+|['\u2019\u00a0\u202f][0-9]{3})* ?"
    r"(?P<unit>[)%$€£¥]?|[a-zA-Z]{1,3})"
)
_UNMARKED = re.compile("[-+0-9.,]*")
_MANY_ROWS = 1_000  # With at least this many rows, a column may have a few repeated values and still count as unique.
_FEW_ROWS = 20  # With fewer rows than this, it is chance if all values of a column are distinct.
# A column counts as unique if its number of distinct values, divided by its number of cells that are not missing, is
# above this fraction.
_UNIQUE_SHARE = 0.99
# If a column of whole numbers has at most this many distinct values and some are above 1,000, the numbers count as
# codes (names of things) and not as amounts.
_FEW_CODES = 50
# If most numbers of a column have the same number of digits, and at least this many, the numbers count as codes, such
# as product codes, and not as amounts.
_LONG_CODE = 12
# For numbers to count as codes, at least this fraction of the distinct ones must have the same number of digits.
_SAME_LENGTH = 0.8
_SLIP_SHARE = 0.001  # A column counts as numeric if at most this fraction of its cells are not numbers.
# If a column has at least `_MANY_NUMBERS` distinct numbers and at most `_FEW_WORDS` other words, these words stand for
# missing cells.
_FEW_WORDS, _MANY_NUMBERS = 3, 20
_SURE_ERRORS = 2.0  # A difference of two mean log losses counts if it is more than this many standard errors.
# A column that lowers the log loss of the label by a smaller fraction than this does not predict the label.
_LEAST_GAIN = 5e-4
# Numbers are taken as codes if the column is named like an id, and as amounts if they have a decimal point or if most
# cells have a value that does not recur. They are taken as the opposite only if the column then predicts the label
# better by more than this many standard errors.
_SURE_ERRORS_OF_ORDER = 6.0
_MIN_COUNT = PrepareOptions.min_count
# Numbers look like row numbers if their range is at most this many times the number of rows.
_MOST_SPREAD = 1.2
_EXAMPLES = 3
# A column with a single value is ignored if more than this fraction of its cells have the value and the others are
# missing.
_ONE_VALUE_SHARE = 0.99
# Log losses are compared only if there are at least this many clicks and at least this many rows without a click.
_LEAST_LABELS = 50
_SURE_SEPARATORS = "|;^#\x02"  # These characters separate the values of a list. They rarely occur within other texts.
# These characters separate the values of a list only if all values match `_LIST_WORD`, because the characters also
# occur within texts that are no lists.
_WORD_SEPARATORS = " /~+&"
_LIST_SEPARATORS = _SURE_SEPARATORS + "," + _WORD_SEPARATORS
# Matches a value of a list: a word of letters and digits, perhaps with a weight after it (`:0.5`), or a word that pads
# lists, such as <pad>.
_LIST_WORD = r"([\w-]+([:=]-?[0-9]+\.[0-9]+)?|[<\[]\w+[>\]])"
_LARGEST_FLOAT32 = 3.4028235e38
# Only this many distinct values are compared with the words for true and false. A column of booleans has fewer, even if
# it has both words in lower case, upper case and capitalized.
_MOST_WORDS_OF_BOOLEANS = 13
_COUNTRY = re.compile("[A-Z]{2}")
_WITH_ZONE = re.compile(r".*:[0-9.]+ ?(Z|UTC|GMT|[+-][0-9:]{2,5})")
# A word in brackets without quotes, such as [INFO], is a text and not a list.
_ONE_IN_BRACKETS = re.compile(r"\[ *(['\"0-9-].*)?\]")
_WEIGHTED = re.compile(r".+[:=]-?[0-9]+\.?[0-9]*")
_UNIQUE_NUMBER = "an identifier, or a time; integer if it is an amount"
_LOOKED_AT = 1_000  # This many values of a column are examined to decide whether its cells are vectors.
_COMPONENT = re.compile(DECIMAL_BYTES.pattern + rb"|[-+]?(nan|inf|infinity|null|none)", re.IGNORECASE)
_FRACTION = re.compile(rb"\.[0-9]*[1-9]|[0-9.][eE]-")
_VERSION = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}|[0-9]{1,3}")
_VERSION_NAMES = re.compile(r"(^|[_ .-])(v|ver|version|release|os|sdk|build|firmware)$", re.IGNORECASE)
# A padded list ends in copies of the padding value. A value counts as padding if, among all lists that end in two equal
# values, more than this fraction end in this value.
_MOST_FILLED = 0.9
# Cells are lists if at least this fraction of them has several values. If all cells are in brackets, one cell with
# several values is enough.
_LIST_SHARE = 0.2


@dataclass(frozen=True)
class Guess:
    """The guessed kind of a column of a log, with the reason for the guess as text."""

    name: str
    kind: Kind
    reason: str
    form: str = ""  # If the kind is timestamp: how its times are written, as in LogFormat.timestamps.
    list_form: ListForm | None = None
    width: int = 0  # If the kind is vector: the number of components.
    has_blanks: bool = False  # True if blanks stand around the values of a list.
    decimal: str = "."
    # True if the description should also add a categorical field that is made from the numbers by dividing them into
    # buckets.
    is_bucketed: bool = False


@dataclass(frozen=True)
class Labels:
    """The labels of a sample of a log's rows, evenly spaced among the rows that have a valid label."""

    rows: NDArray[np.int64]  # Index of each row of the sample among the rows that were read.
    clicks: NDArray[np.bool_]  # Mask of the rows of the sample whose labels mean a click.

    @classmethod
    def of(cls, clicks: NDArray[np.bool_], good: NDArray[np.bool_]) -> Labels:
        rows = some_rows(good)
        return cls(rows, clicks[rows])

    @property
    def are_enough(self) -> bool:
        """True if the sample has enough clicks, and enough rows without a click, to compare log losses."""
        num_clicks = int(self.clicks.sum())
        return min(num_clicks, len(self.clicks) - num_clicks) >= _LEAST_LABELS


def missing_words(columns: Iterable[Column], known_words: Iterable[str]) -> tuple[str, ...]:
    """Return the words in cells of the columns that stand for a missing value, such as NULL, except `known_words`.

    Such a word commonly means a missing value (NULL), is one of a few words among the numbers of a column, or is one of
    a few numbers beyond the range of float32.
    """
    words: dict[str, None] = {}
    for column in columns:
        known = _MISSING_WORDS.intersection(column.values)
        texts: list[str] = []
        if column.numbers is None:
            strange = (
                value for value in column.values if value and value not in known and not DECIMAL.fullmatch(value)
            )
            texts = list(itertools.islice(strange, _FEW_WORDS + 1))
        is_numeric = len(texts) <= _FEW_WORDS and len(column.values) - len(known) - len(texts) >= _MANY_NUMBERS
        if is_numeric and 2 * column.count_of(texts) < column.num_present:
            known |= {value for value in texts if _WORD.fullmatch(value) and column.count_of([value]) > 1}
        if column.num_present and all(map(_COUNTRY.fullmatch, {*column.values} - known)):
            # If all values are country codes of two letters, NA means Namibia or North America and not a missing cell.
            known.discard("NA")
        if texts and not is_numeric:
            beyond = []
        elif column.numbers is None:
            beyond = list(filter(_is_beyond_float32, column.values))
        else:
            beyond = list(itertools.compress(column.values, np.abs(column.numbers) > _LARGEST_FLOAT32))
        known |= {*beyond} if len(beyond) <= _FEW_WORDS else set()
        words |= dict.fromkeys(value for value in column.values if value in known) if known else {}
    return tuple(word for word in words if word not in set(known_words))


def _is_beyond_float32(value: str) -> bool:
    return bool(DECIMAL.fullmatch(value)) and abs(float(value)) > _LARGEST_FLOAT32


def examples_of(values: Iterable[str]) -> str:
    """Return the first few of `values` as one text, separated by commas.

    Line ends are escaped and long values are cut.
    """
    return ", ".join(repr(value)[1:-1][:24] for value in itertools.islice(values, _EXAMPLES))


def some_values(column: Column) -> str:
    """Return a text for messages: the number of distinct values of a column, and the most frequent values."""
    more = ", …" if len(column.values) > _EXAMPLES else ""
    return f"{len(column.values):,} values: {examples_of(column.frequent(_EXAMPLES))}{more}"


def guess(column: Column, separator: str, labels: Labels | None) -> Guess:
    """Guess the kind of a column of a log that is not the label, and return the guess with its reason.

    `separator` is the character between the columns of the log. `labels` help to tell whether numbers are amounts or
    codes. If they are None, only the column's name and values decide.
    """
    declared = TYPE_IN_NAME.search(column.name)
    shown, of = examples_of(column.frequent(_EXAMPLES)), some_values(column)
    if column.of_type is not None and (of_type := _of_type(column, of)):
        return of_type
    if not column.values:
        return Guess(column.name, "ignored", "missing in all rows")
    if len(column.values) == 1 and column.num_present > _ONE_VALUE_SHARE * len(column.codes):
        return Guess(column.name, "ignored", f"one value only: {shown}")
    # A column that has a single value and missing cells is a field, because whether a row's cell is missing may help to
    # predict the label.
    if len(column.values) == 1:
        return Guess(column.name, "string", f"{shown}, or missing")
    if declared:
        return _declared(column, declared[1], of, separator)
    if _are_booleans(column):
        return Guess(column.name, "boolean", of)
    if column.all_match(_HEX) and not column.are_integers:
        return Guess(column.name, "hex32", of)
    form, of_time = time_form(
        column, is_code=bool(_ID_NAMES.search(column.plain_name) or _CODE_NAMES.search(column.plain_name))
    )
    if form:
        has_zones = "%z" in form or (form == ISO and column.all_match(_WITH_ZONE))
        of_zone = "" if has_zones else f"; hours are those of UTC, or of timezone: {{{column.name}: Europe/Berlin}}"
        return Guess(column.name, "timestamp", f"times, as they are written: {shown}, …{of_time}{of_zone}", form)
    numbers, slips = _numbers(column)
    if numbers is not None:
        return _guess_number(column, numbers, of + of_time, slips, labels)
    if "," in "".join(column.values) and column.all_match(_DECIMAL_COMMA) and not column.all_match(_THOUSANDS):
        return Guess(column.name, "float", of, decimal=",")
    if column.all_match(_GROUPED) or _are_marked(column):
        return Guess(
            column.name, "string", f"{of}; to have numbers, leave only digits, points and minus signs in its cells"
        )
    if vector := _vector_of_texts(column):
        return vector
    if list_form := _list_form(column, separator):
        lists = [re.split(rf" *{re.escape(list_form.separator)} *", value.strip("[]{}() ")) for value in column.values]
        has_blanks = any(value[0] not in "[{(" and f"{list_form.separator} " in value for value in column.values)
        return Guess(column.name, "list", of + _of_list(lists), list_form=list_form, has_blanks=has_blanks)
    if _is_unique(column):
        return Guess(column.name, "ignored", f"a new value in nearly every row: {shown}, …{of_time}")
    return _as_string(column, of + _nearly(column) + of_time)


def _are_marked(column: Column) -> bool:
    """Return True if all values are numbers and some have other characters beside the digits, such as a unit.

    The unit is the same in all values that have one. If it consists of letters, there must be many numbers, because
    codes such as 3G and 4G end in letters too.
    """
    matches = [_MARKED.fullmatch(value) for value in column.values]
    units = {match["unit"] if match else None for match in matches} - {""}
    if None in units or len(units) > 1 or column.all_match(_UNMARKED):
        return False
    return len(column.values) >= _MANY_NUMBERS or not any(map(str.isalpha, units))  # type: ignore[arg-type]


def _as_string(column: Column, of: str) -> Guess:
    """Return a `Guess` that says that a column has the kind string.

    The reason is `of`, a text that describes the column's values, with remarks about values that look odd.
    """
    values = set(column.values)
    twice = next((value for value in column.values if f"{value}.0" in values and INTEGER.fullmatch(value)), None)
    if twice is not None:
        of += f"; {twice} and {twice}.0 are two values: write whole numbers alike"
    if "NA" in values and all(map(_COUNTRY.fullmatch, values)):
        of += '; NA is a value: missing: ["NA"] if it stands for none'
    return Guess(column.name, "string", _with_group(column, of))


def _of_list(lists: Sequence[Sequence[str]]) -> str:
    """Return a remark if a column's lists have weights after their values (a:0.5), or are padded with one value.

    Otherwise return "".
    """
    if all(_WEIGHTED.fullmatch(part) for parts in lists for part in parts if part):
        return "; the weights are part of the values: take them out of the cells to have the values alone"
    ends = Counter(parts[-1] for parts in lists if len(parts) > 1 and parts[-1] == parts[-2])
    padding = next((end for end, count in ends.items() if count > max(1, _MOST_FILLED * ends.total())), "")
    return f"; {padding} is a value: take it out of the cells if it only fills lists up" if padding else ""


def _of_type(column: Column, of: str) -> Guess | None:
    """Guess the kind of a column of a Parquet file or an Arrow table from the column's Arrow type. Return the guess.

    `of` is a text that describes the column's values, for the reason of the guess. Return None if the type does not
    decide the kind, as is the case with numbers and text.
    """
    import pyarrow as pa

    from data_prep.raw_log.arrow_to_text import is_list, is_moment, is_readable

    assert column.of_type is not None
    if column.lengths is not None:
        return _vector(column.name, column.lengths, column.values[0])
    if not is_readable(column.of_type, "list" if is_list(column.of_type) else "string"):
        what = "objects: give their keys columns of their own" if pa.types.is_struct(column.of_type) else "of type {}"
        return Guess(column.name, "ignored", what.format(column.of_type))
    if len(column.values) < 2:
        return None
    if is_moment(column.of_type):
        return Guess(column.name, "timestamp", f"times: {examples_of(column.frequent(_EXAMPLES))}, …", ISO)
    if not is_list(column.of_type):
        return None
    lists = [value.split("\t") for value in column.values]
    texts = dict.fromkeys(text for each in lists for text in each if text)
    between = next((mark for mark in _LIST_SEPARATORS if not any(mark in text for text in texts)), "|")
    longest = min(max(map(len, lists), default=1), MAX_LIST_LENGTH)
    shown = ", ".join(itertools.islice(texts, _EXAMPLES))
    return Guess(column.name, "list", f"{len(texts):,} values: {shown}", list_form=ListForm(between, longest))


def _vector_of_texts(column: Column) -> Guess | None:
    """Guess the width of a column whose cells are written as vectors, such as `[0.1, 0.2]` or `0.1 0.2`.

    Return None if the cells hold something else. If no number has a fraction, the numbers are taken as codes (a list of
    ids), and None is returned too.
    """
    cells = [value.encode() for value in column.values]
    first = [vector_parts(cell, ".") for cell in cells[:_LOOKED_AT]]
    are_vectors = all(_COMPONENT.fullmatch(part) for parts in first for part in parts)
    width = Counter(map(len, first)).most_common(1)[0][0]
    if not are_vectors or max(map(len, first)) < 2 or not any(map(_FRACTION.search, cells[:_LOOKED_AT])):
        return None
    _, present, good = choose_kernels("auto").parse_vectors(Strings.of(cells), width, ".")
    lengths = width * present.astype(np.int64)
    for place in np.flatnonzero(~good):
        length = len(vector_parts(cells[place], "."))
        lengths[place] = -1 if length == width else length
    return _vector(column.name, np.repeat(lengths, column.counts), column.values[0])


def _vector(name: str, lengths: NDArray[np.int64], example: str) -> Guess:
    """Return a `Guess` for a column of vectors: its kind is vector if nearly all vectors have the same length.

    `lengths` has the length of each vector: 0 if it is missing, and -1 if it is bad. `example` is a vector as text.
    """
    found, counts = np.unique(lengths[lengths != 0], return_counts=True)
    width, others = int(found[counts.argmax()]), int(counts.sum() - counts.max())
    shown = f"such as {example[:24]}{'…' * (len(example) > 24)}"
    if others <= _SLIP_SHARE * counts.sum() and 1 <= width <= MAX_WIDTH:
        remark = f"; rows with another vector are rejected: {others:,}" if others else ""
        return Guess(name, "vector", f"{width:,} numbers, {shown}{remark}", width=width)
    of = (
        f"{found[found > 0][0]:,} to {found[-1]:,} numbers" if found[-1] > 0 else "numbers that are missing or infinite"
    )
    needs = f"a vector needs the same number of finite ones in every row, at most {MAX_WIDTH:,}"
    return Guess(name, "ignored", f"{of} in a cell, {shown}; {needs}. list, if each number is a category")


def _declared(column: Column, declared: str, of: str, separator: str) -> Guess:
    """Guess the kind of a column from the type in its name, as in `item_id:token` in files for RecBole.

    Return the guess. `declared` is this type, such as token. `of` is a text that describes the column's values, for the
    reason of the guess, and `separator` the character between the columns of the log.
    """
    of = f"{declared} in the header; {of}"
    if declared == "token_seq":
        between = "," if separator == " " else " "
        longest = max(value.count(between) + 1 for value in column.values)
        return Guess(column.name, "list", of, list_form=ListForm(between, min(longest, MAX_LIST_LENGTH)))
    if declared == "float_seq":
        return _vector_of_texts(column) or Guess(column.name, "ignored", f"{of}; no numbers with a fraction")
    if declared == "float" and (form := time_form(column, is_code=False)[0]):
        return Guess(column.name, "timestamp", of, form)
    if declared == "float" and column.numbers is not None:
        return Guess(column.name, "integer" if column.are_integers else "float", of)
    return Guess(column.name, "string", _with_group(column, of))


def _are_booleans(column: Column) -> bool:
    """Return True if a column has the Arrow type boolean, or if its values are two words that mean true and false.

    The texts 1 and 0 are not such words, because they may be numbers.
    """
    if column.of_type is not None and str(column.of_type) == "bool":
        return True
    words = {value.lower() for value in column.values[:_MOST_WORDS_OF_BOOLEANS]}
    return not column.are_integers and any(words == {*pair} for pair in BOOLEANS if pair[0].isalpha())


def _is_unique(column: Column) -> bool:
    """Return True if nearly every cell of a column that is not missing has a value of its own.

    With fewer than 1,000 such cells, all values must be distinct. With fewer than 20, the result is False.
    """
    share = _UNIQUE_SHARE if column.num_present >= _MANY_ROWS else 1 - 1e-9
    return column.num_present >= _FEW_ROWS and len(column.values) > share * column.num_present


def _numbers(column: Column) -> tuple[NDArray[np.float64] | None, str]:
    """Return the distinct values of a column as numbers [V], and a remark about values that are not numbers, or "".

    Up to one in a thousand cells may hold something else than a number. The values of these cells become NaN, and the
    remark names them. Return None and "" if more cells are not numbers, or if the values are codes such as 007.
    """
    if column.numbers is not None:
        is_code = any(value[:1] == "0" and value[1:].isdigit() for value in column.values)
        # Whole numbers with more than 18 digits may exceed int64, so a column that has one is taken as a column of
        # codes.
        is_code |= not column.are_integers and all(map(str.isdigit, column.values))
        return (None if is_code else column.numbers), ""
    most = int(_SLIP_SHARE * column.num_present)
    texts = list(itertools.islice((each for each in column.values if not DECIMAL.fullmatch(each)), most + 1))
    if column.count_of(texts) > most:
        return None, ""
    numbers = np.array([float(value) if DECIMAL.fullmatch(value) else np.nan for value in column.values])
    return numbers, f"; rows with another cell are rejected: {column.count_of(texts):,}, such as {examples_of(texts)}"


def _guess_number(column: Column, numbers: NDArray[np.float64], of: str, slips: str, labels: Labels | None) -> Guess:
    """Guess whether a column of numbers holds amounts (kind integer or float) or codes (kind string). Return the guess.

    The model uses an amount as a number, but looks up an embedding row for each code. `numbers` are the column's
    distinct values. `of` is a text that describes them and `slips` a remark about cells that are not numbers, both for
    the reason of the guess. `labels` are the labels of a sample of the rows, or None if they are not known.
    """
    good = [value for value in column.values if DECIMAL.fullmatch(value)] if slips else []
    is_integer = column.are_integers or (bool(good) and all(map(INTEGER.fullmatch, good)))
    kind: Kind = "integer" if is_integer else "float"
    is_whole = bool(np.all(np.mod(numbers[np.isfinite(numbers)], 1) == 0))
    if np.any(np.abs(numbers) > _LARGEST_FLOAT32):
        return Guess(column.name, "ignored", f"{of}; some numbers are beyond float32: divide them")
    is_id, is_version = bool(_ID_NAMES.search(column.plain_name)), _are_versions(column, numbers)
    gain, category_gain, ahead = _compare(column, numbers, labels)
    figures = f"log loss {gain:+.2%} as a number, {category_gain:+.2%} as a category" if labels else ""
    if is_whole and _is_unique(column) and (is_id or (is_integer and _is_identifier(column, numbers, gain))):
        named = of[of.index("; ") :] if "; " in of else ""
        return Guess(column.name, "ignored", f"a new number in nearly every row: {_UNIQUE_NUMBER}{named}")
    most_recur = 2 * column.counts[column.counts >= _MIN_COUNT].sum() >= column.num_present
    least = _SURE_ERRORS if ahead < 0 or most_recur else _SURE_ERRORS_OF_ORDER
    is_better = abs(ahead) > least and min(gain, category_gain) < -_LEAST_GAIN
    if is_version and not (is_better and ahead < 0):
        return _as_string(column, f"{of}; {figures if is_better else 'versions'}; {kind} if it is an amount")
    if not is_whole and not is_id and not (is_better and ahead > _SURE_ERRORS_OF_ORDER):
        close = f"; {figures}: string if these are codes" if is_better and ahead > 0 else ""
        return Guess(column.name, kind, of + close + slips)
    if is_id and ahead > -_SURE_ERRORS_OF_ORDER:
        return _as_string(column, f"{of}; named like an id")
    if is_better:
        if ahead > 0:
            return _as_string(column, f"{of}; {figures}; {kind} if it is an amount")
        return Guess(column.name, kind, f"{of}; {figures}{slips}", is_bucketed=is_integer)
    if _CODE_NAMES.search(column.plain_name) or _are_like_codes(column, numbers):
        return _as_string(column, f"{of}; {kind} if it is an amount")
    return Guess(column.name, kind, f"{of}; string if these are codes{slips}")


def _are_versions(column: Column, numbers: NDArray[np.float64]) -> bool:
    """Return True if the numbers of a column seem to be numbers of versions, such as 10.1 of a program.

    This is the case if all values have the form of a version, and the column is named like versions or has the same
    number written in two ways, such as 10.1 and 10.10.
    """
    if column.are_integers or not all(map(_VERSION.fullmatch, column.values)):
        return False
    has_twins = len(np.unique(numbers)) < len(numbers) and not any(value.endswith(".0") for value in column.values)
    return bool(_VERSION_NAMES.search(column.plain_name)) or has_twins


def _compare(column: Column, numbers: NDArray[np.float64], labels: Labels | None) -> tuple[float, float, float]:
    """Compare how well a column predicts the label if it is used as a number, and if it is used as a category.

    Return three numbers: the relative change of the label's log loss if the column is used as a number, the same if it
    is used as a category (both are negative if the column helps), and by how many standard errors the category is
    better than the number. Return zeros if there are too few labels or values. Losses of a row are estimated without
    using its own label, or corrected for using it.

    All rare values form one category, which often predicts the label, but also if they are amounts: a measurement may
    have more digits if there is no click. So the category counts as better only if it also is on the other rows.
    """
    if labels is None or not labels.are_enough or len(column.values) < 3:
        return 0.0, 0.0, 0.0
    numbers_of_rows = np.array([*numbers, np.nan])[column.codes[labels.rows]]
    as_number = number_losses(numbers_of_rows, labels.clicks)
    # As categories, the texts 7 and 7.0 count as the same value. The texts 10.1 and 10.10 do not, because they may be
    # different versions.
    numbers_of: dict[str, int] = {}
    alike = [numbers_of.setdefault(value.removesuffix(".0"), len(numbers_of)) for value in column.values]
    codes = np.array([*alike, -1])[column.codes[labels.rows]]
    # The preparation gives no id to a value with fewer than `_MIN_COUNT` rows. In the comparison, all values so rare
    # form one category together.
    is_rare = (np.bincount(codes + 1) < _MIN_COUNT * len(codes) / len(column.codes))[codes + 1]
    as_category = category_losses(np.where(is_rare, len(column.values), codes), labels.clicks)
    uncertain = entropy(labels.clicks)
    gains = (float(losses.mean()) / uncertain - 1 for losses in (as_number, as_category))
    ahead = deviations(as_number, as_category)
    if ahead > _SURE_ERRORS and is_rare.any():
        kept, of_kept = ~is_rare, 0.0
        if kept.any():
            clicks = labels.clicks[kept]
            of_kept = deviations(number_losses(numbers_of_rows[kept], clicks), category_losses(codes[kept], clicks))
        ahead = max(min(ahead, of_kept), 0.0)
    return *gains, ahead  # type: ignore[return-value]


def _is_identifier(column: Column, numbers: NDArray[np.float64], gain: float) -> bool:
    """Return True if the numbers of a column, which are nearly all distinct, seem to identify rows.

    This is the case if the numbers ascend or descend from row to row, if they are as dense as row numbers, or if they
    are widely spread and do not predict the label. `gain` is the relative change of the label's log loss if the number
    is used to predict the label (negative if the number helps).
    """
    steps = np.diff(numbers[column.codes[column.codes >= 0]])
    is_sorted = bool((steps >= 0).all() or (steps <= 0).all())
    low, high = np.nanmin(numbers), np.nanmax(numbers)
    is_dense = bool(high - low < _MOST_SPREAD * len(column.codes))
    return is_sorted or is_dense or (bool(high - low > 100 * len(numbers) or low > 10**6) and gain > -_LEAST_GAIN)


def _are_like_codes(column: Column, numbers: NDArray[np.float64]) -> bool:
    """Return True if the numbers of a column look like codes and not like amounts.

    This is the case if the column has few distinct values and some are above 1,000. It is also the case if most values
    have the same number of digits, and the values either recur or have many digits.
    """
    finite = numbers[np.isfinite(numbers)]
    if finite.min() < 0:
        return False
    if len(finite) <= _FEW_CODES:
        return bool(finite.max() > 1_000)
    lengths = np.floor(np.log10(np.maximum(finite, 1)))
    of_length = np.bincount(lengths.astype(int))
    is_even = of_length.max() >= _SAME_LENGTH * len(finite)
    come_again = column.num_present >= 2 * len(finite) or of_length.argmax() >= _LONG_CODE - 1
    return bool(is_even and of_length.argmax() >= 3 and come_again)


def _with_group(column: Column, of: str) -> str:
    is_group = _GROUP_NAMES.search(column.plain_name)
    return f"{of}; id if it is no feature, but metrics are grouped by it" if is_group else of


def _nearly(column: Column) -> str:
    """Return a remark if all but a few cells of a text column are numbers or hexadecimal. Otherwise return "".

    The remark has examples of the few other cells.
    """
    for kind, pattern in (("integer", INTEGER), ("float", DECIMAL), ("hex32", _HEX)):
        misfits = [value for value in column.values if not pattern.fullmatch(value)]
        count = column.count_of(set(misfits))
        if 0 < count <= 0.02 * column.num_present:
            return f"; {kind} in all cells but {count:,}: {examples_of(misfits)}"
    return ""


def _list_form(column: Column, separator: str) -> ListForm | None:
    """Return the separator and the maximum length of the lists in a column's cells, as a `ListForm`.

    `separator` is the character between the columns of the log, which cannot separate values. Return None if the cells
    do not seem to be lists. Cells seem to be lists if enough of them have several values, and if the same values also
    occur in other cells.
    """
    cells = [value.encode() for value in column.values]
    is_bracketed = all(spans_in_brackets(cell, ",") is not None for cell in cells)
    for between in ",|;^ " if is_bracketed else _LIST_SEPARATORS.replace(separator, ""):
        has_several = np.array([between in value for value in column.values])
        num_several = column.counts[has_several].sum()
        if num_several < (1 if is_bracketed else _LIST_SHARE * column.num_present):
            continue
        found = split_lists(Strings.of(cells), between, MAX_LIST_LENGTH, trim=True)
        parts = [part.decode() for part in found.values.tolist()]
        values, longest = set(parts), int(found.lengths.max())
        if cells[0].startswith(b"{") and all(":" in part for part in values):
            return None  # Texts such as {"a": 1} are mappings and no lists.
        if is_bracketed:
            is_list = 2 * len(values) <= column.num_present
        elif between in _SURE_SEPARATORS:
            is_list = 2 * len(values) <= len(parts) and len(values) < len(column.values) + 1
        else:
            # Some texts have two parts that never share a value, such as a city and its country. Such texts are not
            # lists.
            are_halves = (found.lengths == 2).all() and {*parts[::2]}.isdisjoint(parts[1::2])
            is_list = 2 * len(values) <= len(column.values) and not are_halves
        are_words = re.compile(rf" *{_LIST_WORD}({re.escape(between)}+{_LIST_WORD})* *")
        if is_list and (between not in _WORD_SEPARATORS or is_bracketed or column.all_match(are_words)):
            return ListForm(between, longest)
    has_one_each = is_bracketed and column.all_match(_ONE_IN_BRACKETS) and not _is_unique(column)
    return ListForm(" " if separator == "," else ",") if has_one_each else None
