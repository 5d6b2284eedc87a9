"""Keep the measurements of the last parts in memory, and write them into the run's page and into a file for the
service. A part is a file of the log that the run trains on as a whole.

For the last parts, the page shows metrics, sizes of the vocabulary, delays until publishing, and drift. It also lists
the parts that were held aside, which means that the run refused to train on them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from app.run.folder import METRICS
from app.run.record import read_lines
from app.scoring.distribution import CHANGE
from app.serving.statement import write_trained_parts
from common.files import message_of, write_whole
from common.html.charts import Axis, Chart, Series, Size, line_chart
from common.html.page import PagePart, Section, render_page
from common.packages import python_command
from common.text import Unit, number_text

log = logging.getLogger("app")

PAGE = "online.html"
# While parts (files of the log) wait to be trained on, the page is drawn at most once in this number of seconds,
# because drawing the page takes as long as training on a small part.
PAGE_SECONDS = 10.0
# Maximum number of parts of the log on the run's page, and in parts.json beside the bundles.
ON_PAGE, BESIDE_BUNDLES = 200, 40
# After a restart, only this many bytes at the end of metrics.jsonl are read. They contain the lines about more than
# ON_PAGE parts (files of the log).
TAIL_BYTES = 1 << 20
# Measurements of a part (file of the log) that are written into parts.json, which the HTTP service shows.
PRINTED = (
    *("part", "rows", "rejected", "auc", "auc_low", "auc_high", "frozen_auc", "best_auc", "log_loss", "calibration"),
    *("new_values", "pending_values", "expired_values", "ids_in_use"),
    *("scores_psi", "fields_psi", "shifted_field", "lag_seconds"),
)
Line = Mapping[str, Any]  # The measurements of one part (file of the log) by name, as a line of metrics.jsonl has them.

IN_TABLE = 50  # Maximum number of parts (files of the log) in the page's table.
X = Axis("part")
# Columns of the page's table of parts (files of the log). For the key of each measurement: the title of its column, and
# how its values are formatted.
COLUMNS = {
    "part": ("part", "line"),
    "rows": ("rows", "number"),
    "rejected": ("bad lines", "number"),
    "auc": ("AUC", "right"),
    "frozen_auc": ("frozen", "right"),
    "best_auc": ("best possible", "right"),
    "log_loss": ("log loss", "right"),
    "calibration": ("calibration", "right"),
    "new_values": ("new ids", "number"),
    "scores_psi": ("PSI of the scores", "right"),
    "lag_seconds": ("closed to served", "seconds"),
}


class Progress:
    """The measurements of the last parts, as in metrics.jsonl, one mapping for each part.

    `lag_seconds`, the time from the last change of the part's file until its model was published, is added after
    publishing.
    """

    def __init__(self, work: Path, serve: Path, step: int) -> None:
        """Read from metrics.jsonl in the run's folder `work` the lines about parts (files of the log) that were trained
        on up to `step`. Lines of later steps are left out, because their part was not saved in a checkpoint and will be
        trained on again. parts.json is written into the folder `serve`.
        """
        self._work, self._serve = work, serve
        self._page_time = float("-inf")
        by_step: dict[int, dict[str, Any]] = {}
        for line in read_lines(work / METRICS, TAIL_BYTES):
            if line["step"] <= step and ("part" in line or line["step"] in by_step):
                by_step[line["step"]] = by_step.get(line["step"], {}) | line
        self._lines = [line for _, line in sorted(by_step.items())][-ON_PAGE:]

    def add(self, line: dict[str, Any]) -> None:
        """Add the measurements of a part (file of the log). If `line` has the step of the last part, merge it into that
        part's measurements.
        """
        if self._lines and self._lines[-1]["step"] == line["step"]:
            self._lines[-1] |= line
        else:
            self._lines = [*self._lines[1 - ON_PAGE :], dict(line)]

    def awaits_publishing(self, step: int) -> bool:
        """Return True if `step` is the last training step on the newest part (file of the log), and the model after
        this step has not been published yet.
        """
        return bool(self._lines) and self._lines[-1]["step"] == step and "lag_seconds" not in self._lines[-1]

    def show(self, status: dict[str, Any], is_idle: bool) -> bool:
        """Write parts.json for the service, and the run's page online.html. Return False if the page must be written
        later, because parts wait (`is_idle` is False) and the last page is less than PAGE_SECONDS old, otherwise True.

        An error of the file system is logged and does not end the training.
        """
        beside = {name: status[name] for name in ("held", "waiting", "withheld")}
        last = self._lines[-BESIDE_BUNDLES:]
        parts = [_plain({name: line[name] for name in PRINTED if name in line}) for line in last]
        try:
            write_trained_parts(self._serve, {"written": round(time.time(), 1), "parts": parts, **beside})
            if not is_idle and time.monotonic() - self._page_time < PAGE_SECONDS:
                return False
            self._page_time = time.monotonic()
            write_whole(self._work / PAGE, online_page(self._work.name, list(map(_plain, self._lines)), beside))
        except OSError as error:
            log.warning("warning: the last parts are not shown: %s", message_of(error))
        return True


def _plain(line: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value != value else value for name, value in line.items()}  # JSON has no NaN.


def online_page(name: str, lines: Sequence[Line], status: Mapping[str, Any]) -> str:
    """Return the page of the online run `name` as HTML.

    `lines` are the measurements of the last parts that the run trained on, oldest first. `status` has three keys of
    status.json. `held` maps each part that was held aside (not trained on) to the reason. `waiting` is the name of the
    next part if the part still waits for its labels, or "". `withheld` is the reason why the newest model is not
    published, or "".
    """
    texts = {"withheld": "The newest model is not published", "waiting": "Parts that wait for their labels"}
    warnings = [PagePart("warning", f"{text}: {status[key]}") for key, text in texts.items() if status[key]]
    sections = [_aside(status["held"]), *_charts(lines), _parts(lines)]
    subtitle = f"Its last {len(lines):,} parts" if lines else "No part was trained on yet"
    top = [PagePart("tiles", _figures(lines, status)), *warnings]
    return render_page(f"Online run {name}", subtitle, top, [section for section in sections if section is not None])


def _figures(lines: Sequence[Line], status: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    last = lines[-1] if lines else {}
    beside = [f"{of} {last[key]:.4f}" for of, key in (("frozen", "frozen_auc"), ("best", "best_auc")) if last.get(key)]
    auc = "–" if last.get("auc") is None else f"{last['auc']:.4f}"
    figures = [
        ("AUC of the last part", auc, ", ".join(beside) or "before it was trained on"),
        ("closed to served", number_text(last.get("lag_seconds"), "seconds"), "the last part"),
        ("held aside", f"{len(status['held']):,}", "parts"),
    ]
    if "ids_in_use" in last:
        figures.append(("ids in use", number_text(last["ids_in_use"]), f"{last.get('new_values', 0):,} new"))
    return figures


def _aside(reasons: Mapping[str, str]) -> Section | None:
    if not reasons:
        return None
    table = PagePart("table", [("part", "text"), ("why", "text")], list(reasons.items()))
    release = python_command("app online release PART --work DIR")
    note = f"Look at the part. One that is right is trained on after: {release}"
    return Section("Parts held aside", table, note=note)


def _charts(lines: Sequence[Line]) -> list[Section | None]:
    """Return the page's sections with charts: metrics, vocabulary, lag and shift. A section is None if no part of the
    log has a measurement for its charts.
    """
    chart = partial(_chart, lines)
    fields = [line["shifted_field"] for line in lines[-1:] if line.get("shifted_field")]
    of_last = f" Of the last part that is {fields[0]}." if fields else ""
    return [
        _section(
            "Metrics",
            chart("AUC", {"auc": "online", "frozen_auc": "frozen", "best_auc": "best possible"}, size="wide"),
            chart("Log loss", {"log_loss": "online", "frozen_log_loss": "frozen", "best_log_loss": "best possible"}),
            chart("Calibration", {"calibration": "online", "frozen_calibration": "frozen"}),
            note="Each part is scored before it is trained on. Calibration is the clicks that the model expects "
            "divided by those that came. The best possible is that of the true probabilities of a synthetic log.",
        ),
        _section(
            "Vocabulary",
            chart("Values", {"new_values": "new", "pending_values": "pending", "expired_values": "expired"}, low=0),
            chart("Ids in use", {"ids_in_use": ""}),
            note="New values got ids. Pending ones came too seldom yet. Expired ones lost theirs.",
        ),
        _section(
            "Lag",
            chart("From closed to served", {"lag_seconds": ""}, "seconds", low=0),
            chart("Rows", {"rows": "rows", "rejected": "bad lines"}, low=0),
            note="From the last change of a part's file until the bundle of its model was in the served folder.",
        ),
        _section(
            "Shift between parts",
            chart("PSI of the scores", {"scores_psi": ""}, low=0),
            chart("PSI of the field that changed most", {"fields_psi": ""}, low=0),
            note=f"A part beside the parts before it. Above {CHANGE} one speaks of a change.{of_last}",
        ),
    ]


def _parts(lines: Sequence[Line]) -> Section | None:
    last = lines[: -IN_TABLE - 1 : -1]
    keys = [key for key in COLUMNS if any(line.get(key) is not None for line in last)]
    rows = [[_cell(line.get(key), COLUMNS[key][1]) for key in keys] for line in last]
    return Section("The last parts", PagePart("table", [COLUMNS[key] for key in keys], rows)) if last else None


def _cell(value: Any, kind: str) -> Any:
    return "–" if value is None else f"{value:.4f}" if kind == "right" else value


def _section(title: str, *charts: Chart | None, note: str) -> Section | None:
    present = [chart for chart in charts if chart is not None]
    return Section(title, PagePart("charts", present), note=note) if present else None


def _chart(
    lines: Sequence[Line],
    title: str,
    names: Mapping[str, str],
    unit: Unit = "number",
    size: Size = "half",
    low: float | None = None,
) -> Chart | None:
    """Draw a chart of measurements over the parts (files of the log), in their order. Return None if no part has one of
    the measurements.

    `lines` has a dictionary of measurements for each part. `names` maps keys of these dictionaries to the labels of the
    chart's lines. If `low` is given, the y axis starts there.
    """
    series = []
    for key, name in names.items():
        points = [(place, line[key]) for place, line in enumerate(lines, 1) if line.get(key) is not None]
        if points:
            x, y = zip(*points, strict=True)
            series.append(Series(name, x, y, points=len(points) < IN_TABLE))
    return line_chart(title, series, X, Axis("", unit, low=low), size) if series else None
