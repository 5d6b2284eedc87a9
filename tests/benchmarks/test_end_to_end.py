"""The contenders of benchmarks.end_to_end on a tiny log: equal rows, and metrics of the usual size."""

import numpy as np
import pytest

from benchmarks.end_to_end.__main__ import Run, compare
from benchmarks.end_to_end.columns import Result, Stopping, measure, splits
from benchmarks.harness.timing import Taken
from data_prep.prepared.data_files import row_numbers_file


def test_contenders_split_as_the_preparation(tiny_dataset):
    for name in ("valid", "test"):
        np.testing.assert_array_equal(splits(3_000)[name], np.load(tiny_dataset / row_numbers_file(name)))


@pytest.mark.parametrize("name", ["hashed_sgd", "pandas_lightgbm", "polars_pytorch"])
def test_a_contender_learns_something(tiny_log, name, monkeypatch):
    if name == "polars_pytorch":
        pytest.importorskip("torch")
    module = pytest.importorskip(f"benchmarks.end_to_end.{name}")
    if name == "polars_pytorch":
        monkeypatch.setattr(module, "MOST_EPOCHS", 2)
        result = module.fit(*module.read(tiny_log), module.Settings(rate=0.01, l2=0.0, batch_size=100))
        assert len(result.valid) == 2
    else:
        result = module.train(tiny_log)
    assert 0.5 < result.auc < 1 and 0.3 < result.log_loss < 5


def test_measures_by_hand():
    result = measure(np.array([0.5, 0.25, 0.75]), np.array([0, 0, 1]))
    assert (result.auc, result.log_loss) == (1.0, pytest.approx(-np.log([0.5, 0.75, 0.75]).mean()))


def test_stopping_keeps_the_best_state():
    stopping = Stopping(patience=2)
    overs = [stopping.is_over(Result(0.5, loss), lambda loss=loss: loss) for loss in (0.5, 0.4, 0.6, 0.5)]
    assert (overs, stopping.best) == ([False, False, False, True], 0.4)


def test_the_first_good_evaluation_counts():
    run = Run(Taken(), Result(0.7, 0.5, [(12.0, 0.6), (15.0, 0.7), (18.0, 0.75)]), start=10.0)
    assert (run.seconds_until(0.65), run.seconds_until(0.8)) == (5.0, None)


def test_the_project_is_compared_with_the_regression(tiny_log, tmp_path, capsys):
    figures = compare(tiny_log, ["hashed_sgd"], 1, tmp_path, {})
    assert figures["best possible"]["auc"] > figures["hashed_sgd"]["auc"]
    assert capsys.readouterr().out.startswith("logistic regression: valid AUC 0.")
