"""Tests of what ends a measurement. Whole evaluations are in tests/app/trained/test_evaluate_split.py."""

import math

import numpy as np
import pandas as pd
import pytest

from app.evaluation.measure import Scorer, data_frame, measure


def test_a_logit_that_is_not_finite_stops_the_measurement(tiny_dataset, tiny_schema):
    def score(batch, _):
        return np.full(batch.num_rows, np.nan, np.float32)

    with pytest.raises(FloatingPointError, match="the logit of row 0 is nan"):
        measure(Scorer(lambda batch: None, score), tiny_dataset, tiny_schema, "valid", 50)


def test_lines_with_other_keys_become_one_table():
    found = data_frame([{"step": 1, "auc": None}, {"step": 2, "loss": 0.5}], ["split", "step"])
    assert list(found.columns) == ["split", "step", "auc", "loss"]
    assert found["step"].tolist() == [1, 2]
    assert (found.dtypes[["step", "auc", "loss"]] == ["int64", "float64", "float64"]).all()
    assert math.isnan(found["auc"][1])
    pd.testing.assert_frame_equal(data_frame([], ["step"]), pd.DataFrame(columns=["step"]))
