"""MLflow has each line of metrics once, although the training was killed twice, and the files of the training."""

from __future__ import annotations

from pathlib import Path

import mlflow

from app import load_run


def test_record_of_an_interrupted_training_is_whole(commands, interrupted, run):
    (command,) = commands("MLflow")
    interrupted(command)
    run(command.replace("configs/auto.yaml", "small.yaml"))  # The training has ended: nothing is sent twice.
    trained = load_run("tracked")
    client = mlflow.MlflowClient("sqlite:///mlflow.db")
    (record,) = client.search_runs([client.get_experiment_by_name("clicks").experiment_id])
    assert record.info.status == "FINISHED"
    for name in record.data.metrics:
        steps = [metric.step for metric in client.get_metric_history(record.info.run_id, name)]
        assert len(steps) == len(set(steps)), name
    for name in ("wide_loss", "tower_learning_rate", "auc", "log_loss"):
        sent = [(metric.step, metric.value) for metric in client.get_metric_history(record.info.run_id, name)]
        assert sorted(sent) == [(line["step"], line[name]) for line in trained.history if name in line]
        assert len(sent) >= 3
    assert record.data.params["train.epochs"] == "3"
    assert {file.path for file in client.list_artifacts(record.info.run_id)} == {"bundle", "config.yaml", "report.html"}
    model = mlflow.artifacts.download_artifacts(
        f"runs:/{record.info.run_id}/bundle", tracking_uri="sqlite:///mlflow.db"
    )
    assert (Path(model) / "manifest.json").read_bytes() == Path("tracked/bundle/manifest.json").read_bytes()
