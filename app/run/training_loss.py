"""Detect a model that has learned nothing: one whose mean training loss in the last epoch is above the loss of
predicting the click rate for every row.

The click rate is that of the training rows.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from data_prep.prepared.data_files import block_sizes
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import Schema

# A model counts as useless if its loss is more than 5 % above the loss of predicting the click rate. If the data have
# nothing to learn, noise alone lifts the mean loss of an epoch above the loss of predicting the click rate, but by far
# less than 5 %.
MARGIN = 1.05
# Number of a run's first steps that are left out of the mean loss. A new model predicts 0.5 for every row, which is a
# loss of ln 2, and needs some steps to learn the click rate.
FIRST_STEPS = 100
# Limit of the mean loss in a run with too few steps to learn the click rate: twice the initial loss ln 2. A loss above
# it means that the training diverges.
LARGEST_FIRST_LOSS = 2 * math.log(2)
# If rows have weights, the click rate is estimated from about this many blocks of training rows. That is some 100,000
# rows, enough for a margin of 5 %.
WEIGHED_BLOCKS = 100

_LINE = re.compile(r"epoch: (\d+) step: \d+, wide_loss is ([^,]+),")


def trained_click_rate(dataset: Path, schema: Schema) -> float:
    """Return the click rate of the training rows. If rows have weights, return an estimate of the weighted click rate
    from about WEIGHED_BLOCKS blocks of rows.

    The rate is NaN if all weights in these blocks are 0.
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
    """Return the mean cross-entropy, on the training rows, of predicting the mean of the smoothed labels for each row.

    `click_rate` is the mean of the labels before smoothing.
    """
    rate = (1 - label_smoothing) * click_rate + label_smoothing / 2
    return -sum(share * math.log(share) for share in (rate, 1 - rate) if share)


def why_useless(loss_log: Path, click_rate: float, label_smoothing: float) -> str:
    """Return a message if a run has learned nothing: if the last epoch's mean loss in loss.log is more than 5 % above
    the loss of predicting `click_rate` for every row. Otherwise return "".

    The run's first steps are left out of the mean. If the run ended within an epoch, the mean covers the steps it took.
    """
    losses, first_step = _last_epoch(loss_log) if loss_log.is_file() else ([], 0)
    settled = losses[max(0, FIRST_STEPS - first_step) :]
    limit = MARGIN * click_rate_loss(click_rate, label_smoothing)
    # If the run ended too early to have learned the click rate, check only that its loss has not grown beyond
    # LARGEST_FIRST_LOSS.
    if len(settled) < min(FIRST_STEPS, len(losses)):
        settled, limit = losses, LARGEST_FIRST_LOSS
    mean = math.fsum(settled) / len(settled) if settled else 0.0
    # The condition is `not >` instead of `<=`, so that it is also true if the limit is NaN because the click rate is
    # NaN.
    if not mean > limit:
        return ""
    loss = click_rate_loss(click_rate, label_smoothing)
    return f"its last epoch's mean loss is {mean:.4g}, predicting the click rate for every row has {loss:.4g}"


def _last_epoch(loss_log: Path) -> tuple[list[float], int]:
    """Return the value wide_loss (the model's cross-entropy) of each step of the last epoch, from loss.log, and the
    number of steps before that epoch.
    """
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
