"""The daily cycle publishes a model a day, and its exit status says what happened."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

CYCLE = "bash examples/doors/cron/daily.sh"


def published() -> list[dict]:
    """The manifests of the published bundles, the oldest first."""
    return [json.loads(path.read_text()) for path in sorted(Path("bundles").glob("step-*/manifest.json"))]


def test_each_day_publishes_a_model(commands, run):
    (cycle,) = commands("cron")
    run(cycle)
    first = published()
    lines = Path("log.txt").read_text().splitlines(keepends=True)
    Path("second.txt").write_text("".join(lines[:1500]))
    run(cycle.replace("new.txt", "second.txt"))
    both = published()
    assert len(both) == len(first) + 1 and both[:-1] == first
    assert len({manifest["id"] for manifest in both}) == len(both)
    run(cycle)  # Each part is trained on once, so the same file publishes nothing.
    assert published() == both


def test_exit_status_says_what_happened(run):
    assert "absent.txt is not there yet" in run(f"{CYCLE} absent.txt", status=66).stderr
    Path("damaged.txt").write_text("not a line of this log\n" * 1000)
    held = run(f"{CYCLE} damaged.txt", status=5).stdout
    assert "damaged.txt" in json.loads(held[held.index("{") :])["held"]
    run(f"{CYCLE} new.txt", status=5)  # The damaged part is still there.
    Path("parts/damaged.txt").unlink()
    run(f"{CYCLE} new.txt")
    Path("new.txt").write_text("other\n")
    assert "other content than new.txt" in run(f"{CYCLE} new.txt", status=65).stderr
    shutil.copy("log.txt", "third.txt")
    with Path("daily.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another cycle is still running" in run(f"{CYCLE} third.txt", status=75).stderr
