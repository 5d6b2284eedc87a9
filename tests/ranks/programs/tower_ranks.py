"""Trains towers as several ranks under several strategies, and compares with one rank's.

Arguments: a folder with `whole.npz` (parameters, batches, one rank's losses and parameters at the end), and cases
`data_parallel;layer=strategy;…`, with `optimizer shards` among them where the optimizer's state is shared out.
"""

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops
from mpi4py import MPI

from app.training.parallel.tensor.collectives import InTurn, SumOver
from app.training.parallel.tensor.layout_plan import layer_names, plan_tower
from app.training.parallel.tensor.optimizer_shards import OptimizerShards
from app.training.parallel.tensor.split_tower import gradient_groups, split_tower
from app.training.parallel.tensor.strategy import parse_all

NUM_STEPS = 20
OPTIMIZER_SHARDS = "optimizer shards"


class Loss(nn.Cell):
    def __init__(self, tower):
        super().__init__()
        self.tower = tower

    def construct(self, rows, numeric, labels, weights):
        logits = self.tower(rows, numeric)
        return ops.binary_cross_entropy_with_logits(logits, labels, weights, ops.ones_like(logits), reduction="sum")


def make_adam(parameters):
    return nn.Adam(list(parameters.values()), learning_rate=1e-2)


class Step(nn.Cell):
    """`optimizer` None: Adam of the whole parameters, their gradients summed by `sum_gradients`, if there is one."""

    def __init__(self, tower, sum_gradients, optimizer=None):
        super().__init__()
        self.parameters = ParameterTuple(tower.trainable_params())
        self.gradient = ms.value_and_grad(Loss(tower), 0, self.parameters)
        self.sum_gradients = sum_gradients
        self.optimizer = optimizer or make_adam({p.name: p for p in self.parameters})

    def construct(self, rows, numeric, labels, weights):
        loss, (row_gradient, gradients) = self.gradient(rows, numeric, labels, weights)
        if self.sum_gradients is not None:
            gradients = self.sum_gradients(gradients, row_gradient)
        return ops.depend(loss, self.optimizer(gradients)), row_gradient


def train(step, batches, rows, num_steps=NUM_STEPS):
    """Losses [steps] of this rank's slice and the row gradients of the first step."""
    losses, first = [], None
    for i in range(num_steps):
        weights = np.full(len(batches["labels"][i]), 1 / len(batches["labels"][i]), np.float32)
        inputs = [batches["rows"][i], batches["numeric"][i], batches["labels"][i], weights]
        loss, row_gradient = step(*(Tensor(np.ascontiguousarray(values[rows])) for values in inputs))
        losses.append(float(loss))
        first = row_gradient.asnumpy().copy() if first is None else first
    return np.array(losses), first


def named_parameters(tower):
    """By the names that a plan has."""
    return {parameter.name.split(".")[-1]: parameter for parameter in tower.trainable_params()}


def make_shards(tower, plan, world):
    """Adam's moments in shares; checks that a rank holds no more of them than it should."""
    parameters = named_parameters(tower)
    groups = gradient_groups(plan, list(parameters), world)
    shards = OptimizerShards(parameters, groups, make_adam)
    for moment, (name, parameter) in zip(shards.optimizer.moment1, parameters.items(), strict=True):
        assert moment.size == -(-parameter.size // groups[name].size), (name, moment.shape, parameter.shape)
    return shards


def main() -> None:
    folder, *cases = sys.argv[1:]
    saved = np.load(Path(folder) / "whole.npz")
    whole = {name[6:]: saved[name] for name in saved.files if name.startswith("whole_")}
    world = MPI.COMM_WORLD
    layers = layer_names(sum(name.startswith("matrix") for name in whole))
    for case in cases:
        data_parallel, *texts = case.split(";")
        flags, texts = [t for t in texts if "=" not in t], [t for t in texts if "=" in t]
        group_size = world.size // int(data_parallel)
        strategies = parse_all(dict(text.split("=") for text in texts), layers, group_size)
        batch_size = saved["labels"].shape[1]
        plan = plan_tower(
            {n: a.shape for n, a in whole.items()}, strategies, batch_size, int(data_parallel), group_size
        )
        tower = split_tower(whole, plan, world)
        parameters = named_parameters(tower)
        if OPTIMIZER_SHARDS in flags:
            shards = make_shards(tower, plan, world)
            step = Step(tower, shards.scatter, shards)
        else:
            step = Step(
                tower, InTurn([SumOver(group) for group in gradient_groups(plan, list(parameters), world).values()])
            )
        n = batch_size // world.size
        rows = slice(world.rank * n, (world.rank + 1) * n)
        losses, row_gradient = train(step, saved, rows)
        total = world.allreduce(losses)
        compare(case, "losses", total[:1], saved["losses"][:1], 1e-6)
        compare(case, "losses", total, saved["losses"], 1e-5)
        compare(case, "row gradients", row_gradient, saved["row_gradient"][rows], 1e-6)
        for name, parameter in parameters.items():
            layout = plan.parameters[name].layout
            expected = saved[f"final_{name}"]
            compare(case, name, parameter.asnumpy(), expected[layout.block(world.rank, expected.shape)], 2e-4)
    if world.rank == 0:
        print("equal", len(cases))


def compare(case, what, found, expected, tolerance) -> None:
    scale = np.abs(expected).max()
    worst = np.abs(found - expected).max() / scale
    if not worst <= tolerance:
        print(f"{case}: {what} differ by {worst:.2e} of their scale, allowed {tolerance}", flush=True)
        MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE)
    main()
