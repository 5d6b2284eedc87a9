"""Train, and record the training in MLflow. The same command resumes an interrupted training and its record.

python train.py CONFIG PREPARED RUN
"""

import functools
import sys
from pathlib import Path

import mlflow
import yaml

from app import train

PLACE = ("step", "epoch", "seconds")  # Two lines of a step have these.


@functools.cache
def last_step(name):
    """Return the last step for which the record had a metric when this process began."""
    history = mlflow.MlflowClient().get_metric_history(mlflow.active_run().info.run_id, name)
    return max((metric.step for metric in history), default=-1)


def send(run, values=None):
    """Send a line of metrics. The first call opens the record, and sends all lines that it lacks."""
    lines = [values] if values else []
    if not mlflow.active_run():
        known = run.path / "mlflow_run_id"
        lines = [line for line in run.history if "wide_loss" in line or line.get("split") == "valid"]
        record = mlflow.start_run(known.read_text() if known.exists() else None, run_name=run.path.name)
        for section, settings in yaml.safe_load((run.path / "config.yaml").read_text()).items():
            if not known.exists():
                mlflow.log_params({f"{section}.{name}": str(value)[:6000] for name, value in settings.items()})
        known.write_text(record.info.run_id)
    for line in lines:
        numbers = {name: value for name, value in line.items() if isinstance(value, int | float) and name not in PLACE}
        mlflow.log_metrics({name: numbers[name] for name in numbers if line["step"] > last_step(name)}, line["step"])


mlflow.set_experiment("clicks")
config, prepared, folder = sys.argv[1:]
run = train(config, prepared, folder, on_step=send, on_evaluation=send)
send(run)  # A training that had ended before sends its lines here.
run.export(run.path / "bundle")
mlflow.log_artifacts(str(run.path / "bundle"), "bundle")
for name in ("report.html", "config.yaml"):
    mlflow.log_artifact(str(Path(run.path, name)))
