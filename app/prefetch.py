"""Items made ready by a thread while the caller works on those before."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Prefetcher(Generic[Item]):
    """Iterates over `items` with up to `depth` of them made ahead; `waited_seconds` is what the caller waited.

    An exception of the items is raised where the caller takes the next one. Use it as a context
    manager, so that the thread ends with the loop.
    """

    def __init__(self, items: Iterable[Item], depth: int = 2) -> None:
        self.waited_seconds = 0.0
        self._items = items
        self._ready: queue.Queue[tuple[str, object]] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetcher[Item]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        while self._thread.is_alive():  # make room, so that a thread at a full queue sees the flag
            try:
                self._ready.get(timeout=0.05)
            except queue.Empty:
                continue
        self._thread.join()

    def __iter__(self) -> Iterator[Item]:
        while True:
            start = time.perf_counter()
            kind, content = self._ready.get()
            self.waited_seconds += time.perf_counter() - start
            if kind == "end":
                return
            if kind == "error":
                assert isinstance(content, BaseException)
                raise content
            yield content  # type: ignore[misc]

    def _fill(self) -> None:
        try:
            for item in self._items:
                self._ready.put(("item", item))
                if self._stopped.is_set():
                    return
            self._ready.put(("end", None))
        except BaseException as error:
            self._ready.put(("error", error))
