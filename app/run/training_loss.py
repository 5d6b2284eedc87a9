"""Detect a model that has learned nothing: one whose loss in the last epoch is above the loss of the click rate.

The latter is the loss of a model that predicts the click rate of the training rows for every row.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from data_prep.prepared.data_files import block_sizes
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import Schema

# If there is nothing to learn, noise lifts an epoch's mean loss slightly above the click rate's. 5 % is far more.
MARGIN = 1.05
# A new model predicts 0.5 for every row, which is a loss of ln 2. It needs some steps to learn the click rate.
FIRST_STEPS = 100
# A run with fewer steps is only compared with the initial loss ln 2. A loss above twice that means divergence.
LARGEST_FIRST_LOSS = 2 * math.log(2)
# Number of blocks of weighted training rows that are read. 100,000 rows estimate the click rate well enough for MARGIN.
WEIGHED_BLOCKS = 100

_LINE = re.compile(r"epoch: (\d+) step: \d+, wide_loss is ([^,]+),")


def trained_click_rate(dataset: Path, schema: Schema) -> float:
    """Return the click rate of the training rows, weighted if they have weights. It is NaN if all weights read
    are 0.
    """
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
    """Return the mean cross-entropy of predicting the click rate of the (smoothed) labels for every training row."""
    rate = (1 - label_smoothing) * click_rate + label_smoothing / 2
    return -sum(share * math.log(share) for share in (rate, 1 - rate) if share)


def why_useless(loss_log: Path, click_rate: float, label_smoothing: float) -> str:
    """Return a message if the last epoch's mean loss in loss.log is above that of the click rate, otherwise "".

    The run's first steps are left out of the mean. If the run ended within an epoch, the mean covers the steps it took.
    """
    losses, first_step = _last_epoch(loss_log) if loss_log.is_file() else ([], 0)
    settled = losses[max(0, FIRST_STEPS - first_step) :]
    limit = MARGIN * click_rate_loss(click_rate, label_smoothing)
    # The run ended too early to have learned the click rate.
    if len(settled) < min(FIRST_STEPS, len(losses)):
        settled, limit = losses, LARGEST_FIRST_LOSS
    mean = math.fsum(settled) / len(settled) if settled else 0.0
    # This is also true for a NaN limit, which results from a click rate of NaN.
    if not mean > limit:
        return ""
    loss = click_rate_loss(click_rate, label_smoothing)
    return f"its last epoch's mean loss is {mean:.4g}, predicting the click rate for every row has {loss:.4g}"


def _last_epoch(loss_log: Path) -> tuple[list[float], int]:
    """Return the wide losses of the last epoch in loss.log, and the number of steps before that epoch."""
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
