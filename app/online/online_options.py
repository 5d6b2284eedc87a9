"""The options of an online run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from app.online.candidate import MOST_WORSE
from app.online.expiry import ExpiryOptions
from app.online.log_parts import GuardBounds

KEPT, ADMISSION_MIB = 14, 64  # Defaults of the options `keep` and `admission_mib`.


@dataclass(frozen=True)
class OnlineOptions:
    """Folders and bounds of an online run, and when it ends."""

    source: str
    serve: Path
    bounds: GuardBounds = field(default_factory=GuardBounds)
    once: bool = False
    # Bundle whose scores are measured for comparison.
    frozen: Path | None = None
    delay_seconds: float = 0.0  # Time that a part waits for its labels.
    # Share by which the log loss of a published model may exceed that of the served one.
    most_worse: float = MOST_WORSE
    # Number of kept bundles, and of records of parts whose files are gone. 0 keeps all.
    keep: int = KEPT
    # Memory for counts over all parts of values without ids. 0 counts within each part only.
    admission_mib: int = ADMISSION_MIB
    expiry: ExpiryOptions = field(default_factory=ExpiryOptions)
