"""Look up rows in the tables of a bundle. The file is mapped into memory, and the checksum of each block of rows is
checked when a row in it is first read.

    tables.safetensors   index    [G, 2] uint64   for each group g of 64 ids: a bit mask, in which bit i says if id
                                                  64 · g + i has a row, and the number of rows before the group
                         wide     [T] float32
                         scale, offset  [T] float32   int8 only: value = scale · number + offset
                         deep     [T, D] float32, float16 or int8
                         deleted  [R] int64 ascending   deltas only: ids whose rows were removed
    checksums.safetensors   for each array the xxh3 checksums of its blocks as int64

Rows are stored by ascending id. An id without a row has its initial row: wide 0, deep a function of seed, id and column
(app/tables/initial.py). The tables of a delta hold only changed rows. A chain is a whole bundle's tables, followed by
those of its deltas, oldest first.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from app.tables.initial import initial_rows
from common.arrays.format import arrays_in, map_arrays, map_file, read_entries
from data_prep.encoding.encoder import NO_IDS

TABLES, CHECKSUMS = "tables.safetensors", "checksums.safetensors"
# Approximate size in bytes of a block of rows, which has one checksum. The first read of a row reads its whole block to
# check it.
BLOCK_BYTES = 1 << 16
# Each array in the file begins at a multiple of this many bytes, so that a row of 16 float32 values fills one cache
# line.
ALIGNMENT = 64
INDEX, DELETED = "index", "deleted"
# Computing a checksum holds the global interpreter lock. A lookup that has to check more than BLOCKS_OF_A_REQUEST
# blocks (the first lookups after a model was opened) pauses after every BLOCKS_AT_ONCE further blocks, so that other
# threads can run.
BLOCKS_OF_A_REQUEST, BLOCKS_AT_ONCE, PAUSE_SECONDS = 64, 4, 5e-5
GROUPS_A_BLOCK = BLOCK_BYTES // 16
_BITS = np.uint64(1) << np.arange(64, dtype=np.uint64)
# For each number from 0 to 65535, how many of its bits are 1.
_ONES = np.array([number.bit_count() for number in range(1 << 16)], np.uint8)

RowType = Literal["float32", "float16", "int8"]


@dataclass(frozen=True)
class BundleTablesSpec:
    """Sizes and data types of a bundle's tables: the content of `rows` in the manifest."""

    num_rows: int
    num_ids: int
    width: int
    dtype: RowType
    seed: int  # Seed of the initial rows.
    initial_scale: float
    # Only above 0 for a delta (a bundle with changed rows only): the number of ids whose rows the delta removes.
    num_deleted: int = 0
    # Data type to which the initial values of an embedding row, those before training, are rounded.
    initial_dtype: str = "float32"

    def as_json(self) -> dict[str, Any]:
        """Return the fields of this class by name, as the manifest stores them.

        `initial_dtype` is left out if it is float32, the default, so that releases that do not know this field can read
        the manifest.
        """
        return {key: value for key, value in asdict(self).items() if (key, value) != ("initial_dtype", "float32")}

    @property
    def rows_a_block(self) -> int:
        """Number of rows in a block, which has one checksum. It is a power of 2, and the deep rows of a block have
        about BLOCK_BYTES bytes.
        """
        row_bytes = self.width * np.dtype(self.dtype).itemsize
        return 1 << max(BLOCK_BYTES // row_bytes, 1).bit_length() - 1

    def layout(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return dtype and shape of each array of tables.safetensors by name, in the order in which they lie in the
        file. An array NAME.padding after each array aligns the next one to ALIGNMENT bytes.
        """
        scales = {name: ("float32", (self.num_rows,)) for name in ("scale", "offset") if self.dtype == "int8"}
        arrays: dict[str, tuple[str, tuple[int, ...]]] = {
            INDEX: ("uint64", (-(-self.num_ids // 64), 2)),
            "wide": ("float32", (self.num_rows,)),
            **scales,
            "deep": (self.dtype, (self.num_rows, self.width)),
            **({DELETED: ("int64", (self.num_deleted,))} if self.num_deleted else {}),
        }
        padded: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, (dtype, shape) in arrays.items():
            padded[name] = dtype, shape
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            padded[f"{name}.padding"] = "uint8", (-size % ALIGNMENT,)
        return padded


class BundleTables:
    """The deep and the wide table of one bundle, mapped into memory. Opening reads only the headers and the checksums.
    The checksum of a block is checked when one of its rows is first read.
    """

    def __init__(self, folder: Path, spec: BundleTablesSpec) -> None:
        """Map the two table files in `folder` into memory. Raise ValueError if the names, dtypes and shapes of the
        arrays in tables.safetensors differ from `spec.layout`.
        """
        self.spec = spec
        self._path = folder / TABLES
        places = read_entries(self._path)
        layout = {name: (place.dtype, place.shape) for name, place in places.items()}
        if layout != spec.layout():
            raise ValueError(f"{self._path} holds {_short(layout)}; by the manifest it is {_short(spec.layout())}")
        self._map = map_file(self._path)
        self._map.madvise(mmap.MADV_RANDOM)
        self._starts = {name: place.start for name, place in places.items()}  # Byte offset of each array in the file.
        arrays = arrays_in(self._map, places)
        self._arrays = {name: array for name, array in arrays.items() if not name.endswith(".padding")}
        self._rows_shift = spec.rows_a_block.bit_length() - 1
        self._groups_shift = GROUPS_A_BLOCK.bit_length() - 1
        # `check_files` has already compared the file CHECKSUMS with the checksum of this file in the manifest.
        self._checksums = map_arrays(folder / CHECKSUMS)
        self.deleted = self._arrays.pop(DELETED, NO_IDS)
        self._names = {"ids": [INDEX], "rows": [name for name in self._arrays if name != INDEX]}
        self._blocks = {"ids": self._checksums[INDEX].size, "rows": self._checksums["deep"].size}
        self._checked = {part: np.zeros(count, np.bool_) for part, count in self._blocks.items()}
        self._is_all_checked = dict.fromkeys(self._blocks, False)

    def rows(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the stored deep rows [n, D] and wide rows [n] with the indices `places` [n], converted to float32.

        Raise ValueError, naming the file, if a block that is read is damaged.
        """
        self._check("rows", places, self._rows_shift)
        return self._deep(places), self._arrays["wide"].take(places, mode="clip")

    def stored(self, name: str, places: np.ndarray) -> np.ndarray:
        """Return the entries of the array `name` with the row indices `places` [n], without converting their dtype.
        Raise ValueError, naming the file, if a block that is read is damaged.
        """
        self._check("rows", places, self._rows_shift)
        return self._arrays[name].take(places, axis=0, mode="clip")

    def index(self) -> np.ndarray:
        """Return the whole array `index` [G, 2], which says which ids have a row in the tables. Raise ValueError if it
        is damaged.
        """
        self._check("ids", np.arange(len(self._arrays[INDEX])), self._groups_shift)
        return self._arrays[INDEX]

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for `ids` [n] the index of each id's row in the tables of this bundle, int64 [n], and a mask [n] of
        the ids that have a row in them.

        The index of an id without a row is meaningless. Raise ValueError, naming the file, if the index is damaged.
        """
        groups = ids >> 6
        self._check("ids", groups, self._groups_shift)
        bits, before = self._arrays[INDEX].take(groups, axis=0, mode="clip").T
        bit = _BITS.take(ids & 63)
        # Later bundles of the chain may have added ids from `num_ids` on, which have no row in this bundle. Exclude
        # these ids explicitly: `take` has looked them up in this bundle's last group, because they have no group.
        is_known = (bits & bit != 0) & (ids < self.spec.num_ids)
        # The row index that is returned for an id without a row may lie beyond the last row. This is harmless, because
        # `rows` clips indices to the last row.
        return (before + count_ones(bits & (bit - _BITS[0]))).view(np.int64), is_known

    def _deep(self, places: np.ndarray) -> np.ndarray:
        rows = self._arrays["deep"].take(places, axis=0, mode="clip")
        if self.spec.dtype == "float32":
            return rows
        values: np.ndarray = rows.astype(np.float32)
        if self.spec.dtype == "int8":
            values *= self._arrays["scale"].take(places, mode="clip")[:, None]
            values += self._arrays["offset"].take(places, mode="clip")[:, None]
        return values

    def _check(self, part: str, places: np.ndarray, shift: int) -> None:
        """Check that the blocks with the entries `places` have the stored checksums. A block is checked once, when it
        is first read.

        A block has 2^shift entries. `part` is "ids" (the index) or "rows". Raise ValueError for a damaged block.
        Several threads may call this method at once.
        """
        checked = self._checked[part]
        if self._is_all_checked[part] or checked.take(places >> shift, mode="clip").all():
            return
        blocks = np.unique(np.minimum(places >> shift, len(checked) - 1))
        for number, block in enumerate(blocks[~checked[blocks]]):
            self._check_block(part, int(block))
            checked[block] = True
            if number >= BLOCKS_OF_A_REQUEST and number % BLOCKS_AT_ONCE == 0:
                time.sleep(PAUSE_SECONDS)
        self._is_all_checked[part] = bool(checked.all())

    def _check_block(self, part: str, block: int) -> None:
        shift = self._rows_shift if part == "rows" else self._groups_shift
        for name in self._names[part]:
            rows = self._arrays[name][block << shift : (block + 1) << shift]
            self._read_ahead(self._starts[name] + (block << shift) * self._arrays[name].strides[0], rows.nbytes)
            checksum = xxhash.xxh3_64_intdigest(rows.data)
            expected = int(self._checksums[name][block].astype(np.uint64))
            if checksum != expected:
                first = block << shift
                raise ValueError(
                    f"{self._path} is damaged: block {block} of {name!r} (from row {first}) has checksum xxh3:"
                    f"{checksum:016x}, expected xxh3:{expected:016x}; copy or export the bundle again"
                )

    def _read_ahead(self, start: int, num_bytes: int) -> None:
        """Ask the operating system to read a block of the file in one request. Without this, it would read each memory
        page of the block separately, because the file is mapped with MADV_RANDOM.
        """
        first_page = start // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, first_page, start - first_page + num_bytes)

    def check_all(self) -> None:
        """Compare all blocks of the tables with their checksums. Raise ValueError, naming the file, for a damaged
        block.
        """
        for part, count in self._blocks.items():
            for block in range(count):
                self._check_block(part, block)


def lookup(chain: Sequence[BundleTables], ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Look up `ids` [B, C] in the tables of a bundle and its deltas. Return deep rows [B, C * D] and wide rows [B, C],
    float32.

    If several of these bundles have a row for an id, the newest bundle counts. An id without a row, or with a deleted
    row, has its initial row (the row before training).

    Raise ValueError, naming the file, if a block that is read is damaged.
    """
    flat = ids.reshape(-1)
    base, *deltas = chain
    places, is_known = base.find(flat)
    if base.spec.num_rows:
        deep, wide = base.rows(places)
    else:
        deep, wide = np.empty((flat.size, base.spec.width), np.float32), np.empty(flat.size, np.float32)
    initial = ~is_known
    for delta in deltas:
        places, is_known = delta.find(flat)
        changed = np.flatnonzero(is_known)
        if changed.size:
            deep[changed], wide[changed] = delta.rows(places[changed])
        initial = (initial & ~is_known) | are_among(delta.deleted, flat)
    if initial.any():
        spec = base.spec
        deep[initial] = initial_rows(spec.seed, flat[initial], spec.width, spec.initial_scale, spec.initial_dtype)
        wide[initial] = 0
    return deep.reshape(len(ids), -1), wide.reshape(ids.shape)


def count_ones(words: np.ndarray) -> np.ndarray:
    """Return the number of ones among the bits of each of `words`, uint64 [n], as uint32 [n].

    It is np.bitwise_count, which NumPy 1 lacks.

    >>> count_ones(np.uint64([0, 5, 2**64 - 1])).tolist()
    [0, 2, 64]
    """
    # Each word has four pairs of bytes. The product adds up their four counts in its highest byte.
    return _ONES.take(words.view(np.uint16)).view(np.uint32) * np.uint32(0x01010101) >> np.uint32(24)


def are_among(ascending: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return a mask, bool [n], that is True for the elements of `ids` [n] which the sorted array `ascending` has."""
    if not ascending.size:
        return np.zeros(len(ids), np.bool_)
    places = np.minimum(np.searchsorted(ascending, ids), ascending.size - 1)
    return ascending[places] == ids


def _short(layout: dict[str, tuple[str, tuple[int, ...]]]) -> str:
    arrays = {name: array for name, array in layout.items() if not name.endswith(".padding")}
    return ", ".join(f"{name} {dtype} {list(shape)}" for name, (dtype, shape) in arrays.items())
