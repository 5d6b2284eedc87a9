"""A model of a tenth of the negatives (`prepare.keep_negatives`) is compared with a model of the whole log."""

import pytest

from app.api import evaluate, prepare, train
from benchmarks.accuracy.sampled_negatives import COLUMNS, CONFIG, generate
from tests.prepared_folders import vocabulary_of


@pytest.mark.slow
def test_a_sample_gives_the_scores_of_the_whole_log(tmp_path):
    """The mean score on all test rows stays the same within the sampling error, which is 1.1 % for 7,900 negatives."""
    generate(100_000, tmp_path / "log.parquet")
    vocabularies, rows, metrics = [], [], []
    for keep in (1.0, 0.1):
        folder = tmp_path / f"prepared-{keep}"
        schema = prepare(tmp_path / "log.parquet", folder, CONFIG, {"columns": COLUMNS}, keep_negatives=keep)
        train(CONFIG, folder, tmp_path / f"run-{keep}", None, None)
        vocabularies.append(vocabulary_of(folder))
        rows.append(schema.splits["train"].rows)
        metrics.append(evaluate(tmp_path / f"run-{keep}", "test").metrics)
    whole, sample = metrics
    assert vocabularies[0] == vocabularies[1]
    assert rows[1] < 0.13 * rows[0]
    assert sample.calibration == pytest.approx(whole.calibration, rel=0.05)
    assert sample.auc > whole.auc - 0.02
