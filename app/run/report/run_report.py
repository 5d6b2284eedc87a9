"""Assemble the report page of one or several runs, with key figures, warnings and settings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from app.run.record import RunRecord, read_runs
from app.run.report.column_effects import effects
from app.run.report.quality import evaluations, learning, metrics_over_steps
from app.run.report.speed import embedding_tables, operators, samples_per_second, time_and_memory
from common.files import message_of, write_whole
from common.html.page import PagePart, Section, render_page
from common.packages import python_command
from common.settings import flatten, setting_text
from common.text import number_text
from common.yaml_settings import dump_yaml

log = logging.getLogger("app")

REPORT_FILE = "report.html"
NOT_WRITTEN = 3  # Exit status if the report could not be written.
OVERVIEW = [("run", "text"), ("status", "text"), ("steps", "number"), ("best step", "number"), ("valid AUC", "right"),
            ("valid log loss", "right"), ("test AUC", "right"), ("95 % interval", "right"), ("samples/s", "number"),
            ("time", "seconds")]  # fmt: skip


def write_report(runs: Sequence[Path], output: Path) -> None:
    """Write the report page of the given run folders to `output` atomically.

    Raise FileNotFoundError if one of the folders holds no run.
    """
    write_whole(output, report_page(read_runs(runs)))


def leave_report(run: Path) -> list[str]:
    """Write the report of a run into the run's folder. Return the names of the files that could not be written: [], or
    after an error, which is logged, a list with the name of the report.
    """
    try:
        write_report([run], run / REPORT_FILE)
    except OSError as error:
        log.error("error: no %s: %s", REPORT_FILE, message_of(error))
        return [REPORT_FILE]
    log.info("report: %s", run / REPORT_FILE)
    return []


def report_page(runs: Sequence[RunRecord]) -> str:
    """Return the report page on one run as HTML, or a page that compares several `runs`."""
    several = len(runs) > 1
    title = f"{len(runs)} runs side by side" if several else f"Run {runs[0].name}"
    warnings = [
        PagePart("warning", f"{run.name}: {text}" if several else text) for run in runs for text in _warnings(run)
    ]
    overview = Section("Runs", PagePart("table", OVERVIEW, [_overview(run) for run in runs]), *warnings)
    figures = [PagePart("tiles", _key_figures(runs[0])), *warnings]
    sections = [
        learning,
        metrics_over_steps,
        evaluations,
        effects,
        time_and_memory,
        operators,
        embedding_tables,
        settings_section,
    ]
    return render_page(
        title,
        "; ".join(_subtitle(run, several) for run in runs),
        [] if several else figures,
        [*([overview] if several else []), *(section(runs) for section in sections)],
    )


def _subtitle(run: RunRecord, with_name: bool) -> str:
    rows = run.state.get("rows", {}).get("train")
    of = f" of {number_text(rows)} training rows" if rows else ""
    epochs = f"{run.steps:,} steps of batch {run.config['train']['batch_size']:,}{of}"
    return f"{f'{run.name}: ' if with_name else ''}{run.state['status']}, {epochs}"


def _key_figures(run: RunRecord) -> list[tuple[str, str, str]]:
    """Return the figures at the top of the page, such as the AUC, as (quantity, number, explanation).

    An unknown number is a dash.
    """
    best, test = run.best_evaluation(), run.test_evaluation()
    of_best = f"best by {run.metric}, step {best['step']:,}" if best else "not evaluated yet"
    figures = [("valid AUC", _digits(best, "auc"), of_best), ("valid log loss", _digits(best, "log_loss"), of_best)]
    if test:
        for key, name in (("auc", "test AUC"), ("log_loss", "test log loss")):
            interval = f", 95 % interval {_interval(test, key)}" if key in test["intervals"] else ""
            scores = ", calibrated scores" if test.get("calibrated") else ""
            figures.append((name, _digits(test["metrics"], key), f"step {test['step']:,}{scores}{interval}"))
    else:
        command = python_command(f"app evaluate --run {quote(run.name)}")
        figures.append(("on the test rows", "–", f"evaluate them with: {command}"))
    memory = run.points("memory_bytes")[1]
    whole = f", {number_text(run.seconds, 'seconds')} with evaluations and saves"
    return [
        *figures,
        ("samples/s", number_text(samples_per_second(run)), f"{run.steps:,} steps{whole}"),
        ("peak memory", number_text(max(memory, default=None), "bytes"), "resident memory of the process"),
    ]


def _digits(values: dict | None, name: str) -> str:
    value = values.get(name) if values else None
    return "–" if value is None else f"{value:.4f}"


def _interval(evaluation: dict | None, name: str) -> str:
    interval = evaluation["intervals"].get(name) if evaluation else None
    return f"{interval[0]:.4f} … {interval[1]:.4f}" if interval else "–"


def _overview(run: RunRecord) -> list[object]:
    best, test = run.best_evaluation(), run.test_evaluation()
    figures = [_digits(best, "auc"), _digits(best, "log_loss"), _digits(test["metrics"] if test else None, "auc")]
    step = best["step"] if best else None
    quality = [step, *figures, _interval(test, "auc")]
    return [run.name, run.state["status"], run.steps, *quality, samples_per_second(run), run.seconds]


def _warnings(run: RunRecord) -> list[str]:
    status = {
        "failed": "The run failed; the page shows how far it came.",
        "stopped": "The run was stopped and can be resumed; the page shows how far it came.",
        "running": "The run is running, or was killed; the page shows how far it came.",
    }
    notes = [status[run.state["status"]]] if run.state["status"] in status else []
    notes += [str(line["stopped_early"]) for line in run.lines if "stopped_early" in line]
    # Use a mapping by step, so that a step counts once: the checkpoint of the last step is tried twice.
    errors = {line["step"]: line["save_error"] for line in run.lines if "save_error" in line}
    last = next(reversed(errors.values()), "")
    return [*notes, f"{len(errors)} checkpoint(s) could not be written: {last}"] if errors else notes


def settings_section(runs: Sequence[RunRecord]) -> Section:
    """Return the report's section with the settings that differ between runs, and each run's command, data and machine.

    It also has all settings of the first run.
    """
    several, compared = len(runs) > 1, []
    if several:
        rows, columns = differences(runs), [("setting", "text"), *((run.name, "text") for run in runs)]
        same = PagePart("paragraph", "All settings are the same.")
        compared = [PagePart("table", columns, rows, "Settings that differ") if rows else same]
    described = [
        PagePart("definitions", ({"run": run.name} if several else {}) | _described(run), ["command"]) for run in runs
    ]
    first = PagePart("folded", f"All settings of {runs[0].name}", dump_yaml(runs[0].config))
    return Section("Settings, command and machine", *compared, *described, first)


def differences(runs: Sequence[RunRecord]) -> list[list[str]]:
    """Return a table row for each setting that differs between the runs: its name, and its value in each run.

    A value is "–" if the run does not have this setting.
    """
    flat = [flatten(run.config) for run in runs]
    names = dict.fromkeys(name for each in flat for name in each)
    rows = [[name, *(setting_text(each.get(name, "–")) for each in flat)] for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def _described(run: RunRecord) -> dict[str, str]:
    state = run.state
    rows = ", ".join(f"{name} {count:,}" for name, count in state.get("rows", {}).items())
    ids = state.get("identity", {}).get("data", {}).get("vocabulary_size", 0)
    versions = ", ".join(f"{name} {number}" for name, number in state.get("versions", {}).items())
    return {
        "command": state.get("command", "unknown"),
        "status": state["status"],
        "data": f"rows: {rows or 'unknown'}; {ids:,} ids",
        "machine": state.get("machine", "unknown"),
        "versions": f"Python {state.get('python', 'unknown')}, {versions}",
        "commit": state.get("commit", "unknown"),
    }
