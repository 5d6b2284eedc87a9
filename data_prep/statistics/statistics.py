"""Compute statistics of the training rows of a log: counts of values, and sums over numbers.

Chunks of the log are counted separately and added up. All sums are exact: they are sums of Python integers, to which
floats are converted as multiples of the smallest float. So the result has the same bits however the log was cut into
chunks.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.files import from_dict, parse_json
from data_prep.execution.pieces import storable
from data_prep.kernels.numpy_kernels import FLOAT_BINS, INTEGER_BINS, CountedStrings
from data_prep.kernels.strings import Strings
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import Schema
from data_prep.statistics.value_counts import MIN_COUNTS, Coverage, StringCounts, ValueCounts

# Attributes of LogStatistics that its method `state` returns as they are, without converting them.
_SAVED_FIELDS: tuple[str, ...] = ("num_lines", "rejects_by_reason", "num_training_rows", "numeric", "missing", "cut")
_SAVED_FIELDS += ("bins", "sample", "missing_vectors")
_FLOAT_BITS = 1074  # Every float64 that a parser produces is a multiple of 2**-1074.
_HALF_BITS = 27
# A 64-bit integer is split into limbs of this many bits. A sum of 2**21 products of two limbs stays below 2**63.
_LIMB_BITS = 21
SAMPLED_ROWS = 1 << 14  # The sample to which some numeric transforms are fitted has at most this many training rows.
# A sample has at most this many components of vectors in all. However wide the vectors are, it may have the second
# number of rows.
SAMPLED_COMPONENTS, FEWEST_SAMPLED_ROWS = 1 << 21, 1 << 9
SHORTEST_SPAN = 1 << 10  # Number of lines in the shortest span of a `Timeline`.
MOST_SPANS = 1 << 12


STATISTICS_FILE = "statistics.json"


@dataclass(frozen=True)
class ChunkSpans:
    """Counts of the rows of a chunk, for each span of SHORTEST_SPAN consecutive lines of the log.

    Spans are numbered from the start of the log. The first column of `counts` belongs to span number `first_span`.
    """

    first_span: int
    counts: NDArray[np.int64]  # [3, spans]: rows that were not rejected, rows with a label, and clicks.

    @classmethod
    def of(cls, row_numbers: NDArray[np.int64], labelled: NDArray[np.bool_], labels: NDArray[np.bool_]) -> ChunkSpans:
        """Count the rows of a chunk of the log in each span of SHORTEST_SPAN lines.

        `row_numbers` [n] are the line numbers of the rows in ascending order.
        """
        if not len(row_numbers):
            return cls(0, np.empty((3, 0), np.int64))
        first, last = int(row_numbers[0]) // SHORTEST_SPAN, int(row_numbers[-1]) // SHORTEST_SPAN
        starts = np.arange(first, last + 2) * SHORTEST_SPAN
        ends = np.searchsorted(row_numbers, starts)
        sums = np.zeros((3, len(labels) + 1), np.int64)
        np.cumsum([np.ones_like(labels), labelled, labels], axis=1, out=sums[:, 1:])
        return cls(first, np.diff(sums[:, ends]))


class Timeline:
    """Counts of rows, rows with a label, and clicks for each span of `span_lines` lines, over the whole log.

    `counts` [3, spans] has the counts in the order of `ChunkSpans`. There are at most MOST_SPANS spans: whenever there
    would be more, pairs of spans are joined. So the length of a span depends on the number of lines only.
    """

    def __init__(self) -> None:
        self.span_lines = SHORTEST_SPAN
        self.counts: NDArray[np.int64] = np.zeros((3, 0), np.int64)

    def add(self, chunk: ChunkSpans) -> None:
        num_spans = chunk.counts.shape[1]
        while (chunk.first_span + num_spans) * SHORTEST_SPAN > MOST_SPANS * self.span_lines:
            if self.counts.size:
                self.counts = np.add.reduceat(self.counts, np.arange(0, self.counts.shape[1], 2), axis=1)
            self.span_lines *= 2
        indices = (chunk.first_span + np.arange(num_spans)) * SHORTEST_SPAN // self.span_lines
        if num_spans and (num_more := indices[-1] + 1 - self.counts.shape[1]) > 0:
            self.counts = np.pad(self.counts, ((0, 0), (0, num_more)))
        np.add.at(self.counts.T, indices, chunk.counts.T)


@dataclass(frozen=True)
class NumericStatistics:
    """Exact count, sums and extremes of the cells of a numeric field that are not missing (present).

    The sum of the cells is `total` · 2^-bits, and the sum of their squares is `total_squares` · 4^-bits.
    """

    count: int = 0
    total: int = 0
    total_squares: int = 0
    maximum: float | None = None  # The largest cell, an int for integers and times. None if all cells are missing.
    minimum: float | None = None
    bits: int = 0

    @classmethod
    def of(cls, integers: NDArray[np.int64]) -> NumericStatistics:
        if len(integers) == 0:
            return cls()
        minimum, maximum = int(integers.min()), int(integers.max())
        if max(abs(minimum), abs(maximum)) ** 2 * len(integers) < 2**63:
            return cls(len(integers), int(integers.sum()), int(np.dot(integers, integers)), maximum, minimum)
        if len(integers) > 1 << _LIMB_BITS:
            half = len(integers) // 2
            return cls.of(integers[:half]) + cls.of(integers[half:])
        # Squares of the integers could exceed int64. So their offsets from the minimum, which are unsigned, are split
        # into limbs (groups of 21 bits), and sums of products of limbs are computed, which cannot exceed int64.
        offsets = integers.view(np.uint64) - integers.min().view(np.uint64)
        shifts = range(0, 64, _LIMB_BITS)
        limbs = [(offsets >> np.uint64(shift) & np.uint64((1 << _LIMB_BITS) - 1)).astype(np.int64) for shift in shifts]
        total = sum(int(limb.sum()) << shift for limb, shift in zip(limbs, shifts, strict=True))
        squares = sum(
            int(np.dot(one, other)) << a + b
            for one, a in zip(limbs, shifts, strict=True)
            for other, b in zip(limbs, shifts, strict=True)
        )
        count = len(integers)
        return cls(count, total + count * minimum, squares + 2 * minimum * total + count * minimum**2, maximum, minimum)

    @classmethod
    def of_floats(cls, floats: NDArray[np.float64]) -> NumericStatistics:
        if len(floats) == 0:
            return cls()
        mantissas, exponents = np.frexp(floats)
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        shifts, groups = np.unique(exponents.astype(np.int64) - 53 + _FLOAT_BITS, return_inverse=True)
        high, low = whole >> _HALF_BITS, whole & ((1 << _HALF_BITS) - 1)
        total, high_squares, mixed, low_squares = (
            _group_sums(numbers, groups) for numbers in (whole, high * high, 2 * high * low, low * low)
        )
        total_squares = 0
        for shift, *parts in zip(shifts.tolist(), high_squares, mixed, low_squares, strict=True):
            squares = (parts[0] << 2 * _HALF_BITS) + (parts[1] << _HALF_BITS) + parts[2]
            total_squares += squares << 2 * shift
        return cls(
            len(floats),
            sum(part << shift for part, shift in zip(total, shifts.tolist(), strict=True)),
            total_squares,
            float(floats.max()),
            float(floats.min()),
            _FLOAT_BITS,
        )

    def __add__(self, other: NumericStatistics) -> NumericStatistics:
        maxima, minima = (
            [extreme for extreme in extremes if extreme is not None]
            for extremes in ((self.maximum, other.maximum), (self.minimum, other.minimum))
        )
        return NumericStatistics(
            self.count + other.count,
            self.total + other.total,
            self.total_squares + other.total_squares,
            max(maxima, default=None),
            min(minima, default=None),
            max(self.bits, other.bits),
        )

    @property
    def mean(self) -> float:
        """Mean of the present cells of the field. NaN if no cell is present."""
        return self.total / (self.count << self.bits) if self.count else math.nan

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the present cells, as of a population and not of a sample.

        NaN if no cell is present.
        """
        if not self.count:
            return math.nan
        # The variance is one division of exact integers, so it is rounded only once.
        return math.sqrt((self.count * self.total_squares - self.total**2) / (self.count**2 << 2 * self.bits))


def _group_sums(numbers: NDArray[np.int64], groups: NDArray[np.int64]) -> list[int]:
    """Return the exact sum of the `numbers` [n] in each group. `groups` [n] has the index of each number's group.

    The bits of each number are split into two halves. The sums of halves are float64, and exact as long as they stay
    below 2**53.
    """
    high = np.bincount(groups, (numbers >> _HALF_BITS).astype(np.float64))
    low = np.bincount(groups, (numbers & ((1 << _HALF_BITS) - 1)).astype(np.float64))
    return [(int(a) << _HALF_BITS) + int(b) for a, b in zip(high.tolist(), low.tolist(), strict=True)]


def sampled_rows(num_components: int) -> int:
    """Return the maximum number of rows of a sample if the vectors of a row have `num_components` together."""
    return min(SAMPLED_ROWS, max(SAMPLED_COMPONENTS // max(num_components, 1), FEWEST_SAMPLED_ROWS))


def may_be_sampled(
    hashes: NDArray[np.uint64], row_numbers: NDArray[np.int64], num_components: int
) -> NDArray[np.bool_]:
    """Return a mask [n] of the rows that a sample of rows with wide vectors may contain.

    The sample consists of the lowest hashes. A row whose hash is high for its number in the log will hardly be one of
    them, so a chunk need not send its vectors. The mask depends only on the row itself.
    """
    fractions = (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53
    return fractions * (row_numbers + 1) < 2 * sampled_rows(num_components)


@dataclass(frozen=True)
class RowSample:
    """A sample of the training rows, with the numbers of their numeric fields.

    The sample consists of the rows with the lowest hashes (`sampled_rows` says how many), so it does not depend on how
    the log was cut into chunks.
    """

    hashes: NDArray[np.uint64]  # Hashes [k] of the k rows in the sample.
    numbers: NDArray[np.float64]  # Numbers [N, k] of the k rows in N numeric fields. NaN: a missing cell.
    # Components [k, ΣW] of the vectors of the k rows, with all vector columns side by side. NaN stands for a missing
    # vector.
    vectors: NDArray[np.float32]

    @classmethod
    def of(cls, hashes: NDArray[np.uint64], numbers: NDArray[np.float64], vectors: NDArray[np.float32]) -> RowSample:
        """Return the sample of n rows with the given hashes [n].

        `numbers` [N, n] are the numbers of these rows in N numeric fields, and `vectors` [n, ΣW] their vectors.
        """
        lowest = np.argsort(hashes)[: sampled_rows(vectors.shape[1])]
        return cls(hashes[lowest], numbers[:, lowest], vectors[lowest])

    def __add__(self, other: RowSample) -> RowSample:
        numbers = np.concatenate([self.numbers, other.numbers], axis=1)
        vectors = np.concatenate([self.vectors, other.vectors])
        return RowSample.of(np.concatenate([self.hashes, other.hashes]), numbers, vectors)


@dataclass(frozen=True)
class ChunkCounts:
    """Counts of the lines of a chunk of the log, and statistics of the chunk's training rows."""

    num_lines: int
    rejects_by_reason: Counter[str]
    rejects_tsv: bytes
    num_training_rows: int
    numeric: list[NumericStatistics]  # Statistics of each numeric field.
    missing: list[int]  # Number of missing cells of each categorical column.
    missing_vectors: list[int]  # Number of missing vectors of each vector column.
    cut: dict[str, int]  # Number of rows whose list was cut to `max_length` values, by list column.
    # For each categorical column of numbers: its distinct values with their counts, as value << 32 | count, ascending.
    values: list[NDArray[np.uint64]]
    texts: list[CountedStrings]  # Values of each vocabulary of strings, with their counts.
    # Histogram of the numbers of each integer or float field, as the kernels count_bins and count_float_bins return it.
    bins: list[NDArray[np.int64]]
    spans: ChunkSpans  # Counts of all rows of the chunk, by span of lines.
    sample: RowSample | None = None  # Sample of training rows to which numeric transforms are fitted.


storable(NumericStatistics, RowSample, ChunkSpans, Coverage, Strings, CountedStrings, ChunkCounts)


class LogStatistics:
    """Statistics of the whole log: the sum of the `ChunkCounts` of all its chunks.

    If the counts of values exceed `counts_bytes` bytes of memory, they are written to files in `folder`.
    """

    def __init__(self, options: PrepareOptions, folder: Path, counts_bytes: int) -> None:
        columns, num_vocabularies = options.categorical_columns, len(options.vocabularies)
        num_texts = sum(column.is_text for column in options.vocabularies)
        texts_bytes = counts_bytes * num_texts // num_vocabularies
        self.num_lines = 0
        self.rejects_by_reason: Counter[str] = Counter()
        self.num_training_rows = 0
        self.numeric = [NumericStatistics() for _ in options.data.numeric_fields]
        self.sample: RowSample | None = None
        self.missing = [0] * len(columns)
        self.missing_vectors = [0] * len(options.data.vector_fields)
        self.cut: Counter[str] = Counter()
        is_float = [name in options.data.float_fields for name in options.data.sized_fields]
        self.bins = [np.zeros(2 * (FLOAT_BINS if each else INTEGER_BINS).zero + 1, np.int64) for each in is_float]
        self.timeline = Timeline()
        # Number of training rows with an out-of-vocabulary value in each categorical column, [C]. The second pass over
        # the log counts them.
        self.unknown = np.zeros(len(columns), np.int64)
        self.columns = columns
        self.values = ValueCounts(num_vocabularies - num_texts, folder, counts_bytes - texts_bytes)
        self.texts = StringCounts(num_texts, folder, texts_bytes, self._check_cross)
        self.log_format = options.data
        self._options = options

    @property
    def coverage(self) -> list[Coverage]:
        """For each categorical column, how many values its vocabulary would have with other values of `min_count`.

        `Coverage` also has the number of rows with these values. The coverage of a vocabulary is all zeros if
        `frequent` (value_counts.py) was never called for that vocabulary.
        """
        return [(self.texts if column.is_text else self.values).coverage[column.place] for column in self.columns]

    @property
    def num_rejects(self) -> int:
        return self.rejects_by_reason.total()

    def add(self, chunk: ChunkCounts) -> None:
        self.num_lines += chunk.num_lines
        self.rejects_by_reason += chunk.rejects_by_reason
        self.num_training_rows += chunk.num_training_rows
        self.missing = [mine + theirs for mine, theirs in zip(self.missing, chunk.missing, strict=True)]
        vectors = zip(self.missing_vectors, chunk.missing_vectors, strict=True)
        self.missing_vectors = [mine + theirs for mine, theirs in vectors]
        self.cut.update(chunk.cut)
        self.bins = [mine + theirs for mine, theirs in zip(self.bins, chunk.bins, strict=True)]
        self.timeline.add(chunk.spans)
        if chunk.numeric:
            self.numeric = [mine + theirs for mine, theirs in zip(self.numeric, chunk.numeric, strict=True)]
        if chunk.sample is not None:
            self.sample = chunk.sample if self.sample is None else self.sample + chunk.sample
        if chunk.values:
            self.values.add(chunk.values)
        if chunk.texts:
            self.texts.add(chunk.texts)

    def _check_cross(self, place: int, counted: CountedStrings) -> None:
        """Raise ValueError if the cross whose vocabulary has the index `place` already has too many values.

        The check is made after each merge of counts, so that the error does not come after hours of counting.
        """
        for column in self._options.vocabularies:
            if column.cross and column.place == place:
                least = self._options.least_count(column.name)
                self._options.check_cross_size(column.name, int(np.count_nonzero(counted.counts >= least)))

    def close(self) -> None:
        self.values.close()
        self.texts.close()

    def state(self) -> dict[str, Any]:
        """Return the statistics, except counts of values, as plain values and arrays by name.

        The result can be stored in a temporary file (`execution.pieces`) and restored from there.
        """
        timeline = self.timeline.span_lines, self.timeline.counts
        coverage = (self.values.coverage, self.texts.coverage)
        return {name: getattr(self, name) for name in _SAVED_FIELDS} | {"timeline": timeline, "coverage": coverage}

    def restore(self, state: dict[str, Any]) -> None:
        for name in _SAVED_FIELDS:
            setattr(self, name, state[name])
        self.timeline.span_lines, self.timeline.counts = state["timeline"]
        self.values.coverage, self.texts.coverage = state["coverage"]


@dataclass(frozen=True)
class NumericProfile:
    """Counts of the cells of a numeric field in the training rows: missing cells, and a histogram of the others.

    `bins` are pairs (number of the bin, count). Empty bins are left out.
    """

    missing: int
    bins: tuple[tuple[int, int], ...]
    is_float: bool = False  # True if the bins are FLOAT_BINS, False if they are INTEGER_BINS.


@dataclass(frozen=True)
class CategoricalProfile:
    """Counts of the cells of a categorical field in the training rows.

    `missing` is the number of empty cells, and `unknown` the number of cells with an out-of-vocabulary value (in a
    list, at least one). `cut` is the number of lists that were cut to the field's `max_length`.

    If the setting `min_count` were `Profile.min_counts[i]`, the vocabulary would have `values[i]` values, which occur
    in `rows[i]` rows. Both tuples are empty if values were not counted.
    """

    missing: int
    unknown: int
    values: tuple[int, ...]
    rows: tuple[int, ...]
    cut: int | None = None  # Number of lists that were cut, or None if the field is no list.


@dataclass(frozen=True)
class Profile:
    """The content of statistics.json.

    `training_rows` is the number of training rows with a label and a weight above 0. The statistics of
    each field also count only these rows.

    The log is divided into spans of `span_lines` lines. For each span, `rows` has the number of lines that were not
    rejected, `clicks` the number of clicks, and `labelled` the number of rows with a label.
    """

    training_rows: int
    span_lines: int
    rows: tuple[int, ...]
    clicks: tuple[int, ...]
    min_counts: tuple[int, ...]
    numeric: dict[str, NumericProfile]
    categorical: dict[str, CategoricalProfile]
    # Number of rows with a label in each span of lines, or () if all rows have a label.
    labelled: tuple[int, ...] = ()
    vectors: dict[str, int] = field(default_factory=dict)  # Number of missing vectors, by name of the vector column.

    @property
    def num_labelled(self) -> int:
        """Number of rows of the log that have a label, also of those that a sample of the negatives leaves out."""
        return sum(self.labelled or self.rows)

    @property
    def click_rate(self) -> float:
        """Number of clicks in the log divided by its number of rows with a label. NaN if no row has a label."""
        return sum(self.clicks) / self.num_labelled if self.num_labelled else float("nan")

    def kept_rows_in_words(self, schema: Schema) -> str:
        """Return a sentence that says how many training rows were kept, or "" if `prepare.keep_negatives` keeps all."""
        if (fraction := schema.options.get("keep_negatives", 1)) == 1:
            return ""
        num_kept = schema.splits["train"].rows
        num_rows = num_kept + sum(self.rows) - sum(split.rows for split in schema.splits.values())
        return (
            f"{num_kept:,} of {num_rows:,} training rows are kept: all clicks, and of the rows without a click a "
            f"sample of {fraction:g} (prepare.keep_negatives), each with {1 / fraction:g} times its weight"
        )


def write_statistics(statistics: LogStatistics, folder: Path) -> None:
    """Write the statistics of a log to statistics.json in a prepared folder."""
    num_rows, timeline, log_format = statistics.num_training_rows, statistics.timeline, statistics.log_format
    numeric = {
        name: NumericProfile(
            num_rows - int(counts.sum()),
            tuple((int(number), int(counts[number])) for number in np.flatnonzero(counts)),
            name in log_format.float_fields,
        )
        for name, counts in zip(log_format.sized_fields, statistics.bins, strict=True)
    }
    columns = zip(statistics.missing, statistics.unknown.tolist(), statistics.coverage, strict=True)
    categorical = {}
    for column, (missing, unknown, covered) in zip(statistics.columns, columns, strict=True):
        is_counted = covered.values.any()
        values, rows = (tuple(c.tolist()) if is_counted else () for c in (covered.values, covered.rows))
        categorical[column.name] = CategoricalProfile(missing, unknown, values, rows, statistics.cut.get(column.name))
    by_span, labelled, clicks = (tuple(counts) for counts in timeline.counts.tolist())
    labelled = () if labelled == by_span else labelled
    vectors = dict(zip(log_format.vector_fields, statistics.missing_vectors, strict=True))
    profile = Profile(
        num_rows, timeline.span_lines, by_span, clicks, MIN_COUNTS, numeric, categorical, labelled, vectors
    )
    # The key "vectors" was added in a later release. It is left out if there are none, so that the bytes stay the same.
    content = {name: value for name, value in asdict(profile).items() if vectors or name != "vectors"}
    (folder / STATISTICS_FILE).write_text(json.dumps(content) + "\n", encoding="utf-8")


def read_statistics(folder: Path) -> Profile:
    """Return the content of statistics.json in a prepared folder.

    Raise FileNotFoundError if there is no such file, ValueError if it is damaged.
    """
    path = folder / STATISTICS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; prepare the data again")
    try:
        return from_dict(parse_json(path.read_text(encoding="utf-8")), Profile)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); prepare the data again") from error


def cut_lists(schema: Schema, profile: Profile) -> list[str]:
    """For each list field with lists that were cut to `max_length`, return a sentence that says in how many rows."""
    return [
        f"{field.name}: {cut:,} of {profile.training_rows:,} training rows have more than {field.max_length} values; "
        "the others were left out"
        for field in schema.categorical
        if (cut := profile.categorical[field.name].cut)
    ]
