"""Choose the values that lose their ids after a part: those whose rows were touched last longest ago.

The age of a row is in rows that were trained on since, or in seconds by the times of the parts' files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.checkpoint.read import Checkpoint
from app.checkpoint.write import EXPIRED, EXPIRED_IDS, LAST_TOUCHED, MOMENT
from data_prep.encoding.lookup_file import NO_IDS

IN_ROWS, IN_SECONDS = "rows", "seconds"


@dataclass(frozen=True)
class ExpiryOptions:
    """When values lose their ids."""

    after: float = 0.0  # age above which a row's value does; 0: never
    ages_in: str = IN_ROWS
    most_ids: int = 0  # values that have ids after a part; 0: as many as there are

    @property
    def is_wanted(self) -> bool:
        """True if a value may lose its id."""
        return self.after > 0 or self.most_ids > 0


class Expiry:
    """The moment at which the row of each id was last touched, as the checkpoints have it."""

    def __init__(self, num_ids: int, saved: Checkpoint | None) -> None:
        """Begin as a checkpoint ended. If it does not have when rows were touched, all count as touched now."""
        touched = saved.last_touched() if saved is not None else None
        self.is_new = touched is None  # so that the next checkpoint must be a full one
        self.moment = int(saved.expiry()[MOMENT][0]) if saved is not None and not self.is_new else 0
        self._touched = np.full(num_ids, self.moment) if touched is None else touched
        self._expired = NO_IDS  # since the last checkpoint

    def touch(self, ids: np.ndarray, num_ids: int, moment: int) -> None:
        """Note that these ids were touched at a moment, as were those that are new among `num_ids`. NO_ID is none."""
        self.moment = max(moment, self.moment)
        self._touched[self._touched == 0] = self.moment  # nothing was known of the time before
        new = np.full(num_ids - len(self._touched), self.moment)
        self._touched = np.concatenate([self._touched, new])
        self._touched[ids[ids >= 0]] = self.moment

    def expire(self, can: np.ndarray, counts: np.ndarray, options: ExpiryOptions) -> np.ndarray:
        """Return the ids, ascending, of those that `can` [V] whose values lose them now. They are gone then.

        Of rows that were touched at the same moment, those whose values have lower `counts` [V] go first.
        """
        can = can & (self._touched != EXPIRED)
        old = can & (self.moment - self._touched > options.after) if options.after else np.zeros_like(can)
        remaining = np.flatnonzero(can & ~old)
        if options.most_ids and (surplus := len(remaining) - options.most_ids) > 0:
            touched = self._touched[remaining]
            last = np.partition(touched, surplus - 1)[surplus - 1]
            older, among = remaining[touched < last], remaining[touched == last]
            rarest_last = among[np.lexsort((among, -counts[among]))]
            old[older] = old[rarest_last[len(among) - (surplus - len(older)) :]] = True
        expired = np.flatnonzero(old)
        self._touched[expired] = EXPIRED
        self._expired = expired
        return expired

    def renumber(self, new_ids: np.ndarray, num_ids: int) -> None:
        """Let the id i be `new_ids[i]` from now on, of so many ids."""
        touched = np.zeros(num_ids, np.int64)
        touched[new_ids[new_ids >= 0]] = self._touched[new_ids >= 0]
        self._touched, self._expired = touched, NO_IDS

    def arrays(self, changed_only: bool) -> Mapping[str, np.ndarray]:
        """Return what a checkpoint has of it: all, or the changes since the checkpoint before."""
        self.is_new = False
        moment = np.array([self.moment])
        if changed_only:
            return {EXPIRED_IDS: self._expired, MOMENT: moment}
        return {LAST_TOUCHED: self._touched, MOMENT: moment}
