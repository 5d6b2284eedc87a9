"""Files that release 1.0.0 (commit 43435693) wrote work in this release. `release_1.0.0.tar.xz` holds them.

A log of 1,500 rows was prepared, trained for two epochs, exported and scored. `losses_of_three_epochs.log` is the
loss.log of that release after a third epoch.
"""

import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.programs import run_program

ARCHIVE = Path(__file__).parent / "release_1.0.0.tar.xz"


@pytest.fixture
def run(tmp_path, command_environment):
    """Run a command in a folder that has the files of release 1.0.0."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")

    def begin(*words):
        environment = command_environment | {"CONFIG": str(tmp_path / "small.yaml")}
        done = run_program(*words, cwd=tmp_path, env=environment)
        return done.stdout + done.stderr

    return begin


def app(*words):
    return (sys.executable, "-m", "app", *words)


def losses(path):
    return np.array([float(line.rpartition(" ")[2]) for line in path.read_text().splitlines()])


def test_its_run_continues_with_the_losses_it_would_have_had(run, project, tmp_path):
    found = run("bash", project / "scripts" / "run_auto_parallel_train.sh", 1, 3, "prepared", "-")
    assert "the run there finished 2 epochs of 3" in found
    expected = losses(tmp_path / "losses_of_three_epochs.log")
    assert expected.size == 39
    np.testing.assert_allclose(losses(tmp_path / "device_0" / "loss.log"), expected, rtol=1e-5)


def test_its_checkpoint_evaluates_and_exports(run):
    assert "AUC                 0.5908" in run(*app("evaluate", "--dataset", "prepared"))
    assert "AUC 0.590816, by the training code 0.590816" in run(
        *app("export", "device_0", "new", "--dataset", "prepared")
    )


@pytest.mark.slow
def test_its_model_starts_a_new_training(run, project):
    words = ("prepared", "-", "--name", "warm", "train.init_from=device_0", "train.init_optimizer=true")
    assert "finished" in run("bash", project / "scripts" / "run_auto_parallel_train.sh", 1, 1, *words)


def test_its_bundle_gives_the_same_scores(run, tmp_path):
    assert "the 100 golden rows score the same" in run(*app("bundle", "verify", "bundle"))
    run(*app("predict", "bundle", "log.csv", "again.csv"))
    scores, expected = (
        np.loadtxt(tmp_path / name, delimiter=",", skiprows=1, usecols=(0, 1)) for name in ("again.csv", "scores.csv")
    )
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
