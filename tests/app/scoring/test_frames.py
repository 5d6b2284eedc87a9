import math

import pandas as pd

from app.evaluation.measure import data_frame


def test_lines_with_other_keys_become_one_table():
    found = data_frame([{"step": 1, "auc": None}, {"step": 2, "loss": 0.5}], ["split", "step"])
    assert list(found.columns) == ["split", "step", "auc", "loss"]
    assert found["step"].tolist() == [1, 2]
    assert (found.dtypes[["step", "auc", "loss"]] == ["int64", "float64", "float64"]).all()
    assert math.isnan(found["auc"][1])
    pd.testing.assert_frame_equal(data_frame([], ["step"]), pd.DataFrame(columns=["step"]))
