"""Run under mpirun: sum arrays over the ranks, and compare them bit for bit with the sums in the order of ranks."""

import sys

import numpy as np
from mpi4py import MPI

from app.distributed.process_group import GradientSum

SHAPES = ((3,), (301, 40), (), (1000,))


def values_of(rank, step):
    rng = np.random.default_rng([rank, step])
    return [np.float32(rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 4)) for shape in SHAPES]


def sum_in_order(step, size):
    totals = values_of(0, step)
    for rank in range(1, size):
        totals = [total + values for total, values in zip(totals, values_of(rank, step), strict=True)]
    return totals


def main() -> None:
    world = MPI.COMM_WORLD
    group_sum = GradientSum(world)
    arrays = group_sum.allocate(SHAPES)

    def summed(values, *starts):
        for array, value in zip(arrays, values, strict=True):
            array[...] = value
        for num_values in (*starts, sys.maxsize):
            group_sum.start(num_values)
        return group_sum.finish()

    for step in range(3):
        assert summed(values_of(world.rank, step), *range(0, 4000 * step, 4000))
        for found, expected in zip(arrays, sum_in_order(step, world.size), strict=True):
            np.testing.assert_array_equal(found.view(np.int32), np.asarray(expected).view(np.int32))
        few = group_sum.gather(np.float32([world.rank, step]) / 3)
        np.testing.assert_array_equal(few, [np.float32([rank, step]) / 3 for rank in range(world.size)])
    large = [np.full(shape, 3e38 if shape == (1000,) else 0.0, np.float32) for shape in SHAPES]
    assert not summed(large)  # each value is finite, their sum is not
    assert not summed([np.nan if world.rank == 1 else 0.0] * len(SHAPES))
    print(f"rank {world.rank} of {world.size}: the same bits", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        import traceback

        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
