"""Keep the measurements of the last parts in memory, and write them into the run's page and into a file for the
service.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from app.online.online_page import online_page
from app.run.logs import METRICS
from app.run.record import read_lines
from app.scoring.trained_parts import write_trained_parts
from common.files import message_of, write_whole

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
        """Return True if `step` is the last step of the newest part (file of the log), and the model after this part
        has not been published yet.
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
