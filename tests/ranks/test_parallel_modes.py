"""Jobs whose tower is split over ranks, started as a user does, against one process with the same batch."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import whole_checkpoints
from app.cli.checkpoint import reshard
from app.training.parallel.strategy_file import StrategyRecord, read_strategy, write_strategy
from tests.ranks.jobs import losses, same_numbers

pytestmark = pytest.mark.parallel

MODES = {
    "columns_and_rows": (
        2,
        "parallel.tensor_parallel=2",
        'parallel.strategies={matrix_0: "((1, 1), (1, 2))", matrix_1: "((1, 2), (2, 1))"}',
    ),
    "optimizer_shards": (2, "parallel.optimizer_shards=true"),
    "pipeline": (2, "parallel.pipeline_stages=2", "parallel.micro_batches=3"),
    "recompute": (2, "parallel.recompute=[all]", "model.dropout=0"),
    "mixed": (
        4,
        "parallel.tensor_parallel=2",
        'parallel.strategies={matrix_0: "((1, 2), (2, 1))"}',
        "parallel.optimizer_shards=true",
    ),
}


@pytest.fixture(scope="module")
def train(run, start_servers):
    """Runs the launcher in a folder to its end; returns its status and its standard error."""

    def to_the_end(folder, ranks, *settings, servers=0, epochs=2):
        if not servers:
            return run(folder, ranks, *settings, epochs=epochs)
        process = start_servers(folder, servers, ranks, *settings, epochs=epochs)
        errors = process.communicate(timeout=600)[1]
        return process.returncode, errors

    return to_the_end


def dense(folder):
    return whole_checkpoints(folder / "device_0" / "checkpoints")[-1].state().dense


def check_slices(folder, ranks):
    """Check that the newest checkpoint has a file for each rank, is complete, and merges to one file."""
    path = whole_checkpoints(folder / "device_0" / "checkpoints")[-1].path
    assert len(list(path.glob(f"dense-*-of-{ranks}.safetensors"))) == ranks
    assert not (path / "dense.safetensors").exists()
    merged = reshard(path, folder / "merged", 1)
    found, expected = load_file(merged / "dense.safetensors"), Checkpoint.open(path).state().dense
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("mode", MODES)
def test_a_split_tower_trains_to_the_numbers_of_one_rank(train, one_rank, tmp_path, mode):
    ranks, *settings = MODES[mode]
    status, errors = train(tmp_path, ranks, *settings)
    assert status == 0, errors
    same_numbers(tmp_path, one_rank)
    expected, found = dense(one_rank), dense(tmp_path)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-3 * max(np.abs(array).max(), 1e-3), err_msg=name)


def test_a_run_resumes_under_another_split(train, one_rank, tmp_path):
    ranks, *settings = MODES["mixed"]
    assert train(tmp_path, ranks, *settings, "checkpoint.tower_slices=true", epochs=1)[0] == 0
    check_slices(tmp_path, ranks)
    status, errors = train(tmp_path, *MODES["columns_and_rows"])
    assert status == 0, errors
    assert "Continuing " in errors
    same_numbers(tmp_path, one_rank)
    np.testing.assert_array_equal(losses(tmp_path, 1), losses(tmp_path, 0))
    record = read_strategy(tmp_path / "device_1" / "strategy.json")
    assert (record.num_ranks, record.tensor_parallel) == (2, 2)
    assert record.strategies["matrix_1"] == "((1, 2), (2, 1))"


def test_a_pipeline_resumes_in_one_process_and_back(train, one_rank, tmp_path):
    ranks, *settings = MODES["pipeline"]
    assert train(tmp_path, 1, epochs=1)[0] == 0
    status, errors = train(tmp_path, ranks, *settings, "checkpoint.tower_slices=true")
    assert status == 0, errors
    assert "Continuing " in errors
    same_numbers(tmp_path, one_rank)
    check_slices(tmp_path, ranks)
    assert (tmp_path / "device_0" / "strategy.json").exists()
    status, errors = train(tmp_path, 1, epochs=3)
    assert status == 0, errors
    assert "Continuing " in errors
    assert not (tmp_path / "device_0" / "strategy.json").exists()


def test_servers_own_the_rows_of_a_pipeline_and_of_the_split_that_resumes_it(train, one_rank, tmp_path):
    """The pipeline saves slices, of two stages; its strategy file has them."""
    ranks, *settings = MODES["pipeline"]
    status, errors = train(tmp_path, ranks, *settings, "checkpoint.tower_slices=true", servers=1, epochs=1)
    assert status == 0, errors
    check_slices(tmp_path, ranks)
    pipeline = read_strategy(tmp_path / "device_0" / "strategy.json").pipeline
    assert (pipeline.stages, pipeline.pairs) == ({"matrix_0": 0, "matrix_1": 1, "matrix_2": 1}, ((0, 1),))
    status, errors = train(tmp_path, *MODES["columns_and_rows"], servers=1)
    assert status == 0, errors
    assert "Continuing " in errors
    same_numbers(tmp_path, one_rank)


def test_a_strategy_file_of_another_model_is_refused(train, tmp_path):
    path = tmp_path / "strategy.json"
    write_strategy(path, StrategyRecord(2, 2, {}, False, {"matrix_0": (3, 4)}))
    status, errors = train(tmp_path, 2, f"parallel.strategy_file={path}")
    assert status == 2
    assert "is of another model: bias_0 is missing there" in errors


def test_wrong_settings_are_refused_before_a_run_folder_is_made(train, tmp_path):
    """The rules themselves are tested in tests/app/cli/test_validate.py."""
    status, errors = train(tmp_path, 2, "parallel.tensor_parallel=3")
    assert status == 2
    assert "does not divide the 2 ranks: 2 would be left over" in errors
    assert errors.count("error") == 1
    assert not (tmp_path / "device_0").exists()
