"""Evaluate a model on all rows of one split of a prepared folder, in bounded memory, and format the result as text: the
lines that `make eval` prints, and the line in eval.log.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from app.config.config import Config
from app.evaluation.calibration import Calibration
from app.evaluation.metrics import (
    MEASURED,
    METRICS,
    GroupStream,
    KeyNumbers,
    Metrics,
    MetricStream,
    confidence_intervals,
    few_clicks_note,
    measure_groups,
)
from app.evaluation.results import (
    TOP_VALUES,
    Groups,
    Measurement,
    calibration_deciles,
    first_column,
    interval_ends,
    missing_id,
    names_of_ids,
)
from app.evaluation.slices import Slice, SliceStream
from common.console import progress_bar
from common.packages import load
from data_prep.prepared.batches import Batch, num_batches, read_batches, written_order
from data_prep.prepared.data_files import row_numbers_file
from data_prep.prepared.prefetch import Prefetcher
from data_prep.prepared.schema import MISSING_KEY, Schema
from data_prep.prepared.truth import Best, best_possible

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Scorer:
    """A model as a pair of functions that compute the logits of a batch.

    `prepare` takes a batch. It is called in advance in another thread. `score` takes the batch and the result of
    `prepare`, and returns the logits [n].
    """

    prepare: Callable[[Batch], Any]
    score: Callable[[Batch, Any], np.ndarray]

    def calibrated(self, calibration: Calibration) -> Scorer:
        """Return a scorer that computes the logits of this one and then maps them by `calibration`."""
        return Scorer(self.prepare, lambda batch, prepared: calibration(self.score(batch, prepared)))


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a checkpoint on a split, with 95 % confidence intervals by metric, and the metrics of slices
    (parts of the rows).

    `best` are the metrics of the true click probabilities if the log is synthetic, else None. If `calibration` is not
    None, all metrics are those of calibrated scores.
    """

    checkpoint: Path
    step: int
    epoch: int
    split: str
    measured: Measurement
    intervals: dict[str, tuple[float, float]]
    best: Best | None
    slices: list[Slice] = field(default_factory=list)
    calibration: Calibration | None = None

    def __repr__(self) -> str:
        calibrated = ", calibrated" if self.calibration else ""
        text = f"auc {self.metrics.auc:.6f}, log_loss {self.metrics.log_loss:.6f}"
        return f"<Evaluation {self.split}, step {self.step}{calibrated}: {text}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a table of the metrics of all rows, with their 95 % intervals."""
        rows = ""
        for name in MEASURED:
            value = getattr(self.metrics, name)
            low_high = " … ".join(f"{end:.6f}" for end in self.intervals.get(name, ()))
            shown = "undefined" if math.isnan(value) else f"{value:.6f}"
            rows += f"<tr><th>{METRICS[name].title}</th><td>{shown}</td><td>{low_high}</td></tr>"
        calibrated = ", calibrated" if self.calibration else ""
        title = html.escape(f"{self.split}: {self.metrics.rows:,} rows, step {self.step}{calibrated}")
        head = "<tr><th>metric</th><th>value</th><th>95 % within</th></tr>"
        return f"<table><caption>{title}</caption>{head}{rows}</table>"

    @property
    def metrics(self) -> Metrics:
        """The metrics of all rows."""
        return self.measured.metrics

    @property
    def frame(self) -> pd.DataFrame:
        """The metrics and their 95 % intervals as a pandas table.

        The first row of the table has the metrics of all evaluated rows, and each further row those of a slice (a part
        of the evaluated rows).
        """
        whole = {"by": "", "part": "", **asdict(self.metrics), **interval_ends(self.intervals)}
        parts = [
            {"by": each.by, "part": each.name, **asdict(each.metrics), **interval_ends(each.intervals)}
            for each in self.slices
        ]
        frame: pd.DataFrame = data_frame([whole, *parts])
        return frame


def measure(
    scorer: Scorer,
    folder: Path,
    schema: Schema,
    split: str,
    batch_size: int,
    group_field: str = "",
    slices: Sequence[SliceStream] = (),
    show_progress: bool = False,
) -> Measurement:
    """Score all rows of a split with `scorer`, and return the metrics and the counted rows.

    With `group_field`, also compute the metrics of groups. A group has the rows with the same value of that field, such
    as a user. Rows whose value is missing, or has no id of its own, are in no group, because they belong to different
    users. All rows are also added to each of `slices`. Raise ValueError for a split without rows, FloatingPointError
    for a logit that is NaN or infinite.
    """
    check_split(folder, schema, split)

    read = read_batches(folder, schema, split, written_order(schema, split), batch_size)
    stream, groups, numbers = MetricStream(), GroupStream(), KeyNumbers()
    grouped_by = next((field for field in schema.categorical if field.name == group_field), None)
    (first_unknown, end_unknown), missing = (0, 0), MISSING_KEY
    if grouped_by is not None:
        column, missing = first_column(schema, group_field), missing_id(folder, schema, grouped_by)
        first_unknown, end_unknown = grouped_by.oov_ids
    total = num_batches(schema, split, batch_size)
    with (
        Prefetcher((batch, scorer.prepare(batch)) for batch in read) as batches,
        progress_bar(
            total=total, desc=f"evaluate {split}", unit="batch", leave=False, disable=not show_progress
        ) as bar,
    ):
        for batch, prepared in batches:
            logits = scorer.score(batch, prepared)
            stream.add(logits, batch.labels, batch.weights)
            for each in slices:
                each.add(batch, logits)
            if group_field:
                values = batch.keys[group_field] if grouped_by is None else batch.ids[:, column]
                has_group = ((values < first_unknown) | (values >= end_unknown)) & (values != missing)
                ids = numbers.of(values) if grouped_by is None else values
                groups.add(ids, logits, batch.labels, batch.weights, has_group)
            bar.update()
    metrics, bins = stream.result_and_bins()
    if not group_field:
        return Measurement(metrics, bins)
    rows = groups.result()
    by_metric, top = measure_groups(rows), rows.ids[:TOP_VALUES]
    if grouped_by is None:  # The column has the kind id. Its texts are not stored, only their 64-bit hashes (keys).
        names = [f"(key {int(key) % 2**64:016x})" for key in numbers.keys_of(top)]
    else:
        names = names_of_ids(folder, schema, grouped_by, top)
    means: dict[str, Any] = {name: rows.mean(values) for name, values in by_metric.items()}
    found = Groups(group_field, rows, by_metric, names, by_key=grouped_by is None)
    return Measurement(replace(metrics, **means), bins, found)


def check_split(folder: Path, schema: Schema, split: str) -> None:
    """Raise ValueError, listing the splits with rows, if `split` does not exist in the prepared folder or is empty."""
    if split not in schema.splits or not schema.splits[split].rows:
        filled = ", ".join(name for name, content in schema.splits.items() if content.rows)
        raise ValueError(f"{folder} has no rows in split {split!r}; the splits with rows: {filled or 'none'}")


def intervals_of(measured: Measurement, config: Config) -> dict[str, tuple[float, float]]:
    """Return the 95 % confidence intervals (low, high) of the metrics in `measured` by name, without metrics of groups.

    The result is empty if `eval.bootstrap` is 0, or if all rows have the same label.
    """
    if not config.eval.bootstrap or np.isnan(measured.metrics.auc):
        return {}
    return confidence_intervals(measured.bins, config.eval.bootstrap, config.train.seed)


def best_on(folder: Path, schema: Schema, split: str) -> Best | None:
    """Return the metrics of the true click probabilities, which only a synthetic log has, on the rows of the split
    valid or test. No model can reach better metrics.

    Return None if the log is not synthetic, if its file of true probabilities no longer exists, or if the prepared
    folder does not store the line numbers of the split's rows.
    """
    truth, rows = schema.source.get("truth"), folder / row_numbers_file(split)
    if not truth or not Path(truth).is_file() or not rows.is_file():
        return None
    return best_possible(Path(truth), np.load(rows))


def data_frame(lines: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> Any:
    """Return a pandas DataFrame with a row for each mapping in `lines`. None becomes NaN.

    `columns` come first, and exist even if no mapping has them. Raise ModuleNotFoundError if pandas is missing.
    """
    cells = [{name: math.nan if value is None else value for name, value in line.items()} for line in lines]
    names = dict.fromkeys([*columns, *(name for line in cells for name in line)])
    return load("pandas").DataFrame(cells, columns=list(names))


PRINTED_VALUES = 10


def describe(evaluation: Evaluation) -> str:
    """Return the text that `make eval` prints: metrics with intervals, calibration by decile, groups and slices."""
    metrics = evaluation.metrics
    lines = [
        f"{evaluation.split}: {metrics.rows:,} rows, click rate {metrics.click_rate:.4f}, "
        f"checkpoint {evaluation.checkpoint} (step {evaluation.step})",
        *(
            f"  {METRICS[name].title:18}  {_value(evaluation, name)}{_beside(evaluation.best, name)}"
            for name in MEASURED
        ),
    ]
    if np.isnan(metrics.auc):
        lines.append("  (the rows have one class only, so there is nothing to rank)")
    deciles = calibration_deciles(evaluation.measured.bins)
    lines += [
        "  by decile of the prediction",
        "    predicted  " + " ".join(f"{part.mean_prediction:.4f}" for part in deciles),
        "    clicked    " + " ".join(f"{part.click_rate:.4f}" for part in deciles),
    ]
    if evaluation.calibration:
        lines.append(f"  calibrated: {evaluation.calibration}")
    if evaluation.measured.groups:
        lines += _group_lines(evaluation.measured.groups)
    for by, slices in itertools.groupby(evaluation.slices, lambda each: each.by):
        lines += _slice_lines(by, list(slices))
    measured = [(evaluation.intervals, metrics), *((each.intervals, each.metrics) for each in evaluation.slices)]
    if note := few_clicks_note([(of.rows, of.click_rate) for intervals, of in measured if intervals]):
        lines.append(f"  {note}")
    return "\n".join(lines)


def _value(evaluation: Evaluation, name: str) -> str:
    value = getattr(evaluation.metrics, name)
    if np.isnan(value):
        return "undefined"
    interval = evaluation.intervals.get(name)
    return f"{value:.6f}" + (f"   95 % within {interval[0]:.6f} … {interval[1]:.6f}" if interval else "")


def _group_lines(groups: Groups) -> list[str]:
    rows, titles = groups.rows, {name: METRICS[name].title_in_group for name in groups.values}
    means = ", ".join(
        f"{titles[name]} per value of {groups.field}: mean {rows.mean(groups.values[name]):.6f}" for name in titles
    )
    lines = [
        f"  {means}, weighted by rows, over {rows.rows_covered:.1%} of the rows (those of values with both classes); "
        f"of {len(rows.ids):,} values:"
    ]
    columns = zip(groups.names[:PRINTED_VALUES], rows.rows, rows.clicks, rows.has_both_classes, strict=False)
    for place, (name, count, clicks, has_both) in enumerate(columns):
        text = ", ".join(f"{title} {groups.values[key][place]:.6f}" for key, title in titles.items())
        text = text if has_both else "one class"
        lines.append(f"    {name:20} {count:12,} rows, click rate {clicks / count:.4f}, {text}")
    return [*lines, *([f"    {groups.remark}"] if groups.remark else [])]


def _slice_lines(by: str, slices: list[Slice]) -> list[str]:
    lines = [f"  by {by:32} {'rows':>12}  clicked  AUC, 95 % within             log loss  calibration, 95 % within"]
    for each in slices:
        metrics, intervals = each.metrics, each.intervals
        columns = [
            f"{'undefined' if np.isnan(value) else f'{value:.4f}':9}{_within(intervals.get(name)):19}"
            for name, value in (("auc", metrics.auc), ("calibration", metrics.calibration))
        ]
        rates = f"{metrics.rows:12,}   {metrics.click_rate:.4f}"
        lines.append(f"    {each.name:33} {rates}  {columns[0]} {metrics.log_loss:.4f}    {columns[1].rstrip()}")
    return lines


def _within(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.4f} … {interval[1]:.4f}"


def one_line(split: str, epoch: int, step: int, metrics: Metrics) -> str:
    """Return the line for eval.log: epoch, step, split, number of rows, and the defined metrics."""
    values = asdict(metrics)
    names = [name for name in METRICS if name in MEASURED or not np.isnan(values[name])]
    return f"epoch: {epoch} step: {step} split: {split} rows: {metrics.rows}, " + ", ".join(
        f"{name} is {values[name]:.6f}" for name in names
    )


def _beside(best: Best | None, name: str) -> str:
    """Return the remark that is printed after the value of the metric `name`: the best possible value from `best`, or
    how the metric is computed.

    Return "" if neither is known.
    """
    if hasattr(best, name):
        return f"   (best possible {getattr(best, name):.6f})"
    return f"   ({note})" if (note := METRICS[name].note) else ""
