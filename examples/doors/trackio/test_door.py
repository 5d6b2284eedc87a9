"""Trackio has each line of metrics once, although the training was killed twice, and the files of the training."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path

from app import load_run


def test_record_of_an_interrupted_training_is_whole(commands, interrupted, run, folder, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
    (command,) = commands("trackio")
    interrupted(command)
    run(command.replace("configs/auto.yaml", "small.yaml"))  # The training has ended: nothing is sent twice.
    trained = load_run("tracked")
    store = sqlite3.connect("trackio/clicks.db")
    rows = store.execute("select step, metrics, run_name from metrics order by step, id").fetchall()
    assert {name for *_, name in rows} == {Path("tracked/trackio_name").read_text()}
    for name in ("wide_loss", "tower_learning_rate", "auc", "log_loss"):
        sent = [(step, found) for step, text, _ in rows if (found := json.loads(text).get(name, math.nan)) == found]
        assert sent == [(line["step"], line[name]) for line in trained.history if name in line]
        assert len(sent) >= 3
    ((settings,),) = store.execute("select config from configs").fetchall()
    assert json.loads(settings)["train"]["epochs"] == 3
    stored = {path.read_bytes() for path in Path("trackio/artifacts").rglob("*") if path.is_file()}
    assert {Path("tracked/bundle/manifest.json").read_bytes(), Path("tracked/report.html").read_bytes()} <= stored
