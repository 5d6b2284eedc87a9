"""Train, and record the training in trackio. The same command resumes an interrupted training and its record.

python train.py CONFIG PREPARED RUN
"""

import sys
import uuid

import trackio
import yaml
from trackio.sqlite_storage import SQLiteStorage

from app import train

PLACE = ("step", "epoch", "seconds")  # Two lines of a step have these.
sent = set()  # What the record has: the step of a line, and whether it is an evaluation.


def send(run, values=None):
    """Send a line of metrics. The first call opens the record, and sends all lines that it lacks."""
    lines = [values] if values else []
    if not sent:
        known = run.path / "trackio_name"
        lines = [line for line in run.history if "wide_loss" in line or line.get("split") == "valid"]
        if not known.exists():  # Trackio shows only the newest of several records with one name.
            known.write_text(f"{run.path.name}-{uuid.uuid4().hex[:8]}")
        settings = yaml.safe_load((run.path / "config.yaml").read_text())
        trackio.init("clicks", known.read_text(), config=settings, resume="allow")
        sent.update((log["step"], "auc" in log) for log in SQLiteStorage.get_logs("clicks", known.read_text()))
    for line in lines:
        numbers = {name: value for name, value in line.items() if isinstance(value, int | float) and name not in PLACE}
        key = (line["step"], "auc" in line)
        if key not in sent:
            trackio.log(numbers, step=line["step"])
            sent.add(key)


config, prepared, folder = sys.argv[1:]
run = train(config, prepared, folder, on_step=send, on_evaluation=send)
send(run)  # A training that had ended before sends its lines here.
run.export(run.path / "bundle")
trackio.log_artifact(run.path / "bundle", type="model")
trackio.log_artifact(run.path / "report.html", type="report")
trackio.finish()
