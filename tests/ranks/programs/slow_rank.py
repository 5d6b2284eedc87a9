"""Run under mpirun -n 3: rank 1 comes late twice, and is named by one of the others."""

import logging
import time

from mpi4py import MPI

from app.distributed.process_group import MpiGroup
from app.distributed.watchdog import Watchdog

logging.basicConfig(format="%(message)s")
world = MPI.COMM_WORLD
Watchdog(world, timeout_s=0.5)
group = MpiGroup(world)
for seconds in (4.0, 0.0, 4.0):
    if world.rank == 1:
        time.sleep(seconds)
    assert group.all_reduce_max(world.rank) == 2
