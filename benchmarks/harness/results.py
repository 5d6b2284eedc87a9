"""Text of benchmarks/results/*.md and docs/results.md: what was measured last, and how it compares with the targets.

The pages are written by hand, except for the text between `<!-- begin NAME -->` and `<!-- end NAME -->`. That text is
what a benchmark printed, or the table of targets.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.training.train_step import AS_FOUND, BEST_FORM, LOG_AS_FOUND, LOG_BEST_FORM, LOG_SMALLER_BATCH

MATMULS, TREES, REGRESSION = "matmuls_pytorch", "LightGBM, ordered target statistics", "logistic regression"
PEERS = REGRESSION, "PyTorch, SparseAdam and Adagrad", "PyTorch, Adam and L2 on whole tables"
STOCK = "its products bf16 where oneDNN's math mode works"
NUM_CUTS = 5
BEST, OFTEN, MANY_ROWS = "best possible", "seen often", ("recipes", "many_rows")
PAIRED, BF16, BF16_DISTINCT = "mean paired difference of AUC", "bfloat16 - float32", "distinct bfloat16 - distinct"
# Keys of the results.
KERNELS, CHECKPOINT, DRIFT = ("kernels", "kernels", "ratios"), ("checkpoint", "ratios"), ("online", "drift")
CHECKPOINT_DTYPES = "checkpoint_dtypes", "dtypes"
OURS = "contenders", "data_prep"
ALL_VALUES = "prepare_all_values", *OURS, "peak_mib"
LARGE, AUTO_5M, ROWS = ("prepare_large", "polars streaming"), ("auto_5m", "auto"), ("table_dtypes", "tables")
VOCABULARIES = "vocabularies", "name", "V 100,000,000", "V 100,000", "seconds"
BATCHES = "batches", "batch", 65_536, 16_000, "microseconds_per_row"
LIBRARIES = ("mindspore", "numpy", "torch", "polars", "pyarrow")

Results = dict[str, Any]  # For each benchmark by name, the JSON in the last line that it printed.


@dataclass(frozen=True)
class Target:
    """A value that a figure should reach.

    `find(results, *keys)` returns the figure, or raises KeyError if it was not measured.
    """

    what: str
    target: str  # The bound that the figure should keep, such as "≥ 1.5", with ≥, ≤ or >.
    find: Callable[..., float]
    keys: tuple[Any, ...] = ()

    def row(self, results: Results) -> tuple[str, str, str, str]:
        """Return the target's row of the table: name, target, measured value, and yes or no."""
        sign, _, text = self.target.partition(" ")
        bound = float(text.replace(",", ""))
        try:
            measured = self.find(results, *self.keys)
        except KeyError:
            return self.what, self.target, "not measured", ""
        reached = {"≥": measured >= bound, "≤": measured <= bound, ">": measured > bound}[sign]
        digits = 0 if bound >= 1000 else 2 if bound >= 0.1 else 6
        shown = "∞ (it did not finish)" if math.isinf(measured) else f"{measured:,.{digits}f}"
        return self.what, self.target, shown, "yes" if reached else "**no**"


def value(results: Results, *keys: Any) -> Any:
    """Return the entry of nested results that `keys` lead to. The first key names the benchmark.

    In a list, a key that is a dictionary finds the entry that contains it. Raise KeyError if there is no such entry.
    """
    found: Any = results
    for key in keys:
        if isinstance(key, dict):
            matching = [entry for entry in found if key.items() <= entry.items()]
            if not matching:
                raise KeyError(f"{' on '.join(map(str, key.values()))} was not measured")
            found = matching[0]
        else:
            found = (found or {})[key]
    return found


def figure(results: Results, *keys: Any) -> float:
    return float(value(results, *keys))


def paired(results: Results, pair: str, *keys: str) -> float:
    """Return the absolute value of the mean difference of AUC between paired runs of two variants.

    `pair` names the variants, such as "distinct - direct". `keys` lead to the results of the benchmark, as in `value`.
    """
    return abs(figure(results, *keys, "mean_differences", pair))


def step_ratio(
    results: Results, form: str, precision: str, peer: str, benchmark: str = "train_step", ours: str = "native"
) -> float:
    """Return the time of a peer's training step divided by the time of ours.

    Both are steps of benchmarks.training.train_step, or of the benchmark that `benchmark` names, from the group with
    this form (how the contenders are set up) and this precision. `ours` names the contender of this project.
    """
    for group in results[benchmark]["groups"]:
        if (group["form"], group["workload"]["precision"]) == (form, precision):
            return float(group["steps"][peer]["over_native"] / group["steps"][ours]["over_native"])
    raise KeyError(f"{form}, {precision}")


def log_ratio(results: Results, form: str, precision: str, peer: str = "pytorch") -> float:
    """Return the time of a peer's step divided by that of native_distinct, on ids as in Criteo's log."""
    return step_ratio(results, form, precision, peer, "distinct_rows", "native_distinct")


def share_of_matmuls(results: Results) -> float:
    """Return the time of native_distinct's step divided by the time that PyTorch takes for the matrix products alone of
    the direct form of the same layers, in float32.
    """
    return 1 / log_ratio(results, LOG_BEST_FORM, "float32", MATMULS)


def growth(results: Results, entries: str, key: str, large: Any, usual: Any, measure: str) -> float:
    """Return a figure of the benchmark `growth` at a large size, divided by the same figure at the usual size.

    `large` and `usual` are the two values of `key`, such as numbers of ids, and `measure` names the figure.
    """
    return figure(results, "growth", entries, {key: large}, measure) / figure(
        results, "growth", entries, {key: usual}, measure
    )


def prepare_ratio(results: Results, benchmark: str, peer: str) -> float:
    """Return the rows per second of data_prep divided by those of a peer.

    It is 0 if data_prep did not finish within the memory limit, and ∞ if only the peer did not.
    """
    contenders = results[benchmark]["contenders"]
    if not contenders["data_prep"]["finished"]:
        return 0.0
    return float(contenders[peer]["data_prep_is_faster"]) if contenders[peer]["finished"] else math.inf


def auc_above(results: Results, peer: str, lower_end: bool = False) -> float:
    """Return how far the AUC is above a peer's on the real rows: the mean over all five rolling cuts.

    With `lower_end`, return the lower end of its bootstrap interval, for which rows and whole cuts are drawn with
    replacement. Raise KeyError if not all cuts were measured.
    """
    measured = results["real_rows"]
    if len(measured["arguments"]["cuts"]) < NUM_CUTS:
        raise KeyError("not all cuts were measured")
    above = measured["above"][peer]
    return float(above["clusters_interval"][0] if lower_end else above["mean"])


def table_least(results: Results, peer: str) -> float:
    """Return, of the table on which auto does worst against a peer, how far auto's AUC is above the peer's, as the mean
    over the table's folds.
    """
    tables = value(results, "real_tables", "tables").values()
    return min(statistics.fmean(fold["auto"]["auc"] - fold[peer]["auc"] for fold in folds) for folds in tables)


def auto_below(
    results: Results, benchmark: str, data: str, recipes: tuple[str, ...] = ("many_rows", "few_rows")
) -> float:
    """Return how far the AUC of auto is below the best of other recipes. AUCs are means over seeds."""

    def mean(recipe: str) -> float:
        runs = value(results, benchmark, "results", {"recipe": recipe, "data": data}, "runs")
        return statistics.fmean(run["test"]["all"]["auc"] for run in runs)

    return max(map(mean, recipes)) - mean("auto")


def above(results: Results, benchmark: str, recipe: str, other: str, metric: str, rows: str = OFTEN) -> float:
    """Return how far a recipe's metric is above that of `other`, on the test rows of 5 M synthetic rows.

    Both metrics are those of the runs with the first seed.
    """
    entry = value(results, benchmark, "results", {"recipe": recipe, "data": "5m"})
    return float(entry["runs"][0]["test"][rows][metric] - entry[other][rows][metric])


def below(results: Results, *keys: str) -> float:
    return -above(results, *keys)


def stored_speed(results: Results, benchmark: str, name: str = "file") -> float:
    """Return the speed of a training step with the rows in a file, over that of the step with the rows in memory."""
    (case,) = results[benchmark]["cases"]
    return float(case["seconds"]["memory"] / case["seconds"][name])


def disk_share(results: Results, benchmark: str) -> float:
    """Return the disk's own time for the pages of a step with the rows in a file, over the time of the step."""
    (case,) = results[benchmark]["cases"]
    return float(case["disk_seconds"] / case["seconds"]["file"])


def export_memory(results: Results) -> float:
    """Return the peak memory of the command `export` over that of the training that it exports."""
    (case,) = results["storage_export"]["cases"]
    return float(case["peak_mib"]["export"] / case["peak_mib"]["train"])


# For each target: its name, its bound, the function that finds the figure, and the keys that the function gets.
ROWS_OF_TARGETS: tuple[tuple[Any, ...], ...] = (
    ("preparation: rows/s, 5 M rows, both readings", "≥ 250,000", figure, "prepare", *OURS, "rows_per_second"),
    ("preparation: × the model zoo's way", "≥ 12", prepare_ratio, "prepare", "zoo"),
    ("preparation: × polars, eager, all rows in memory", "≥ 1", prepare_ratio, "prepare", "polars eager"),
    ("preparation, 20 M rows under 4 GiB: × polars streaming", "≥ 1.5", prepare_ratio, *LARGE),
    ("preparation, 20 M rows, every value with an id: MiB of all processes", "≤ 1,024", figure, *ALL_VALUES),
    ("lookup, 416k rows: times faster than stock", "≥ 2", figure, *KERNELS, "lookup faster than stock"),
    ("lookup: time over that of copying its bytes", "≤ 1.5", figure, *KERNELS, "lookup time of copy"),
    ("LazyAdam with L2: times faster than stock", "≥ 6", figure, *KERNELS, "lazy_adam faster than stock"),
    ("LazyAdam: time over that of copying its bytes", "≤ 2.5", figure, *KERNELS, "lazy_adam time of copy"),
    ("FTRL: times faster than stock", "≥ 4", figure, *KERNELS, "ftrl faster than stock"),
    ("step float32, as users find it: × stock", "≥ 1.6", step_ratio, AS_FOUND, "float32", "stock"),
    ("step float32, as users find it: × PyTorch", "≥ 1.4", step_ratio, AS_FOUND, "float32", "pytorch"),
    (f"step bf16, as users find it: × stock ({STOCK})", "≥ 1.9", step_ratio, AS_FOUND, "bfloat16", "stock"),
    ("step bf16, as users find it: × PyTorch autocast", "≥ 1.6", step_ratio, AS_FOUND, "bfloat16", "pytorch"),
    ("step float32, best form: × stock", "≥ 1.15", step_ratio, BEST_FORM, "float32", "stock"),
    ("step float32, best form: × PyTorch", "≥ 1.05", step_ratio, BEST_FORM, "float32", "pytorch"),
    (f"step bf16, best form: × stock ({STOCK})", "≥ 1.4", step_ratio, BEST_FORM, "bfloat16", "stock"),
    ("step bf16, best form: × PyTorch autocast", "≥ 1.2", step_ratio, BEST_FORM, "bfloat16", "pytorch"),
    ("step bf16: share of what the matmuls alone allow", "≥ 0.7", step_ratio, BEST_FORM, "bfloat16", MATMULS),
    ("Criteo's ids, float32, best form: × PyTorch", "≥ 2", log_ratio, LOG_BEST_FORM, "float32"),
    ("Criteo's ids, float32, best form, batch 5,000: × PyTorch", "≥ 1.6", log_ratio, LOG_SMALLER_BATCH, "float32"),
    ("Criteo's ids, bf16, best form: × PyTorch autocast", "≥ 1.5", log_ratio, LOG_BEST_FORM, "bfloat16"),
    ("Criteo's ids, float32, as users find it: × PyTorch", "≥ 3", log_ratio, LOG_AS_FOUND, "float32"),
    ("Criteo's ids, bf16, as users find it: × PyTorch autocast", "≥ 2.5", log_ratio, LOG_AS_FOUND, "bfloat16"),
    ("Criteo's ids, float32: share of what the direct matmuls alone take", "≤ 0.65", share_of_matmuls),
    (f"bf16 against float32: {PAIRED}", "≤ 0.0005", paired, BF16, "bfloat16_auc"),
    (f"distinct rows against direct: {PAIRED}", "≤ 0.0005", paired, "distinct - direct", "first_layer_auc"),
    (f"distinct rows, bf16 against float32: {PAIRED}", "≤ 0.0005", paired, BF16_DISTINCT, "first_layer_auc"),
    (f"rows in bf16 against float32, 400k: {PAIRED}", "≤ 0.0003", paired, BF16, "rows_400k"),
    (f"rows in bf16 against float32, 5m: {PAIRED}", "≤ 0.0003", paired, BF16, "rows_5m"),
    (f"rows in bf16 against float32, real: {PAIRED}", "≤ 0.0003", paired, BF16, "rows_real"),
    ("rows in bf16 over float32: bytes of a touched row, D 80", "≤ 0.52", figure, *ROWS, "D 80", "bytes"),
    ("rows in bf16 over float32: … D 8", "≤ 0.56", figure, *ROWS, "D 8", "bytes"),
    ("rows in bf16 over float32: lookup and update, D 80", "≤ 1", figure, *ROWS, "D 80", "seconds"),
    ("rows in bf16 over float32: checkpoint, bytes", "≤ 0.55", figure, *CHECKPOINT_DTYPES, "bytes"),
    ("rows in bf16 over float32: checkpoint, time to save", "≤ 0.55", figure, *CHECKPOINT_DTYPES, "save"),
    ("rows in bf16 over float32: checkpoint, time to load", "≤ 0.55", figure, *CHECKPOINT_DTYPES, "load"),
    ("checkpoint: save rate over that of dd conv=fsync", "≥ 0.7", figure, *CHECKPOINT, "save over dd"),
    ("checkpoint: load rate over that of dd iflag=direct", "≥ 0.7", figure, *CHECKPOINT, "load over dd"),
    ("step beside a background save over alone", "≤ 1.3", figure, *CHECKPOINT, "step beside a save over alone"),
    *((f"real rows, auto: AUC above {peer}", "≥ 0.0025", auc_above, peer) for peer in PEERS),
    *(
        (f"real rows, auto, lower end of the interval: AUC above {peer}", "> 0", auc_above, peer, True)
        for peer in PEERS
    ),
    (f"real rows, auto: AUC above {TREES}", "≥ 0", auc_above, TREES),
    ("six real tables, auto: AUC above its own baseline, on the worst table", "≥ -0.001", table_least, "baseline"),
    ("six real tables, auto: AUC above LightGBM's, on the worst table", "≥ -0.01", table_least, "LightGBM"),
    ("real rows, auto: AUC below the better of many_rows and few_rows", "≤ 0.0005", auto_below, "seeds", "real"),
    ("500,000 synthetic rows, auto: AUC below the better of both", "≤ 0.0005", auto_below, "seeds", "500k"),
    ("5 M synthetic rows, auto: AUC below many_rows", "≤ 0.0005", auto_below, "auto_5m", "5m", ("many_rows",)),
    ("5 M synthetic rows, seen often, auto: AUC below the best possible", "≤ 0.008", below, *AUTO_5M, BEST, "auc"),
    ("5 M synthetic rows: AUC above logistic regression's", "> 0", above, *MANY_ROWS, REGRESSION, "auc", "all"),
    ("5 M synthetic rows, seen often: AUC below the best possible", "≤ 0.01", below, *MANY_ROWS, BEST, "auc"),
    ("5 M synthetic rows, seen often: log loss above the best", "≤ 0.01", above, *MANY_ROWS, BEST, "log_loss"),
    ("predict over 1 / (1/tower + 1/encoding), of one core", "≥ 0.7", figure, "scoring", "over_parts"),
    ("predict as a command on all cores: × PyTorch + pandas", "≥ 4", figure, "scoring", "all_cores", "ratio"),
    ("one raw row scored in process: ms of its thread, median", "≤ 0.3", figure, "scoring", "one_row_cpu_ms"),
    ("online: share of what retrains gain in AUC on a log that drifts", "≥ 0.75", figure, *DRIFT, "share"),
    ("online: processor time over a retrain's after each fifth part", "≤ 0.05", figure, *DRIFT, "cpu_share"),
    ("online: processor time over a retrain's after each part", "≤ 0.05", figure, *DRIFT, "cpu_share_as_fresh"),
    ("online: seconds from a closed part of 100,000 rows to served, p95", "≤ 5", figure, "online", "lag", "p95"),
    ("online: the same time at a vocabulary of 5 M over 10⁵", "≤ 1.3", figure, "online", "lag", "growth"),
    ("tables in a file, a third in memory, large tower: speed over memory's", "≥ 0.8", stored_speed, "storage_large"),
    ("tables in a file, a third in memory, small tower: speed over memory's", "≥ 0.45", stored_speed, "storage_small"),
    ("tables in a file that fits, small tower: speed over memory's", "≥ 0.97", stored_speed, "storage_fits", "fits"),
    ("tables in a file, rare ids: the disk's own time over that of the step", "≥ 0.8", disk_share, "storage_rare"),
    ("export of 8 M values: memory over that of its training", "≤ 1", export_memory),
    ("growth, tables: time at V = 10⁸ over 10⁵", "≤ 1.5", growth, *VOCABULARIES),
    ("growth, batch: time a row at 65,536 over 16,000", "≤ 1.1", growth, *BATCHES),
)
TARGETS = tuple(Target(what, target, find, tuple(keys)) for what, target, find, *keys in ROWS_OF_TARGETS)


def summary(results: Results) -> str:
    """Return a Markdown table of all targets and what was measured for each."""
    rows = [("", "target", "measured", "reached"), ("---", "---", "---", "---")]
    rows += [target.row(results) for target in TARGETS]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def section(command: str, printout: str, result: dict[str, Any], today: datetime.date) -> str:
    """Return the section of a result page: what a benchmark printed, below its command, date, commit and machine."""
    machine = result["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, {versions()}"
    return f"`{command}`\n\n{today}, commit {machine['commit']}; {where}\n\n```text\n{printout.strip()}\n```"


def versions() -> str:
    """Return a text with the versions of the measured libraries that are installed."""
    installed = {each.name.lower(): each.version for each in importlib.metadata.distributions()}
    return ", ".join(f"{name} {installed[name]}" for name in LIBRARIES if name in installed)


def replace_section(text: str, name: str, title: str, content: str) -> str:
    """Return `text` with `content` between the markers of `name`. Without markers, append a section with them."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    marked = f"{begin}\n{content}\n{end}"
    if begin not in text and end not in text:
        return f"{text.rstrip()}\n\n## {title}\n\n{marked}\n".lstrip()
    before, _, rest = text.partition(begin)
    _, end_marker, after = rest.partition(end)
    if not end_marker:
        raise ValueError(f"of the markers '{begin}' and '{end}' one is missing or they are out of order; put them back")
    return before + marked + after


def read_results(path: Path) -> Results:
    """Return the content of results.json, or an empty mapping if it does not exist yet."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
