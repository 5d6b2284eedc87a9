import math

import pytest

from app.run.training_loss import click_rate_loss, why_useless
from data_prep.prepared.schema import Split

TRAIN = Split(1000, 100, ())  # the loss of predicting a tenth for every row is 0.325


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
        return why_useless(path, TRAIN, label_smoothing)

    return why


def test_the_loss_of_predicting_the_click_rate():
    assert click_rate_loss(TRAIN, 0.0) == pytest.approx(-0.1 * math.log(0.1) - 0.9 * math.log(0.9))
    assert click_rate_loss(TRAIN, 1 - 1e-12) == pytest.approx(math.log(2))


def test_a_loss_above_the_click_rate_s_is_of_no_use(judge):
    assert judge([0.32] * 300) == ""
    said = "its last epoch's mean loss is 0.35, predicting the click rate for every row has 0.3251"
    assert judge([0.35] * 300) == said


def test_the_last_epoch_counts(judge):
    assert judge([0.5] * 300, [0.3] * 300) == ""
    assert judge([0.3] * 300, [0.5] * 300)


def test_the_first_steps_of_a_run_do_not_count(judge):
    assert judge([0.69] * 100 + [0.3] * 200) == ""
    assert judge([0.3] * 100 + [0.69] * 200)


@pytest.mark.parametrize("epochs", [([0.69, 0.6, 0.5],), ([0.6] * 150,), ([0.69] * 5, [0.6] * 5)])
def test_a_run_that_has_hardly_begun_is_of_no_use_only_where_it_diverges(judge, epochs):
    assert judge(*epochs) == ""
    assert judge(*([*losses[:-1], 3648.0] for losses in epochs))


def test_short_epochs_count_once_there_were_many(judge):
    assert judge(*[[0.5] * 5] * 20) == ""
    assert judge(*[[0.5] * 5] * 21)


def test_smoothed_labels_have_a_higher_loss(judge):
    assert judge([0.48] * 300)
    assert judge([0.48] * 300, label_smoothing=0.2) == ""


def test_a_run_without_a_step_is_not_judged(judge, tmp_path):
    assert judge() == ""
    assert why_useless(tmp_path / "none.log", TRAIN, 0.0) == ""
