"""A log of ratings and times, from its text by the shipped description to a trained model."""

from dataclasses import replace

from app import train
from data_prep.options.prepare_options import read_options
from data_prep.pipeline.prepare import prepare
from tests.data_prep.checks.test_describe import SHIPPED, make_movielens


def test_a_model_learns_from_movielens(cpu, tiny_config, tmp_path):
    (tmp_path / "ratings.csv").write_text(make_movielens(3_000))
    settings = ["prepare.min_count=1", "prepare.workers=1", "prepare.split=chronological", "prepare.block_rows=100"]
    options = read_options(data_path=SHIPPED / "movielens.yaml", overrides=settings)
    columns = {**options.data.columns, "genres": "string"}  # training takes no lists
    options = replace(options, data=replace(options.data, columns=columns, lists={}))
    prepare(tmp_path / "ratings.csv", tmp_path / "prepared", options)
    calls = []
    train(
        tiny_config(),
        tmp_path / "prepared",
        tmp_path / "run",
        on_evaluation=lambda _, values: calls.append(values),
        device={"threads": 2},
        train={"epochs": 6, "batch_size": 60},
    )
    assert calls[-1]["auc"] > 0.7
