"""Allocate buffers on huge pages, and return freed memory to the system."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np

from common.native_library import address

HUGE_PAGE = 2 << 20


class HugeBuffer:
    """A buffer on huge memory pages, into which the embedding rows of one batch after another are copied.

    If each batch got fresh memory, the system would take longer to map its pages than the lookup itself takes.
    """

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return a float32 array of `shape` at the start of the buffer. Enlarge the buffer if it is too small.

        The array shares its memory with the arrays that earlier calls returned, so writing to the array changes the
        values of the earlier arrays.
        """
        num_bytes = shape[0] * shape[1] * 4
        if num_bytes > self._bytes.size:
            # Make the buffer an eighth larger than needed, so that a later batch with a few more rows still fits.
            self._bytes = huge_pages(num_bytes * 9 // 8)
        return self._bytes[:num_bytes].view(np.float32).reshape(shape)


def huge_pages(num_bytes: int) -> np.ndarray:
    """Return a new uint8 array [num_bytes] that starts at the beginning of a huge page (2 MiB)."""
    # The mapping is private, because shared mappings do not get huge pages.
    mapped = mmap.mmap(-1, num_bytes + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    everything = np.frombuffer(mapped, np.uint8)
    start = -address(everything, np.uint8, everything.size) % HUGE_PAGE
    return everything[start : start + num_bytes]


def give_back_freed_memory() -> None:
    """Give memory back to the system that the program has freed, but that malloc (or pyarrow, if it is loaded) has kept
    for later allocations.
    """
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
