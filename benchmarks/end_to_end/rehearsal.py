"""Rehearse the whole way on a log of Criteo's size, from raw lines to a served model: `make rehearsal`.

    python -m benchmarks.end_to_end.rehearsal FOLDER                   45,840,617 synthetic rows, 46 GB of disk, hours
    python -m benchmarks.end_to_end.rehearsal FOLDER --rows 2000000    a trial
    python -m benchmarks.end_to_end.rehearsal FOLDER --stages synthesize prepare_2    these, and the others later
    python -m benchmarks.end_to_end.rehearsal FOLDER --keep            write docs/results.md from FOLDER/rehearsal.json

A finished stage is recorded in FOLDER/rehearsal.json and not run again. A stage that was interrupted is started again,
and its commands continue where they can. Each stage runs the commands that a user would type, whose output goes to
FOLDER/rehearsal.log. FOLDER/rehearsal.html shows the figures of all stages.

Seconds are by the wall clock, CPU seconds are those of all processes. Memory is the peak of the sum of the Pss of all
processes of a stage. AUC "seen often" is the AUC on the test rows whose values all occur in 20 training rows or more.
On these rows a model can reach the AUC of the log's true probabilities. Logistic regression is fitted to
--regression-rows training rows.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from app.checkpoint.manifest import MANIFEST
from app.checkpoint.retention import step_folders
from app.run.folder import METRICS, run_config
from app.run.record import read_lines
from benchmarks.accuracy.recipes import Test, read_test
from benchmarks.harness.commands import (
    OUTPUT_END,
    PROJECT,
    ask,
    free_port,
    is_ready,
    running,
    start,
    stop_tree,
    validations,
    wait_until,
)
from benchmarks.harness.results import replace_section
from benchmarks.harness.timing import machine, metered
from common.files import write_whole
from common.html.charts import Axis, Bars, bar_chart
from common.html.page import PagePart, Section, render_page
from common.text import Unit, number_text
from data_prep.prepared.data_files import row_numbers_file
from data_prep.prepared.schema import read_schema

CRITEO_ROWS = 45_840_617
DAY_SHARE = 40  # The log of the next day has one row for every so many rows of the log.
BYTES_OF_ROW = 1000  # Bytes of disk space for each row: in the log, two prepared folders, runs and bundles.
KILLS = (0.3, 0.7)  # The training is killed by SIGKILL after each of these fractions of its steps.
SAVE_OFTEN = "checkpoint.every_minutes=1"
REQUESTS = (1, 1, 1, 1, 10, 100, 1000)  # rows of each
AUTO, CRITEO = PROJECT / "configs/auto.yaml", PROJECT / "configs/criteo.yaml"
UNITS: dict[str, Unit] = {"seconds": "seconds", "cpu_seconds": "seconds", "peak_bytes": "bytes", "disk_bytes": "bytes"}
COLUMNS = ("stage", "time", "CPU time", "peak memory", "on disk", "found")


class Rehearsal:
    """A rehearsal in a folder: what its stages have left there, and the figures that they have found."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.log, self.day = folder / "log/part-00000.txt", folder / "log/part-00001.txt"
        self._path, self.output = folder / "rehearsal.json", folder / "rehearsal.log"
        found = json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}
        if found and found["rows"] != options.rows:
            raise SystemExit(f"error: {folder} holds a rehearsal of {found['rows']:,} rows; give --rows or another one")
        self.content: dict[str, Any] = found or {"rows": options.rows, "machine": machine(), "stages": {}}

    def run(self, *words: str | Path) -> None:
        """Run `python -m …` in the folder until it ends. Raise SystemExit with the end of its output if it fails."""
        process = self.start(*words)
        if process.wait():
            output = self.output.read_text("utf-8", errors="replace")[-OUTPUT_END:]
            raise SystemExit(f"{output}\nerror: python -m {' '.join(map(str, words))} ended with {process.returncode}")

    def start(self, *words: str | Path) -> subprocess.Popen[bytes]:
        """Start `python -m …` in the folder, and return the process. Print the command as a user would type it."""
        shown = f"python -m {' '.join(map(str, words))}".replace(f"{PROJECT}/", "").replace(f"{self.folder}/", "")
        print(f"   {shown}", flush=True)
        return start(*words, folder=self.folder, log=self.output)

    def stage(self, name: str, work: Callable[[Rehearsal], dict[str, Any]]) -> None:
        """Do a stage unless it is done already. Record what it took and what it found in rehearsal.json."""
        before = self.content["stages"].get(name, {})
        if "seconds" in before:
            return
        print(f"== {name.replace('_', ' ')}", flush=True)
        self._note(name, {"begun": True})
        with metered() as taken:
            found = work(self)
        resumed = {"resumed": True} if before else {}  # The time before the stage was stopped is not known.
        took = {"seconds": taken.seconds, "cpu_seconds": taken.cpu_seconds, "peak_bytes": taken.peak_mib * 2**20}
        self._note(name, {**took, **resumed, "found": found})
        row = row_of(name, self.content["stages"][name])
        print("  ", ", ".join(f"{word} {text}" for word, text in zip(COLUMNS[1:], row[1:], strict=True)), flush=True)

    def _note(self, name: str, content: dict[str, Any]) -> None:
        self.content["stages"][name] = content
        write_whole(self._path, json.dumps(self.content, indent=1) + "\n")


def disk_bytes(path: Path) -> int:
    """Return the size in bytes of a file, or of all files in a folder."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())


def synthesize(of: Rehearsal) -> dict[str, Any]:
    """Write the log, and further rows as the log of the next day."""
    rows = of.options.rows
    shutil.rmtree(of.folder / "log", ignore_errors=True)
    more = ("--rows", str(rows + rows // DAY_SHARE), "--part-rows", str(rows))
    of.run("data_prep", "synthesize", "log", *more)
    return {"disk_bytes": disk_bytes(of.folder / "log"), "rows": rows, "rows of the next day": rows // DAY_SHARE}


def prepare(of: Rehearsal, min_count: int) -> dict[str, Any]:
    """Prepare the log with the given `min_count`, and return figures of the prepared folder."""
    return _prepare(of, of.log, f"prepared-{min_count}", f"prepare.min_count={min_count}", "--config", AUTO)


def _prepare(of: Rehearsal, log: Path, output: str, *more: str | Path) -> dict[str, Any]:
    if not (of.folder / output).is_dir():
        of.run("data_prep", "prepare", log, output, *more)
    schema = read_schema(of.folder / output)
    splits = {f"rows of {name}": split.rows for name, split in schema.splits.items()}
    return {"disk_bytes": disk_bytes(of.folder / output), "ids": schema.vocabulary_size, **splits}


def train(of: Rehearsal) -> dict[str, Any]:
    """Train auto.yaml to its end. On the way, kill the training twice and start it again by the same command."""
    run, again = of.folder / "auto", list[int]()
    command: list[str | Path] = ["app", "train", "--config", AUTO, "--dataset", "prepared-2", "--name", "auto"]
    command += [SAVE_OFTEN, *([f"train.steps={of.options.auto_steps}"] if of.options.auto_steps else [])]
    for share in KILLS:
        # An earlier, interrupted run of this stage has already gone beyond this step.
        if newest_step(run) >= share * total_steps(run):
            continue
        process = of.start(*command)
        while process.poll() is None and newest_step(run) < share * total_steps(run):
            time.sleep(1)
        if process.poll() is None:
            stop_tree(process)
            again.append(newest_step(run) - newest_checkpoint(run))
            print(f"   killed at step {newest_step(run):,} of {total_steps(run):,.0f}", flush=True)
    of.run(*command)
    return {"disk_bytes": disk_bytes(run), "steps": newest_step(run), "steps taken again": again, **_valid(run)}


def _valid(run: Path) -> dict[str, Any]:
    lines = read_lines(run / METRICS)
    rates = [line["samples_per_second"] for line in lines if "samples_per_second" in line]
    return {
        "samples/s, median": float(np.median(rates)),
        "AUC on valid, by evaluation": [line["auc"] for line in validations(run)],
    }


def newest_step(run: Path) -> int:
    """Return the last step in a run's metrics.jsonl, or 0 if there is none yet."""
    return max((line["step"] for line in read_lines(run / METRICS)), default=0)


def newest_checkpoint(run: Path) -> int:
    """Return the step of a run's newest complete checkpoint, or 0 if there is none yet."""
    whole = (path for path in step_folders(run / "checkpoints") if (path / MANIFEST).is_file())
    return max((int(path.name.removeprefix("step-")) for path in whole), default=0)


def total_steps(run: Path) -> float:
    """Return the number of steps that a run of auto.yaml will take, or infinity before it has begun."""
    with suppress(OSError):
        return float(getattr(run_config(run).wide_optimizer.schedule, "decay_steps", "inf"))
    return float("inf")


def evaluate(of: Rehearsal, run: str = "auto") -> dict[str, Any]:
    """Evaluate the best checkpoint of a run on test, and return its AUC."""
    of.run("app", "evaluate", "--run", run)
    (path,) = (of.folder / run / "evaluations").glob("test-*.json")
    return {"AUC on test": json.loads(path.read_text("utf-8"))["metrics"]["auc"]}


def regression(of: Rehearsal) -> dict[str, Any]:
    """Fit a logistic regression to --regression-rows of the training rows, and return its figures on test."""
    rows = str(of.options.regression_rows)
    of.run("benchmarks.peers.logistic_regression", "prepared-2", "regression.npy", "--max-rows", rows)
    test = read_test(of.folder / "prepared-2")
    assert test.truth is not None
    return {
        "logistic regression": test.judge(np.load(of.folder / "regression.npy")),
        "best possible": test.judge(test.truth),
    }


def export(of: Rehearsal) -> dict[str, Any]:
    """Export the best checkpoint as a bundle, and return the bundle's size."""
    (of.folder / "bundles").mkdir(exist_ok=True)
    of.run("app", "export", "auto", "bundles/1", "--overwrite")
    return {"disk_bytes": disk_bytes(of.folder / "bundles/1")}


def predict(of: Rehearsal) -> dict[str, Any]:
    """Score the raw lines of the split test by the command `predict`, and compare the scores with the log's truth."""
    numbers = np.load(of.folder / "prepared-2" / row_numbers_file("test"))
    order = np.argsort(numbers, kind="stable")
    test = read_test(of.folder / "prepared-2")
    if not (of.folder / "scores.parquet").exists():
        write_lines(of.log, numbers[order], of.folder / "test.txt")
        of.run("app.cli.predict", "bundles/1", "test.txt", "scores.parquet")
    scores = read_scores(of.folder / "scores.parquet")
    assert test.truth is not None
    in_order = Test(test.labels[order], test.often[order], test.truth[order])
    return {"rows": len(scores), "auto": in_order.judge(scores)}


def write_lines(log: Path, numbers: np.ndarray, path: Path) -> None:
    """Write those lines of a log whose numbers, ascending from 0, are in `numbers` [n] to a file."""
    wanted = np.zeros(numbers.max() + 1, bool)
    wanted[numbers] = True
    with log.open("rb") as source, path.open("wb") as target:
        target.writelines(itertools.compress(source, wanted.tobytes()))


def read_scores(path: Path) -> np.ndarray:
    """Return the scores [n] in a file that the command `predict` has written."""
    return np.asarray(pq.read_table(path, columns=["score"])["score"])


def serve(of: Rehearsal, bundle: str, log: str, scores: str) -> dict[str, Any]:
    """Ask a service for the scores of a log's first rows.

    Raise SystemExit if a score differs from that of `predict`.
    """
    port, expected, first, begun = free_port(), read_scores(of.folder / scores), 0, time.perf_counter()
    words = ("app.cli.serve", bundle, "--port", str(port))
    with running(*words, folder=of.folder, log=of.output) as process, (of.folder / log).open("rb") as lines:
        wait_until(lambda: is_ready(port), process, of.output)
        ready = time.perf_counter() - begun
        for rows in REQUESTS:
            body = b"".join(itertools.islice(lines, rows))
            served = json.loads(ask(port, "/v1/score", body, "text/plain").body)["scores"]
            if not np.array_equal(np.float32(served), np.float32(expected[first : first + len(served)])):
                raise SystemExit(f"error: {bundle} serves other scores than predict wrote for rows from {first:,}")
            first += len(served)
    return {"seconds until ready": ready, "rows that are predict's": first}


def next_day(of: Rehearsal) -> dict[str, Any]:
    """Give ids to the next day's new values, train the model further on that day, and publish the change as a delta."""
    ids = read_schema(of.folder / "prepared-2").vocabulary_size
    more = ("--vocabulary", "prepared-2", "--extend", "--config", AUTO)
    found = _prepare(of, of.day, "prepared-day", *more)
    warm = ("--name", "day", "train.init_from=auto")
    of.run("app", "train", "--config", AUTO, "--dataset", "prepared-day", *warm)
    shutil.rmtree(of.folder / "bundles/2", ignore_errors=True)
    of.run("app", "export", "day", "bundles/2", "--delta-from", "bundles/1")
    with of.day.open("rb") as lines, (of.folder / "day.txt").open("wb") as target:
        target.writelines(itertools.islice(lines, sum(REQUESTS)))
    of.run("app.cli.predict", "bundles/2", "day.txt", "day.parquet", "--overwrite")
    test = read_test(of.folder / "prepared-day")
    return {
        "new values": found["ids"] - ids,
        "AUC on its valid rows, before and after": _valid(of.folder / "day")["AUC on valid, by evaluation"],
        "best possible on its test rows": {} if test.truth is None else {"all": test.judge(test.truth)["all"]},
        "bytes of the delta": disk_bytes(of.folder / "bundles/2"),
        **serve(of, "bundles", "day.txt", "day.parquet"),
    }


def criteo(of: Rehearsal) -> dict[str, Any]:
    """Train configs/criteo.yaml for one epoch, or for --criteo-steps steps, and evaluate it on test."""
    run, steps = of.folder / "criteo", of.options.criteo_steps
    # An epoch takes an hour, so save checkpoints, from which a stopped training continues.
    saves = ("checkpoint.every_minutes=15", "checkpoint.keep_last=1")
    more = ("--name", "criteo", "train.epochs=1", f"train.steps={steps}", "device.precision=auto", *saves)
    of.run("app", "train", "--config", CRITEO, "--dataset", "prepared-10", *more)
    of_run = {"steps": newest_step(run), "precision": run_config(run).device.precision, **evaluate(of, "criteo")}
    return {"disk_bytes": disk_bytes(run), **of_run, **_valid(run)}


STAGES: dict[str, Callable[[Rehearsal], dict[str, Any]]] = {
    "synthesize": synthesize,
    "prepare_2": partial(prepare, min_count=2),
    "train": train,
    "evaluate": evaluate,
    "export": export,
    "predict": predict,
    "serve": partial(serve, bundle="bundles/1", log="test.txt", scores="scores.parquet"),
    "next_day": next_day,
    "regression": regression,
    "prepare_10": partial(prepare, min_count=10),
    "criteo": criteo,
}


def shown(value: Any) -> str:
    """Return a figure that a stage found as text. It is a number, a list of numbers, or figures by test set."""
    if isinstance(value, dict):
        return "; ".join(f"{name}: {of['auc']:.4f} AUC, {of['log_loss']:.4f} log loss" for name, of in value.items())
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "none"
    return value if isinstance(value, str) else number_text(value)


def row_of(name: str, stage: dict[str, Any]) -> list[str]:
    """Return the row of the table about a stage that is done: a text for each of COLUMNS."""
    measured = stage | {"disk_bytes": stage["found"].get("disk_bytes")}
    found = [f"{word}: {shown(value)}" for word, value in stage["found"].items() if word != "disk_bytes"]
    stopped = " (from where it was stopped)" if "resumed" in stage else ""
    took = [number_text(measured[key], unit) for key, unit in UNITS.items()]
    return [name.replace("_", " ") + stopped, *took, "; ".join(found)]


def done(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: stage for name, stage in content["stages"].items() if "seconds" in stage}


def page(content: dict[str, Any]) -> str:
    stages = done(content)
    names = [name.replace("_", " ") for name in stages]
    charts = [
        bar_chart(title, names, [Bars("", [stage[key] for stage in stages.values()])], Axis("", UNITS[key]))
        for title, key in (("CPU time", "cpu_seconds"), ("Peak memory of all processes", "peak_bytes"))
    ]
    table = PagePart("table", [(name, "text") for name in COLUMNS], [row_of(*stage) for stage in stages.items()])
    where = f"{content['machine']['processor']}, {content['machine']['cores']} cores"
    subtitle = f"{content['rows']:,} synthetic rows in Criteo's form; {where}, commit {content['machine']['commit']}"
    return render_page("Rehearsal", subtitle, [], [Section("Stages", PagePart("charts", charts), table)])


def section(content: dict[str, Any]) -> str:
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(row_of(*stage) for stage in done(content).items())]
    of, today = content["machine"], datetime.datetime.now(datetime.UTC).date()
    command = f"`make rehearsal ROWS={content['rows']}`; {today}, {of['processor']}, {of['cores']} cores"
    return "\n".join([f"{command}\n", *(f"| {' | '.join(cells)} |" for cells in lines)])


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=CRITEO_ROWS)
    parser.add_argument("--stages", nargs="+", choices=tuple(STAGES), default=tuple(STAGES))
    parser.add_argument("--regression-rows", type=int, default=1_000_000)
    parser.add_argument("--auto-steps", type=int, default=0, help="0: the epochs that auto.yaml finds")
    parser.add_argument("--criteo-steps", type=int, default=0, help="0: the whole epoch")
    parser.add_argument("--keep", action="store_true", help="write the section of docs/results.md, and run nothing")
    options = parser.parse_args(words)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rehearsal = Rehearsal(folder, options)
    free, needed = shutil.disk_usage(folder).free + disk_bytes(folder), BYTES_OF_ROW * options.rows
    if free < needed:
        wanted, found = number_text(needed, "bytes"), number_text(free, "bytes")
        raise SystemExit(f"error: {options.rows:,} rows take {wanted} in {folder}, of which {found} are free or there")
    if options.keep:
        summary = PROJECT / "docs/results.md"
        text = replace_section(summary.read_text("utf-8"), "rehearsal", "The whole log", section(rehearsal.content))
        summary.write_text(text, "utf-8")
        return
    for name in options.stages:
        rehearsal.stage(name, STAGES[name])
        write_whole(folder / "rehearsal.html", page(rehearsal.content))
    print(f"== done: {folder / 'rehearsal.html'}")


if __name__ == "__main__":
    main()
