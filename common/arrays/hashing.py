"""Compute hashes of 64-bit and of 32-bit numbers. A hash has as many bits as the number, and different numbers have
different hashes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # The number that the generator SplitMix64 adds to its state at each step.
GOLDEN32 = np.uint32(0x9E3779B9)  # 2³² divided by the golden ratio. GOLDEN is 2⁶⁴ divided by the golden ratio.
# Arguments `shift` and `factors` for `mix32`. With these, it computes the finalizer of MurmurHash3 (A. Appleby, public
# domain).
MURMUR3 = 13, (np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35))


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hash of each value, uint64 with the shape of `values`.

    The hash is the finalizer of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014), with the constants of S. Vigna's
    splitmix64.c.
    """
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def mix32(values: NDArray[np.uint32], shift: int, factors: tuple[np.uint32, np.uint32]) -> NDArray[np.uint32]:
    """Return the hash of each value, uint32 with the shape of `values`.

    The hash has the form of MurmurHash3's 32-bit finalizer, in which `shift` is the number of bits of the second of
    three shifts, and `factors` are the two multipliers. The hash needs only 32-bit products, which vector instructions
    can compute.
    """
    mixed = (values ^ (values >> np.uint32(16))) * factors[0]
    mixed = (mixed ^ (mixed >> np.uint32(shift))) * factors[1]
    return mixed ^ (mixed >> np.uint32(16))
