"""Detect a useless model: compare its last epoch's loss with that of predicting the click rate for every row."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from data_prep.prepared.data_files import block_sizes
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import Schema

# An epoch's mean loss is above the click rate's by some noise if there is nothing to learn. This is far more.
MARGIN = 1.05
# A model begins by predicting 0.5 for every row, a loss of ln 2, and needs some steps to reach the click rate.
FIRST_STEPS = 100
# A shorter run is compared with its initial loss alone: twice that means that it diverged.
LARGEST_FIRST_LOSS = 2 * math.log(2)
WEIGHED_BLOCKS = 100  # of training rows with weights: 100,000 rows give their click rate closely enough for MARGIN

_LINE = re.compile(r"epoch: (\d+) step: \d+, wide_loss is ([^,]+),")


def trained_click_rate(dataset: Path, schema: Schema) -> float:
    """Return the click rate of the training rows, by their weights if they have any, or NaN if all of these are 0."""
    if not schema.weight:
        return schema.splits["train"].click_rate
    num_blocks = len(block_sizes(schema, "train"))
    numbers = range(0, num_blocks, -(-num_blocks // WEIGHED_BLOCKS)) if num_blocks else ()
    sums = np.zeros(2)
    for rows in read_blocks(dataset, schema, "train", numbers):
        assert rows.weights is not None
        sums += rows.weights @ np.stack([rows.labels, np.ones(len(rows))], axis=1)
    return float(sums[0] / sums[1]) if sums[1] else math.nan


def click_rate_loss(click_rate: float, label_smoothing: float) -> float:
    """Return the cross-entropy of predicting the click rate of the (smoothed) labels for each training row."""
    rate = (1 - label_smoothing) * click_rate + label_smoothing / 2
    return -sum(share * math.log(share) for share in (rate, 1 - rate) if share)


def why_useless(loss_log: Path, click_rate: float, label_smoothing: float) -> str:
    """Return a message if the last epoch's mean loss in loss.log is above that of the click rate, else "".

    The mean leaves out the run's first steps. Of a run that ended early it covers the epoch as far as it went.
    """
    losses, first_step = _last_epoch(loss_log) if loss_log.is_file() else ([], 0)
    settled = losses[max(0, FIRST_STEPS - first_step) :]
    limit = MARGIN * click_rate_loss(click_rate, label_smoothing)
    if len(settled) < min(FIRST_STEPS, len(losses)):  # it has hardly begun
        settled, limit = losses, LARGEST_FIRST_LOSS
    mean = math.fsum(settled) / len(settled) if settled else 0.0
    if not mean > limit:  # a click rate of NaN has no loss
        return ""
    loss = click_rate_loss(click_rate, label_smoothing)
    return f"its last epoch's mean loss is {mean:.4g}, predicting the click rate for every row has {loss:.4g}"


def _last_epoch(loss_log: Path) -> tuple[list[float], int]:
    """Return the wide losses of the last epoch in loss.log, and the number of steps before it."""
    losses: list[float] = []
    epoch, number, first = "", 0, 0
    with loss_log.open(encoding="utf-8") as lines:
        for line in lines:
            if match := _LINE.match(line):
                if match[1] != epoch:
                    epoch, first, losses = match[1], number, []
                losses.append(float(match[2]))
                number += 1
    return losses, first
