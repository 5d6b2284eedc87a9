"""Outputs and processes of a job of several ranks."""

import re
import time

import numpy as np
import psutil
import pytest

from app.checkpoint.retention import whole_checkpoints

SETTINGS = (
    "device.threads=1",
    "train.batch_size=500",
    "checkpoint.keep_last=0",
    "eval.every_steps=4",
    "loss.loss_scale=1000",  # no power of two: where it is divided by shows in the bits
)


def losses(folder, rank=0):
    text = (folder / f"device_{rank}" / "loss.log").read_text()
    return np.array([[float(x) for x in re.findall(r"loss is (\S+?)(?:,|$)", line)] for line in text.splitlines()])


def aucs(folder, rank=0):
    """Return the AUC of each evaluation, in the middle of an epoch and at its end."""
    return [float(auc) for auc in re.findall(r" auc is (\S+),", (folder / f"device_{rank}" / "eval.log").read_text())]


def kept_files(folder):
    run = folder / "device_0"
    files = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*.safetensors")}
    return files | {name: (run / name).read_bytes() for name in ("loss.log", "eval.log")}


def same_numbers(found, expected):
    np.testing.assert_allclose(losses(found), losses(expected), rtol=0, atol=1e-5)
    assert aucs(found) == pytest.approx(aucs(expected), abs=2e-4)
    whole, state = (whole_checkpoints(run / "device_0" / "checkpoints")[-1].state() for run in (expected, found))
    for table, rows in whole.tables.items():
        np.testing.assert_array_equal(state.tables[table].row_ids, rows.row_ids)


def ended(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def is_rank(process):
    try:
        return "OMPI_COMM_WORLD_RANK" in process.environ()
    except psutil.Error:  # it has just ended
        return False


def wait_for_ranks(launcher, folder, steps):
    """Wait until loss.log has that many steps; return the ranks' processes."""
    log, end = folder / "device_0" / "loss.log", time.monotonic() + 120
    while not log.exists() or len(log.read_text().splitlines()) < steps:
        assert launcher.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    ranks = [each for each in psutil.Process(launcher.pid).children(recursive=True) if is_rank(each)]
    return sorted(ranks, key=lambda process: int(process.environ()["OMPI_COMM_WORLD_RANK"]))
