"""Train, and record the training in Weights & Biases. The same command resumes an interrupted training and its record.

python train.py CONFIG PREPARED RUN
"""

import shutil
import sys
import uuid
from pathlib import Path

import wandb
import yaml

from app import train

row = {}  # the numbers of the newest step


def send(run, values=None):
    """Take a line of metrics. The first call opens the record, and takes all lines of the run."""
    lines = [values] if values else []
    if not wandb.run:
        known = run.path / "wandb_run_id"
        lines = [line for line in run.history if "wide_loss" in line or line.get("split") == "valid"]
        if not known.exists():
            known.write_text(uuid.uuid4().hex[:8])
        for old in Path("wandb").glob(f"offline-run-*-{known.read_text()}"):
            shutil.rmtree(old)  # A kill may have lost its last lines. The new record has all lines.
        settings = yaml.safe_load((run.path / "config.yaml").read_text())
        wandb.init(project="clicks", id=known.read_text(), name=run.path.name, config=settings, resume="allow")
    for line in lines:
        if row and line["step"] != row["step"]:
            send_row()
        row.update({name: value for name, value in line.items() if isinstance(value, int | float)})


def send_row():
    """Send `row` by one call, because W&B drops what comes later for the same step. A resumed record knows its step."""
    if row["step"] >= wandb.run.step:
        wandb.log(row, step=row["step"], commit=True)
    row.clear()


config, prepared, folder = sys.argv[1:]
run = train(config, prepared, folder, on_step=send, on_evaluation=send)
send(run)  # A training that had ended before sends its lines here.
send_row()
run.export(run.path / "bundle")
wandb.log_artifact(run.path / "bundle", f"{run.path.name}-bundle", type="model")
wandb.log_artifact(run.path / "report.html", f"{run.path.name}-report", type="report")
wandb.finish()
