"""Sums over ranks; the program is tests/ranks/programs/gradient_sums.py."""

import pytest


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_sums_are_in_the_order_of_ranks(run_ranks, ranks):
    status, output = run_ranks(ranks, "gradient_sums.py")
    assert status == 0, output
    assert output.count(f"of {ranks}: the same bits") == ranks
