"""Batches from a prepared folder, in an order that is a pure function of (seed, epoch, step).

An epoch is a seeded permutation of blocks; the rows of each pool of blocks are mixed; the stream of rows
is cut into batches across blocks and pools. No row is dropped: the last batch is smaller. To go on
at step s only the pools from that step on are read.

Letters: B batch, C categorical fields, N numeric fields, n rows of a block.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from data_prep.prepared.reader import read_blocks
from data_prep.prepared.rows import Rows, concatenate
from data_prep.prepared.schema import Schema


@dataclass(frozen=True)
class Batch(Rows):
    """Rows of a training step: `ids` [B, C], `numeric` [B, N], `labels` [B].

    A rank's slice of a batch starts at the batch's row `first_row` and knows the rows of the whole: `whole_rows`, 0
    where this is the whole.
    """

    first_row: int = 0
    whole_rows: int = 0

    @property
    def num_rows(self) -> int:
        """B; below the batch size only for an epoch's last batch."""
        return len(self.labels)

    @property
    def weight(self) -> float:
        """Of each row in the mean over the whole batch."""
        return 1 / (self.whole_rows or self.num_rows)


def rows_of_batch(batch: Batch, rows: slice) -> Batch:
    """The slice `rows` of a whole batch."""
    return replace(_batch(batch.take(rows)), first_row=rows.start, whole_rows=batch.num_rows)


def check_files(folder: Path, schema: Schema) -> None:
    """Raise ValueError unless every file with rows, and its index, is there in its size (`inspect` reads them all)."""
    for file in schema.all_files():
        path = folder / file.name
        if ".mindrecord" not in file.name:
            continue
        found = path.stat().st_size if path.is_file() else None
        if found != file.size_bytes:
            raise ValueError(
                f"prepared file {path} {'is missing' if found is None else f'has {found} bytes'}, expected "
                f"{file.size_bytes} bytes; copy the folder again or prepare the data again"
            )


@dataclass(frozen=True)
class Order:
    """How one epoch passes over a split: `pools` of block numbers, in reading order, and the mixing seed."""

    pools: tuple[np.ndarray, ...]
    block_sizes: np.ndarray
    mix_seed: tuple[int, ...] | None  # None: rows stay in written order

    def pool_rows(self, pool: int) -> int:
        """Rows of a pool."""
        return int(self.block_sizes[self.pools[pool]].sum())


def training_order(schema: Schema, seed: int, epoch: int, pool_blocks: int) -> Order:
    """The order of the training rows in `epoch` (1, 2, …)."""
    sizes = np.array(schema.block_sizes("train"), np.int64)
    blocks = np.random.default_rng([seed % 2**63, epoch]).permutation(len(sizes))
    return Order(_cut(blocks, pool_blocks), sizes, (seed % 2**63, epoch))


def written_order(schema: Schema, split: str, pool_blocks: int = 64) -> Order:
    """The rows of a split as they were written."""
    sizes = np.array(schema.block_sizes(split), np.int64)
    return Order(_cut(np.arange(len(sizes)), pool_blocks), sizes, None)


def _cut(blocks: np.ndarray, pool_blocks: int) -> tuple[np.ndarray, ...]:
    return tuple(blocks[i : i + pool_blocks] for i in range(0, len(blocks), pool_blocks))


def num_batches(schema: Schema, split: str, batch_size: int) -> int:
    """Batches of one pass over a split, the short last one included."""
    return -(-schema.splits[split].rows // batch_size)


def read_batches(
    folder: Path, schema: Schema, split: str, order: Order, batch_size: int, first_batch: int = 0
) -> Iterator[Batch]:
    """The batches of one pass, from batch `first_batch` (0, 1, …) on."""
    pool, skip = _locate(order, first_batch * batch_size)
    rest: list[Rows] = []  # less than a batch
    for rows in _read_pools(folder, schema, split, order, pool):
        rows, skip = rows.take(slice(skip, None)), 0
        rows = concatenate([*rest, rows])
        whole = len(rows) - len(rows) % batch_size
        for start in range(0, whole, batch_size):
            yield _batch(rows.take(slice(start, start + batch_size)))
        rest = [rows.take(slice(whole, None))] if whole < len(rows) else []
    yield from map(_batch, rest)


def _batch(rows: Rows) -> Batch:
    return Batch(rows.ids, rows.numeric, rows.labels)


def _locate(order: Order, first_row: int) -> tuple[int, int]:
    """The pool that holds row `first_row` of the pass, and how many of the pool's rows come before it."""
    for pool in range(len(order.pools)):
        rows = order.pool_rows(pool)
        if first_row < rows:
            return pool, first_row
        first_row -= rows
    return len(order.pools), 0


def _read_pools(folder: Path, schema: Schema, split: str, order: Order, first_pool: int) -> Iterator[Rows]:
    numbers = [int(number) for pool in order.pools[first_pool:] for number in pool]
    blocks = read_blocks(folder, schema, split, numbers)
    for pool in range(first_pool, len(order.pools)):
        rows = concatenate([next(blocks) for _ in order.pools[pool]])
        if order.mix_seed is not None:
            rows = rows.take(np.random.default_rng([*order.mix_seed, pool]).permutation(len(rows)))
        yield rows


Item = TypeVar("Item")


class Prefetcher(Generic[Item]):
    """Iterates over `items` with up to `depth` of them made ahead; `waited_seconds` is what the caller waited.

    An exception of the items is raised where the caller takes the next one. Use it as a context
    manager, so that the thread ends with the loop.
    """

    def __init__(self, items: Iterable[Item], depth: int = 2) -> None:
        self.waited_seconds = 0.0
        self._items = items
        self._ready: queue.Queue[tuple[str, object]] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetcher[Item]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        while self._thread.is_alive():  # make room, so that a thread at a full queue sees the flag
            try:
                self._ready.get(timeout=0.05)
            except queue.Empty:
                continue
        self._thread.join()

    def __iter__(self) -> Iterator[Item]:
        while True:
            start = time.perf_counter()
            kind, content = self._ready.get()
            self.waited_seconds += time.perf_counter() - start
            if kind == "end":
                return
            if kind == "error":
                assert isinstance(content, BaseException)
                raise content
            yield content  # type: ignore[misc]

    def _fill(self) -> None:
        try:
            for item in self._items:
                self._ready.put(("item", item))
                if self._stopped.is_set():
                    return
            self._ready.put(("end", None))
        except BaseException as error:
            self._ready.put(("error", error))
