"""Tables in bfloat16 against float32: bytes, time, checkpoints, and the AUC of runs from the same seeds.

    python -m benchmarks.training.bf16_rows                                 [--seeds 5] [--work FOLDER]
    python -m benchmarks.training.bf16_rows --only tables checkpoints       a minute

tables: lookup and update, as a step calls them, of tables with LazyAdam at batch 16,000, V 200,000. checkpoints: 300 MB
of float32 rows, D 80, saved and loaded past the page cache. 400k, 5m, real: the AUC on test rows of runs that differ in
`tables.dtype` alone. Synthetic rows, 400,000 with configs/criteo.yaml in batches of 4,000 and 5 million with
many_rows.yaml, see one epoch; CRITEO_ROWS/train.txt sees those of few_rows.yaml. What was run in --work is not run
again.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.write import ModelState, write_checkpoint
from app.config.run_settings import TableDtype
from app.tables.interface import TablesSpec
from app.tables.native.tables import NativeTables
from benchmarks.harness.commands import work_folder
from benchmarks.harness.timing import machine, side_by_side
from benchmarks.training.bfloat16_auc import Comparison
from benchmarks.training.checkpoint import drop_from_cache, touch_rows
from benchmarks.training.kernels import (
    RATES,
    Contenders,
    make_spec,
    medians,
    power_law_ids,
    random_gradients,
    step_through,
)

DTYPES: tuple[TableDtype, ...] = ("float32", "bfloat16")
CHECKPOINT_ROWS, BATCH, VOCABULARY_SIZE, NUM_BATCHES = 300_000, 16_000, 200_000, 4
RUNS: dict[str, tuple[str, ...]] = {dtype: (f"tables.dtype={dtype}",) for dtype in DTYPES}
PAIRS = (("bfloat16", "float32"),)
LOGS = {
    "400k": Comparison("criteo", 400_000, ("train.epochs=1", "train.batch_size=4000"), RUNS, PAIRS),
    "5m": Comparison("many_rows", 5_000_000, ("train.epochs=1", "eval.every_steps=0"), RUNS, PAIRS),
    "real": Comparison("few_rows", 0, (), RUNS, PAIRS),
}
PARTS = ("tables", "checkpoints", *LOGS)


def measure_tables(rounds: int) -> dict[str, Any]:
    """Bytes of a touched row, and seconds of lookup and update, by width: bfloat16's over float32's."""
    result = {}
    for dim in (80, 8):
        rng = np.random.default_rng(0)
        batches = [power_law_ids(rng, VOCABULARY_SIZE, BATCH) for _ in range(NUM_BATCHES)]
        gradients = random_gradients(rng, BATCH, dim)
        specs: dict[str, TablesSpec] = {
            dtype: replace(make_spec(VOCABULARY_SIZE, dim), dtype=dtype) for dtype in DTYPES
        }
        tables = {dtype: NativeTables(spec, RATES) for dtype, spec in specs.items()}
        for each in tables.values():
            each.touch(rng.permutation(VOCABULARY_SIZE))
        timings = side_by_side({d: step_through(each, batches, gradients) for d, each in tables.items()}, rounds)
        for dtype, timing in timings.items():
            print(f"D {dim}, {dtype}: {specs[dtype].row_bytes()} bytes a row, lookup and update {timing}", flush=True)
        seconds, sizes = medians(timings), {dtype: spec.row_bytes() for dtype, spec in specs.items()}
        result[f"D {dim}"] = {"bytes": _ratio(sizes), "seconds": _ratio(seconds), "of_step": seconds}
        print(f"D {dim}: bytes {_ratio(sizes):.3f}, time {_ratio(seconds):.3f} of float32's")
    return result


def measure_checkpoints(folder: Path, rounds: int) -> dict[str, float]:
    """Bytes of a checkpoint, and seconds to save and to load it: bfloat16's over float32's."""
    contenders: Contenders = {}
    sizes: dict[str, int] = {}
    for dtype in DTYPES:
        tables = NativeTables(replace(make_spec(CHECKPOINT_ROWS * 11 // 10, 80), dtype=dtype), RATES)
        touch_rows(tables, CHECKPOINT_ROWS)
        path = folder / dtype / "step-00000001"

        def save(tables: NativeTables = tables, path: Path = path) -> None:
            snapshot = tables.snapshot(changed_only=False)
            write_checkpoint(path.parent, ModelState({}, snapshot.tables), Manifest(1, 1, 1, {}, "", {}, {}))
            snapshot.release(saved=True)
            drop_from_cache([*path.iterdir()])

        def load(tables: NativeTables = tables, path: Path = path) -> None:
            with tables.loading(1) as write:
                Checkpoint.open(path).read_once(tables.spec, write)

        contenders |= {f"save {dtype}": save, f"load {dtype}": load}
        save()
        sizes[dtype] = sum(file.stat().st_size for file in path.iterdir())
    timings = side_by_side(contenders, rounds, warm_up=1)
    for name, timing in timings.items():
        print(f"checkpoint, {name} {timing}, {sizes[name.split()[1]] / 1e6:.0f} MB", flush=True)
    seconds = medians(timings)
    ratios = {way: _ratio({dtype: seconds[f"{way} {dtype}"] for dtype in DTYPES}) for way in ("save", "load")}
    ratios["bytes"] = _ratio(sizes)
    print("checkpoint: " + ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()) + " of float32's")
    return ratios


def _ratio(by_dtype: Mapping[str, float]) -> float:
    return by_dtype["bfloat16"] / by_dtype["float32"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="default: all, without CRITEO_ROWS all but real")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--work", type=Path, help="logs, prepared rows and figures; default: a new one, removed")
    options = parser.parse_args()
    parts = options.only or [part for part in PARTS if part != "real" or "CRITEO_ROWS" in os.environ]
    result: dict[str, Any] = {"machine": machine(), "arguments": {"seeds": options.seeds, "rounds": options.rounds}}
    with work_folder(options.work) as work:
        if "tables" in parts:
            result["tables"] = measure_tables(options.rounds)
        if "checkpoints" in parts:
            with tempfile.TemporaryDirectory(dir=options.work or Path.cwd()) as folder:  # /tmp may be memory
                result["checkpoints"] = measure_checkpoints(Path(folder), options.rounds)
        result["auc"] = {}
        for name in (log for log in LOGS if log in parts):
            print(name)
            result["auc"][name] = LOGS[name].measure(work / name, options.seeds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
