"""Run all benchmarks, and write benchmarks/results/ and the targets in docs/results.md: `make bench`.

python -m benchmarks                             all of them, an hour
python -m benchmarks --only train_step prepare   these, and leave the others' figures
python -m benchmarks --quick                     try whether everything works, and write nothing
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.results import read_results, replace_section, section, summary
from benchmarks.harness.timing import machine
from common.packages import PROJECT

SUMMARY = PROJECT / "docs" / "results.md"
# Folder of the result pages, and of results.json, which has the last line that each benchmark printed.
PAGES = PROJECT / "benchmarks" / "results"


@dataclass(frozen=True)
class Benchmark:
    """The command of a benchmark. `quick` are the arguments of a short trial, or None if there is no short form."""

    title: str
    module: str
    arguments: str = ""
    quick: str | None = None
    needs: str = ""  # Name of an environment variable. If it is not set, the benchmark is left out.


KERNELS, STEP, RECIPES = "benchmarks.training.kernels", "benchmarks.training.train_step", "benchmarks.accuracy.recipes"
PRECISIONS, PREPARATION = "benchmarks.training.bfloat16_auc", "benchmarks.preparation.prepare"
CHECKPOINT, STORAGE = "benchmarks.training.checkpoint", "benchmarks.training.storage"
STORAGE_CASES = {
    "large tower": "--rounds 4 --steps 10 --warm-up 40",
    "small tower": "",
    "fits": "--rounds 3",
    "rare ids": "--rounds 4 --steps 6 --warm-up 20",
    "pytorch": "",
    "export": "",
    "larger": "",
}
FORMS = "--forms 'as users find it' 'best form' 'small batch'"
FORMS_ON_LOG = "--forms 'log as users find it' 'log best form' 'log smaller batch'"
SERVING = {
    "fastapi": "Serving beside FastAPI around the same predictor",
    "large": "Serving requests of 1,000 rows",
    "overload": "Serving under overload",
    "swaps": "Swaps of served models",
}
BENCHMARKS = {
    "kernels": Benchmark("Table kernels", KERNELS, "", "--rounds 3 --batch 1000"),
    "growth": Benchmark(
        "Growth of vocabulary and batch", KERNELS, "--growth", "--growth --rounds 3 --batch 4000 --touched 100000"
    ),
    "train_step": Benchmark("The training step", STEP, f"--rounds 7 --steps 1 {FORMS}", f"--quick {FORMS}"),
    "default_step": Benchmark(
        "The default recipe's step", "benchmarks.training.default_step", "", "--rows 20000 --rounds 2"
    ),
    "distinct_rows": Benchmark(
        "The training step on ids as in Criteo's log",
        STEP,
        f"--rounds 3 --steps 1 {FORMS_ON_LOG}",
        f"--quick {FORMS_ON_LOG}",
    ),
    "bfloat16_auc": Benchmark("bfloat16 against float32: AUC", PRECISIONS, "", "--rows 50000 --seeds 1"),
    "first_layer_auc": Benchmark(
        "Distinct rows against direct: AUC",
        PRECISIONS,
        "--of first_layer --rows 400000",
        "--of first_layer --rows 50000 --seeds 1",
    ),
    "plan": Benchmark("Memory planned and taken", "benchmarks.training.plan", "", "--number 3"),
    **{
        f"storage_{case.split()[0]}": Benchmark(
            f"Tables in a file: {case}", STORAGE, f"--cases '{case}' {turns}".strip(), f"--cases '{case}' --quick"
        )
        for case, turns in STORAGE_CASES.items()
    },
    "table_dtypes": Benchmark("Tables in bfloat16", KERNELS, "--dtypes", "--dtypes --rounds 2"),
    "checkpoint_dtypes": Benchmark(
        "Checkpoints in bfloat16", CHECKPOINT, "--dtypes --rounds 41", "--dtypes --size 0.3"
    ),
    **{
        f"rows_{log}": Benchmark(f"Tables in bfloat16: AUC, {log}", PRECISIONS, f"--of rows_{log}", quick, needs)
        for log, quick, needs in (
            ("400k", "--of rows_400k --rows 50000 --seeds 1", ""),
            ("5m", "--of rows_5m --rows 50000 --seeds 1", ""),
            ("real", None, "CRITEO_ROWS"),
        )
    },
    "prepare": Benchmark("Preparation", PREPARATION, "", "--quick"),
    "prepare_large": Benchmark(
        "Preparation of 20 million rows under 4 GiB", PREPARATION, "--rows 20000000 --memory-limit 4GiB --rounds 1"
    ),
    "prepare_all_values": Benchmark(
        "Preparation of 20 million rows under 1 GiB, every value with an id",
        PREPARATION,
        "--rows 20000000 --memory-limit 1GiB --min-count 1 --only data_prep --rounds 1",
    ),
    "checkpoint": Benchmark("Checkpoints", CHECKPOINT, "", "--size 0.1 --rounds 1 --batch 500"),
    "recipes": Benchmark("Recipes", RECIPES, "", "--data 20k --recipes auto few_rows --epochs 1"),
    "seeds": Benchmark(
        "Seeds",
        RECIPES,
        "--data 500k real --recipes auto many_rows few_rows --seeds 5 --epochs 12 --threads 1",
        "--data 20k --recipes few_rows --epochs 1 --seeds 2",
        needs="CRITEO_ROWS",
    ),
    "auto_5m": Benchmark(
        "Settings by the number of rows, 5 million",
        RECIPES,
        "--data 5m --recipes auto many_rows --epochs 12 --no-regression --threads 1",
    ),
    "real_rows": Benchmark("Real rows, five rolling cuts", "benchmarks.accuracy.real_rows", needs="CRITEO_ROWS"),
    "crossed_lists": Benchmark("Crosses of lists", "benchmarks.accuracy.crossed_lists", "--seeds 5", "--rows 4000"),
    "scaled_numbers": Benchmark(
        "Transforms of numbers", "benchmarks.accuracy.scaled_numbers", "--seeds 5", "--seeds 1 --logs plain"
    ),
    "vectors": Benchmark(
        "Logs with a vector column", "benchmarks.accuracy.vectors", "", "--rows 20000 --logs plain missing"
    ),
    "read_vectors": Benchmark("Reading vectors", "benchmarks.preparation.read_vectors", "", "--quick"),
    "real_tables": Benchmark(
        "Real tables, five folds", "benchmarks.accuracy.real_tables", "--threads 1", needs="REAL_LOGS"
    ),
    "scoring": Benchmark("Scoring", "benchmarks.scoring", "--rounds 3", "--rows 5000 --rounds 1"),
    **{
        f"serving_{question}": Benchmark(
            title,
            "benchmarks.serving",
            f"--question {question}",
            f"--question {question} --rows 50000 --seconds 1 --rounds 1 --swaps 3",
        )
        for question, title in SERVING.items()
    },
    "end_to_end": Benchmark(
        "From the raw log to the AUC", "benchmarks.end_to_end", "--rows 400000 2000000", "--rows 20000 --rounds 1"
    ),
    "cores": Benchmark(
        "Stages on one core and on several", "benchmarks.end_to_end.cores", "", "--rows 20000 --rounds 1"
    ),
    "rowwise": Benchmark(
        "Row-wise Adagrad beside FBGEMM's",
        "benchmarks.training.default_step",
        "--contenders native_rowwise fbgemm_rowwise best_sparse",
        "--rows 20000 --rounds 2 --contenders native_rowwise fbgemm_rowwise",
    ),
    "online": Benchmark("Training online", "benchmarks.online", "", "--quick"),
}


def run(module: str, arguments: str) -> tuple[str, dict[str, Any]]:
    """Run a benchmark and show its output. Return the output, and the JSON in its last line.

    Raise CalledProcessError if the benchmark fails.
    """
    command = [sys.executable, "-m", module, *shlex.split(arguments)]
    lines = []
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line if not line.startswith("{") else "", end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return "".join(lines[:-1]), json.loads(lines[-1])


def keep(name: str, benchmark: Benchmark, printout: str, result: dict[str, Any]) -> None:
    """Write the figures of one benchmark into the result page of its package, and the targets into the summary page."""
    results = read_results(PAGES / "results.json") | {name: result}
    (PAGES / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    command = f"python -m {benchmark.module} {benchmark.arguments}".strip()
    package = benchmark.module.split(".")[1]
    today = datetime.datetime.now(datetime.UTC).date()
    _write(SUMMARY, "summary", "Targets", summary(results))
    _write(PAGES / f"{package}.md", name, benchmark.title, section(command, printout, result, today))


def _write(page: Path, name: str, title: str, content: str) -> None:
    text = page.read_text(encoding="utf-8") if page.exists() else f"# {page.stem.capitalize()}\n"
    page.write_text(replace_section(text, name, title, content), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(BENCHMARKS), default=tuple(BENCHMARKS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    machine()  # raises before anything is measured
    for name in options.only:
        benchmark = BENCHMARKS[name]
        arguments = benchmark.quick if options.quick else benchmark.arguments
        if arguments is None:
            continue
        if benchmark.needs and benchmark.needs not in os.environ:
            print(f"\n#### {benchmark.title}: left out, as {benchmark.needs} is not set (see {benchmark.module})")
            continue
        print(f"\n#### {benchmark.title}", flush=True)
        printout, result = run(benchmark.module, arguments)
        if not options.quick:
            keep(name, benchmark, printout, result)
    if not options.quick:
        print(f"\n{summary(read_results(PAGES / 'results.json'))}\n\nwritten to {SUMMARY} and {PAGES}")


if __name__ == "__main__":
    main()
