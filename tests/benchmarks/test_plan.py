"""The plan of a training's memory beside what the training takes: a small form of the benchmark."""

import random

import pytest

from app.model.native_tower import LIBRARY
from benchmarks.training.plan import measure, prepare, random_words


@pytest.mark.slow
def test_plans_are_near_what_trainings_take(tmp_path):
    if not LIBRARY.is_available():
        pytest.skip("the dense layer is not built; run `make native`")
    prepared, rng = prepare(tmp_path), random.Random(7)
    for _ in range(5):
        preparation, words = random_words(rng)
        measured = measure(words, prepared[preparation], tmp_path, None, 0)
        assert 0.8 < measured.ratio < 1.25, measured
