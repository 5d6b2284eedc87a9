"""Change a synthetic log over time: who has each rank, and what its effect is.

    row number -> time -> which value has each rank now -> its effect now

Traffic and click rate have a daily rhythm. Most values die, and another takes their rank. A part of each value's effect
is a slow random walk. On `SHOCK_DAY` two fields get new effects, and the click rate falls. All of it is a pure function
of (seed, row), so that a longer log starts with the rows of a shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.hashing import GOLDEN, mix64
from data_prep.sources.shape import CATEGORICAL_NAMES, MISSING_RANK, LogShape

START = np.datetime64("2014-01-01T00:00:00", "s")
MAX_DAYS = 180  # after which the codes of values could meet
TRAFFIC_RHYTHM, CLICK_RHYTHM = 0.6, 0.2  # of rows a second around the mean, and of the log odds
MORTAL_SHARE = 0.3  # of the values of a field
SHORTEST_LIFE, LONGEST_LIFE = 3.0, 100.0  # days, with uniform logarithms
WALKING_SHARE = 0.3  # of an effect's variance; the rest stays
# Days between the knots of a walk with this share of its variance: as a sum of several it moves at all scales.
KNOTS = {16.0: 0.6, 4.0: 0.4}
SHOCK_DAY, SHOCK_LOGIT = 15, -0.3
SHOCK_FIELDS = tuple(CATEGORICAL_NAMES.index(name) for name in ("C9", "C17"))
_AFTER_SHOCK = 1 << 40  # added to a value, gives it another effect
UNIT_UNIFORM = np.sqrt(3.0)  # uniform numbers of [-√3, √3] have variance 1


@dataclass(frozen=True)
class Drift:
    """The changes of the log of `seed`, which has so many rows a day on average."""

    seed: int
    rows_per_day: int

    def days(self, row_numbers: np.ndarray) -> np.ndarray:
        """Return the time of rows [n], in days since the log's start: most traffic is at noon, least at midnight."""
        hours = np.linspace(0, 1, 24 * 12 + 1)
        rows_until = hours - TRAFFIC_RHYTHM * np.sin(2 * np.pi * hours) / (2 * np.pi)
        whole, part = np.divmod(row_numbers / self.rows_per_day, 1)
        return whole + np.interp(part, rows_until, hours)

    def logits(self, days: np.ndarray) -> np.ndarray:
        """Return what the time adds to the log odds [n]: people click most at eight in the evening."""
        return CLICK_RHYTHM * np.cos(2 * np.pi * (days - 20 / 24)) + SHOCK_LOGIT * (days >= SHOCK_DAY)

    def values(self, shape: LogShape, ranks: np.ndarray, days: np.ndarray) -> np.ndarray:
        """Return the numbers of the values [C, n] that have these ranks now. Those of the first day are their ranks."""
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
        """Return effects [n] of a categorical field's values now, of mean 0 and variance 1 over values."""
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
    """Return the hashes [n] of values [n] by a key, [1] or [n]."""
    return mix64(values.astype(np.uint64) * np.uint64(0xD1342543DE82EF95) + key + GOLDEN)


def hashed_unit(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return uniform numbers [n] of [0, 1), the same for the same (key, value)."""
    return (hash_values(key, values) >> np.uint64(11)) * 2.0**-53


def hashed_uniform(key: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return uniform numbers [n] of mean 0 and variance 1, the same for the same (key, value)."""
    return (2 * hashed_unit(key, values) - 1) * UNIT_UNIFORM
