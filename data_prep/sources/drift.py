"""Change a synthetic log over time: which value has each rank, and what its effect is.

    row number -> time -> value of each rank at that time -> effect of the value at that time

Traffic and click rate have a daily rhythm. Some values die, and other values take their ranks. A part of each
value's effect is a slow random walk. On `SHOCK_DAY` two fields get new effects, and the click rate falls. Everything
is a pure function of (seed, row), so a longer log starts with the rows of a shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.hashing import GOLDEN, mix64
from data_prep.sources.shape import CATEGORICAL_NAMES, MISSING_RANK, LogShape

START = np.datetime64("2014-01-01T00:00:00", "s")
MAX_DAYS = 180  # Longest log. After more days the codes of values could collide.
# Amplitudes of the daily rhythms: of rows per second relative to the mean, and of the log odds.
TRAFFIC_RHYTHM, CLICK_RHYTHM = 0.6, 0.2
MORTAL_SHARE = 0.3  # Share of the values of a field that die.
SHORTEST_LIFE, LONGEST_LIFE = 3.0, 100.0  # Range of a value's life in days. Its logarithm is uniform.
WALKING_SHARE = 0.3  # Share of an effect's variance that changes over time. The rest stays constant.
# Days between the knots of a random walk -> share of the walk's variance. A sum of several walks changes at all time
# scales.
KNOTS = {16.0: 0.6, 4.0: 0.4}
SHOCK_DAY, SHOCK_LOGIT = 15, -0.3
SHOCK_FIELDS = tuple(CATEGORICAL_NAMES.index(name) for name in ("C9", "C17"))
_AFTER_SHOCK = 1 << 40  # This number is added to a value to give it another effect.
UNIT_UNIFORM = np.sqrt(3.0)  # Uniform numbers in [-√3, √3] have variance 1.


@dataclass(frozen=True)
class Drift:
    """The changes of the synthetic log with this `seed`, which has `rows_per_day` rows per day on average."""

    seed: int
    rows_per_day: int

    def days(self, row_numbers: np.ndarray) -> np.ndarray:
        """Return the time of each row [n] in days since the log's start.

        Traffic is highest at noon, lowest at midnight.
        """
        hours = np.linspace(0, 1, 24 * 12 + 1)
        rows_until = hours - TRAFFIC_RHYTHM * np.sin(2 * np.pi * hours) / (2 * np.pi)
        whole, part = np.divmod(row_numbers / self.rows_per_day, 1)
        return whole + np.interp(part, rows_until, hours)

    def logits(self, days: np.ndarray) -> np.ndarray:
        """Return what the time adds to the log odds [n]. People click most at eight in the evening."""
        return CLICK_RHYTHM * np.cos(2 * np.pi * (days - 20 / 24)) + SHOCK_LOGIT * (days >= SHOCK_DAY)

    def values(self, shape: LogShape, ranks: np.ndarray, days: np.ndarray) -> np.ndarray:
        """Return the values [C, n] that have the given ranks at the given time.

        On the first day, a value's number is its rank.
        """
        values = ranks.copy()
        for field, of_field in enumerate(ranks):
            of_life, of_phase, of_fate = (
                hashed_unit(self._key(field, purpose), of_field) for purpose in ("life", "phase", "fate")
            )
            life = SHORTEST_LIFE * (LONGEST_LIFE / SHORTEST_LIFE) ** of_life
            deaths = np.where(of_fate < MORTAL_SHARE, days / life + of_phase, 0).astype(np.int64)
            num_ranks = int(shape.values[field].edges[-1])
            values[field] = np.where(of_field == MISSING_RANK, MISSING_RANK, of_field + deaths * num_ranks)
        return values

    def effects(self, field: int, key: np.ndarray, values: np.ndarray, days: np.ndarray) -> np.ndarray:
        """Return the effects [n] of a categorical field's values at the given time.

        Over values they have mean 0 and variance 1.
        """
        if field in SHOCK_FIELDS:
            values = values + _AFTER_SHOCK * (days >= SHOCK_DAY)
        total = np.sqrt(1 - WALKING_SHARE) * hashed_uniform(key, values)
        for period, share in KNOTS.items():
            knot, way = np.divmod(days / period, 1)
            before, after = (
                hashed_uniform(mix64(key + (number * 64 + period).astype(np.uint64) * GOLDEN), values)
                for number in (knot + 1, knot + 2)
            )
            walk = ((1 - way) * before + way * after) / np.hypot(1 - way, way)
            total += np.sqrt(WALKING_SHARE * share) * walk
        return total

    def _key(self, field: int, purpose: str) -> np.ndarray:
        name = int.from_bytes(f"{purpose}{field}".encode(), "little")
        return mix64(np.array([self.seed ^ name], dtype=np.uint64) + GOLDEN)


def hash_values(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the hashes [n] of values [n] with a key, [1] or [n]."""
    return mix64(values.astype(np.uint64) * np.uint64(0xD1342543DE82EF95) + key + GOLDEN)


def hashed_unit(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return uniform numbers [n] in [0, 1) that depend only on (key, value)."""
    return (hash_values(key, values) >> np.uint64(11)) * 2.0**-53


def hashed_uniform(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return uniform numbers [n] with mean 0 and variance 1 that depend only on (key, value)."""
    return (2 * hashed_unit(key, values) - 1) * UNIT_UNIFORM
