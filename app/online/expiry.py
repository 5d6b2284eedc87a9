"""Choose the categorical values that lose their ids (expire) after the training on a part (file of the log): the values
whose embedding rows were not updated for the longest time.

The age of an embedding row is the number of log rows that the model was trained on since it was last updated (touched),
or the number of seconds since then, measured by the modification times of the parts' files.
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
    """Options that decide when the values of categorical fields lose their ids (expire) because they no longer occur in
    the log.
    """

    after: float = 0.0  # Age, in the unit `ages_in`, above which a value loses its id. 0 stands for never.
    ages_in: str = IN_ROWS  # IN_ROWS: the age of a value is a number of rows of the log. IN_SECONDS: seconds.
    # Maximum number of values that keep their ids after training on a part (file of the log). 0 stands for no limit.
    most_ids: int = 0

    @property
    def is_wanted(self) -> bool:
        """True if any value can lose its id under these options."""
        return self.after > 0 or self.most_ids > 0


class Expiry:
    """For each id, the moment when training last updated (touched) its embedding row, and whether the id has expired. A
    moment is either the number of log rows trained on so far or a time in seconds.
    """

    def __init__(self, num_ids: int, saved: Checkpoint | None) -> None:
        """Start from the moments of the last updates that the checkpoint `saved` stores, for `num_ids` ids.

        If there is no checkpoint, or it stores no moments, all embedding rows count as updated at the moment that the
        first call of `touch` gives.
        """
        touched = saved.last_touched() if saved is not None else None
        # True if the checkpoint stored no moments. The next checkpoint must then be a full one, because a delta
        # checkpoint stores only changes and would leave out the moments of most ids.
        self.is_new = touched is None
        self.moment = int(saved.expiry()[MOMENT][0]) if saved is not None and not self.is_new else 0
        self._touched = np.full(num_ids, self.moment) if touched is None else touched
        self._expired = NO_IDS  # Ids of values that expired in the last call of `expire`, ascending.

    def touch(self, ids: np.ndarray, num_ids: int, moment: int) -> None:
        """Record that training touched (updated) the rows of `ids` at `moment`. The vocabulary now has `num_ids` ids.
        New ids count as touched at this moment, too.

        `ids` may have any shape and repeat ids. Negative entries (NO_ID) are ignored.
        """
        self.moment = max(moment, self.moment)
        # The moment 0 means that a row was last updated before moments were recorded. Such a row counts as updated now.
        self._touched[self._touched == 0] = self.moment
        new = np.full(num_ids - len(self._touched), self.moment)
        self._touched = np.concatenate([self._touched, new])
        self._touched[ids[ids >= 0]] = self.moment

    def expire(self, can: np.ndarray, counts: np.ndarray, options: ExpiryOptions) -> np.ndarray:
        """Choose the ids that expire now, mark them as expired, and return them in ascending order.

        Ids older than `options.after` expire, and then the oldest until `options.most_ids` remain. Among ids touched at
        the same moment, those with lower `counts` [V] expire first. Only ids for which the mask `can` [V] is True may
        expire, and only these ids count for `options.most_ids`.
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
        """Move the moment recorded for each id i to the id `new_ids[i]`, or forget it if `new_ids[i]` is negative.
        Afterwards there are `num_ids` ids.
        """
        touched = np.zeros(num_ids, np.int64)
        touched[new_ids[new_ids >= 0]] = self._touched[new_ids >= 0]
        self._touched, self._expired = touched, NO_IDS

    def arrays(self, changed_only: bool) -> Mapping[str, np.ndarray]:
        """Return the arrays that a checkpoint stores, by name: all moments, or with `changed_only` (for a delta) only
        the ids that have expired since the last checkpoint. In both cases, the newest moment is one of the arrays.
        """
        self.is_new = False
        moment = np.array([self.moment])
        if changed_only:
            return {EXPIRED_IDS: self._expired, MOMENT: moment}
        return {LAST_TOUCHED: self._touched, MOMENT: moment}
