"""The project's commands, what is read of a run afterwards, and the sender of requests."""

import asyncio
import socket

import numpy as np
import pytest

from app.evaluation.metrics import MetricStream
from benchmarks.harness.commands import read_rows, run_command, validations
from benchmarks.serving.__main__ import Sender
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import read_schema
from data_prep.sources.synthetic import synthesize

SMALL = ("train.batch_size=500", "model.embedding_dim=2", "model.hidden_widths=[4]", "train.epochs=2")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    log = synthesize(folder / "log.txt", 3000, seed=1, workers=1).log_path
    prepare(log, folder / "prepared", PrepareOptions(min_count=2, workers=1))
    return folder / "prepared"


@pytest.mark.slow
def test_the_scores_of_a_run_are_those_that_evaluate_measures(prepared, tmp_path):
    run_command("app", "train", "--dataset", str(prepared), *SMALL, folder=tmp_path)
    run_command("benchmarks.harness.score_rows", "device_0", "scores.npy", folder=tmp_path)
    with pytest.raises(SystemExit, match=r"ended with 2(.|\n)*no prepared data in"):
        run_command("app", "train", "--dataset", "nowhere", folder=tmp_path)
    assert [line["epoch"] for line in validations(tmp_path / "device_0")] == [1, 2]
    scores = np.load(tmp_path / "scores.npy")
    assert scores.shape == (read_schema(prepared).splits["test"].rows,)
    assert np.isfinite(scores).all() and scores.std() > 0
    run_command("app", "evaluate", folder=tmp_path)
    judged = (tmp_path / "device_0" / "eval.log").read_text().splitlines()[-1]
    stream = MetricStream()
    stream.add(scores, read_rows(prepared, read_schema(prepared), "test").labels)
    assert f"auc is {stream.result().auc:.6f}" in judged


def test_requests_of_several_connections_are_all_counted(monkeypatch):
    answered = []

    def send(_, number, answer):
        answered.append(number)
        asyncio.get_running_loop().call_later(0.001, answer, 200)

    monkeypatch.setattr(Sender, "send", send)
    rate = asyncio.run(Sender(0, [b""], "text/plain").closed(4, 0.1))
    assert round(0.1 * rate) == len(answered) > 4


def test_every_request_of_a_load_is_counted_by_its_status():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # nothing listens there
        load = asyncio.run(Sender(probe.getsockname()[1], [b""], "text/plain").poisson(2000, 0.05))
    assert (load.num_requests, load.count(0), len(load.sender_late_ms)) == (100, 100, 100)
