"""The finalizer of SplitMix64, a hash of 64-bit numbers (Steele, Lea & Flood, OOPSLA 2014, with the constants of S.
Vigna's splitmix64.c). Different numbers have different hashes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the generator's step from one state to the next


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hash of each value."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
