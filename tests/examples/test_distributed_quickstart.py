"""The example as a reader runs it: 8 ranks over MPI, and the same on one."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.programs import run_program, run_python

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "distributed_quickstart"


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss is (\S+)", text)]


@pytest.fixture(scope="module")
def printed(mpirun):
    environment = {**os.environ, "PYTHON": sys.executable, "MPIRUN": mpirun}
    return run_program("bash", FOLDER / "run_with_mpi.sh", env=environment, timeout=600).stdout


def test_slices_are_those_of_the_strategy(printed):
    assert printed.count("{'input': (8, 8), 'weight': (8, 16)}") == 8


def test_losses_fall_alike_on_all_ranks(printed):
    of_rank = [losses((FOLDER / "device" / f"rank_{rank}.log").read_text()) for rank in range(8)]
    assert len(of_rank[0]) == 20
    assert all(other == of_rank[0] for other in of_rank)
    assert sum(of_rank[0][-4:]) < 0.6 * sum(of_rank[0][:4])


def test_one_rank_has_the_same_losses(printed):
    done = run_python(FOLDER / "net.py", timeout=300)
    assert losses(done.stdout) == pytest.approx(losses(printed), rel=1e-5)


def test_every_rank_leaves_its_block_of_the_weights(printed, cpu):
    import mindspore as ms

    for rank in range(8):
        saved = ms.load_checkpoint(str(FOLDER / "device" / str(rank) / "net.ckpt"))
        shapes = {name: tuple(parameter.shape) for name, parameter in saved.items()}
        assert shapes == {"fc1": (8, 16), "fc2": (16, 16)}


def test_another_number_of_ranks_is_refused(mpirun):
    command = (mpirun, "--allow-run-as-root", "--oversubscribe", "-n", 2, sys.executable, FOLDER / "net.py")
    done = run_program(*command, timeout=300, status=None)
    assert done.returncode != 0
    assert "is for 8 ranks, found 2" in done.stderr
