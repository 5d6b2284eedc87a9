"""Several ranks train, save and evaluate to the numbers of one process with the same batch."""

import os
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from app.checkpoint.manifest import read_manifest
from app.checkpoint.retention import whole_checkpoints
from app.checkpoint.write import shard_name
from tests.programs import run_program
from tests.ranks.jobs import aucs, kept_files, losses, same_numbers


def test_two_ranks_train_the_same_model_and_each_keeps_its_log(two_ranks, one_rank):
    same_numbers(two_ranks, one_rank)
    np.testing.assert_array_equal(losses(two_ranks, 1), losses(two_ranks, 0))
    assert aucs(two_ranks, 1) == aucs(two_ranks, 0)
    assert len(aucs(two_ranks)) == 4
    for rank in range(2):
        log = (two_ranks / f"device_{rank}" / f"test_deep{rank}.log").read_text()
        assert f"rank {rank} of 2" in log


def test_one_rank_whose_rows_a_server_owns_has_the_bits_of_one_process(start_servers, one_rank, tmp_path):
    """Its sums have the same order, unlike those of several ranks."""
    process = start_servers(tmp_path, 1, 1)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert kept_files(tmp_path) == kept_files(one_rank)


def test_rows_in_bfloat16_repeat_on_ranks_to_the_bit(run, start_servers, tmp_path):
    """Rounding up or down depends on the row and the step alone: on no rank, server or other run."""
    folders = [tmp_path / name for name in ("process", "server", "two", "again")]
    for folder, ranks in zip(folders, (1, None, 2, 2), strict=True):
        if ranks is None:
            process = start_servers(folder, 1, 1, "tables.dtype=bfloat16", epochs=1)
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
        else:
            status, errors = run(folder, ranks, "tables.dtype=bfloat16", epochs=1)
            assert status == 0, errors
    process, server, two, again = folders
    assert kept_files(server) == kept_files(process)
    assert kept_files(again) == kept_files(two)
    assert losses(two)[0] == pytest.approx(losses(process)[0], abs=1e-6)  # the same rows before anything is rounded
    np.testing.assert_allclose(losses(two), losses(process), rtol=0, atol=1e-3)


def test_each_owner_writes_its_shard(two_ranks):
    newest = whole_checkpoints(two_ranks / "device_0" / "checkpoints")[-1].path
    manifest = read_manifest(newest)
    assert manifest.shards == {"wide": 2, "deep": 2}
    for shard in range(2):
        rows = load_file(newest / shard_name("deep", shard, 2))["row_ids"]
        assert rows.size
        assert (rows % 2 == shard).all()


@pytest.fixture
def copied_run(two_ranks, tmp_path):
    """A copy of the run, because evaluations are written to the run's folder."""
    return shutil.copytree(two_ranks / "device_0", tmp_path / "device_0")


@pytest.fixture
def evaluate(project, command_environment, mpirun, tmp_path):
    """Evaluate the copy by the script; return the finished process."""

    def run_script(*words, status=0):
        command, environment = project / "scripts" / "run_eval.sh", {**command_environment, "MPIRUN": mpirun}
        return run_program("bash", command, *words, cwd=tmp_path, env=environment, status=status)

    return run_script


FOLLOW = ("--follow", "device_0", "--ranks", "2", "--split", "valid")


def test_three_ranks_evaluate_as_one_process_does(copied_run, evaluate):
    for words in ((), ("--ranks", "3")):
        done = evaluate(*words, "eval.group_field=C3")
        assert done.stdout.count("log loss ") == 1
    one, three = (copied_run / "eval.log").read_text().splitlines()[-2:]
    numbers = re.compile(r"[\d.]+")
    assert "grouped_auc" in one
    assert list(map(float, numbers.findall(three))) == pytest.approx(list(map(float, numbers.findall(one))), abs=1e-6)


def test_two_ranks_evaluate_each_checkpoint_of_a_run(copied_run, evaluate, tmp_path):
    """The metrics at the epochs' ends equal those that the training computed."""
    for checkpoint in whole_checkpoints(copied_run / "checkpoints"):
        if checkpoint.manifest.step % 5:
            shutil.rmtree(checkpoint.path)
    evaluate(*FOLLOW)
    *trained, first, second = aucs(tmp_path)
    assert [first, second] == pytest.approx(trained[1::2], abs=1e-6)


def test_two_ranks_skip_a_damaged_checkpoint_together(copied_run, evaluate, tmp_path):
    *before, damaged, last = whole_checkpoints(copied_run / "checkpoints")
    for checkpoint in before:
        shutil.rmtree(checkpoint.path)
    with (damaged.path / shard_name("deep", 0, 2)).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    done = evaluate(*FOLLOW, status=2)
    assert f"error: device_0/checkpoints/{damaged.path.name} is skipped: checkpoint file" in done.stderr
    assert done.stderr.count("error: ") == 2, done.stderr  # one rank's, and the command's
    assert f"step: {last.manifest.step} " in (copied_run / "eval.log").read_text().splitlines()[-1]


def test_more_ranks_than_cores_resume_a_run_of_another_number(run, two_ranks, one_rank, tmp_path):
    """Train an epoch of one rank, then a second one of three, each with another slice of the batch."""
    assert run(tmp_path, 1, epochs=1)[0] == 0
    status, errors = run(tmp_path, 3)
    assert status == 0, errors
    assert "Continuing " in errors
    same_numbers(tmp_path, one_rank)
