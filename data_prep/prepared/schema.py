"""schema.json describes a prepared folder. `data_prep` writes it last, `app` reads it first.

Ids (V of them): 0 … N-1 are the numeric fields, then come the out-of-vocabulary id(s) of each categorical field, then
every (field, value) of the vocabulary. Values added later come after all of them.

A MindRecord sample is a block of up to `block_rows` rows:

    ids      [n * P]  the bytes of int32 (int64 if V >= 2**31), little-endian, the categorical fields only
    numeric  [n * N]  float32
    label    [n]      float32
    weight   [n]      float32, if the log has weights
    key_NAME [n]      int64, for each column NAME of kind id: the 64-bit key of its text

With `layout: zoo` it is a sample of the MindSpore model zoo's Wide&Deep, of 1,000 rows:

    feat_ids   [n * (N + C)]  int32    of a row 0 … N-1, then the ids of the categorical fields
    feat_vals  [n * (N + C)]  float32  the numeric fields, then C ones
    label      [n]            float32
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.files import check_format_version, format_checksum
from data_prep.options.kinds import TEXT_KINDS
from data_prep.options.log_format import LogFormat
from data_prep.options.plain_values import from_dict

SCHEMA_FILE = "schema.json"
VOCABULARY, PARQUET = "vocabulary", ".parquet"  # as each of its files begins and ends
VOCABULARY_FILE = VOCABULARY + PARQUET
ADDED_PREFIX = f"{VOCABULARY}-"  # of the files beside it, with values that were added in place
FIRST_VOCABULARY = "first_vocabulary"  # key of `source`: checksum of the one whose values were given other ids since
EXPIRED_PREFIX, NUMPY = "expired-", ".npy"  # of the files with ids that lost their values, as each begins and ends
FORMAT_VERSION = 4
CHECKSUM = "checksum"  # key of schema.json: that of all else in it
ADVICE = "copy the folder again or prepare the data again"

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class NumericField:
    """A column of `numeric`. Its id is its index in `Schema.numeric`.

    `source` is the raw column, `parameters` are those of `transform` by name: the training rows' `max`, `mean`,
    `standard_deviation`. A timestamp also has their `newest` time in ms, before which ages are counted. `quantiles` are
    those of `transform` "quantile": numbers and their ranks. `transform` "missing" is the indicator of `source`: 1 if
    the raw cell is empty, else 0.
    """

    name: str
    source: str
    transform: str
    parameters: dict[str, float]
    quantiles: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class CategoricalField:
    """A categorical field: one or more columns of `ids`. Ranges are half-open: [first, end).

    `id_ranges` (more than one if values were added later) are the ids of values in the vocabulary, `oov_ids` those of
    all other values. Fields that share a vocabulary have the same. A list has `max_length` columns, its values first,
    the rest -1. An empty list is the one value "missing". A cross with a list is one.
    """

    name: str
    oov_ids: tuple[int, int]
    id_ranges: tuple[tuple[int, int], ...]
    cross: tuple[str, ...] = ()  # the fields whose values are crossed
    max_length: int = 1  # columns of `ids`
    pool: Literal["mean", "sum"] = "mean"  # makes one row of a list's rows

    @property
    def num_values(self) -> int:
        """Number of this field's values in the vocabulary."""
        return sum(end - first for first, end in self.id_ranges)


@dataclass(frozen=True)
class DataFile:
    """A file of the prepared folder. `rows` is 0 if it holds none, such as the .db beside a .mindrecord.

    `blocks` has the checksum of each of its blocks, one after another.
    """

    name: str
    rows: int
    size_bytes: int
    checksum: str
    blocks: str = ""


@dataclass(frozen=True)
class Split:
    """Rows of one split. Each of `files`, in order, has blocks of `block_rows` rows. Its last one may be short."""

    rows: int
    clicks: int
    files: tuple[DataFile, ...]
    membership: str = ""  # checksum of its rows' line numbers in the log, int64, in rising order
    unlabelled: int = 0  # of its rows

    @property
    def num_labelled(self) -> int:
        return self.rows - self.unlabelled

    @property
    def click_rate(self) -> float:
        """Clicks divided by rows that have a label. NaN without any."""
        return self.clicks / self.num_labelled if self.num_labelled else float("nan")


def first_added_id(name: str) -> int:
    """Return the first id in a file of the vocabulary, 0 for VOCABULARY_FILE and all other files."""
    return int(name[len(ADDED_PREFIX) : -len(PARQUET)]) if name.startswith(ADDED_PREFIX) else 0


@dataclass(frozen=True)
class Schema:
    """Content of schema.json."""

    format_version: int
    numeric: tuple[NumericField, ...]
    categorical: tuple[CategoricalField, ...]
    vocabulary_size: int
    ids_dtype: str
    block_rows: int
    splits: dict[str, Split]
    rejected_rows: int
    options: dict[str, Any]  # of the preparation: min_count, split rule, numeric transform, seed …
    source: dict[str, Any]  # of the raw log: name, size, checksum, lines
    other_files: tuple[DataFile, ...]  # vocabulary.parquet, rejects.tsv, the .db files …
    weight: str = ""  # the log's column that decides the rows' weights, which they then have
    keys: tuple[str, ...] = ()  # the log's columns of kind id; the rows have their keys

    def __repr__(self) -> str:
        rows = ", ".join(f"{split.rows:,} {name}" for name, split in self.splits.items())
        fields = f"{self.num_numeric} numeric and {self.num_categorical} categorical"
        return f"<Schema: {fields} fields, {self.vocabulary_size:,} ids; rows: {rows}>"

    @property
    def layout(self) -> Literal["blocks", "zoo"]:
        """Form of a MindRecord sample."""
        return "zoo" if self.options.get("layout") == "zoo" else "blocks"

    @property
    def label_in_words(self) -> str:
        """The log's column of labels, and which of its cells count as a click."""
        return from_dict(self.options.get("data", {}), LogFormat).label_in_words

    @property
    def num_numeric(self) -> int:
        """N."""
        return len(self.numeric)

    @property
    def num_categorical(self) -> int:
        """C."""
        return len(self.categorical)

    @property
    def num_positions(self) -> int:
        """P, the columns of `ids`."""
        return sum(field.max_length for field in self.categorical)

    @property
    def vocabulary_files(self) -> list[str]:
        """The files of the vocabulary by rising ids: VOCABULARY_FILE, then those of values that were added in place."""
        return [VOCABULARY_FILE, *sorted(file.name for file in self.other_files if first_added_id(file.name))]

    @property
    def expired_files(self) -> list[DataFile]:
        """The files with ids that lost their values, oldest first. `rows` are their ids."""
        return [file for file in self.other_files if file.name.startswith(EXPIRED_PREFIX)]

    @property
    def num_expired(self) -> int:
        """Number of ids that lost their values since the vocabulary was written as a whole."""
        return sum(file.rows for file in self.expired_files)

    def vocabulary_of(self, name: str) -> str:
        """Return the name that a field's values have in vocabulary.parquet: its own, or that of the field it shares."""
        owner: str = self.options.get("data", {}).get("shares", {}).get(name, name)
        return owner

    def is_text(self, field: CategoricalField) -> bool:
        """Return True if a field's values are strings, by whose keys ids out of vocabulary are chosen, not numbers."""
        columns = self.options.get("data", {}).get("columns", {})
        return bool(field.cross) or columns.get(field.name) in TEXT_KINDS


def checksum_of(content: dict[str, Any]) -> str:
    """Return the checksum of schema.json's content."""
    return format_checksum(xxhash.xxh3_64(json.dumps(content).encode()))


def read_schema(folder: Path) -> Schema:
    """Return the schema of a prepared folder.

    Raises FileNotFoundError if the folder is missing or unfinished, ValueError if schema.json is damaged or of another
    format version.
    """
    path = folder / SCHEMA_FILE
    if folder.is_file():
        raise FileNotFoundError(f"{folder} is a file, not a prepared folder; {_instead_of(folder)}")
    if not path.is_file():
        actual = (
            f"the folder has no {SCHEMA_FILE}, so it is no finished one"
            if folder.is_dir()
            else "the folder does not exist"
        )
        raise FileNotFoundError(
            f"no prepared data in {folder}: {actual}; run: make preprocess INPUT=LOG OUTPUT={quote(str(folder))}"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version, expected = content["format_version"], content.pop(CHECKSUM, "")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); prepare the data again") from error
    check_format_version(path, version, FORMAT_VERSION, "prepare the data again")
    if (actual := checksum_of(content)) != expected:
        raise ValueError(f"{path} is damaged: its checksum is {actual}, it names {expected}; {ADVICE}")
    try:
        return from_dict(content, Schema)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); prepare the data again") from error


def _instead_of(file: Path) -> str:
    """Return what to give in place of a file."""
    if (file.parent / SCHEMA_FILE).is_file():
        return f"give the folder that it is in: {file.parent}"
    return f"if it is a log, prepare it: make preprocess INPUT={quote(str(file))} OUTPUT=prepared, and give prepared"


INDICATOR = "missing"
NO_ID = -1  # in the positions of a list after its values
NEWEST = "newest"
DAY = 86_400_000  # milliseconds


def before_transform(field: NumericField, cells: NDArray[np.number]) -> NDArray[np.float64]:
    """Return what a numeric column is made of from present cells [n]: a number as it is, a time's age in days."""
    numbers = cells.astype(np.float64)
    if NEWEST not in field.parameters:
        return numbers
    return np.maximum(field.parameters[NEWEST] - numbers, 0) / DAY  # later rows are as old as the newest


def transform_numbers(field: NumericField, cells: NDArray[np.number]) -> NDArray[np.float64]:
    """Return the numbers of a numeric column from present cells [n]: integers, floats, or times in ms."""
    numbers = before_transform(field, cells)
    if field.transform == "log1p":
        return np.copysign(np.log1p(np.abs(numbers)), numbers)
    if field.transform == "max":
        return numbers / field.parameters["max"]
    if field.transform == "standardize":
        return (numbers - field.parameters["mean"]) / field.parameters["standard_deviation"]
    if field.transform == "quantile":
        boundaries, ranks = np.array(field.quantiles).T
        return np.interp(numbers, boundaries, ranks)
    raise ValueError(
        f"numeric column {field.name!r} has transform {field.transform!r}, which this program does not know"
    )
