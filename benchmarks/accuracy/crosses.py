"""Do crosses make the wide part better? Logistic regression is the wide part alone; the deep part is left out.

    [CRITEO_ROWS=FOLDER] python -m benchmarks.accuracy.crosses [--rows 200000]

On the synthetic log the crosses are those of the fields whose interactions it has planted (data_prep.sources.clicks).
On real rows, where FOLDER is given (see real_rows.py), they are the same pairs, which nobody chose for these rows. Both
contenders have the integers' buckets, the same rows and their own penalty, chosen on valid rows; the last tenth of the
rows is test. Then the real rows' pairs that `python -m data_prep suggest-crosses` puts first on the first six tenths
are tested on those after them, each with a model of all rows before. Ends with one JSON line: AUC without and
with crosses, the difference and its interval over drawn rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import tempfile
from pathlib import Path

import numpy as np

from app.cli.baseline import fit, read_features
from benchmarks.accuracy.paired_auc import Group, RankedScores, differences
from benchmarks.accuracy.rolling_cuts import make_cuts
from benchmarks.harness.timing import machine
from benchmarks.peers import logistic_regression
from data_prep.checks.crosses import INVERSE_PENALTY, describe_gains, find_gains
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import read_schema
from data_prep.sources.clicks import INTERACTING_FIELDS, INTERACTING_NUMBERS
from data_prep.sources.synthetic import synthesize

PLAIN = PrepareOptions(split="chronological", integer_buckets=True, min_count=5)
PAIRS = tuple(itertools.combinations([*INTERACTING_FIELDS, *(f"{name}_bucket" for name in INTERACTING_NUMBERS)], 2))
WITH, WITHOUT = "with crosses", "without"
REPLICATES = 200
LATER = (6, 7, 8, 9)  # tenths; the pairs are chosen on the rows before the tenth 5, by log loss on that tenth
SUGGESTED = 5


def measure(log: Path, folder: Path) -> dict[str, object]:
    """Return both AUCs on the test rows of a log, their difference and its 95 % interval."""
    scores, labels, sizes = {}, np.empty(0), {}
    for name, crosses in ((WITHOUT, ()), (WITH, PAIRS)):
        prepared = folder / name.replace(" ", "-")
        schema = prepare(log, prepared, dataclasses.replace(PLAIN, crosses=crosses))
        features, labels, _ = read_features(prepared, schema, "test")
        scores[name] = fit(prepared, schema).model.decision_function(features)[None, :]
        sizes[name] = schema.vocabulary_size
    group = Group(labels.astype(bool), scores)
    (found,) = differences([group], WITH, (WITHOUT,), REPLICATES, seed=1)
    auc = float(RankedScores(scores[WITHOUT][0], group.labels).auc(np.ones(len(labels))))
    low, high = found.rows_interval
    print(
        f"{log.name}: {len(labels):,} test rows; AUC without crosses {auc:.4f} ({sizes[WITHOUT]:,} ids), with "
        f"{auc + found.mean:.4f} ({sizes[WITH]:,} ids): {found.mean:+.4f} [{low:+.4f} … {high:+.4f}]",
        flush=True,
    )
    return {"auc_without": auc, "difference": found.mean, "interval": found.rows_interval, "ids": sizes}


def measure_suggested(log: Path, folder: Path) -> dict[str, object]:
    """Return the best SUGGESTED pairs of the first tenths of a log, and the difference of AUC on each later tenth."""
    cuts = make_cuts(log, folder / WITHOUT, LATER)
    gains = find_gains(cuts[0].choosing(PLAIN))
    print(describe_gains(gains, SUGGESTED))
    pairs = tuple(gain.fields for gain in gains[:SUGGESTED])
    groups = []
    for cut in cuts:
        scores, labels = {}, np.empty(0)
        for name, crosses in ((WITHOUT, ()), (WITH, pairs)):
            prepared = dataclasses.replace(cut, folder=folder / name).testing(
                dataclasses.replace(PLAIN, crosses=crosses)
            )
            labels = read_features(prepared, read_schema(prepared), "test")[1]
            scores[name] = logistic_regression.predict(prepared, "test", INVERSE_PENALTY)[None, :]
        groups.append(Group(labels.astype(bool), scores))
    (found,) = differences(groups, WITH, (WITHOUT,), REPLICATES, seed=1)
    low, high = found.clusters_interval
    tenths = " ".join(f"{value:+.4f}" for value in found.of_groups)
    print(f"on tenths {LATER}: {found.mean:+.4f} [{low:+.4f} … {high:+.4f}], rows and tenths drawn   by tenth {tenths}")
    certain = [gain.fields for gain in gains if gain.is_certain]
    return {"pairs": pairs, "certain": certain, "difference": dataclasses.asdict(found)}


def main() -> None:
    """Measure on the synthetic log, and on real rows if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="of the synthetic log")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        synthesize(Path(folder) / "synthetic.txt", options.rows)
        found = {"synthetic": measure(Path(folder) / "synthetic.txt", Path(folder) / "synthetic")}
        if "CRITEO_ROWS" in os.environ:
            log = Path(os.environ["CRITEO_ROWS"]) / "train.txt"
            found["real"] = measure(log, Path(folder) / "real")
            found["suggested"] = measure_suggested(log, Path(folder) / "suggested")
    print(json.dumps({"machine": machine(), "arguments": {"rows": options.rows}, "found": found}))


if __name__ == "__main__":
    main()
