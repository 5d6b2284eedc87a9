"""Prepare and train on each shipped example of a log, by its description."""

import pytest

from app import train
from data_prep.checks.propose import describe
from data_prep.options.options_file import read_options
from data_prep.pipeline.prepare import prepare
from tests.data_prep.checks.test_propose import SHIPPED, make_movielens


def train_on(prepared, config, run):
    """Train on a prepared folder; return the metrics of each evaluation."""
    calls = []
    train(
        config,
        prepared,
        run,
        on_evaluation=lambda _, values: calls.append(values),
        device={"threads": 2},
        train={"epochs": 6, "batch_size": 60},
    )
    return calls


def test_a_model_learns_from_movielens(cpu, tiny_config, tmp_path):
    (tmp_path / "ratings.csv").write_text(make_movielens(3_000))
    settings = ["prepare.min_count=1", "prepare.workers=1", "prepare.split=chronological"]
    options = read_options(data_path=SHIPPED / "movielens.yaml", overrides=settings)
    schema = prepare(tmp_path / "ratings.csv", tmp_path / "prepared", options)
    assert schema.num_positions > schema.num_categorical
    assert train_on(tmp_path / "prepared", tiny_config(), tmp_path / "run")[-1]["auc"] > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("form", ["criteo", "avazu", "movielens"])
def test_a_model_is_trained_by_the_proposed_description(cpu, tiny_config, tiny_log, make_avazu, tmp_path, form):
    log = tiny_log
    if form != "criteo":
        log = tmp_path / "log.csv"
        log.write_text(make_avazu(2_000) if form == "avazu" else make_movielens(2_000))
    (tmp_path / "my.yaml").write_text(describe(str(log)).as_yaml())
    settings = ["prepare.min_count=1", "prepare.workers=1"]
    options = read_options(data_path=tmp_path / "my.yaml", overrides=settings)
    assert prepare(log, tmp_path / "prepared", options).rejected_rows == 0
    assert train_on(tmp_path / "prepared", tiny_config(), tmp_path / "run")[-1]["auc"] > 0.55
