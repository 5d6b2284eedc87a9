"""`python -m app baseline`: fit logistic regression to a prepared folder and print its metrics, which a Wide&Deep model
should exceed.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from app.evaluation.measure import best_on, check_split
from app.evaluation.metrics import METRICS, Metrics, MetricStream, defined
from app.run.record import read_runs
from app.training.auto.regression import MAX_ROWS, Features, crosses_gain, evaluate, fit, fit_rows, most_rows
from app.training.start import can_try_crosses
from common.arguments import add_shared
from common.packages import python_command
from common.text import show
from data_prep.checks.suggest_crosses import cross_features, describe_gains, field_columns, find_gains
from data_prep.prepared.data_files import check_files
from data_prep.prepared.examples import concatenate, one_hot
from data_prep.prepared.reader import read_spread
from data_prep.prepared.schema import Schema, read_schema

PRINTED_METRICS = ("auc", "log_loss", "normalized_entropy")
# Crosses (fields that combine two other fields) are tried if the number of training rows times the number of pairs of
# fields is at most this. Trying them then takes seconds.
MOST_TRIED = 20_000_000


def add_parser(commands: Any) -> None:
    """Add the command `baseline` with its arguments to the parser of `python -m app`."""
    parser = commands.add_parser(
        "baseline",
        help="fit logistic regression to a prepared folder, the floor for a model",
        description="Fit an L2-penalized logistic regression (scikit-learn) to train rows, choose the penalty "
        "by log loss on valid rows, and evaluate it. Takes about 20 bytes per training row and column (0.8 GB for a "
        "million rows of Criteo's 39), up to 100 bytes per id, and minutes per million rows. Each component of a "
        "vector is a column, and with wide vectors fewer rows than --max-rows are read. If the log has more training "
        "rows than are read, a fit to all of them would have better metrics, so the printed floor is too low. If a "
        "small folder has no crosses, those that suggest-crosses finds are printed, too, with the metrics of the best.",
    )
    parser.add_argument("dataset", type=Path, metavar="DATASET", help="the prepared folder")
    add_shared(parser, "--split")
    parser.add_argument(
        "--max-rows",
        type=int,
        default=MAX_ROWS,
        metavar="N",
        help=f"training rows to fit to, in blocks spread evenly over the split ({MAX_ROWS:,})",
    )
    add_shared(parser, "--run", default=None, help="run folder to compare with, evaluated on the same split")
    parser.add_argument(
        "--crosses",
        action="store_true",
        help="fit with and without the folder's crosses, and show their effect on the metrics of valid rows",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command: fit logistic regression, evaluate it, and print its metrics beside the metrics of a run. If the
    folder is small and has no crosses (fields that combine other fields), also print the crosses that suggest-crosses
    finds, and the metrics of a regression with the best one. With --crosses, print instead how much the folder's
    crosses improve the regression.
    """
    if arguments.max_rows < 1:
        raise ValueError(f"--max-rows must be 1 or more, found {arguments.max_rows}")
    folder, split = arguments.dataset, arguments.split
    schema = read_schema(folder)
    check_files(folder, schema)
    for name in dict.fromkeys(("train", split)):
        check_split(folder, schema, name)
    if arguments.crosses:
        gain = crosses_gain(folder, schema)
        text = "no crosses are measured here" if gain is None else str(gain)
        show(json.dumps(gain and asdict(gain)) if arguments.json else text)
        return
    rows: dict[str, dict[str, Any]] = {"logistic regression": {}}
    # Read the run's evaluations before fitting, so that a wrong run folder is reported at once.
    if arguments.run:
        (record,) = read_runs([arguments.run])
        of_split = [content for content in record.evaluations if content["split"] == split]
        evaluations = [content for content in of_split if "calibrated" not in content] or of_split
        if not evaluations:
            advice = "run: " + python_command(f"app evaluate --run {quote(str(arguments.run))} --split {split}")
            raise ValueError(f"{arguments.run} has no evaluation on split {split!r}; {advice}")
        rows[f"Wide&Deep in {record.name}"] = evaluations[-1]["metrics"]
    fitted = fit(folder, schema, arguments.max_rows)
    metrics = evaluate(fitted, folder, schema, split)
    rows["logistic regression"] = defined(metrics)
    if best := best_on(folder, schema, split):
        rows["best possible"] = asdict(best)
    if arguments.json:
        facts = {"train_rows": fitted.train_rows, "inverse_penalty": fitted.inverse_penalty}
        show(json.dumps({"split": split, **defined(metrics), **facts}))
        return
    gains = find_gains(folder) if can_try_crosses(schema, MOST_TRIED) else []
    if gains and gains[0].is_certain:
        crossed = _metrics_with_cross(folder, schema, split, gains[0].fields, arguments.max_rows)
        rows[f"  with {' * '.join(gains[0].fields)}"] = defined(crossed)
    show(f"{split}: {metrics.rows:,} rows, click rate {metrics.click_rate:.4f}; {schema.vocabulary_size:,} ids")
    show(" ".join([f"  {'':30}", *(f"{METRICS[name].title:>18}" for name in PRINTED_METRICS)]))
    for name, values in rows.items():
        texts = (f"{values[key]:.6f}" if values.get(key) is not None else "–" for key in PRINTED_METRICS)
        show(" ".join([f"  {name:30}", *(f"{text:>18}" for text in texts)]))
    if gains:
        show(describe_gains(gains, 3, []))


def _metrics_with_cross(folder: Path, schema: Schema, split: str, names: tuple[str, str], max_rows: int) -> Metrics:
    """Return the metrics on a split of a regression with the folder's features and a cross of two fields.

    As in a prepared folder, a pair of values has a feature if two training rows or more have it. The penalty is chosen
    by the log loss on the valid rows.
    """
    from scipy import sparse

    fields = [field_columns(schema)[name] for name in names]
    rows = {
        name: concatenate(list(read_spread(folder, schema, name, most_rows(schema, max_rows))))
        for name in ("train", "valid", split)
    }
    cross, pairs = cross_features(rows["train"].ids, fields)
    pairs = pairs[cross.getnnz(axis=0) > 1]

    def features_of(name: str) -> Features:
        of_split = rows[name]
        cross, _ = cross_features(of_split.ids, fields, pairs)
        features = sparse.hstack([one_hot(of_split, schema), cross], "csr", "float32")
        return features, of_split.labels, of_split.weights

    fitted = fit_rows(features_of("train"), features_of("valid"))
    features, labels, weights = features_of(split)
    stream = MetricStream()
    stream.add(fitted.logits(features), labels, weights)
    return stream.result()
