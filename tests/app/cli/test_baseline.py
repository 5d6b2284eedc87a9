"""Logistic regression as a command, on a synthetic log of a few thousand rows."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from app.__main__ import main
from app.api import describe, prepare
from app.cli import baseline
from app.config.config import Config, TrainOptions
from app.evaluation.score_bins import sigmoid
from app.run.claim import open_run
from common import settings
from data_prep.prepared.examples import Examples, concatenate
from data_prep.prepared.features import NUMERIC_SCALE, one_hot
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import CategoricalField


def rows_of(folder, schema, split):
    return concatenate(list(read_blocks(folder, schema, split)))


def test_features_are_scaled_numbers_and_one_hot_ids(tiny_dataset, tiny_schema):
    rows = rows_of(tiny_dataset, tiny_schema, "test")
    features, labels, _ = baseline.read_features(tiny_dataset, tiny_schema, "test")
    num_numeric = tiny_schema.num_numeric
    assert features.shape == (len(rows), num_numeric + tiny_schema.vocabulary_size)
    assert np.array_equal(labels, rows.labels)
    dense = features[:50].toarray()
    assert dense[:, :num_numeric] == pytest.approx(rows.numeric[:50] * NUMERIC_SCALE)
    for row, ids in zip(dense[:, num_numeric:], rows.ids[:50], strict=True):
        assert set(np.flatnonzero(row)) == set(ids)


def test_at_most_so_many_rows_are_read_from_all_over_the_split(tiny_dataset, tiny_schema):
    rows = tiny_schema.splits["train"].rows
    some, labels, _ = baseline.read_features(tiny_dataset, tiny_schema, "train", max_rows=500)
    assert some.shape[0] == len(labels) <= 500 < rows
    assert baseline.read_features(tiny_dataset, tiny_schema, "train", max_rows=rows)[0].shape[0] == rows
    assert baseline.read_features(tiny_dataset, tiny_schema, "train", max_rows=1)[0].shape[0] > 0


def test_the_table_has_the_metrics_of_scikit_learn(tiny_dataset, tiny_schema, capsys):
    assert main(["baseline", str(tiny_dataset), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    features, labels, _ = baseline.read_features(tiny_dataset, tiny_schema, "train")
    test, clicks, _ = baseline.read_features(tiny_dataset, tiny_schema, "test")
    model = LogisticRegression(C=found["inverse_penalty"], max_iter=1000, tol=1e-6).fit(features, labels)
    probabilities = model.predict_proba(test)[:, 1].astype(np.float64)
    assert found["train_rows"] == len(labels) and found["rows"] == len(clicks)
    assert found["auc"] == pytest.approx(roc_auc_score(clicks, probabilities), abs=1e-3)  # the solver's tolerance
    assert found["log_loss"] == pytest.approx(log_loss(clicks, probabilities), abs=3e-4)
    assert main(["baseline", str(tiny_dataset)]) == 0
    head, _, regression, best = capsys.readouterr().out.splitlines()
    assert head.startswith(f"test: {len(clicks):,} rows, click rate 0.")
    assert regression.split()[-3:-1] == [f"{found['auc']:.6f}", f"{found['log_loss']:.6f}"]
    assert best.startswith("  best possible") and best.endswith("–")


@pytest.mark.parametrize(("pool", "weight"), [("mean", 1 / 3), ("sum", 1.0)])
def test_the_values_of_a_list_count_as_the_model_pools_them(tiny_schema, pool, weight):
    fields = (CategoricalField("C1", (0, 1), ((1, 5),)), CategoricalField("g", (5, 6), ((6, 9),), (), 4, pool))
    schema = dataclasses.replace(tiny_schema, numeric=(), categorical=fields, vocabulary_size=9)
    ids = np.array([[1, 6, 8, 6, -1], [4, 7, -1, -1, -1]], np.int32)
    dense = one_hot(Examples(ids, np.empty((2, 0), np.float32), np.zeros(2, np.float32)), schema).toarray()
    assert dense[0, [1, 6, 8]] == pytest.approx([1, 2 * weight, weight])
    assert np.flatnonzero(dense[1]).tolist() == [4, 7] and dense[1, 7] == 1


def made_rows(num_rows, effect, rng):
    """Return features and labels: one-hot values, mostly rare, whose effects on the label have this size."""
    ids = np.minimum(rng.zipf(1.3, (num_rows, 3)), 300) - 1 + 300 * np.arange(3)
    starts = np.arange(0, 3 * num_rows + 1, 3)
    features = sparse.csr_matrix((np.ones(ids.size, np.float32), ids.reshape(-1), starts), shape=(num_rows, 900))
    logits = effect * rng.normal(size=900)[ids].sum(1)
    return features, (rng.random(num_rows) < sigmoid(logits)).astype(np.float32)


@pytest.mark.parametrize(("inverse_penalty", "weighted"), [(0.01, True), (1.0, False), (30.0, True)])
def test_fit_minimizes_the_objective(inverse_penalty, weighted):
    rng = np.random.default_rng(1)
    features, labels = made_rows(4000, 1.0, rng)
    weights = rng.integers(1, 9, len(labels)).astype(np.float32) if weighted else None
    model = LogisticRegression(C=inverse_penalty, max_iter=5000, tol=1e-8).fit(features, labels, weights)
    fitted = baseline.Solver(features, labels, weights).fit(inverse_penalty)

    def objective(logits, weights_of_values):
        losses = np.logaddexp(0, logits) - labels * logits
        return np.average(losses, weights=weights) + np.square(weights_of_values).sum() / (2 * inverse_penalty * total)

    total = len(labels) if weights is None else weights.sum()
    least = objective(model.decision_function(features), model.coef_)
    assert least - 1e-6 < objective(fitted.logits(features), fitted.weights) < least + 2e-4


@pytest.mark.parametrize(("effect", "least", "most"), [(0.02, 1e-4, 1e-2), (3.0, 0.3, 1e2)])
def test_the_penalty_is_sought_until_it_gets_worse(effect, least, most, tiny_schema, monkeypatch):
    rng = np.random.default_rng(2)
    features, labels = made_rows(12_000, effect, rng)
    monkeypatch.setattr(baseline, "read_features", lambda *_: (features[:8000], labels[:8000], None))

    def evaluate(fitted, *_):
        return SimpleNamespace(log_loss=log_loss(labels[8000:], sigmoid(fitted.logits(features[8000:]))))

    monkeypatch.setattr(baseline, "evaluate", evaluate)
    found = baseline.fit("", tiny_schema).inverse_penalty
    assert least <= found <= most
    tried = 10.0 ** np.arange(-4, 2.5, 0.5)
    losses = [evaluate(baseline.Solver(features[:8000], labels[:8000], None).fit(c)).log_loss for c in tried]
    assert found == pytest.approx(tried[np.argmin(losses)])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--max-rows", "0"], "--max-rows must be 1 or more, found 0"),
        (["--split", "tests"], "has no rows in split 'tests'; the splits with rows: train, valid, test"),
        (["--run", "nowhere"], "no run in nowhere"),
    ],
)
def test_wrong_input_ends_with_status_2_before_the_fit(tiny_dataset, words, reason, caplog):
    assert main(["baseline", str(tiny_dataset), *words]) == 2
    assert reason in caplog.text


def test_one_class_is_refused(tiny_dataset, tiny_schema, monkeypatch):
    monkeypatch.setattr(baseline, "read_features", lambda *_: (None, np.zeros(10), None))
    with pytest.raises(ValueError, match=r"the 10 training rows of .* have one class only"):
        baseline.fit(tiny_dataset, tiny_schema)


@pytest.fixture
def crossed(tiny_schema, monkeypatch):
    """Return a function that gives the schema of two fields and their cross. Its rows are read from then on.

    Clicks follow the fields, and the cross as far as `effect` says. Half of the rows are those of `train`.
    """

    def make(effect, weighted=False, num_rows=12_000):
        rng = np.random.default_rng(4)
        first, fields = tiny_schema.num_numeric, []
        for name, size, of in (("A", 30, ()), ("B", 20, ()), ("A*B", 600, ("A", "B"))):
            fields.append(CategoricalField(name, (first, first), ((first, first + size),), cross=of))
            first += size
        splits = {
            name: dataclasses.replace(tiny_schema.splits[name], rows=num_rows // 2) for name in ("train", "valid")
        }
        schema = dataclasses.replace(tiny_schema, categorical=tuple(fields), vocabulary_size=first, splits=splits)
        a, b = rng.integers(30, size=num_rows), rng.integers(20, size=num_rows)
        columns = 2 * schema.num_numeric + np.stack([a, 30 + b, 50 + 20 * a + b], axis=1)  # after those of numbers
        shape = (num_rows, schema.num_numeric + first)
        starts = np.arange(0, columns.size + 1, 3)
        features = sparse.csr_matrix((np.ones(columns.size, np.float32), columns.reshape(-1), starts), shape)
        logits = rng.normal(size=30)[a] + rng.normal(size=20)[b] + effect * rng.normal(size=600)[20 * a + b]
        labels = (rng.random(num_rows) < sigmoid(logits)).astype(np.float32)
        weights = rng.integers(1, 5, num_rows).astype(np.float32) if weighted else None

        def read_features(folder, schema, split, max_rows=None):
            rows = slice(num_rows // 2) if split == "train" else slice(num_rows // 2, None)
            return features[rows], labels[rows], None if weights is None else weights[rows]

        monkeypatch.setattr(baseline, "read_features", read_features)
        monkeypatch.setattr(baseline, "check_files", lambda *_: None)
        return schema

    return make


def best_of_scikit_learn(num_columns, split_of):
    """Return mean loss and logits of valid rows by the fit with the best of the penalties that are tried, and its C."""
    (features, labels, weights), (valid, valid_labels, of_valid) = split_of("train"), split_of("valid")
    tried = []
    for c in 10.0 ** np.arange(-2, 1, 0.5):
        model = LogisticRegression(C=c, max_iter=500, tol=1e-4).fit(features[:, :num_columns], labels, weights)
        logits = model.decision_function(valid[:, :num_columns])
        tried.append((log_loss(valid_labels, sigmoid(logits), sample_weight=of_valid), logits, c))
    return min(tried, key=lambda one: one[0])


@pytest.mark.parametrize(
    ("effect", "weighted", "is_large"), [(0.0, False, False), (0.2, True, False), (1.0, True, True)]
)
def test_the_gain_of_crosses_is_large_where_clicks_follow_them(crossed, effect, weighted, is_large):
    schema = crossed(effect, weighted)
    gain = baseline.crosses_gain("", schema)
    assert gain.effects in (("slight", "weak", "strong") if is_large else ("none",))
    assert str(gain).endswith("in more epochs (train.auto)") is is_large and f" by {gain.auc:+.4f}, " in str(gain)

    def split_of(name):
        return baseline.read_features("", schema, name)

    _, labels, weights = split_of("valid")
    num_columns = split_of("valid")[0].shape[1]
    (loss, logits, c), (plain_loss, plain, _) = (
        best_of_scikit_learn(n, split_of) for n in (num_columns, num_columns - 600)
    )
    aucs = [roc_auc_score(labels, values, sample_weight=weights) for values in (logits, plain)]
    assert gain.auc == pytest.approx(aucs[0] - aucs[1], abs=3e-3)  # the solver's tolerance
    assert gain.log_loss == pytest.approx(plain_loss - loss, abs=1e-3)
    assert 0 < gain.error < 0.01
    assert 0.3 < gain.inverse_penalty / c < 3.3  # one step, as losses of neighbours are close


def test_a_gain_within_its_error_is_not_large():
    assert baseline.CrossesGain(0.02, 0.02, 0.009, 1.0).effects == "strong"
    assert baseline.CrossesGain(0.02, 0.02, 0.009, 0.3).effects == "weak"
    assert baseline.CrossesGain(0.02, 0.02, 0.011, 1.0).effects == "none"  # of a few valid rows
    assert baseline.CrossesGain(0.007, 0.02, 0.001, 1.0).effects == "none"
    assert baseline.CrossesGain(0.008, 0.02, 0.001, 1.0).effects == "slight"
    assert baseline.CrossesGain(0.008, 0.02, 0.011, 1.0).effects == "none"


@pytest.mark.parametrize("without", ["crosses", "valid rows", "two classes", "a small vocabulary", "few rows"])
def test_no_gain_is_measured_without(without, crossed, monkeypatch):
    schema = crossed(1.0)
    assert baseline.crosses_gain("", schema) is not None
    if without == "crosses":
        schema = dataclasses.replace(schema, categorical=schema.categorical[:2])
    elif without == "valid rows":
        empty = dataclasses.replace(schema.splits["valid"], rows=0)
        schema = dataclasses.replace(schema, splits={**schema.splits, "valid": empty})
    elif without == "two classes":
        read = baseline.read_features
        monkeypatch.setattr(baseline, "read_features", lambda *of: (read(*of)[0], np.zeros(6000, np.float32), None))
    elif without == "a small vocabulary":
        monkeypatch.setattr(baseline, "MAX_CROSSED_IDS", schema.vocabulary_size - 1)
    else:
        monkeypatch.setattr(baseline, "MAX_CROSSED_ROWS", 5_999)
    assert baseline.crosses_gain("", schema) is None


OF_OTHER_ROWS = (baseline.CHOICE_OF_CROSSES, '["1", "weak", "of an earlier training"]')  # name and value
LARGE = json.dumps({"auc": 0.05, "log_loss": 0.02, "error": 0.003, "inverse_penalty": 1.0})


def settings_for(effects):
    return Config(train=TrainOptions(batch_size={"none": 100, "slight": 150, "weak": 200, "strong": 300}[effects]))


def test_ranks_take_the_answer_of_the_process_that_started_them(crossed, tmp_path, monkeypatch):
    schema, lines = crossed(1.0), []
    monkeypatch.setenv(*OF_OTHER_ROWS)
    monkeypatch.setattr(baseline, "_gain_in_a_process", lambda folder: LARGE)
    table = (tmp_path, tmp_path / "device_0", schema, settings_for)
    assert baseline.find_cross_effects(*table, lines) == "strong" and "+0.0500" in lines[0]
    monkeypatch.setattr(baseline, "started_by_mpi", lambda: True)
    monkeypatch.setattr(baseline, "_gain_in_a_process", None)
    assert baseline.find_cross_effects(*table, lines) == "strong" and lines[0] == lines[1]
    monkeypatch.delenv(baseline.CHOICE_OF_CROSSES)  # by an mpirun of the user's own
    assert baseline.find_cross_effects(*table, lines) == "none" and lines[2] == ""


@pytest.mark.parametrize(
    ("effects", "found"),
    [("none", '"auc": 0.001'), ("slight", '"auc": 0.01'), ("weak", '"inverse_penalty": 0.1'), ("strong", "")],
)
def test_a_run_that_is_resumed_keeps_its_answer_and_a_dry_run_fits_nothing(
    effects, found, crossed, tmp_path, monkeypatch
):
    schema, fits = crossed(1.0), []

    def fit(folder):
        fits.append(folder)
        return json.dumps(json.loads(LARGE) | json.loads(f"{{{found}}}"))

    monkeypatch.setenv(*OF_OTHER_ROWS)
    monkeypatch.setattr(baseline, "_gain_in_a_process", fit)

    def answer(dry=False, by_effects=settings_for):
        return baseline.find_cross_effects(tmp_path, tmp_path / "device_0", schema, by_effects, lines, dry)

    lines = []
    assert answer(dry=True) == "none" and not fits and "fits regressions" in lines.pop()
    assert answer() == effects and len(fits) == 1 and "crosses change the AUC" in lines.pop()
    config = settings_for(effects)
    run, claim = open_run(tmp_path / "device_0", config, schema)
    claim.close()
    assert run.plan.kind == "new"
    assert answer() == answer(dry=True) == effects and len(fits) == 1 and lines == ["", ""]

    def never(effects):
        return settings.merge(settings_for(effects), {"train": {"resume": "never"}}, where="test")

    def others(effects):
        return settings.merge(settings_for(effects), {"loss": {"l2_coef": 0.5}}, where="test")

    for by_effects in (never, others):  # a new run
        monkeypatch.setenv(*OF_OTHER_ROWS)
        fits.clear()
        assert answer(by_effects=by_effects) == effects and fits


def test_trainings_on_the_same_rows_share_one_fit_and_no_run_s_own_answer(crossed, tmp_path, monkeypatch):
    schema, fits, lines = crossed(1.0), [], []
    monkeypatch.setenv(*OF_OTHER_ROWS)
    monkeypatch.setattr(baseline, "_gain_in_a_process", lambda folder: fits.append(folder) or LARGE)

    def answer(run, schema=schema):
        return baseline.find_cross_effects(tmp_path, tmp_path / run, schema, settings_for, lines)

    assert [answer("first"), answer("second")] == ["strong", "strong"] and len(fits) == 1 and lines[0] == lines[1]
    reordered = dataclasses.replace(schema, splits={**schema.splits, "valid": schema.splits["train"]})
    assert answer("first", reordered) == "strong" and len(fits) == 2
    _, claim = open_run(tmp_path / "device_0", settings_for("none"), schema)  # of an older release, which found less
    claim.close()
    assert answer("device_0") == "none" and len(fits) == 2
    assert answer("third") == "strong" and len(fits) == 3


def test_the_gain_is_that_of_the_command_and_nothing_is_read_without_crosses(
    tiny_dataset, tiny_schema, tmp_path, capsys, monkeypatch
):
    assert main(["baseline", str(tiny_dataset), "--crosses", "--json"]) == 0
    assert capsys.readouterr().out == "null\n"
    monkeypatch.setattr(baseline, "_gain_in_a_process", None)
    monkeypatch.setenv(*OF_OTHER_ROWS)
    lines = []
    assert baseline.find_cross_effects(tiny_dataset, tmp_path / "run", tiny_schema, settings_for, lines) == "none"
    assert lines == [""]


def test_a_process_of_its_own_finds_the_gain_in_a_prepared_folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(2)
    a, b = rng.integers(12, size=6000), rng.integers(9, size=6000)
    clicks = rng.random(6000) < sigmoid(2 * rng.normal(size=(12, 9))[a, b])
    frame = pd.DataFrame({"click": clicks.astype(int), "A": [f"a{i}" for i in a], "B": [f"b{i}" for i in b]})
    schema = prepare(frame, tmp_path / "crossed", None, describe(frame), crosses=[["A", "B"]], workers=1)
    table, lines = (tmp_path / "crossed", tmp_path / "device_0", schema, settings_for), []
    monkeypatch.setenv(*OF_OTHER_ROWS)
    assert baseline.find_cross_effects(*table, lines) != "none" and "in more epochs" in lines[0]
    (tmp_path / "crossed" / "schema.json").write_text("{}")
    monkeypatch.setenv(*OF_OTHER_ROWS)
    with pytest.raises(ValueError, match=r"the crosses of .* could not be tried \(train\.auto\): .*schema\.json"):
        baseline.find_cross_effects(*table, [])
