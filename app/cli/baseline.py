"""`python -m app baseline`: logistic regression on a prepared folder, the floor that a Wide&Deep has to beat.

Features are the one-hot ids of the categorical fields and the numeric columns. The rows are held in memory, so at most
`--max-rows` training rows are taken; valid and test rows pass by in batches. Letters: N numeric columns, C categorical
fields, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import logging
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.batches import check_files
from app.evaluation.measure import best_on, check_split
from app.evaluation.metrics import METRICS, Metrics, MetricStream, defined
from app.run.record import read_runs
from data_prep.prepared.examples import Examples, concatenate
from data_prep.prepared.features import one_hot, read_spread
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import Schema, read_schema

log = logging.getLogger("app")

MAX_ROWS = 1_000_000
# Inverse penalties C; many rare values want a strong penalty.
INVERSE_PENALTIES = (0.01, 0.03, 0.1, 0.3)
UNCHOSEN = 0.1  # the one taken where there are no valid rows to choose on
# Of the mean loss's gradient. A value that one row in a thousand has moves it by a thousandth of what it is worth: at
# 1e-3 the solver stops before most values are learned (AUC 0.748 where 1e-5 gives 0.759, on 400,000 rows).
TOLERANCE = 1e-5
MAX_ITERATIONS = 1000
SHOWN = ("auc", "log_loss", "normalized_entropy")


@dataclass(frozen=True)
class Fitted:
    """A fitted scikit-learn model, the inverse penalty C that valid rows chose, and the number of training rows."""

    model: Any
    inverse_penalty: float
    train_rows: int


def add_parser(commands: Any) -> None:
    """Add the command to those of `python -m app`."""
    parser = commands.add_parser(
        "baseline",
        help="fit logistic regression to a prepared folder, the floor for a model",
        description="Fit an L2-penalized logistic regression (scikit-learn, L-BFGS) to train rows, choose the penalty "
        "by log loss on valid rows, and evaluate it. Takes about 20 bytes per training row and column (0.8 GB for a "
        "million rows of Criteo's 39) and minutes per million rows. If the log has more than --max-rows training rows, "
        "a fit to all of them would score better: the floor is then too low.",
    )
    parser.add_argument("dataset", type=Path, metavar="DATASET", help="the prepared folder")
    parser.add_argument("--split", default="test", help="rows to evaluate on: train, valid or test (test)")
    parser.add_argument(
        "--max-rows",
        type=int,
        default=MAX_ROWS,
        metavar="N",
        help=f"training rows to fit to, in blocks spread evenly over the split ({MAX_ROWS:,})",
    )
    parser.add_argument(
        "--run", type=Path, metavar="DIR", help="run folder to compare with, evaluated on the same split"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> None:
    """Fit, evaluate and print the table."""
    if arguments.max_rows < 1:
        raise ValueError(f"--max-rows must be 1 or more, found {arguments.max_rows}")
    folder, split = arguments.dataset, arguments.split
    schema = read_schema(folder)
    check_files(folder, schema)
    for name in dict.fromkeys(("train", split)):
        check_split(folder, schema, name)
    rows: dict[str, dict[str, Any]] = {"logistic regression": {}}
    if arguments.run:  # a wrong one fails before the fit
        (record,) = read_runs([arguments.run])
        of_split = [content for content in record.evaluations if content["split"] == split]
        found = [content for content in of_split if "calibrated" not in content] or of_split
        if not found:
            advice = f"run: make eval RUN={arguments.run} SPLIT={split}"
            raise ValueError(f"{arguments.run} has no evaluation on split {split!r}; {advice}")
        rows[f"Wide&Deep in {record.name}"] = found[-1]["metrics"]
    fitted = fit(folder, schema, arguments.max_rows)
    metrics = evaluate(fitted, folder, schema, split)
    rows["logistic regression"] = defined(metrics)
    if best := best_on(folder, schema, split):
        rows["best possible"] = asdict(best)
    if arguments.json:
        facts = {"train_rows": fitted.train_rows, "inverse_penalty": fitted.inverse_penalty}
        print(json.dumps({"split": split, **defined(metrics), **facts}))
        return
    print(f"{split}: {metrics.rows:,} rows, click rate {metrics.click_rate:.4f}; {schema.vocabulary_size:,} ids")
    print(" ".join([f"  {'':30}", *(f"{METRICS[name].title:>18}" for name in SHOWN)]))
    for name, values in rows.items():
        shown = (f"{values[key]:.6f}" if values.get(key) is not None else "–" for key in SHOWN)
        print(" ".join([f"  {name:30}", *(f"{text:>18}" for text in shown)]))


def fit(folder: Path, schema: Schema, max_rows: int = MAX_ROWS) -> Fitted:
    """Fit to train rows and choose the penalty on valid rows, if there are any. Raises ValueError for one class."""
    features, labels, weights = read_features(folder, schema, "train", max_rows)
    if len(np.unique(labels)) < 2:
        raise ValueError(
            f"the {len(labels):,} training rows of {folder} have one class only; there is nothing to learn"
        )
    log.info("logistic regression on %s of %s training rows", f"{len(labels):,}", f"{schema.splits['train'].rows:,}")
    if not schema.splits["valid"].rows:
        return Fitted(make_model(UNCHOSEN).fit(features, labels, weights), UNCHOSEN, len(labels))
    best: tuple[float, Fitted] | None = None
    model = make_model(INVERSE_PENALTIES[0])
    for inverse_penalty in INVERSE_PENALTIES:  # rising: each solution is a good start for the next
        model.set_params(C=inverse_penalty).fit(features, labels, weights)
        found = Fitted(copy(model), inverse_penalty, len(labels))
        loss = evaluate(found, folder, schema, "valid").log_loss
        log.info("inverse penalty C %g: log loss %.6f on valid rows", inverse_penalty, loss)
        if best is not None and loss > best[0]:
            break
        best = loss, found
    assert best is not None
    return best[1]


def make_model(inverse_penalty: float) -> Any:
    """Return a regression that is solved to its end; fitted again, it starts from the solution it has."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=inverse_penalty, max_iter=MAX_ITERATIONS, tol=TOLERANCE, warm_start=True)


def evaluate(fitted: Fitted, folder: Path, schema: Schema, split: str) -> Metrics:
    """Return the metrics of all rows of a split, block by block."""
    stream = MetricStream()
    for rows in read_blocks(folder, schema, split):
        logits = fitted.model.decision_function(one_hot(rows, schema))
        stream.add(logits.astype(np.float32), rows.labels, rows.weights)
    return stream.result()


def read_features(
    folder: Path, schema: Schema, split: str, max_rows: int | None = None
) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """Return features, sparse [rows, N + V], labels [rows] and weights [rows], if the rows have them.

    They are those of a split, or of about `max_rows` rows of it; rows of weight 0 are left out.
    """
    from scipy import sparse

    blocks = list(read_spread(folder, schema, split, max_rows))
    features = sparse.vstack([one_hot(rows, schema) for rows in blocks], format="csr")
    rows = concatenate([Examples(rows.ids[:, :0], rows.numeric[:, :0], rows.labels, rows.weights) for rows in blocks])
    return features, rows.labels, rows.weights
