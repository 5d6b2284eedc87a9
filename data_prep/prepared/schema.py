"""Define schema.json, the description of a prepared folder. `data_prep` writes it last, `app` reads it first.

The entries of numeric and vector columns also say how raw numbers become inputs of a model. A vector of width W becomes
W + 1 inputs: its components after the scaling that the setting `scale` names (such as standardization), and an
indicator that is 1 if the vector is missing.

A vocabulary has V ids: 0 … N-1 are the numeric columns, then come the out-of-vocabulary id(s) of each categorical
field, then one id per (field, value) of the vocabulary. Values that are added later get ids after all others.

A MindRecord sample is a block of up to `block_rows` rows. It has n rows, N numbers and P categorical ids per row:

    ids      [n * P]  the bytes of int32 (int64 if V >= 2**31), little-endian, of the categorical fields only
    numeric  [n * N]  float32
    label    [n]      float32
    weight   [n]      float32, if the log has weights
    key_NAME [n]      int64, for each column NAME of kind id: the 64-bit key of its text
    vectors  [n * K]  float32, if the log has vectors: per row and vector column, the components and the indicator

With `layout: zoo` it is a sample of the MindSpore model zoo's Wide&Deep, with 1,000 rows:

    feat_ids   [n * (N + C)]  int32    per row: 0 … N-1, then the ids of the categorical fields
    feat_vals  [n * (N + C)]  float32  per row: the numeric fields, then C ones
    label      [n]            float32
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.files import check_format_version, fields_of, format_checksum, from_dict, parse_json
from common.packages import python_command
from data_prep.options.columns import EncodingOptions
from data_prep.options.kinds import TEXT_KINDS
from data_prep.options.log_format import LogFormat

SCHEMA_FILE = "schema.json"
VOCABULARY, PARQUET = "vocabulary", ".parquet"  # Beginning and end of the name of each vocabulary file.
VOCABULARY_FILE = VOCABULARY + PARQUET
ADDED_PREFIX = f"{VOCABULARY}-"  # Prefix of the names of files with values that were added to the vocabulary later.
# Key in `Schema.source`: the checksum of the first vocabulary.parquet, before ids were renumbered.
FIRST_VOCABULARY = "first_vocabulary"
EXPIRED_PREFIX, NUMPY = "expired-", ".npy"  # Beginning and end of the name of each file with expired ids.
FORMAT_VERSION = 4
CHECKSUM = "checksum"  # Key of schema.json: checksum of the rest of its content.

SPLITS = ("train", "valid", "test")

MOST_DEVIATIONS = 10.0  # Bound of the standardized components, and of numbers with the transform log1p_standardize.
_BOUND = np.float32(MOST_DEVIATIONS)
_ROWS_AT_ONCE = 512  # This many rows are scaled at a time, so that their vectors stay in the cache.
NORM_RANKS = np.linspace(0, 1, 11)  # Ranks of the quantiles in `VectorField.norms`.


@dataclass(frozen=True)
class NumericField:
    """A numeric column of the prepared rows, as schema.json describes it. Its id is its index in `Schema.numeric`.

    `source` is the name of the column of the log from which it is computed. `parameters` are those of `transform`,
    fitted to the training rows: `max`, or `mean` and `standard_deviation`. A timestamp also has `newest`, the time in
    ms from which ages are counted back. `quantiles` are (number, rank) pairs for the transform "quantile". The
    transform "missing" gives 1 if the log's cell is empty, else 0. The transform "piece" gives the part of a number's
    logarithm that lies between `low` and `high`, as a share of this range, minus `mean`, over `standard_deviation`.
    """

    name: str
    source: str
    transform: str
    parameters: dict[str, Any]  # Numbers. Where several columns are computed together, arrays [columns, 1] of numbers.
    quantiles: tuple[tuple[float, float], ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if the column has the number itself, False if it only has a piece of it or tells if it is missing."""
        return self.transform not in (INDICATOR, PIECE)


@dataclass(frozen=True)
class CategoricalField:
    """A categorical field of the prepared rows, which has one or more columns of ids. Ranges of ids are [first, end).

    `id_ranges` are the ids of values in the vocabulary; there are several ranges if values were added later. `oov_ids`
    is the range of ids for out-of-vocabulary values. Fields that share a vocabulary have the same ranges. A list field
    has `max_length` columns: the ids of its values, then -1 in the columns left over. An empty list has the single
    value "missing". A cross that involves a list is itself a list.
    """

    name: str
    oov_ids: tuple[int, int]
    id_ranges: tuple[tuple[int, int], ...]
    cross: tuple[str, ...] = ()  # The fields whose values are combined. Empty if the field is no cross.
    max_length: int = 1  # Number of columns in `ids`.
    pool: Literal["mean", "sum"] = "mean"  # How the embedding rows of a list's values are combined into one.

    @property
    def num_values(self) -> int:
        """Number of values of this field that have an id in the vocabulary."""
        return sum(end - first for first, end in self.id_ranges)


@dataclass(frozen=True)
class VectorField:
    """A vector column of the prepared rows, as schema.json describes it.

    The statistics are those of the training rows with a label and a weight above 0, estimated from a sample. `mean` and
    `deviation` have the mean and the standard deviation of each component: of the raw component, or with scale "norm"
    of the component after the division by the vector's Euclidean length. A deviation of 0 marks a constant component.
    """

    name: str
    width: int  # W, the number of components.
    scale: Literal["standardize", "norm", "none"]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    missing: float = 0.0  # Share of the training rows without this vector.
    # Quantiles, at NORM_RANKS, of the Euclidean lengths of the raw vectors. () if all vectors are missing.
    norms: tuple[float, ...] = ()
    # Mean and standard deviation, over the training rows, of the distance that `vector_distances` computes.
    distance: float = 0.0
    distance_deviation: float = 0.0

    @property
    def inputs(self) -> int:
        """Number of inputs that the column has in `Examples.vectors`: its components and the indicator."""
        return self.width + 1

    @functools.cached_property
    def _fitted(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What the scale "standardize" subtracts from each component of the vector, and by what it then divides it:
        half the mean of the component [W], and half its deviation [W].

        They are halves because the components are halved, too, so that the difference of two large numbers is finite.
        The divisor of a constant component is infinity, which makes the component 0.
        """
        mean, deviation = np.array(self.mean, np.float32), np.array(self.deviation, np.float32)
        return mean / 2, np.where(deviation > 0, deviation / 2, np.float32(np.inf))

    @functools.cached_property
    def scaled_mean(self) -> NDArray[np.float32]:
        """Mean [W] of each component after the scaling, as a model sees it."""
        mean = np.array(self.mean, np.float32)
        return np.zeros_like(mean) if self.scale == "standardize" else mean

    @functools.cached_property
    def scaled_deviation(self) -> NDArray[np.float32]:
        """Standard deviation [W] of each component after the scaling. It is 0 for a constant component."""
        deviation = np.array(self.deviation, np.float32)
        return np.sign(deviation) if self.scale == "standardize" else deviation


@dataclass(frozen=True)
class DataFile:
    """The entry of one file of the prepared folder in schema.json.

    `rows` is 0 for a file without rows, such as the .db beside a .mindrecord. `blocks` has the checksums of the file's
    blocks of rows, joined to one text.
    """

    name: str
    rows: int
    size_bytes: int
    checksum: str
    blocks: str = ""


@dataclass(frozen=True)
class Split:
    """The entry of one split in schema.json: the split's files and the counts of its rows.

    The rows are in the order of `files`. A file consists of blocks of `block_rows` rows; its last block may be shorter.

    A row *counts* if it has a weight above 0. Rows of weight 0, which include all rows without a label, change nothing
    in a training. Folders of earlier releases lack `weightless` and `mean_weight`, which are then 0.
    """

    rows: int
    clicks: int
    files: tuple[DataFile, ...]
    membership: str = ""  # Checksum of the line numbers (int64, ascending) that the split's rows have in the log.
    # Number of rows without a label, and number of rows of weight 0, which is 0 if rows have no weights.
    unlabelled: int = 0
    weightless: int = 0
    mean_weight: float = 0.0  # Mean of the weights above 0. It is 0 if rows have no weights, or no weight is above 0.

    @property
    def num_labelled(self) -> int:
        return self.rows - self.unlabelled

    @property
    def num_counting(self) -> int:
        """Number of rows of the split that have a label and a weight above 0.

        Folders of earlier releases do not record how many rows have weight 0. For such a folder the result is the
        number of rows that have a label.
        """
        return self.rows - max(self.unlabelled, self.weightless)

    @property
    def counting_share(self) -> float:
        """Fraction of the split's rows that have a label and a weight above 0.

        The result is never 0: if no row has both, it is 1 / (number of rows). If the split is empty, it is 1.
        """
        return max(self.num_counting, 1) / max(self.rows, 1)

    @property
    def click_rate(self) -> float:
        """Number of clicks in the split divided by its number of rows with a label. NaN if no row has a label."""
        return self.clicks / self.num_labelled if self.num_labelled else float("nan")


def first_added_id(name: str) -> int:
    """Return the smallest id in a file of values that were added to the vocabulary later. The file's name contains it.

    Return 0 for all other names, such as VOCABULARY_FILE.
    """
    return int(name[len(ADDED_PREFIX) : -len(PARQUET)]) if name.startswith(ADDED_PREFIX) else 0


@dataclass(frozen=True)
class Schema:
    """The content of schema.json: the columns, ids, splits and files of a prepared folder, and how it was made."""

    format_version: int
    numeric: tuple[NumericField, ...]
    categorical: tuple[CategoricalField, ...]
    vocabulary_size: int
    ids_dtype: str
    block_rows: int
    splits: dict[str, Split]
    rejected_rows: int
    options: dict[str, Any]  # Options of the preparation: min_count, split rule, numeric transform, seed …
    source: dict[str, Any]  # Facts about the raw log: name, size, checksum, number of lines.
    # Entries of the files that no split lists: vocabulary.parquet, rejects.tsv, the .db files …
    other_files: tuple[DataFile, ...]
    weight: str = ""  # Name of the log's column of weights. Empty if rows have no weights.
    keys: tuple[str, ...] = ()  # Names of the log's columns of kind id, whose texts are stored as 64-bit hashes (keys).
    vectors: tuple[VectorField, ...] = ()  # The vector columns, in the order of the log.

    def __repr__(self) -> str:
        rows = ", ".join(f"{split.rows:,} {name}" for name, split in self.splits.items())
        fields = f"{self.num_numeric} numeric and {self.num_categorical} categorical"
        if self.vectors:
            fields = f"{self.num_numeric} numeric, {self.num_categorical} categorical and {len(self.vectors)} vector"
        return f"<Schema: {fields} fields, {self.vocabulary_size:,} ids; rows: {rows}>"

    @property
    def layout(self) -> Literal["blocks", "zoo"]:
        """The layout of MindRecord samples: "blocks", this project's own, or "zoo", that of MindSpore's model zoo."""
        return "zoo" if self.options.get("layout") == "zoo" else "blocks"

    @property
    def encoding(self) -> EncodingOptions:
        """The options that decide how a row of the log is encoded."""
        recorded = fields_of(EncodingOptions, self.options)
        recorded["data"] = fields_of(LogFormat, recorded.get("data", {}))
        return from_dict(recorded, EncodingOptions)

    @property
    def log_format(self) -> LogFormat:
        """The format of the log from which the folder was prepared."""
        return self.encoding.data

    @property
    def num_numeric(self) -> int:
        """N, the number of numeric columns of the rows."""
        return len(self.numeric)

    @property
    def sampled_share(self) -> float:
        """Number of labelled training rows in the folder, divided by an estimate of their number in the log.

        It is 1 unless `prepare.keep_negatives` keeps only a sample of the rows without a click.
        """
        train, fraction = self.splits["train"], self.options.get("keep_negatives", 1)
        num_rows = train.clicks + (train.num_labelled - train.clicks) / fraction
        return train.num_labelled / num_rows if num_rows else 1.0

    @property
    def vector_inputs(self) -> int:
        """K, the number of inputs in a row of `Examples.vectors`: each vector's components and missing indicator."""
        return sum(field.inputs for field in self.vectors)

    @property
    def num_categorical(self) -> int:
        """C, the number of categorical fields of the rows."""
        return len(self.categorical)

    @property
    def num_positions(self) -> int:
        """P, the number of ids that each row has."""
        return sum(field.max_length for field in self.categorical)

    @property
    def vocabulary_files(self) -> list[str]:
        """Names of the files that contain the vocabulary, in the order of the ids in them.

        The first is VOCABULARY_FILE. The others contain values that were added later.
        """
        return [VOCABULARY_FILE, *sorted(file.name for file in self.other_files if first_added_id(file.name))]

    @property
    def expired_files(self) -> list[DataFile]:
        """The files that list ids whose values have expired, which means that online training has removed the values.

        The oldest file comes first. The attribute `rows` of a file is the number of ids in it.
        """
        return [file for file in self.other_files if file.name.startswith(EXPIRED_PREFIX)]

    @property
    def num_expired(self) -> int:
        """Number of ids whose values have expired since the vocabulary was last rewritten with new ids."""
        return sum(file.rows for file in self.expired_files)

    def vocabulary_of(self, name: str) -> str:
        """Return the name under which vocabulary.parquet lists the values of the field `name`.

        The name is the field's own, or that of another field if the field uses the vocabulary of that field.
        """
        owner: str = self.options.get("data", {}).get("shares", {}).get(name, name)
        return owner

    def is_text(self, field: CategoricalField) -> bool:
        """Return True if the values of a categorical field are strings, and False if they are integers.

        If the field has several out-of-vocabulary ids, a string's hash selects one of them.
        """
        columns = self.options.get("data", {}).get("columns", {})
        return bool(field.cross) or columns.get(field.name) in TEXT_KINDS


def checksum_of(content: dict[str, Any]) -> str:
    """Return the checksum of `content`, the content of schema.json, which must not include the key CHECKSUM."""
    return format_checksum(xxhash.xxh3_64(json.dumps(content).encode()))


def read_schema(folder: Path) -> Schema:
    """Return the content of schema.json of a prepared folder.

    Raise FileNotFoundError if the folder is missing or unfinished. Raise ValueError if schema.json is damaged or has an
    unknown format version.
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
        raise FileNotFoundError(f"no prepared data in {folder}: {actual}; run: {_prepare('LOG', folder)}")
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        version, expected = content["format_version"], content.pop(CHECKSUM, "")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); prepare the data again") from error
    check_format_version(path, version, FORMAT_VERSION, "prepare the data again")
    if (actual := checksum_of(content)) != expected:
        raise ValueError(f"{path} is damaged: its checksum is {actual}, it names {expected}; {advice(folder)}")
    try:
        return from_dict(content, Schema)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); prepare the data again") from error


def advice(folder: Path) -> str:
    """Return the end of an error message about a damaged prepared folder: what the user can do about it."""
    inspect = python_command(f"data_prep inspect {quote(str(folder))}")
    return f"see {inspect}; copy the folder again or prepare the data again: {_prepare('LOG', folder)} --overwrite"


def _prepare(log: str, folder: Path) -> str:
    return python_command(f"data_prep prepare {quote(log)} {quote(str(folder))} --config configs/auto.yaml")


def _instead_of(file: Path) -> str:
    """Return the end of the error message that `file` is not a prepared folder: which folder to give instead."""
    if (file.parent / SCHEMA_FILE).is_file():
        return f"give the folder that it is in: {file.parent}"
    return f"if it is a log, prepare it: {_prepare(str(file), Path('prepared'))}, and give prepared"


INDICATOR = "missing"
PIECE = "piece"
MISSING_KEY = 0  # The key (64-bit hash) that is stored for a missing cell in a column of kind id.
NO_ID = -1  # Number that fills the columns of a list field after the id of the list's last value.
NEWEST = "newest"
DAY = 86_400_000  # Milliseconds per day.


def before_transform(field: NumericField, cells: NDArray[np.number]) -> NDArray[np.float64]:
    """Return the numbers [n] to which a column's transform is applied. `cells` [n] are cells that are not missing.

    In a timestamp column a time becomes its age in days. In other columns numbers are unchanged.
    """
    numbers = cells.astype(np.float64)
    if NEWEST not in field.parameters:
        return numbers
    # A time after the newest time of the training rows has the age 0, not a negative age.
    return np.maximum(field.parameters[NEWEST] - numbers, 0) / DAY


def signed_log1p(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sign(x) · ln(1 + |x|) for each number x."""
    return np.copysign(np.log1p(np.abs(numbers)), numbers)


def _standardized(field: NumericField, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return (numbers - field.parameters["mean"]) / field.parameters["standard_deviation"]


def piece_of_logs(field: NumericField, logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how much of the range of a piece each number covers, from 0 to 1. `logs` [n] are sign(x) · ln(1 + |x|) of
    the numbers x. The result is 0 if the range is empty.
    """
    low, high = field.parameters["low"], field.parameters["high"]
    return np.clip((logs - low) / np.where(low < high, high - low, np.inf), 0, 1)


def transform_numbers(field: NumericField, cells: NDArray[np.number]) -> NDArray[np.float64]:
    """Return the transformed numbers [n] of a numeric column, computed from `cells` [n] of the log.

    No cell may be missing. Cells are integers, floats, or times in ms. Raise ValueError for an unknown transform.
    """
    numbers = before_transform(field, cells)
    if field.transform == "log1p":
        return signed_log1p(numbers)
    if field.transform == "max":
        return numbers / field.parameters["max"]
    if field.transform == "standardize":
        return _standardized(field, numbers)
    if field.transform == "log1p_standardize":
        return np.clip(_standardized(field, signed_log1p(numbers)), -MOST_DEVIATIONS, MOST_DEVIATIONS)
    if field.transform == PIECE:
        return _standardized(field, piece_of_logs(field, signed_log1p(numbers)))
    if field.transform == "quantile":
        boundaries, ranks = np.array(field.quantiles).T
        return np.interp(numbers, boundaries, ranks)
    raise ValueError(
        f"numeric column {field.name!r} has transform {field.transform!r}, which this program does not know"
    )


def inverse_transform(field: NumericField, transformed: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the numbers [n] whose transform in a column is `transformed` [n]. A timestamp column gives ages in days.

    Where a transform gives all numbers beyond a bound the same value, the result is the bound.
    """
    numbers = transformed.astype(np.float64)
    if field.transform == "max":
        return numbers * field.parameters["max"]
    if field.transform == "quantile":
        boundaries, ranks = np.array(field.quantiles).T
        return np.interp(numbers, ranks, boundaries)
    if "standardize" in field.transform:
        numbers = numbers * field.parameters["standard_deviation"] + field.parameters["mean"]
    return np.copysign(np.expm1(np.abs(numbers)), numbers) if "log1p" in field.transform else numbers


def vector_slices(fields: Iterable[VectorField]) -> list[slice]:
    """Return, for each vector column, the slice of its components in the last axis of `Examples.vectors`.

    The element after a slice, at its `stop`, is the column's indicator, which is 1 if the vector is missing.
    """
    slices: list[slice] = []
    for field in fields:
        first = slices[-1].stop + 1 if slices else 0
        slices.append(slice(first, first + field.width))
    return slices


def vector_norms(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the Euclidean length of each vector of `values` [n, W]. In float64, no square overflows."""
    return np.sqrt(np.square(values, dtype=np.float64).sum(axis=1))


def divided_by_norm(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the vectors [n, W] divided by their Euclidean lengths. A vector of zeros stays as it is."""
    norms = vector_norms(values)
    return (values / np.where(norms > 0, norms, 1)[:, None]).astype(np.float32)


def scale_vectors(field: VectorField, values: NDArray[np.float32], present: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the inputs [n, W + 1] of a vector column, computed from its raw vectors `values` [n, W].

    A vector that is not `present` becomes zeros and the indicator 1. The inputs of a row do not depend on other rows.
    """
    inputs = np.empty((len(values), field.inputs), np.float32)
    for first in range(0, len(values), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        inputs[rows, : field.width] = _scaled(field, values[rows])
    inputs[~present, : field.width] = 0
    inputs[:, field.width] = ~present
    return inputs


def _scaled(field: VectorField, values: NDArray[np.float32]) -> NDArray[np.float32]:
    if field.scale == "standardize":
        # Half of the mean is subtracted from half of the component, because the whole difference of two large numbers
        # of opposite signs could be infinite.
        half_mean, half_divisor = field._fitted
        with np.errstate(over="ignore"):  # A quotient that overflows becomes infinite, and is clipped.
            scaled = values * np.float32(0.5)
            scaled -= half_mean
            scaled /= half_divisor
        np.clip(scaled, -_BOUND, _BOUND, out=scaled)
    else:
        scaled = divided_by_norm(values) if field.scale == "norm" else values.copy()
    scaled += np.float32(0)  # Turns -0.0 into 0.0, so that the bits do not depend on how a zero was written.
    return scaled


def vector_distances(field: VectorField, scaled: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return how far each vector is from the training mean: the root mean square of its components' deviations [n].

    `scaled` [n, W] are vectors, none of which is missing, after the scaling that `field.scale` names: standardized with
    the training mean and deviation, divided by their Euclidean lengths, or unchanged. A component's deviation is its
    difference from the training mean of the scaled component, in its standard deviations. Components that were constant
    in training are left out. The result is about 1 for vectors that are distributed as in training.
    """
    deviation = field.scaled_deviation.astype(np.float64)
    varies = deviation > 0
    if not varies.any():
        return np.zeros(len(scaled))
    deviations = (scaled[:, varies] - field.scaled_mean.astype(np.float64)[varies]) / deviation[varies]
    return np.sqrt(np.square(deviations).mean(axis=1))


def fit_vector(
    name: str,
    scale: Literal["standardize", "norm", "none"],
    values: NDArray[np.float32],
    missing: float,
) -> VectorField:
    """Return a vector column whose statistics are those of the vectors `values` [k, W], none of which is missing.

    `missing` is the share of the training rows without a vector. Without any vectors, all deviations are 0.
    """
    width = values.shape[1]
    if not len(values):
        zeros = (0.0,) * width
        return VectorField(name, width, scale, zeros, zeros, missing)
    components = (divided_by_norm(values) if scale == "norm" else values).astype(np.float64)
    # Mean and deviation are rounded to float32, the type with which `scale_vectors` computes. The deviation of a
    # constant component is 0. A deviation that is too small to divide by is replaced by 0.
    mean, deviation = components.mean(axis=0).astype(np.float32), components.std(axis=0).astype(np.float32)
    deviation[(np.ptp(components, axis=0) == 0) | (deviation < np.finfo(np.float32).smallest_normal)] = 0
    norms = tuple(np.quantile(vector_norms(values), NORM_RANKS).tolist())
    field = VectorField(name, width, scale, tuple(mean.tolist()), tuple(deviation.tolist()), missing, norms)
    scaled = scale_vectors(field, values, np.ones(len(values), np.bool_))[:, :width]
    distances = vector_distances(field, scaled)
    return replace(field, distance=float(distances.mean()), distance_deviation=float(distances.std()))
