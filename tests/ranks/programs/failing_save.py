"""Run under mpirun -n 2: rank 1 fails while a checkpoint is written, with an error of all ranks or its own.

mpirun -n 2 python failing_save.py FOLDER ERROR
"""

import builtins
import logging
import sys
from pathlib import Path

from mpi4py import MPI

from app.checkpoint import write
from app.checkpoint.manifest import Manifest
from app.checkpoint.write import ModelState
from app.distributed.process_group import MpiGroup
from app.run.rank import run_as_rank

logging.basicConfig(format="%(message)s")
folder, error = Path(sys.argv[1]), getattr(builtins, sys.argv[2])
group = MpiGroup(MPI.COMM_WORLD)


def write_nothing(*_):
    if group.rank == 1:
        raise error("a reason")
    return {}


def save():
    write.write_shards = write_nothing
    try:
        write.write_checkpoint(folder, ModelState({}, {}), Manifest(1, 1, 1, {}, "", {}, {}), group=group)
    except MemoryError as raised:
        print(f"on rank {group.rank}: {raised}", flush=True)
    return 0


sys.exit(run_as_rank(save, console_rank=0))
