"""Write and read evaluations, as files `evaluations/<split>-step-<number>.json` in a run folder, with the curves and
histograms that the report draws.

Each file has one evaluation for the report, some tens of kB. An evaluation of calibrated scores has a file of its
own, `<split>-step-<number>-calibrated.json`.

Keys: split, step, epoch, `metrics` (by name, null if undefined), `intervals` (95 %, only from `make eval`), `roc`,
`precision_recall`, `calibration` (tenths of the rows by ascending prediction), `histogram` (rows by label in equal
intervals of the probability), `groups` (metrics per value of `eval.group_field`) and `best_possible` (synthetic logs
only). On request also `slices` (metrics and intervals of parts of the rows) and `calibrated` (slope and intercept).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from app.evaluation.metrics import Bins, GroupedRows, Metrics
from common.files import parse_json, write_whole
from data_prep.prepared.schema import NO_ID, VOCABULARY_FILE, CategoricalField, Schema
from data_prep.prepared.truth import Best

FOLDER = "evaluations"

TOP_VALUES = 20

DIGITS = 7


@dataclass(frozen=True)
class Groups:
    """Rows grouped by the values of `field`, and metrics of each group.

    `values` has an array [G] for each metric of groups, by the metric's name.
    """

    field: str
    rows: GroupedRows
    values: dict[str, np.ndarray]
    names: list[str]  # Values of `field`, as texts, of the groups with the most rows.
    by_key: bool = False  # Whether the column has the kind id, so that rows are grouped by a hash of their text.

    @property
    def remark(self) -> str:
        """A sentence that says how many rows have no group, or "" if all have one."""
        if not self.rows.left_out:
            return ""
        unknown = "" if self.by_key else (
            ", or has no id of its own; to count every value prepare the log again with the column's kind id"
        )  # fmt: skip
        return f"{self.rows.share_left_out:.1%} of the rows are left out: their {self.field} is missing{unknown}"


@dataclass(frozen=True)
class Measurement:
    """Result of one pass over a split: metrics, rows counted by logit and, with `eval.group_field`, rows by group."""

    metrics: Metrics
    bins: Bins
    groups: Groups | None = None


def content_of(
    split: str,
    step: int,
    epoch: int,
    measured: Measurement,
    intervals: dict[str, tuple[float, float]] | None = None,
    best: Best | None = None,
) -> dict[str, Any]:
    """Return the content of an evaluation's JSON file, with the keys that the module's docstring lists."""
    bins = measured.bins
    content: dict[str, Any] = {"split": split, "step": step, "epoch": epoch, "metrics": asdict(measured.metrics)}
    content["intervals"] = intervals or {}
    if not math.isnan(measured.metrics.auc):
        content["roc"] = dict(zip(("false_positive_rate", "true_positive_rate"), roc_curve(bins), strict=True))
        content["precision_recall"] = dict(zip(("recall", "precision"), precision_recall_curve(bins), strict=True))
    content["calibration"] = [asdict(part) for part in calibration_deciles(bins)]
    content["histogram"] = dict(zip(("negatives", "positives"), score_histogram(bins), strict=True))
    content["groups"] = _groups_content(measured.groups) if measured.groups else None
    content["best_possible"] = asdict(best) if best else None
    return as_json(content)


def _groups_content(groups: Groups) -> dict[str, Any]:
    rows, values = groups.rows, {name_in_group(name): value for name, value in groups.values.items()}
    return {
        "field": groups.field,
        "rows_covered": rows.rows_covered,
        "share_left_out": rows.share_left_out,
        "num_values": len(rows.ids),
        "values": [
            {"value": name, "rows": count, "click_rate": clicks / count}
            | {key: value[place] for key, value in values.items()}
            for place, (name, count, clicks) in enumerate(zip(groups.names, rows.rows, rows.clicks, strict=False))
        ],
    }


def name_in_group(name: str) -> str:
    """Return the name of a metric of groups as the metric of a single group: for `grouped_auc` it is `auc`."""
    return name.removeprefix("grouped_")


def interval_ends(intervals: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return confidence intervals, which `intervals` maps from each metric to (low, high), as a flat mapping with the
    keys `auc_low`, `auc_high` and so on.
    """
    return {
        f"{name}_{end}": value
        for name, interval in intervals.items()
        for end, value in zip(("low", "high"), interval, strict=True)
    }


def as_json(value: Any) -> Any:
    """Convert a value to types that JSON has: arrays become lists, NaN becomes None. Floats are rounded to DIGITS
    decimal places.
    """
    if isinstance(value, dict):
        return {name: as_json(content) for name, content in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [as_json(content) for content in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, DIGITS)
    return value


def write_evaluation(run_path: Path, content: dict[str, Any]) -> Path:
    """Write an evaluation's JSON file into a run folder atomically, and return the path of the file.

    `content` is the result of `content_of`. An existing file for the same split, step and calibration is replaced.
    """
    folder = run_path / FOLDER
    folder.mkdir(exist_ok=True)
    calibrated = "-calibrated" if "calibrated" in content else ""
    path = folder / f"{content['split']}-step-{content['step']:08d}{calibrated}.json"
    write_whole(path, json.dumps(content) + "\n")
    return path


def read_evaluations(run_path: Path) -> list[dict[str, Any]]:
    """Return the contents of all evaluation files of a run, sorted by step, then by split, then by the time of the
    file.

    Damaged files are skipped.
    """
    files = [(path.stat().st_mtime_ns, content) for path, content in _read_files(run_path)]
    files.sort(key=lambda each: (each[1]["step"], each[1]["split"], each[0], "calibrated" in each[1]))
    return [content for _, content in files]


def _read_files(run_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in (run_path / FOLDER).glob("*-step-*.json"):
        try:
            yield path, parse_json(path.read_text(encoding="utf-8"))
        except ValueError:
            continue


def forget_evaluations(run_path: Path, last_step: int) -> None:
    """Remove the files of evaluations after step `last_step`, because a resumed run takes these steps again."""
    for path, content in _read_files(run_path):
        if content["step"] > last_step:
            path.unlink(missing_ok=True)


MISSING = "(missing)"

OUT_OF_VOCABULARY = "(out of vocabulary)"

UNKNOWN = "(id {})"  # Name in reports of an id for which no vocabulary file has a value. {} is the id.


def first_column(schema: Schema, name: str) -> int:
    """Return the index of the first column of `Batch.ids` that has ids of the categorical field `name`.

    A list field (a field with several values per row, such as tags) has several columns in `Batch.ids`.
    """
    before = [field.name for field in schema.categorical].index(name)
    return sum(field.max_length for field in schema.categorical[:before])


def missing_id(dataset: Path, schema: Schema, field: CategoricalField) -> int:
    """Return the id that the categorical field `field` gives to rows whose cell is missing.

    Return NO_ID if vocabulary.parquet does not exist or has no such id.
    """
    path, name = dataset / VOCABULARY_FILE, schema.vocabulary_of(field.name)
    if not path.is_file():
        return NO_ID
    found = pq.read_table(path, columns=["id"], filters=[("field", "=", name), ("value", "=", "")])["id"]
    return int(found[0].as_py()) if len(found) else NO_ID


def names_of_ids(dataset: Path, schema: Schema, field: CategoricalField, ids: np.ndarray) -> list[str]:
    """Return the value that each of `ids` of a field stands for, as text for a report.

    Out-of-vocabulary ids, the id of missing cells, and ids that no vocabulary file has get names in parentheses.
    """
    first, end = field.oov_ids
    own_ids = [int(i) for i in ids if not first <= i < end]
    paths = [dataset / name for name in schema.vocabulary_files if (dataset / name).is_file()]
    values: dict[int, str] = {}
    for path in paths if own_ids else ():
        vocabulary = pq.read_table(path, columns=["id", "value"], filters=[("id", "in", own_ids)])
        values |= dict(zip(vocabulary["id"].to_pylist(), vocabulary["value"].to_pylist(), strict=True))

    def name(number: int) -> str:
        if first <= number < end:
            return OUT_OF_VOCABULARY if end - first == 1 else f"{OUT_OF_VOCABULARY} {number - first}"
        return values.get(number, UNKNOWN.format(number)) or MISSING

    return [name(int(i)) for i in ids]


CURVE_POINTS = 400
HISTOGRAM_BINS = 50


def roc_curve(bins: Bins, most: int = CURVE_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays, the false positive rates and the true positive rates of the points of the ROC curve, from the
    point (0, 0) to (1, 1).

    There are at most `most` points, at about equal steps along the curve. There must be rows of both labels.
    """
    false_rate, true_rate = (
        np.concatenate([[0], np.cumsum(counts[::-1]) / counts.sum()]) for counts in (bins.negatives, bins.positives)
    )
    places = _thinned(false_rate + true_rate, most)
    return false_rate[places], true_rate[places]


def precision_recall_curve(bins: Bins, most: int = CURVE_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Return the recalls and the precisions of the precision-recall curve, at about equal steps of recall.

    There are at most `most` points. At least one row must be a click.
    """
    clicks = np.cumsum(bins.positives[::-1])
    recall, precision = clicks / clicks[-1], clicks / np.cumsum(bins.counts[::-1])
    places = _thinned(recall, most)
    return recall[places], precision[places]


def _thinned(values: np.ndarray, most: int) -> np.ndarray:
    """Choose at most `most` of the ascending `values` that are about equally far apart, and return their indices.

    The first and the last of `values` are always chosen.
    """
    if len(values) <= most:
        return np.arange(len(values))
    return np.unique([*np.searchsorted(values, np.linspace(values[0], values[-1], most - 1)), len(values) - 1])


@dataclass(frozen=True)
class CalibrationBin:
    """Rows with similar predictions: their number, mean predicted probability and click rate."""

    rows: int
    mean_prediction: float
    click_rate: float


def calibration_deciles(bins: Bins, parts: int = 10) -> list[CalibrationBin]:
    """Sort the rows by predicted probability and divide them into `parts` parts with about equal numbers of rows.
    Return the number of rows, the mean prediction and the click rate of each part.

    As in scikit-learn's `calibration_curve(strategy="quantile")`, rows with equal predictions are in the same part, and
    a part without rows is left out.
    """
    probabilities, counts = bins.probabilities, bins.counts
    edges = _quantiles(probabilities, counts, np.arange(1, parts) / parts)
    part_of_key = np.searchsorted(edges, probabilities)
    rows, clicks, predicted = (
        np.bincount(part_of_key, weights, parts) for weights in (counts, bins.positives, counts * probabilities)
    )
    return [
        CalibrationBin(round(rows[part]), float(predicted[part] / rows[part]), float(clicks[part] / rows[part]))
        for part in np.flatnonzero(rows)
    ]


def _quantiles(values: np.ndarray, counts: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """Return the quantiles at `fractions` (such as 0.5 for the median) of a quantity of rows that takes the ascending
    `values`: counts[i] rows have values[i].

    Quantiles are interpolated as `numpy.quantile` does. If `counts` are sums of weights, they are not interpolated.
    """
    ends = np.cumsum(counts)
    if counts.dtype != np.int64:  # The counts are weights.
        return values[np.minimum(np.searchsorted(ends, fractions * ends[-1]), len(values) - 1)]
    rank = fractions * (ends[-1] - 1)
    low, high = (values[np.searchsorted(ends, index, side="right")] for index in (np.floor(rank), np.ceil(rank)))
    return low + (high - low) * (rank - np.floor(rank))


def score_histogram(bins: Bins, parts: int = HISTOGRAM_BINS) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of rows with label 0 [parts] and with label 1 [parts] in intervals of the prediction.

    There are `parts` intervals, which divide the probabilities from 0 to 1 evenly.
    """
    part_of_key = np.minimum((bins.probabilities * parts).astype(np.int64), parts - 1)
    negatives, positives = (np.bincount(part_of_key, counts, parts) for counts in (bins.negatives, bins.positives))
    return negatives.astype(bins.negatives.dtype), positives.astype(bins.positives.dtype)
