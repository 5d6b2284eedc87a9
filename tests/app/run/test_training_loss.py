import math

import pytest

from app.run.training_loss import click_rate_loss, trained_click_rate, why_useless
from data_prep.options.options_file import read_options
from data_prep.pipeline.prepare import prepare

RATE = 0.1  # the loss of predicting a tenth for every row is 0.325


@pytest.fixture
def judge(tmp_path):
    """Judge a log of epochs, each a list of losses."""

    def why(*epochs, label_smoothing=0.0):
        path = tmp_path / "loss.log"
        lines = [
            f"epoch: {epoch} step: {step}, wide_loss is {loss}, deep_loss is 9.0\n"
            for epoch, losses in enumerate(epochs, 1)
            for step, loss in enumerate(losses, 1)
        ]
        path.write_text("".join(lines))
        return why_useless(path, RATE, label_smoothing)

    return why


def test_the_loss_of_predicting_the_click_rate():
    assert click_rate_loss(RATE, 0.0) == pytest.approx(-0.1 * math.log(0.1) - 0.9 * math.log(0.9))
    assert click_rate_loss(RATE, 1 - 1e-12) == pytest.approx(math.log(2))


def test_a_loss_above_that_of_the_click_rate_is_useless(judge):
    assert judge([0.32] * 300) == ""
    said = "its last epoch's mean loss is 0.35, predicting the click rate for every row has 0.3251"
    assert judge([0.35] * 300) == said


def prepared_rate(folder, kinds, rows, *words):
    """Prepare a log whose column c has seven values behind `rows`, and return the click rate of the training rows."""
    names = [column.split(":")[0] for column in kinds.split(", ")]
    lines = [f"{row},{number % 7}" for number, row in enumerate(rows)]
    (folder / "log.csv").write_text("\n".join([",".join(names), *lines, ""]))
    words = ["prepare.data.separator=','", "prepare.data.header=true", f"prepare.data.columns={{{kinds}}}", *words]
    schema = prepare(folder / "log.csv", folder / "prepared", read_options(None, [*words, "prepare.workers=1"]))
    return trained_click_rate(folder / "prepared", schema)


@pytest.mark.parametrize(("kind", "weights", "expected"), [("weight", "19", 0.5), ("ignored", "99", 0.1)])
def test_rows_count_by_their_weights(tmp_path, kind, weights, expected):
    rows = [f"{int(row % 10 == 0)},{weights[row % 10 == 0]}" for row in range(2000)]
    rate = prepared_rate(tmp_path, f"y: label, w: {kind}, c: string", rows)
    assert rate == pytest.approx(expected, abs=0.03)


def test_rows_without_labels_do_not_count(tmp_path):
    """Nine of ten have none; a fifth of the others are clicks, so a loss of 0.5 is that of their click rate."""
    rows = [int(row % 50 == 0) if row % 10 == 0 else "" for row in range(3000)]
    rate = prepared_rate(tmp_path, "y: label, c: string", rows, "prepare.data.label=optional")
    assert rate == pytest.approx(0.2, abs=0.04)
    (tmp_path / "loss.log").write_text("epoch: 1 step: 1, wide_loss is 0.5, deep_loss is 9.0\n" * 300)
    assert why_useless(tmp_path / "loss.log", rate, 0.0) == ""


def test_the_last_epoch_counts(judge):
    assert judge([0.5] * 300, [0.3] * 300) == ""
    assert judge([0.3] * 300, [0.5] * 300)


def test_the_first_steps_of_a_run_do_not_count(judge):
    assert judge([0.69] * 100 + [0.3] * 200) == ""
    assert judge([0.3] * 100 + [0.69] * 200)


@pytest.mark.parametrize("epochs", [([0.69, 0.6, 0.5],), ([0.6] * 150,), ([0.69] * 5, [0.6] * 5)])
def test_a_run_that_has_hardly_begun_is_useless_only_if_it_diverges(judge, epochs):
    assert judge(*epochs) == ""
    assert judge(*([*losses[:-1], 3648.0] for losses in epochs))


def test_short_epochs_count_once_there_were_many(judge):
    assert judge(*[[0.5] * 5] * 20) == ""
    assert judge(*[[0.5] * 5] * 21)


def test_smoothed_labels_have_a_higher_loss(judge):
    assert judge([0.48] * 300)
    assert judge([0.48] * 300, label_smoothing=0.2) == ""


def test_a_run_without_a_step_gets_no_verdict(judge, tmp_path):
    assert judge() == ""
    assert why_useless(tmp_path / "none.log", RATE, 0.0) == ""
