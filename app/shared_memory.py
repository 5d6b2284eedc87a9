"""Memory that the ranks of one host share: an anonymous file (memfd), which the kernel frees with its last user.

Not MPI's shared windows: Open MPI 5.0.11 keeps them in /dev/shm (64 MB in a container, unless it is given more), and
where that has no room one rank gets an error and the others wait for ever.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
from mpi4py import MPI


def shared_floats(host: MPI.Comm, size: int) -> np.ndarray:
    """float32 [size], zeros, the same memory in all ranks of `host`, which are processes of one machine.

    Raises OSError, on all of them, where one cannot have it.
    """
    if host.size == 1:
        return np.zeros(size, np.float32)
    num_bytes = size * np.dtype(np.float32).itemsize
    descriptor, memory, error = -1, None, ""
    try:
        if host.rank == 0:
            descriptor = _make(num_bytes)
    except OSError as raised:
        error = str(raised)
    path, error = host.bcast((f"/proc/{os.getpid()}/fd/{descriptor}", error))
    try:
        if not error:
            memory = _map(path, num_bytes)
    except OSError as raised:
        error = str(raised)
    errors = [each for each in host.allgather(error) if each]  # all have mapped it, or will not
    if descriptor >= 0:
        os.close(descriptor)
    if memory is None or errors:
        raise OSError(f"the ranks of this host cannot share {num_bytes:,} bytes of memory: {errors[0]}")
    return np.frombuffer(memory, np.float32)


def _make(num_bytes: int) -> int:
    descriptor = os.memfd_create("wide_deep")
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)  # an error here where there is no room, not at its use
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _map(path: str, num_bytes: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, num_bytes)
    finally:
        os.close(descriptor)


def host_of(communicator: MPI.Comm, ranks_a_host: int = 0) -> MPI.Comm:
    """The ranks of `communicator` on this host; every rank calls it.

    Where those of some host do not follow one another, each rank is alone. `ranks_a_host` above 0 takes so many ranks
    for those of a host, for tests.
    """
    if ranks_a_host:
        host = communicator.Split(communicator.rank // ranks_a_host, communicator.rank)
    else:
        host = communicator.Split_type(MPI.COMM_TYPE_SHARED, communicator.rank)
    leaders = communicator.allgather(host.bcast(communicator.rank))
    return host if leaders == sorted(leaders) else MPI.COMM_SELF
