"""Rolling cuts: which lines train, choose and test."""

import numpy as np

from benchmarks.accuracy.rolling_cuts import make_cuts
from data_prep.options.prepare_options import PrepareOptions
from data_prep.prepared.schema import read_schema
from data_prep.sources.synthetic import synthesize


def test_a_cut_tests_its_tenth_and_chooses_on_the_one_before(tmp_path):
    (cut,) = make_cuts(synthesize(tmp_path / "log.txt", 1005, seed=1, workers=1).log_path, tmp_path, ks=(7,))
    options = PrepareOptions(min_count=2)

    choosing = read_schema(cut.choosing(options))
    assert {name: split.rows for name, split in choosing.splits.items()} == {"train": 603, "valid": 100, "test": 0}

    testing = cut.testing(options)
    schema = read_schema(testing)
    assert {name: split.rows for name, split in schema.splits.items()} == {"train": 703, "valid": 0, "test": 101}
    assert np.array_equal(np.load(testing / "row_numbers-test.npy"), np.arange(703, 804))
    assert not list(testing.parent.glob("*.txt"))
