"""Columns that stand beside a row and are no field: weights, and keys of ids."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from data_prep.encoding.from_values import mappings_to_chunk
from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.kernels.strings import Strings
from data_prep.options.format_checks import checked_format
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.data_files import whole_log
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import Split, read_schema
from data_prep.report.data_report import _over_time
from data_prep.statistics.statistics import read_statistics

COLUMNS = {"click": "label", "user": "id", "w": "weight", "site": "string"}
OPTIONS = PrepareOptions(
    data=LogFormat(COLUMNS, ","), min_count=1, workers=1, shuffle_window_rows=5, max_reject_fraction=1
)


def test_weights_and_keys_stay_with_their_rows_through_the_shuffle(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.options.prepare_options.BLOCK_ROWS", 3)
    lines = [f"{number % 2},user {number},{number}.5,site {number}" for number in range(40)]
    lines += ["1,u,-1,s", "1,u,nan,s", "1,u,,s", "1,u,1e39,s", "1,u,one,s"]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    schema = prepare(tmp_path / "log.csv", tmp_path / "out", OPTIONS)
    assert schema.source["rejected_by_reason"] == {"weight": 5}
    assert read_schema(tmp_path / "out") == schema
    assert (schema.weight, schema.keys) == ("w", ("user",))
    assert [field.name for field in schema.categorical] == ["site"]
    encoder = open_encoder(tmp_path / "out")
    seen = 0
    for split in schema.splits:
        for block in read_blocks(tmp_path / "out", schema, split):
            assert (block.weights.dtype, block.keys["user"].dtype) == (np.float32, np.int64)
            numbers = (block.weights - 0.5).astype(int)
            assert block.labels.tolist() == (numbers % 2).tolist()
            users = Strings.of([b"user %d" % number for number in numbers])
            assert block.keys["user"].tolist() == users.keys().view(np.int64).tolist()
            sites = mappings_to_chunk([{"site": f"site {number}"} for number in numbers], OPTIONS.data)
            if split == "train":
                assert encoder.encode(sites)[1].ids.tolist() == block.ids.tolist()
            seen += len(block)
    assert seen == 40


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({**COLUMNS, "v": "weight"}, "may have one of kind weight; found w, v"),
        ({**COLUMNS, "user id": "id"}, "needs a name of letters, digits and _; found 'user id'"),
    ],
)
def test_a_description_that_cannot_be_kept_is_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        checked_format(LogFormat(columns))


def test_the_zoos_layout_has_no_place_for_them():
    with pytest.raises(ValueError, match="no place for columns of kind weight or id; found user, w"):
        PrepareOptions(data=OPTIONS.data, layout="zoo")


def test_a_label_by_rule_and_rows_without_one(tmp_path, caplog):
    caplog.set_level("INFO")
    log_format = LogFormat({"site": "string", "rating": "label"}, ",", clicked=">= 4", label="optional")
    (tmp_path / "log.csv").write_text("a,5\nb,4.0\nc,3.99\nd,\ne,4e0\nf,five\ng,nan\n")
    options = PrepareOptions(data=log_format, train_fraction=1, valid_fraction=0, test_fraction=0, workers=1,
                             vocabulary="hash", shuffle_window_rows=1, max_reject_fraction=1)  # fmt: skip
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


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
def test_schema_names_the_mean_weight_of_rows_that_count(tmp_path, chunk_bytes):
    """Exactly, so that it does not depend on the chunks. Rows of weight 0 and without a label do not count."""
    rng = np.random.default_rng(1)
    weights, labelled = rng.choice(np.float32([0, 1e-12, 0.1, 3e9]), 300), rng.random(300) < 0.9
    lines = [f"{'01'[i % 2] if labelled[i] else ''},u,{weight!r},s" for i, weight in enumerate(weights.tolist())]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    log_format = dataclasses.replace(OPTIONS.data, label="optional")
    options = dataclasses.replace(OPTIONS, data=log_format, train_fraction=1, valid_fraction=0, test_fraction=0)
    train = prepare(tmp_path / "log.csv", tmp_path / "out", options, chunk_bytes=chunk_bytes).splits["train"]
    counting = weights[labelled & (weights > 0)].tolist()
    assert (train.rows, train.num_counting) == (300, len(counting))
    assert train.mean_weight == float(sum(map(Fraction, counting)) / len(counting))


def test_rows_of_weight_0_have_a_label(tmp_path):
    log_format = LogFormat({"w": "weight", "site": "string", "click": "label"}, ",")
    (tmp_path / "log.csv").write_text("0,a,0\n0,b,1\n2,c,0\n1,d,1\n")
    schema = prepare(tmp_path / "log.csv", tmp_path / "out", dataclasses.replace(OPTIONS, data=log_format))
    assert (whole_log(schema).unlabelled, whole_log(schema).click_rate) == (0, 0.5)


def test_a_log_whose_labels_are_all_clicks_is_reported(tmp_path, caplog):
    log_format = LogFormat({"site": "string", "click": "label"}, ",", label="optional")
    (tmp_path / "log.csv").write_text("a,1\nb,\nc,1\nd,\n")
    fractions = {"train_fraction": 1, "valid_fraction": 0, "test_fraction": 0}
    prepare(tmp_path / "log.csv", tmp_path / "out", dataclasses.replace(OPTIONS, data=log_format, **fractions))
    assert "2 of 2 training rows with a label are clicks: a model learns nothing from them" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clicked": ">= four"}, "a rule for numbers such as"),
        ({"clicked": ">= 4", "not_clicked": ("no",)}, "so not_clicked must be left out"),
    ],
)
def test_a_rule_that_is_none_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        checked_format(LogFormat({"site": "string", "rating": "label"}, **settings))
