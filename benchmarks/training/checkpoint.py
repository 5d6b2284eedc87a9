"""Compare checkpoints with `dd` on the same disk, and measure how much they slow down the training meanwhile.

    python -m benchmarks.training.checkpoint                     2 GB of tables, a quarter of an hour
    python -m benchmarks.training.checkpoint --size 0.2 --rounds 2
    python -m benchmarks.training.checkpoint --dtypes            as many rows in float32, beside bfloat16

In each round, in turn: `dd` writes (bs=16M conv=fsync), a checkpoint is written while no training runs, `dd` reads
(bs=16M iflag=direct), and the checkpoint is loaded into empty tables. Nothing is read from the page cache: checkpoints
bypass it, and pages that may be in it are dropped before (POSIX_FADV_DONTNEED). After that, training steps are
measured, alternately alone and while a checkpoint is written in the background. Ratios are ratios of medians.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.write import ModelState, write_checkpoint
from app.config.config import TableDtype
from app.tables.native.tables import NativeTables
from app.training.saving import BACKGROUND_SHARE, Throttle
from benchmarks.harness.timing import Timing, in_turns, new_parser, print_result, seconds_of, side_by_side
from benchmarks.harness.workload import Workload, steps_on_prefetched_batches
from benchmarks.training.kernels import RATES, Contenders, make_spec, medians, over_float32
from benchmarks.training.mindspore_contender import assemble_parts, prepare_device

GIGABYTE = 10**9
ROW_BYTES = 4 * 3 * 81  # Bytes of a row and its two moments, in the deep table of width 80 and in the wide table.
VOCABULARY_OVER_ROWS = 1.1
DD_BLOCK = 16 << 20
MANIFEST = Manifest(1, 1, 1, {}, "", {}, {})  # The manifest of a checkpoint that is only written and read, never used.


def measure(size: float, rounds: int, folder: Path, workload: Workload) -> dict[str, Any]:
    """Return the seconds of each contender by round, and the ratios between contenders."""
    num_rows = int(size * GIGABYTE / ROW_BYTES)
    workload = replace(workload, vocabulary_size=int(VOCABULARY_OVER_ROWS * num_rows))
    prepare_device(workload)
    parts = assemble_parts(workload, "native")
    take_steps = steps_on_prefetched_batches(parts.step, parts.step, workload)
    take_steps(2)  # compiles
    touch_rows(parts.step.tables, num_rows)
    disk = measure_disk(parts, folder, rounds)
    steps = measure_steps(parts, folder, take_steps, rounds)
    return {"disk": disk, "steps": steps, "ratios": {**disk["ratios"], **steps["ratios"]}}


def touch_rows(tables: Any, num_rows: int) -> None:
    """Create `num_rows` rows of the tables, spread at random over the vocabulary."""
    rng = np.random.default_rng(0)
    row_ids = rng.permutation(tables.spec.vocabulary_size)[:num_rows]
    for start in range(0, num_rows, 100_000):
        tables.touch(np.ascontiguousarray(row_ids[start : start + 100_000]))


def measure_disk(parts: Any, folder: Path, rounds: int) -> dict[str, Any]:
    """Return seconds and bytes of saving and of loading a checkpoint, and of `dd`, with nothing beside them."""
    path, dd_file = folder / "step-00000001", folder / "dd.bin"

    def save() -> None:
        save_at_once(folder, parts.dense_values(), parts.snapshot_rows(changed_only=False))

    def load() -> None:
        parts.restore(Checkpoint.open(path))

    save()  # its size is dd's
    num_blocks = -(-sum(file.stat().st_size for file in path.iterdir()) // DD_BLOCK)
    read_words, write_words = (f"if={dd_file}", "of=/dev/null", "iflag=direct"), ("if=/dev/zero", f"of={dd_file}")
    contenders: dict[str, Callable[[], None]] = {
        "dd writes": lambda: dd(*write_words, "conv=fsync", f"count={num_blocks}"),
        "save": save,
        "dd reads": lambda: dd(*read_words),
        "load": load,
    }

    def turn(name: str) -> float:
        if name == "dd writes":
            dd_file.unlink(missing_ok=True)
        drop_from_cache([dd_file, *path.iterdir()])
        return seconds_of(contenders[name])

    turns = in_turns({name: partial(turn, name) for name in contenders}, rounds, warm_up=1)
    timings = {name: Timing.of(seconds) for name, seconds in turns.items()}
    dd_file.unlink()
    num_bytes, dd_bytes = sum(file.stat().st_size for file in path.iterdir()), num_blocks * DD_BLOCK
    rates = {
        name: (dd_bytes if name.startswith("dd") else num_bytes) / timing.median / GIGABYTE
        for name, timing in timings.items()
    }
    print(f"\n== {num_bytes / GIGABYTE:.2f} GB, nothing beside it")
    for name, rate in rates.items():
        print(f"{name:10} {rate:6.2f} GB/s   {timings[name]}")
    ratios = {"save over dd": rates["save"] / rates["dd writes"], "load over dd": rates["load"] / rates["dd reads"]}
    for name, ratio in ratios.items():
        print(f"{name:14} {ratio:5.2f}")
    return {"bytes": num_bytes, "seconds": turns, "gigabytes_per_second": rates, "ratios": ratios}


def measure_steps(parts: Any, folder: Path, take_steps: Callable[[int], object], rounds: int) -> dict[str, Any]:
    """Return the seconds of training steps, alone and while a checkpoint is written.

    Also return how long the training stands still when a checkpoint begins.
    """
    alone, beside, pauses, saves = [], [], [], []
    thread = ThreadPoolExecutor(1, "checkpoint")
    for _ in range(rounds):
        alone += [seconds_of(lambda: take_steps(1)) for _ in range(4)]
        start = time.perf_counter()
        dense, snapshot = parts.dense_values(), parts.snapshot_rows(changed_only=False)
        throttle = Throttle(BACKGROUND_SHARE, snapshot.awaited)
        state = ModelState(dense, snapshot.tables)
        writing = thread.submit(seconds_of, partial(write_checkpoint, folder, state, MANIFEST, 1, throttle))
        pauses.append(time.perf_counter() - start)
        while not writing.done():
            beside.append(seconds_of(lambda: take_steps(1)))
        saves.append(writing.result() - throttle.slept_seconds)
        snapshot.release(saved=True)
    thread.shutdown()
    timings = {"alone": Timing.of(alone), "beside": Timing.of(beside)}
    slowdown = timings["beside"].median / timings["alone"].median
    print("\n== training steps")
    for name, timing in timings.items():
        print(f"{name:7} {timing}")
    print(f"the training stands for {1e3 * float(np.median(pauses)):.0f} ms while a save begins")
    print(f"step beside a save over alone {slowdown:.2f}")
    return {
        "alone": alone,
        "beside": beside,
        "pauses": pauses,
        "worked_seconds": saves,
        "ratios": {"step beside a save over alone": slowdown},
    }


def measure_dtypes(size: float, folder: Path, rounds: int) -> dict[str, float]:
    """Return the bytes of a checkpoint, and the seconds to save and to load it: bfloat16's divided by float32's."""
    saves: Contenders = {}
    loads: Contenders = {}
    sizes: dict[str, int] = {}
    dtypes: tuple[TableDtype, ...] = ("float32", "bfloat16")
    num_rows = int(size * GIGABYTE / ROW_BYTES)
    for dtype in dtypes:
        tables = NativeTables(replace(make_spec(int(VOCABULARY_OVER_ROWS * num_rows), 80), dtype=dtype), RATES)
        touch_rows(tables, num_rows)
        path = folder / dtype / "step-00000001"

        def save(tables: NativeTables = tables, path: Path = path) -> None:
            save_at_once(path.parent, {}, tables.snapshot(changed_only=False))
            drop_from_cache([*path.iterdir()])

        def load(tables: NativeTables = tables, path: Path = path) -> None:
            with tables.loading(1) as place:
                Checkpoint.open(path).read_once(tables.spec, place)

        saves[f"save {dtype}"], loads[f"load {dtype}"] = save, load
        save()
        sizes[dtype] = sum(file.stat().st_size for file in path.iterdir())
    # Saves and loads are timed separately, because the disk may still be busy with a save when the next load begins.
    timings = side_by_side(saves, rounds, warm_up=1) | side_by_side(loads, rounds, warm_up=1)
    for name, timing in timings.items():
        print(f"checkpoint, {name} {timing}, {sizes[name.split()[1]] / 1e6:.0f} MB", flush=True)
    seconds = medians(timings)
    ratios = {way: over_float32({d: seconds[f"{way} {d}"] for d in dtypes}) for way in ("save", "load")}
    ratios["bytes"] = over_float32(sizes)
    print("checkpoint: " + ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()) + " of float32's")
    return ratios


def save_at_once(folder: Path, dense: dict[str, np.ndarray], snapshot: Any) -> None:
    """Write a checkpoint without the pauses that a save in the background makes."""
    snapshot.awaited.set()
    write_checkpoint(folder, ModelState(dense, snapshot.tables), MANIFEST)
    snapshot.release(saved=True)


def dd(*words: str) -> None:
    subprocess.run(["dd", f"bs={DD_BLOCK}", *words], check=True, capture_output=True)


def drop_from_cache(paths: list[Path]) -> None:
    """Write files to the disk, and drop their pages from the page cache."""
    for path in paths:
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--size", type=float, default=2.0, help="of the tables in GB (2)")
    parser.add_argument("--dtypes", action="store_true", help="rows in bfloat16 beside float32, and nothing else")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16_000)
    parser.add_argument("--folder", default=Path.cwd(), help="on the disk to measure (this one)")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="checkpoint-benchmark-", dir=options.folder) as folder:
        if options.dtypes:
            result: dict[str, Any] = {"dtypes": measure_dtypes(options.size, Path(folder), options.rounds)}
        else:
            result = measure(options.size, options.rounds, Path(folder), Workload(batch_size=options.batch))
    print_result(options, load_before=load, **result)


if __name__ == "__main__":
    main()
