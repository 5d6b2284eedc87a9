"""`python -m app evaluate`: evaluate a checkpoint, or each new one of a run, in one process or on several ranks."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from app import device
from app.batches import Batch, check_files
from app.checkpoint.manifest import MANIFEST, ManifestReader
from app.checkpoint.read import Checkpoint, DamagedCheckpointError
from app.checkpoint.retention import open_if_whole, step_folders
from app.cli import rank
from app.config.config import Config
from app.config.run_settings import Target
from app.distributed.mpirun import launch
from app.distributed.process_group import (
    ONE_PROCESS,
    ProcessGroup,
    on_all_ranks,
    shows_progress,
    started_by_mpi,
)
from app.evaluation.calibration import Calibration, fit_calibration
from app.evaluation.measure import Evaluation, best_on, check_split, intervals_of, measure
from app.evaluation.metric_text import describe, one_line
from app.evaluation.results import as_json, content_of, write_evaluation
from app.evaluation.slices import SliceStream, check_slices, find_parts
from app.run.decision import read_state
from app.run.folder import CONFIG_FILE, best_of_run, run_checkpoints
from app.run.identity import check_same_inputs
from app.run.older import read_config
from app.run.report import leave_report
from app.tables.interface import UniqueIds
from app.training.stop_signals import Stopped, StopRequest
from app.training.validate import check_group_field
from common import settings
from common.files import is_locked
from data_prep.prepared.schema import Schema, read_schema

log = logging.getLogger("app")

WRONG_INPUT = 2  # exit status


def add_parser(commands: Any) -> None:
    """Add the command to those of `python -m app`."""
    parser = commands.add_parser("evaluate", help="evaluate a checkpoint")
    parser.add_argument("--run", type=Path, default=Path("device_0"), metavar="DIR", help="run folder (device_0)")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="one checkpoint (the run's best, else newest)")
    parser.add_argument("--dataset", type=Path, metavar="DIR", help="prepared folder (the one it was trained on)")
    parser.add_argument("--split", default="test", help="train, valid or test (test)")
    parser.add_argument(
        "--follow",
        type=Path,
        metavar="RUN",
        help="evaluate each checkpoint of RUN as it is written, even if the run has not started yet",
    )
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="number of processes that share the rows (1)")
    parser.add_argument("--hostfile", default="", metavar="FILE", help="hosts of the processes (all on this one)")
    parser.add_argument("--target", choices=get_args(Target), help="where the tower runs (auto; with --follow the CPU)")
    parser.add_argument("--calibrate", action="store_true", help="fit the scores to the click rates of valid (Platt)")
    parser.add_argument(
        "--by",
        nargs="+",
        default=[],
        metavar="FIELD",
        help="metrics by the most frequent values of fields, by time and by unseen (values); after the settings",
    )
    parser.add_argument("settings", nargs="*", default=(), metavar="eval.key=value", help="such as eval.group_field=C3")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and return the exit status."""
    if arguments.ranks < 1:
        raise ValueError(f"--ranks must be 1 or more, found {arguments.ranks}")
    if arguments.follow is None:
        given: Path | None = arguments.checkpoint
        return _evaluate(arguments, Checkpoint.open(given) if given else best_of_run(arguments.run))
    arguments.run, arguments.target = arguments.follow, arguments.target or "CPU"
    worst = 0
    for checkpoint in new_checkpoints(arguments.run):
        try:
            status = _evaluate_while_kept(arguments, checkpoint)
        except DamagedCheckpointError as error:
            log.error("error: %s is skipped: %s", checkpoint.path, error)
            worst = WRONG_INPUT
            continue
        if status:
            return status
    return worst


def _evaluate_while_kept(arguments: argparse.Namespace, checkpoint: Checkpoint) -> int:
    """Evaluate a checkpoint that a training may remove or compact meanwhile; returns the exit status.

    One that was removed is passed over, one that was compacted is read again.
    """
    while True:
        try:
            status = _evaluate(arguments, checkpoint)
        except (OSError, ValueError):
            if checkpoint.is_kept():
                raise
        else:
            if status != WRONG_INPUT or checkpoint.is_kept():
                return status
        try:
            checkpoint = Checkpoint.open(checkpoint.path)
        except (FileNotFoundError, ValueError):
            log.warning("warning: %s was removed before it was evaluated", checkpoint.path)
            return 0


def _evaluate(arguments: argparse.Namespace, checkpoint: Checkpoint) -> int:
    foreign = [word for word in arguments.settings if not word.startswith("eval.")]
    if foreign:
        raise ValueError(f"argument {foreign[0]!r}: only eval.* can be changed here; the rest is the checkpoint's")
    config = settings.override(saved_config(checkpoint), arguments.settings)
    group: ProcessGroup = ONE_PROCESS
    data = check_data(checkpoint, arguments.split, arguments.dataset, config)  # before the slow start
    check_slices(arguments.by, data[1], arguments.split)
    if arguments.calibrate:
        check_split(*data, "valid")
    if started_by_mpi():
        group = rank.join(config, data[1], arguments.ranks, 0, {"checkpoint": checkpoint.manifest.id})
    elif arguments.ranks > 1:
        status = launch(arguments.ranks, arguments.hostfile, _words(arguments, checkpoint.path))
        if status == WRONG_INPUT and arguments.follow:
            checkpoint.verify()  # raises if it is damaged: a job ends with a status alone
        return status
    try:
        target: Target = arguments.target or "auto"
        evaluation = evaluate_on_device(
            checkpoint, arguments.split, data, config, group, target, arguments.by, arguments.calibrate
        )
    except Stopped as stopped:
        log.info("stopped: %s", stopped)
        return stopped.exit_status
    if group.rank == 0:
        write_results(arguments.run, checkpoint.path, evaluation)
    return 0


def _words(arguments: argparse.Namespace, path: Path) -> list[str]:
    """Return the command line of a rank that evaluates this checkpoint."""
    words = ["evaluate", "--run", str(arguments.run), "--checkpoint", str(path), "--split", arguments.split]
    words += ["--ranks", str(arguments.ranks)]
    for name, value in (("--dataset", arguments.dataset), ("--target", arguments.target)):
        words += [name, str(value)] if value else []
    words += ["--calibrate"] if arguments.calibrate else []
    return [*words, *arguments.settings, *(["--by", *arguments.by] if arguments.by else [])]


def evaluate_on_device(
    checkpoint: Checkpoint,
    split: str,
    data: tuple[Path, Schema],
    config: Config,
    group: ProcessGroup,
    target: Target = "auto",
    by: Sequence[str] = (),
    calibrate: bool = False,
) -> Evaluation:
    """Evaluate as `evaluate_checkpoint`, on the device `target`. Raises Stopped after a signal."""
    options = replace(config.device, target=target)  # threads and precision as in training
    device.prepare_environment(options)
    device.select_device(options)
    with StopRequest(0, all_reduce_max=group.all_reduce_max, ending="finishing the batch") as stop:
        return evaluate_checkpoint(checkpoint, split, data, config, group, stop.check, by, calibrate)


def write_results(folder: Path, path: Path, evaluation: Evaluation) -> None:
    """Print the evaluation, and write it to the folder of the checkpoint's run."""
    print(describe(evaluation))
    if folder.resolve() in path.resolve().parents:
        content = content_of(
            evaluation.split,
            evaluation.step,
            evaluation.epoch,
            evaluation.measured,
            evaluation.intervals,
            evaluation.best,
        )
        content |= {"slices": [as_json(asdict(each)) for each in evaluation.slices]} if evaluation.slices else {}
        content |= {"calibrated": str(evaluation.calibration)} if evaluation.calibration else {}
        write_evaluation(folder, content)
        with (folder / "eval.log").open("a", encoding="utf-8") as eval_log:
            eval_log.write(one_line(evaluation.split, evaluation.epoch, evaluation.step, evaluation.metrics) + "\n")
        leave_report(folder)


POLL_SECONDS = 2.0

RESUME_SECONDS = 60.0  # for what starts a run again that was stopped or killed: a scheduler, a loop in a shell
# How a run ended of which no process holds the lock, by the status that its run.json was left with.
ENDS = {"finished": "has finished", "stopped": "was stopped", "failed": "failed", "running": "was killed"}


def new_checkpoints(run_path: Path, wait: Callable[[float], object] = time.sleep) -> Iterator[Checkpoint]:
    """Yield each whole checkpoint of a run, present and future ones, in the order of steps.

    Waits for a run that has not begun. A run is active as long as a process holds the lock of its folder. Ends when the
    run has finished and all checkpoints were given, and RESUME_SECONDS after it was stopped or killed, where nothing
    resumes it meanwhile. A checkpoint that is removed before its turn is passed over.
    """
    given: set[str] = set()
    idle_seconds, waits_for = 0.0, ""
    read = ManifestReader()
    while True:
        runs = is_locked(run_path)  # asked first: what was saved before the end is seen below
        has_begun = (run_path / CONFIG_FILE).is_file()
        status = read_state(run_path).get("status", "running")
        num_given = len(given)
        for path in step_folders(run_checkpoints(run_path)) if has_begun else ():
            checkpoint = open_if_whole(path, read)
            if isinstance(checkpoint, Checkpoint) and checkpoint.manifest.id not in given:
                given.add(checkpoint.manifest.id)
                yield checkpoint
        if runs or len(given) > num_given:  # it may have been resumed while its last checkpoints were evaluated
            idle_seconds = 0.0
            if len(given) > num_given:
                continue
        elif has_begun:
            end = ENDS.get(status, f"ended with status {status!r}")
            if status == "finished" or idle_seconds >= RESUME_SECONDS:
                log.info(
                    "the run in %s %s, and its %d checkpoint(s) that were seen are done", run_path, end, len(given)
                )
                return
            if idle_seconds == 0:
                log.info("the run in %s %s; waiting %.0f s for it to be resumed", run_path, end, RESUME_SECONDS)
            idle_seconds += POLL_SECONDS
        missing = "" if given else "its first checkpoint" if has_begun else "it to begin"
        if missing and missing != waits_for:
            waits_for = missing
            log.info("the run in %s: waiting for %s", run_path, missing)
        wait(POLL_SECONDS)


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    split: str,
    data: tuple[Path, Schema],
    config: Config,
    group: ProcessGroup = ONE_PROCESS,
    check: Callable[[], None] = lambda: None,
    by: Sequence[str] = (),
    calibrate: bool = False,
) -> Evaluation:
    """Evaluate one checkpoint on a split of `data`, which `check_data` returned.

    The ranks of `group` share rows and tables, and each gets the whole result. `check` is called before each batch, and
    may raise. `by` as in `check_slices`; with `calibrate` the scores are calibrated on valid first.
    """
    from app.training.assemble import load_for_scoring

    folder, schema = data
    batch_size = config.eval.batch_size or config.train.batch_size
    load = partial(load_for_scoring, checkpoint, config, schema, batch_size, group)
    scorer = on_all_ranks(group, load)

    def score(batch: Batch, ids: UniqueIds) -> np.ndarray:
        check()
        logits = scorer(batch, ids)
        return calibration(logits) if calibration else logits

    calibration: Calibration | None = None
    if calibrate:
        if split == "valid":
            log.warning("warning: the scores are calibrated on valid and measured there, which flatters them")
        valid = measure(folder, schema, "valid", batch_size, scorer.prepare, score, show_progress=shows_progress())
        calibration = fit_calibration(valid.bins, valid.metrics.rows)
    streams = [SliceStream(find_parts(name, folder, schema, split)) for name in by]
    field, shown = config.eval.group_field, shows_progress()
    measured = measure(folder, schema, split, batch_size, scorer.prepare, score, field, shown, streams)
    slices = [each for stream in streams for each in stream.result(config.eval.bootstrap, config.train.seed)]
    best = best_on(folder, schema, split)
    intervals = intervals_of(measured, config)
    manifest = checkpoint.manifest
    epoch = manifest.position.last_epoch
    found = (measured, intervals, best, slices, calibration)
    return Evaluation(checkpoint.path, manifest.step, epoch, split, *found)


def check_data(checkpoint: Checkpoint, split: str, dataset: Path | None, config: Config) -> tuple[Path, Schema]:
    """Return the prepared folder to evaluate on, and its schema.

    Raises ValueError where they do not belong together, and for a split without rows.
    """
    folder = dataset or Path(checkpoint.manifest.dataset)
    schema = read_schema(folder)
    check_files(folder, schema)
    check_same_inputs(checkpoint.manifest, schema, folder)
    check_group_field(config.eval, schema)
    check_split(folder, schema, split)
    return folder, schema


def saved_config(checkpoint: Checkpoint) -> Config:
    """Return the settings of the run that wrote a checkpoint."""
    return read_config(checkpoint.manifest.config, where=str(checkpoint.path / MANIFEST))
