"""Run under mpirun: all ranks take training steps with the tower in two stages, beside one process with whole batches.

    mpirun -n 2 python pipeline_steps.py CONFIG CASE …

CASE is `key=value;…` of settings. One step from equal state to 1e-6, 20 steps to 1e-5. A row that is not finite is told
by every rank as the first stage's rank that has it found it, and changes nothing.
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from app import device
from app.config import Config
from data_prep import settings
from tests.mpi.train_steps import BATCH, CLOSE_STEPS, SETTINGS, batches, check_one_step, make_schema, take_steps

STAGES = ["parallel.pipeline_stages=2", "parallel.micro_batches=3"]


def check_bad_row(parts, world):
    """The batch's last row, which the last of the first stage's ranks looks up."""
    before, pairs = parts.state(), world.size // 2
    (batch,) = batches(1)
    batch.numeric[-1, 1] = np.nan
    first_row, row = BATCH * (pairs - 1) // pairs, BATCH // pairs - 1
    expected = (
        f"rank {pairs - 1}, whose rows begin at the batch's row {first_row}: the numeric input of batch row {row}"
    )
    try:
        parts.step(batch, parts.step.prepare(batch))
    except FloatingPointError as error:
        assert str(error).startswith(expected), error
    else:
        raise AssertionError("the step was taken")
    after = parts.state()
    for name, array in before.dense.items():
        np.testing.assert_array_equal(after.dense[name], array, name)


def main(config_path, cases):
    from app.assemble import assemble
    from app.process_group import MpiGroup

    world, schema = MPI.COMM_WORLD, make_schema()
    for case in cases:
        words = list(filter(None, case.split(";")))
        of_model = [*SETTINGS, *(word for word in words if not word.startswith("parallel."))]
        config = settings.resolve(Config, config_path, of_model)
        alone = take_steps(assemble(config, schema, "reference"), CLOSE_STEPS)
        staged = settings.resolve(Config, config_path, [*SETTINGS, *STAGES, *words])
        with MpiGroup(world) as group:
            parts = assemble(staged, schema, "reference", group)
            run = take_steps(parts, CLOSE_STEPS)
            check_bad_row(parts, world)
        assert run.first.dense.keys() == alone.first.dense.keys()
        check_one_step(run.first, alone.first, world.rank, world.size)
        np.testing.assert_allclose(run.losses[0], alone.losses[0], rtol=0, atol=1e-6)
        np.testing.assert_allclose(run.losses, alone.losses, rtol=0, atol=1e-5)
        np.testing.assert_allclose(run.scores, alone.scores, rtol=0, atol=1e-4)
        print(f"rank {world.rank} of {world.size}, {case}: equal", flush=True)


if __name__ == "__main__":
    options = device.DeviceOptions(target="CPU", threads=1)
    device.prepare_environment(options)
    device.select_device(options)
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except BaseException:
        import traceback

        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
