"""Define which units dropout sets to 0 (the mask), as a pure function of seed, step, example, layer and unit.

An example is given by its index in the batch of all ranks. No random state is kept, and the bits are the same on every
device. A mask is computed where it is used, from three int32 per layer. `keep_mask` is the definition;
`app/model/csrc/elementwise.cc` and `app/model/dense_layer.py` compute the same. The hash function is lowbias32
(Wellons, "Prospecting for Hash Functions", 2018).
"""

from __future__ import annotations

import numpy as np

from common.arrays.hashing import GOLDEN, GOLDEN32, mix32, mix64

FACTORS, SHIFT = (np.uint32(0x7FEB352D), np.uint32(0x846CA68B)), 15  # The constants of lowbias32.
BITS = 24  # Number of bits of the random number that decides whether a unit is dropped.


class DropoutNoise:
    """Makes the keys from which the dropout masks of a run are computed. `rate` is the share of units to drop.

    >>> noise = DropoutNoise(seed=1, rate=0.5, num_layers=2).of_step(step=7)
    >>> noise.shape, keep_mask(noise[0], num_rows=4, num_units=8).shape
    ((2, 3), (4, 8))
    """

    def __init__(self, seed: int, rate: float, num_layers: int) -> None:
        self.rate = rate
        self._seed, self._num_layers = seed, num_layers
        self._threshold = round(rate * 2**BITS)

    def of_step(self, step: int, first_row: int = 0) -> np.ndarray:
        """Return the key of each layer's mask for step number `step` (from 1 on), int32 [L, 3].

        The three columns are a random key, the index of this process's first example in the batch of all ranks, and the
        share of units to drop, times 2²⁴.
        """
        if not self._threshold:
            return np.zeros((self._num_layers, 3), np.int32)  # Nothing is dropped, so no keys are needed.
        layers = np.arange(1, self._num_layers + 1, dtype=np.uint64)
        with np.errstate(over="ignore"):  # Products of uint64 wrap around on purpose.
            step_key = mix64(mix64(np.array(self._seed, np.uint64) + GOLDEN) + GOLDEN * np.uint64(step))
            keys = (mix64(step_key + GOLDEN * layers) >> np.uint64(32)).astype(np.uint32).view(np.int32)
        others = np.tile(np.array([first_row, self._threshold], np.int32), (self._num_layers, 1))
        return np.concatenate([keys[:, None], others], axis=1)


def keep_mask(noise: np.ndarray, num_rows: int, num_units: int) -> np.ndarray:
    """Return a mask of the units that stay, bool [B, H].

    `noise` int32 [3] is one row of the result of `DropoutNoise.of_step`.
    """
    key, first_row, threshold = noise.view(np.uint32)
    with np.errstate(over="ignore"):
        rows = mix32(key + (first_row + np.arange(num_rows, dtype=np.uint32)) * GOLDEN32, SHIFT, FACTORS)
        units = mix32(np.arange(1, num_units + 1, dtype=np.uint32) * GOLDEN32, SHIFT, FACTORS)
        numbers: np.ndarray = mix32(rows[:, None] ^ units, SHIFT, FACTORS) >> np.uint32(32 - BITS)
    return numbers >= threshold
