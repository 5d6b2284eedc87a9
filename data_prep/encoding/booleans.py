"""Decide how booleans of Parquet or JSON columns are written as text.

A base vocabulary that is used or extended may already have such values, so they must be written in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from data_prep.encoding.encoder import BOOLEAN_TEXTS, texts_among
from data_prep.options.log_format import LogFormat
from data_prep.raw_log.formats import format_of
from data_prep.raw_log.storage import LogFile

if TYPE_CHECKING:
    from data_prep.encoding.base import BaseVocabulary


def with_booleans(files: Sequence[LogFile], log_format: LogFormat, base: BaseVocabulary | None) -> LogFormat:
    """Return `log_format` with the texts that stand for true and false in each boolean column of the files.

    The texts are those of the base vocabulary. Without a base they are 1 and 0, unless the format names others. Raise
    ValueError if a column is boolean in some of the files only, or if the base does not show which texts it uses.
    """
    names = {name for name in log_format.text_fields if name not in log_format.booleans}
    columns_by_file = {file.location: _boolean_columns(file, names) for file in files}
    booleans = dict(log_format.booleans)
    # Only the first lines of a table of lines are examined, so booleans may follow in later lines.
    formats = [format_of(file.location) for file in files]
    may_come_later = base is not None and any(each.is_table and each.has_lines for each in formats)
    for name in log_format.text_fields:
        locations = [location for location, columns in columns_by_file.items() if name in columns]
        if not locations and not may_come_later:
            continue
        where = f"{''.join(locations[:1])}: column {name!r} holds booleans"
        advice = f"set the texts that stand for true and false: prepare.data.booleans={{{name}: [TRUE, FALSE]}}"
        if base is not None:
            booleans[name] = _texts_of_base(base, name)
            if locations and not booleans[name]:
                raise ValueError(f"{where}, and the vocabulary of {base.folder} does not say which are its; {advice}")
        elif len(locations) < len(files):
            other = next(location for location, columns in columns_by_file.items() if name not in columns)
            raise ValueError(f"{where}, and in {other} it does not; {advice}")
        else:
            booleans[name] = ("1", "0")
    return dataclasses.replace(log_format, booleans=booleans)


def _boolean_columns(file: LogFile, names: set[str]) -> set[str]:
    of = format_of(file.location)
    if not names or not of.is_table:
        return set()
    from data_prep.raw_log.arrow_to_text import holds_booleans

    return names & {field.name for field in of.reader().read_schema(file) if holds_booleans(field.type)}


def _texts_of_base(base: BaseVocabulary, name: str) -> tuple[str, ...]:
    written_as = base.log_format
    if name in written_as.booleans:
        return written_as.booleans[name]
    texts = {text.decode() for text in base.texts_of(written_as.shares.get(name, name)).tolist()} - {""}
    return texts_among(texts & set(BOOLEAN_TEXTS), len(texts))
