"""Helpers for tests of checkpoints: make manifests, read checkpoints, and save checkpoints of tables without a
model.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.write import ModelState
from app.config.config import Config
from app.distributed.process_group import ProcessGroup
from app.run.identity import data_identity
from app.tables.interface import TableState
from app.training.context import RunContext
from app.training.saving import CheckpointManager
from common import settings


def plain_manifest(step, vocabulary_size=1000, **others):
    """Return the manifest of a checkpoint after `step` steps. It has no settings, so no run can continue from it."""
    data = {"vocabulary_size": vocabulary_size}
    return _manifest(step, {"config": {}, "dataset": "", "data": data, **others})


def run_manifest(step, config, schema, dataset, **others):
    """Return the manifest of a checkpoint after `step` steps of a run with the settings `config` on the prepared folder
    `dataset` with the schema `schema`.
    """
    described = {"config": settings.as_dict(config), "dataset": str(dataset), "data": data_identity(schema)}
    return _manifest(step, described | others)


def _manifest(step, content):
    return Manifest(**{"step": step, "epoch": 1, "epoch_step": step, "metrics": {}, **content})


def load(path):
    """Verify the checkpoint at `path`, and return its manifest and its state (`ModelState`)."""
    checkpoint = Checkpoint.open(path)
    checkpoint.verify()
    state = checkpoint.state()
    tables = {
        table: TableState(rows.row_ids, {name: rows.read(name, slice(None)) for name in rows.layout})
        for table, rows in state.tables.items()
    }
    return checkpoint.manifest, ModelState(state.dense, tables)


class Run:
    """Replaces a run folder. It notes the errors of saves in `failed`, and lines for metrics.jsonl in `metrics`."""

    def __init__(self, folder):
        self.checkpoints, self.failed, self.metrics = folder, [], []

    def sync_logs(self):
        pass

    def note_failed_save(self, step, error):
        self.failed.append(str(error))

    def append_metrics(self, **values):
        self.metrics.append(values)


class StateOfTables:
    """Replaces the state of a training for a `CheckpointManager`: the rows of `tables`, and one dense array with the
    value `dense`.
    """

    learning_rates = SimpleNamespace(state=dict)

    def __init__(self, tables):
        self.snapshot_rows, self.dense = tables.snapshot, 0.0

    def dense_values(self):
        return {"wide.bias": np.full(1, self.dense, np.float32)}


def manager_of(run, parts, options, vocabulary_size, group=None):
    """Return the `CheckpointManager` of a run of one process or, with `group`, of one rank. The data's schema is made
    up.

    `parts` is the training whose state is saved, such as a `StateOfTables`.
    """
    train = SimpleNamespace(files=())
    schema = SimpleNamespace(
        vocabulary_size=vocabulary_size,
        numeric=(),
        categorical=(),
        other_files=(),
        splits={"train": train},
        source={},
        num_expired=0,
        vectors=(),
    )
    selection, stop = SimpleNamespace(state=dict), SimpleNamespace(note_save=lambda seconds: None)
    context = RunContext(Config(checkpoint=options), Path(), schema, run, stop, group or ProcessGroup())
    return CheckpointManager(context, parts, selection)
