"""What this process has in memory."""

from __future__ import annotations

import re
from pathlib import Path


def memory_mib(what: str) -> float:
    """As /proc has it: VmRSS is what it has, VmHWM the most that it had so far."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found
    return int(found[1]) / 1024
