"""The vocabulary and the numeric columns of another prepared folder, for rows that shall have the same ids and numbers.

Letters: K values of a field.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common import settings
from data_prep.encoding.vocabulary import FieldVocabulary, OrderedValues
from data_prep.kernels.arrow import from_arrow
from data_prep.kernels.rows import MISSING, SMALLEST_BUCKET
from data_prep.options.columns import CategoricalColumn
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import SCHEMA_FILE, VOCABULARY_FILE, Schema, read_schema

_VALUE_OF_DIGIT = np.array([int(chr(byte), 16) if chr(byte) in "0123456789abcdef" else 0 for byte in range(256)])
# Options that decide which columns there are and what an id means; those of the given folder hold.
_DECISIVE = ("vocabulary", "oov_buckets", "integer_buckets", "numeric_transform", "missing_indicator")

_LIMITS = ("min_count", "field_min_count", "field_max_size")  # options that decide which values have ids

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GivenVocabulary:
    """What is taken from the prepared folder `folder`."""

    folder: Path
    schema: Schema
    columns: tuple[CategoricalColumn, ...]
    extends: bool = False  # with values that are new in the log

    @property
    def path(self) -> Path:
        """Its vocabulary.parquet."""
        return self.folder / VOCABULARY_FILE

    def fields(self) -> Iterator[FieldVocabulary]:
        """The vocabulary of each field, as it was made."""
        for field, column in zip(self.schema.categorical, self.columns, strict=True):
            table = pq.read_table(self.path, filters=[("field", "==", field.name)])
            texts = table["value"].combine_chunks()
            counts = table["count"].to_numpy()
            yield FieldVocabulary(field.name, field.oov_ids, field.id_ranges, *_values(column, texts, counts))


def read_given_vocabulary(folder: Path, options: PrepareOptions, extend: bool = False) -> GivenVocabulary:
    """The vocabulary of a prepared folder, to be used as it is or to `extend`.

    Raises FileNotFoundError where it is none, ValueError where the options ask for other columns than it has, a hashed
    one is to be extended, or an earlier release may have written it wrongly.
    """
    schema = read_schema(folder)
    if extend and "hash" in (options.vocabulary, schema.options.get("vocabulary")):
        raise ValueError(
            f"--extend adds values to a vocabulary, but that of {folder} is hashed (prepare.vocabulary=hash): "
            "each value, new ones too, has one of a fixed number of ids; leave --extend out"
        )
    here = options.decisive()
    written_as = settings.merge(LogFormat(), schema.options.get("data", {}), where=str(folder / SCHEMA_FILE))
    if written_as.fields != options.data.fields:
        raise ValueError(
            f"the vocabulary of {folder} is for other fields: {_differences(written_as.fields, options.data.fields)}. "
            "Give the --data FILE that it was made with, or one of the same fields"
        )
    differences = [
        f"prepare.{name} is {here[name]!r}, there {schema.options.get(name)!r}"
        for name in _DECISIVE
        if here[name] != schema.options.get(name)
    ]
    if differences:
        raise ValueError(
            f"the vocabulary of {folder} is for other columns: {'; '.join(differences)}. Give the options that it was "
            "made with"
        )
    if extend:
        _warn_of_other_limits(folder, here, schema.options)
    return GivenVocabulary(folder, schema, options.categorical_columns, extend)


def _warn_of_other_limits(folder: Path, here: dict[str, Any], there: dict[str, Any]) -> None:
    """Log where new values get ids by other limits than the old ones did: that may be meant."""
    others = [name for name in _LIMITS if name in there and here[name] != there[name]]
    if others:
        log.warning(
            "values that are new get ids by %s, those of %s by %s; give the same if that is not meant: %s",
            ", ".join(f"prepare.{name}={here[name]}" for name in others),
            folder,
            ", ".join(f"prepare.{name}={there[name]}" for name in others),
            " ".join(f"'prepare.{name}={json.dumps(there[name])}'" for name in others),
        )


def _values(column: CategoricalColumn, texts: pa.StringArray, counts: NDArray[np.int64]) -> OrderedValues:
    """Values as the readings work with them."""
    if column.is_text:
        places = np.arange(len(texts))
        return np.where(pc.equal(texts, "").to_numpy(zero_copy_only=False), MISSING, places), counts, from_arrow(texts)
    return (_bucket_values if column.kind == "bucket" else _hex_values)(texts), counts, None


def _differences(there: list[tuple[str, str]], here: list[tuple[str, str]]) -> str:
    """Fields that only one side has, or both in another order."""
    only_there = [f"{name} ({kind})" for name, kind in there if (name, kind) not in here]
    only_here = [f"{name} ({kind})" for name, kind in here if (name, kind) not in there]
    if not only_there and not only_here:
        return "the same ones in another order"
    return f"only there {', '.join(only_there) or 'none'}; only here {', '.join(only_here) or 'none'}"


def _hex_values(texts: pa.StringArray) -> NDArray[np.int64]:
    """Values [K] from eight hex digits each, MISSING from ""."""
    is_missing = pc.equal(texts, "")
    # All of the same length, their digits lie end to end in the array's memory.
    filled = pc.if_else(is_missing, "0" * 8, texts)
    digits = np.frombuffer(filled.buffers()[2], np.uint8, 8 * len(filled)).reshape(-1, 8)
    values = _VALUE_OF_DIGIT[digits] @ 16 ** np.arange(7, -1, -1)
    return np.where(is_missing.to_numpy(zero_copy_only=False), MISSING, values)


def _bucket_values(texts: pa.StringArray) -> NDArray[np.int64]:
    """Values [K], as buckets.py keeps them, from a bucket's number each, MISSING from ""; there are few of them."""
    return np.array([int(text) - SMALLEST_BUCKET if text else MISSING for text in texts.to_pylist()], np.int64)
