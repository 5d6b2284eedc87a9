"""The way of the data, as a user walks it: raw log -> prepared folder -> launcher -> evaluation."""

import re
import subprocess
import sys

import pytest


@pytest.fixture
def command(command_environment, tmp_path):
    def run(*words):
        done = subprocess.run(
            list(map(str, words)), cwd=tmp_path, env=command_environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


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
