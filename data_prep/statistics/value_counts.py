"""Count how often each value of categorical fields occurs. Values are numbers or strings.

The counts of a preparation are exact, and counts that exceed a memory limit are kept on disk. For a log that never
ends, `ValueSketch` counts approximately, in fixed memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.arrays.hashing import GOLDEN, mix64
from data_prep.kernels.native import choose_kernels
from data_prep.kernels.numpy_kernels import COUNT_BITS, COUNT_MASK, NOTHING, CountedStrings, merge
from data_prep.kernels.parsed import ParsedRows, text_columns
from data_prep.kernels.strings import Lists, Strings
from data_prep.options.columns import number_groups
from data_prep.options.prepare_options import PrepareOptions

# The counts of chunks of the log are collected, and merged with the counts so far when at least this many values are
# collected or when memory is short. The first number is for values that are numbers, the second for strings.
_WAITING_WORDS = 1 << 22
_WAITING_STRINGS = 1 << 20

# When counting is finished, the sorted files of counts (runs) are merged in blocks of about this many values (the first
# number for values that are numbers, the second for strings). The blocks are small, so that the merge takes little
# memory.
_BLOCK_WORDS = 1 << 20
_BLOCK_STRINGS = 1 << 19

Counted = TypeVar("Counted", NDArray[np.uint64], CountedStrings)

# Values of `min_count` for which the report shows the size of the vocabulary.
MIN_COUNTS = tuple(step * 10**power for power in range(7) for step in (1, 2, 3, 5, 7))

_SMALL_COUNTS = 1 << 10

# Number of rows of cells (counters) of a sketch. The hash that chooses the cell of a value differs from row to row.
DEPTH = 4
LEAST_BYTES = 4096
_HALVES = 2


@dataclass(frozen=True)
class Coverage:
    """Size of a field's vocabulary if the setting `min_count` were each of the numbers in MIN_COUNTS.

    For each number, `values` has the number of values that the vocabulary would have, and `rows` the number of training
    rows in which these values occur.
    """

    values: NDArray[np.int64]
    rows: NDArray[np.int64]

    @classmethod
    def none(cls) -> Coverage:
        return cls(np.zeros(len(MIN_COUNTS), np.int64), np.zeros(len(MIN_COUNTS), np.int64))

    @classmethod
    def of(cls, counts: NDArray[np.uint64]) -> Coverage:
        """Return the coverage of a field's vocabulary.

        `counts` are the counts of all values of the field, each at least 1.
        """
        # Nearly all counts are small. The small counts are put into a histogram first, because that is much faster than
        # searching MIN_COUNTS for each of them.
        is_large = counts >= _SMALL_COUNTS
        large = counts[is_large].astype(np.int64)
        of_small = np.bincount(counts[~is_large].astype(np.int64), minlength=_SMALL_COUNTS)
        every = np.concatenate([np.arange(_SMALL_COUNTS), large])
        values = np.concatenate([of_small, np.ones(len(large), np.int64)])
        firsts = np.searchsorted(MIN_COUNTS, every, side="right") - 1
        by_first = np.zeros((2, len(MIN_COUNTS)), np.int64)
        np.add.at(by_first[0], firsts, values)
        np.add.at(by_first[1], firsts, values * every)
        return cls(*np.cumsum(by_first[:, ::-1], axis=1)[:, ::-1])

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(self.values + other.values, self.rows + other.rows)


def count_numbers(rows: ParsedRows, options: PrepareOptions, mask: NDArray[np.bool_]) -> list[NDArray[np.uint64]]:
    """Return, for each categorical column whose values are numbers, the distinct values in rows, with their counts.

    A value and its count are packed into a 64-bit number, the value in the upper half and the count in the lower half.
    The array of a hashed column is empty. `mask` selects the rows to count, [n], or the cells of `Examples.ids` to
    count, [n, P].
    """
    all_columns, at = options.categorical_columns, _masks_of_columns(mask, options)
    names = [column.name for column in all_columns if not column.is_text]
    columns = zip(names, *rows.number_columns(number_groups(all_columns)), strict=True)
    count_values = choose_kernels(options.kernels).count_values
    return [
        np.empty(0, np.uint64)
        if options.is_hashed(name)
        else count_values(values, present, np.ascontiguousarray(at[name][:, 0]))
        for name, values, present in columns
    ]


def count_texts(rows: ParsedRows, options: PrepareOptions, mask: NDArray[np.bool_]) -> list[CountedStrings]:
    """Return, for each vocabulary whose values are strings, the distinct values in rows, with their counts.

    `mask` selects the rows to count, [n], or the cells of `Examples.ids` to count, [n, P].
    """
    is_hashed, count_strings = options.is_hashed, choose_kernels(options.kernels).count_strings
    columns = [c for c in options.categorical_columns if not (c.cross and is_hashed(c.name))]
    at = _masks_of_columns(mask, options)
    counted: list[list[CountedStrings]] = [[] for column in options.vocabularies if column.is_text]
    for column, texts, present in text_columns(rows, columns, choose_kernels(options.kernels)):
        if is_hashed(column.shares or column.name):
            continue
        if isinstance(texts, Lists):
            of_rows = texts.values.take(at[column.name][texts.rows, texts.places])
        else:
            of_rows = texts.take(present & at[column.name][:, 0])
        counted[column.place].append(count_strings(of_rows))
    return [parts[0] if len(parts) == 1 else merge([NOTHING, *parts]) for parts in counted]


def _masks_of_columns(mask: NDArray[np.bool_], options: PrepareOptions) -> dict[str, NDArray[np.bool_]]:
    """Return, for each categorical column by name, a mask [n, max_length] of the column's cells that are counted.

    `mask` selects rows, [n], or cells of `Examples.ids`, [n, P].
    """
    columns = options.categorical_columns
    ends = np.cumsum([column.max_length for column in columns])
    of_rows = mask if mask.ndim == 2 else mask[:, None]
    by_position = np.broadcast_to(of_rows, (len(mask), ends[-1]))
    return dict(zip((c.name for c in columns), np.split(by_position, ends[:-1], axis=1), strict=True))


@dataclass(eq=False)
class _FieldCounts(ABC, Generic[Counted]):
    """Base class for counts of the values of several fields, added up over the chunks of a log.

    Counts of chunks are collected until they are as many as the distinct values merged so far, or take too much memory.
    Then they are all merged, so a value is merged a logarithmic number of times. When the merged counts exceed half of
    `limit_bytes`, they are written to `folder`, in one sorted file (a run) per field. `frequent` merges the runs, one
    range of values at a time. After each merge, `on_merge` is called for each field, with the number of the field and
    its counts since the last run.
    """

    num_fields: int
    folder: Path
    limit_bytes: int
    nothing: Counted
    # Counts from workers wait for a merge until they have this many values, or take too much memory.
    least_waiting: int
    block: int  # Number of values per block that `frequent` processes at a time.
    on_merge: Callable[[int, Counted], None] | None = None
    # The keys of equal values lie between two neighbouring multiples of this number. A merge divides the range of keys
    # into parts only at such multiples.
    key_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        self._merged: list[Counted] = [self.nothing] * self.num_fields
        self._unmerged: list[list[Counted]] = [[] for _ in range(self.num_fields)]
        self._num_waiting = self._waiting_bytes = 0
        self._runs: list[list[Any]] = [[] for _ in range(self.num_fields)]
        self.coverage = [Coverage.none()] * self.num_fields  # Coverage of each field for which `frequent` was called.

    def add(self, by_field: Sequence[Counted]) -> None:
        for waiting, counted in zip(self._unmerged, by_field, strict=True):
            waiting.append(counted)
            self._num_waiting += len(counted)
            self._waiting_bytes += counted.nbytes
        merged_bytes = sum(counted.nbytes for counted in self._merged)
        if (
            self._num_waiting >= max(self.least_waiting, sum(map(len, self._merged)))
            or merged_bytes + self._waiting_bytes > self.limit_bytes
        ):
            self._merge()

    def frequent(self, field: int, min_count: int) -> Counted:
        """Return the values of field number `field` that occur at least `min_count` times, with their counts.

        The result is sorted by the keys of the values. Also set `coverage[field]` to the field's `Coverage`: how large
        its vocabulary would be with other minimum counts.
        """
        if self._num_waiting:
            self._merge()
        self.coverage[field] = Coverage.none()
        parts: list[Counted] = []
        for block in self._blocks(field):
            counts = self._counts(block)
            self.coverage[field] += Coverage.of(counts)
            parts.append(block[np.flatnonzero(counts >= np.uint64(min_count))])
        return parts[0] if len(parts) == 1 else self._concatenate(parts)

    def close(self) -> None:
        for runs in self._runs:
            for run in runs:
                run.path.unlink()
        self._runs = [[] for _ in self._runs]
        self._merged = [self.nothing] * len(self._merged)

    def _merge(self) -> None:
        for field in range(len(self._merged)):
            parts = self._unmerged[field]
            parts.append(self._merged[field])
            # Remove all references to the arrays except those in `parts`, so that `_add_up` can free the arrays one by
            # one.
            self._merged[field], self._unmerged[field] = self.nothing, []
            self._merged[field] = self._add_up(parts)
            if self.on_merge is not None:
                self.on_merge(field, self._merged[field])
        self._num_waiting = self._waiting_bytes = 0
        # If the merged counts in memory take more than half of the limit, write them to disk, because counts that wait
        # for the next merge need the other half.
        if 2 * sum(counted.nbytes for counted in self._merged) > self.limit_bytes:
            for field, counted in enumerate(self._merged):
                if len(counted):
                    name = f"{field:03d}-{len(self._runs[field]):05d}.bin"
                    self._runs[field].append(self._write(name, counted))
            self._merged = [self.nothing] * len(self._merged)

    @abstractmethod
    def _write(self, name: str, counted: Counted) -> Any:
        """Write counts, sorted by key, to a file whose name ends in `name`. Return an object that can read the file."""

    @abstractmethod
    def _add_up(self, parts: list[Counted]) -> Counted:
        """Return the distinct values of all parts, sorted by their 64-bit keys, each with the sum of its counts.

        The list `parts` may be emptied to free memory.
        """

    @abstractmethod
    def _concatenate(self, parts: list[Counted]) -> Counted:
        """Return the values and counts of all parts, one part after another.

        The list `parts` may be emptied to free memory.
        """

    @abstractmethod
    def _counts(self, counted: Counted) -> NDArray[np.uint64]:
        """Return the count of each value in `counted`, in the same order."""

    @abstractmethod
    def _keys(self, counted: Counted) -> NDArray[np.uint64]:
        """Return the 64-bit keys of the values in `counted`, by which the values are sorted."""

    def _blocks(self, field: int) -> Iterator[Counted]:
        """Yield all values of a field with their counts, sorted by key, in blocks of about `block` values.

        To do so, merge the counts in runs on disk and the counts in memory.
        """
        merged: Counted = self._merged[field]
        runs: list[Any] = self._runs[field]
        if not runs:
            for first in range(0, len(merged), self.block):
                yield merged[first : first + self.block]
            return
        for bounds in _even_ranges([*(run.keys() for run in runs), self._keys(merged)], self.block, self.key_step):
            parts: list[Counted] = [run.read(*pair) for run, pair in zip(runs, bounds, strict=False)]
            parts.append(merged[slice(*bounds[-1])])
            yield self._add_up(parts)


@dataclass(frozen=True)
class _NumberRun:
    """A file with the counts of one field whose values are numbers: `length` packed (value, count) pairs, ascending."""

    path: Path
    length: int

    def keys(self) -> NDArray[np.uint64]:
        return np.memmap(self.path, np.uint64, "r", shape=(self.length,))

    def read(self, first: int, end: int) -> NDArray[np.uint64]:
        """Read the packed (value, count) pairs number `first` to `end` - 1 from the file, and return them.

        The file is not mapped into memory here, because the pages of a map would stay in memory.
        """
        return np.fromfile(self.path, np.uint64, end - first, offset=8 * first)


class ValueCounts(_FieldCounts[NDArray[np.uint64]]):
    """Counts of values that are numbers, stored as ascending packed pairs value << 32 | count."""

    key_step = 2**32  # A key is value << 32 | count, so pairs with the same value differ by less than this.

    def __init__(self, num_fields: int, folder: Path, limit_bytes: int) -> None:
        super().__init__(num_fields, folder, limit_bytes, np.empty(0, np.uint64), _WAITING_WORDS, _BLOCK_WORDS)

    def _write(self, name: str, counted: NDArray[np.uint64]) -> _NumberRun:
        path = self.folder / f"counts-{name}"
        with path.open("wb") as file:
            file.write(counted.data)  # `tofile` is not used, because its errors have no errno.
        return _NumberRun(path, len(counted))

    def _add_up(self, parts: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
        packed = np.concatenate(parts)
        parts.clear()
        packed.sort()
        packed.resize(len(_add_up_sorted(packed)), refcheck=False)
        return packed

    def _concatenate(self, parts: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
        parts.reverse()
        joined = parts.pop() if parts else self.nothing
        while parts:  # Each part is freed in turn, so that the values are not in memory twice.
            part, end = parts.pop(), len(joined)
            joined.resize(end + len(part), refcheck=False)
            joined[end:] = part
        return joined

    def _counts(self, counted: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return counted & COUNT_MASK

    def _keys(self, counted: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return counted


def _add_up_sorted(packed: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Combine ascending packed (value, count) pairs, so that each value has one pair with the sum of its counts.

    The array is overwritten from its start. Return the part of it that was overwritten, which has the new pairs.
    """
    first = num_distinct = 0
    while first < len(packed):
        end = min(first + _BLOCK_WORDS, len(packed))
        # Extend the block of (value, count) pairs to the last pair of its last value, so that all pairs of a value are
        # in one block.
        end = int(np.searchsorted(packed, packed[end - 1] | COUNT_MASK, side="right"))
        block = packed[first:end]
        values = block >> COUNT_BITS
        firsts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
        counts = np.add.reduceat(block & COUNT_MASK, firsts)
        check_count(int(counts.max()))
        packed[num_distinct : num_distinct + len(firsts)] = values[firsts] << COUNT_BITS | counts
        num_distinct += len(firsts)
        first = end
    return packed[:num_distinct]


def check_count(count: int) -> None:
    """Raise ValueError if `count` is too large for the bits that a packed (value, count) pair has for it.

    The surplus bits would change the value.
    """
    if count > COUNT_MASK:
        raise ValueError(
            f"a value is in {count:,} training rows, and at most {COUNT_MASK:,} can be counted; prepare some of the "
            "files first, then the others with the ids of those (--vocabulary DIR), or lower prepare.train_fraction"
        )


def _even_ranges(runs: Sequence[NDArray[np.uint64]], most: int, step: int) -> Iterator[list[tuple[int, int]]]:
    """Divide all 64-bit keys into ranges such that at most `most` elements of `runs` lie in each range.

    Each of `runs` is an ascending array of keys. Bounds of ranges are multiples of `step`; a range of `step` keys is
    not divided further. For each range, ascending, yield a list of the [first, end) of its elements in each run.
    """

    def cut(low: int, high: int) -> Iterator[list[tuple[int, int]]]:
        bounds = [(_first_from(low, run), _first_from(high, run)) for run in runs]
        if sum(end - first for first, end in bounds) <= most or high - low == step:
            yield bounds
        else:
            middle = (low + high) // 2
            yield from cut(low, middle)
            yield from cut(middle, high)

    yield from cut(0, 2**64)


def _first_from(key: int, keys: NDArray[np.uint64]) -> int:
    return len(keys) if key == 2**64 else int(np.searchsorted(keys, np.uint64(key)))


@dataclass(frozen=True)
class _TextRun:
    """A file with the counts of one text field: K keys, K counts, K ends of the strings, then the strings' bytes."""

    path: Path
    num_strings: int

    @classmethod
    def write(cls, path: Path, counted: CountedStrings) -> _TextRun:
        with path.open("wb") as file:
            for array in (counted.keys, counted.counts, np.cumsum(counted.texts.lengths), counted.texts.data):
                file.write(np.ascontiguousarray(array).data)  # `tofile` is not used, because its errors have no errno.
        return cls(path, len(counted))

    def keys(self) -> NDArray[np.uint64]:
        return np.memmap(self.path, np.uint64, "r", shape=(self.num_strings,))

    def read(self, first: int, end: int) -> CountedStrings:
        """Read strings number `first` to `end` - 1 and their counts from the file, and return them.

        The file is not mapped into memory here, because the pages of a map would stay in memory.
        """
        keys = np.fromfile(self.path, np.uint64, end - first, offset=8 * first)
        counts = np.fromfile(self.path, np.int64, end - first, offset=8 * (self.num_strings + first))
        ends = np.fromfile(self.path, np.int64, end - first, offset=8 * (2 * self.num_strings + first))
        start = 0
        if first:
            start = int(np.fromfile(self.path, np.int64, 1, offset=8 * (2 * self.num_strings + first - 1))[0])
        num_bytes = int(ends[-1]) - start if len(ends) else 0
        data = np.fromfile(self.path, np.uint8, num_bytes + 8, offset=24 * self.num_strings + start)
        starts = np.concatenate([[start], ends[:-1]])[: len(ends)] - start
        return CountedStrings(keys, counts, Strings(data, starts, ends - start - starts))


class StringCounts(_FieldCounts[CountedStrings]):
    """Counts of values that are strings, sorted by key. A key is a 64-bit hash of the string."""

    def __init__(
        self,
        num_fields: int,
        folder: Path,
        limit_bytes: int,
        on_merge: Callable[[int, CountedStrings], None] | None = None,
    ) -> None:
        super().__init__(num_fields, folder, limit_bytes, NOTHING, _WAITING_STRINGS, _BLOCK_STRINGS, on_merge)

    def _write(self, name: str, counted: CountedStrings) -> _TextRun:
        return _TextRun.write(self.folder / f"texts-{name}", counted)

    def _add_up(self, parts: list[CountedStrings]) -> CountedStrings:
        return merge(parts)

    def _concatenate(self, parts: list[CountedStrings]) -> CountedStrings:
        return CountedStrings.concatenate([NOTHING, *parts])

    def _counts(self, counted: CountedStrings) -> NDArray[np.uint64]:
        return counted.counts.astype(np.uint64)

    def _keys(self, counted: CountedStrings) -> NDArray[np.uint64]:
        return counted.keys


class ValueSketch:
    """Approximate counts of the values of several columns, in fixed memory: a count-min sketch with conservative
    update, which drops old counts (Cormode & Muthukrishnan 2005, Estan & Varghese 2002).

    `note` records counts of values, and `add` then adds all recorded counts to the sketch. The sketch has a current and
    a previous half, which both consist of rows of W cells (counters). When `add` would bring the current half above W
    occurrences, the current half becomes the previous one, and the former previous half is dropped. So a count covers
    at least the last W occurrences of all values, and at most the last 2 W (or more if a single `add` has more than W).

    As long as no counts are dropped, a value's estimated count is never below its true count. After N occurrences of
    all values together, it exceeds the true count by more than e · N / W with a probability of at most exp(-DEPTH).

    >>> sketch = ValueSketch(num_bytes=LEAST_BYTES, kernels="numpy")
    >>> sketch.note(0, np.array([7, 8]), np.array([2, 1]))
    array([2, 1])
    >>> sketch.add()
    >>> sketch.note(0, np.array([7]), np.array([1]))
    array([3])
    """

    def __init__(self, num_bytes: int, kernels: str = "auto") -> None:
        """Make an empty sketch that takes at most `num_bytes` bytes of memory.

        Raise ValueError if they are fewer than `LEAST_BYTES`.
        """
        if num_bytes < LEAST_BYTES:
            raise ValueError(f"a sketch of counts takes {LEAST_BYTES} bytes at least, found {num_bytes}")
        self._kernels = choose_kernels(kernels)
        self._halves = np.zeros((_HALVES, DEPTH, num_bytes // (_HALVES * DEPTH * 4)), np.uint32)
        self._num_counted = np.zeros(_HALVES, np.int64)
        # Hashes (keys) of values with their counts, as `note` has recorded them since the last call of `add`.
        self._noted: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []
        self._added = self._noted
        self.num_noted = 0  # Number of values recorded by `note` since the last call of `add`.

    def state(self) -> dict[str, Any]:
        """Return the state of the sketch as arrays by name, from which `load_state` restores it.

        Counts that `note` has recorded since the last call of `add` are not included.
        """
        return {"halves": self._halves, "num_counted": self._num_counted}

    def load_state(self, halves: NDArray[np.uint32], num_counted: NDArray[np.int64]) -> None:
        """Restore the sketch from the arrays that `state` returned.

        Raise ValueError if these arrays belong to a sketch of another size.
        """
        if halves.shape != self._halves.shape:
            raise ValueError(
                f"counts of values are in {halves.nbytes:,} bytes, expected {self._halves.nbytes:,}; give the memory "
                f"that they were counted in (--admission-mib {halves.nbytes >> 20})"
            )
        self._halves, self._num_counted = halves, num_counted

    def added(self) -> dict[str, Any]:
        """Return the keys and counts that the last `add` has added to the sketch, as arrays by name.

        Passed to `add_again`, they turn the state of the sketch before that `add` into its state after it.
        """
        keys = np.concatenate([np.zeros(0, np.uint64), *(keys for keys, _ in self._added)])
        counts = np.concatenate([np.zeros(0, np.int64), *(counts for _, counts in self._added)])
        return {"keys": keys, "counts": counts, "sizes": np.array([len(each) for _, each in self._added], np.int64)}

    def add_again(self, keys: NDArray[np.uint64], counts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Add to the sketch the keys and counts that the method `added` has returned.

        Drop the counts that `note` has recorded for the next call of `add`.
        """
        ends = np.cumsum(sizes)[:-1]
        self._noted = list(zip(np.split(keys, ends), np.split(counts, ends), strict=True)) if len(sizes) else []
        self.add()

    def note(self, place: int, values: NDArray[np.int64] | Strings, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Record, for the next `add`, that `values` [n], all distinct, occurred `counts` [n] times.

        Return the total count of each value [n]: its count in `counts` plus its count in the sketch. `place` is the
        number of the values' column.
        """
        keys = values.keys() if isinstance(values, Strings) else values.astype(np.uint64)
        keys = mix64(keys + np.array([place + 1], np.uint64) * GOLDEN)
        self._noted.append((keys, counts))
        self.num_noted += len(counts)
        return counts + self._kernels.sketch_counts(self._halves, keys)

    def leave_out(self, mask: NDArray[np.bool_]) -> None:
        """Drop the counts of the values that `mask` [n] selects among the n values of the last call of `note`.

        The next call of `add` does not add these counts.
        """
        keys, counts = self._noted[-1]
        self._noted[-1] = keys[~mask], counts[~mask]

    def forget(self) -> None:
        """Drop all counts that `note` has recorded since the last call of `add`.

        They are then never added to the sketch.
        """
        self._noted, self.num_noted = [], 0

    def add(self) -> None:
        """Add to the sketch all counts that `note` has recorded since the last call of `add`."""
        total = sum(int(counts.sum()) for _, counts in self._noted)
        if self._num_counted[0] and self._num_counted[0] + total > self._halves.shape[2]:
            self._halves, self._num_counted = np.roll(self._halves, 1, axis=0), np.roll(self._num_counted, 1)
            self._halves[0], self._num_counted[0] = 0, 0
        self._num_counted[0] += total
        for keys, counts in self._noted:
            self._kernels.add_to_sketch(self._halves[0], keys, counts)
        self._added, self._noted, self.num_noted = self._noted, [], 0
