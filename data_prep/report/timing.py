"""Record time and memory of a preparation in the file timing.json of the prepared folder.

The file is not part of the data, and schema.json does not list it.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from common.files import parse_json, record_of, write_whole
from common.process import num_cores

TIMING_FILE = "timing.json"
_KIB = 1 << 10  # ru_maxrss is in KiB on Linux.


@dataclass(frozen=True)
class Timing:
    """The content of timing.json: time and memory of the process that completed the prepared folder.

    If the preparation was interrupted, work before the interruption is not included.
    """

    finished: str  # Time in UTC at which the preparation ended.
    seconds: float
    stages: dict[str, float]  # Seconds of each pass over the log, by its title.
    cpu_seconds: float  # CPU seconds of this process and of the workers that it started on this machine.
    peak_bytes: int  # Peak resident memory of this process.
    worker_peak_bytes: int  # Peak resident memory of the largest worker.
    workers: int
    cores: int
    machine: str
    python: str


class RunClock:
    """Measures the time of a preparation, from the creation of this object to the call of `stop`.

    The caller sets `stages`, the seconds of each pass over the log, and `workers`, the number of worker processes.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._cpu_before = _cpu_seconds()
        self.stages: Mapping[str, float] = {}
        self.workers = 1

    def stop(self) -> Timing:
        return Timing(
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=time.monotonic() - self._start,
            stages=dict(self.stages),
            cpu_seconds=_cpu_seconds() - self._cpu_before,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
            worker_peak_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _KIB,
            workers=self.workers,
            cores=num_cores(),
            machine=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
        )


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def write_timing(timing: Timing, folder: Path) -> None:
    """Write timing.json atomically, so that the report never reads a partial file."""
    write_whole(folder / TIMING_FILE, json.dumps(asdict(timing), indent=1) + "\n")


def read_timing(folder: Path) -> Timing | None:
    """Return the content of timing.json, or None if there is no such file. Raise ValueError if it is damaged."""
    path = folder / TIMING_FILE
    if not path.is_file():
        return None
    try:
        return record_of(parse_json(path.read_bytes()), Timing)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error!r}); remove it and run the command again") from error
