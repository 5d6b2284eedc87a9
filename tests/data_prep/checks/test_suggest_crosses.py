"""Suggested crosses: a planted pair is found, and chance is not taken for one."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from data_prep.__main__ import main
from data_prep.checks import suggest_crosses
from data_prep.checks.suggest_crosses import INVERSE_PENALTY, find_gains
from data_prep.options.log_format import ListForm, LogFormat, VectorForm
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.examples import concatenate
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import read_schema

ROWS = 5_000
COLUMNS = {"click": "label", "w": "weight", "A": "string", "B": "string", "C": "string", "L": "list"}


def prepared(folder, planted, **options):
    """A log of three fields with eight values each; where `planted`, clicks follow the parity of A and B together.

    Rows of weight 0 have other labels, which must not count.
    """
    generator = np.random.default_rng(1)
    values = generator.integers(8, size=(ROWS, 3))
    chance = np.where(values[:, :2].sum(axis=1) % 2, 0.5, 0.1) if planted else np.full(ROWS, 0.3)
    weights = generator.integers(3, size=ROWS)
    clicks = (generator.random(ROWS) < chance) | (weights == 0)
    rows = zip(clicks, weights, values, strict=True)
    lines = [f"{click:d},{weight},a{a},b{b},c{c},x|y" for click, weight, (a, b, c) in rows]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    made = PrepareOptions(data=LogFormat(COLUMNS, ","), workers=1, **{"min_count": 1, "valid_fraction": 0.1, **options})
    prepare(folder / "log.csv", folder / "prepared", made)
    return folder / "prepared"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("planted"), planted=True)


def test_a_planted_pair_is_suggested(planted, capsys):
    assert main(["suggest-crosses", str(planted), "--top", "2"]) == 0
    title, best, second, setting, _ = capsys.readouterr().out.splitlines()
    assert title.startswith("the best 2 of 6 pairs")
    assert best.split()[:3] == ["A", "*", "B"] and best.endswith("  helps")
    assert not second.endswith("helps")
    assert setting == "prepare again with: 'prepare.crosses=[[A,B]]'"


def test_a_pair_that_is_crossed_is_kept_and_not_suggested_again(tmp_path, capsys):
    folder = prepared(tmp_path, planted=True, crosses=(("C", "A"),))
    assert main(["suggest-crosses", str(folder)]) == 0
    title, best, *_, setting, _ = capsys.readouterr().out.splitlines()
    assert title.startswith("the best 5 of 5 pairs")
    assert best.split()[:3] == ["A", "*", "B"]
    assert setting == "prepare again with: 'prepare.crosses=[[C,A],[A,B]]'"
    (tmp_path / "plain").mkdir()
    folder = prepared(tmp_path / "plain", planted=False, crosses=(("C", "A"),))
    assert main(["suggest-crosses", str(folder)]) == 0
    assert capsys.readouterr().out.endswith("no further pair helps by more than chance: add none\n")


def features(rows, schema, *names):
    """Dense features [n, V] of the fields with these names, or of all. Values of an averaged list share 1."""
    hot, start = np.zeros((len(rows), schema.vocabulary_size)), 0
    for field in schema.categorical:
        ids, start = rows.ids[:, start : start + field.max_length], start + field.max_length
        share = 1 / np.maximum((ids >= 0).sum(axis=1), 1) if field.pool == "mean" else np.ones(len(rows))
        for column in ids.T if not names or field.name in names else ():
            np.add.at(hot, (np.flatnonzero(column >= 0), column[column >= 0]), share[column >= 0])
    return hot


def gain_by_hand(folder, one, other):
    """What Newton's step on the other half of train takes from the log loss of valid, with dense pairs of values."""
    schema = read_schema(folder)
    train, valid = (concatenate(list(read_blocks(folder, schema, split))) for split in ("train", "valid"))
    if train.weights is not None:
        train, valid = train.take(train.weights > 0), valid.take(valid.weights > 0)
    first, fitted = train.take(slice(len(train) // 2)), train.take(slice(len(train) // 2, None))
    model = LogisticRegression(C=INVERSE_PENALTY, max_iter=200).fit(
        features(first, schema), first.labels, first.weights
    )
    logits = [model.decision_function(features(rows, schema)) for rows in (fitted, valid)]
    pairs = [
        np.einsum("ni,nj->nij", features(rows, schema, one), features(rows, schema, other)).reshape(len(rows), -1)
        for rows in (fitted, valid)
    ]
    p, weights = 1 / (1 + np.exp(-logits[0])), np.ones(len(fitted)) if fitted.weights is None else fitted.weights
    curvature = (weights * p * (1 - p)) @ pairs[0] ** 2 + 1 / INVERSE_PENALTY
    moved = logits[1] + pairs[1] @ ((weights * (fitted.labels - p)) @ pairs[0] / curvature)
    losses = [np.logaddexp(0, at) - valid.labels * at for at in (logits[1], moved)]
    return np.average(losses[0] - losses[1], weights=valid.weights)


def test_the_gain_is_what_newton_s_step_on_the_other_half_takes_from_the_loss_of_valid(planted):
    best = find_gains(planted)[0]
    assert best.fields == ("A", "B")
    assert best.log_loss == pytest.approx(gain_by_hand(planted, "A", "B"), abs=1e-4)  # the solver's tolerance


@pytest.mark.parametrize("pool", ["mean", "sum"])
def test_a_cross_of_a_list_is_suggested_by_the_gain_of_its_pooled_pairs(tmp_path, capsys, pool):
    folder = prepared_with_lists(tmp_path, pool)
    assert main(["suggest-crosses", str(folder), "--top", "2"]) == 0
    _, best, second, setting, _ = capsys.readouterr().out.splitlines()
    assert best.split()[:3] == ["A", "*", "L"] and best.endswith("  helps") and not second.endswith("helps")
    assert setting == "prepare again with: 'prepare.crosses=[[A,L]]'"

    gains = {gain.fields: gain.log_loss for gain in find_gains(folder)}
    assert gains["A", "L"] == pytest.approx(gain_by_hand(folder, "A", "L"), abs=1e-4)
    assert {*gains} == {("A", "L"), ("A", "M"), ("L", "M")}


def prepared_with_lists(folder, pool):
    """Clicks follow the parity of A and of one value of L. M, a list as well, decides nothing."""
    generator, lines = np.random.default_rng(2), []
    for _ in range(4_000):
        one, lists = generator.integers(6), [generator.choice(6, generator.integers(1, 4), replace=False) for _ in "LM"]
        click = generator.random() < (0.7 if (one + lists[0][0]) % 2 else 0.1)
        texts = ("|".join(f"{name}{value}" for value in values) for name, values in zip("LM", lists, strict=True))
        lines.append(f"{click:d},a{one},{','.join(texts)}")
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    forms = {"L": ListForm(max_length=3, pool=pool), "M": ListForm(max_length=2, pool=pool)}
    data = LogFormat({"click": "label", "A": "string", "L": "list", "M": "list"}, ",", lists=forms)
    prepare(folder / "log.csv", folder / "prepared", PrepareOptions(data=data, workers=1, min_count=1))
    return folder / "prepared"


def test_more_pairs_of_a_row_than_are_held_in_memory_are_left_out(tmp_path, monkeypatch):
    folder = prepared_with_lists(tmp_path, "sum")
    whole = {gain.fields: gain.log_loss for gain in find_gains(folder)}
    monkeypatch.setattr("data_prep.checks.suggest_crosses.MOST_PAIRS", 1)
    cut = {gain.fields: gain.log_loss for gain in find_gains(folder)}
    assert cut["A", "L"] > 0 and cut["A", "L"] != whole["A", "L"]


def test_fewer_rows_of_wide_vectors_are_read(tmp_path, monkeypatch):
    random, width = np.random.default_rng(1), 4
    lines = [f"{c},{a},{b},{' '.join(map(str, v))}\n" for c, a, b, v in zip(
        random.integers(0, 2, ROWS), random.integers(0, 3, ROWS), random.integers(0, 3, ROWS),
        random.normal(size=(ROWS, width)), strict=True)]  # fmt: skip
    (tmp_path / "log.csv").write_text("".join(lines))
    columns = {"click": "label", "A": "string", "B": "string", "v": "vector"}
    log_format = LogFormat(columns, ",", vectors={"v": VectorForm(width)})
    prepare(tmp_path / "log.csv", tmp_path / "prepared", PrepareOptions(data=log_format, workers=1))
    folder, most = tmp_path / "prepared", 2000
    monkeypatch.setattr(suggest_crosses, "MAX_COMPONENTS", (width + 1) * most)
    half, _ = suggest_crosses._score(folder, read_schema(folder))
    assert 0 < len(half.labels) <= most // 2 < read_schema(folder).splits["train"].rows // 2


def test_chance_is_not_suggested(tmp_path, capsys):
    assert main(["suggest-crosses", str(prepared(tmp_path, planted=False))]) == 0
    assert capsys.readouterr().out.endswith("no pair helps by more than chance: leave crosses out\n")


def test_values_out_of_vocabulary_count_for_nothing(tmp_path):
    gains = find_gains(prepared(tmp_path, planted=True, min_count=ROWS))
    assert [(gain.log_loss, gain.is_certain) for gain in gains] == [(0, False)] * 6


def test_a_folder_without_valid_rows_is_refused(tmp_path, capsys):
    folder = prepared(tmp_path, planted=True, valid_fraction=0.0, test_fraction=0.2)
    assert main(["suggest-crosses", str(folder)]) == 2
    assert "has no rows in split 'valid'; crosses are fitted to train" in capsys.readouterr().err


def test_valid_rows_without_labels_are_refused(tmp_path, capsys):
    (tmp_path / "log.csv").write_text("".join(f"{n % 2 if n < 80 else ''},a{n % 3},b{n % 5}\n" for n in range(100)))
    data = LogFormat({"click": "label", "A": "string", "B": "string"}, ",", label="optional")
    made = PrepareOptions(data=data, workers=1, min_count=1, split="chronological")
    prepare(tmp_path / "log.csv", tmp_path / "prepared", made)
    assert main(["suggest-crosses", str(tmp_path / "prepared")]) == 2
    assert "has no row in split 'valid' with a weight above 0" in capsys.readouterr().err
