"""Compute metrics for parts of a split: by the values of a field, by time, or by the number of unseen values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from app.evaluation.metrics import Metrics, MetricStream, confidence_intervals
from app.evaluation.results import MISSING, OUT_OF_VOCABULARY, first_column, names_of_ids
from common.settings import did_you_mean
from common.text import natural_order, number_text
from data_prep.prepared.batches import Batch
from data_prep.prepared.data_files import block_sizes
from data_prep.prepared.examples import Examples
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import INDICATOR, Schema, inverse_transform

# Names of the two ways to divide the rows of a split other than by the values of a field.
TIME, UNSEEN = "time", "unseen"
# A categorical field with at most FEW_VALUES values, such as the hours of a day, has a part for each value. In a field
# with more values, each of the TOP_VALUES most frequent ones has a part of its own.
FEW_VALUES = 25
TOP_VALUES = 10
TIME_PARTS = 10
# Number of parts into which rows are divided by a numeric field. Each part has about the same number of training rows.
NUMBER_PARTS = 10
QUANTILE_BLOCKS = 256  # Quantiles are computed from at most this many blocks of rows of the training files.
# Division by unseen values: a row with at least UNSEEN_COUNTS[i] out-of-vocabulary values, but fewer than
# UNSEEN_COUNTS[i + 1], is in part i. The last part has no upper bound.
UNSEEN_COUNTS = (0, 1, 2, 4, 8)
EXACT_ROWS = 2**20  # If a part of the split has more rows than this, its metrics are computed from rounded logits.
# A part with fewer clicks than this, or with fewer rows without a click, gets no confidence intervals, because many of
# its bootstrap samples would have only one of the two labels.
LEAST_OF_A_CLASS = 10
OTHER = "(other values)"


@dataclass(frozen=True)
class Slice:
    """The metrics of one part of the rows, with 95 % confidence intervals by metric.

    `by` says what divides the rows: a field, `time`, or `unseen` (the number of values without an id). `name` names the
    part. `intervals` is empty if the part has fewer than LEAST_OF_A_CLASS rows with a click, or fewer than that
    without one.
    """

    by: str
    name: str
    metrics: Metrics
    intervals: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Slices:
    """A division of a split's rows into parts, which have `names`.

    `find` takes a batch and the position of the batch's first row in the split. It returns for each row [n] the index
    of its part in `names`.
    """

    by: str
    names: list[str]
    find: Callable[[Batch, int], np.ndarray]


class SliceStream:
    """Collects the labels and logits of a split, batch by batch. `result` computes the metrics of each part of its
    rows.
    """

    def __init__(self, parts: Slices) -> None:
        self._parts = parts
        self._streams = [MetricStream(EXACT_ROWS) for _ in parts.names]
        self._rows = 0

    def add(self, batch: Batch, logits: np.ndarray) -> None:
        """Add the split's next batch: put each row, with its logit, into the slice (part of the rows) that it belongs
        to. `logits` [n] are those of the model.
        """
        of_row = self._parts.find(batch, self._rows)
        self._rows += batch.num_rows
        for part in np.unique(of_row):
            is_part = of_row == part
            weights = None if batch.weights is None else batch.weights[is_part]
            self._streams[part].add(logits[is_part], batch.labels[is_part], weights)

    def result(self, replicates: int, seed: int) -> list[Slice]:
        """Return the metrics of each part of the split that has rows, in the order of the parts.

        Confidence intervals are computed from `replicates` bootstrap samples. With 0 there are none.
        """
        slices = []
        for name, stream in zip(self._parts.names, self._streams, strict=True):
            if not stream.rows:
                continue
            metrics, bins = stream.result_and_bins()
            enough = min(bins.negatives.sum(), bins.positives.sum()) >= LEAST_OF_A_CLASS
            intervals = confidence_intervals(bins, replicates, seed) if replicates and enough else {}
            slices.append(Slice(self._parts.by, name, metrics, intervals))
        return slices


def check_slices(by: Sequence[str], schema: Schema, split: str) -> None:
    """Raise ValueError unless each name in `by` is `time`, `unseen` (number of values without an id) or a field of the
    data.
    """
    names = [field.name for field in schema.categorical]
    names += [*(field.name for field in schema.numeric if field.is_whole), TIME, UNSEEN]
    for name in by:
        if name in (vector.name for vector in schema.vectors):
            raise ValueError(f"--by {name} is a vector, whose values form no groups; choose another field")
        if name not in names:
            # Suggest fields whose names begin with `name`, such as the hour that is derived from a timestamp column.
            longer = [each for each in names if each.startswith(name)]
            raise ValueError(f"--by {name} is no field of the data; {did_you_mean(name, longer or names)}")
        if name == TIME and split == "train":
            raise ValueError("--by time needs the log's order, and the rows of train are shuffled; use valid or test")


def find_parts(by: str, folder: Path, schema: Schema, split: str) -> Slices:
    """Return the division of a split's rows by `by`: a field, `time` or `unseen`.

    For a categorical field, each of its most frequent values in the training rows is a part. The other values are
    divided into parts by their rank in frequency, such as ranks 11 to 100. The last two parts are out-of-vocabulary
    values, and values that got their ids after the preparation. For a numeric field, the parts are ranges between
    quantiles of the training rows, and missing cells.
    """
    if by != TIME:
        by_field = _by_value if by in [field.name for field in schema.categorical] else _by_number
        return _by_unseen(schema) if by == UNSEEN else by_field(by, folder, schema)

    def find(batch: Batch, first_row: int) -> np.ndarray:
        return (first_row + np.arange(batch.num_rows)) * TIME_PARTS // schema.splits[split].rows

    names = [f"{100 * part // TIME_PARTS}–{100 * (part + 1) // TIME_PARTS} % of the rows" for part in range(TIME_PARTS)]
    return Slices(TIME, names, find)


def _by_unseen(schema: Schema) -> Slices:
    first, end = np.array([field.oov_ids for field in schema.categorical]).reshape(-1, 2).T
    columns = [first_column(schema, field.name) for field in schema.categorical]

    def find(batch: Batch, _: int) -> np.ndarray:
        ids = batch.ids[:, columns]
        unseen = ((ids >= first) & (ids < end)).sum(axis=1)
        return np.searchsorted(UNSEEN_COUNTS, unseen, side="right") - 1

    ends = [*(count - 1 for count in UNSEEN_COUNTS[1:]), None]
    names = [
        f"{low} or more" if high is None else str(low) if low == high else f"{low}–{high}"
        for low, high in zip(UNSEEN_COUNTS, ends, strict=True)
    ]
    return Slices(UNSEEN, [f"{name} of {len(columns)} values unseen" for name in names], find)


def _by_value(by: str, folder: Path, schema: Schema) -> Slices:
    column = first_column(schema, by)
    field = next(field for field in schema.categorical if field.name == by)
    # The field's first range of ids belongs to the values that the preparation of the log found, the most frequent one
    # first. Other ranges belong to values that got ids later.
    start, stop = field.id_ranges[0] if field.id_ranges else (0, 0)
    num_alone = stop - start if stop - start <= FEW_VALUES else TOP_VALUES
    names = names_of_ids(folder, schema, field, np.arange(start, start + num_alone))
    # A field with few values, such as the hours of a day, has its parts in the natural order of the values. Parts of
    # other fields stay in the order of frequency, and `order` is empty.
    order = sorted(range(num_alone), key=lambda rank: natural_order(names[rank])) if num_alone == stop - start else []
    lows = [10**power for power in range(1, len(str(stop - start))) if num_alone <= 10**power < stop - start]
    bands = [f"ranks {low + 1:,} to {high:,} by frequency" for low, high in pairwise([*lows, stop - start])]
    names = [*([names[rank] for rank in order] or names), *bands, OUT_OF_VOCABULARY, OTHER]
    part_of = np.argsort(order) if order else np.arange(num_alone)
    first, end = field.oov_ids

    def find(batch: Batch, _: int) -> np.ndarray:
        ids = batch.ids[:, column].astype(np.int64)
        parts = np.full(len(ids), len(names) - 1)
        parts[(ids >= first) & (ids < end)] = len(names) - 2
        is_known, ranks = (ids >= start) & (ids < stop), ids - start
        parts[is_known] = num_alone - 1 + np.searchsorted(lows, ranks[is_known], side="right")
        is_alone = is_known & (ranks < num_alone)
        parts[is_alone] = part_of[ranks[is_alone]]
        return parts

    return Slices(by, names, find)


def _by_number(by: str, folder: Path, schema: Schema) -> Slices:
    columns = {field.name: (place, field) for place, field in enumerate(schema.numeric)}
    column, field = columns[by]
    # Find the numeric column that is 1 where a cell is missing (the indicator). A prepared folder for the MindSpore
    # model zoo has no such column; a missing cell is 0 in it.
    indicator, _ = columns.get(f"{field.source}_{INDICATOR}", (None, None))

    def is_missing(rows: Examples) -> np.ndarray:
        return np.zeros(len(rows), bool) if indicator is None else rows.numeric[:, indicator] > 0

    num_blocks = len(block_sizes(schema, "train"))
    sample = read_blocks(folder, schema, "train", range(0, num_blocks, -(-num_blocks // QUANTILE_BLOCKS) or 1))
    numbers = [number for block in sample for number in block.numeric[~is_missing(block), column]] or [0.0]
    highs = np.unique(np.quantile(numbers, np.arange(1, NUMBER_PARTS) / NUMBER_PARTS, method="inverted_cdf"))
    # A part's name is a range such as "5 to 11". If the part before ends with 4, a range of whole numbers begins with
    # 5, a range of other numbers with 4 itself.
    is_whole = schema.log_format.columns[field.source] == "integer"
    ends = inverse_transform(field, highs)
    # Standardized numbers are rounded to float32, so converting a zero back gives a tiny number instead of 0. Show such
    # a number as 0, and not as -0.
    is_zero = np.abs(ends) < 1e-6 * field.parameters.get("standard_deviation", 0)
    ends = np.where(is_zero, 0, np.rint(ends) if is_whole else ends) + 0.0
    is_distinct = [text != after for text, after in pairwise([*map(number_text, ends), ""])]
    highs, ends = highs[is_distinct].astype(np.float32), ends[is_distinct]
    ranges = [dict.fromkeys(map(number_text, (low + is_whole, high))) for low, high in pairwise(ends)]
    names = [f"up to {number_text(ends[0])}", *map(" to ".join, ranges), f"above {number_text(ends[-1])}", MISSING]

    def find(batch: Batch, _: int) -> np.ndarray:
        return np.where(is_missing(batch), len(names) - 1, np.searchsorted(highs, batch.numeric[:, column]))

    return Slices(by, names, find)
