"""Read batches from a prepared folder, in an order that depends only on seed, epoch and step.

Rows are stored in blocks. An epoch is a seeded permutation of the blocks. Each group of consecutive blocks of this
permutation is a pool, whose rows are shuffled together. The resulting stream of rows is cut into batches across blocks
and pools. No row is dropped, so the last batch may be smaller. A run that resumes at step s reads only the pools from
that step on.

Shapes use B for the batch size, P for the number of ids per row, N for numeric columns, K for the inputs from vector
columns and n for the rows of a block.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_prep.prepared.data_files import block_sizes
from data_prep.prepared.examples import Examples, concatenate
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)

POOL_BLOCKS = 256  # Number of blocks in a pool, the group of blocks whose rows are shuffled together in a training.


@dataclass(frozen=True)
class Batch(Examples):
    """The rows of a training step, or one rank's part of them: `ids` [B, P], `numeric` [B, N], `vectors` [B, K].

    A rank is one of the processes that share a training. One rank's part starts at row `first_row` of a batch of
    `whole_rows` rows. `whole_rows` is None for a whole batch. `mean_weight` is the mean weight of all training rows
    with a weight above 0 (see `mean_training_weight`).
    """

    first_row: int = 0
    whole_rows: int | None = None
    mean_weight: float = 1.0

    @property
    def num_rows(self) -> int:
        """Return B, the number of rows in this batch.

        It is below the batch size in the last batch of an epoch, in one rank's part, and if rows of weight 0 were
        removed.
        """
        return len(self.labels)

    def rows_that_count(self, mean_weight: float) -> Batch:
        """Return a copy of the batch without its rows of weight 0, which must not change embeddings or optimizer state.

        `mean_weight` is stored in the copy. It is the mean weight of all training rows with a weight above 0.
        """
        counting = self if self.weights is None or self.weights.all() else _batch(self.take(self.weights > 0))
        return replace(counting, mean_weight=mean_weight)

    def numbers(self) -> np.ndarray:
        """Return the N numbers of each row, followed by its K inputs from vector columns, float32 [B, N + K]."""
        return np.concatenate([self.numeric, self.vectors], axis=1) if self.vectors.shape[1] else self.numeric

    def shares(self) -> np.ndarray:
        """Return the factors [B] float32 by which the losses of the rows are multiplied before they are added up.

        A factor is weight / (rows of the whole batch · mean weight of the training rows). The sum of the batch's own
        weights is not used as the divisor, because then a batch of rows with small weights would count as much as a
        batch of rows with large weights.
        """
        weights = np.ones(self.num_rows) if self.weights is None else self.weights.astype(np.float64)
        num_rows = self.num_rows if self.whole_rows is None else self.whole_rows
        return (weights / (num_rows * self.mean_weight or 1)).astype(np.float32)


def slice_of_batch(batch: Batch, rows: slice) -> Batch:
    """Return the given rows of a whole batch as the part on which one rank (process) of a training computes."""
    part = _batch(batch.take(rows))
    return replace(part, first_row=rows.start, whole_rows=batch.num_rows, mean_weight=batch.mean_weight)


def mean_training_weight(folder: Path, schema: Schema) -> float:
    """Return the mean weight of the training rows with a weight above 0, or 1 if the rows have no weights.

    A schema.json of an earlier release does not contain this mean. Then all training rows are read once to compute it.
    """
    mean_weight = schema.splits["train"].mean_weight
    if mean_weight or not schema.weight:
        return mean_weight or 1.0
    log.info("reading the weights of the training rows: %s was prepared by an earlier release", folder)
    total, count = 0.0, 0
    for rows in read_blocks(folder, schema, "train"):
        assert rows.weights is not None
        total += float(rows.weights.sum(dtype=np.float64))
        count += int(np.count_nonzero(rows.weights))
    return total / count if count else 1.0


@dataclass(frozen=True)
class Order:
    """The order in which the rows of a split are read in one pass over it.

    A pool is a group of blocks of rows that are read together. `pools` has an array of block numbers for each pool, in
    the order of reading. `block_sizes` has the number of rows of each block of the split. `shuffle_seed` is the seed
    for shuffling the rows within each pool.
    """

    pools: tuple[np.ndarray, ...]
    block_sizes: np.ndarray
    # If the seed is None, the rows are not shuffled and stay in the order in which they were written.
    shuffle_seed: tuple[int, ...] | None


def training_order(schema: Schema, seed: int, epoch: int, pool_blocks: int = POOL_BLOCKS) -> Order:
    """Return the order in which a training reads the training rows in `epoch` (1, 2, …).

    Blocks of rows are permuted at random, and the rows of each `pool_blocks` consecutive blocks of the permutation are
    shuffled together.
    """
    sizes = np.array(block_sizes(schema, "train"), np.int64)
    blocks = np.random.default_rng([seed % 2**63, epoch]).permutation(len(sizes))
    return Order(_cut(blocks, pool_blocks), sizes, (seed % 2**63, epoch))


def written_order(schema: Schema, split: str, pool_blocks: int = 64) -> Order:
    """Return the order that reads the rows of a split as they were written, `pool_blocks` blocks at a time."""
    sizes = np.array(block_sizes(schema, split), np.int64)
    return Order(_cut(np.arange(len(sizes)), pool_blocks), sizes, None)


def _cut(blocks: np.ndarray, pool_blocks: int) -> tuple[np.ndarray, ...]:
    return tuple(blocks[i : i + pool_blocks] for i in range(0, len(blocks), pool_blocks))


def num_batches(schema: Schema, split: str, batch_size: int) -> int:
    """Return the number of batches in one pass over a split. The last batch may be smaller, but counts too."""
    return -(-schema.splits[split].rows // batch_size)


def read_batches(
    folder: Path, schema: Schema, split: str, order: Order, batch_size: int, first_batch: int = 0
) -> Iterator[Batch]:
    """Yield the batches of one pass over a split, in the order `order`, from batch number `first_batch` on.

    Batches are numbered from 0.
    """
    pool_ends = np.cumsum([order.block_sizes[pool].sum() for pool in order.pools], dtype=np.int64)
    first_pool = int(np.searchsorted(pool_ends, first_batch * batch_size, side="right"))
    start = first_batch * batch_size - int(pool_ends[first_pool - 1] if first_pool else 0)
    pools = order.pools[first_pool:]
    blocks = read_blocks(folder, schema, split, [int(number) for pool in pools for number in pool])
    parts: list[Examples] = []  # Parts of the next batch.
    missing = batch_size
    ahead: list[Examples] = []  # Blocks of the next pool (group of blocks) that were read in advance.
    for number, (pool, next_pool) in enumerate(itertools.zip_longest(pools, pools[1:], fillvalue=()), first_pool):
        rows = concatenate([*ahead, *itertools.islice(blocks, len(pool) - len(ahead))])
        ahead = []
        shuffled = None
        if order.shuffle_seed is not None:
            shuffled = np.random.default_rng([*order.shuffle_seed, number]).permutation(len(rows))
        # With each batch, read a few blocks of the next pool. Reading a whole pool (group of blocks) at once would make
        # the training wait.
        blocks_a_batch = -(-len(next_pool) * batch_size // max(1, len(rows)))
        while start < len(rows):
            part = rows.take(slice(start, start + missing) if shuffled is None else shuffled[start : start + missing])
            start, missing = start + len(part), missing - len(part)
            parts.append(part)
            if not missing:
                yield _batch(concatenate(parts))
                parts, missing = [], batch_size
            ahead += itertools.islice(blocks, min(blocks_a_batch, len(next_pool) - len(ahead)))
        start = 0
        del rows  # Free the rows of this pool before the next pool is put together.
    if parts:
        yield _batch(concatenate(parts))


def batches_of(rows: Examples, batch_size: int) -> Iterator[Batch]:
    """Yield the rows of `rows`, in their order, in batches of `batch_size` rows. The last batch may be smaller."""
    for start in range(0, len(rows), batch_size):
        yield _batch(rows.take(slice(start, start + batch_size)))


def _batch(rows: Examples) -> Batch:
    return Batch(rows.ids, rows.numeric, rows.labels, rows.weights, rows.keys, rows.vectors)
