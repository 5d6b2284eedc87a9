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
}
