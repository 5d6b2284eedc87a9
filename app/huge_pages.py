"""Memory on huge pages: fewer entries in the TLB, fewer page faults, shorter requests to a disk."""

from __future__ import annotations

import mmap

import numpy as np

from data_prep.shared_library import address

HUGE_PAGE = 2 << 20


class HugeBuffer:
    """Memory on huge pages that is used again: fresh pages for each batch's rows would cost more than the lookup."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, int]) -> np.ndarray:
        """A float32 array of `shape` at the buffer's start; a larger shape than ever before takes new memory."""
        num_bytes = shape[0] * shape[1] * 4
        if num_bytes > self._bytes.size:
            self._bytes = huge_pages(num_bytes)
        return self._bytes[:num_bytes].view(np.float32).reshape(shape)


def huge_pages(num_bytes: int) -> np.ndarray:
    """Fresh bytes that start on a huge page."""
    mapped = mmap.mmap(-1, num_bytes + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared pages stay small
    mapped.madvise(mmap.MADV_HUGEPAGE)
    everything = np.frombuffer(mapped, np.uint8)
    start = -address(everything, np.uint8, everything.size) % HUGE_PAGE
    return everything[start : start + num_bytes]
