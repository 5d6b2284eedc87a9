"""Fixtures that write run folders without training, for tests of launches and reports."""

import dataclasses
import json

import numpy as np
import pytest
import yaml

from app.checkpoint.write import ModelState, write_checkpoint
from app.config.config import Config
from app.evaluation.metrics import MetricStream
from app.evaluation.results import Measurement, content_of, write_evaluation
from app.run.claim import open_run
from app.run.decision import settings_of_run
from app.run.folder import OP_TIMES, PROFILE_FOLDER
from common import settings, yaml_settings
from data_prep.prepared.truth import Best
from tests.checkpoints import run_manifest
from tests.example_groups import example_groups

NUM_STEPS = 40


def measurement(seed, groups):
    rng = np.random.default_rng(seed)
    labels = (rng.random(2_000) < 0.3).astype(np.float32)
    stream = MetricStream()
    stream.add(rng.normal(labels - 1, 1).astype(np.float32), labels)
    found = example_groups("<68fd1e64>") if groups else None
    means = {name: found.rows.mean(values) for name, values in found.values.items()} if groups else {}
    return Measurement(dataclasses.replace(stream.result(), **means), stream.bins(), found)


@pytest.fixture
def make_run(tmp_path):
    """Return a function that writes the folder of a run of `steps` steps, evaluated on valid after every 20 steps and,
    with `tested`, on test at the end. `lines` are appended to its metrics.jsonl.
    """

    def make(
        name, *overrides, steps=NUM_STEPS, evaluated=True, tested=True, profiled=True, status="finished", lines=()
    ):
        path = tmp_path / name
        path.mkdir(parents=True)
        config = yaml_settings.resolve(Config, None, overrides)
        (path / "config.yaml").write_text(yaml.safe_dump(settings.as_dict(config)))
        state = {"status": status, "command": "python -m app train", "machine": "a <machine>", "python": "3.11"}
        state |= {"versions": {"mindspore": "2.10.0"}, "commit": "abc", "rows": {"train": 640_000}}
        (path / "run.json").write_text(json.dumps(state))
        losses = [
            f"epoch: 1 step: {i}, wide_loss is {0.7 - 0.001 * i:.7f}, deep_loss is 0.7" for i in range(1, steps + 1)
        ]
        (path / "loss.log").write_text("".join(f"{line}\n" for line in losses))
        logged = [step_line(step) for step in range(10, steps + 1, 10)]
        for step in range(20, steps + 1, 20) if evaluated else ():
            measured = measurement(step, groups=False)
            write_evaluation(path, content_of("valid", step, 1, measured))
            values = {name: value for name, value in vars(measured.metrics).items() if value == value}
            logged += [{"seconds": step + 0.5, "step": step, "epoch": 1, "split": "valid", **values}]
            sizes = {
                "touched_rows": 100 * step,
                "touched_share": step / 100,
                "deep_row_norm": 0.1,
                "wide_row_norm": 0.2,
            }
            logged += [{"seconds": step + 0.6, "step": step, "epoch": 1, **sizes}]
        if tested and evaluated and steps:
            content = content_of("test", steps, 1, measurement(7, True), {"auc": (0.7, 0.8)}, Best(2_000, 0.9, 0.4))
            write_evaluation(path, content)
        logged.sort(key=lambda line: line["seconds"])
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*logged, *lines]))
        if profiled:
            (path / PROFILE_FOLDER).mkdir()
            ops = [
                {"op": "MatMul", "where": "graph", "runs": 50, "ms": 100.0},
                {"op": "EmbeddingLookup", "where": "host", "runs": 5, "ms": 25.0},
            ]
            (path / PROFILE_FOLDER / OP_TIMES).write_text(json.dumps(ops))
        return path

    return make


def step_line(step, seconds=None):
    """Return a line of metrics.jsonl after `step`. With 10,000 rows per second, a step of 16,000 rows takes 1.6 s: 160
    ms of waiting, 300 ms of lookup, 1,000 ms in the tower, 100 ms of update, and so 40 ms of other work.
    """
    times = {"samples_per_second": 10_000.0 if step > 10 else 500.0, "wait_share": 0.1, "lookup_ms": 300.0}
    times |= {"tower_ms": 1000.0, "update_ms": 100.0, "memory_bytes": 2**30 + step}
    return {
        "seconds": step if seconds is None else seconds,
        "step": step,
        "epoch": 1,
        "wide_loss": 0.7 - 0.001 * step,
        **times,
    }


@pytest.fixture
def start(tmp_path, tiny_config, tiny_schema):
    """Return a function that opens the run in `tmp_path` as a launch with the given settings does, writes checkpoints
    after `steps`, releases the lock, and returns the run.
    """

    def start_run(*overrides, schema=tiny_schema, status=None, steps=(), epochs_done=0, find_source=lambda: None):
        asked = tiny_config(*overrides)
        config = settings_of_run(tmp_path / "device_0", asked, schema)
        run, lock = open_run(tmp_path / "device_0", config, schema, find_source=find_source, asked=asked)
        for step in steps:
            save_checkpoint(run.path / "checkpoints", step, run.config, schema, epochs_done)
        if status:
            run.set_status(status)
        lock.close()
        return run

    return start_run


def save_checkpoint(folder, step, config, schema, epochs_done=0, epoch_step=0):
    position = {"epoch": epochs_done + 1, "epoch_step": epoch_step if epochs_done else step}
    manifest = run_manifest(step, config, schema, "", selection={"last_step": step - 1}, **position)
    return write_checkpoint(folder, ModelState({}, {}), manifest)


def state_of(run):
    return json.loads((run.path / "run.json").read_text())
