"""Format an evaluation as text: the lines that `make eval` prints, and the line in eval.log."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from app.evaluation.curves import calibration_deciles
from app.evaluation.measure import Evaluation
from app.evaluation.metrics import MEASURED, METRICS, Metrics, few_clicks_note
from app.evaluation.results import Groups
from app.evaluation.slices import Slice
from data_prep.prepared.truth import Best

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
    values = dataclasses.asdict(metrics)
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
