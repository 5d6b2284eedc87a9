"""How well a run learned: losses, learning rates, metrics over steps, and the curves of one evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.run.record import RunRecord
from app.run.report.parts import absent, chart, label, means, overlay, step_axis
from common.html.axes import Axis, number_text
from common.html.charts import Density, Html, Series, histogram
from common.html.page import grid, section, share, table

NOT_EVALUATED = "No evaluation yet: one follows each epoch, and every eval.every_steps steps."
METRICS = {
    "auc": "AUC",
    "log_loss": "log loss",
    "normalized_entropy": "normalized entropy",
    "pr_auc": "PR-AUC",
    "calibration": "calibration",
    "grouped_auc": "grouped AUC",
}
REFERENCES = {"calibration": ("as often as it clicks", 1.0), "normalized_entropy": ("predicting the click rate", 1.0)}


def learning_section(runs: Sequence[RunRecord]) -> Html:
    """Loss of training and valid, and the learning rates."""
    series = []
    for run in runs:
        (x, y), every = means(run.wide_losses)
        name = "training" if every == 1 else f"training, mean of {every:,} steps"
        series.append(Series(label(runs, run, name), x, y))
    if len(runs) == 1 and runs[0].points("log_loss", "valid")[0]:  # of several, the next section has them
        series.append(Series("valid", *runs[0].points("log_loss", "valid"), points=True))
    without = "No step was logged yet: loss.log is empty."
    title = "Loss" if len(runs) == 1 else "Loss of training"
    losses = chart(title, series, step_axis(runs), Axis("cross-entropy"), without, "wide", _loss_note(runs))
    return section("Learning", losses, grid(*_learning_rates(runs)))


def _loss_note(runs: Sequence[RunRecord]) -> str:
    """A training loss is taken before its step, so the first is that of a model that knows nothing."""
    if len(runs) > 1 or not runs[0].steps:
        return ""
    losses = runs[0].wide_losses
    return f"The wide_loss of loss.log: {losses[0]:.4f} at the first step, {losses[-1]:.4f} at the last."


def _learning_rates(runs: Sequence[RunRecord]) -> list[Html]:
    """A chart for each optimizer whose rate changed; constant rates in words."""
    keys = list(dict.fromkeys(key for run in runs for key in run.keys("learning_rate")))
    if all(len(set(run.points(key)[1])) <= 1 for run in runs for key in keys):
        only = f"{runs[0].name}: " if len(runs) == 1 else ""
        rates = "; ".join(f"{run.name}: {_constant_rates(run)}" for run in runs).removeprefix(only)
        return [absent("Learning rates", f"Constant: {rates}.", "wide")]
    names = {key: key.removesuffix("learning_rate").replace("_", " ").strip() or "all" for key in keys}
    rate = Axis("rate", low=0)
    if len(runs) == 1:
        series = [Series(names[key], *runs[0].points(key)) for key in keys]
        return [chart("Learning rates", series, step_axis(runs), rate, "", "wide")]
    lines = {key: overlay(runs, key, [run.points(key) for run in runs], dots=False) for key in keys}
    return [chart(f"Learning rate: {names[key]}", lines[key], step_axis(runs), rate, "") for key in keys]


def _constant_rates(run: RunRecord) -> str:
    rates = {
        name.removesuffix("_optimizer"): options["learning_rate"]
        for name, options in run.config.items()
        if isinstance(options, dict) and "learning_rate" in options
    }
    return ", ".join(f"{name} {rate:g}" for name, rate in rates.items())


def metrics_section(runs: Sequence[RunRecord]) -> Html:
    """Each metric over steps, on valid."""
    charts = []
    for key, name in METRICS.items():
        series = overlay(runs, "valid", [run.points(key, "valid") for run in runs])
        if key == "grouped_auc" and not any(line.x for line in series):
            continue  # no field was chosen
        steps = [x for line in series for x in line.x]
        if key in REFERENCES and steps:
            words, value = REFERENCES[key]
            series.append(Series(words, [0, max(steps)], [value, value], reference=True))
        lacking = [line.name for line in series if not line.x]
        note = f"Not there of {', '.join(lacking)}." if lacking else ""
        charts.append(chart(f"{name} on valid", series, step_axis(runs), Axis(name), NOT_EVALUATED, note=note))
    if not any(run.points("auc", "valid")[0] or run.points("log_loss", "valid")[0] for run in runs):
        return section("Metrics over steps", note=NOT_EVALUATED)
    return section("Metrics over steps", grid(*charts))


def curves_section(runs: Sequence[RunRecord]) -> Html:
    """ROC, precision and recall, calibration and scores of one evaluation of each run."""
    shown = [(run, content) for run in runs if (content := run.shown_evaluation())]
    if not shown:
        return section("Ranking and calibration", note=NOT_EVALUATED)
    note = "; ".join(_which(runs, run, content) for run, content in shown) + "."
    figures = [_roc(runs, shown), _precision_recall(runs, shown), _calibration(runs, shown)]
    figures += [_scores(runs, run, content) for run, content in shown]
    groups = [part for run, content in shown if content.get("groups") for part in _groups(runs, run, content["groups"])]
    return section("Ranking and calibration", _judged(runs, shown), grid(*figures), *groups, note=note)


def _which(runs: Sequence[RunRecord], run: RunRecord, content: dict[str, Any]) -> str:
    before = f"{run.name}: " if len(runs) > 1 else ""
    rows = number_text(content["metrics"]["rows"])
    return f"{before}{rows} {content['split']} rows, the model of step {content['step']:,}"


def _judged(runs: Sequence[RunRecord], shown: Sequence[tuple[RunRecord, dict[str, Any]]]) -> Html:
    """The metrics in figures, with what is known of their uncertainty and of the best possible."""
    rows = []
    for key, name in METRICS.items():
        values = [text for _, content in shown for text in _value_and_interval(content, key)]
        best = {content["best_possible"][key] for _, content in shown if key in (content["best_possible"] or {})}
        reach = " / ".join(f"{value:.5f}" for value in sorted(best)) or "–"
        if key != "grouped_auc" or any(content["groups"] for _, content in shown):
            rows.append([name, *values, reach])
    head = [word for run, _ in shown for word in (label(runs, run, "value"), "95 % within")]
    return table(["metric", *head, "best possible"], rows)


def _value_and_interval(content: dict[str, Any], key: str) -> tuple[str, str]:
    if key == "grouped_auc" and not content["groups"]:
        return "–", "–"
    value, interval = content["metrics"].get(key), content["intervals"].get(key)
    within = f"{interval[0]:.5f} … {interval[1]:.5f}" if interval else "–"
    return ("undefined" if value is None else f"{value:.5f}"), within


def _roc(runs: Sequence[RunRecord], shown: Sequence[tuple[RunRecord, dict[str, Any]]]) -> Html:
    series = [
        Series(label(runs, run, "model"), content["roc"]["false_positive_rate"], content["roc"]["true_positive_rate"])
        for run, content in shown
        if "roc" in content
    ]
    chance = Series("by chance", [0, 1], [0, 1], reference=True)
    x, y = (
        Axis("of the other rows found", "percent", low=0, high=1),
        Axis("of the clicks found", "percent", low=0, high=1),
    )
    return chart("ROC curve", [*series, chance], x, y, "The rows have one class only.")


def _precision_recall(runs: Sequence[RunRecord], shown: Sequence[tuple[RunRecord, dict[str, Any]]]) -> Html:
    drawn = [(run, content) for run, content in shown if "precision_recall" in content]
    series = [
        Series(
            label(runs, run, "model"), content["precision_recall"]["recall"], content["precision_recall"]["precision"]
        )
        for run, content in drawn
    ]
    rates = sorted({round(content["metrics"]["click_rate"], 4) for _, content in drawn})
    series += [Series(f"by chance ({rate:.2%})", [0, 1], [rate, rate], reference=True) for rate in rates]
    x, y = Axis("recall: of the clicks found", "percent", low=0, high=1), Axis("precision", "percent", low=0, high=1)
    return chart("Precision and recall", series, x, y, "The rows have one class only.")


def _calibration(runs: Sequence[RunRecord], shown: Sequence[tuple[RunRecord, dict[str, Any]]]) -> Html:
    series, most = [], 0.0
    for run, content in shown:
        predicted = [part["mean_prediction"] for part in content["calibration"]]
        clicked = [part["click_rate"] for part in content["calibration"]]
        most = max([most, *predicted, *clicked])
        series.append(Series(label(runs, run, "tenths of the rows"), predicted, clicked, points=True))
    ideal = Series("predicted as often as clicked", [0, most], [0, most], reference=True)
    x, y = Axis("mean prediction", "percent", low=0), Axis("click rate", "percent", low=0)
    return chart("Calibration by decile", [*series, ideal], x, y, "No rows.")


def _scores(runs: Sequence[RunRecord], run: RunRecord, content: dict[str, Any]) -> Html:
    counts = content["histogram"]
    parts = len(counts["negatives"])
    edges = [i / parts for i in range(parts + 1)]
    sums = {"other rows": counts["negatives"], "clicks": counts["positives"]}
    series = [Density(name, [count / sum(values) for count in values]) for name, values in sums.items() if sum(values)]
    title = "Scores by label" if len(runs) == 1 else f"Scores by label: {run.name}"
    return histogram(title, edges, series, Axis("predicted click probability", "percent"))


def _groups(runs: Sequence[RunRecord], run: RunRecord, groups: dict[str, Any]) -> list[Html]:
    rows = [
        [
            value["value"],
            value["rows"],
            share(value["click_rate"]),
            "one class" if value["auc"] is None else f"{value['auc']:.5f}",
        ]
        for value in groups["values"]
    ]
    mean = "undefined" if groups["weighted_mean"] is None else f"{groups['weighted_mean']:.5f}"
    of = f"{run.name}: " if len(runs) > 1 else ""
    caption = (
        f"{of}AUC per value of {groups['field']}: mean {mean}, weighted by rows, over {groups['rows_covered']:.1%} of "
        f"the rows; the {len(rows)} most frequent of {groups['num_values']:,} values"
    )
    return [table([groups["field"], "rows", "click rate", "AUC"], rows, caption)]
