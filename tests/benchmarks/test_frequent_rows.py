"""Rows whose values were all seen often."""

import numpy as np

from benchmarks.accuracy.frequent_rows import seen_often, training_counts
from benchmarks.harness.prepared_rows import read_rows
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.sources.synthetic import synthesize


def test_counts_are_those_of_the_training_rows(tmp_path):
    log = synthesize(tmp_path / "log.txt", 2000, seed=1, workers=1).log_path
    schema = prepare(log, tmp_path / "prepared", PrepareOptions(min_count=2, workers=1))
    counts = training_counts(tmp_path / "prepared", schema)

    ids = read_rows(tmp_path / "prepared", schema, "train").ids
    own = ids.ravel()[
        ids.ravel() >= schema.num_numeric + schema.num_categorical
    ]  # neither numeric nor out of vocabulary
    assert np.array_equal(np.bincount(own, minlength=schema.vocabulary_size), counts)


def test_one_rare_value_makes_a_row_rare():
    counts = np.array([0, 19, 20, 500])
    assert seen_often(np.array([[2, 3], [3, 1], [0, 3]]), counts, least=20).tolist() == [True, False, False]
