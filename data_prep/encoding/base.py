"""Read the base vocabulary: the ids and numeric columns of another prepared folder, which new rows shall share."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.encoding.encoder import whole_numbers
from data_prep.encoding.vocabulary import FieldVocabulary, without
from data_prep.encoding.vocabulary_file import VocabularyReader
from data_prep.kernels.strings import Strings
from data_prep.options.columns import CategoricalColumn, EncodingOptions
from data_prep.options.kinds import Kind
from data_prep.options.log_format import LogFormat
from data_prep.options.options_file import read_recorded
from data_prep.options.prepare_options import RECORDED, PrepareOptions, fields_as_set
from data_prep.prepared.expired import read_expired
from data_prep.prepared.schema import SCHEMA_FILE, Schema, first_added_id, read_schema

# Options that decide the columns and the meaning of ids. They must be the same as in the base folder.
_DECISIVE = (
    "vocabulary",
    "field_hash_size",
    "oov_buckets",
    "integer_buckets",
    "crosses",
    "field_max_length",
    "numeric_transform",
    "layout",
)
# Options that decide which values get ids. A difference from the base folder is only worth a warning.
_LIMITS = ("min_count", "field_min_count", "field_max_size")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BaseVocabulary:
    """The vocabulary of a prepared folder, whose files are read on demand."""

    folder: Path
    schema: Schema
    encoding: EncodingOptions
    extends: bool = False  # Values that are new in the log get ids too.

    @property
    def columns(self) -> tuple[CategoricalColumn, ...]:
        return self.encoding.categorical_columns

    def paths(self, since: int = 0) -> list[Path]:
        """Return the files of the vocabulary whose ids begin at `since` or later, in the order of their ids."""
        return [self.folder / name for name in self.schema.vocabulary_files if first_added_id(name) >= since]

    @functools.cached_property
    def log_format(self) -> LogFormat:
        """Format of the log that the folder was prepared from."""
        return read_recorded(self.schema.options, str(self.folder / SCHEMA_FILE)).data

    @functools.cached_property
    def whole_numbers(self) -> dict[str, bool | None]:
        """Form of the whole numbers in the vocabulary of each text field: the result of `encoder.whole_numbers`."""
        shares = self.log_format.shares
        return {name: whole_numbers([self.texts_of(shares.get(name, name))]) for name in self.log_format.text_fields}

    def texts_of(self, name: str) -> Strings:
        """Return the values with ids of the text field `name`. The missing value is "" among them."""
        field, column = next(
            each for each in zip(self.schema.categorical, self.columns, strict=True) if each[0].name == name
        )
        with contextlib.closing(VocabularyReader(self.paths())) as reader:
            texts = reader.read(field, column).texts
        assert texts is not None
        return texts

    @functools.cached_property
    def expired(self) -> NDArray[np.int64]:
        """Expired ids in ascending order."""
        return read_expired(self.folder, self.schema)

    def live_fields(self, since: int = 0) -> Iterator[FieldVocabulary]:
        """Yield the same fields as `fields`, without the values that have expired."""
        return (without(field, self.expired) for field in self.fields(since))

    def fields(self, since: int = 0) -> Iterator[FieldVocabulary]:
        """Read the vocabulary and yield one field at a time.

        With `since`, only values whose ids are `since` or above are read. A column that shares the vocabulary of
        another column has no field of its own.
        """
        with contextlib.closing(VocabularyReader(self.paths(since))) as reader:
            for field, column in zip(self.schema.categorical, self.columns, strict=True):
                if not column.shares:
                    ranges = tuple(each for each in field.id_ranges if each[0] >= since)
                    yield reader.read(replace(field, id_ranges=ranges), column)


def read_base_vocabulary(
    folder: Path, options: PrepareOptions, extend: bool = False, schema: Schema | None = None
) -> BaseVocabulary:
    """Return the vocabulary of the prepared folder `folder`.

    With `extend`, values that are new in the log will get ids too. `schema` is an earlier schema of the folder (see
    `schema_at`); by default the newest one is used.

    Raise FileNotFoundError if `folder` is not a prepared folder. Raise ValueError if the options ask for other columns
    than the folder has, if a hashed vocabulary shall be extended, or if the newest schema has expired ids.
    """
    if schema is None and (num_expired := read_schema(folder).num_expired):
        raise ValueError(
            f"{num_expired:,} values of the vocabulary of {folder} have lost their ids in an online run, and "
            "their ids are not given anew yet; take the folder that its next full checkpoint names, or prepare without "
            "--vocabulary"
        )
    schema = schema or read_schema(folder)
    if extend and "hash" in (options.vocabulary, schema.options.get("vocabulary")):
        raise ValueError(
            f"--extend adds values to a vocabulary, but that of {folder} is hashed (prepare.vocabulary=hash): "
            "each value, new ones too, has one of a fixed number of ids; leave --extend out"
        )
    base = BaseVocabulary(folder, schema, options.encoding, extend)
    _check_same_columns(base, options)
    if extend:
        _warn_of_other_limits(folder, options.decisive(), schema.options)
    return base


def _check_same_columns(base: BaseVocabulary, options: PrepareOptions) -> None:
    """Raise ValueError if the options ask for other columns than the base has, or give ids another meaning."""
    folder, here, there, written_as = base.folder, options.decisive(), base.schema.options, base.log_format
    if written_as.fields != options.data.fields:
        raise ValueError(
            f"the vocabulary of {folder} is for other fields: {_differences(written_as.fields, options.data.fields)}. "
            "Give the --data FILE that it was made with, or one with the same fields"
        )
    for key, there_is, here_is in (
        ("lists", _list_forms(written_as), _list_forms(options.data)),
        ("shares", written_as.shares, options.data.shares),
        ("features", _features(written_as), _features(options.data)),
        ("timezone", written_as.timezone, options.data.timezone),
    ):
        if there_is != here_is:
            raise ValueError(
                f"the vocabulary of {folder} is for other {key}: {there_is} there, {here_is} here. Give the --data "
                f"FILE that it was made with, or one with the same {key} (a list's separator may differ)"
            )
    differences = [
        f"{_setting(name)} is {here.get(name, {})!r}, there {there.get(name, {})!r}"
        for name in _DECISIVE
        if here.get(name) != there.get(name)
    ]
    if differences:
        raise ValueError(
            f"the vocabulary of {folder} is for other columns: {'; '.join(differences)}. Give the options that it was "
            "made with"
        )


def _list_forms(log_format: LogFormat) -> dict[str, tuple[int, str]]:
    """Return `max_length` and `pool` of each list column, by name."""
    forms = {name: log_format.list_form(name) for name in log_format.columns_of_kind("list")}
    return {name: (form.max_length, form.pool) for name, form in forms.items()}


def _features(log_format: LogFormat) -> dict[str, tuple[str, ...]]:
    """Return the names of the features that are derived from each timestamp column, by name of the column."""
    return {
        name: (*log_format.parts_of_time(name), *["age"] * log_format.has_age(name)) for name in log_format.time_fields
    }


def _setting(recorded: str) -> str:
    """Return the name of the setting that users write for an option that schema.json records."""
    return f"{RECORDED[recorded]} in prepare.fields" if recorded in RECORDED else f"prepare.{recorded}"


def _warn_of_other_limits(folder: Path, here: dict[str, Any], there: dict[str, Any]) -> None:
    names = [name for name in _LIMITS if name in there and here[name] != there[name]]
    if names:
        settings_there = {"fields" if name in RECORDED else name: there[name] for name in names}
        if "fields" in settings_there:
            settings_there["fields"] = fields_as_set(there)
        log.warning(
            "new values get ids by %s, those of %s got them by %s; if that is not intended, give: %s",
            ", ".join(f"{_setting(name)}={here[name]}" for name in names),
            folder,
            ", ".join(f"{_setting(name)}={there[name]}" for name in names),
            " ".join(f"'prepare.{name}={json.dumps(value)}'" for name, value in settings_there.items()),
        )


def _differences(there: list[tuple[str, Kind]], here: list[tuple[str, Kind]]) -> str:
    only_there = [f"{name} ({kind})" for name, kind in there if (name, kind) not in here]
    only_here = [f"{name} ({kind})" for name, kind in here if (name, kind) not in there]
    if not only_there and not only_here:
        return "the same ones in another order"
    return f"only there {', '.join(only_there) or 'none'}; only here {', '.join(only_here) or 'none'}"
