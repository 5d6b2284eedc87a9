"""Another data set all the way: an Avazu-like log with a header, no numeric field, hex values and short strings."""

import re

import pyarrow.parquet as pq
import pytest

from app.__main__ import main as app
from data_prep.__main__ import main as data_prep
from data_prep.prepared.schema import read_schema


@pytest.mark.slow
def test_from_an_avazu_log_to_an_evaluated_model(run_here, project, tmp_path, make_avazu):
    (tmp_path / "train.csv").write_text(make_avazu(4000))
    data = project / "configs" / "data" / "avazu.yaml"
    words = ("--config", project / "configs" / "tiny.yaml", "--data", data, "prepare.workers=1")
    run_here(data_prep, "prepare", "train.csv", "prepared", *words)
    schema = read_schema(tmp_path / "prepared")
    assert (schema.num_numeric, schema.num_categorical, schema.source["lines"]) == (0, 22, 4000)
    assert "banner_pos" in run_here(data_prep, "inspect", "prepared")

    run_here(app, "train", "--config", project / "configs" / "tiny.yaml", "--dataset", "prepared", "train.epochs=6")
    assert float(re.search(r"AUC +(0\.\d+)", run_here(app, "evaluate"))[1]) > 0.6

    step = max((tmp_path / "device_0" / "checkpoints").glob("step-*"))
    run_here(app, "checkpoint", "export-rows", step, "rows.parquet", "--table", "deep")
    rows = pq.read_table(tmp_path / "rows.parquet").to_pandas()
    assert set(rows[rows["field"] == "banner_pos"]["value"].dropna()) >= {"0", "1", "2"}
    assert "é/ü" in set(rows[rows["field"] == "C21"]["value"])
