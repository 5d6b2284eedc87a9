"""Dropout masks as a pure function of (seed, step, global row, layer, unit): no state, the same bits on every device.

A mask is made where it is used, from three int32 a layer: `app/model/csrc/elementwise.cc` and
`app/model/dense_layer.py` do what `keep_mask` does. The mixing function is lowbias32 (Wellons, "Prospecting for Hash
Functions", 2018).
"""

from __future__ import annotations

import numpy as np

from common.hashing import GOLDEN, mix64

GOLDEN32 = np.uint32(0x9E3779B9)
FACTORS = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
BITS = 24  # of a unit's random number


class DropoutNoise:
    """The keys of a run's dropout masks. `rate` is the share of units to drop."""

    def __init__(self, seed: int, rate: float, num_layers: int) -> None:
        self.rate = rate
        self._seed, self._num_layers = seed, num_layers
        self._threshold = round(rate * 2**BITS)

    def of_step(self, step: int, first_row: int = 0) -> np.ndarray:
        """Return int32 [L, 3] for step 1, 2, …: each layer's key, the index of this process's first row in the global
        batch, and the share to drop in 2⁻²⁴."""
        if not self._threshold:
            return np.zeros((self._num_layers, 3), np.int32)  # no key drops a unit
        layers = np.arange(1, self._num_layers + 1, dtype=np.uint64)
        with np.errstate(over="ignore"):  # uint64 arithmetic is modulo 2**64 here
            step_key = mix64(mix64(np.array(self._seed, np.uint64) + GOLDEN) + GOLDEN * np.uint64(step))
            keys = (mix64(step_key + GOLDEN * layers) >> np.uint64(32)).astype(np.uint32).view(np.int32)
        others = np.tile(np.array([first_row, self._threshold], np.int32), (self._num_layers, 1))
        return np.concatenate([keys[:, None], others], axis=1)


def keep_mask(noise: np.ndarray, num_rows: int, num_units: int) -> np.ndarray:
    """Return True for units that stay, bool [B, H]. `noise` [3] is a layer of `DropoutNoise.of_step`."""
    key, first_row, threshold = noise.view(np.uint32)
    with np.errstate(over="ignore"):
        rows = mix32(key + (first_row + np.arange(num_rows, dtype=np.uint32)) * GOLDEN32)
        units = mix32(np.arange(1, num_units + 1, dtype=np.uint32) * GOLDEN32)
        numbers: np.ndarray = mix32(rows[:, None] ^ units) >> np.uint32(32 - BITS)
    return numbers >= threshold


def mix32(values: np.ndarray) -> np.ndarray:
    """Return lowbias32 of each uint32."""
    mixed = (values ^ (values >> np.uint32(16))) * FACTORS[0]
    mixed = (mixed ^ (mixed >> np.uint32(15))) * FACTORS[1]
    return mixed ^ (mixed >> np.uint32(16))
