"""Train, and record the training in Weights & Biases. The same command resumes an interrupted training and its record.

python train.py CONFIG PREPARED RUN
"""

import sys
import uuid

import wandb
import yaml

from app import train

row = {}  # the numbers of the newest step


def send(run, values=None):
    """Take a line of metrics. The first call opens the record, and takes all lines of the run."""
    lines = [values] if values else []
    if not wandb.run:
        known = run.path / "wandb_sent"
        lines = [line for line in run.history if "wide_loss" in line or line.get("split") == "valid"]
        if not known.exists():
            known.write_text(f"{uuid.uuid4().hex[:8]} -1")
        settings = yaml.safe_load((run.path / "config.yaml").read_text())
        record = known.read_text().split()[0]
        wandb.init(project="clicks", id=record, name=run.path.name, config=settings, resume="allow")
    for line in lines:
        if row and line["step"] != row["step"]:
            send_row(run)
        row.update({name: value for name, value in line.items() if isinstance(value, int | float)})


def send_row(run):
    """Send `row` by one call, because W&B drops what comes later for the same step. Offline, only the file in the run's
    folder knows the steps that were sent.
    """
    with (run.path / "wandb_sent").open("r+") as known:
        if row["step"] > int(known.read().split()[-1]):
            wandb.log(row, step=row["step"], commit=True)
            known.write(f" {row['step']}")
    row.clear()


config, prepared, folder = sys.argv[1:]
run = train(config, prepared, folder, on_step=send, on_evaluation=send)
send(run)  # A training that had ended before sends its lines here.
send_row(run)
run.export(run.path / "bundle")
wandb.log_artifact(run.path / "bundle", f"{run.path.name}-bundle", type="model")
wandb.log_artifact(run.path / "report.html", f"{run.path.name}-report", type="report")
wandb.finish()
