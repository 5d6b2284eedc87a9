"""Define the options of an online run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from app.online.candidate import MOST_WORSE
from app.online.expiry import ExpiryOptions
from app.online.log_parts import GuardBounds

KEPT, ADMISSION_MIB = 14, 64  # Defaults of the options `keep` and `admission_mib`.


@dataclass(frozen=True)
class OnlineOptions:
    """Options of an online run, as given on the command line: folders, bounds, and if it ends when no part is left."""

    source: str
    serve: Path
    bounds: GuardBounds = field(default_factory=GuardBounds)
    once: bool = False
    # Bundle that also scores each part, so that its metrics can be compared with those of the online model.
    frozen: Path | None = None
    # Time after the last change of a part's file before the part is taken, so that its labels are complete.
    delay_seconds: float = 0.0
    # A new model is published only if its log loss exceeds that of the served model by at most this share.
    most_worse: float = MOST_WORSE
    # Number of bundles that are kept, and of records of parts whose files are gone. 0 keeps all.
    keep: int = KEPT
    # Memory in MiB in which occurrences of values without ids are counted over all parts, until a value is frequent
    # enough for an id. With 0, each part is counted separately.
    admission_mib: int = ADMISSION_MIB
    expiry: ExpiryOptions = field(default_factory=ExpiryOptions)
