"""Read the vocabulary of a prepared folder, for another preparation, for an encoder, or for an exported model (bundle).

The base of a preparation is another prepared folder whose vocabulary it uses. A preparation with a base gives its rows
the same ids and numeric columns as the base folder has. The preparation also converts booleans in tables to the same
texts as the base.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.encoding import encoder, vocabulary
from data_prep.encoding.encoder import BOOLEAN_TEXTS, LOOKUP_FILE, NUM_EXPIRED, LookupTables, RowEncoder
from data_prep.encoding.vocabulary import FieldVocabulary, VocabularyReader
from data_prep.kernels.strings import Strings
from data_prep.options.columns import CategoricalColumn, EncodingOptions
from data_prep.options.kinds import Kind
from data_prep.options.log_format import LogFormat
from data_prep.options.options_file import read_recorded
from data_prep.options.prepare_options import RECORDED, PrepareOptions, fields_as_set
from data_prep.prepared.data_files import read_expired
from data_prep.prepared.schema import SCHEMA_FILE, CategoricalField, Schema, first_added_id, read_schema
from data_prep.raw_log.formats import format_of
from data_prep.raw_log.storage import LogFile

# Options that decide the columns and the meaning of ids. A preparation that uses the vocabulary of another prepared
# folder (its base) must have the same values of these options as that folder.
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
# Options that decide which values get ids. If they differ from those of the folder whose vocabulary is used (the base),
# a warning is enough.
_LIMITS = ("min_count", "field_min_count", "field_max_size")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BaseVocabulary:
    """The vocabulary of a prepared folder, as other preparations, encoders and exported models (bundles) use it.

    The files of the vocabulary are read only when a method needs them.
    """

    folder: Path
    schema: Schema
    encoding: EncodingOptions
    # True if values that occur in the log and not in this vocabulary get ids too (the option --extend).
    extends: bool = False

    @property
    def columns(self) -> tuple[CategoricalColumn, ...]:
        return self.encoding.categorical_columns

    def paths(self, since: int = 0) -> list[Path]:
        """Return the paths of those files of the vocabulary whose ids are all `since` or more, in the order of ids."""
        return [self.folder / name for name in self.schema.vocabulary_files if first_added_id(name) >= since]

    @functools.cached_property
    def log_format(self) -> LogFormat:
        """Format of the log from which the folder was prepared."""
        return read_recorded(self.schema.options, str(self.folder / SCHEMA_FILE)).data

    @functools.cached_property
    def whole_numbers(self) -> dict[str, bool | None]:
        """For each text field, by name, the form of those values of its vocabulary that are whole numbers: True if they
        are written as 7.0, and False if they are written as 7.

        It is None if the vocabulary of the field contains both forms, or no values.
        """
        shares = self.log_format.shares
        return {
            name: encoder.whole_numbers([self.texts_of(shares.get(name, name))]) for name in self.log_format.text_fields
        }

    def texts_of(self, name: str) -> Strings:
        """Return all values of the text field `name` that have ids. The missing value, "", is one of them."""
        field, column = next(
            each for each in zip(self.schema.categorical, self.columns, strict=True) if each[0].name == name
        )
        with contextlib.closing(VocabularyReader(self.paths())) as reader:
            texts = reader.read(field, column).texts
        assert texts is not None
        return texts

    @functools.cached_property
    def expired(self) -> NDArray[np.int64]:
        """Ids in the folder whose values have expired (lost their ids), in ascending order."""
        return read_expired(self.folder, self.schema)

    def live_fields(self, since: int = 0) -> Iterator[FieldVocabulary]:
        """Read the vocabulary from its files, and yield one field's values and ids at a time, except expired ids.

        Only values whose ids are at least `since` are read.
        """
        return (vocabulary.without(field, self.expired) for field in self.fields(since))

    def fields(self, since: int = 0) -> Iterator[FieldVocabulary]:
        """Read the vocabulary from its files, and yield the values and ids of one field at a time.

        Only values whose ids are at least `since` are read. A column that uses the vocabulary of another column has no
        field of its own and is left out.
        """
        with contextlib.closing(VocabularyReader(self.paths(since))) as reader:
            for field, column in zip(self.schema.categorical, self.columns, strict=True):
                if not column.shares:
                    ranges = tuple(each for each in field.id_ranges if each[0] >= since)
                    yield reader.read(replace(field, id_ranges=ranges), column)


def read_base_vocabulary(
    folder: Path, options: PrepareOptions, extend: bool = False, schema: Schema | None = None
) -> BaseVocabulary:
    """Return the vocabulary of the prepared folder `folder`, as the base of a preparation with `options`.

    If `extend` is True, values that are new in the log will get ids too. `schema` is an earlier schema of the folder
    (see `schema_at`). By default the newest schema is used.

    Raise FileNotFoundError if `folder` is not a prepared folder. Raise ValueError if the options ask for other columns
    than the folder has, if a hashed vocabulary is to be extended, or if the newest schema has expired ids.
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
    """Raise ValueError unless a preparation with `options` gives rows the same columns and ids as the folder `base`."""
    folder, here, there, written_as = base.folder, options.decisive(), base.schema.options, base.log_format
    if written_as.fields != options.data.fields:
        raise ValueError(
            f"the vocabulary of {folder} is for other fields: {_differences(written_as.fields, options.data.fields)}. "
            "Give the --data FILE that it was made with, or one with the same fields"
        )
    for key, there_is, here_is in (
        ("lists", _list_forms(written_as), _list_forms(options.data)),
        ("vectors", written_as.vectors, options.data.vectors),
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
        given = [
            shlex.quote(f"prepare.{name}={json.dumps(there[name]).strip(chr(34))}")
            for name in _DECISIVE
            if here.get(name) != there.get(name) and name in there and name not in RECORDED
        ]
        raise ValueError(
            f"the vocabulary of {folder} is for other columns: {'; '.join(differences)}. Give the options that it was "
            f"made with: {' '.join(given) or 'those in prepare.fields'}"
        )


def _list_forms(log_format: LogFormat) -> dict[str, tuple[int, str]]:
    """Return, for each list column of a format by name, the maximum length of its lists and its setting `pool`.

    `pool` says how the embedding rows of a list are combined, such as "mean".
    """
    forms = {name: log_format.list_form(name) for name in log_format.columns_of_kind("list")}
    return {name: (form.max_length, form.pool) for name, form in forms.items()}


def _features(log_format: LogFormat) -> dict[str, tuple[str, ...]]:
    """Return, for each timestamp column of a format by name, the features derived from it (hour, weekday, age)."""
    return {
        name: (*log_format.parts_of_time(name), *["age"] * log_format.has_age(name)) for name in log_format.time_fields
    }


def _setting(recorded: str) -> str:
    """Return how messages name a setting, such as prepare.min_count. `recorded` is its key in schema.json."""
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


def with_booleans(files: Sequence[LogFile], log_format: LogFormat, base: BaseVocabulary | None) -> LogFormat:
    """Return `log_format` with the texts that stand for true and false in each text column that has booleans in a file.

    The file is then a table, such as a Parquet file, whose column has the type boolean. The texts are those that the
    base vocabulary uses. Without a base they are 1 and 0, unless the format names others. Raise ValueError if a column
    contains booleans in only some of the files, or if the base does not show which texts it uses.
    """
    names = {name for name in log_format.text_fields if name not in log_format.booleans}
    columns_by_file = {file.location: _boolean_columns(file, names) for file in files}
    booleans = dict(log_format.booleans)
    # If a table is stored as lines, as in JSON, only the first lines of the file are examined, so later lines may
    # contain booleans.
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
    return replace(log_format, booleans=booleans)


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
    return encoder.texts_among(texts & set(BOOLEAN_TEXTS), len(texts))


def open_encoder(prepared: Path, with_labels: bool = False, schema: Schema | None = None) -> RowEncoder:
    """Return an encoder with the vocabulary and the numeric transforms of a prepared folder, for use in this process.

    By default the encoder reads rows to score, which need no label. If `with_labels` is True, it reads rows as the
    preparation of the folder did. `schema` may be an earlier schema of the folder (see `schema_at`); by default the
    newest schema is used. Raise FileNotFoundError if the folder is not a prepared folder, and ValueError if its
    schema.json is not readable.
    """
    schema, _, base = open_vocabulary(prepared, schema)
    encoding = base.encoding if with_labels else base.encoding.without_label()
    with tempfile.TemporaryDirectory(prefix="vocabulary-") as folder:
        lookup = vocabulary.write_lookup_tables(base.live_fields(), Path(folder) / LOOKUP_FILE)
        _ = lookup.opened  # Map the file into memory before it is deleted. The mapping stays valid.
    return RowEncoder(schema.numeric, lookup, schema.ids_dtype, encoding, vectors=schema.vectors)


def open_vocabulary(prepared: Path, schema: Schema | None = None) -> tuple[Schema, PrepareOptions, BaseVocabulary]:
    """Return the schema of a prepared folder, the options of its preparation, and its vocabulary.

    `schema` may be an earlier schema of the folder (see `schema_at`). Raise FileNotFoundError if the folder is not a
    prepared folder, and ValueError if its schema.json is not readable.
    """
    schema = schema or read_schema(prepared)
    options = read_recorded(schema.options, str(prepared / SCHEMA_FILE))
    return schema, options, read_base_vocabulary(prepared, options, schema=schema)


def write_lookup(
    base: BaseVocabulary, folder: Path, known: Sequence[CategoricalField] = (), values: str = ""
) -> dict[str, Any]:
    """Write the search tables of a vocabulary into `folder`. Return a description of the tables for `open_lookup`.

    The description consists of plain values. If `known`, the fields of an earlier vocabulary, is given, the tables
    contain only the values that were added after it. `values` is then the checksum that the earlier values must have.
    Raise ValueError if the vocabulary does not begin with the earlier values.
    """
    columns = zip(known, base.columns, strict=True) if known else ()
    known = [field for field, column in columns if not column.shares]
    another = f"the vocabulary of {base.folder} is another one than the parent's with additions; export a whole bundle"
    of_known = of_all = 0

    def fields() -> Iterator[FieldVocabulary]:
        nonlocal of_known, of_all
        for i, field in enumerate(base.fields()):
            of_all += vocabulary.checksum_of_values(field)
            if known:
                of_known += vocabulary.checksum_of_values(field, num_ranges := len(known[i].id_ranges))
                if field.id_ranges[:num_ranges] != known[i].id_ranges:
                    raise ValueError(another)
            yield vocabulary.without(vocabulary.added_values(field, known[i]) if known else field, base.expired)

    lookup = vocabulary.write_lookup_tables(fields(), folder / LOOKUP_FILE)
    if known and _digits(of_known) != values:
        raise ValueError(another)
    return _description_of(lookup) | {"values": _digits(of_all)}


def write_additions(base: BaseVocabulary, folder: Path, known: RowEncoder, num_ids: int, values: str) -> dict[str, Any]:
    """Write the search tables of the values whose ids are `num_ids` or more into `folder`. Return their description.

    The description has the form that `write_lookup` returns. Only the files with these values are read, so this
    function is faster than `write_lookup`. `known` is an encoder with the first `num_ids` ids, and `values` is the
    checksum of their values, which is not compared with the files. Raise ValueError if the files do not contain exactly
    the ids from `num_ids` on.
    """
    of_all, num_added = int(values, 16), 0

    def fields() -> Iterator[FieldVocabulary]:
        nonlocal of_all, num_added
        columns = [column for column in base.columns if not column.shares]
        for field, column in zip(base.fields(num_ids), columns, strict=True):
            of_all += vocabulary.checksum_of_values(field)
            num_added += len(field.values)
            yield vocabulary.without(
                vocabulary.with_missing(field, known.missing_id(column.is_text, column.place)), base.expired
            )

    lookup = vocabulary.write_lookup_tables(fields(), folder / LOOKUP_FILE)
    if num_ids + num_added != base.schema.vocabulary_size:
        raise ValueError(
            f"{num_added:,} values were added to the vocabulary of {base.folder} after {num_ids:,} ids, expected "
            f"{base.schema.vocabulary_size - num_ids:,}; export a whole bundle"
        )
    return _description_of(lookup) | {"values": _digits(of_all)}


def merge_lookups(chain: Sequence[tuple[Path, dict[str, Any]]], folder: Path) -> dict[str, Any]:
    """Merge the search tables of a vocabulary and of its additions, and write the merged tables into `folder`.

    `chain` gives the folder and the description of each set of tables, the oldest first. Return the description of the
    merged tables.
    """
    merged = vocabulary.merge_lookup_tables(
        [encoder.tables_of(*link) for link in chain], folder / LOOKUP_FILE, encoder.expired_of(chain)
    )
    header = {key: value for key, value in chain[-1][1].items() if key != NUM_EXPIRED}
    return {**header, **_description_of(merged)}


def write_lookup_expired(folder: Path, expired: NDArray[np.int64]) -> dict[str, Any]:
    """Write the ids whose values have expired to a file in `folder`, if there are any.

    Return their number as an entry of the description that `open_lookup` reads, or {} if there are none.
    """
    if not len(expired):
        return {}
    np.save(folder / encoder.EXPIRED_FILE, expired)
    return {NUM_EXPIRED: len(expired)}


def _digits(checksum: int) -> str:
    return f"{checksum % 2**64:016x}"


def _description_of(lookup: LookupTables) -> dict[str, Any]:
    """Return the description of search tables that `open_lookup` reads: the layout of each table as plain values."""
    return {"tables": [asdict(layout) for layout in lookup.layouts]}
