"""Run one rank of a job: set up its console, check that all ranks are alike, and handle its errors.

A rank that fails alone logs the error and ends the whole job (MPI_Abort), because the other ranks wait for it. An error
that all ranks raise is logged by one of them, and all exit as a single process would.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from app.config.config import Config
from app.distributed.mpirun import report_start
from app.distributed.process_group import (
    QUIET,
    MpiGroup,
    ProcessGroup,
    is_collective,
    join_world,
    load_mpi,
    mark_collective,
    shows_progress,
)
from app.distributed.watchdog import Watchdog
from app.run.identity import data_identity, first_difference
from common import settings
from common.files import message_of
from common.packages import PROJECT
from common.process import checksum_of_sources, die_with_parent, started_by_mpi
from data_prep.prepared.schema import Schema

log = logging.getLogger("app")

PACKAGES = ("mindspore", "numpy", "mpi4py")


def world_rank() -> int:
    """Return the rank (the number from 0 on) of this process among those that mpirun has started, from an environment
    variable that mpirun sets.
    """
    return int(os.environ["OMPI_COMM_WORLD_RANK"])


def run_as_rank(command: Callable[[], int], console_rank: int) -> int:
    """Run the function `command` in this process, which is one rank of a job, and return its exit status. If only this
    rank fails, end the processes of all ranks instead.

    The rank `console_rank` logs to the console. The other ranks print only their own errors.
    """
    die_with_parent(signal.SIGKILL)
    report_start()
    if world_rank() != console_rank:
        os.environ[QUIET] = "1"
        for handler in logging.getLogger().handlers:
            handler.setLevel(logging.ERROR)
            handler.setFormatter(logging.Formatter(f"rank {world_rank()}: %(message)s"))
    try:
        status = command()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 2
    except BaseException:
        traceback.print_exc()
        _end_the_job(1)
        raise
    return status


def _end_the_job(status: int) -> None:
    logging.shutdown()
    sys.stderr.flush()
    if "mpi4py.MPI" in sys.modules:
        load_mpi().COMM_WORLD.Abort(status)
    # mpirun ends the other ranks when this one exits with an error.
    os._exit(status)


def fail(error: BaseException, status: int) -> int:
    """Log the error because of which this rank failed, and return `status`, its exit status. If no other rank fails,
    end the processes of all ranks instead.
    """
    alone = started_by_mpi() and not is_collective(error)
    if alone or shows_progress():
        log.error("%s%s", "" if isinstance(error, KeyboardInterrupt) else "error: ", message_of(error))
    if alone:
        _end_the_job(status)
    return status


def join(
    config: Config,
    schema: Schema,
    num_ranks: int,
    num_servers: int,
    what: dict[str, Any],
    folder: Path | None = None,
) -> MpiGroup:
    """Join the ranks of the job and check that they agree. Return the group of the ranks that train.

    Settings, data, libraries and the further values in `what` must be equal on all ranks. If `folder` is given, it must
    be the same folder on all ranks. If the ranks do not agree, raise ValueError or OSError on all of them. The error
    names the difference.
    """
    world = join_world(num_ranks + num_servers)
    everyone = MpiGroup(world)
    check_alike(everyone, {"config": settings.as_dict(config), "data": data_of(schema), **what})
    if folder is not None:
        check_one_place(everyone, folder)
    Watchdog(world, config.cluster.timeout_s, first=num_servers)
    return MpiGroup(world, num_servers)


def data_of(schema: Schema) -> dict[str, Any]:
    """Return the description of the data that must be equal on all ranks: the result of `data_identity`, and the
    checksums of the files of all splits.

    `data_identity` describes only the training rows, but all ranks read the files of every split.
    """
    files = {split: [file.checksum for file in description.files] for split, description in schema.splits.items()}
    return {**data_identity(schema), "files": files}


def check_alike(group: ProcessGroup, what: dict[str, Any]) -> None:
    """Raise ValueError on all ranks unless `what`, the program, Python and the libraries are the same on all ranks.

    The message names the first difference.
    """
    versions = dict.fromkeys(PACKAGES, "none")
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    mine = {
        **what,
        "program": checksum_of_sources(PROJECT, ("app", "common", "data_prep")),
        "versions": versions,
        "python": sys.version.split()[0],
    }
    all_of_them = group.gather(mine)
    for rank, other in enumerate(all_of_them):
        difference = first_difference(all_of_them[0], other)
        if difference:
            raise mark_collective(ValueError(f"rank {rank} differs from rank 0: {difference}; all ranks need the same"))


def check_one_place(group: ProcessGroup, folder: Path) -> None:
    """Raise OSError on all ranks unless `folder` is the same folder on every rank, as on a shared file system."""
    probe = folder / f".seen-by-all-ranks-{os.environ.get('PMIX_NAMESPACE', '')}".replace(":", "-")

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("")

    group.on_rank0(write)
    is_seen = group.gather(probe.exists())
    group.on_rank0(lambda: probe.unlink(missing_ok=True))
    blind = [str(rank) for rank, sees in enumerate(is_seen) if not sees]
    if blind:
        raise mark_collective(
            OSError(
                f"the folder of the checkpoints must be one place for all ranks, but what rank 0 writes to {folder} is "
                f"not seen by rank {', '.join(blind)}; give checkpoint.dir= on a file system that all hosts share"
            )
        )
