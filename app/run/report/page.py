"""The whole page: what it is of, then section by section."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from app.run.record import RunRecord, read_runs
from app.run.report.quality import curves_section, learning_section, metrics_section
from app.run.report.settings import settings_section
from app.run.report.speed import ops_section, tables_section, time_section
from common.files import write_whole
from common.html.axes import number_text
from common.html.charts import Html
from common.html.page import amount, page, section, table, tiles, warning

log = logging.getLogger("app")

REPORT_FILE = "report.html"


def write_report(runs: Sequence[Path], output: Path) -> None:
    """Write the page of some run folders, whole or not at all; raises FileNotFoundError where one holds no run."""
    write_whole(output, report_page(read_runs(runs)))


def leave_report(run: Path) -> list[str]:
    """Write a run's report beside its other files; returns what could not be written."""
    try:
        write_report([run], run / REPORT_FILE)
    except OSError as error:
        log.error("error: no %s: %s", REPORT_FILE, error)
        return [REPORT_FILE]
    log.info("report: %s", run / REPORT_FILE)
    return []


def report_page(runs: Sequence[RunRecord]) -> str:
    """The page as HTML."""
    one = runs[0]
    if len(runs) == 1:
        title = f"Run {one.name}"
        head = [tiles(_tiles(one))]
    else:
        title = f"{len(runs)} runs side by side"
        head = [section("Runs", _overview(runs))]
    parts = [
        *head,
        *_warnings(runs),
        learning_section(runs),
        metrics_section(runs),
        curves_section(runs),
        time_section(runs),
        ops_section(runs),
        tables_section(runs),
        settings_section(runs),
    ]
    return page(title, "; ".join(_subtitle(run, len(runs) > 1) for run in runs), [part for part in parts if part])


def _subtitle(run: RunRecord, named: bool) -> str:
    rows = run.state.get("rows", {}).get("train")
    of = f" of {number_text(rows)} training rows" if rows else ""
    epochs = f"{run.steps:,} steps of batch {run.config['train']['batch_size']:,}{of}"
    return f"{f'{run.name}: ' if named else ''}{run.state['status']}, {epochs}"


def _tiles(run: RunRecord) -> list[tuple[str, str, str]]:
    """What a reader asks first; a dash where there is nothing to tell."""
    best, test = run.best_evaluation(), run.test_evaluation()
    of_best = f"best by {run.metric}, step {best['step']:,}" if best else "not evaluated yet"
    found = [("AUC on valid", _digits(best, "auc"), of_best), ("log loss on valid", _digits(best, "log_loss"), of_best)]
    if test:
        for name, what in (("auc", "AUC"), ("log_loss", "log loss")):
            interval = test["intervals"].get(name)
            within = f", 95 % within {interval[0]:.4f} … {interval[1]:.4f}" if interval else ""
            found.append((f"{what} on test", _digits(test["metrics"], name), f"step {test['step']:,}{within}"))
    else:
        found.append(("on the test rows", "–", "judge them with: make eval"))
    memory = run.points("memory_bytes")[1]
    whole = f", {number_text(run.seconds, 'seconds')} with evaluations and saves"
    return [
        *found,
        ("samples/s", number_text(round(_speed(run))) if run.steady_lines() else "–", f"{run.steps:,} steps{whole}"),
        ("memory", number_text(max(memory), "bytes") if memory else "–", "the most that the process held"),
    ]


def _digits(values: dict | None, name: str) -> str:
    value = values.get(name) if values else None
    return "–" if value is None else f"{value:.4f}"


def _speed(run: RunRecord) -> float:
    """Rows over seconds: the harmonic mean of intervals of as many steps each."""
    speeds = [line["samples_per_second"] for line in run.steady_lines()]
    return len(speeds) / sum(1 / speed for speed in speeds) if speeds else float("nan")


def _overview(runs: Sequence[RunRecord]) -> Html:
    head = [
        "run",
        "status",
        "steps",
        "best step",
        "AUC valid",
        "log loss valid",
        "AUC test",
        "95 % within",
        "samples/s",
    ]
    rows: list[list[object]] = []
    for run in runs:
        best, test = run.best_evaluation(), run.test_evaluation()
        interval = test["intervals"].get("auc") if test else None
        within = f"{interval[0]:.4f} … {interval[1]:.4f}" if interval else "–"
        figures = [_digits(best, "auc"), _digits(best, "log_loss"), _digits(test["metrics"] if test else None, "auc")]
        speed = amount(round(_speed(run))) if run.steady_lines() else "–"
        step = amount(best["step"]) if best else "–"
        rows.append([run.name, run.state["status"], amount(run.steps), step, *figures, within, speed])
    return table(
        [*head, "time"], [[*row, number_text(run.seconds, "seconds")] for row, run in zip(rows, runs, strict=True)]
    )


def _warnings(runs: Sequence[RunRecord]) -> list[Html]:
    told = []
    for run in runs:
        before = f"{run.name}: " if len(runs) > 1 else ""
        if run.state["status"] in ("failed", "stopped", "running"):
            words = {"failed": "failed", "stopped": "was stopped and can go on", "running": "is running, or was killed"}
            told.append(f"{before}the run {words[run.state['status']]}; this is how far it came.")
        told += [f"{before}{line['stopped_early']}" for line in run.lines if "stopped_early" in line]
        errors = [line for line in run.lines if "save_error" in line]
        if errors:
            told.append(f"{before}{len(errors)} checkpoint(s) could not be written: {errors[-1]['save_error']}")
    return [warning(words) for words in told]
