"""A checkpoint that two real ranks write, of which one fails; made-up ranks are in test_saving_on_ranks.py."""

import pytest

pytestmark = pytest.mark.ranks


def test_an_error_of_one_rank_is_raised_on_both(run_ranks, tmp_path):
    status, output = run_ranks(2, "failing_save.py", tmp_path, "MemoryError", timeout=60)
    assert status == 0, output
    for rank in (0, 1):
        assert f"on rank {rank}: rank 1: a reason" in output
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_one_rank_ends_the_job_with_its_reason(run_ranks, tmp_path):
    status, output = run_ranks(2, "failing_save.py", tmp_path, "KeyError", timeout=60)
    assert status != 0
    assert "KeyError: 'a reason'" in output
