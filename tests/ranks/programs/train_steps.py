"""Run under mpirun: the first N of the ranks take training steps beside one process that has the whole batches.

    mpirun -n 4 python train_steps.py CONFIG

For N = 1 … 4, hybrid and with servers: one step from equal state, 20 steps, and later
ones against a control that starts one rounding away.
"""

import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mpi4py import MPI

from app.config import device
from app.config.config import Config
from app.config.device import DeviceOptions
from common import yaml_settings
from data_prep.prepared.batches import Batch
from data_prep.prepared.schema import FORMAT_VERSION, CategoricalField, NumericField, Schema, VectorField

BATCH = 96
CLOSE_STEPS, STEPS = 20, 40
SETTINGS = (
    f"train.batch_size={BATCH}",
    "model.hidden_widths=[16, 8]",
    "tables.backend=reference",
    "loss.l2_coef=1e-3",
    "model.dropout=0.2",
    "train.ema_decay=0.8",
)
# Ranks in all, of which servers, and whether MindSpore's graph runs the tower.
JOBS = ((1, 0, False), (2, 0, False), (3, 0, False), (4, 0, False), (2, 1, False), (4, 2, False), (3, 0, True))


@dataclass
class Run:
    """Results of one run of the steps."""

    losses: np.ndarray
    scores: np.ndarray
    first: object  # the state after one step


def make_schema():
    return Schema(
        format_version=FORMAT_VERSION,
        numeric=tuple(NumericField(f"I{i}", f"I{i}", "log1p", {}) for i in range(3)),
        categorical=tuple(CategoricalField(f"C{i}", (0, 0), ()) for i in range(4)),
        vocabulary_size=300,
        ids_dtype="int32",
        block_rows=100,
        splits={},
        rejected_rows=0,
        options={},
        source={},
        other_files=(),
        vectors=(VectorField("v", 4, "none", (0.0,) * 4, (1.0,) * 4),),
    )


def batches(num_steps):
    """The last of ten is short, now and then one has fewer rows than there are ranks, and one, without weight, none."""
    rng = np.random.default_rng(1)
    for step in range(num_steps):
        rows = {9: 37, 15: 2, 17: 0}.get(step, BATCH)
        ids = (3 + rng.random((rows, 4)) ** 3 * 297).astype(np.int32)
        numeric = rng.standard_normal((rows, 3)).astype(np.float32)
        labels, weights = (rng.random(rows) < 0.4).astype(np.float32), rng.choice(np.float32([0.5, 1, 4]), rows)
        vectors = rng.standard_normal((rows, 5)).astype(np.float32)
        yield Batch(ids, numeric, labels, weights, vectors=vectors, mean_weight=1.7)


def take_steps(parts, num_steps):
    losses, first = [], None
    for batch in batches(num_steps):
        result = parts.step(batch, parts.step.prepare(batch))
        losses.append((result.wide_loss, result.deep_loss))
        first = first or parts.state()
    with parts.optimizers.means_as_weights():
        scores = parts.step.score(batch, parts.step.prepare(batch))
    return Run(np.array(losses), scores, first)


def check_one_step(found, expected, owner, num_owners):
    """Gradients, read from what optimizers remember of the first one, to 3e-6 of their scale; rows likewise.

    MindSpore's graph sums in another order, which makes a difference of 1e-6 on processors with AVX-512 or AMX. Squares
    of gradients differ by twice as much.
    """
    for name, array in expected.dense.items():
        if "moment" in name or "linear" in name or "accumulator" in name:
            # The gradient of a single number may be nearly 0 although those of the rows, which it sums, are about 0.5.
            scale = max(np.abs(array).max(), 0.1 if array.size == 1 else 0.0)
            np.testing.assert_allclose(found.dense[name], array, rtol=0, atol=3e-6 * scale, err_msg=name)
    for table, rows in found.tables.items():
        own = expected.tables[table].row_ids % num_owners == owner
        np.testing.assert_array_equal(rows.row_ids, expected.tables[table].row_ids[own], table)
        for name, array in rows.arrays.items():
            whole = expected.tables[table].arrays[name]
            if name != "rows":
                np.testing.assert_allclose(array, whole[own], rtol=0, atol=3e-6 * np.abs(whole).max(), err_msg=name)


def check_bad_row(parts, num_ranks):
    """Check that all ranks name a bad value as the rank that has it does, and that nothing changed."""
    before = parts.state()
    (batch,) = batches(1)
    batch.numeric[-1, 1] = np.nan
    rows, rank = BATCH // num_ranks, num_ranks - 1
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


def nudge(parts):
    from app.model.dense_state import write_parameter

    parameter = parts.model.named_parameters()["tower.matrix_0"]
    values = parameter.asnumpy().copy()
    values[0, 0] = np.nextafter(values[0, 0], np.float32(np.inf))
    write_parameter(parameter, values)


def main(config_path):
    from app.distributed.process_group import MpiGroup
    from app.training.assemble import assemble
    from app.training.server import ParameterServer

    world, schema = MPI.COMM_WORLD, make_schema()
    config = yaml_settings.resolve(Config, config_path, SETTINGS)
    alone = take_steps(assemble(config, schema, "reference"), STEPS)
    control = assemble(config, schema, "reference")
    nudge(control)
    drift = np.maximum.accumulate(np.abs(take_steps(control, STEPS).losses - alone.losses))[CLOSE_STEPS:]
    for size, servers, as_graph in JOBS:
        os.environ.pop(device.GRAPH, None)
        if as_graph:
            os.environ[device.GRAPH] = "1"
        part = world.Split(int(world.rank < size))
        if world.rank >= size:
            continue
        group = MpiGroup(part, servers)
        if part.rank < servers:
            ParameterServer(config, schema, "reference", group, Path()).run()
            continue
        with group:
            parts = assemble(config, schema, "reference", group)
            assert parts.step.is_native is not as_graph
            run = take_steps(parts, STEPS)
            check_bad_row(parts, part.size - servers)
        check_one_step(run.first, alone.first, part.rank, group.num_owners)
        np.testing.assert_allclose(run.losses[:CLOSE_STEPS], alone.losses[:CLOSE_STEPS], rtol=0, atol=1e-5)
        assert (np.abs(run.losses - alone.losses)[CLOSE_STEPS:] <= np.maximum(10 * drift, 1e-6)).all()
        np.testing.assert_allclose(run.scores, alone.scores, rtol=0, atol=1e-4)
        print(f"rank {part.rank} of {size}, {servers} servers{', as a graph' * as_graph}: equal", flush=True)


def run_program(main, *words):
    """Call `main` on the CPU. An error ends all ranks."""
    options = DeviceOptions(target="CPU", threads=1)
    device.prepare_environment(options)
    device.select_device(options)
    try:
        main(*words)
    except BaseException:
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    run_program(main, Path(sys.argv[1]))
