"""Tables in bfloat16 against float32: bytes, time, checkpoints, and the AUC of runs from the same seeds.

    python -m benchmarks.training.bf16_rows                                 [--seeds 5] [--work FOLDER]
    python -m benchmarks.training.bf16_rows --only tables checkpoints       a minute

tables: lookup and update, as a step calls them, of tables with LazyAdam at batch 16,000, V 200,000. checkpoints: 300 MB
of float32 rows, D 80, saved and loaded past the page cache. 400k, 5m, real: the AUC on test rows of runs that differ in
`tables.dtype` alone, and of those that round to the nearest, with a library that is built for it (ROUND_TO_NEAREST).
Synthetic rows, 400,000 with configs/criteo.yaml in batches of 4,000 and 5 million with many_rows.yaml, see one epoch;
CRITEO_ROWS/train.txt sees those of few_rows.yaml. What was run in --work is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from app.checkpoint.manifest import Manifest
from app.checkpoint.read import Checkpoint
from app.checkpoint.write import ModelState, write_checkpoint
from app.config.run_settings import TableDtype
from app.tables.interface import TablesSpec
from app.tables.native.tables import NativeTables
from benchmarks.checkpoints.checkpoint import drop_from_cache, touch_rows
from benchmarks.harness.commands import PROJECT, remembered, run_command
from benchmarks.harness.timing import machine, side_by_side
from benchmarks.training.bfloat16_auc import auc
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
NEAREST = "bfloat16 to the nearest"


@dataclass(frozen=True)
class Log:
    """A log and the settings of the runs on it."""

    rows: int  # to be synthesized; 0: those of CRITEO_ROWS
    config: str
    settings: tuple[str, ...] = ()


LOGS = {
    "400k": Log(400_000, "criteo", ("train.epochs=1", "train.batch_size=4000")),
    "5m": Log(5_000_000, "many_rows", ("train.epochs=1", "eval.every_steps=0")),
    "real": Log(0, "few_rows"),
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


def measure_auc(folder: Path, name: str, seeds: int) -> dict[str, Any]:
    """The AUC of each seed's runs, printed as they come, and the mean differences to float32."""
    log, config = LOGS[name], PROJECT / "configs" / f"{LOGS[name].config}.yaml"
    folder.mkdir(exist_ok=True)
    if not (folder / "prepared").is_dir():
        raw = "rows.txt" if log.rows else str(Path(os.environ["CRITEO_ROWS"]) / "train.txt")
        if log.rows:
            run_command("data_prep", "synthesize", raw, "--rows", str(log.rows), folder=folder)
        run_command("data_prep", "prepare", raw, "prepared", "--config", str(config), folder=folder)
    runs = []
    for seed in range(1, seeds + 1):
        aucs = {}
        for run in (*DTYPES, NEAREST):
            settings = (*log.settings, f"train.seed={seed}", f"tables.dtype={run.split()[0]}")
            of_run = auc_to_the_nearest if run == NEAREST else auc
            aucs[run] = remembered(folder / f"{run} {seed}.json", partial(of_run, folder, config, settings))
        print(f"{name}, seed {seed}: " + ", ".join(f"{run} {value:.6f}" for run, value in aucs.items()), flush=True)
        runs.append(aucs)
    differences = {}
    for run in ("bfloat16", NEAREST):
        of_seeds = [aucs[run] - aucs["float32"] for aucs in runs]
        differences[run] = statistics.fmean(of_seeds)
        spread = statistics.stdev(of_seeds) if seeds > 1 else 0.0
        print(f"{name}, {run} - float32: mean {differences[run]:+.6f}, standard deviation {spread:.6f}", flush=True)
    return {"runs": runs, "mean_differences": differences}


def auc_to_the_nearest(folder: Path, config: Path, settings: tuple[str, ...]) -> float:
    """Return `auc` with native tables that round to the nearest, which are built in `folder` unless they are there."""
    build, sources = folder / "nearest", PROJECT / "app" / "tables" / "native" / "csrc"
    flags = (f"BUILD={build}", "EXTRA_FLAGS=-DROUND_TO_NEAREST", f"PYTHON={sys.executable}")
    subprocess.run(["make", "-s", "-C", str(sources), *flags, "all"], check=True, stdout=subprocess.DEVNULL)
    with patch.dict(os.environ, HOST_TABLES_LIBRARY=str(build / "libhost_tables.so")):
        return auc(folder, config, settings)


def main() -> None:
    """Measure what is asked for, and print a last line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="default: all, without CRITEO_ROWS all but real")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--work", type=Path, help="logs, prepared rows and figures; default: a new one, removed")
    options = parser.parse_args()
    parts = options.only or [part for part in PARTS if part != "real" or "CRITEO_ROWS" in os.environ]
    result: dict[str, Any] = {"machine": machine(), "arguments": {"seeds": options.seeds, "rounds": options.rounds}}
    with ExitStack() as stack:
        work = (options.work or Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd())))).resolve()
        work.mkdir(parents=True, exist_ok=True)
        if "tables" in parts:
            result["tables"] = measure_tables(options.rounds)
        if "checkpoints" in parts:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=work)))
            result["checkpoints"] = measure_checkpoints(folder, options.rounds)
        result["auc"] = {name: measure_auc(work / name, name, options.seeds) for name in LOGS if name in parts}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
