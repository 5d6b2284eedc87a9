"""Check the format of a log, which a user has described in a file or in settings."""

from __future__ import annotations

import re
from difflib import get_close_matches
from zoneinfo import available_timezones

from data_prep.options.kinds import FIELD_KINDS, ISO, TEXT_KINDS, TIME_CODES, UNITS, VALUE_KINDS
from data_prep.options.log_format import (
    AGE,
    MAX_LIST_LENGTH,
    MAX_WIDTH,
    REST,
    RULE,
    TIME_FEATURES,
    ListForm,
    LogFormat,
    VectorForm,
    listed,
)

# Keys of a format whose entries are about columns of certain kinds, each with these kinds.
_OF_KINDS = {
    "lists": ("list",),
    "vectors": ("vector",),
    "timestamps": ("timestamp",),
    "timezone": ("timestamp",),
    "features": ("timestamp",),
    "serve_as": ("integer", "float", "boolean", "hex32", "string"),
}
NO_SEPARATORS = ("\n", "\r", '"', "\x1f", "-")


def checked_format(log_format: LogFormat) -> LogFormat:
    """Return `log_format` unchanged if it obeys all rules of a format. Otherwise raise ValueError.

    The message says what to write instead.
    """
    if len(log_format.separator.encode()) != 1 or log_format.separator in NO_SEPARATORS:
        raise ValueError(f"separator must be one ASCII character such as ',' or '\\t'; found {log_format.separator!r}")
    if log_format.trim and log_format.separator == " ":
        raise ValueError("trim: true takes blanks from cells, but blanks separate them here; leave trim out")
    if log_format.decimal == log_format.separator and not log_format.quotes:
        raise ValueError(
            "decimal and separator are both ',': a number's comma would end its cell; set quotes: true if such "
            "numbers are in quotes"
        )
    if log_format.others == "ignored" and not log_format.header:
        raise ValueError("others: ignored finds columns by the names in the first line; it needs header: true")
    labels = log_format.columns_of_kind("label")
    if len(labels) != 1:
        raise ValueError(f"columns must have one of kind label; found {', '.join(labels) or 'none'}")
    if len(log_format.columns_of_kind("weight")) > 1:
        raise ValueError(
            f"columns may have one of kind weight; found {', '.join(log_format.columns_of_kind('weight'))}"
        )
    for name in log_format.key_fields:
        if not re.fullmatch(r"[0-9a-zA-Z_]+", name):
            raise ValueError(f"a column of kind id needs a name of letters, digits and _; found {name!r}")
    _check_kinds(log_format)
    _check_features(log_format)
    for name, texts in log_format.booleans.items():
        if name not in log_format.text_fields or len({*texts}) != len(texts) or len(texts) not in (0, 2):
            raise ValueError(
                f"booleans: {name}: expected a column of kind string or list, and two texts such as [TRUE, FALSE]; "
                f"found {log_format.columns.get(name, 'no such column')}, {list(texts)}"
            )
    if others := [name for name in log_format.point_zero if name not in log_format.text_fields]:
        raise ValueError(f"point_zero: expected columns of kind string or list; found {', '.join(others)}")
    times = [name for name in log_format.time_fields if log_format.parts_of_time(name) or log_format.has_age(name)]
    if not any((log_format.categorical_fields, log_format.sized_fields, log_format.vector_fields, times)):
        raise ValueError(f"columns must have a field (kind {', '.join(FIELD_KINDS)}); found none")
    _check_lists(log_format)
    _check_vectors(log_format)
    _check_shares(log_format)
    for name, form in log_format.timestamps.items():
        _check_time_form(name, form)
    _check_timezone(log_format)
    for name in log_format.time_fields:
        given: dict[str, str] = {f"{name}{TIME_FEATURES[part]}": part for part in log_format.parts_of_time(name)}
        given |= {f"{name}{AGE}": "age"} if log_format.has_age(name) else {}
        if twice := log_format.columns.keys() & given.keys():
            parts = ", ".join(part for field, part in given.items() if field not in twice)
            raise ValueError(
                f"columns: {min(twice)!r} is a field that the timestamp {name!r} gives, too; rename the column, or let "
                f"the timestamp give others: features: {{{name}: [{parts}]}}"
            )
    for name in log_format.columns:
        if not name or set(name) & set("\t\n\r"):
            raise ValueError(f"columns: {name!r} cannot be a column's name")
    _check_clicks(log_format)
    return log_format


def _check_kinds(log_format: LogFormat) -> None:
    for key, kinds in _OF_KINDS.items():
        for name in getattr(log_format, key):
            if log_format.columns.get(name) not in kinds:
                raise ValueError(
                    f"{key}: {name!r} is no column of kind {', '.join(kinds)}; write columns: {{{name}: {kinds[-1]}}}"
                )


def _check_clicks(log_format: LogFormat) -> None:
    clicked, not_clicked = log_format.clicked, log_format.not_clicked
    in_both = set.intersection(*map(set, log_format.label_cells[:2]))
    if clicked != REST and isinstance(clicked, str):
        _check_rule(log_format, clicked)
    elif not clicked or not not_clicked or clicked == not_clicked or in_both:
        raise ValueError(
            f"clicked and not_clicked must be cells that differ; found {listed(clicked)} and {listed(not_clicked)}"
        )


def _check_rule(log_format: LogFormat, rule: str) -> None:
    if not RULE.fullmatch(rule):
        raise ValueError(
            f'clicked must be a list of cells such as ["1"], or a rule for numbers such as ">= 4"; found {rule!r}'
        )
    if log_format.not_clicked != ("0",):
        raise ValueError(
            f"clicked: {rule!r} makes a label of every number, so not_clicked must be left out; found "
            f"{listed(log_format.not_clicked)}"
        )


def check_list(form: ListForm) -> None:
    """Raise ValueError if `form` has a separator or a maximum length that the format of a list may not have.

    The message says what is allowed.
    """
    if len(form.separator.encode()) != 1 or form.separator in '\n\r"':
        raise ValueError(f"a list's separator must be one ASCII character such as '|'; found {form.separator!r}")
    if not 1 <= form.max_length <= MAX_LIST_LENGTH:
        raise ValueError(f"a list's max_length must be between 1 and {MAX_LIST_LENGTH}; found {form.max_length}")


def _check_lists(log_format: LogFormat) -> None:
    for form in log_format.lists.values():
        check_list(form)
    for name in log_format.columns_of_kind("list"):
        separator = log_format.list_form(name).separator
        if separator == log_format.separator and not log_format.quotes:
            raise ValueError(
                f"lists: the values of {name!r} are between {separator!r}, and so are the columns; give the list's "
                f"own separator (lists: {{{name}: {{separator: ';'}}}}), or quotes: true if its cells are quoted"
            )


def check_vector(form: VectorForm) -> None:
    """Raise ValueError if the width of `form`, the number of components of a vector, is not between 1 and 65536."""
    if not 1 <= form.width <= MAX_WIDTH:
        raise ValueError(f"a vector's width must be between 1 and {MAX_WIDTH}; found {form.width}")


def _check_vectors(log_format: LogFormat) -> None:
    for name in log_format.vector_fields:
        if name not in log_format.vectors:
            raise ValueError(
                f"vectors: the column {name!r} of kind vector needs its number of components; write "
                f"vectors: {{{name}: {{width: 64}}}}"
            )
        check_vector(log_format.vectors[name])


def _check_shares(log_format: LogFormat) -> None:
    for name, of in log_format.shares.items():
        for column in (name, of):
            if log_format.columns.get(column) not in TEXT_KINDS:
                state = f"is of kind {log_format.columns[column]}" if column in log_format.columns else "is no column"
                advice = "; give both the kind string" if log_format.columns.get(column) in VALUE_KINDS else ""
                raise ValueError(
                    f"shares: {name}: {of}: {column!r} {state}; only string and list columns share{advice}"
                )
        if of in log_format.shares:
            raise ValueError(
                f"shares: {name}: {of}: {of!r} has no vocabulary of its own; name the column whose vocabulary it is"
            )


def _check_features(log_format: LogFormat) -> None:
    for name, features in log_format.features.items():
        if len(set(features)) < len(features) or not set(features) <= set(TIME_FEATURES):
            raise ValueError(
                f"features: {name}: expected some of {', '.join(TIME_FEATURES)}, each once; found {list(features)}"
            )


def _check_time_form(name: str, form: str) -> None:
    if form in UNITS or form == ISO:
        return
    codes = [code[0] for code in form.split("%")[1:] if code]
    year, month = ({*kinds} & set(codes) for kinds in ("Yy", "mb"))
    if form.count("%") != len(codes) or not set(codes) <= set(TIME_CODES) or len(set(codes)) < len(codes):
        rule = "of which each may occur once"
    elif len(year) != 1 or len(month) != 1 or "d" not in codes:
        rule = "which must give year, month and day"
    elif ("I" in codes) != ("p" in codes) or {"H", "I"} <= set(codes):
        rule = "of which %I (1 to 12) and %p (AM or PM) go together, in place of %H"
    else:
        return
    raise ValueError(
        f"timestamps: {name} is {form!r}; expected {', '.join(UNITS)}, {ISO}, or a form of "
        f"{', '.join(f'%{code}' for code in TIME_CODES)}, {rule}"
    )


def _check_timezone(log_format: LogFormat) -> None:
    for name, zone in log_format.timezone.items():
        if zone not in (known := available_timezones()):
            near = get_close_matches(zone, known, 3, 0.5) or ["Europe/Berlin", "Asia/Tokyo"]
            raise ValueError(
                f"timezone: {name}: {zone!r} is no IANA time zone; expected a name such as {', '.join(near)}"
            )
