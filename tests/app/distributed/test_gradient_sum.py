"""Sums over ranks, on one host and on several; the program is tests/ranks/programs/gradient_sums.py."""

import pytest


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_sums_are_in_the_order_of_ranks_however_they_lie_on_hosts(run_ranks, ranks):
    status, output = run_ranks(ranks, "gradient_sums.py")
    assert status == 0, output
    assert output.count(f"of {ranks}: the same bits") == ranks
    assert output.count("cannot share") == 1
    assert "No space left on device; each rank sends its gradients to the next one, which is slower" in output
