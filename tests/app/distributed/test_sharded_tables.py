"""Tables spread over MPI ranks against tables of one process; the program is tests/ranks/programs/sharded_tables.py."""

import pytest


@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (3, 0), (4, 0), (2, 1), (4, 2)])
def test_sharded_tables_are_those_of_one_process(run_ranks, needs_native, ranks, servers):
    """But for roundings: sums over ranks have another order than those over a batch."""
    needs_native()
    status, output = run_ranks(ranks, "sharded_tables.py", servers)
    assert status == 0, output
    for optimizer in ("lazy_adam", "adam", "partial_rowwise_adam", "rowwise_adagrad", "adagrad", "ftrl", "sgd"):
        assert output.count(f" {optimizer}: equal") == 2 * ranks  # of reference and native
