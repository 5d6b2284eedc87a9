"""Tables spread over MPI ranks against tables of one process; the program is tests/ranks/programs/sharded_tables.py."""

import pytest

from app.distributed.process_group import GradientSum
from tests.ranks.simulation import check


@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (3, 0), (4, 0), (2, 1), (4, 2)])
def test_sharded_tables_are_those_of_one_process(run_ranks, needs_native, ranks, servers):
    """But for roundings: sums over ranks have another order than those over a batch."""
    needs_native()
    status, output = run_ranks(ranks, "sharded_tables.py", servers)
    assert status == 0, output
    for optimizer in ("lazy_adam", "adam", "partial_rowwise_adam", "rowwise_adagrad", "adagrad", "ftrl", "sgd"):
        assert output.count(f" {optimizer}: equal") == 2 * ranks  # of reference and native


def test_simulated_ranks_give_the_bits_of_one():
    assert sum(map(check, range(100))) > 50


def test_the_simulation_notices_a_wrong_sum(monkeypatch):
    start = GradientSum.start

    def forget_a_value(self, num_values):
        self._values[self._values.argmax()] = 0
        start(self, num_values)

    monkeypatch.setattr(GradientSum, "start", forget_a_value)
    with pytest.raises(AssertionError):
        for seed in range(20):
            check(seed)
