"""Whether a training learned: the loss of its last epoch against that of predicting the click rate for every row."""

from __future__ import annotations

import math
import re
from pathlib import Path

from data_prep.prepared.schema import Split

# An epoch's mean loss is above the click rate's by some noise where there is nothing to learn; this is far more.
MARGIN = 1.05
# A model begins with a half for every row, a loss of ln 2, and takes some steps to come down to the click rate.
FIRST_STEPS = 100
# A run so short is judged by where it began alone: twice that is no beginning, but a training that diverged.
LARGEST_FIRST_LOSS = 2 * math.log(2)

_LINE = re.compile(r"epoch: (\d+) step: \d+, wide_loss is ([^,]+),")


def click_rate_loss(train: Split, label_smoothing: float) -> float:
    """Return the cross-entropy of predicting the click rate of the (smoothed) labels for each training row."""
    rate = (1 - label_smoothing) * train.click_rate + label_smoothing / 2
    return -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)


def why_useless(loss_log: Path, train: Split, label_smoothing: float) -> str:
    """Return in words that the last epoch's mean loss in loss.log is above the click rate's; "" where it is not.

    The mean is of the epoch's steps, whole or as far as a run went that ended early, without the run's first ones.
    """
    losses, first_step = _last_epoch(loss_log) if loss_log.is_file() else ([], 0)
    settled = losses[max(0, FIRST_STEPS - first_step) :]
    limit = MARGIN * click_rate_loss(train, label_smoothing)
    if len(settled) < min(FIRST_STEPS, len(losses)):  # it has hardly begun
        settled, limit = losses, LARGEST_FIRST_LOSS
    mean = math.fsum(settled) / len(settled) if settled else 0.0
    if mean <= limit:
        return ""
    found = click_rate_loss(train, label_smoothing)
    return f"its last epoch's mean loss is {mean:.4g}, predicting the click rate for every row has {found:.4g}"


def _last_epoch(loss_log: Path) -> tuple[list[float], int]:
    """The wide losses of the last epoch in loss.log, and how many steps came before it."""
    losses: list[float] = []
    epoch, number, first = "", 0, 0
    with loss_log.open(encoding="utf-8") as lines:
        for line in lines:
            if found := _LINE.match(line):
                if found[1] != epoch:
                    epoch, first, losses = found[1], number, []
                losses.append(float(found[2]))
                number += 1
    return losses, first
