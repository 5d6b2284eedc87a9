"""`python -m app train`: check everything, open the run's folder, train; each way to end has its exit status."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app import device
from app.batches import check_files
from app.checkpoint.read import DamagedCheckpointError
from app.cli import rank
from app.cli.validate import validate, validate_target
from app.config.config import Config
from app.distributed.launch import USELESS, check_rank_table, launch
from app.distributed.process_group import ProcessGroup, SingleProcess, max_rank_rows, started_by_mpi
from app.run.folder import RunIsFinishedError, check_launch, open_run
from app.run.plan import describe_kept, read_state, settings_of_run
from app.run.report import leave_report
from app.run.training_loss import why_useless
from app.tables import pick_backend
from app.training.context import RunContext
from app.training.parallel.pipeline.plan import describe_pipeline, plan_pipeline
from app.training.parallel.strategy_file import STRATEGY_FILE, read_strategies, strategy_record, write_strategy
from app.training.parallel.tensor.plan import describe_plan, plan_run, run_shapes
from app.training.stopping import Stopped, StopRequest
from app.training.warm_start.source import check_source
from common import settings
from data_prep.prepared.schema import Schema, read_schema

log = logging.getLogger("app")

NOT_WRITTEN = 3  # exit status

USELESS_BECAUSE = "useless_because"  # of run.json


def add_parser(commands: Any) -> None:
    """Add the command to those of `python -m app`."""
    parser = commands.add_parser("train", help="train a new run, or resume the one in ./device_0")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    parser.add_argument("--dataset", type=Path, required=True, metavar="DIR", help="the prepared folder")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="number of processes that train (1)")
    parser.add_argument("--servers", type=int, default=0, metavar="N", help="further processes that own all rows (0)")
    parser.add_argument("--hostfile", default="", metavar="FILE", help="hosts of the processes (all on this host)")
    parser.add_argument("--rank-table", default="-", metavar="FILE", help="rank table of an Ascend cluster, or -")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print where the parts run, stop")
    parser.add_argument("settings", nargs="*", metavar="section.key=value", help="settings (docs/configuration.md)")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Train, and return the exit status."""
    config = settings.resolve(Config, arguments.config, arguments.settings)
    schema = read_schema(arguments.dataset)
    check_files(arguments.dataset, schema)
    asked = read_strategies(config, schema)
    config = settings_of_run(Path.cwd() / "device_0", asked, schema)
    # Everything that can fail for a wrong setting comes before the run folder is opened, which may rename an older run.
    device.prepare_environment(config.device)
    num_processes = arguments.ranks + arguments.servers
    backend = pick_backend(config.tables.backend, config.model.fold_numeric, num_processes)
    validate(config, schema, arguments.ranks, arguments.servers, backend)
    if arguments.rank_table != "-":
        check_rank_table(Path(arguments.rank_table), arguments.ranks)
    if not started_by_mpi() and not arguments.dry_run:
        try:  # before the slow import of MindSpore; `open_run` checks it again
            check_launch(Path.cwd(), config, schema, lambda: check_source(config, schema))
        except RunIsFinishedError as finished:
            return _report_finished(finished)
    if num_processes > 1 and not started_by_mpi() and not arguments.dry_run:
        return launch(num_processes, arguments.hostfile, arguments.words)
    group: ProcessGroup = SingleProcess()
    if started_by_mpi():
        what, folder = {"tables": backend}, Path.cwd() / config.checkpoint.dir
        group = rank.join(config, schema, arguments.ranks, arguments.servers, what, folder)
        if group.world.rank < arguments.servers:
            from app.cli.server import serve  # loads MPI, which one process does not need

            return serve(config, schema, backend, group, Path.cwd())
    target = device.select_device(config.device)
    validate_target(config, target)
    if target == "CPU" and (unused := config.parallel.unused_on_cpu()):
        log.warning("warning: %s: for Ascend and GPU only; ignored on a CPU", ", ".join(unused))
    if arguments.dry_run:
        _print_placement(config, schema, target, backend, arguments.ranks)
        return 0
    # One process finds a damaged checkpoint as it loads it, which reads each byte once; several ranks verify it before.
    damaged: dict[Path, str] | None = {} if isinstance(group, SingleProcess) else None
    while True:
        try:
            return _run_in_folder(config, asked, backend, target, arguments.dataset, schema, group, damaged)
        except RunIsFinishedError as finished:
            with group:  # so that servers end
                return _report_finished(finished)
        except DamagedCheckpointError as error:
            if damaged is None or error.checkpoint is None or error.checkpoint in damaged:
                raise
            damaged[error.checkpoint] = str(error)


def _report_finished(finished: RunIsFinishedError) -> int:
    log.info("%s", finished)
    useless_because = read_state(finished.path).get(USELESS_BECAUSE, "")
    return _warn_of_useless(useless_because) if useless_because else 0


def _warn_of_useless(reason: str) -> int:
    log.warning("warning: the training did not learn: %s; its checkpoints are kept; try smaller learning rates", reason)
    return USELESS


def _run_in_folder(
    config: Config,
    asked: Config,
    backend: str,
    target: str,
    dataset: Path,
    schema: Schema,
    group: ProcessGroup,
    damaged: dict[Path, str] | None,
) -> int:
    """Open the run's folder and train; raise DamagedCheckpointError if the checkpoint to resume is damaged."""
    folder, lock = open_run(Path.cwd(), config, schema, group, lambda: check_source(config, schema), damaged, asked)
    config = folder.config
    with (
        lock,
        StopRequest(config.train.time_limit, all_reduce_max=group.all_reduce_max) as stop,
        _log_to(folder.log_path),
    ):
        verb = {"new": "Starting", "resume": "Resuming", "continue": "Continuing"}[folder.plan.kind]
        log.info("%s %s (%s)", verb, folder.path, folder.plan.reason)
        for refused in folder.plan.refused.values():
            log.warning("warning: a newer checkpoint is not used: %s", refused)
        for line in describe_kept(asked, config):
            log.info("%s", line)
        log.info("the tower runs on %s, the tables are %s, %d host threads", target, backend, config.device.num_threads)
        if group.size > 1:
            log.info("rank %d of %d, which share batches of %d rows", group.rank, group.size, config.train.batch_size)
        if config.parallel.is_spread:
            write_strategy(folder.path / STRATEGY_FILE, strategy_record(config, schema, group.size))
        else:
            (folder.path / STRATEGY_FILE).unlink(missing_ok=True)  # an earlier launch of this run may have written it
        try:
            with group:
                return _train(RunContext(config, dataset, schema, folder, stop, group), backend)
        except DamagedCheckpointError as error:
            error.checkpoint = folder.plan.checkpoint.path if folder.plan.checkpoint else None
            raise


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Copy the log to a file."""
    log_file = logging.FileHandler(path, encoding="utf-8")
    log_file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.getLogger().addHandler(log_file)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(log_file)
        log_file.close()


def _train(context: RunContext, backend: str) -> int:
    """Train, write the run's status and report to its folder, and return the exit status."""
    from app.training.loop import Trainer
    from app.training.saving import NotSavedError

    exit_status, run = 0, context.run
    try:
        Trainer(context, backend).train()
    except Stopped as stopped:
        exit_status = stopped.exit_status
        run.set_status("stopped")
        log.info("stopped after saving: %s; run the same command to resume", stopped)
    except DamagedCheckpointError:
        if run.plan.checkpoint is None:  # of a warm start
            run.set_status("failed")
        raise
    except NotSavedError as error:
        run.set_status("failed")
        log.error("error: %s", error)
    except BaseException as error:
        run.set_status("failed")
        log.info("the run stopped: %s: %s", type(error).__name__, error)
        leave_report(run.path)
        raise
    else:
        reason = why_useless(run.loss_path, context.schema.splits["train"], context.config.loss.label_smoothing)
        run.set_status("finished", **({USELESS_BECAUSE: reason} if reason else {}))
        log.info("finished; evaluate it on the test rows with: make eval")
        if reason:
            exit_status = _warn_of_useless(reason)
    unwritten = [*run.write_errors(), *leave_report(run.path)]
    if unwritten:
        log.error("error: could not write %s", ", ".join(unwritten))
        return NOT_WRITTEN
    return exit_status


def _print_placement(config: Config, schema: Schema, target: str, backend: str, num_ranks: int) -> None:
    from app.config.optimizers import FtrlOptions
    from app.training.step.stock_tables import describe_placement, placed_ops

    print(f"tower: on {target}")
    if backend == "stock":
        assert isinstance(config.wide_optimizer, FtrlOptions)
        for line in describe_placement(placed_ops(config.wide_optimizer)):
            print(line)
    else:
        print(f"tables: {backend}, on the host, outside the graph")
    shapes = run_shapes(config, schema)
    lines = []
    if config.parallel.pipeline_stages > 1:
        lines = describe_pipeline(plan_pipeline(config.parallel, shapes, num_ranks), shapes)
    elif config.parallel.is_sharded:
        rows = max_rank_rows(config.train.batch_size, num_ranks) * num_ranks
        lines = describe_plan(plan_run(shapes, config.parallel, rows, num_ranks))
    for line in lines:
        print(line)
