"""Measure the training step with the rows of the tables in a file, while memory holds a third of them.

    python -m benchmarks.training.storage            D 80, a table of 2.6 GB: some 20 minutes, 4 GB of disk and memory
    python -m benchmarks.training.storage --quick    a table of 0.2 GB and few steps: does everything work?

large tower, small tower    ids as in Criteo's log, batches of 16,000 rows, tower 1024-512-256-128 or 256-64
rare ids                    ids that hardly repeat, batches of 2,000 rows, tower 256-64

Three contenders take turns, each in a process of its own. memory keeps the rows in memory. file keeps them in a file,
and a cgroup limits its memory to a third of the table and what the process needs besides. fits is file without a limit.
`read` and `written` are pages per step that the whole disk read and wrote. The line "disk" has the time of as many
random reads and writes of pages by eight threads, without the page cache, in a file of 1 GB.

A limit needs root, or a cgroup of version 2 that this user may divide. Without one, nothing is measured.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from app.config import device
from app.tables.native.tables import NativeTables
from benchmarks.harness.contender import KEEP_PAGES, Contender, Parts
from benchmarks.harness.timing import Timing, in_turns, new_parser, print_result, seconds_of
from benchmarks.harness.workload import NUM_NUMERIC, Workload, field_starts, log_ids, steps_on_batches
from benchmarks.training.mindspore_contender import make_config, make_schema
from data_prep.prepared.batches import Batch

CGROUPS = Path("/sys/fs/cgroup")
LARGE, SMALL = (1024, 512, 256, 128), (256, 64)
CASES = {"large tower": (LARGE, 16_000), "small tower": (SMALL, 16_000), "rare ids": (SMALL, 2_000)}
# The ids are the values that occur three times or more in so many rows with the frequencies of Criteo's log: 2.8 M.
LOG_ROWS, QUICK_LOG_ROWS, MIN_COUNT = 45_000_000, 1_500_000, 3
ROWS_AT_ONCE, PAGE, NUM_THREADS = 100_000, mmap.PAGESIZE, 8
SPARE_BYTES = 64 << 20  # Part of the limit of the contender file: memory that the process may still allocate later.


def join_group(name: str) -> Path:
    """Let this process join a new cgroup, of version 1 or 2. Return the file that sets the limit of its memory.

    Raise OSError if this user may make no such group.
    """
    is_first = (CGROUPS / "memory" / "memory.limit_in_bytes").exists()
    folder = CGROUPS / ("memory" if is_first else "") / name
    folder.mkdir(exist_ok=True)
    limit = folder / ("memory.limit_in_bytes" if is_first else "memory.max")
    if not limit.exists():
        raise OSError(f"{folder} has no limit of memory: the controller memory is not enabled there")
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    return limit


def make_batches(case: str, log_rows: int) -> Iterator[Batch]:
    """Yield the batches of a case without end. They depend only on the arguments."""
    rng, (_, batch_size) = np.random.default_rng(0), CASES[case]
    num_ids = int(field_starts(log_rows, MIN_COUNT)[-1])
    while True:
        if case == "rare ids":
            ids = rng.integers(0, num_ids, (batch_size, 26)).astype(np.int32)
        else:
            ids = log_ids(rng, batch_size, log_rows, MIN_COUNT)
        numeric = rng.random((batch_size, NUM_NUMERIC), np.float32)
        yield Batch(ids, numeric, (rng.random(batch_size) < 0.25).astype(np.float32))


def contender(name: str, case: str, log_rows: int, folder: str) -> Callable[[int], Parts]:
    """Return a function that takes training steps on tables in which every row exists.

    It returns the seconds of the steps' parts, and the pages that the disk read and wrote meanwhile.
    """
    from app.training import assemble

    limit = join_group(f"storage-benchmark-{os.getpid()}")
    widths, batch_size = CASES[case]
    num_ids = int(field_starts(log_rows, MIN_COUNT)[-1])
    workload = Workload(batch_size, vocabulary_size=num_ids, hidden_widths=widths, ids="log")
    config = make_config(workload, "native")
    config = replace(config, tables=replace(config.tables, storage="memory" if name == "memory" else folder))
    device.prepare_environment(config.device)
    step = assemble.assemble(config, make_schema(workload), "native").step
    assert isinstance(step.tables, NativeTables)
    for start in range(0, num_ids, ROWS_AT_ONCE):
        step.tables.touch(np.arange(start, min(start + ROWS_AT_ONCE, num_ids)))
    take = steps_on_batches(step, step, make_batches(case, log_rows))
    if name == "file":
        # Two steps allocate the memory that steps need besides the rows, so that it is measured and added to the limit.
        take(2)
        memory = psutil.Process().memory_info()
        limit.write_text(str(memory.rss - memory.shared + num_ids * step.tables.spec.row_bytes() // 3 + SPARE_BYTES))

    def take_steps(count: int) -> Parts:
        before = psutil.disk_io_counters()
        parts = take(count)
        after = psutil.disk_io_counters()
        assert before is not None
        assert after is not None
        pages = {"read": after.read_bytes - before.read_bytes, "written": after.write_bytes - before.write_bytes}
        return parts | {kind: num_bytes / PAGE for kind, num_bytes in pages.items()}

    return take_steps


def disk_seconds(folder: Path, num_reads: int, num_writes: int, num_bytes: int) -> float:
    """Return the seconds that eight threads take for `num_reads` reads and `num_writes` writes of pages at random
    places of a new file of `num_bytes` bytes, without the page cache.
    """
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(num_bytes >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        descriptor = os.open(file.name, os.O_RDWR | os.O_DIRECT)
        places = np.random.default_rng(0).integers(0, num_bytes // PAGE, num_reads + num_writes) * PAGE

        def access(thread: int) -> None:
            page = mmap.mmap(-1, PAGE)  # O_DIRECT needs aligned memory.
            for number in range(thread, places.size, NUM_THREADS):
                # Reads and writes alternate as far as there are both.
                is_write = number * num_writes % places.size < num_writes
                (os.pwritev if is_write else os.preadv)(descriptor, [page], int(places[number]))

        try:
            with ThreadPoolExecutor(NUM_THREADS) as threads:
                return seconds_of(lambda: list(threads.map(access, range(NUM_THREADS))), time.perf_counter)
        finally:
            os.close(descriptor)


def measure(case: str, options: Any) -> dict[str, Any]:
    """Measure one case, and return the seconds of a step of each contender, the pages, and the disk's seconds."""
    print(f"\n== {case}", flush=True)
    environment = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), **KEEP_PAGES}
    names, steps = ("memory", "file", "fits"), options.steps
    words = case, QUICK_LOG_ROWS if options.quick else LOG_ROWS, str(options.folder)
    with ExitStack() as running:
        contenders = {
            name: running.enter_context(closing(Contender(name, __spec__.name, (name, *words), environment)))
            for name in names
        }
        for each in contenders.values():
            each.wait_until_ready()
        turns = {
            name: partial(seconds_of, partial(each.take_steps, steps), time.perf_counter)
            for name, each in contenders.items()
        }
        # The pages that stay in memory are those that were used last, once enough steps were taken.
        contenders["file"].take_steps(options.warm_up)
        seconds = in_turns(turns, options.rounds, warm_up=1)
        pages = {
            kind: float(np.median([parts[kind] for parts in contenders["file"].parts[2:]])) / steps
            for kind in ("read", "written")
        }
    medians = {name: Timing.of(found).median / steps for name, found in seconds.items()}
    reads, writes = int(pages["read"]), int(pages["written"])
    disk = disk_seconds(options.folder, reads, writes, (64 if options.quick else 1024) << 20)
    for name, median in medians.items():
        print(f"{name:8} {median * 1e3:8.0f} ms a step, speed {medians['memory'] / median:.2f} × memory")
    print(f"file     {pages['read']:,.0f} pages read and {pages['written']:,.0f} written a step")
    print(f"disk     {disk * 1e3:8.0f} ms for as many pages, {disk / medians['file']:.2f} of the step in a file")
    return {"case": case, "seconds": medians, "pages": pages, "disk_seconds": disk}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=tuple(CASES))
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure (this folder)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="of a contender's turn (4)")
    parser.add_argument("--warm-up", type=int, default=100, help="steps in a file before the first turn (100)")
    parser.add_argument("--quick", action="store_true", help="a small table, 2 rounds of 2 steps")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.warm_up = 2, 2, 4
    try:
        join_group(f"storage-benchmark-{os.getpid()}")
    except OSError as error:
        print(f"left out: memory cannot be limited here: {error}")
        return print_result(options, skipped=str(error))
    load = os.getloadavg()[0]
    print_result(options, load_before=load, cases=[measure(case, options) for case in options.cases])


if __name__ == "__main__":
    main()
