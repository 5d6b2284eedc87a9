"""The main job on real Criteo rows, which the project may not hold: CRITEO_ROWS names a folder with train.txt."""

import os
from pathlib import Path

import pytest

from app.__main__ import main
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare

# Logistic regression reaches 0.754 on the last tenth of 117,547 rows; a broken path falls to 0.5.
LEAST_AUC = 0.72
SETTINGS = (
    "train.batch_size=1000",
    "model.embedding_dim=8",
    "model.hidden_widths=[64, 32]",
    "deep_optimizer.learning_rate=1e-3",
    "tower_optimizer.learning_rate=1e-3",
)

pytestmark = pytest.mark.skipif(
    "CRITEO_ROWS" not in os.environ, reason="CRITEO_ROWS names no folder with real Criteo rows (train.txt)"
)


@pytest.mark.parametrize("transform", ["log1p", "max"])
def test_real_rows_are_prepared_trained_on_and_evaluated(cpu, transform, tmp_path, monkeypatch, capsys):
    options = PrepareOptions(split="chronological", numeric_transform=transform, min_count=10)
    schema = prepare(Path(os.environ["CRITEO_ROWS"]), tmp_path / "prepared", options)
    assert sum(split.rows for split in schema.splits.values()) + schema.rejected_rows == schema.source["lines"]

    monkeypatch.chdir(tmp_path)
    assert main(["train", "--dataset", "prepared", *SETTINGS]) == 0
    assert main(["evaluate", "--split", "test"]) == 0
    report = capsys.readouterr().out
    assert float(report.split("AUC")[1].split()[0]) > LEAST_AUC, report
