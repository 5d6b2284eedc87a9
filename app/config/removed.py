"""List the settings that earlier releases had, as the class attribute `removed` of `Config`."""

from __future__ import annotations

from common.settings import ANY_VALUE, Removed
from data_prep.options.removed import REMOVED as REMOVED_OF_PREPARE

REMOVED = {
    **REMOVED_OF_PREPARE,
    "checkpoint.compact": Removed(
        ANY_VALUE,
        "deltas are no longer turned into full checkpoints during a training; python -m app checkpoint compact does it",
    ),
    "checkpoint.full_every": Removed(
        ANY_VALUE, "with checkpoint.delta, every tenth checkpoint is a full one, and every 24th of an online run"
    ),
    "loss.row_clip_value": Removed(
        0.0, "gradients of embedding rows are not clipped; loss.tower_clip_norm clips those of the tower"
    ),
    "loss.wide_l2_coef": Removed(0.0, "the wide table has no L2 term in the loss; FTRL has wide_optimizer.l2"),
    "train.pool_blocks": Removed(256, "the rows of 256 blocks are mixed at a time"),
    "train.init_dataset": Removed(
        ANY_VALUE, "the prepared folder of the model in train.init_from is looked for where it was; link it if it moved"
    ),
    "device.graph": Removed(
        False,
        "native kernels run the tower on a CPU if they cover it; to debug, set the environment variable "
        "WIDE_DEEP_GRAPH for MindSpore's graph",
    ),
    "eval.min_improvement": Removed(ANY_VALUE, "eval.patience counts every gain of the metric as an improvement"),
    **{
        f"{group}_optimizer.schedule.{name}": Removed(1e-6, f"a plateau {does}")
        for group in ("wide", "deep", "tower")
        for name, does in (
            ("min_improvement", "counts a gain of more than 1e-6 as an improvement"),
            ("min_learning_rate", "lowers the rate to 1e-6 at least"),
        )
    },
}
