"""Run under mpirun: all ranks train with the tower spread over them, beside one process that has the whole batches.

    mpirun -n 2 python spread_steps.py CONFIG CASE …

CASE is `key=value;…` of settings. One step from equal state to 1e-6, 20 steps to 1e-5. A row that is not finite is told
by every rank as the one that looked it up found it, and changes nothing.
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from app.config.config import Config
from common import yaml_settings
from tests.ranks.programs.train_steps import (
    BATCH,
    CLOSE_STEPS,
    SETTINGS,
    batches,
    check_one_step,
    make_schema,
    run_program,
    take_steps,
)


def check_bad_row(parts, num_readers):
    """The batch's last row, which the last of the ranks that look rows up has."""
    before = parts.state()
    (batch,) = batches(1)
    batch.numeric[-1, 1] = np.nan
    rows, rank = BATCH // num_readers, num_readers - 1
    where = f"rank {rank}, whose rows begin at the batch's row {rows * rank}"
    expected = f"{where}: the numeric input of batch row {rows - 1}, field I1 is nan"
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
    from app.distributed.process_group import MpiGroup
    from app.training.assemble import assemble

    world, schema = MPI.COMM_WORLD, make_schema()
    for case in cases:
        words = list(filter(None, case.split(";")))
        of_model = [*SETTINGS, *(word for word in words if not word.startswith("parallel."))]
        config = yaml_settings.resolve(Config, config_path, of_model)
        alone = take_steps(assemble(config, schema, "reference"), CLOSE_STEPS)
        spread = yaml_settings.resolve(Config, config_path, [*SETTINGS, *words])
        with MpiGroup(world) as group:
            parts = assemble(spread, schema, "reference", group)
            run = take_steps(parts, CLOSE_STEPS)
            check_bad_row(parts, world.size // spread.parallel.pipeline_stages)
        assert run.first.dense.keys() == alone.first.dense.keys()
        check_one_step(run.first, alone.first, world.rank, world.size)
        np.testing.assert_allclose(run.losses[0], alone.losses[0], rtol=0, atol=1e-6)
        np.testing.assert_allclose(run.losses, alone.losses, rtol=0, atol=1e-5)
        np.testing.assert_allclose(run.scores, alone.scores, rtol=0, atol=1e-4)
        print(f"rank {world.rank} of {world.size}, {case}: equal", flush=True)


if __name__ == "__main__":
    run_program(main, Path(sys.argv[1]), sys.argv[2:])
