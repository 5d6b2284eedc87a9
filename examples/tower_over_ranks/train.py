"""Train a Wide&Deep model whose tower lies on several ranks: `bash run.sh RANKS MODE PREPARED [options]`.

The modes are data (the whole tower on each rank), split (semi-automatic: the strategies that are given), automatic,
pipeline and recompute. README.md has a command for each.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

# For each mode, the options that it reads besides those that all modes read.
SPLIT_OPTIONS = ("strategy", "strategy_file", "optimizer_shards")
MODES = {
    "data": (),
    "split": SPLIT_OPTIONS,
    "automatic": SPLIT_OPTIONS,
    "pipeline": ("micro_batches", "second_stage"),
    "recompute": ("recompute",),
}
PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))


def parse_arguments() -> argparse.Namespace:
    """Parse the command line. Exit with a usage error for an option that the chosen mode does not read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=tuple(MODES))
    parser.add_argument("prepared", type=Path, help="a folder that python -m data_prep prepare made")
    parser.add_argument(
        "--strategy",
        action="append",
        default=[],
        metavar="LAYER=((a, b), (b, c))",
        help="how the ranks split a layer's product",
    )
    parser.add_argument("--strategy-file", type=Path, help="the strategy.json of another training, for its strategies")
    parser.add_argument("--optimizer-shards", action="store_true", help="split the optimizer's state (ZeRO 1)")
    parser.add_argument("--micro-batches", type=int, default=4, help="parts of the batch in a pipeline (4)")
    parser.add_argument("--second-stage", default="", metavar="LAYER", help="first layer of a pipeline's second stage")
    parser.add_argument(
        "--recompute", default="all", help="all, or layers and runs of them: matrix_0:matrix_2,matrix_4"
    )
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="save the trained model there")
    parser.add_argument("--slices", action="store_true", help="with --save: each rank saves the slices that it holds")
    parser.add_argument("--load", type=Path, metavar="FOLDER", help="go on from what --save left, under any mode")
    parser.add_argument("--config", type=Path, default=PROJECT / "configs" / "tiny.yaml", help="settings (tiny.yaml)")
    parser.add_argument("settings", nargs="*", metavar="section.key=value", help="such as train.epochs=2")
    arguments = parser.parse_intermixed_args()
    for name in sorted({name for names in MODES.values() for name in names} - set(MODES[arguments.mode])):
        if getattr(arguments, name) != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} is not for the mode {arguments.mode}")
    if arguments.slices and not arguments.save:
        parser.error("--slices needs --save FOLDER")
    return arguments


def train(arguments: argparse.Namespace) -> None:
    """Train a model as the arguments say, print the losses of each step, and save the model.

    Raise ValueError or FileNotFoundError for a wrong argument.
    """
    from app.config import device
    from app.config.config import Config
    from common import yaml_settings

    config = yaml_settings.resolve(Config, arguments.config, arguments.settings)
    device.prepare_environment(config.device)  # before MindSpore is imported
    target = device.select_device(config.device)
    from examples.tower_over_ranks import saving
    from examples.tower_over_ranks.training import Training, mode_class
    from examples.tower_over_ranks.whole_tower import Options

    strategies = saving.read_strategies(arguments.strategy_file) if arguments.strategy_file else {}
    options = Options(
        strategies | dict(text.partition("=")[::2] for text in arguments.strategy),
        arguments.mode == "automatic",
        arguments.optimizer_shards,
        arguments.second_stage,
        arguments.micro_batches,
        tuple(arguments.recompute.split(",")),
    )
    training = Training(config, arguments.prepared, mode_class(arguments.mode, target), options)
    done = saving.load(arguments.load, training) if arguments.load else 0
    last = done + config.train.epochs
    for epoch in range(done + 1, last + 1):
        for number, losses in enumerate(training.train_epoch(epoch), 1):
            if training.group.rank == 0:
                place = f"epoch: {epoch} step: {number}"
                print(f"{place}, wide_loss is {losses.wide_loss:.7f}, deep_loss is {losses.deep_loss:.7f}", flush=True)
        metrics = training.evaluate()
        if training.group.rank == 0:
            print(f"epoch: {epoch} valid: auc is {metrics.auc:.6f}, log_loss is {metrics.log_loss:.6f}", flush=True)
    if arguments.save:
        saving.save(arguments.save, training, last, arguments.slices)
        saving.write_strategy(arguments.save, arguments.mode, training)


def main(arguments: argparse.Namespace) -> int:
    """Train in this process as one of the ranks. Return the exit status."""
    from app.distributed.process_group import mark_collective
    from app.run.rank import fail

    try:
        train(arguments)
    except (ValueError, FileNotFoundError) as error:  # All ranks have the same arguments, so all of them raise it.
        return fail(mark_collective(error), 2)
    return 0


if __name__ == "__main__":
    from app.run.rank import run_as_rank

    logging.basicConfig(format="%(message)s")
    parsed = parse_arguments()
    sys.exit(run_as_rank(lambda: main(parsed), console_rank=0))
