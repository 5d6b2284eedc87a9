"""The smallest distributed training: a net of one hidden layer whose first product is split over 8 ranks.

    x [16, 32] ─ MatMul ((2, 4), (4, 1)) ─► relu ─ MatMul ─► softmax cross entropy with 16 classes

On a CPU the ranks are processes of MPI, and the split is that of examples/tower_over_ranks. On GPU and Ascend it is
MindSpore's own (`--target`, never run on such a device). Run it by `bash run_with_mpi.sh`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))  # the project

BATCH, WIDTH_IN, HIDDEN, CLASSES = 16, 32, 16, 16
NUM_EPOCHS, STEPS_PER_EPOCH = 5, 4
LEARNING_RATE, MOMENTUM = 0.2, 0.1
STRATEGIES = {"fc1": "((2, 4), (4, 1))", "fc2": "((8, 1), (1, 1))"}


def make_weights() -> dict[str, np.ndarray]:
    """Return the initial matrices of the net by name. They are whole, and the same on every rank."""
    rng = np.random.default_rng(1)
    shapes = {"fc1": (WIDTH_IN, HIDDEN), "fc2": (HIDDEN, CLASSES)}
    return {name: (rng.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32) for name, shape in shapes.items()}


def make_batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the batches of an epoch: inputs [16, 32], and classes [16] that follow from a linear map of the inputs."""
    rng = np.random.default_rng(2)
    teacher = rng.standard_normal((WIDTH_IN, CLASSES))
    inputs = [rng.standard_normal((BATCH, WIDTH_IN)).astype(np.float32) for _ in range(STEPS_PER_EPOCH)]
    return [(batch, (batch @ teacher).argmax(1).astype(np.int32)) for batch in inputs]


class Net(nn.Cell):
    """A net of two matrix products with a ReLU between them.

    `first` and `second` compute the products, of whole matrices or of this rank's blocks.
    """

    def __init__(self, first: nn.Cell, second: nn.Cell, weights: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.fc1 = Parameter(Tensor(weights["fc1"]), name="fc1")
        self.fc2 = Parameter(Tensor(weights["fc2"]), name="fc2")
        self.first, self.second = first, second

    def construct(self, inputs: Tensor) -> Tensor:
        """Map inputs [b, 32] to logits [b, 16] of this rank's rows."""
        return self.second(ops.relu(self.first(inputs, self.fc1)), self.fc2)


class Loss(nn.Cell):
    """Softmax cross entropy of a net: the sum over this rank's rows, divided by the rows of the whole batch."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def construct(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss, a scalar."""
        return ops.cross_entropy(self.net(inputs), labels, reduction="sum") / BATCH


class TrainStep(nn.Cell):
    """One training step: compute loss and gradients, sum them over the ranks, and update the weights with Momentum."""

    def __init__(self, net: Net, sum_gradients: nn.Cell, sum_loss: nn.Cell) -> None:
        super().__init__()
        self.parameters = ParameterTuple(net.trainable_params())
        self.gradient = ms.value_and_grad(Loss(net), None, self.parameters)
        self.sum_gradients, self.sum_loss = sum_gradients, sum_loss
        self.optimizer = nn.Momentum(self.parameters, learning_rate=LEARNING_RATE, momentum=MOMENTUM)

    def construct(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Take one step, and return the loss that the whole batch had before the update."""
        loss, gradients = self.gradient(inputs, labels)
        total = self.sum_loss(loss)
        return ops.depend(total, self.optimizer(self.sum_gradients(gradients, total)))


def train_on_cpu() -> None:
    """Train the net on all ranks that `mpirun` has started, or in one process without it."""
    from mpi4py import MPI

    from examples.tower_over_ranks.collectives import InTurn, SumOver, split
    from examples.tower_over_ranks.layouts import BATCH as BATCH_AXIS
    from examples.tower_over_ranks.layouts import TowerPlan, check, parse, split_product
    from examples.tower_over_ranks.split_tower import SplitMatMul

    world = MPI.COMM_WORLD
    rank, num_ranks = world.Get_rank(), world.Get_size()
    if num_ranks not in (1, 8):
        raise SystemExit(
            f"error: {STRATEGIES['fc1']} is for 8 ranks, found {num_ranks}: mpirun -n 8 (see run_with_mpi.sh)"
        )
    weights, products, blocks = make_weights(), {}, {}
    for name, weight in weights.items():
        strategy = parse(STRATEGIES[name] if num_ranks == 8 else "((1, 1), (1, 1))", name)
        check(name, strategy, BATCH, weight.shape, num_ranks)
        products[name] = split_product(strategy, num_ranks)
        blocks[name] = np.ascontiguousarray(weight[products[name].weight.block(rank, weight.shape)])
    widths = (WIDTH_IN, *(weight.shape[1] for weight in weights.values()))
    plan = TowerPlan(BATCH, num_ranks, tuple(products.values()), widths, parameters={})
    net = Net(SplitMatMul(world, plan, 0), SplitMatMul(world, plan, 1), blocks)
    groups = [split(world, product.weight.group(rank, [BATCH_AXIS])) for product in products.values()]
    step = TrainStep(net, InTurn([SumOver(group) for group in groups]), SumOver(world))
    shapes = {"input": products["fc1"].input.block_shape((BATCH, WIDTH_IN)), "weight": blocks["fc1"].shape}
    print(f"rank {rank} of {num_ranks}: slices of the first product: {shapes}", flush=True)
    # The first product takes each rank's slice of the rows, and the second one leaves each rank with the logits of its
    # slice.
    run(step, slice(rank * BATCH // num_ranks, (rank + 1) * BATCH // num_ranks), rank)
    save(net, str(rank) if num_ranks == 8 else "whole")


def train_on_accelerator(target: str) -> None:
    """Train the same net on a GPU or Ascend with MindSpore's own semi-automatic parallelism.

    This has never been run on such a device.
    """
    from mindspore.communication import get_rank, init
    from mindspore.parallel.auto_parallel import AutoParallel

    ms.set_device(target)
    init()
    rank = get_rank()
    first, second = (_sharded_by_mindspore(STRATEGIES[name]) for name in ("fc1", "fc2"))
    net = Net(first, second, make_weights())
    step = AutoParallel(TrainStep(net, Unsummed(), nn.Identity()), parallel_mode="semi_auto")
    step.save_param_strategy_file(str(folder(str(rank)) / "strategy.ckpt"))
    run(step, slice(None), rank)
    save(net, str(rank))


class Unsummed(nn.Cell):
    """Returns the gradients of this rank unchanged, in place of a sum, because MindSpore sums them itself."""

    def construct(self, gradients: tuple[Tensor, ...], after: Tensor) -> tuple[Tensor, ...]:
        return gradients


class MatMul(nn.Cell):
    """The product of two whole matrices, which MindSpore splits over the ranks by `strategy`."""

    def __init__(self, strategy: tuple[tuple[int, int], tuple[int, int]]) -> None:
        super().__init__()
        self.product = ops.MatMul().shard(strategy)

    def construct(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """Multiply [b, K] by [K, H]."""
        return self.product(inputs, weight)


def _sharded_by_mindspore(text: str) -> MatMul:
    from examples.tower_over_ranks.layouts import parse

    strategy = parse(text, "net")
    return MatMul(((strategy.batch, strategy.inner), (strategy.inner, strategy.outer)))


def run(step: nn.Cell, rows: slice, rank: int) -> None:
    """Train for all epochs, and print the loss of every step. `rows` are this rank's rows of each batch."""
    batches = make_batches()
    for epoch in range(1, NUM_EPOCHS + 1):
        for number, (inputs, labels) in enumerate(batches, 1):
            loss = step(Tensor(inputs[rows]), Tensor(labels[rows]))
            print(f"rank {rank} epoch: {epoch} step: {number}, loss is {float(loss.asnumpy()):.7f}", flush=True)


def save(net: Net, name: str) -> None:
    """Save this rank's blocks of the weights as a checkpoint, in which the weights have the names fc1 and fc2.

    By itself, MindSpore would put the names of cells before these names.
    """
    held = [{"name": "fc1", "data": net.fc1}, {"name": "fc2", "data": net.fc2}]
    ms.save_checkpoint(held, str(folder(name) / "net.ckpt"))


def folder(name: str) -> Path:
    """Make the folder of a rank's checkpoint, beside this file, and return its path.

    It is `device/<rank>/`, or `device/whole/` if there is only one rank.
    """
    path = HERE / "device" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description="train a net of one hidden layer over 8 ranks")
    parser.add_argument("--target", choices=("CPU", "GPU", "Ascend"), default="CPU")
    target = parser.parse_args().target
    ms.set_context(mode=ms.GRAPH_MODE)
    if target == "CPU":
        train_on_cpu()
    else:
        train_on_accelerator(target)


if __name__ == "__main__":
    main()
