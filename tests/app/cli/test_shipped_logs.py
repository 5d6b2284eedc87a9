"""Prepare and train on a shipped example of a log, by its description."""

from app import train
from data_prep.options.options_file import read_options
from data_prep.pipeline.prepare import prepare
from tests.data_prep.checks.test_propose import SHIPPED, make_movielens


def test_a_model_learns_from_movielens(cpu, tiny_config, tmp_path):
    (tmp_path / "ratings.csv").write_text(make_movielens(3_000))
    settings = ["prepare.min_count=1", "prepare.workers=1", "prepare.split=chronological"]
    options = read_options(data_path=SHIPPED / "movielens.yaml", overrides=settings)
    schema = prepare(tmp_path / "ratings.csv", tmp_path / "prepared", options)
    assert schema.num_positions > schema.num_categorical
    steps = {"epochs": 6, "batch_size": 60}
    run = train(tiny_config(), tmp_path / "prepared", tmp_path / "run", device={"threads": 2}, train=steps)
    assert [line["auc"] for line in run.history if "auc" in line][-1] > 0.7
