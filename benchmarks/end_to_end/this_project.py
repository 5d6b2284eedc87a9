"""This project with `configs/auto.yaml`: prepare, train with the launcher, evaluate."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from benchmarks.end_to_end.columns import Result, run
from benchmarks.harness.commands import ENVIRONMENT, run_command
from common.packages import PROJECT

LAUNCHER = PROJECT / "scripts" / "run_auto_parallel_train.sh"
CONFIG = PROJECT / "configs" / "auto.yaml"
# A line of a run's log about an evaluation on valid: the time, and the AUC.
EVALUATED = re.compile(r"^(\S+ \S+),(\d+) epoch: .* split: valid .*\bauc is ([0-9.]+)", re.MULTILINE)


def train(log: Path) -> Result:
    """Run the commands of the README in a new folder, and return the metrics of the test rows."""
    with tempfile.TemporaryDirectory(dir=log.parent) as work:
        folder = Path(work)
        run_command("data_prep", "prepare", str(log.resolve()), "prepared", "--config", str(CONFIG), folder=folder)
        environment = os.environ | ENVIRONMENT | {"CONFIG": str(CONFIG), "PYTHON": sys.executable}
        command = ["bash", str(LAUNCHER), "1", "-", "prepared", "-"]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        run_command("app", "evaluate", folder=folder)
        lines = (folder / "device_0" / "test_deep0.log").read_text(encoding="utf-8")
        (evaluation,) = (folder / "device_0" / "evaluations").glob("test-*.json")
        metrics = json.loads(evaluation.read_text(encoding="utf-8"))["metrics"]
    valid = [
        (datetime.fromisoformat(f"{day}.{millis}").timestamp(), float(auc))
        for day, millis, auc in EVALUATED.findall(lines)
    ]
    return Result(metrics["auc"], metrics["log_loss"], valid)


if __name__ == "__main__":
    run(train)
