"""Define the options of an online run, which trains a model on a growing log."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from app.online.expiry import ExpiryOptions
from app.online.log_parts import GuardBounds
from app.online.publish import MOST_WORSE

KEPT, ADMISSION_MIB = 14, 64  # Default values of the options --keep and --admission-mib.


@dataclass(frozen=True)
class OnlineOptions:
    """Options of an online run, as given on the command line: folders, bounds, and whether the run ends when no part
    (file of the log) is left.
    """

    source: str  # Folder of the log, into which complete parts (files) are renamed, or a Delta table.
    serve: Path  # Folder into which the bundles of new models are written.
    # Bounds beyond which a part (file of the log) counts as suspicious and is not trained on.
    bounds: GuardBounds = field(default_factory=GuardBounds)
    once: bool = False  # True: the run ends when no part (file of the log) is left. False: it waits for further parts.
    # Bundle that also scores each part (file of the log), so that its metrics can be compared with those of the model
    # in training. None: there is no comparison.
    frozen: Path | None = None
    # Time after the last change of a part's file before the part is trained on, so that its labels are complete.
    delay_seconds: float = 0.0
    # Largest share by which the log loss of a new model, on rows of the last parts, may exceed that of the served
    # model. If it is exceeded, the new model is not published, unless the difference may be chance.
    most_worse: float = MOST_WORSE
    # Number of the newest checkpoints, and of the newest bundles, that are kept. The run also keeps as many records
    # about trained parts (files of the log) whose files the user has deleted. Older ones stay only if something still
    # needs them, as a delta needs its parent. 0 keeps all.
    keep: int = KEPT
    # Memory in MiB in which occurrences of values without ids are counted over all parts (files of the log), until a
    # value is frequent enough for an id. With 0, each part is counted separately.
    admission_mib: int = ADMISSION_MIB
    # Options that decide when categorical values lose their ids because they no longer occur in the log.
    expiry: ExpiryOptions = field(default_factory=ExpiryOptions)
