"""The way of the data, as a user walks it: raw log -> prepared folder -> launcher -> evaluation."""

import re
import sys

import pyarrow.parquet as pq
import pytest

from app.__main__ import main as app
from data_prep.__main__ import main as data_prep
from data_prep.prepared.schema import read_schema


def test_from_a_raw_log_to_an_evaluated_model(command, project, tmp_path):
    python = (sys.executable, "-P", "-m")
    config = project / "configs" / "tiny.yaml"
    command(*python, "data_prep", "synthesize", "log.txt", "--rows", "4000", "--workers", "1")
    command(*python, "data_prep", "prepare", "log.txt", "prepared", "--config", config, "prepare.workers=1")
    assert "train" in command(*python, "data_prep", "inspect", "prepared")

    command("bash", project / "scripts" / "run_auto_parallel_train.sh", 1, 2, "prepared", "-")
    losses = [float(x) for x in re.findall(r"wide_loss is (\S+),", (tmp_path / "device_0" / "loss.log").read_text())]
    assert losses[0] == pytest.approx(0.693, abs=0.005)  # ln 2: rows and biases start near 0
    assert min(losses[-3:]) < losses[0] - 0.05

    report = command("bash", project / "scripts" / "run_eval.sh")
    auc, best = map(float, re.search(r"AUC +(0\.\d+) .*\(best possible (0\.\d+)\)", report).groups())
    assert 0.5 < auc < best < 0.95
    for name in ("log loss", "normalized entropy", "calibration", "PR-AUC"):
        assert re.search(rf"{name} +\d\.\d{{6}}", report)
    evaluations = (tmp_path / "device_0" / "eval.log").read_text().splitlines()
    assert [re.search(r"split: (\w+)", line)[1] for line in evaluations] == ["valid", "valid", "test"]


def test_training_continues_on_the_next_day_s_log(run_here, project, tmp_path):
    """Its new values have ids after the old ones, so the rows that were trained stay where they are."""
    config = project / "configs" / "tiny.yaml"
    for day in (1, 2):
        run_here(data_prep, "synthesize", f"{day}.txt", "--rows", "4000", "--seed", day, "--workers", "1")
    prepare = (data_prep, "prepare", "--config", config, "prepare.workers=1")
    run_here(*prepare, "1.txt", "first")
    run_here(*prepare, "2.txt", "second", "--vocabulary", "first", "--extend")
    first, second = (read_schema(tmp_path / name) for name in ("first", "second"))
    assert second.vocabulary_size > first.vocabulary_size
    for old, new in zip(first.categorical, second.categorical, strict=True):
        assert (new.oov_ids, new.id_ranges[0]) == (old.oov_ids, old.id_ranges[0])

    train = (app, "train", "--config", config, "--dataset")
    run_here(*train, "first", "train.epochs=1")
    (tmp_path / "device_0").rename(tmp_path / "model")
    run_here(*train, "second", "train.epochs=1", "train.init_from=model")
    loss = float(re.search(r"wide_loss is (\S+),", (tmp_path / "device_0" / "loss.log").read_text())[1])
    assert loss < 0.693 - 0.05  # a model that knows nothing has ln 2

    checkpoint = max((tmp_path / "device_0" / "checkpoints").glob("step-*"))
    run_here(app, "checkpoint", "export-rows", checkpoint, "rows.parquet", "--dataset", "second")
    exported = pq.read_table(tmp_path / "rows.parquet")
    named = dict(zip(exported["row"].to_pylist(), exported["value"].to_pylist(), strict=True))
    added = {row: value for row, value in named.items() if row >= first.vocabulary_size}
    assert added
    vocabulary = pq.read_table(tmp_path / "second" / "vocabulary.parquet")
    written = dict(zip(vocabulary["id"].to_pylist(), vocabulary["value"].to_pylist(), strict=True))
    assert all(written[row] == value for row, value in added.items())
