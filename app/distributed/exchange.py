"""Exchange embedding rows and gradients over MPI between the ranks that train and the ranks that own rows.

The first `num_owners` ranks own the rows: row r is owned by rank `r % num_owners`. A lookup is a pull: ids go to their
owners, rows come back. An update is a push of gradients to the owners of the rows that were pulled last.

Every operation starts with a message to each rank, the header: the operation, and the number of ids that are requested
from that rank. So a server, which only owns rows, learns from the training ranks what comes next. A rank without rows
in its batch takes part with zero ids. Received data is in the order of ranks, so that sums over ranks always have the
same order.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from app.distributed.watchdog import wait_asleep, waiting
from common.arrays.pages import HugeBuffer


class Operation(enum.IntEnum):
    """The kind of exchange that all ranks take part in next. Each rank names it in the header that it sends.

    Servers (ranks that only own table rows) always send NONE, and take part in the operation that the training ranks
    name.
    """

    NONE = 0
    LOOKUP = 1
    PULL_REQUEST = 2
    UPDATE = 3
    RPC = 4
    LOOKUP_OF_MEANS = 5


@dataclass(frozen=True)
class Header:
    """The headers that a rank has received from all ranks at the start of an operation, combined into one.

    `counts` [ranks] is the number of ids that each rank requests from this rank. `scale` is the factor by which, in an
    update, the owners of rows multiply the gradients. `shard` says which of a rank's shards of rows the operation is
    about: a rank has two if wide and deep rows are stored apart, else one.
    """

    operation: Operation
    counts: np.ndarray
    scale: float
    shard: int = 0


def start(
    communicator: MPI.Comm,
    operation: Operation,
    counts: np.ndarray | None = None,
    scale: float = 0.0,
    shard: int = 0,
) -> Header:
    """Start an operation together with all other ranks, and return one header that combines the headers from all ranks.

    `counts` [owners] is the number of ids that this rank will request from each owner. Raise ValueError if the training
    ranks do not start the same operation.
    """
    ranks = communicator.size
    sent, received = np.zeros((ranks, 4)), np.empty((ranks, 4))
    sent[:, 0], sent[:, 2], sent[:, 3] = operation, scale, shard
    if counts is not None:
        sent[: len(counts), 1] = counts
    # All ranks use the non-blocking call. MPI would not match it with another rank's blocking call.
    request = communicator.Ialltoall(sent, received)
    with waiting():
        # A server (rank that only owns table rows) may wait long for the next operation.
        wait_asleep(request) if operation == Operation.NONE else request.Wait()
    _check_same_operation(received)
    operation, scale, shard = received[:, [0, 2, 3]].max(axis=0)
    return Header(Operation(int(operation)), received[:, 1].astype(np.int64), float(scale), int(shard))


def _check_same_operation(received: np.ndarray) -> None:
    """Raise ValueError unless all training ranks sent the same operation, scale and shard.

    `received` [ranks, 4] are the headers from all ranks. The error does not count as one that every rank raises
    (`mark_collective`), so each rank that raises it ends the job without waiting for the other ranks.
    """
    trains = np.flatnonzero(received[:, 0] != Operation.NONE)
    headers = received[trains][:, [0, 2, 3]]
    if (headers == headers[:1]).all():
        return
    other = int(np.flatnonzero((headers != headers[0]).any(axis=1))[0])
    first, second = (
        f"rank {trains[i]} does {Operation(int(operation)).name} with scale {scale:g} in shard {shard:g}"
        for i, (operation, scale, shard) in ((i, headers[i]) for i in (0, other))
    )
    raise ValueError(
        f"the ranks are not in step: {first}, {second}; run the same command again to resume from the last checkpoint"
    )


class Segments:
    """The segments of an array that is sent or received, one for each rank: the numbers of elements (`counts` [ranks])
    and the indices of the first elements (`starts` [ranks]).
    """

    def __init__(self, counts: np.ndarray) -> None:
        self.counts = counts
        self.starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self.total = int(counts.sum())


class Exchange:
    """Sends ids, rows and gradients between this rank and the others."""

    def __init__(self, communicator: MPI.Comm, num_owners: int, embedding_dim: int, shard: int = 0) -> None:
        """A rank may have two shards of rows, one for the wide and one for the deep table. `shard` is the number of the
        shard whose rows and gradients this object sends and receives.
        """
        self.num_owners = num_owners
        self.rank = communicator.rank
        self.embedding_dim = embedding_dim
        self._communicator = communicator
        self._shard = shard
        # MPI counts elements in 32 bits. With a whole row as one element, the numbers of elements stay small enough.
        self._row = MPI.FLOAT.Create_contiguous(embedding_dim).Commit()
        # These two describe the last `pull_request`: which of the U requested ids this rank has sent to each owner
        # (rank with the rows), and which of the R ids that it received came from each rank.
        self._by_owner = self._by_rank = Segments(np.zeros(communicator.size, np.int64))
        self._buffers = {name: HugeBuffer() for name in ("rows", "gradients")}

    def start(self, operation: Operation, counts: np.ndarray | None = None, scale: float = 0.0) -> Header:
        """Start an operation together with all other ranks, and return the header that this rank has received.

        `counts` [owners] is the number of ids that this rank will request from each owner.
        """
        return start(self._communicator, operation, counts, scale, self._shard)

    def pull_request(self, ids: np.ndarray, counts: np.ndarray, header: Header) -> np.ndarray:
        """Send `ids` int64 [U] to their owners. Return the ids that all ranks request from this rank, int64 [R].

        `ids` are in the order of their owners, and `counts` [owners] is the number of ids that each owner gets.
        `header` is the result of `start` for this operation.
        """
        to_owners = np.zeros(self._communicator.size, np.int64)
        to_owners[: self.num_owners] = counts
        self._by_owner, self._by_rank = Segments(to_owners), Segments(header.counts)
        received = np.empty(self._by_rank.total, np.int64)
        with waiting():
            wait_asleep(self._all_to_all(ids, self._by_owner, received, self._by_rank, MPI.INT64_T))
        return received

    def pull_reply(self, deep: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Send the rows that other ranks requested from this rank in the last `pull_request`, `deep` [R, D] and `wide`
        [R].

        Return the deep rows [U, D] and the wide rows [U] that this rank requested. The arrays are valid until the next
        call.
        """
        return self._send_rows("rows", deep, wide, self._by_rank, self._by_owner)

    def push(self, deep: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Send the gradients of the rows that this rank requested last, `deep` [U, D] and `wide` [U], to the owners of
        the rows.

        Return the gradients [R, D] and [R] that other ranks have sent for rows of this rank. The arrays are valid until
        the next call.
        """
        return self._send_rows("gradients", deep, wide, self._by_owner, self._by_rank)

    def sum(self, value: float) -> float:
        """Return the sum of `value` over all ranks, added in the order of ranks."""
        values = np.empty(self._communicator.size)
        self._communicator.Allgather(np.array([value]), values)
        return float(values.sum())

    def _send_rows(
        self, what: str, deep: np.ndarray, wide: np.ndarray, to: Segments, back: Segments
    ) -> tuple[np.ndarray, np.ndarray]:
        deep_received = self._buffers[what].array((back.total, self.embedding_dim))
        wide_received = np.empty(back.total, np.float32)
        with waiting():
            requests = [self._all_to_all(wide, to, wide_received, back, MPI.FLOAT)]
            if self.embedding_dim:
                requests.append(self._all_to_all(deep, to, deep_received, back, self._row))
            for request in requests:
                wait_asleep(request)
        return deep_received, wide_received

    def _all_to_all(
        self, sent: np.ndarray, to: Segments, received: np.ndarray, back: Segments, datatype: MPI.Datatype
    ) -> MPI.Request:
        return self._communicator.Ialltoallv(
            [sent, to.counts, to.starts, datatype], [received, back.counts, back.starts, datatype]
        )
