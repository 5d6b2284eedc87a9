"""Jobs of ranks in one process, with messages in any order and a failure each, against one process."""

import pytest

from app.distributed.process_group import GradientSum
from tests.ranks.simulation import check


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
