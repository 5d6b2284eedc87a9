"""`python -m app evaluate`: a checkpoint judged, or each one of a run as it comes, by one process or several ranks."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from app import device, ranks
from app.checkpoint.manifest import read_manifest
from app.checkpoint.read import DamagedCheckpointError
from app.checkpoint.retention import is_kept
from app.config.config import Config
from app.config.run import Target
from app.distributed.launch import launch
from app.distributed.process_group import ProcessGroup, SingleProcess, started_by_mpi
from app.evaluation.evaluate import Evaluation, check_data, evaluate_checkpoint, saved_config
from app.evaluation.results import content_of, write_evaluation
from app.evaluation.text import describe, one_line
from app.follow import new_checkpoints
from app.run.folder import best_of_run
from app.run.report import leave_report
from app.stopping import Stopped, StopRequest
from common import settings

log = logging.getLogger("app")

WRONG_INPUT = 2  # exit status


def add_parser(commands: Any) -> None:
    """Add the command to those of `python -m app`."""
    parser = commands.add_parser("evaluate", help="judge a checkpoint")
    parser.add_argument("--run", type=Path, default=Path("device_0"), metavar="DIR", help="run folder (device_0)")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="one checkpoint (the run's best, else newest)")
    parser.add_argument("--dataset", type=Path, metavar="DIR", help="prepared folder (the one it was trained on)")
    parser.add_argument("--split", default="test", help="train, valid or test (test)")
    parser.add_argument(
        "--follow",
        type=Path,
        metavar="RUN",
        help="judge each checkpoint of RUN as it comes, also of a run that is yet to begin",
    )
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="number of processes that share the rows (1)")
    parser.add_argument("--hostfile", default="", metavar="FILE", help="hosts of the processes (all on this one)")
    parser.add_argument("--target", choices=get_args(Target), help="where the tower runs (auto; with --follow the CPU)")
    parser.add_argument("settings", nargs="*", metavar="eval.key=value", help="such as eval.group_field=C3")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Judge what is asked for, and return the exit status."""
    if arguments.ranks < 1:
        raise ValueError(f"--ranks must be 1 or more, found {arguments.ranks}")
    if arguments.follow is None:
        return _evaluate(arguments, arguments.checkpoint or best_of_run(arguments.run))
    arguments.run, arguments.target = arguments.follow, arguments.target or "CPU"
    worst = 0
    for path in new_checkpoints(arguments.run):
        try:
            status = _evaluate_while_kept(arguments, path)
        except DamagedCheckpointError as error:
            log.error("error: %s", error)
            worst = WRONG_INPUT
            continue
        if status:
            return status
    return worst


def _evaluate_while_kept(arguments: argparse.Namespace, path: Path) -> int:
    """Evaluate a checkpoint that a training may remove or compact meanwhile; returns the exit status.

    One that was removed is passed over, one that was compacted is read again.
    """
    while True:
        try:
            manifest = read_manifest(path)
        except (FileNotFoundError, ValueError):
            log.warning("warning: %s was removed before it was evaluated", path)
            return 0
        try:
            status = _evaluate(arguments, path)
        except (OSError, ValueError):
            if is_kept(path, manifest):
                raise
        else:
            if status != WRONG_INPUT or is_kept(path, manifest):
                return status


def _evaluate(arguments: argparse.Namespace, path: Path) -> int:
    foreign = [word for word in arguments.settings if not word.startswith("eval.")]
    if foreign:
        raise ValueError(f"argument {foreign[0]!r}: only eval.* can be changed here; the rest is the checkpoint's")
    config = settings.override(saved_config(path), arguments.settings)
    group: ProcessGroup = SingleProcess()
    _, schema = check_data(path, arguments.split, arguments.dataset, config)  # before the slow start
    if started_by_mpi():
        group = ranks.join(config, schema, arguments.ranks, 0, {"checkpoint": read_manifest(path).id})
    elif arguments.ranks > 1:
        return launch(arguments.ranks, arguments.hostfile, _words(arguments, path))
    try:
        judged = _judge(arguments, path, config, group)
    except Stopped as stopped:
        log.info("stopped: %s", stopped)
        return stopped.exit_status
    if group.rank == 0:
        _leave(arguments.run, path, judged)
    return 0


def _words(arguments: argparse.Namespace, path: Path) -> list[str]:
    """The command line of a rank that judges this one checkpoint."""
    words = ["evaluate", "--run", str(arguments.run), "--checkpoint", str(path), "--split", arguments.split]
    words += ["--ranks", str(arguments.ranks)]
    for name, value in (("--dataset", arguments.dataset), ("--target", arguments.target)):
        words += [name, str(value)] if value else []
    return [*words, *arguments.settings]


def _judge(arguments: argparse.Namespace, path: Path, config: Config, group: ProcessGroup) -> Evaluation:
    options = replace(config.device, target=arguments.target or "auto")  # threads and precision as in training
    device.prepare_environment(options)
    device.select_device(options)
    with StopRequest(0, agree=group.agree, ending="finishing the batch") as stop:
        return evaluate_checkpoint(path, arguments.split, arguments.dataset, config, group, stop.check)


def _leave(folder: Path, path: Path, judged: Evaluation) -> None:
    """Print the evaluation, and keep it in the folder of the run that the checkpoint belongs to."""
    print(describe(judged))
    if folder.resolve() in path.resolve().parents:
        content = content_of(judged.split, judged.step, judged.epoch, judged.measured, judged.intervals, judged.best)
        write_evaluation(folder, content)
        with (folder / "eval.log").open("a", encoding="utf-8") as eval_log:
            eval_log.write(one_line(judged.split, judged.epoch, judged.step, judged.metrics) + "\n")
        leave_report(folder)
