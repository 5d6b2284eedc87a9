"""`python -m app train`: train in this process, or in several processes that it starts. The exit status says how the
training ended.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from app.config.config import Config
from app.distributed.mpirun import CHOSEN_PRECISION, check_num_processes, check_rank_table, launch
from app.distributed.process_group import ONE_PROCESS, ProcessGroup
from app.run import rank
from app.run.claim import FIRST_RANK, RunIsFinishedError, check_name
from app.training.auto.by_rows import settle
from app.training.start import plan_launch, report_finished
from common import yaml_settings
from common.arguments import add_shared
from common.process import started_by_mpi
from common.text import show
from data_prep.options.options_file import RECIPE
from data_prep.prepared.data_files import verify_files


def add_parser(commands: Any) -> None:
    """Add the command `train` with its arguments to the parser of `python -m app`."""
    parser = commands.add_parser("train", help="train a new run, or resume the one in ./device_0 or ./NAME")
    add_shared(parser, "--config", default=RECIPE)
    add_shared(parser, "--dataset", required=True, help="the prepared folder")
    parser.add_argument("--name", default=FIRST_RANK, help=f"name of the run folder to create here ({FIRST_RANK})")
    add_shared(parser, "--ranks", help="number of processes that train (%(default)s)")
    add_shared(parser, "--servers", "--hostfile")
    parser.add_argument("--rank-table", default="-", metavar="FILE", help="rank table of an Ascend cluster, or -")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything, including each byte of the data, print where the parts of the model run, and exit",
    )
    add_shared(parser, "settings")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command: train a new run or resume one, and return the exit status. With --dry-run, only check and print
    where the model would run.
    """
    check_name(arguments.name)
    check_num_processes(arguments.ranks, arguments.servers, arguments.hostfile)
    path = Path.cwd() / arguments.name
    config, crosses = settle(
        lambda base: yaml_settings.resolve(Config, arguments.config, arguments.settings, base),
        arguments.dataset,
        path,
        arguments.dry_run,
    )
    num_processes = arguments.ranks + arguments.servers
    # Check all settings before the run folder is opened, because opening it may rename the folder of an older run.
    choices = [f"settings: {arguments.config}", *crosses.lines]
    plan = plan_launch(config, arguments.dataset, path, arguments.ranks, arguments.servers, choices)
    if arguments.rank_table != "-":
        check_rank_table(Path(arguments.rank_table), arguments.ranks)
    if not started_by_mpi() and not arguments.dry_run:
        # Check the run folder now, because the import of MindSpore takes seconds. `open_run` checks it again later.
        try:
            plan.check_folder()
        except RunIsFinishedError as finished:
            return report_finished(finished)
    if num_processes > 1 and not started_by_mpi() and not arguments.dry_run:
        os.environ.update({CHOSEN_PRECISION: plan.config.device.precision, **crosses.as_message()})
        return launch(num_processes, arguments.hostfile, arguments.words, config.cluster.timeout_s)
    group: ProcessGroup = ONE_PROCESS
    if started_by_mpi():
        what, folder = {"tables": plan.backend}, Path.cwd() / plan.config.checkpoint.dir
        group = rank.join(plan.config, plan.schema, arguments.ranks, arguments.servers, what, folder)
        if group.world.rank < arguments.servers:
            # Imported in this function, because the import loads MPI, which a training in a single process does not
            # need.
            from app.training.server import serve

            return serve(plan.config, plan.schema, plan.backend, group, plan.path)
    if arguments.dry_run:
        verify_files(arguments.dataset, plan.schema)
    target = plan.select_device()
    if arguments.dry_run:
        plan.describe_steps(plan.config)
        plan.describe_memory()
        for line in crosses.lines:
            show(line)
        _print_placement(plan.config, target, plan.backend)
        return 0
    return plan.train(target, group)


def _print_placement(config: Config, target: str, backend: str) -> None:
    show(f"tower: on {target}")
    if backend == "stock":
        from app.config.optimizer_settings import FtrlOptions
        from app.training.step.stock_step import describe_placement, placed_ops

        assert isinstance(config.wide_optimizer, FtrlOptions)
        for line in describe_placement(placed_ops(config.wide_optimizer)):
            show(line)
    else:
        show(f"tables: {backend}, on the host, outside the graph")
