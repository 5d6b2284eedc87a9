"""Compute the next items of an iteration in a thread, while the caller uses the present one."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

Item = TypeVar("Item")
# The queue of a `Prefetcher`. It has a tuple (item,) for each item, and at the end the exception that the iteration
# raised, or None if it raised none.
Ready: TypeAlias = "queue.SimpleQueue[tuple[Any] | BaseException | None]"


class Prefetcher(Generic[Item]):
    """Iterates over `items`, while a thread computes up to `depth` of the next items in advance.

    `waited_seconds` is the time that the caller has waited for items. If `items` raises an exception in the thread, it
    is raised again when the caller takes the next item. Put the loop into a `with` statement of this object, which ends
    the thread when the loop ends.
    """

    def __init__(
        self, items: Iterable[Item], depth: int = 2, take: Callable[[Ready], Any] = queue.SimpleQueue.get
    ) -> None:
        """Set up the iteration over `items`, of which up to `depth` are computed in advance. The thread that computes
        them starts when the `with` statement is entered.

        `take` is a function that gets the queue of computed items, waits for its next element, and returns the
        element.
        """
        self.waited_seconds = 0.0
        self._items = items
        self._take = take
        self._ready: Ready = queue.SimpleQueue()
        self._room, self._stopped = threading.Semaphore(depth), threading.Event()
        self._thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetcher[Item]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._room.release()
        self._thread.join()

    def __iter__(self) -> Iterator[Item]:
        while True:
            start = time.perf_counter()
            element = self._take(self._ready)
            self.waited_seconds += time.perf_counter() - start
            if element is None:
                return
            if isinstance(element, BaseException):
                raise element
            self._room.release()
            yield element[0]

    def _fill(self) -> None:
        try:
            for item in self._items:
                self._ready.put((item,))
                self._room.acquire()  # Wait until the caller has taken enough items, before the next one is computed.
                if self._stopped.is_set():
                    return
            self._ready.put(None)
        except BaseException as error:
            self._ready.put(error)
