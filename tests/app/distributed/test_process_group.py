"""The job of one process, and rules of all jobs; groups of several ranks are in tests/ranks/."""

import numpy as np
import pytest

from app.distributed import watchdog
from app.distributed.process_group import (
    ProcessGroup,
    is_collective,
    join_world,
    mark_collective,
    max_rank_rows,
    rank_slice,
)
from app.distributed.watchdog import waiting
from tests.programs import run_python


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [0, 1, 5, 500])
def test_rows_are_dealt_out_in_order_and_evenly(rows, size):
    slices = [rank_slice(rows, rank, size) for rank in range(size)]
    assert np.concatenate([np.arange(rows)[part] for part in slices]).tolist() == list(range(rows))
    lengths = [part.stop - part.start for part in slices]
    assert max(lengths) - min(lengths) <= 1
    assert max(lengths) == max_rank_rows(rows, size)


def test_one_process_asks_no_other():
    group = ProcessGroup()
    assert group.all_reduce_max(7) == 7
    assert group.on_rank0(lambda: "decided") == "decided"
    assert group.gather("mine") == ["mine"]
    assert group.rpc("load") == []
    assert np.arange(5)[group.rows_of(5)].size == 5


def test_an_error_of_all_ranks_is_known_by_what_it_came_from():
    try:
        try:
            raise mark_collective(ValueError("found by all"))
        except ValueError as error:
            raise FloatingPointError("step 3") from error
    except FloatingPointError as error:
        assert is_collective(error)
    assert not is_collective(ValueError("found by one"))


def test_an_mpi_that_does_not_see_the_other_ranks():
    with pytest.raises(OSError, match=r"found 1 of 3 ranks: .* sees 1; mpirun and mpi4py must use the same MPI"):
        join_world(3)


def test_a_training_of_one_process_loads_no_mpi(project):
    """MPI would leave its memory in /dev/shm if the process is killed."""
    program = "import sys, app.training.loop; sys.exit('mpi4py.MPI' in sys.modules)"
    run_python("-c", program, cwd=project)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_sums_are_in_the_order_of_ranks(run_ranks, ranks):
    status, output = run_ranks(ranks, "gradient_sums.py")
    assert status == 0, output
    assert output.count(f"of {ranks}: the same bits") == ranks


def test_the_rank_that_the_others_wait_for_is_named_once_a_wait(run_ranks):
    status, output = run_ranks(3, "slow_rank.py")
    assert status == 0, output
    assert output.count("warning: rank 1 has not come for 0 s; the others wait for it") == 2
    assert output.count("warning") == 2


def test_a_thread_s_wait_does_not_end_the_wait_of_another():
    with waiting():
        since = watchdog._waiting_since()
        with waiting():
            assert watchdog._waiting_since() == since
        assert watchdog._waiting_since() == since is not None
    assert watchdog._waiting_since() is None
