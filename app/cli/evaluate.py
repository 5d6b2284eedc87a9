"""`python -m app evaluate`: evaluate one checkpoint, or each checkpoint that a run writes (--follow), in one process or
on several ranks.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any, get_args

from app.checkpoint.read import Checkpoint
from app.config.device import Target
from app.distributed.mpirun import check_num_processes, launch
from app.distributed.process_group import ONE_PROCESS, ProcessGroup
from app.evaluation.measure import describe
from app.run import rank
from app.run.folder import named_or_best
from app.run.report import NOT_WRITTEN
from app.run.stop_signals import Stopped
from app.scoring.trained.follow import WRONG_INPUT, follow
from app.scoring.trained.trained_model import check_evaluation, evaluate, open_trained, save_evaluation
from common.arguments import add_shared
from common.process import started_by_mpi
from common.text import show

log = logging.getLogger("app")


def add_parser(commands: Any) -> None:
    """Add the command `evaluate` with its arguments to the parser of `python -m app`."""
    parser = commands.add_parser("evaluate", help="evaluate a checkpoint")
    add_shared(parser, "--run")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="checkpoint to evaluate, or its name in the run (the best of the run, else the newest)",
    )
    add_shared(parser, "--dataset", "--split")
    parser.add_argument(
        "--follow",
        type=Path,
        metavar="RUN",
        help="evaluate each checkpoint of RUN as it is written, even if the run has not started yet",
    )
    add_shared(parser, "--ranks", help="number of processes that share the rows (%(default)s)")
    add_shared(parser, "--hostfile", "--calibrate")
    parser.add_argument("--target", choices=get_args(Target), help="where the tower runs (auto; with --follow the CPU)")
    parser.add_argument(
        "--by",
        action="extend",
        nargs="+",
        default=[],
        metavar="FIELD",
        help="also print metrics by the values or numbers of these fields; time and unseen count as fields",
    )
    add_shared(parser, "settings", metavar="eval.key=value", help="such as eval.group_field=C3")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command: evaluate a checkpoint, or with --follow each checkpoint of a run. Print and save the metrics,
    and return the exit status.
    """
    # `--by` takes all words up to the next option, so settings such as eval.bootstrap=100 may be among its words. Move
    # them to the settings.
    arguments.settings = [*arguments.settings, *(word for word in arguments.by if word.startswith("eval."))]
    arguments.by = [word for word in arguments.by if not word.startswith("eval.")]
    check_num_processes(arguments.ranks, host_file=arguments.hostfile)
    if arguments.follow is not None:
        arguments.run, arguments.target = arguments.follow, arguments.target or "CPU"
        if not started_by_mpi():  # A rank evaluates only the checkpoint that its command line names.
            return follow(arguments.run, lambda checkpoint: _evaluate(arguments, checkpoint))
    return _evaluate(arguments, named_or_best(arguments.run, arguments.checkpoint))


def _evaluate(arguments: argparse.Namespace, checkpoint: Checkpoint) -> int:
    foreign = [word for word in arguments.settings if not word.startswith("eval.")]
    if foreign:
        raise ValueError(f"argument {foreign[0]!r}: only eval.* can be changed here; the rest is the checkpoint's")
    trained = open_trained(checkpoint, arguments.dataset, arguments.settings)
    trained = trained.with_device(target=arguments.target or "auto")
    what = (arguments.split, arguments.by, arguments.calibrate)
    # Check the arguments before MindSpore is imported, which takes seconds.
    check_evaluation(trained, *what)
    group: ProcessGroup = ONE_PROCESS
    if started_by_mpi():
        group = rank.join(trained.config, trained.schema, arguments.ranks, 0, {"checkpoint": checkpoint.manifest.id})
    elif arguments.ranks > 1:
        # The ranks get the words of this command line. The last --checkpoint counts.
        words = [*arguments.words, "--checkpoint", str(checkpoint.path)]
        status = launch(arguments.ranks, arguments.hostfile, words, trained.config.cluster.timeout_s)
        if status == WRONG_INPUT and arguments.follow:
            # The ranks failed, but their exit status does not say whether a damaged checkpoint was the reason. If it
            # was, `verify` raises an error, and `follow` then skips this checkpoint.
            checkpoint.verify()
        return status
    try:
        evaluation = evaluate(trained, *what, group)
    except Stopped as stopped:
        log.info("stopped: %s", stopped)
        return stopped.exit_status
    if group.rank == 0:
        show(describe(evaluation))
        return NOT_WRITTEN if save_evaluation(evaluation, arguments.run) else 0
    return 0
