"""Run under mpirun: arrays are summed with the ranks parted into hosts of 1, 2, … ranks, and compared bit for bit."""

import logging
import os
import sys

import numpy as np
from mpi4py import MPI

from app.distributed import gradient_sum
from app.distributed.gradient_sum import GradientSum

SHAPES = ((3,), (301, 40), (), (1000,))


def values_of(rank, step):
    rng = np.random.default_rng([rank, step])
    return [np.float32(rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 4)) for shape in SHAPES]


def sum_in_order(step, size):
    totals = values_of(0, step)
    for rank in range(1, size):
        totals = [total + values for total, values in zip(totals, values_of(rank, step), strict=True)]
    return totals


def check(group_sum, world, what):
    for step in range(3):
        sums, finite = group_sum([np.asarray(values) for values in values_of(world.rank, step)])
        assert finite
        for found, expected in zip(sums, sum_in_order(step, world.size), strict=True):
            np.testing.assert_array_equal(found.view(np.int32), np.asarray(expected).view(np.int32), what)
    bad = [np.full(shape, 3e38 if shape == (1000,) else 0.0, np.float32) for shape in SHAPES]  # finite, not their sum
    _, finite = group_sum(bad)
    assert not finite, what


def refuse(*_):
    raise OSError(28, os.strerror(28))


def main() -> None:
    world = MPI.COMM_WORLD
    gradient_sum.CHUNK = 1 << 10  # several of them in a part
    for ranks_a_host in range(world.size + 1):
        group_sum = GradientSum(world, ranks_a_host)
        check(group_sum, world, f"{ranks_a_host} ranks a host")
        several_hosts = 0 < ranks_a_host < world.size
        assert bool(world.allreduce(group_sum.sent_bytes)) == several_hosts
    os.posix_fallocate = refuse
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    check(GradientSum(world), world, "without shared memory")
    print(f"rank {world.rank} of {world.size}: the same bits", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        import traceback

        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
