"""Choose the values that lose their ids after a part, those whose rows were touched least recently.

The age of a row is the number of rows trained on since it was touched, or the seconds since then, measured by the
modification times of the parts' files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.checkpoint.read import Checkpoint
from app.checkpoint.write import EXPIRED, EXPIRED_IDS, LAST_TOUCHED, MOMENT
from data_prep.encoding.encoder import NO_IDS

IN_ROWS, IN_SECONDS = "rows", "seconds"


@dataclass(frozen=True)
class ExpiryOptions:
    """Options that decide when values lose their ids."""

    after: float = 0.0  # Age above which a value loses its id. 0 stands for never.
    ages_in: str = IN_ROWS
    # Maximum number of values with ids after a part. 0 stands for no limit.
    most_ids: int = 0

    @property
    def is_wanted(self) -> bool:
        """True if values may lose their ids."""
        return self.after > 0 or self.most_ids > 0


class Expiry:
    """The age of each id's row, in the form that checkpoints store."""

    def __init__(self, num_ids: int, saved: Checkpoint | None) -> None:
        """Start from the state in the checkpoint `saved`.

        If the checkpoint does not say when rows were touched, all count as touched now.
        """
        touched = saved.last_touched() if saved is not None else None
        self.is_new = touched is None  # If True, the next checkpoint must be a full one.
        self.moment = int(saved.expiry()[MOMENT][0]) if saved is not None and not self.is_new else 0
        self._touched = np.full(num_ids, self.moment) if touched is None else touched
        self._expired = NO_IDS  # Ids that expired since the last checkpoint.

    def touch(self, ids: np.ndarray, num_ids: int, moment: int) -> None:
        """Record that these ids were touched at `moment`. Ids that are new among `num_ids` count as touched, too.

        Entries equal to NO_ID are ignored.
        """
        self.moment = max(moment, self.moment)
        # These rows were touched before moments were recorded.
        self._touched[self._touched == 0] = self.moment
        new = np.full(num_ids - len(self._touched), self.moment)
        self._touched = np.concatenate([self._touched, new])
        self._touched[ids[ids >= 0]] = self.moment

    def expire(self, can: np.ndarray, counts: np.ndarray, options: ExpiryOptions) -> np.ndarray:
        """Expire ids and return them in ascending order. Only ids marked in `can` [V] may expire.

        Among rows that were touched at the same moment, those with lower `counts` [V] expire first.
        """
        can = can & (self._touched != EXPIRED)
        old = can & (self.moment - self._touched > options.after) if options.after else np.zeros_like(can)
        remaining = np.flatnonzero(can & ~old)
        if options.most_ids and (surplus := len(remaining) - options.most_ids) > 0:
            touched = self._touched[remaining]
            last = np.partition(touched, surplus - 1)[surplus - 1]
            older, among = remaining[touched < last], remaining[touched == last]
            rarest_last = among[np.lexsort((among, -counts[among].astype(np.int64)))]
            old[older] = old[rarest_last[len(among) - (surplus - len(older)) :]] = True
        expired = np.flatnonzero(old)
        self._touched[expired] = EXPIRED
        self._expired = expired
        return expired

    def renumber(self, new_ids: np.ndarray, num_ids: int) -> None:
        """Change the id i to `new_ids[i]` for all ids. There are `num_ids` ids afterwards."""
        touched = np.zeros(num_ids, np.int64)
        touched[new_ids[new_ids >= 0]] = self._touched[new_ids >= 0]
        self._touched, self._expired = touched, NO_IDS

    def arrays(self, changed_only: bool) -> Mapping[str, np.ndarray]:
        """Return the arrays for a checkpoint: the whole state, or the changes since the last checkpoint."""
        self.is_new = False
        moment = np.array([self.moment])
        if changed_only:
            return {EXPIRED_IDS: self._expired, MOMENT: moment}
        return {LAST_TOUCHED: self._touched, MOMENT: moment}
