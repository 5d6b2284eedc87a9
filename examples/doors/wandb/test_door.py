"""The offline records have each step once, although the training was killed twice, and the training's files."""

from __future__ import annotations

import json
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

from app import load_run

BLOCK = 32 * 1024  # A file of W&B has the form of LevelDB's logs: chunks of records, within blocks, after 7 bytes.


def records_of(path: Path) -> list[Record]:
    content, at, found, parts = path.read_bytes(), 7, [], b""
    while at + 7 <= len(content):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            found.append(Record.FromString(parts))
            parts = b""
    return found


def test_record_of_an_interrupted_training_is_whole(commands, interrupted, run, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    (command,) = commands("Weights & Biases")
    interrupted(command)
    run(command.replace("configs/auto.yaml", "small.yaml"))  # The training has ended: nothing is sent twice.
    trained = load_run("tracked")
    files = sorted(Path("wandb").glob("offline-run-*/run-*.wandb"))
    records = [record for file in files for record in records_of(file)]
    assert {record.run.run_id for record in records if record.HasField("run")} == {
        Path("tracked/wandb_run_id").read_text()
    }
    rows = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    for name in ("wide_loss", "tower_learning_rate", "auc", "log_loss"):
        sent = [(row["_step"], row[name]) for row in rows if name in row]
        assert sent == [(line["step"], line[name]) for line in trained.history if name in line]
        assert len(sent) >= 3
    names = {record.artifact.name for record in records if record.HasField("artifact")}
    assert names == {"tracked-bundle", "tracked-report"}
