"""Take items ahead of their use, in a thread of its own: reading and unpacking go on while their user is busy."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from contextlib import closing
from typing import Generic, TypeVar

from data_prep.stopping import check_stop

Item = TypeVar("Item")

_WAIT_SECONDS = 0.5  # for an item, before a signal to stop is looked for


def read_ahead(items: Generator[Item, None, None], num_ahead: int) -> Generator[Item, None, None]:
    """`items` in their order, of which at most `num_ahead` wait to be used.

    An error of theirs comes in its place. Closing this closes `items`, too, in their thread, which is over then.
    """
    ahead = _Ahead(items, num_ahead)
    thread = threading.Thread(target=ahead.fill, daemon=True)
    thread.start()
    try:
        while ahead.has_next():
            yield ahead.take()
    finally:
        ahead.stop()
        thread.join()
    if ahead.error is not None:
        raise ahead.error


class _Ahead(Generic[Item]):
    """What the two threads share."""

    def __init__(self, items: Generator[Item, None, None], num_ahead: int) -> None:
        self._waiting: deque[Item] = deque()
        self.error: BaseException | None = None
        self._items = items
        self._num_ahead = num_ahead
        self._is_over = False  # for both: no item is to come, or none is wanted
        self._changed = threading.Condition()

    def fill(self) -> None:
        """In the thread: take all items, as long as they are wanted."""
        try:
            with closing(self._items):
                for item in self._items:
                    self._add(item)
                    if self._is_over:
                        break
        except BaseException as error:
            self.error = error
        finally:
            self.stop()

    def _add(self, item: Item) -> None:
        with self._changed:
            self._waiting.append(item)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_over or len(self._waiting) < self._num_ahead)

    def has_next(self) -> bool:
        """Wait for an item; False where none is to come. Raises Stopped after a signal."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._waiting or self._is_over, _WAIT_SECONDS):
                check_stop()
        check_stop()
        return bool(self._waiting)

    def take(self) -> Item:
        """The next item, which makes room for another."""
        with self._changed:
            self._changed.notify_all()
            return self._waiting.popleft()

    def stop(self) -> None:
        """End the waiting on both sides."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
