"""List the settings that earlier releases had and this release does not have (`Config.REMOVED`)."""

from __future__ import annotations

from common.settings import Removed
from data_prep.options.options_file import REMOVED as REMOVED_OF_PREPARE

_TOWER = Removed("ranks no longer split the tower; examples/tower_over_ranks has a program for each parallel mode")
_GAIN = Removed("the schedule plateau counts a gain of more than 1e-6 as an improvement", 1e-6)
_LEAST_RATE = Removed("the schedule plateau lowers the learning rate to 1e-6 at least", 1e-6)

REMOVED = {
    **REMOVED_OF_PREPARE,
    "parallel": _TOWER,
    "checkpoint.tower_slices": _TOWER,
    "checkpoint.compact": Removed("the command `checkpoint compact` makes a delta a full checkpoint"),
    "checkpoint.full_every": Removed(
        "every tenth checkpoint of a run with checkpoint.delta is full, every 24th online"
    ),
    "device.graph": Removed("to debug MindSpore's graph on a CPU, set the environment variable WIDE_DEEP_GRAPH", False),
    "eval.batch_size": Removed("evaluations have the batches of the training, train.batch_size"),
    "eval.min_improvement": Removed("eval.patience counts every gain of the metric as an improvement"),
    "loss.row_clip_value": Removed("gradients of embedding rows are not clipped", 0.0),
    "loss.wide_l2_coef": Removed("the loss has no L2 term of the wide table; FTRL has wide_optimizer.l2", 0.0),
    "train.init_dataset": Removed("the source's prepared folder has to be where it was; link it there if it was moved"),
    "train.pool_blocks": Removed("the rows of 256 blocks are mixed at a time", 256),
    **{f"{group}_optimizer.schedule.min_improvement": _GAIN for group in ("wide", "deep", "tower")},
    **{f"{group}_optimizer.schedule.min_learning_rate": _LEAST_RATE for group in ("wide", "deep", "tower")},
}
