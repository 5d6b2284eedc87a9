"""Measure trainings whose table rows are in a file, while memory holds a part of them.

    python -m benchmarks.training.storage                       every case, half an hour, 25 GB of disk
    python -m benchmarks.training.storage --cases "rare ids"    only these cases
    python -m benchmarks.training.storage --quick               small tables and few steps: does everything work?

large tower, small tower    ids as in Criteo's log, batches of 16,000 rows, tower 1024-512-256-128 or 256-64
fits                        small tower, while memory holds the whole file
rare ids                    ids that hardly repeat, batches of 2,000 rows, tower 256-64
pytorch                     small tower by PyTorch, with the table and its moments in mapped files
export                      8 M values, D 8: the peak memory of `train` and of `export`
larger                      a table of 10 GB, 1 M rows, under a limit of 3 GB: `train`, `evaluate` and `export`

In the first five cases, the table takes 2.6 GB, and two contenders take turns, each in a process of its own. memory
keeps the rows in memory. file keeps them in a file, and a cgroup limits its memory to a third of the table and what the
process needs besides. fits is file without a limit. `read` and `written` are pages per step that this process read, and
that it changed since they were last written. The line "disk" has the time of as many random reads and writes of pages
by eight threads, without the page cache, in a file of 1 GB. It is computed from the rate that fio measures.

In the last two, memory is the Pss of the command's processes, in which pages of files that are mapped count. `--scale`
makes them smaller: fewer rows and values, and a lower limit.

A limit needs root, or a cgroup of version 2 that this user may divide. Without one, nothing is measured.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from app.config import device
from app.tables.native.tables import NativeTables
from benchmarks.harness.cgroup import join, memory_cgroup, run_app, set_limit
from benchmarks.harness.commands import run_command
from benchmarks.harness.contender import KEEP_PAGES, Contender, Parts
from benchmarks.harness.timing import Timing, in_turns, metered, new_parser, print_result, seconds_of
from benchmarks.harness.workload import NUM_NUMERIC, Workload, field_starts, log_ids, steps_on_batches
from benchmarks.training.kernels import NUM_FIELDS
from benchmarks.training.mindspore_contender import make_config, make_schema
from common.process import UNLIMITED
from data_prep.prepared.batches import Batch

LARGE, SMALL = (1024, 512, 256, 128), (256, 64)
CASES = {
    "large tower": (LARGE, 16_000),
    "small tower": (SMALL, 16_000),
    "fits": (SMALL, 16_000),
    "rare ids": (SMALL, 2_000),
    "pytorch": (SMALL, 16_000),
}
# Trainings by the command `train`: rows of the log, values of each of its columns, D, and the limit in bytes or None.
RUNS = {"export": (308_000, 308_000, 8, None), "larger": (1_000_000, 450_000, 80, 3 << 30)}
# The ids are the values that occur three times or more in so many rows with the frequencies of Criteo's log: 2.8 M.
LOG_ROWS, QUICK_LOG_ROWS, MIN_COUNT = 45_000_000, 1_500_000, 3
ROWS_AT_ONCE, PAGE, NUM_THREADS, FIO_SECONDS = 100_000, mmap.PAGESIZE, 8, 10
LEAST_LIMIT = 1 << 30  # Python, its libraries and the batches take most of it.
SPARE_BYTES = 64 << 20  # Part of the limit of the contender file: memory that the process may still allocate later.


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


def contender(name: str, case: str, log_rows: int, folder: str, group: Path) -> Callable[[int], Parts]:
    """Return a function that takes training steps on tables in which every row exists.

    It returns the seconds of the steps' parts, and the pages that this process read and changed. The contender `file`
    joins the cgroup `group`, and sets its limit after two steps.
    """
    widths, batch_size = CASES[case]
    num_ids = int(field_starts(log_rows, MIN_COUNT)[-1])
    workload = Workload(batch_size, vocabulary_size=num_ids, hidden_widths=widths, ids="log")
    if name == "file":
        join(group)
    make_step = pytorch_step if case == "pytorch" else native_step
    step, table_bytes = make_step(name, workload, folder)
    take = steps_on_batches(step, step, make_batches(case, log_rows))
    if name == "file":
        # Two steps allocate the memory that steps need besides the rows, so that it is measured and added to the limit.
        take(2)
        memory = psutil.Process().memory_info()
        set_limit(group, memory.rss - memory.shared + table_bytes // 3 + SPARE_BYTES)

    def take_steps(count: int) -> Parts:
        process = psutil.Process()
        before, parts, after = process.io_counters(), take(count), process.io_counters()
        pages = {"read": after.read_bytes - before.read_bytes, "written": after.write_bytes - before.write_bytes}
        return parts | {kind: num_bytes / PAGE for kind, num_bytes in pages.items()}

    return take_steps


def native_step(name: str, workload: Workload, folder: str) -> tuple[Any, int]:
    """Return the training step of this project, whose tables have every row, and the bytes of all rows."""
    from app.training import assemble

    num_ids = workload.vocabulary_size
    config = make_config(workload, "native")
    config = replace(config, tables=replace(config.tables, storage="memory" if name == "memory" else folder))
    device.prepare_environment(config.device)
    step = assemble.assemble(config, make_schema(workload), "native").step
    assert isinstance(step.tables, NativeTables)
    for start in range(0, num_ids, ROWS_AT_ONCE):
        step.tables.touch(np.arange(start, min(start + ROWS_AT_ONCE, num_ids)))
    return step, num_ids * step.tables.spec.row_bytes()


def pytorch_step(name: str, workload: Workload, folder: str) -> tuple[Any, int]:
    """Return PyTorch's training step, and the bytes of its deep table with both moments. With the name "file", these
    are mapped from files that have no name.
    """
    import torch

    from benchmarks.peers.pytorch_wide_deep import PyTorchStep, use_threads

    use_threads(workload.threads)
    step = PyTorchStep(workload)
    adam, table = step.optimizers[0], step.deep

    def stored(values: torch.Tensor) -> torch.Tensor:
        if name == "memory":
            return values
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.truncate(values.nbytes)
            mapped = torch.from_file(file.name, shared=True, size=values.numel()).view(values.shape)
        return mapped.copy_(values)

    table.data = stored(table.data)
    moments = {moment: stored(torch.zeros_like(table.data)) for moment in ("exp_avg", "exp_avg_sq")}
    adam.state[table] = {"step": 0, **moments}
    return step, 3 * table.nbytes


def disk_seconds(folder: Path, num_reads: float, num_writes: float, num_bytes: int) -> float:
    """Return the seconds that eight threads need for `num_reads` reads and `num_writes` writes of pages at random
    places of a new file of `num_bytes` bytes, without the page cache, at the rate that fio measures.
    """
    num_pages = num_reads + num_writes
    share = round(100 * num_reads / max(num_pages, 1))
    words = f"--rw=randrw --rwmixread={share} --direct=1 --overwrite=1 --bs={PAGE} --size={num_bytes} --ioengine=psync "
    words += f"--thread --numjobs={NUM_THREADS} --group_reporting --time_based --runtime={FIO_SECONDS} --name=pages"
    with tempfile.TemporaryDirectory(dir=folder) as name:
        command = ["fio", *words.split(), f"--filename={name}/pages", "--output-format=json"]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    (job,) = json.loads(printed)["jobs"]
    return float(num_pages / (job["read"]["iops"] + job["write"]["iops"]))


def measure(case: str, options: Any, group: Path) -> dict[str, Any]:
    """Measure one case, and return the seconds of a step of each contender, the pages, and the disk's seconds."""
    print(f"\n== {case}", flush=True)
    if case in RUNS:
        return measure_run(case, options, group)
    environment = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), **KEEP_PAGES}
    stored = "fits" if case == "fits" else "file"
    steps, warm_up, rounds = options.steps, options.warm_up, options.rounds
    if case == "pytorch":  # Its steps in a file take half a minute.
        steps, warm_up, rounds = 1, 1, 2
    words = case, QUICK_LOG_ROWS if options.quick else LOG_ROWS, str(options.folder), group
    with ExitStack() as running:
        contenders = {
            name: running.enter_context(closing(Contender(name, __spec__.name, (name, *words), environment)))
            for name in ("memory", stored)
        }
        for each in contenders.values():
            each.wait_until_ready()
        turns = {
            name: partial(seconds_of, partial(each.take_steps, steps), time.perf_counter)
            for name, each in contenders.items()
        }
        # The pages that stay in memory are those that were used last, once enough steps were taken.
        contenders[stored].take_steps(warm_up)
        seconds = in_turns(turns, rounds, warm_up=1)
        pages = {
            kind: float(np.median([parts[kind] for parts in contenders[stored].parts[2:]])) / steps
            for kind in ("read", "written")
        }
    set_limit(group, UNLIMITED)
    timings = {name: Timing.of([each / steps for each in found]) for name, found in seconds.items()}
    medians = {name: timing.median for name, timing in timings.items()}
    disk = disk_seconds(options.folder, pages["read"], pages["written"], (64 if options.quick else 1024) << 20)
    for name, timing in timings.items():
        print(f"{name:8}{timing} a step, speed {medians['memory'] / timing.median:.2f} × memory")
    print(f"{stored:8} {pages['read']:,.0f} pages read and {pages['written']:,.0f} written a step")
    print(f"disk    {disk * 1e3:8.2f} ms for as many pages, {disk / medians[stored]:.2f} of the step in a file")
    return {"case": case, "seconds": medians, "pages": pages, "disk_seconds": disk}


def write_log(path: Path, num_rows: int, num_values: int) -> None:
    """Write a log in Criteo's form. Each of its 26 text columns has `num_values` values: random ones, or, if there are
    as many rows, each once.
    """
    rng, digits, tab = np.random.default_rng(0), np.frombuffer(b"0123456789abcdef", np.uint8), np.uint8(ord("\t"))
    with path.open("wb") as log:
        for start in range(0, num_rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, num_rows - start)
            values = rng.integers(0, num_values, (count, NUM_FIELDS))
            if num_values == num_rows:
                values = np.broadcast_to(np.arange(start, start + count)[:, None], values.shape)
            numbers = rng.integers(10, 100, (count, NUM_NUMERIC, 1)) // [10, 1] % 10
            texts = (values + (np.arange(NUM_FIELDS) << 27))[..., None] >> np.arange(28, -1, -4) & 15
            cells = [digits[part] for part in ((rng.random((count, 1)) < 0.25).astype(int), *_columns(numbers, texts))]
            separated = [part for cell in cells for part in (cell, np.full((count, 1), tab))]
            separated[-1][:] = ord("\n")
            log.write(np.concatenate(separated, axis=1).tobytes())


def _columns(*blocks: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the digits [n, width] of each column of blocks of columns, [n, columns, width]."""
    for block in blocks:
        yield from block.transpose(1, 0, 2)


def measure_run(case: str, options: Any, group: Path) -> dict[str, Any]:
    """Train, evaluate and export by the commands, and return the peak memory of each, and the limit, in MiB."""
    rows, values, width, limit = RUNS[case]
    rows, values = (round(number * options.scale) for number in (rows, values))
    limit = max(round(limit * options.scale), LEAST_LIMIT) if limit else UNLIMITED
    settings = [f"model.embedding_dim={width}", "model.hidden_widths=[256,64]", "train.batch_size=4000"]
    settings += ["train.epochs=1", "train.auto=false", "checkpoint.keep_last=1"]
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_log(folder / "log.txt", rows, values)
        more = "prepare.min_count=1", "prepare.integer_buckets=false"
        run_command("data_prep", "prepare", "log.txt", "prepared", *more, folder=folder)
        (folder / "log.txt").unlink()
        set_limit(group, limit)
        for words in (("train", "--dataset", "prepared", "--name", "run", *settings), ("evaluate",), ("export",)):
            places = {"evaluate": ("--run", "run"), "export": ("run", "bundle")}.get(words[0], ())
            with metered() as taken:
                status, printed = run_app(*words, *places, folder=folder, group=group)
            if status:
                raise SystemExit(f"{words[0]} ended with {status}:\n{printed[-2000:]}")
            peaks[words[0]] = taken.peak_mib
            shown = f"{taken.peak_mib / peaks['train']:.2f} × train"
            shown += f", {taken.peak_mib / (limit >> 20):.2f} × the limit" if limit != UNLIMITED else ""
            print(f"{words[0]:9}{taken.seconds:8.0f} s  {taken.peak_mib:8,.0f} MiB at most, {shown}", flush=True)
        set_limit(group, UNLIMITED)
        table = sum(path.stat().st_size for path in folder.glob("run/checkpoints/*/*.safetensors"))
        bundle = sum(path.stat().st_size for path in folder.glob("bundle/*"))
        print(f"checkpoint {table / 2**30:.1f} GiB, bundle {bundle / 2**30:.1f} GiB")
    return {"case": case, "peak_mib": peaks, "limit_bytes": limit, "checkpoint_bytes": table}


def main() -> None:
    parser = new_parser(__doc__)
    names = (*CASES, *RUNS)
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure (this folder)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of a contender's turn (20)")
    parser.add_argument("--warm-up", type=int, default=60, help="steps in a file before the first turn (60)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the cases export and larger (1)")
    parser.add_argument("--quick", action="store_true", help="a small table, 2 rounds of 2 steps")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.warm_up, options.scale = 2, 2, 4, 0.02
    if not shutil.which("fio"):
        raise SystemExit("fio, which measures the disk, is not installed (apt-get install fio)")
    load = os.getloadavg()[0]
    with memory_cgroup() as group:
        if group is None:
            print("left out: this user cannot limit the memory of a process here")
            return print_result(options, skipped="no cgroup")
        found = [measure(case, options, group) for case in options.cases]
    print_result(options, load_before=load, cases=found)


if __name__ == "__main__":
    main()
