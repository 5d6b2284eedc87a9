"""The tower over ranks as a reader runs it, one command a mode, against the losses of the product in one process."""

import re

import numpy as np
import pytest

from app.checkpoint.retention import whole_checkpoints
from app.run.record import read_runs
from tests.programs import run_program, run_python

pytestmark = pytest.mark.parallel

SETTINGS = ("device.threads=1", "loss.loss_scale=1000")

MODES = {
    "split of the tutorial": (8, "split", "--strategy", "matrix_0=((2, 4), (4, 1))"),
    "columns and rows": (
        2,
        "split",
        "--strategy",
        "matrix_0=((1, 1), (1, 2))",
        "--strategy",
        "matrix_1=((1, 2), (2, 1))",
    ),
    "automatic": (2, "automatic"),
    "optimizer": (2, "split", "--optimizer-shards"),
    "mixed": (4, "split", "--strategy", "matrix_0=((2, 2), (2, 1))", "--optimizer-shards"),
    "pipeline": (2, "pipeline", "--micro-batches", "3"),
    "two pairs": (4, "pipeline", "--micro-batches", "2", "--second-stage", "matrix_2"),
    "recompute": (1, "recompute"),
    "recompute on ranks": (2, "recompute", "--recompute", "matrix_1"),
}


@pytest.fixture(scope="module")
def whole(project, tiny_dataset, command_environment, tmp_path_factory):
    """The wide and the deep loss of each step [steps, 2] of two epochs of the product, and the AUC of each epoch."""
    folder, config = tmp_path_factory.mktemp("whole"), project / "configs" / "tiny.yaml"
    words = ["--config", config, "--dataset", tiny_dataset, *SETTINGS, "train.epochs=2", "train.log_every_steps=1"]
    run_python("-m", "app", "train", *words, cwd=folder, env=command_environment)
    (record,) = read_runs([folder / "device_0"])
    losses = [(line["wide_loss"], line["deep_loss"]) for line in record.lines if "wide_loss" in line]
    return np.array(losses), [line["auc"] for line in record.lines if line.get("split") == "valid"]


@pytest.fixture
def train(project, tiny_dataset, command_environment, mpirun):
    """Runs the example on some ranks. Returns its status, losses [steps, 2], the AUC of each epoch, and errors."""

    def run(ranks, mode, *words, epochs=2):
        words = (*words, *SETTINGS, f"train.epochs={epochs}")
        command = ["bash", project / "examples/tower_over_ranks/run.sh", ranks, mode, tiny_dataset, *words]
        done = run_program(*command, env={**command_environment, "MPIRUN": mpirun}, status=None)
        losses = re.findall(r"wide_loss is ([\d.]+), deep_loss is ([\d.]+)", done.stdout)
        aucs = re.findall(r"valid: auc is ([\d.]+)", done.stdout)
        return done.returncode, np.array(losses, float), np.array(aucs, float), done.stderr

    return run


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_trains_to_the_losses_of_one_process(train, whole, mode):
    status, losses, aucs, errors = train(*MODES[mode])
    assert status == 0, errors
    np.testing.assert_allclose(losses, whole[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(aucs, whole[1], rtol=0, atol=2e-4)


def test_slices_are_loaded_under_other_modes(train, whole, tmp_path):
    sliced, joined = tmp_path / "sliced", tmp_path / "whole"
    ranks, *mode = MODES["mixed"]
    status, losses, _, errors = train(ranks, *mode, "--save", sliced, "--slices", epochs=1)
    assert status == 0, errors
    assert len(list(sliced.glob("dense-*-of-4.safetensors"))) == 4
    assert whole_checkpoints(sliced)[-1].state().dense == {}
    status, losses, _, errors = train(2, "pipeline", "--load", sliced, epochs=1)
    assert status == 0, errors
    np.testing.assert_allclose(losses, whole[0][5:], rtol=0, atol=1e-5)
    with_its_strategies = ("split", "--strategy-file", sliced / "strategy.json")
    status, losses, _, errors = train(2, *with_its_strategies, "--load", sliced, epochs=1)
    assert status == 2
    assert "error: matrix_0: ((2, 2), (2, 1)) is for 4 ranks, which do not divide 2 ranks" in errors
    status, losses, _, errors = train(4, *with_its_strategies, "--load", sliced, "--save", joined, epochs=1)
    assert status == 0, errors
    np.testing.assert_allclose(losses, whole[0][5:], rtol=0, atol=1e-5)
    checkpoint = whole_checkpoints(joined)[-1]
    checkpoint.verify()
    assert {"tower.matrix_0": (208, 32), "adam.first_moment.tower.bias_0": (32,)}.items() <= {
        name: array.shape for name, array in checkpoint.state().dense.items()
    }.items()


def test_a_pipelines_slices_are_joined_to_the_whole(train, whole, tmp_path):
    status, *_, errors = train(2, "pipeline", "--save", tmp_path, "--slices", epochs=1)
    assert status == 0, errors
    stages = re.findall(r'"(matrix_\d)": "(\d)"', (tmp_path / "strategy.json").read_text())
    assert stages == [("matrix_0", "0"), ("matrix_1", "1"), ("matrix_2", "1")]
    status, losses, _, errors = train(1, "recompute", "--load", tmp_path, epochs=1)
    assert status == 0, errors
    np.testing.assert_allclose(losses, whole[0][5:], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("ranks", "words", "message"),
    [
        (2, ("split", "--strategy", "matrix_9=((1, 1), (1, 2))"), "error: there is no layer 'matrix_9'; the layers"),
        (1, ("pipeline",), "error: a pipeline of two stages needs an even number of ranks, found 1"),
    ],
)
def test_a_wrong_option_is_one_line(train, ranks, words, message):
    status, *_, errors = train(ranks, *words)
    assert status == 2
    assert errors.count("error: ") == 1 and message in errors, errors
