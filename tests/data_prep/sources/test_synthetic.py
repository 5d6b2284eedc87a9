"""The synthetic log: its form, its sameness, the published shape, and the truth beside it."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from common.files import FolderInUse
from data_prep.checks.pre_check import pre_check
from data_prep.options.options_file import read_options
from data_prep.prepared.truth import area_under_curve, best_possible, read_truth, truth_path
from data_prep.sources import synthetic
from data_prep.sources.shape import (
    CATEGORICAL_NAMES,
    FACTS_FILE,
    PART_SHARES,
    SHOCK_DAY,
    Drift,
    expected_auc,
    load_shape,
    sigmoid,
    solve_scale_and_bias,
)
from data_prep.sources.synthetic import BLOCK_ROWS, block_text, draw_block, synthesize, synthetic_log, value_codes

FACTS = json.loads(FACTS_FILE.read_text(encoding="utf-8"))
SAMPLE_ROWS = 137_139  # as many as the published sample has


@pytest.fixture(scope="module")
def log():
    return synthetic_log(seed=7)


@pytest.fixture(scope="module")
def sample(log):
    """Numbers, their missing mask, ranks and labels of as many rows as the published sample has."""
    blocks = [draw_block(log, index) for index in range(-(-SAMPLE_ROWS // BLOCK_ROWS))]
    names = ("numbers", "number_missing", "values", "label", "probability")
    return {
        name: np.concatenate([np.atleast_2d(getattr(block, name)) for block in blocks], axis=1)[:, :SAMPLE_ROWS]
        for name in names
    }


@pytest.fixture(scope="module")
def small_log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "train.txt"
    return synthesize(path, rows=BLOCK_ROWS + 1000, seed=3, workers=1)


def test_text_says_what_was_drawn(log):
    block = draw_block(log, 0)
    rows = [line.split("\t") for line in block_text(block, slice(200)).decode().splitlines()]
    for row in range(200):
        missing = np.concatenate([block.number_missing[:, row], block.values[:, row] < 0])
        codes = [f"{value_codes(field, block.values[field, row : row + 1])[0]:08x}" for field in range(26)]
        cells = [*map(str, block.numbers[:, row]), *codes]
        expected = ["" if gone else cell for cell, gone in zip(cells, missing, strict=True)]
        assert rows[row] == [str(block.label[row]), *expected]


def test_bytes_depend_neither_on_workers_nor_on_packing(small_log, tmp_path):
    synthetic.planted_clicks.cache_clear()  # nor on when the model is solved
    again = synthesize(tmp_path / "again.txt.gz", rows=small_log.rows, seed=3, workers=2)
    assert gzip.decompress(again.log_path.read_bytes()) == small_log.log_path.read_bytes()
    assert again.truth_path.name == "again.txt.gz.truth.parquet"
    assert again.truth_path.read_bytes() == small_log.truth_path.read_bytes()
    assert again.clicks == small_log.clicks


@pytest.mark.parametrize("seed", [3, 4])
def test_a_shorter_log_is_the_start_of_a_longer_one(small_log, tmp_path, seed):
    short = synthesize(tmp_path / "short.txt", rows=BLOCK_ROWS - 5, seed=seed, workers=1).log_path.read_bytes()
    assert small_log.log_path.read_bytes().startswith(short) == (seed == 3)


def test_truth_lies_beside_every_row_and_is_read(small_log):
    truth = pq.read_table(small_log.truth_path)
    labels = [int(line[:1]) for line in small_log.log_path.read_bytes().splitlines()]
    assert truth["row_number"].to_pylist() == list(range(small_log.rows))
    assert truth["label"].to_pylist() == labels
    assert sum(labels) == small_log.clicks
    asked = np.array([BLOCK_ROWS + 3, 5, BLOCK_ROWS - 1, 5, BLOCK_ROWS])
    probability, label = read_truth(small_log.truth_path, asked)
    assert probability.tolist() == truth["probability"].to_numpy()[asked].tolist()
    assert label.tolist() == truth["label"].to_numpy()[asked].tolist()


def test_read_truth_refuses_rows_that_are_not_there(small_log, tmp_path):
    with pytest.raises(ValueError, match=r"asked for row 33,768"):
        read_truth(small_log.truth_path, np.array([0, small_log.rows]))
    with pytest.raises(ValueError, match=r"asked for row -1"):
        read_truth(small_log.truth_path, np.array([-1]))
    with pytest.raises(FileNotFoundError, match="synthesize"):
        read_truth(truth_path(tmp_path / "real.txt"), np.array([0]))


def test_best_possible_is_scikit_learns(small_log):
    asked = np.arange(0, small_log.rows, 3)
    probability, label = read_truth(small_log.truth_path, asked)
    best = best_possible(small_log.truth_path, asked)
    assert best.rows == len(asked)
    assert best.auc == pytest.approx(roc_auc_score(label, probability), abs=1e-12)
    assert best.log_loss == pytest.approx(log_loss(label, probability), abs=1e-12)


def test_expected_auc_is_the_mean_over_labels():
    probability = np.sort(np.random.default_rng(0).uniform(size=200))
    draws = np.random.default_rng(1).uniform(size=(400, 200)) < probability
    mean = np.mean([area_under_curve(probability, labels.astype(np.int8)) for labels in draws])
    assert expected_auc(probability) == pytest.approx(mean, abs=0.005)  # 400 draws: about 0.0015 of error


def test_scale_and_bias_meet_click_rate_and_auc():
    scores = np.random.default_rng(0).normal(size=5000)
    scale, bias = solve_scale_and_bias(scores, click_rate=0.3, best_auc=0.8)
    probability = np.sort(sigmoid(scale * scores + bias))
    assert probability.mean() == pytest.approx(0.3, abs=1e-6)
    assert expected_auc(probability) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 11])
def test_click_rate_and_best_auc_are_the_promised_ones(seed):
    block = draw_block(synthetic_log(seed), 0)
    # 32,768 rows: the click rate's standard error is 0.0024, the AUC's 0.0026.
    assert block.label.mean() == pytest.approx(0.2562, abs=0.01)
    assert 0.80 < area_under_curve(block.probability, block.label) < 0.82


def test_values_are_unique_codes():
    ranks = np.arange(-1, 1_000_000)
    assert len(np.unique(value_codes(2, ranks))) == len(ranks)
    assert not np.array_equal(value_codes(2, ranks[:10]), value_codes(3, ranks[:10]))


def test_missing_shares_and_fields_missing_together(sample):
    missing = np.concatenate([sample["number_missing"], sample["values"] < 0])
    published = np.array(FACTS["integer"]["missing_percent"] + FACTS["categorical"]["missing_percent"])
    assert missing.mean(axis=1) * 100 == pytest.approx(published, abs=0.6)  # four standard errors at 44 %
    names = [f"I{i}" for i in range(1, 14)] + CATEGORICAL_NAMES
    for group in FACTS["missing_together"]:
        first, *others = (missing[names.index(name)] for name in group)
        assert all(np.array_equal(first, other) for other in others)


def test_distinct_values_and_top_shares(sample):
    for field, name in enumerate(CATEGORICAL_NAMES):
        ranks = sample["values"][field]
        values, counts = np.unique(ranks[ranks >= 0], return_counts=True)
        published = FACTS["categorical"]["distinct_in_137139_rows"][field]
        # The curve through all published counts is within 11 % of this one; a few values matter in small fields.
        assert len(values) == pytest.approx(published, rel=0.12, abs=2), name
        top = FACTS["categorical"]["top_value_percent"][field]
        assert 100 * counts.max() / SAMPLE_ROWS == pytest.approx(top, abs=0.6), name


def test_new_values_arrive_late_as_in_the_real_log(sample):
    first = SAMPLE_ROWS * 6 // 7
    for name, published in FACTS["unseen_in_last_seventh_given_first_six_percent"].items():
        ranks = sample["values"][CATEGORICAL_NAMES.index(name)]
        late = ranks[first:][ranks[first:] >= 0]
        unseen = 100 * (~np.isin(late, ranks[:first])).mean()
        assert unseen == pytest.approx(published, abs=2.5), name


def test_vocabulary_of_the_whole_log():
    """Expected distinct values of 45.8 M rows, which no test can draw."""
    for field, shape in enumerate(load_shape().values):
        values = np.diff(shape.edges)
        expected = (values * -np.expm1(-FACTS["rows"] * shape.share_of_bin)).sum()
        has_missing = FACTS["categorical"]["missing_percent"][field] > 0
        published = FACTS["categorical"]["cardinality_including_missing"][field] - has_missing
        assert expected == pytest.approx(published, rel=0.05, abs=2.5), CATEGORICAL_NAMES[field]


def test_quantiles_and_extremes_of_numbers(sample):
    integer = FACTS["integer"]
    for field, published in enumerate(integer["quantiles_1_25_50_75_99"]):
        numbers = sample["numbers"][field][~sample["number_missing"][field]]
        quantiles = np.quantile(numbers, [0.01, 0.25, 0.5, 0.75, 0.99])
        assert quantiles == pytest.approx(np.array(published), rel=0.12, abs=1), f"I{field + 1}"
        assert integer["min"][field] <= numbers.min()
        assert numbers.max() <= integer["max"][field]
        # The largest of 0.3 % of the rows lies between the last quantile and the maximum of all.
        assert numbers.max() > published[-1]
    assert sample["numbers"][1].min() in (-2, -3)


def test_extremes_are_met_once_in_the_whole_log():
    for field, shape in enumerate(load_shape().numbers):
        edge = 1 / FACTS["rows"]
        drawn = shape.draw(np.array([0.0, edge, 1 - edge, np.nextafter(1, 0)]))
        low, high = FACTS["integer"]["min"][field], FACTS["integer"]["max"][field]
        assert drawn.tolist() == [low, low, high, high], f"I{field + 1}"


def test_parts_have_their_shares_of_the_variance(log):
    parts = draw_block(log, 5).logit_parts
    share = parts.var(axis=1) / parts.sum(axis=0).var()
    assert share == pytest.approx(np.array(list(PART_SHARES.values())), abs=0.03)


def test_effects_belong_to_values_not_to_rows(log):
    ranks = np.array([5, 5, 90_000_000, 5])
    effects = log.planted.value_effects(2, ranks, log.shape.values[2].share(ranks))
    assert effects[0] == effects[1] == effects[3] != effects[2]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rows": 0}, ValueError, "rows: expected 1 or more, found 0"),
        ({"rows": -3}, ValueError, "rows: expected 1 or more, found -3"),
        ({"seed": -1}, ValueError, "the seed must be from 0 to 2**62 - 1, found -1"),
        ({"part_rows": 0}, ValueError, "rows a part: expected 1 or more, found 0"),
        ({"drift": Drift(0, 0)}, ValueError, "rows a day: expected 1 or more, found 0"),
        (
            {"rows": 1801, "drift": Drift(0, 10)},
            ValueError,
            "1,801 rows are more than 180 days of 10; give more rows a day",
        ),
        ({"workers": 0}, ValueError, "at least 1 worker is needed, asked for 0"),
        (
            {"output": "none/a.txt"},
            FileNotFoundError,
            "cannot write none/a.txt: there is no folder none; make it first",
        ),
        ({"output": "."}, IsADirectoryError, "cannot write .: it is a folder; name a file, such as train.txt"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, monkeypatch, changes, error, message):
    monkeypatch.chdir(tmp_path)
    arguments = {"output": "train.txt", "rows": 10, **changes}
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        synthesize(Path(arguments.pop("output")), **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(synthetic, "block_text", fail)
    with pytest.raises(OSError, match="No space left"):
        synthesize(tmp_path / "train.txt", rows=10, workers=1)
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_do_not_mix(tmp_path, monkeypatch):
    path, made = tmp_path / "train.txt", synthetic.block_text

    def with_another(*arguments):
        monkeypatch.setattr(synthetic, "block_text", made)
        with pytest.raises(FolderInUse, match=r"another process writes .*train\.txt\.tmp; wait for its end"):
            synthesize(path, rows=20, seed=4, workers=1)
        return made(*arguments)

    monkeypatch.setattr(synthetic, "block_text", with_another)
    synthesize(path, rows=10, seed=3, workers=1)
    assert path.read_bytes() == synthesize(tmp_path / "alone.txt", rows=10, seed=3, workers=1).log_path.read_bytes()
    assert sorted(each.name for each in tmp_path.glob("train*")) == ["train.txt", "train.txt.truth.parquet"]


def test_what_a_killed_process_left_is_written_over(tmp_path):
    (tmp_path / "train.txt.tmp").write_text("half a li")
    synthesize(tmp_path / "train.txt", rows=10, workers=1)
    assert (tmp_path / "train.txt").read_text().count("\n") == 10
    assert not (tmp_path / "train.txt.tmp").exists()


@pytest.fixture(scope="module")
def drifting():
    """A log of a block a day."""
    return synthetic_log(7, Drift(7, BLOCK_ROWS))


@pytest.fixture(scope="module")
def days(drifting):
    return {day: draw_block(drifting, day) for day in (0, 1, 8, SHOCK_DAY - 1, SHOCK_DAY)}


def test_parts_are_the_log_in_pieces(tmp_path):
    drift, rows = Drift(3, 20_000), BLOCK_ROWS + 12_000
    whole = synthesize(tmp_path / "log.txt", rows, seed=3, workers=1, drift=drift)
    parts = synthesize(tmp_path / "parts", rows, seed=3, workers=2, drift=drift, part_rows=15_000)
    paths = sorted(parts.log_path.glob("*.txt"))
    assert [path.name for path in paths] == ["part-00000.txt", "part-00001.txt", "part-00002.txt"]
    assert b"".join(path.read_bytes() for path in paths) == whole.log_path.read_bytes()
    truths = [pq.read_table(truth_path(path)) for path in paths]
    assert [truth["row_number"].to_pylist() for truth in truths] == [list(range(len(truth))) for truth in truths]
    probability = np.concatenate([truth["probability"].to_numpy() for truth in truths])
    assert probability.tolist() == pq.read_table(whole.truth_path)["probability"].to_pylist()
    assert parts.clicks == whole.clicks


def test_a_block_is_drawn_once_for_all_its_parts(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(synthetic, "draw_block", lambda log, block: drawn.append(block) or draw_block(log, block))
    synthesize(tmp_path / "parts", BLOCK_ROWS + 8, workers=1, part_rows=10_000)
    assert drawn == [0, 1]


def test_parts_in_a_folder_named_like_a_compressed_file_are_text(tmp_path):
    parts = synthesize(tmp_path / "parts.gz", 20, workers=1, part_rows=10)
    assert [len(path.read_text().splitlines()) for path in sorted(parts.log_path.glob("*.txt"))] == [10, 10]


def test_parts_are_not_written_beside_other_files(tmp_path):
    (tmp_path / "old.txt").touch()
    with pytest.raises(FileExistsError, match="it is there and no empty folder; name another one"):
        synthesize(tmp_path, 10, part_rows=5)


def test_a_drifting_log_has_times_that_follow_the_sun(days):
    for day, block in days.items():
        seconds = block.times - block.times[0] // 86400 * 86400
        assert block.times[0] == 1388534400 + 86400 * day and (np.diff(block.times) >= 0).all()
        by_quarter = np.bincount(seconds // 21600, minlength=4) / BLOCK_ROWS
        assert by_quarter[1:3].min() > 0.3 > 0.2 > by_quarter[[0, 3]].max()
        text = block_text(block, slice(5, 7)).decode().splitlines()
        assert [line.split("\t")[-1] for line in text] == [str(time) for time in block.times[5:7]]


def test_values_are_born_and_die_and_share_no_code(drifting, days):
    for field in range(26):
        values = [block.values[field][block.values[field] >= 0] for block in days.values()]
        num_ranks = int(drifting.shape.values[field].edges[-1])
        distinct = np.unique(np.concatenate(values))
        assert len(np.unique(value_codes(field, distinct))) == len(distinct)
        for of_day in values:  # a life is longer than a day, so a rank has two values in it at most
            assert np.unique(np.unique(of_day) % num_ranks, return_counts=True)[1].max() <= 2
    first_numbers = np.array([[of_field.edges[-1]] for of_field in drifting.shape.values])
    is_new = [(block.values >= first_numbers).mean() for block in days.values()]
    assert is_new == sorted(is_new) and is_new[0] < 0.05 < 0.1 < is_new[-1] < 0.3


def test_effects_walk_slowly_and_two_fields_are_shocked(drifting):
    field, shocked = 2, 8
    values = np.arange(20_000)
    key = np.array([5], np.uint64)

    def at(day, of_field=field):
        return drifting.drift.effects(of_field, key, values, np.full(len(values), float(day)))

    def likeness(first, second):
        return np.corrcoef(first, second)[0, 1]

    for day in (0, 3.7, 100):
        assert at(day).mean() == pytest.approx(0, abs=0.03) and at(day).std() == pytest.approx(1, abs=0.02)
    assert likeness(at(0), at(0.1)) > 0.999
    fading = [likeness(at(0), at(day)) for day in (0.5, 2, 6, 40)]
    assert fading == sorted(fading, reverse=True) and fading[-1] == pytest.approx(0.7, abs=0.03)
    just_before = np.nextafter(SHOCK_DAY, 0)
    assert likeness(at(just_before), at(SHOCK_DAY)) > 0.999
    assert likeness(at(just_before, shocked), at(SHOCK_DAY, shocked)) == pytest.approx(0, abs=0.03)


def test_a_drifting_log_is_as_hard_as_one_that_does_not(days):
    for block in days.values():
        assert 0.1 < block.label.mean() < 0.4
        assert 0.79 < area_under_curve(block.probability, block.label) < 0.84


def test_the_description_of_a_drifting_log_goes_with_it(tmp_path):
    log = synthesize(tmp_path / "log.txt", 3000, seed=3, workers=1, drift=Drift(3, 1000)).log_path
    findings = pre_check([str(log)], 3000, read_options(None, [], Path("configs/data/drift.yaml")).data)
    assert not any(each.is_wrong for each in findings)
