"""Jobs of ranks in one process, with messages in any order and a failure each, against one process."""

import itertools
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from app.distributed.process_group import GradientSum
from app.distributed.sharded_tables import RowShard
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


@pytest.mark.parametrize("bounds", [(0, 9), (0, 4, 9), (0, 1, 2, 8, 9)])
def test_rows_loaded_in_pieces_reach_their_owner(bounds):
    row_ids, values = np.array([9, 4, 1, 7, 2, 3, 10, 0, 13]), np.arange(9.0)
    found = {}

    @contextmanager
    def loading(step):
        def place(table, ids):
            def write(name, piece, start):
                found.update(zip(ids[start : start + len(piece)].tolist(), piece, strict=True))

            return write

        yield place

    shard = SimpleNamespace(tables=SimpleNamespace(loading=loading), exchange=SimpleNamespace(rank=1, num_owners=3))
    with RowShard.loading(shard, step=5) as place:
        write = place("deep", row_ids)
        for start, end in itertools.pairwise(bounds):
            write("rows", values[start:end], start)
    assert found == {4: 1, 1: 2, 7: 3, 10: 6, 13: 8}
