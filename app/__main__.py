"""The command line: `python -m app {train,evaluate,report,checkpoint}`.

Exit status: 0 done, or train.time_limit is up; 1 the training stopped (not finite); 2 wrong input or settings; 3 not
all could be written; 4 the training ended with a loss above that of predicting the click rate; 130 after Ctrl-C, 143
after SIGTERM.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":  # the threads that libraries make as they are imported leave signals to others, see stopping
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))

from common.packages import require

require("mindspore", "numpy", "pyarrow", "safetensors", "xxhash", "yaml")

from app import checkpoint_commands, device, evaluate_command, ranks
from app.batches import check_files
from app.checkpoint.read import DamagedCheckpointError
from app.config.config import Config
from app.config.schedules import ConstantSchedule
from app.distributed.launch import USELESS, check_rank_table, launch
from app.distributed.process_group import ProcessGroup, SingleProcess, started_by_mpi
from app.evaluation.selection import check_evaluation
from app.run.folder import RunFolder, RunIsFinishedError, check_launch, open_run
from app.run.plan import describe_kept, read_state, settings_of_run
from app.run.report import REPORT_FILE, leave_report, write_report
from app.run.training_loss import why_useless
from app.sharding.check_run import check_pipeline, check_run, check_target, read_strategies, run_shapes, strategy_record
from app.sharding.pipeline_plan import describe_pipeline
from app.sharding.strategy_file import STRATEGY_FILE, write_strategy
from app.sharding.tower_plan import describe_plan
from app.stopping import Stopped, StopRequest
from app.tables import pick_backend
from app.tables.checks import check_supported
from app.warm_start_source import check_source
from common import settings
from common.console import STOPPED_BY_READER, has_no_reader, log_to_console
from data_prep.prepared.schema import Schema, read_schema
from data_prep.suspect import check_ids

log = logging.getLogger("app")

NOT_WRITTEN = 3  # exit status
USELESS_BECAUSE = "useless_because"  # of run.json


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(words)
    options.words = words
    log_to_console()
    speaker = getattr(options, "servers", 0)  # the first rank that trains
    return ranks.run_as_rank(lambda: _run(options), speaker) if started_by_mpi() else _run(options)


def _run(options: argparse.Namespace) -> int:
    try:
        status = options.command(options) or 0
        sys.stdout.flush()
        return status
    except FloatingPointError as error:
        return ranks.fail(error, 1)
    except (ValueError, OSError, MemoryError) as error:
        return STOPPED_BY_READER if has_no_reader(error) else ranks.fail(error, 2)
    except KeyboardInterrupt:
        advice = "; the same command goes on from the last checkpoint" if options.command is _train else ""
        return ranks.fail(KeyboardInterrupt(f"stopped by Ctrl-C{advice}"), 130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m app", description="Train and judge Wide&Deep models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train, or go on with, the run in ./device_0")
    train.add_argument("--config", type=Path, metavar="FILE", help="YAML file with the run's settings")
    train.add_argument("--dataset", type=Path, required=True, metavar="DIR", help="the prepared folder")
    train.add_argument("--ranks", type=int, default=1, metavar="N", help="number of processes (1)")
    train.add_argument("--servers", type=int, default=0, metavar="N", help="more processes, which own all rows (0)")
    train.add_argument("--hostfile", default="", metavar="FILE", help="hosts of the processes (all on this one)")
    train.add_argument("--rank-table", default="-", metavar="FILE", help="rank table of an Ascend cluster, or -")
    train.add_argument("--dry-run", action="store_true", help="check everything, print where the table ops run, stop")
    train.add_argument("settings", nargs="*", metavar="section.key=value", help="changes to the settings")
    train.set_defaults(command=_train)

    evaluate_command.add_parser(commands)
    report = commands.add_parser("report", help="draw one run, or several over one another, as a page")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders such as device_0")
    report.add_argument(
        "--output", type=Path, metavar="FILE", help="the page (RUN/report.html; of several ./report.html)"
    )
    report.set_defaults(command=_report)
    checkpoint_commands.add_parser(commands)
    return parser


def _train(arguments: argparse.Namespace) -> int:
    config = settings.resolve(Config, arguments.config, arguments.settings)
    if arguments.ranks < 1:
        raise ValueError(f"RANK_SIZE must be 1 or more, found {arguments.ranks}")
    if arguments.servers < 0:
        raise ValueError(f"SERVERS must be 0 or more, found {arguments.servers}")
    if arguments.rank_table != "-":
        check_rank_table(Path(arguments.rank_table), arguments.ranks)
    schema = read_schema(arguments.dataset)
    check_ids(schema, arguments.dataset)
    check_files(arguments.dataset, schema)
    optimizers = (config.wide_optimizer, config.deep_optimizer, config.tower_optimizer)
    check_evaluation(config.eval, schema, plateau=any(o.schedule.name == "plateau" for o in optimizers))
    if arguments.ranks > 1 and config.model.batch_norm:
        raise ValueError("model.batch_norm=true is for one rank: each would see the statistics of its own rows alone")
    if arguments.servers and any(
        o.schedule != ConstantSchedule() for o in (config.wide_optimizer, config.deep_optimizer)
    ):
        raise ValueError(
            "wide_optimizer.schedule and deep_optimizer.schedule must be constant, without a warm-up, where servers "
            "own the rows: they are told of gradients alone"
        )
    asked = read_strategies(config, schema)
    config = settings_of_run(Path.cwd() / "device_0", asked, schema)
    plan = check_run(config, schema, arguments.ranks)
    # All that can fail for a wrong setting comes before the run folder: an older run is not put aside for nothing.
    device.prepare_environment(config.device)
    num_processes = arguments.ranks + arguments.servers
    if not started_by_mpi() and not arguments.dry_run:
        try:  # before the slow start; what is found here is looked at again when the run is opened
            check_launch(Path.cwd(), config, schema, lambda: check_source(config, schema))
        except RunIsFinishedError as finished:
            return _say_finished(finished)
    backend = pick_backend(config.tables.backend, config.model.fold_numeric, num_processes)
    if backend == "stock":
        _check_stock(config)
    if num_processes > 1 and not started_by_mpi() and not arguments.dry_run:
        return launch(num_processes, arguments.hostfile, arguments.words)
    group: ProcessGroup = SingleProcess()
    if started_by_mpi():
        what, folder = {"tables": backend}, Path.cwd() / config.checkpoint.dir
        group = ranks.join(config, schema, arguments.ranks, arguments.servers, what, folder)
        if group.world.rank < arguments.servers:
            from app.parameter_server import serve  # loads MPI, which one process does not need

            return serve(config, schema, backend, group, Path.cwd())
    target = device.select_device(config.device)
    check_target(config, target)
    if target == "CPU" and (unused := config.parallel.unused_on_cpu()):
        log.warning("warning: %s: for Ascend and GPU alone; it does nothing on a CPU", ", ".join(unused))
    if arguments.dry_run:
        _print_placement(config, target, backend)
        stages = check_pipeline(config, schema, arguments.ranks)
        pipeline = describe_pipeline(stages, run_shapes(config, schema)) if stages else []
        for line in describe_plan(plan) if plan else pipeline:
            print(line)
        return 0
    # Loading finds out what is damaged, so that each byte is read once; several ranks must know it before.
    damaged: dict[Path, str] | None = {} if isinstance(group, SingleProcess) else None
    while True:
        try:
            return _run_in_folder(config, asked, backend, target, arguments.dataset, schema, group, damaged)
        except RunIsFinishedError as finished:
            with group:  # servers end
                return _say_finished(finished)
        except DamagedCheckpointError as error:
            if damaged is None or error.checkpoint is None or error.checkpoint in damaged:
                raise
            damaged[error.checkpoint] = str(error)


def _say_finished(finished: RunIsFinishedError) -> int:
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
    """Open the run's folder and train; DamagedCheckpointError where what it goes on from turns out to be damaged."""
    run, lock = open_run(Path.cwd(), config, schema, group, lambda: check_source(config, schema), damaged, asked)
    config = run.config
    with lock, StopRequest(config.train.time_limit, agree=group.agree) as stop, _log_to(run.log_path):
        log.info("%s run in %s: %s", run.plan.kind, run.path, run.plan.reason)
        for refused in run.plan.refused.values():
            log.warning("warning: a newer checkpoint is not used: %s", refused)
        for line in describe_kept(asked, config):
            log.info("%s", line)
        log.info("the tower runs on %s, the tables are %s, %d host threads", target, backend, config.device.num_threads)
        if group.size > 1:
            log.info("rank %d of %d: a batch of %d rows is dealt out", group.rank, group.size, config.train.batch_size)
        if config.parallel.is_spread:
            write_strategy(run.path / STRATEGY_FILE, strategy_record(config, schema, group.size))
        else:
            (run.path / STRATEGY_FILE).unlink(missing_ok=True)  # that of an earlier launch, which the run goes on with
        try:
            with group:
                return _train_to_the_end(config, backend, dataset, schema, run, stop, group)
        except DamagedCheckpointError as error:
            error.checkpoint = run.plan.checkpoint
            raise


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Write to a file, too, what is said."""
    log_file = logging.FileHandler(path, encoding="utf-8")
    log_file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.getLogger().addHandler(log_file)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(log_file)
        log_file.close()


def _train_to_the_end(
    config: Config,
    backend: str,
    dataset: Path,
    schema: Schema,
    run: RunFolder,
    stop: StopRequest,
    group: ProcessGroup,
) -> int:
    """Train, leave the run's status in its folder, and return the exit status."""
    from app.saving import NotSavedError
    from app.train import Trainer

    exit_status = 0
    try:
        Trainer(config, backend, dataset, schema, run, stop, group).train()
    except Stopped as stopped:
        exit_status = stopped.exit_status
        run.set_status("stopped")
        log.info("stopped after saving: %s; the same command goes on from here", stopped)
    except DamagedCheckpointError:
        if run.plan.checkpoint is None:  # that of a warm start
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
        reason = why_useless(run.loss_path, schema.splits["train"], config.loss.label_smoothing)
        run.set_status("finished", **({USELESS_BECAUSE: reason} if reason else {}))
        log.info("finished; judge it on the test rows with: make eval")
        if reason:
            exit_status = _warn_of_useless(reason)
    unwritten = [*run.write_errors(), *leave_report(run.path)]
    if unwritten:
        log.error("error: not all could be written: %s", ", ".join(unwritten))
        return NOT_WRITTEN
    return exit_status


def _check_stock(config: Config) -> None:
    loss = config.loss
    check_supported(config.wide_optimizer, config.deep_optimizer, loss.wide_l2_coef, loss.row_clip_value)
    # Their step assigns to parameters, which crashes MindSpore 2.10's compiler in one graph with EmbeddingLookup.
    if config.tower_optimizer.name in ("adagrad", "sgd"):
        raise ValueError(
            f"tower_optimizer.name={config.tower_optimizer.name} is for tables.backend=native or reference; stock has "
            "adam and adamw only"
        )


def _print_placement(config: Config, target: str, backend: str) -> None:
    from app.config.optimizers import FtrlOptions
    from app.tables.stock import describe_placement, placed_ops

    print(f"tower: on {target}")
    if backend == "stock":
        assert isinstance(config.wide_optimizer, FtrlOptions)
        for line in describe_placement(placed_ops(config.wide_optimizer)):
            print(line)
    else:
        print(f"tables: {backend}, on the host, outside the graph")


def _report(arguments: argparse.Namespace) -> None:
    output = arguments.output or (arguments.runs[0] / REPORT_FILE if len(arguments.runs) == 1 else Path(REPORT_FILE))
    if not output.parent.is_dir():
        raise FileNotFoundError(f"--output {output}: there is no folder {output.parent}; make it, or give another file")
    write_report(arguments.runs, output)
    print(output)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    sys.exit(main())
