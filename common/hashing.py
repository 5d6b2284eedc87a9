"""Hash 64-bit numbers with the finalizer of SplitMix64.

It is from Steele, Lea & Flood, OOPSLA 2014, with the constants of S. Vigna's splitmix64.c. Different numbers have
different hashes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # The increment of SplitMix64's state.


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hash of each value, with the shape of `values`."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
