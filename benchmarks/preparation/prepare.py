"""Compare time and memory of the data preparation with the MindSpore model zoo's way and polars.

    python -m benchmarks.preparation.prepare                      5 M synthetic rows, of which zoo gets 200,000
    python -m benchmarks.preparation.prepare --rows 20000000 --memory-limit 4GiB
                                                      in bounded memory: data_prep and polars' streaming form alone
    python -m benchmarks.preparation.prepare --rows 20000000 --memory-limit 1GiB --min-count 1 --only data_prep
                                                      every distinct value with an id, counts spilled to disk
    python -m benchmarks.preparation.prepare --quick              does everything work?

Each contender is a command of its own, start of Python and imports included, and takes its turn round by round. Rows/s
are by the wall clock. CPU seconds (user + system, all processes) show whether the machine did other work meanwhile.
Memory is the peak of the sum of the Pss of all processes, read five times a second. With --memory-limit a contender
that takes more is stopped: it did not finish.

Before anything is measured, rows of a small log get the same ids and numbers from data_prep and polars.

The zoo's loop keeps all its rows' values in dictionaries and takes so long that it gets fewer rows. Its rate hardly
depends on their number.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.commands import stop_tree
from benchmarks.harness.timing import SAMPLE_SECONDS, Taken, in_turns, metered, new_parser, print_result
from common.packages import PROJECT, require
from data_prep.options.prepare_options import parse_bytes
from data_prep.sources.synthetic import synthesize

MIN_COUNT = 10
AGREEMENT_ROWS = 20_000
MEASURES = ("seconds", "cpu_seconds", "peak_mib")


@dataclass(frozen=True)
class Contender:
    """A command that prepares `rows` rows of a log. In its arguments, `{log}` and `{output}` stand for the paths."""

    rows: int
    arguments: tuple[str, ...]


@dataclass
class Run(Taken):
    """Time and memory that one run of a contender took, and whether it finished."""

    finished: bool = True


def contenders(
    rows: int, zoo_rows: int, memory_limit: str | None = None, min_count: int = MIN_COUNT
) -> dict[str, Contender]:
    """Return all contenders by name. With a memory limit, return only those that work in bounded memory."""
    least = ("{log}", "{output}", "--min-count", str(min_count))
    limit = (f"prepare.memory_limit={memory_limit}",) if memory_limit else ()
    ours = ("-m", "data_prep", "prepare", "{log}", "{output}", f"prepare.min_count={min_count}", *limit)
    polars = ("-m", "benchmarks.peers.prepare_polars", *least, "--form")
    bounded = {"data_prep": Contender(rows, ours), "polars streaming": Contender(rows, (*polars, "streaming"))}
    if memory_limit:
        return bounded
    zoo = Contender(zoo_rows, ("-m", "benchmarks.peers.prepare_zoo", *least))
    return {**bounded, "zoo": zoo, "polars eager": Contender(rows, (*polars, "eager"))}


def run(contender: Contender, log: Path, output: Path, limit_mib: float = math.inf) -> Run:
    """Run a contender once, until it ends or takes more memory than `limit_mib`.

    Raise CalledProcessError if it fails.
    """
    words = [word.format(log=log, output=output) for word in contender.arguments]
    with metered() as taken:
        process = subprocess.Popen([sys.executable, *words], cwd=PROJECT, stderr=subprocess.DEVNULL)
        while (running := process.poll() is None) and taken.peak_mib <= limit_mib:
            time.sleep(SAMPLE_SECONDS)
        if running:
            stop_tree(process)
    if process.returncode and not running:
        raise subprocess.CalledProcessError(process.returncode, words)
    return Run(**asdict(taken), finished=not running)


def measure(
    chosen: Mapping[str, Contender], logs: Mapping[int, Path], folder: Path, rounds: int, limit_mib: float = math.inf
) -> dict[str, list[Run]]:
    """Run each contender `rounds` times, in turns. Return the runs of each contender by name."""

    def turn(name: str) -> Run:
        output = folder / "output"
        result = run(chosen[name], logs[chosen[name].rows], output, limit_mib)
        for prepared in (output, output.with_name("output.partial")):
            shutil.rmtree(prepared, ignore_errors=True)
        rate = f"{chosen[name].rows / result.seconds:10,.0f} rows/s" if result.finished else "   stopped: too much"
        print(f"{name:18} {rate} {result.cpu_seconds:8.1f} CPU s {result.peak_mib:8,.0f} MiB", flush=True)
        return result

    return in_turns({name: partial(turn, name) for name in chosen}, rounds)


def summarize(chosen: Mapping[str, Contender], runs: Mapping[str, list[Run]]) -> dict[str, dict[str, Any]]:
    """Return the medians of each contender, and how many times faster data_prep is and how much less CPU time it needs.

    If a contender did not finish, only its memory says something, and its rates are None.
    """
    summary: dict[str, dict[str, Any]] = {}
    for name, of_name in runs.items():
        medians = {key: float(np.median([asdict(run)[key] for run in of_name])) for key in MEASURES}
        rows, finished = chosen[name].rows, all(run.finished for run in of_name)
        summary[name] = {
            "rows": rows,
            "finished": finished,
            **medians,
            "rows_per_second": rows / medians["seconds"] if finished else None,
            "cpu_microseconds_per_row": 1e6 * medians["cpu_seconds"] / rows if finished else None,
        }
    ours = summary["data_prep"]
    for values in summary.values():
        values["data_prep_is_faster"] = _ratio(ours, values, "rows_per_second")
        values["data_prep_needs_less_cpu"] = _ratio(values, ours, "cpu_microseconds_per_row")
    return summary


def _ratio(above: Mapping[str, Any], below: Mapping[str, Any], key: str) -> float | None:
    return above[key] / below[key] if above[key] and below[key] else None


def show(summary: Mapping[str, Mapping[str, Any]]) -> None:
    print(f"\n{'median':18} {'rows':>10} {'rows/s':>10} {'CPU µs/row':>11} {'peak MiB':>9} {'data_prep is':>13}")
    for name, values in summary.items():
        start = f"{name:18} {values['rows']:10,.0f}"
        if values["finished"]:
            rates = f"{values['rows_per_second']:10,.0f} {values['cpu_microseconds_per_row']:11.2f}"
            print(f"{start} {rates} {values['peak_mib']:9,.0f} {values['data_prep_is_faster'] or 0:8.2f} × faster")
        else:
            print(f"{start} {'did not finish':>22} {values['peak_mib']:9,.0f}")


def agree(folder: Path) -> int:
    """Check that data_prep and polars give the rows of a small log the same ids and numbers. Return the number of rows.

    Raise ValueError if they differ, and CalledProcessError if one of them fails.
    """
    # Imported here, because it needs polars, and main checks first that polars is installed.
    from benchmarks.peers.prepare_polars import check_agreement

    log = synthesize(folder / "small.txt", AGREEMENT_ROWS, seed=2).log_path
    small = contenders(AGREEMENT_ROWS, AGREEMENT_ROWS)
    run(small["data_prep"], log, folder / "ours")
    for form in ("polars eager", "polars streaming"):
        run(small[form], log, folder / form)
        check_agreement(folder / "ours", folder / form)
    return AGREEMENT_ROWS


def main() -> None:
    require("polars")
    parser = new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--zoo-rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where logs and outputs go (1 KB a row); default: a temporary one")
    parser.add_argument("--memory-limit", metavar="SIZE", help="such as 4GiB, of all processes of a contender")
    parser.add_argument("--min-count", type=int, default=MIN_COUNT)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these contenders, and data_prep")
    parser.add_argument("--quick", action="store_true", help="50,000 rows, one round")
    command = parser.parse_args()
    if command.quick:
        command.rows, command.zoo_rows, command.rounds = 50_000, 5_000, 1
    limit_mib = parse_bytes(command.memory_limit) / 2**20 if command.memory_limit else math.inf
    chosen = contenders(command.rows, command.zoo_rows, command.memory_limit, command.min_count)
    if command.only:
        chosen = {name: contender for name, contender in chosen.items() if name in ("data_prep", *command.only)}

    with tempfile.TemporaryDirectory(dir=command.folder) as name:
        folder = Path(name)
        agreed = agree(folder)
        print(f"data_prep and polars give {agreed:,} rows the same ids and numbers")
        sizes = {contender.rows for contender in chosen.values()}
        logs = {rows: synthesize(folder / f"{rows}.txt", rows, seed=1).log_path for rows in sizes}
        summary = summarize(chosen, measure(chosen, logs, folder, command.rounds, limit_mib))
    show(summary)
    print_result(command, agreed_rows=agreed, contenders=summary)


if __name__ == "__main__":
    main()
