"""The gain of logistic regression from crosses, and what train.auto makes of it."""

import dataclasses
import json
import os

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from app.__main__ import main
from app.api import describe, prepare
from app.config.config import Config, TrainOptions
from app.evaluation.metrics import sigmoid
from app.run.claim import open_run
from app.training.auto import regression as crosses
from app.training.auto.regression import CrossesChoice
from common import settings
from data_prep.prepared.schema import CategoricalField


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

        monkeypatch.setattr(crosses, "read_features", read_features)
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
    gain = crosses.crosses_gain("", schema)
    assert gain.effects in (("slight", "weak", "strong") if is_large else ("none",))
    assert str(gain).endswith("in more epochs (train.auto)") is is_large and f" by {gain.auc:+.4f}, " in str(gain)

    def split_of(name):
        return crosses.read_features("", schema, name)

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
    assert crosses.CrossesGain(0.02, 0.02, 0.009, 1.0).effects == "strong"
    assert crosses.CrossesGain(0.02, 0.02, 0.009, 0.3).effects == "weak"
    assert crosses.CrossesGain(0.02, 0.02, 0.011, 1.0).effects == "none"  # of a few valid rows
    assert crosses.CrossesGain(0.007, 0.02, 0.001, 1.0).effects == "none"
    assert crosses.CrossesGain(0.008, 0.02, 0.001, 1.0).effects == "slight"
    assert crosses.CrossesGain(0.008, 0.02, 0.011, 1.0).effects == "none"


@pytest.mark.parametrize("without", ["crosses", "valid rows", "two classes", "a small vocabulary", "few rows"])
def test_no_gain_is_measured_without(without, crossed, monkeypatch):
    schema = crossed(1.0)
    assert crosses.crosses_gain("", schema) is not None
    if without == "crosses":
        schema = dataclasses.replace(schema, categorical=schema.categorical[:2])
    elif without == "valid rows":
        empty = dataclasses.replace(schema.splits["valid"], rows=0)
        schema = dataclasses.replace(schema, splits={**schema.splits, "valid": empty})
    elif without == "two classes":
        read = crosses.read_features
        monkeypatch.setattr(crosses, "read_features", lambda *of: (read(*of)[0], np.zeros(6000, np.float32), None))
    elif without == "a small vocabulary":
        monkeypatch.setattr(crosses, "MAX_CROSSED_IDS", schema.vocabulary_size - 1)
    else:
        monkeypatch.setattr(crosses, "MAX_CROSSED_ROWS", 5_999)
    assert crosses.crosses_gain("", schema) is None


OF_OTHER_ROWS = CrossesChoice("weak", "measured before an earlier training", data="1")
LARGE = json.dumps({"auc": 0.05, "log_loss": 0.02, "error": 0.003, "inverse_penalty": 1.0})


def settings_for(effects):
    return Config(train=TrainOptions(batch_size={"none": 100, "slight": 150, "weak": 200, "strong": 300}[effects]))


@pytest.fixture
def send(monkeypatch):
    """Return a function that gives this process a message from the one that started it: at first on other rows."""

    def send(choice):
        for name, value in choice.as_message().items():
            monkeypatch.setenv(name, value)

    send(OF_OTHER_ROWS)
    crosses._measured_gain.cache_clear()
    yield send
    crosses._measured_gain.cache_clear()


@pytest.fixture
def fits(send, monkeypatch):
    """Imitate the process that fits regressions. Return the list of its calls."""
    calls = []
    monkeypatch.setattr(crosses, "run_module", lambda *words: calls.append(words) or LARGE)
    return calls


def test_ranks_take_the_answer_of_their_launcher(crossed, fits, send, tmp_path, monkeypatch):
    table = (tmp_path, tmp_path / "device_0", crossed(1.0), settings_for)
    environment = dict(os.environ)
    found = crosses.find_cross_effects(*table)
    assert found.effects == "strong" and "+0.0500" in found.line
    assert os.environ == environment  # A process sends no message to itself.
    send(found)
    monkeypatch.setattr(crosses, "started_by_mpi", lambda: True)
    assert crosses.find_cross_effects(*table) == found and len(fits) == 1
    monkeypatch.delenv(crosses.CHOICE_OF_CROSSES)  # The user has started mpirun without the launcher.
    assert crosses.find_cross_effects(*table) == CrossesChoice("none", "")


def test_a_run_of_a_sweep_takes_the_sweep_s_answer(crossed, fits, send, tmp_path):
    schema = crossed(1.0)
    send(dataclasses.replace(crosses.measure_cross_effects(tmp_path, schema), effects="weak"))
    assert crosses.find_cross_effects(tmp_path, tmp_path / "run", schema, settings_for).effects == "weak"
    assert len(fits) == 1


@pytest.mark.parametrize(
    ("effects", "found"),
    [("none", '"auc": 0.001'), ("slight", '"auc": 0.01'), ("weak", '"inverse_penalty": 0.1'), ("strong", "")],
)
def test_a_run_that_is_resumed_keeps_its_answer_and_a_dry_run_fits_nothing(
    effects, found, crossed, send, tmp_path, monkeypatch
):
    schema, fits = crossed(1.0), []

    def fit(*words):
        fits.append(words)
        return json.dumps(json.loads(LARGE) | json.loads(f"{{{found}}}"))

    monkeypatch.setattr(crosses, "run_module", fit)

    def answer(dry=False, by_effects=settings_for):
        return crosses.find_cross_effects(tmp_path, tmp_path / "device_0", schema, by_effects, dry)

    assert answer(dry=True).effects == "none" and not fits and "fits regressions" in answer(dry=True).line
    assert answer().effects == effects and len(fits) == 1 and "crosses change the AUC" in answer().line
    config = settings_for(effects)
    run, claim = open_run(tmp_path / "device_0", config, schema)
    claim.close()
    assert run.plan.kind == "new"
    assert answer() == answer(dry=True) == CrossesChoice(effects, "") and len(fits) == 1

    def never(effects):
        return settings.merge(settings_for(effects), {"train": {"resume": "never"}}, where="test")

    def others(effects):
        return settings.merge(settings_for(effects), {"loss": {"l2_coef": 0.5}}, where="test")

    for by_effects in (never, others):  # Both settings lead to a new run.
        crosses._measured_gain.cache_clear()
        fits.clear()
        assert answer(by_effects=by_effects).effects == effects and fits


def test_trainings_on_the_same_rows_share_one_fit(crossed, fits, tmp_path):
    schema = crossed(1.0)

    def answer(run, schema=schema):
        return crosses.find_cross_effects(tmp_path, tmp_path / run, schema, settings_for)

    assert answer("first") == answer("second") and answer("first").effects == "strong" and len(fits) == 1
    reordered = dataclasses.replace(schema, splits={**schema.splits, "valid": schema.splits["train"]})
    assert answer("first", reordered).effects == "strong" and len(fits) == 2
    # A run of an older release, which did not find as much, keeps its answer. Other runs do not take it.
    _, claim = open_run(tmp_path / "device_0", settings_for("none"), schema)
    claim.close()
    assert answer("device_0").effects == "none"
    assert answer("third").effects == "strong" and len(fits) == 2


def test_nothing_is_read_without_crosses(tiny_dataset, tiny_schema, fits, tmp_path, capsys):
    assert main(["baseline", str(tiny_dataset), "--crosses", "--json"]) == 0
    assert capsys.readouterr().out == "null\n"
    found = crosses.find_cross_effects(tiny_dataset, tmp_path / "run", tiny_schema, settings_for)
    assert found == CrossesChoice("none", "") and not fits


def test_a_separate_process_finds_the_gain(send, tmp_path):
    rng = np.random.default_rng(2)
    a, b = rng.integers(12, size=6000), rng.integers(9, size=6000)
    clicks = rng.random(6000) < sigmoid(2 * rng.normal(size=(12, 9))[a, b])
    frame = pd.DataFrame({"click": clicks.astype(int), "A": [f"a{i}" for i in a], "B": [f"b{i}" for i in b]})
    schema = prepare(frame, tmp_path / "crossed", None, describe(frame), crosses=[["A", "B"]], workers=1)
    table = (tmp_path / "crossed", tmp_path / "device_0", schema, settings_for)
    found = crosses.find_cross_effects(*table)
    assert found.effects != "none" and "in more epochs" in found.line
    crosses._measured_gain.cache_clear()
    (tmp_path / "crossed" / "schema.json").write_text("{}")
    with pytest.raises(ValueError, match=r"the crosses of .* could not be tried \(train\.auto\): .*schema\.json"):
        crosses.find_cross_effects(*table)
