"""Tests of what ends a measurement. Whole evaluations are in tests/app/trained/test_evaluate_split.py."""

import numpy as np
import pytest

from app.evaluation.measure import Scorer, measure


def test_a_logit_that_is_not_finite_stops_the_measurement(tiny_dataset, tiny_schema):
    def score(batch, _):
        return np.full(batch.num_rows, np.nan, np.float32)

    with pytest.raises(FloatingPointError, match="the logit of row 0 is nan"):
        measure(Scorer(lambda batch: None, score), tiny_dataset, tiny_schema, "valid", 50)
