"""Columns that stand beside a row and are no field: weights, and keys of ids."""

import dataclasses
from fractions import Fraction

import numpy as np
import pyarrow.parquet as pq
import pytest

from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.data_files import whole_log
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import VOCABULARY_FILE, Split, read_schema
from data_prep.report import _over_time
from data_prep.statistics.statistics import read_statistics
from tests.prepared_folders import ALL_TRAINED

COLUMNS = {"click": "label", "user": "id", "w": "weight", "site": "string"}
OPTIONS = PrepareOptions(
    data=LogFormat(COLUMNS, ","), min_count=1, workers=1, shuffle_window_rows=5, max_reject_fraction=1, **ALL_TRAINED
)


def test_a_label_by_rule_and_rows_without_one(tmp_path, caplog):
    caplog.set_level("INFO")
    log_format = LogFormat({"site": "string", "rating": "label"}, ",", clicked=">= 4", label="optional")
    (tmp_path / "log.csv").write_text("a,5\nb,4.0\nc,3.99\nd,\ne,4e0\nf,five\ng,nan\n")
    options = dataclasses.replace(OPTIONS, data=log_format, vocabulary="hash", shuffle_window_rows=1)
    schema = prepare(tmp_path / "log.csv", tmp_path / "out", options)
    assert schema.source["rejected_by_reason"] == {"label": 2}
    (block,) = read_blocks(tmp_path / "out", read_schema(tmp_path / "out"), "train")
    assert (schema.weight, schema.splits["train"].clicks) == ("rating", 3)
    assert block.labels.tolist() == [1, 1, 0, 0, 1]
    assert block.weights.tolist() == [1, 1, 1, 0, 1]
    assert whole_log(read_schema(tmp_path / "out")) == Split(5, 3, (), unlabelled=1)
    assert "click rate 75.00 % of 4 rows, 1 more have no label" in caplog.text
    profile = read_statistics(tmp_path / "out")
    assert (profile.rows, profile.labelled, profile.clicks) == ((5,), (4,), (3,))
    (rate, *_) = _over_time(read_schema(tmp_path / "out"), profile)
    assert 0.75 in rate.drawing["lines"][0]["y"]


@pytest.mark.parametrize(("chunk_bytes", "label"), [(64, "optional"), (1 << 20, "optional"), (64, "required")])
def test_schema_names_the_mean_weight_of_rows_that_count(tmp_path, chunk_bytes, label):
    """Exactly, so that it does not depend on the chunks. Rows of weight 0 and without a label do not count."""
    rng = np.random.default_rng(1)
    weights = rng.choice(np.float32([0, 1e-12, 0.1, 3e9]), 300)
    labelled = (rng.random(300) < 0.9) | (label == "required")
    lines = [f"{'01'[i % 2] if labelled[i] else ''},u,{weight!r},s" for i, weight in enumerate(weights.tolist())]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    options = dataclasses.replace(OPTIONS, data=dataclasses.replace(OPTIONS.data, label=label))
    train = prepare(tmp_path / "log.csv", tmp_path / "out", options, chunk_bytes=chunk_bytes).splits["train"]
    counting = weights[labelled & (weights > 0)].tolist()
    assert (train.rows, train.num_counting) == (300, len(counting))
    assert train.mean_weight == float(sum(map(Fraction, counting)) / len(counting))
    if label == "required":  # rows of weight 0 have a label
        assert (train.unlabelled, train.click_rate) == (0, 0.5)


@pytest.mark.parametrize("vocabulary", ["counted", "hash"])
@pytest.mark.parametrize("transform", ["max", "standardize", "quantile"])
def test_rows_that_train_nothing_count_nowhere(tmp_path, vocabulary, transform):
    """The vocabulary and all statistics equal those of the log of the other rows alone."""
    rng = np.random.default_rng(1)
    columns = {"click": "label", "w": "weight", "n": "integer", "x": "float", "s": "string", "l": "list"}
    log_format = LogFormat(columns, ",", label="optional")
    options = dataclasses.replace(OPTIONS, data=log_format, vocabulary=vocabulary, numeric_transform=transform)
    options = dataclasses.replace(options, crosses=(("l", "s"),), shuffle_window_rows=100)
    mixed, counting = [], []
    for kind in rng.integers(4, size=300):  # 0: it counts, 1: no label, 2: weight 0, 3: weight 0 of a click
        label, weight = (rng.choice(["0", "1"]), "", "0", "1")[kind], "2" if kind < 2 else "0"
        integer, number = rng.choice(["", "1", "1000" * kind]), rng.normal() * (kind + 1)
        text, values = f"{rng.choice(['a', 'b'])}{kind}", "|".join(rng.choice(["p", f"r{kind}"], 1 + 29 * (kind == 1)))
        mixed.append(f"{label},{weight},{integer},{number},{text},{values}")
        counting += [] if kind else mixed[-1:]
    found = []
    for name, lines in {"mixed": mixed, "counting": counting}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join([*lines, ""]))
        schema, profile = prepare(tmp_path / f"{name}.csv", tmp_path / name, options), read_statistics(tmp_path / name)
        counts = profile.training_rows, profile.numeric, profile.categorical
        found.append((schema.numeric, schema.categorical, pq.read_table(tmp_path / name / VOCABULARY_FILE), *counts))
    assert found[0] == found[1]
    assert (schema.splits["train"].num_labelled, len(counting)) == (profile.training_rows,) * 2
    assert whole_log(read_schema(tmp_path / "mixed")).num_labelled == sum(line[0] != "," for line in mixed)


def test_a_log_of_rows_that_train_nothing_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text(",u,1,s\n1,u,0,s\n")
    options = dataclasses.replace(OPTIONS, data=dataclasses.replace(OPTIONS.data, label="optional"))
    with pytest.raises(ValueError, match="none of 2 lines is a training row with a label and a weight above 0; give"):
        prepare(tmp_path / "log.csv", tmp_path / "out", options)


def test_a_log_whose_labels_are_all_clicks_is_reported(tmp_path, caplog):
    log_format = LogFormat({"site": "string", "click": "label"}, ",", label="optional")
    (tmp_path / "log.csv").write_text("a,1\nb,\nc,1\nd,\n")
    prepare(tmp_path / "log.csv", tmp_path / "out", dataclasses.replace(OPTIONS, data=log_format))
    assert "2 of 2 training rows with a label are clicks: a model learns nothing from them" in caplog.text
