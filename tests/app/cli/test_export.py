"""A trained model exported: its bundle scores the log as training does, or there is no bundle."""

import dataclasses
import re

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml

from app.__main__ import main as app
from app.evaluation.metrics import Metrics
from app.scoring.bundle_tables import BundleTables
from app.scoring.predictor import Predictor
from app.scoring.trained.code_and_card import Evaluated
from app.scoring.trained.export_bundle import _why_no_probabilities
from data_prep.options.log_format import LogFormat, VectorForm
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare


@pytest.fixture
def trained(run_here, project, tiny_dataset, tmp_path):
    """A run of the optimizer that moves every row at every step: all ways of reading rows are used."""
    settings = ("train.epochs=1", "deep_optimizer.name=adam", "loss.label_smoothing=0.1")
    run_here(app, "train", "--config", project / "configs" / "tiny.yaml", "--dataset", tiny_dataset, *settings)
    return tmp_path / "device_0"


def test_a_bundle_scores_as_training_does(run_here, trained, tiny_log, tmp_path, monkeypatch, caplog):
    printed = run_here(app, "export", "device_0", "bundle")
    assert float(re.search(r"logits differ by at most (\S+)", printed)[1]) <= 1e-5
    here, there = map(float, re.search(r"AUC (\S+), by the training code (\S+);", printed).groups())
    evaluated = run_here(app, "evaluate")
    assert here == pytest.approx(there, abs=1e-5)
    assert here == pytest.approx(float(re.search(r"AUC +(\S+)", evaluated)[1]), abs=1e-5)
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert f"| auc | {here:.6f} |" in card
    assert "label smoothing 0.1" in card

    assert "100 golden rows score the same" in run_here(app, "bundle", "verify", "bundle")
    run_here(app, "predict", "bundle", tiny_log, "scores.csv", "--workers", "1")
    lines = tiny_log.read_text().splitlines()
    scores = pa_csv.read_csv(tmp_path / "scores.csv")["score"].to_numpy()
    predictor = Predictor.open(tmp_path / "bundle")
    np.testing.assert_array_equal(scores.astype(np.float32), predictor.score(lines))

    assert "delta: rows as float32" in run_here(app, "export", "device_0", "delta", "--delta-from", "bundle")
    delta = Predictor.open(tmp_path / "delta")
    assert (delta.generation, delta.tables[1].spec.num_rows) == (1, 0)  # of the same checkpoint: nothing changed
    assert np.array_equal(delta.score(lines), predictor.score(lines))
    refused = fails(caplog, "export", "device_0", "other", "rows=int8", "--delta-from", "bundle")
    assert "dtype int8, there float32" in refused

    small = run_here(app, "export", "device_0", "small", "rows=int8", "--mindir", "--onnx-ids")
    assert {"tower.mindir", "ids.onnx", "ids.onnx.data"} <= Predictor.open(tmp_path / "small").manifest.files.keys()
    assert float(re.search(r"logits differ by at most (\S+)", small)[1]) > 0
    sizes = [(tmp_path / name / "tables.safetensors").stat().st_size for name in ("bundle", "small")]
    assert sizes[1] < sizes[0]

    assert app(["export", "device_0", "bundle"]) == 2  # it is there
    assert "rows=float32, rows=float16 or rows=int8" in fails(caplog, "export", "device_0", "other", "rows=int4")
    rows = BundleTables.rows
    monkeypatch.setattr(BundleTables, "rows", lambda self, places: [r + np.float32(1e-4) for r in rows(self, places)])
    assert "the self-test failed" in fails(caplog, "export", "device_0", "wrong")
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("batch_norm", ["false", "true"])
def test_a_bundle_with_vectors_scores_as_training_does(run_here, project, tmp_path, batch_norm):
    rng = np.random.default_rng(1)
    rows = [
        f"{row % 3 // 2}\tsite {row % 7}\t{row % 5}\t{a} {b}" for row, (a, b) in enumerate(rng.normal(size=(900, 2)))
    ]
    (tmp_path / "log.txt").write_text("".join(f"{row}\n" for row in rows))
    columns = {"label": "label", "site": "string", "count": "integer", "item": "vector"}
    log_format = LogFormat(columns, vectors={"item": VectorForm(2)})
    prepare(tmp_path / "log.txt", tmp_path / "prepared", PrepareOptions(data=log_format, workers=1))
    words = ("train.epochs=1", f"model.batch_norm={batch_norm}")
    config = project / "configs" / "tiny.yaml"
    run_here(app, "train", "--config", config, "--dataset", tmp_path / "prepared", *words)
    printed = run_here(app, "export", "device_0", "bundle")
    assert float(re.search(r"logits differ by at most (\S+)", printed)[1]) <= 1e-5
    assert "- vector item: 2 numbers, scale standardize" in (tmp_path / "bundle" / "README.md").read_text()


@pytest.mark.parametrize(
    ("calibration", "smoothing", "reason"),
    [
        (1.49, 0.3, "the scores of test sum to 1.49 times its clicks, as loss.label_smoothing=0.3 draws scores"),
        (0.7, 0.0, "the scores of test sum to 0.70 times its clicks"),
        (1.09, 0.1, ""),
        (None, 0.1, "loss.label_smoothing=0.1 draws scores toward 0.5"),
        (None, 0.0, ""),
    ],
)
def test_scores_far_from_click_rates_are_remarked(calibration, smoothing, reason):
    found = None
    if calibration is not None:
        found = Evaluated("test", Metrics(10_000, 0.2, 0.7, 0.5, 0.9, calibration, 0.3), {}, None, 0.0)
    said = _why_no_probabilities(smoothing, found)
    assert said.startswith(reason) and bool(said) == bool(reason)
    if found is not None:  # of 20 clicks no sum says so much
        few = dataclasses.replace(found, metrics=dataclasses.replace(found.metrics, rows=100, click_rate=0.2))
        assert _why_no_probabilities(smoothing, few) == ""


def test_export_warns_of_label_smoothing(run_here, project, tiny_dataset, caplog):
    words = ("--config", project / "configs" / "tiny.yaml", "--dataset", tiny_dataset, "loss.label_smoothing=0.9")
    run_here(app, "train", *words, "train.epochs=12", "train.batch_size=100")
    for more, is_warned in (((), True), (("--calibrate",), False), (("--calibrate", "auto"), False)):
        caplog.clear()
        run_here(app, "export", "device_0", "bundle", "--overwrite", *more)
        assert ("for probabilities export with --calibrate" in caplog.text) is is_warned


def fails(caplog, *words):
    caplog.clear()
    assert app(list(words)) == 2
    return caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        ("model.wide_fields=[C1,C2]", "model.deep_fields=[C2,C3,C4]"),
        ("model.deep_fields=[]",),
        ("tables.dtype=bfloat16",),
        ("tables.dtype=bfloat16", "deep_optimizer.name=adam", "train.ema_decay=0.9"),
    ],
)
def test_a_bundle_of_tables_that_differ_or_are_bfloat16(run_here, project, tiny_dataset, tiny_log, tmp_path, settings):
    words = ("--config", project / "configs" / "tiny.yaml", "--dataset", tiny_dataset, "train.epochs=1", *settings)
    run_here(app, "train", *words)
    printed = run_here(app, "export", "device_0", "bundle")
    assert float(re.search(r"logits differ by at most (\S+)", printed)[1]) <= 1e-5
    evaluated = run_here(app, "evaluate")
    here = float(re.search(r"AUC (\S+), by the training code", printed)[1])
    assert here == pytest.approx(float(re.search(r"AUC +(\S+)", evaluated)[1]), abs=1e-5)
    predictor = Predictor.open(tmp_path / "bundle")
    effects = {effect.field: effect for effect in predictor.explain(tiny_log.read_text().splitlines()[0])}
    assert effects["C9"].wide == 0 or "wide" not in settings[0]
    if len(settings) == 2:
        assert effects["C9"].change == 0


def test_numbers_of_any_size_are_no_reason_to_refuse_a_model(run_here, tmp_path, monkeypatch, caplog):
    """A column of 1e-12s and one with a 1e30, standardized: to a generated row of 1, its number is 1e12."""
    rng = np.random.default_rng(1)
    rows = [f"{click},{1e30 if i == 77 else i / 7},{number},{i % 30}" for i, (click, number) in enumerate(
        zip(rng.integers(0, 2, 1500), 1e-12 * rng.standard_normal(1500), strict=True)
    )]  # fmt: skip
    (tmp_path / "log.csv").write_text("\n".join(["y,a,b,c", *rows, ""]))
    columns = "{y: label, a: float, b: float, c: string}"
    data = {"prepare.data.separator": "','", "prepare.data.header": "true", "prepare.data.columns": columns}
    words = [f"{name}={value}" for name, value in data.items()]
    words += ["prepare.numeric_transform=standardize", "prepare.workers=1"]
    prepare(tmp_path / "log.csv", tmp_path / "prepared", read_options(None, words))
    small = ("model.embedding_dim=8", "model.hidden_widths=[32, 16]", "train.epochs=2", "train.batch_size=100")
    run_here(app, "train", "--dataset", tmp_path / "prepared", *small)
    run_here(app, "export", "device_0", "bundle")
    assert pq.read_table(tmp_path / "bundle" / "golden.parquet")["tolerance"].to_numpy().max() > 1
    assert "100 golden rows score the same" in run_here(app, "bundle", "verify", "bundle")
    run, card = (tmp_path / "device_0" / "config.yaml").read_text(), (tmp_path / "bundle" / "README.md").read_text()
    for found in (yaml.safe_load(run), yaml.safe_load(card.rpartition("```yaml")[2].rpartition("```")[0])):
        assert found["prepare"]["numeric_transform"] == "standardize"  # of the folder, not a training's default
        assert list(found["prepare"]["data"]["columns"]) == ["y", "a", "b", "c"]
    rows = BundleTables.rows
    monkeypatch.setattr(BundleTables, "rows", lambda self, places: [r * np.float32(1.01) for r in rows(self, places)])
    assert "the self-test failed" in fails(caplog, "export", "device_0", "wrong")  # by rows without the large number
