"""Compare a step of the default recipe (configs/auto.yaml), as a run takes it, with PyTorch's on the same batches.

    python -m benchmarks.training.default_step                    400,000 synthetic rows, as the demo has
    python -m benchmarks.training.default_step --rows 5000000 --batch 2000
    python -m benchmarks.training.default_step --contenders native best_adam best_sparse   these alone, soon done
    python -m benchmarks.training.default_step --contenders native_vector    what a vector costs; needs no PyTorch
    python -m benchmarks.training.default_step --contenders native_rowwise fbgemm_rowwise    FBGEMM's tables
    python -m benchmarks.training.default_step --contenders best_adam best_sparse --torch FOLDER    other releases too

The log is made and prepared in a temporary folder. Every contender reads its batches ahead, in a thread, and has cosine
rates. `adam` is Adam with weight decay on whole tables, as this project's deep table has it, `sparse` is SparseAdam,
which leaves rows outside the batch alone:

    native, native_auto         this project's step in float32, and in the precision that device.precision=auto takes
    native_vector               native, with a random vector of width 64 in each row
    native_rowwise              native, with row-wise Adagrad in the deep table
    found_adam, found_sparse    optimizers at their defaults, numbers looked up like the other fields
    best_adam, best_sparse      fused Adam, numbers folded into the first layer
    compiled_adam               best_adam, its tower by torch.compile
    autocast_adam               best_adam, its tower in bfloat16
    fbgemm_rowwise              the deep table in FBGEMM, with row-wise Adagrad (peers/fbgemm_wide_deep.py)

With --torch, the contenders that use PyTorch, but not FBGEMM, also run with the PyTorch that `pip install --target
FOLDER` installed.
Their names then end in @ and the folder.

All of PyTorch's are peers/pytorch_wide_deep.py, whose wide part has Adam or Adagrad in place of FTRL. The bound is the
tower's FLOPs at the speed of one large matrix product, and the tables' bytes at that of a copy.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from app.config import device
from app.config.config import Config
from app.config.device import Precision
from app.config.optimizer_settings import RowwiseAdagradOptions
from app.training.auto.by_rows import resolve_by_rows
from app.training.step import precision
from benchmarks.harness.commands import run_command
from benchmarks.harness.contender import KEEP_PAGES, Contender, Parts
from benchmarks.harness.timing import new_parser, print_result, seconds_of
from benchmarks.harness.workload import Workload, steps_on_batches
from benchmarks.training.kernels import MemoryCopy
from benchmarks.training.train_step import Group, measure
from common import settings
from common.packages import require
from data_prep.prepared.batches import Batch, read_batches, training_order
from data_prep.prepared.schema import Schema, VectorField, read_schema

NATIVE = ("native", "native_auto", "native_vector", "native_rowwise")
VECTOR_WIDTH, VECTOR_POOL = 64, 400_000
PEERS = ("found_adam", "found_sparse", "best_adam", "best_sparse", "compiled_adam", "autocast_adam", "fbgemm_rowwise")
MODULE, CONFIG = "benchmarks.training.default_step", Path(__file__).parents[2] / "configs" / "auto.yaml"
PRODUCT_SIZE = 2048  # Rows and columns of the matrices whose product gives the speed of FLOPs.


@dataclass(frozen=True)
class DefaultGroup(Group):
    """The contenders that take steps on the rows of a prepared folder."""

    arguments: tuple[Path, int]  # of `contender`, after the name

    def start(self, name: str) -> Contender:
        environment = {"OMP_NUM_THREADS": str(Workload.threads), "GLOG_v": "3", **KEEP_PAGES}
        kind, _, torch_folder = name.partition("@")
        return Contender(name, MODULE, (kind, *self.arguments, torch_folder), environment)


def recipe(schema: Schema, batch_size: int) -> Config:
    """Return the settings that auto.yaml gives for the rows of a folder. If `batch_size` is 0, they choose it too."""
    train = {"auto": True} | ({"batch_size": batch_size} if batch_size else {})
    changes = {"device": {"target": "CPU"}, "train": train}
    return resolve_by_rows(lambda base: settings.merge(base, changes, where="--batch"), schema)


def batches(folder: Path, schema: Schema, config: Config) -> Iterator[Batch]:
    """Yield the batches of a run, epoch after epoch. The last batch of an epoch is left out if it is smaller."""
    for epoch in itertools.count(1):
        order = training_order(schema, config.train.seed, epoch)
        for batch in read_batches(folder, schema, "train", order, config.train.batch_size):
            if batch.num_rows == config.train.batch_size:
                yield batch


def with_vectors(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches with a vector in each row, taken at random from a pool, as a run gathers shuffled rows."""
    rng = np.random.default_rng(0)
    pool = rng.standard_normal((VECTOR_POOL, VECTOR_WIDTH + 1), np.float32)
    pool[:, VECTOR_WIDTH] = 0
    for batch in batches:
        yield replace(batch, vectors=pool.take(rng.integers(0, len(pool), batch.num_rows), axis=0))


def pytorch_step(name: str, workload: Workload, schema: Schema, config: Config) -> tuple[Any, list[Any]]:
    """Return the training step of one of `PEERS`, and the schedules of its learning rates."""
    import torch

    from benchmarks.peers.pytorch_wide_deep import PeerSettings, PyTorchStep, use_threads

    use_threads(workload.threads)
    form, optimizer = name.split("_")
    rates = config.deep_optimizer.learning_rate, config.loss.l2_coef, config.wide_optimizer.learning_rate
    peer_settings = PeerSettings(*rates, whole_table=optimizer == "adam", fused=None if form == "found" else True)
    of_tower: Precision = "bfloat16" if form == "autocast" else "float32"
    workload = replace(workload, fold_numeric=form != "found", precision=of_tower)
    kind = PyTorchStep
    if form == "fbgemm":
        from benchmarks.peers.fbgemm_wide_deep import FbgemmStep as kind
    step = kind(workload, schema.num_categorical, schema.num_numeric, peer_settings)
    if form == "compiled":
        step.tower.compile()
    return step, [torch.optim.lr_scheduler.CosineAnnealingLR(each, 10_000) for each in step.optimizers]


def workload_of(folder: Path, batch_size: int) -> tuple[Schema, Config, Workload]:
    """Return the schema of a prepared folder, the settings for its rows, and the workload with their sizes."""
    schema = read_schema(folder)
    config = recipe(schema, batch_size)
    sizes = config.model.embedding_dim, config.model.hidden_widths
    return schema, config, Workload(config.train.batch_size, "float32", True, schema.vocabulary_size, *sizes)


def contender(name: str, folder: Path, batch_size: int, torch_folder: str = "") -> Callable[[int], Parts]:
    """Return a function that takes the steps of the contender `name`. native takes the step of `make train`.

    If `torch_folder` is given, PyTorch is imported from it.
    """
    if torch_folder:
        sys.path.insert(0, torch_folder)
    schema, config, workload = workload_of(folder, batch_size)
    step: Any
    rows, schedules = batches(folder, schema, config), list[Any]()
    if name == "native_vector":
        zeros = (0.0,) * VECTOR_WIDTH
        schema = replace(schema, vectors=(VectorField("vector", VECTOR_WIDTH, "none", zeros, zeros),))
        rows, config = with_vectors(rows), recipe(schema, batch_size)
    if name == "native_rowwise":
        rate = config.deep_optimizer.learning_rate
        config = replace(config, deep_optimizer=RowwiseAdagradOptions(learning_rate=rate))
    if name.startswith("native"):
        asked = replace(config, device=replace(config.device, precision="auto" if name == "native_auto" else "float32"))
        chosen, _ = precision.choose(asked, schema, num_ranks=1)
        config = replace(config, device=replace(config.device, precision=chosen))
        device.prepare_environment(config.device)
        device.select_device(config.device)
        from app.training import assemble

        step = assemble.assemble(config, schema, "native").step
    else:
        step, schedules = pytorch_step(name, workload, schema, config)

    def take(batch: Batch, prepared: Any) -> None:
        step(batch, prepared)
        for schedule in schedules:
            schedule.step()

    return steps_on_batches(step, take, rows)


def bound(batch: Batch, workload: Workload) -> Parts:
    """Return the least seconds that the parts of a step could take, by part.

    They come from the fastest of five matrix products and of five memory copies.
    """
    width = workload.embedding_dim
    widths = (batch.ids.shape[1] * width, *workload.hidden_widths, 1)
    products = sum(batch.num_rows * inputs * outputs for inputs, outputs in itertools.pairwise(widths))
    factors = np.ones((2, PRODUCT_SIZE, PRODUCT_SIZE), np.float32)
    product = min(seconds_of(lambda: factors[0] @ factors[1]) for _ in range(5))
    # Bytes that a step moves: the rows of all positions and their gradients, each written and read, and the distinct
    # rows with their moments, each read and written.
    copy = MemoryCopy(4 * width * (4 * batch.ids.size + 6 * len(np.unique(batch.ids))), workload.threads)
    return {"tower": 3 * products / PRODUCT_SIZE**3 * product, "tables": min(seconds_of(copy) for _ in range(5))}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=0, help="default: that of the recipe")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=60, help="of a contender's turn (60)")
    parser.add_argument("--contenders", nargs="+", choices=(*NATIVE, *PEERS), default=(*NATIVE, *PEERS))
    parser.add_argument("--torch", nargs="+", default=[], metavar="FOLDER", help="other releases of PyTorch")
    options = parser.parse_args()
    if not {*PEERS}.isdisjoint(options.contenders):
        require("torch")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "prepared"
        run_command("data_prep", "synthesize", "log.txt", "--rows", str(options.rows), folder=Path(work))
        run_command("data_prep", "prepare", "log.txt", "prepared", "--config", str(CONFIG), folder=Path(work))
        schema, config, workload = workload_of(folder, options.batch)
        names = tuple(name for name in (*NATIVE, *PEERS) if name in ("native", *options.contenders))
        # FBGEMM's libraries load only with the release of PyTorch that they were built for.
        of_pytorch = [name for name in names if name in PEERS and name != "fbgemm_rowwise"]
        names += tuple(f"{name}@{each}" for name in of_pytorch for each in options.torch)
        form = f"default recipe, V {schema.vocabulary_size:,}"
        group = DefaultGroup(form, workload, names, (folder, options.batch))
        load, result = os.getloadavg()[0], measure(group, options.rounds, options.steps)
        result["bound"] = least = bound(next(batches(folder, schema, config)), workload)
    share = sum(least.values()) / result["steps"]["native"]["median"]
    print(f"bound: {', '.join(f'{part} {1e3 * each:.2f}' for part, each in least.items())} ms, {share:.0%} of native")
    print_result(options, load_before=load, **result)


if __name__ == "__main__":
    main()
