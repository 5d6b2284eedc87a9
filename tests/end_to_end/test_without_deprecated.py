"""Everything but the backend stock works without the names whose removal MindSpore 2.10 announces."""

import os
import sys
from pathlib import Path

import pytest

from tests.programs import run_program

# MindSpore's nn.Adam creates this operator in its constructor. The other names that it logs must not appear.
KNOWN = "'FusedSparseAdam' is deprecated"
GRAPH = "model.batch_norm=true"  # The native step does not support it, so MindSpore's graph runs.


@pytest.fixture(scope="module")
def environment(project, command_environment, mpirun, tmp_path_factory):
    names = (str(Path(__file__).parent / "without_deprecated"), str(project))
    log = tmp_path_factory.mktemp("log") / "deprecations"
    return {**command_environment, "PYTHONPATH": os.pathsep.join(names), "DEPRECATIONS": str(log), "MPIRUN": mpirun}


@pytest.fixture
def run(environment, tmp_path):
    """Run a command in the test's folder. It must end with `status`, and log no deprecation that is not KNOWN."""
    log = Path(environment["DEPRECATIONS"])
    log.write_text("")

    def begin(*words, status=0):
        done = run_program(*words, cwd=tmp_path, env=environment, status=status)
        assert not [line for line in log.read_text().splitlines() if not line.startswith(KNOWN)]
        return done.stdout + done.stderr

    return begin


@pytest.fixture
def train(run, project, tiny_dataset):
    def begin(ranks, *settings, epochs=1, servers=0, status=0):
        names = ("run_parameter_server_train.sh", servers, ranks) if servers else ("run_auto_parallel_train.sh", ranks)
        script, *sizes = names
        words = [*sizes, epochs, tiny_dataset, *([] if servers else ["-"]), "train.batch_size=2000", *settings]
        return run("bash", project / "scripts" / script, *words, status=status)

    return begin


def app(*words):
    return (sys.executable, "-m", "app", *words)


def test_the_names_are_gone(run):
    """Otherwise the other tests would show nothing."""
    for name in ("nn.FTRL", "nn.LazyAdam", "nn.EmbeddingLookup", "ops.assign", "set_auto_parallel_context"):
        assert "AttributeError" in run(sys.executable, "-c", f"import mindspore; mindspore.{name}", status=1)


@pytest.mark.parametrize("settings", [(), (GRAPH,)], ids=["native", "graph"])
def test_train_resume_evaluate_export(run, train, settings, tiny_dataset):
    train(1, *settings)
    assert "Continuing" in train(1, *settings, epochs=2)
    assert "auc" in run(*app("evaluate", "--dataset", tiny_dataset)).lower()
    run(*app("export", "device_0", "bundle"))


@pytest.mark.slow
@pytest.mark.parametrize(("wide", "tower"), [("ftrl", "adamw"), ("adagrad", "adagrad"), ("sgd", "sgd")])
def test_every_optimizer_of_the_graph(train, wide, tower):
    train(1, GRAPH, f"tower_optimizer.name={tower}", f"wide_optimizer.name={wide}", "train.ema_decay=0.9")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (1, 1)])
def test_several_processes(train, ranks, servers):
    train(ranks, "tower_optimizer.name=sgd", servers=servers)


@pytest.mark.slow
def test_online_training(run, train, tiny_dataset, tiny_log, tmp_path):
    train(1, GRAPH)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part_1.txt").write_bytes(tiny_log.read_bytes())
    run(
        *app(
            "online", "--from", "device_0", "--dataset", tiny_dataset, "--serve", "served", "--once", tmp_path / "parts"
        )
    )


def test_the_stock_backend_names_the_operator_and_version(train):
    found = train(1, "tables.backend=stock", status=2)
    assert "error: tables.backend=stock needs mindspore.ops.FusedSparseFtrl" in found
