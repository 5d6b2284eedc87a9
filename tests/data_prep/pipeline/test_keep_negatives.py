"""A sample of the training rows without a click (`prepare.keep_negatives`), whose weights stand for all of them."""

import dataclasses

import numpy as np
import pytest

from data_prep.checks.inspect import inspect
from data_prep.options.log_format import LogFormat
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.pipeline.split_files import FileToWrite
from data_prep.prepared.examples import concatenate
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import read_schema
from data_prep.report import write_report
from data_prep.statistics.statistics import read_statistics
from tests.prepared_folders import contents, vocabulary_of

COLUMNS = {"click": "label", "w": "weight", "user": "id", "time": "timestamp", "site": "string", "n": "integer"}


def write_log(folder, num_rows=3_000, labels=("0", "0", "0", "0", "1", "")):
    """Write a log whose column n has the numbers of the rows, and return the label and weight of each row."""
    random = np.random.default_rng(1)
    labels = random.choice(labels, num_rows)
    weights = random.choice(["0", "0.5", "1", "3"], num_rows)
    rows = zip(labels, weights, random.integers(0, 50, num_rows), random.permutation(num_rows), strict=True)
    lines = [f"{c},{w},u{user},{time},s{user % 7},{row}" for row, (c, w, user, time) in enumerate(rows)]
    (folder / "log.csv").write_text("\n".join([*lines, ""]))
    return labels, weights.astype(np.float32)


def options_of(keep_negatives=1.0, without_weights=False, **others):
    columns = COLUMNS | ({"w": "ignored"} if without_weights else {})
    log_format = LogFormat(columns, ",", label="optional")
    options = PrepareOptions(data=log_format, min_count=1, workers=1, shuffle_window_rows=700, **others)
    return dataclasses.replace(options, keep_negatives=keep_negatives)


def rows_of(folder, split):
    """Return, of the rows of a split by their number in the log: labels, weights, ids, and keys of users."""
    rows = concatenate([*read_blocks(folder, read_schema(folder), split)])
    numbers = np.rint(np.expm1(rows.numeric[:, 0].astype(np.float64))).astype(int)
    order = np.argsort(numbers)
    weights = np.ones(len(rows), np.float32) if rows.weights is None else rows.weights
    return numbers[order], rows.labels[order], weights[order], rows.ids[order], rows.keys["user"][order]


@pytest.mark.parametrize("split", ["hash", "chronological", "stratified"])
@pytest.mark.parametrize("without_weights", [False, True])
def test_a_sample_of_the_training_negatives_is_kept(tmp_path, split, without_weights):
    """All other rows, the vocabulary and the statistics are those of the preparation of all rows."""
    labels, _ = write_log(tmp_path)
    for name, keep in {"all": 1.0, "sampled": 0.25}.items():
        prepare(tmp_path / "log.csv", tmp_path / name, options_of(keep, without_weights, split=split))
    whole, schema = read_schema(tmp_path / "all"), read_schema(tmp_path / "sampled")
    assert (whole.numeric, whole.categorical) == (schema.numeric, schema.categorical)
    assert vocabulary_of(tmp_path / "all") == vocabulary_of(tmp_path / "sampled")
    assert read_statistics(tmp_path / "all") == read_statistics(tmp_path / "sampled")
    for part in ("valid", "test"):
        for before, after in zip(rows_of(tmp_path / "all", part), rows_of(tmp_path / "sampled", part), strict=True):
            np.testing.assert_array_equal(before, after)
    numbers, *before = rows_of(tmp_path / "all", "train")
    kept, *after = rows_of(tmp_path / "sampled", "train")
    are_kept = np.isin(numbers, kept)
    assert are_kept[labels[numbers] != "0"].all()
    are_negatives = labels[numbers] == "0"
    share = are_kept[are_negatives].mean()
    assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / are_negatives.sum())
    before[1] *= np.where(are_negatives, np.float32(4), np.float32(1))
    for all_rows, sample in zip(before, after, strict=True):
        np.testing.assert_array_equal(all_rows[are_kept], sample)
    train = schema.splits["train"]
    counting = after[1] > 0
    assert (train.rows, train.clicks) == (len(kept), int(after[0].sum()))
    assert train.mean_weight == pytest.approx(after[1][counting].mean(dtype=np.float64))
    assert schema.sampled_share == pytest.approx(train.num_labelled / whole.splits["train"].num_labelled, rel=0.1)


def test_the_sample_is_independent_of_the_split_and_changes_with_the_seed(tmp_path):
    write_log(tmp_path, 20_000)
    found = []
    for name, how in {"a": {}, "b": {"train_fraction": 0.4, "valid_fraction": 0.5}, "c": {"seed": 2}}.items():
        prepare(tmp_path / "log.csv", tmp_path / name, options_of(0.5, **how))
        found.append(rows_of(tmp_path / name, "train")[0])
    share = {*found[1].tolist()} & {*found[0].tolist()}
    assert len(share) == len(found[1])  # The smaller training split has the same sample of its rows.
    assert {*found[2].tolist()} != {*found[0].tolist()}


def test_workers_chunks_and_a_crash_do_not_change_the_folder(tmp_path, monkeypatch):
    write_log(tmp_path)
    options = options_of(0.3)
    prepare(tmp_path / "log.csv", tmp_path / "one", options)
    four = dataclasses.replace(options, workers=4)
    prepare(tmp_path / "log.csv", tmp_path / "four", four, chunk_bytes=5_000)
    assert contents(tmp_path / "one") == contents(tmp_path / "four")
    with monkeypatch.context() as patch:
        patch.setattr(FileToWrite, "write", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(tmp_path / "log.csv", tmp_path / "resumed", options)
    prepare(tmp_path / "log.csv", tmp_path / "resumed", options)
    assert contents(tmp_path / "one") == contents(tmp_path / "resumed")


def test_keeping_all_negatives_is_the_default(tmp_path):
    write_log(tmp_path)
    assert options_of().keep_negatives == PrepareOptions().keep_negatives == 1
    assert "keep_negatives" not in prepare(tmp_path / "log.csv", tmp_path / "out", options_of()).options


def test_reports_say_how_many_rows_are_kept(tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    labels, _ = write_log(tmp_path, labels=("0", "0", "0", "1"))
    schema = prepare(tmp_path / "log.csv", tmp_path / "out", options_of(0.1, without_weights=True))
    num_training = len(labels) - schema.splits["valid"].rows - schema.splits["test"].rows
    kept = f"{schema.splits['train'].rows:,} of {num_training:,} training rows are kept: all clicks"
    inspect(tmp_path / "out")
    rate = np.mean(labels == "1")
    for text in (caplog.text, capsys.readouterr().out, write_report(tmp_path / "out").read_text()):
        assert f"{kept}, and of the rows without a click a sample of 0.1 (prepare.keep_negatives), each with 10" in text
    assert f"click rate {100 * rate:.2f} % of {len(labels):,} rows" in caplog.text


@pytest.mark.parametrize("value", ["0", "-0.1", "1.5", ".nan", ".inf", "few"])
def test_bad_fractions_are_refused(value):
    with pytest.raises(ValueError, match=r"keep_negatives.* must be (in \(0, 1\]|a number)"):
        read_options(None, [f"prepare.keep_negatives={value}"])


def test_zoo_layout_and_too_large_weights_are_refused(tmp_path):
    with pytest.raises(ValueError, match="layout zoo has no place for the weights that keep_negatives gives"):
        PrepareOptions(layout="zoo", keep_negatives=0.1)
    (tmp_path / "log.csv").write_text("1,1,u,1,s,1\n0,2e38,u,1,s,1\n")
    with pytest.raises(ValueError, match="multiplies the weights of negatives by 10, and one of the column w is then"):
        prepare(
            tmp_path / "log.csv", tmp_path / "out", options_of(0.1, train_fraction=1, valid_fraction=0, test_fraction=0)
        )
