"""Ids, rows and gradients between the ranks that train and the ranks that own rows, all to all over MPI.

Row r is owned by rank `r % owners`: the first `owners` ranks own rows. Every operation begins with a header to each
rank (what is done, and how many ids are asked of it), so that a rank that only owns rows learns what comes from those
that train. A rank without rows of the batch takes part with zero ids. What is received comes in the order of
ranks, so that sums over ranks have one order.

Letters: U unique ids of this rank's batch, by owner; R ids asked of this rank, by rank.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from app.distributed.watchdog import waiting
from common.memory import HugeBuffer

ID_BYTES, FLOAT_BYTES = 8, 4
SHORTEST_SLEEP, LONGEST_SLEEP = 2e-5, 3e-4  # seconds


class Operation(enum.IntEnum):
    """What the ranks do next, all of them; NONE is what a rank says that only owns rows."""

    NONE = 0
    LOOKUP = 1
    PULL_REQUEST = 2
    UPDATE = 3
    RPC = 4


@dataclass(frozen=True)
class Header:
    """What a rank learns at the start of an operation: the ids asked of it, by rank [ranks]; gradients' `scale`."""

    operation: Operation
    counts: np.ndarray
    scale: float


def start(communicator: MPI.Comm, operation: Operation, counts: np.ndarray | None = None, scale: float = 0.0) -> Header:
    """Begin an operation of all ranks; `counts` [owners] are the ids that this rank will ask of each owner."""
    ranks = communicator.size
    sent, received = np.zeros((ranks, 3)), np.empty((ranks, 3))
    sent[:, 0], sent[:, 2] = operation, scale
    if counts is not None:
        sent[: len(counts), 1] = counts
    request = communicator.Ialltoall(sent, received)  # a blocking one on another rank would not match it
    with waiting():
        if operation == Operation.NONE:
            _wait_asleep(request)
        else:
            request.Wait()
    _check_agreed(received)
    agreed = Operation(int(received[:, 0].max()))
    return Header(agreed, received[:, 1].astype(np.int64), float(received[:, 2].max()))


def _check_agreed(received: np.ndarray) -> None:
    """Raise ValueError unless the ranks that say what is done, `received` [ranks, 3], say the same.

    Not an error `together`: each rank ends the job, whatever the others wait for.
    """
    speak = np.flatnonzero(received[:, 0] != Operation.NONE)
    said = received[speak][:, [0, 2]]
    if (said == said[:1]).all():
        return
    other = int(np.flatnonzero((said != said[0]).any(axis=1))[0])
    texts = [
        f"rank {speak[place]} does {Operation(int(said[place, 0])).name} with scale {said[place, 1]:g}"
        for place in (0, other)
    ]
    raise ValueError(
        f"the ranks are not in step: {texts[0]}, {texts[1]}; the same command goes on from the last checkpoint"
    )


def _wait_asleep(request: MPI.Request) -> None:
    """Wait for what may take long: MPI itself waits on a core, which another rank of the host computes on."""
    seconds = SHORTEST_SLEEP
    while not request.Test():
        time.sleep(seconds)
        seconds = min(2 * seconds, LONGEST_SLEEP)


@dataclass(frozen=True)
class Segments:
    """How many elements go to, or come from, each rank, and where those of each begin; both [ranks]."""

    counts: np.ndarray
    starts: np.ndarray

    @staticmethod
    def of(counts: np.ndarray) -> Segments:
        """One after the other."""
        return Segments(counts, np.concatenate([[0], np.cumsum(counts)[:-1]]))

    @property
    def total(self) -> int:
        """Over all ranks."""
        return int(self.counts.sum())


class Exchange:
    """The exchanges of one rank; what it sent to other ranks is in `remote_bytes`, what each kind took in `seconds`.

    The seconds of `start` are mostly those of the slowest rank, which all others wait for there.
    """

    def __init__(self, communicator: MPI.Comm, num_owners: int, embedding_dim: int) -> None:
        self.num_owners = num_owners
        self.remote_bytes = {"ids": 0, "rows": 0, "gradients": 0}
        self.seconds = {"start": 0.0, "ids": 0.0, "rows": 0.0, "gradients": 0.0}
        self.rank = communicator.rank
        self.embedding_dim = embedding_dim
        self._communicator = communicator
        self._row = MPI.FLOAT.Create_contiguous(embedding_dim).Commit()  # counts in rows stay within 32 bits
        self._requested = self._requested_here = Segments.of(np.zeros(communicator.size, np.int64))
        self._buffers = {name: HugeBuffer() for name in ("rows", "gradients")}

    def start(self, operation: Operation, counts: np.ndarray | None = None, scale: float = 0.0) -> Header:
        """Agree on the operation; `counts` [owners] are the ids that this rank will ask of each owner."""
        with self._timed("start"):
            return start(self._communicator, operation, counts, scale)

    def pull_request(self, ids: np.ndarray, counts: np.ndarray, header: Header) -> np.ndarray:
        """Send `ids` int64 [U], grouped by owner as `counts` says, to their owners; returns those asked here [R]."""
        to_owners = np.zeros(self._communicator.size, np.int64)
        to_owners[: self.num_owners] = counts
        self._requested, self._requested_here = Segments.of(to_owners), Segments.of(header.counts)
        received = np.empty(self._requested_here.total, np.int64)
        with waiting(), self._timed("ids"):
            self._all_to_all(ids, self._requested, received, self._requested_here, MPI.INT64_T)
        self._count("ids", self._requested, ID_BYTES)
        return received

    def pull_reply(self, deep: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows asked for, [R, D] and [R], back to who asked; returns this rank's, [U, D] and [U].

        The result is valid until the next call.
        """
        return self._send_rows("rows", deep, wide, self._requested_here, self._requested)

    def push(self, deep: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradients [U, D] and [U] to the owners of the rows last asked for; returns those of rows here, [R, D], [R].

        The result is valid until the next call.
        """
        return self._send_rows("gradients", deep, wide, self._requested, self._requested_here)

    def sum(self, value: float) -> float:
        """The sum over all ranks, in their order."""
        values = np.empty(self._communicator.size)
        self._communicator.Allgather(np.array([value]), values)
        return float(values.sum())

    def _send_rows(
        self, what: str, deep: np.ndarray, wide: np.ndarray, to: Segments, back: Segments
    ) -> tuple[np.ndarray, np.ndarray]:
        deep_received = self._buffers[what].array((back.total, self.embedding_dim))
        wide_received = np.empty(back.total, np.float32)
        with waiting(), self._timed(what):
            self._all_to_all(deep, to, deep_received, back, self._row)
            self._all_to_all(wide, to, wide_received, back, MPI.FLOAT)
        self._count(what, to, (self.embedding_dim + 1) * FLOAT_BYTES)
        return deep_received, wide_received

    def _all_to_all(
        self, sent: np.ndarray, to: Segments, received: np.ndarray, back: Segments, datatype: MPI.Datatype
    ) -> None:
        self._communicator.Alltoallv(
            [sent, to.counts, to.starts, datatype], [received, back.counts, back.starts, datatype]
        )

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - begin

    def _count(self, what: str, to: Segments, element_bytes: int) -> None:
        remote = to.total - int(to.counts[self.rank])
        self.remote_bytes[what] += remote * element_bytes
