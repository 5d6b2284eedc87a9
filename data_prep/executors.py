"""Run a function over chunks on several processes and take the results in the chunks' order."""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from data_prep.memory import keep_freed_memory

Task = TypeVar("Task")
Result = TypeVar("Result")

# Chunks under way for each worker: one at work, one waiting, so that memory stays bounded and nobody idles.
_TASKS_PER_WORKER = 2


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def map_in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], num_workers: int, work_folder: Path
) -> Generator[Result, None, None]:
    """`function` of each task, in the order of the tasks; with one worker in this process.

    `function` is sent to each worker once, tasks with every call; results come through files in `work_folder`.
    Few tasks are under way at a time, so an endless stream of tasks will do. Closing the generator ends the workers.

    Raises MemoryError where a worker process was ended from outside.
    """
    if num_workers == 1:
        yield from map(function, tasks)
        return
    # Fresh processes instead of forked ones: this one may hold MindSpore and its threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, context, _start_worker, (function, work_folder)) as pool:
        waiting = iter(tasks)
        running: deque[Future[_Parcel]] = deque()
        try:
            while True:
                free = num_workers * _TASKS_PER_WORKER - len(running)
                running.extend(pool.submit(_call, task) for task in itertools.islice(waiting, free))
                if not running:
                    return
                yield running.popleft().result().open()
        except BrokenProcessPool as error:
            raise MemoryError(
                f"one of {num_workers} worker processes was ended from outside, most likely for want of memory; "
                "run again with fewer: prepare.workers=1"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class _Parcel:
    """A result on its way from a worker: its arrays lie in a file, which the receiver maps into its memory.

    A pipe would copy them six times in pieces of 64 KiB; a file that is removed at once seldom reaches the disk.
    """

    pickled: bytes
    path: Path | None  # None where there are no arrays
    sizes: list[int]  # of the arrays, in bytes

    @classmethod
    def pack(cls, result: Any, path: Path) -> _Parcel:
        """Put a result's arrays into a new file."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(result, protocol=5, buffer_callback=buffers.append)
        arrays = [buffer.raw() for buffer in buffers]
        sizes = [array.nbytes for array in arrays]
        if sum(sizes) == 0:  # an empty file cannot be mapped
            return cls(pickled, None, sizes)
        with path.open("wb") as file:
            file.writelines(arrays)
        return cls(pickled, path, sizes)

    def open(self) -> Any:
        """The result. Its arrays keep the file's memory, the file is gone."""
        content = memoryview(bytearray())
        if self.path is not None:
            with self.path.open("rb") as file:
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            self.path.unlink()
        ends = list(itertools.accumulate(self.sizes))
        return pickle.loads(
            self.pickled, buffers=[content[end - size : end] for size, end in zip(self.sizes, ends, strict=True)]
        )


_function: Callable[[Any], Any]
_result_paths: Iterator[Path]


def _start_worker(function: Callable[[Any], Any], work_folder: Path) -> None:
    """Keep the function for all tasks to come; Ctrl-C is the parent's business, which ends the pool."""
    global _function, _result_paths
    _function = function
    _result_paths = (work_folder / f"result-{os.getpid()}-{number}" for number in itertools.count())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool's worker waits for tasks for ever, even when nobody is left to send one (after `kill -9`)."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(task: Any) -> _Parcel:
    return _Parcel.pack(_function(task), next(_result_paths))
