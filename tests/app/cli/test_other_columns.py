"""A log with a list, a shared vocabulary, crosses, a weight and a user: from text to a trained model and its scores."""

import re

import numpy as np
import pyarrow.csv as pa_csv
import pytest
import yaml

from app.__main__ import main as app
from app.checkpoint.read import Checkpoint
from app.scoring.predictor import Predictor
from data_prep.__main__ import main as data_prep
from data_prep.prepared.schema import read_schema

DESCRIPTION = {
    "separator": ",",
    "header": True,
    "columns": {
        "clicked": "label", "count": "integer", "item": "string", "site": "string", "history": "list",
        "importance": "weight", "user": "id",
    },
    "lists": {"history": {"separator": "|", "max_length": 4, "pool": "mean"}},
    "shares": {"history": "item"},
}  # fmt: skip


@pytest.fixture
def dataset(tmp_path, project):
    """Prepared from 1,500 lines whose click depends on the item, the pair of item and site, and what was seen."""
    rng, lines = np.random.default_rng(1), [",".join(DESCRIPTION["columns"])]
    for _ in range(1_500):
        item, site = rng.integers(0, 8), rng.integers(0, 3)
        history = rng.integers(0, 8, rng.integers(0, 6))
        logit = 0.3 * (item - 4) + (item * 3 + site) % 5 - 2 + (0.5 * (history == item)).sum()
        cells = [int(rng.random() < 1 / (1 + np.exp(-logit))), rng.integers(0, 20), f"i{item}", f"s{site}"]
        cells += ["|".join(f"i{value}" for value in history), rng.choice(["0", "1", "2.5"]), f"u{rng.integers(0, 40)}"]
        lines.append(",".join(map(str, cells)))
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "log.yaml").write_text(yaml.safe_dump(DESCRIPTION, sort_keys=False))
    words = ["prepare", "log.csv", "prepared", "--config", str(project / "configs" / "tiny.yaml"), "--data", "log.yaml"]
    words += ["prepare.crosses=[[item,site],[history,item]]", "prepare.min_count=2", "prepare.workers=1"]
    return words


def test_from_text_to_scores(run_here, project, dataset, tmp_path):
    run_here(data_prep, *dataset)
    schema = read_schema(tmp_path / "prepared")
    fields = {field.name: field for field in schema.categorical}
    crosses = [field for field in schema.categorical if field.cross]
    assert [(field.name, field.max_length) for field in crosses] == [("item*site", 1), ("history*item", 4)]
    assert fields["history"].max_length == 4
    assert fields["history"].id_ranges == fields["item"].id_ranges
    train = ["train", "--config", project / "configs" / "tiny.yaml", "--dataset", "prepared", "train.batch_size=200"]
    train += ["eval.group_field=user"]
    run_here(app, *train, "train.epochs=2")
    whole = Checkpoint.open(max((tmp_path / "device_0" / "checkpoints").glob("step-*"))).state()
    for cross in crosses:
        crossed = np.concatenate([np.arange(*ids) for ids in (*cross.id_ranges, cross.oov_ids)])
        assert np.isin(whole.tables["wide"].row_ids, crossed).any()
        assert not np.isin(whole.tables["deep"].row_ids, crossed).any()

    evaluated = run_here(app, "evaluate")
    assert "(key " in evaluated
    printed = run_here(app, "export", "device_0", "bundle")
    assert float(re.search(r"logits differ by at most (\S+)", printed)[1]) <= 1e-5
    here = float(re.search(r"AUC (\S+), by the training code", printed)[1])
    assert here == pytest.approx(float(re.search(r"AUC +(\S+)", evaluated)[1]), abs=1e-5)
    run_here(app, "predict", "bundle", "log.csv", "scores.csv", "--workers", "1")
    scores = pa_csv.read_csv(tmp_path / "scores.csv")["score"].to_numpy()
    predictor, lines = Predictor.open(tmp_path / "bundle"), (tmp_path / "log.csv").read_text().splitlines()[1:]
    np.testing.assert_array_equal(scores.astype(np.float32), predictor.score(lines))
    assert {effect.field for effect in predictor.explain(lines[0])} == {"count", "item", "site", "history"}
    run_here(app, "baseline", "prepared")

    # A run that is resumed after its first epoch ends with the same bits.
    (tmp_path / "device_0").rename(tmp_path / "whole")
    run_here(app, *train, "train.epochs=1")
    run_here(app, *train, "train.epochs=2")
    resumed = Checkpoint.open(max((tmp_path / "device_0" / "checkpoints").glob("step-*"))).state()
    for name, array in whole.dense.items():
        np.testing.assert_array_equal(resumed.dense[name], array, name)
    for table, rows in whole.tables.items():
        np.testing.assert_array_equal(resumed.tables[table].row_ids, rows.row_ids)
        for name in rows.layout:
            np.testing.assert_array_equal(resumed.tables[table].read(name, slice(None)), rows.read(name, slice(None)))
