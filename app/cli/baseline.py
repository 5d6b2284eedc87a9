"""`python -m app baseline`: logistic regression on a prepared folder, the floor that a Wide&Deep has to beat.

Features are the one-hot ids of the categorical fields and the numeric columns. The rows are held in memory, so at most
`--max-rows` training rows are taken. Rows of valid and test come in batches. Letters: N numeric columns, C categorical
fields, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from app.batches import check_files
from app.config.by_rows import CrossEffects
from app.config.config import Config
from app.distributed.mpirun import CHOICE_OF_CROSSES
from app.distributed.process_group import started_by_mpi
from app.evaluation.measure import best_on, check_split
from app.evaluation.metrics import METRICS, Metrics, MetricStream, defined
from app.run.decision import is_run_of
from app.run.record import read_runs
from common.packages import project_environment
from common.text import show
from data_prep.prepared.examples import Examples, concatenate
from data_prep.prepared.features import one_hot, read_spread
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import Schema, checksum_of, read_schema

log = logging.getLogger("app")

MAX_ROWS = 1_000_000
# The inverse penalty C: the first that is tried, the factor between one and the next, and how far it may go.
FIRST_C, STEP_OF_C, SMALLEST_C, LARGEST_C = 10**-1.5, 10**0.5, 1e-4, 1e2
MAX_NEWTON_STEPS = 100
# Crosses count for train.auto if they raise the AUC on valid rows by the first, and lower log loss by so many of its
# standard errors. From the second on their effects are more than slight. Clicks that hardly follow a cross are learned
# better so from 0.005 on, but the suggested crosses of real tables, which cost up to 0.014 AUC then, raise it by up to
# 0.0066. Of larger tables the gain is not estimated.
LEAST_AUC_OF_CROSSES, LARGE_AUC_OF_CROSSES, CERTAIN = 0.0075, 0.015, 2.0
STRONG_C = 0.5  # the inverse penalty from which on their effects are strong
MAX_CROSSED_ROWS, MAX_CROSSED_IDS = 400_000, 2_000_000
# The checksum of the schema that a choice holds for, "" for that of a run, its effects, and a line for the log.
ChoiceOfCrosses = tuple[str, CrossEffects, str]
NO_CHOICE: ChoiceOfCrosses = ("", "none", "")
PRINTED_METRICS = ("auc", "log_loss", "normalized_entropy")


@dataclass(frozen=True)
class Fitted:
    """A logistic regression, the inverse penalty C that valid rows chose, and the number of training rows."""

    weights: NDArray[np.float64]  # [N + V]
    intercept: float
    inverse_penalty: float
    train_rows: int

    def logits(self, features: Any) -> NDArray[np.float32]:
        """Return the logits [n] of features [n, N + V], a sparse matrix."""
        logits: NDArray[np.float32] = features @ np.float32(self.weights) + np.float32(self.intercept)
        return logits


def add_parser(commands: Any) -> None:
    """Add the command to those of `python -m app`."""
    parser = commands.add_parser(
        "baseline",
        help="fit logistic regression to a prepared folder, the floor for a model",
        description="Fit an L2-penalized logistic regression (scikit-learn) to train rows, choose the penalty "
        "by log loss on valid rows, and evaluate it. Takes about 20 bytes per training row and column (0.8 GB for a "
        "million rows of Criteo's 39), up to 100 bytes per id, and minutes per million rows. If the log has more than "
        "--max-rows training rows, a fit to all of them would score better: the floor is then too low.",
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
    parser.add_argument(
        "--crosses",
        action="store_true",
        help="fit with and without the folder's crosses, and show what they are worth on valid rows",
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
    if arguments.crosses:
        gain = crosses_gain(folder, schema)
        text = "no crosses are measured here" if gain is None else str(gain)
        show(json.dumps(gain and asdict(gain)) if arguments.json else text)
        return
    rows: dict[str, dict[str, Any]] = {"logistic regression": {}}
    if arguments.run:  # a wrong one fails before the fit
        (record,) = read_runs([arguments.run])
        of_split = [content for content in record.evaluations if content["split"] == split]
        evaluations = [content for content in of_split if "calibrated" not in content] or of_split
        if not evaluations:
            advice = f"run: make eval RUN={arguments.run} SPLIT={split}"
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
    show(f"{split}: {metrics.rows:,} rows, click rate {metrics.click_rate:.4f}; {schema.vocabulary_size:,} ids")
    show(" ".join([f"  {'':30}", *(f"{METRICS[name].title:>18}" for name in PRINTED_METRICS)]))
    for name, values in rows.items():
        texts = (f"{values[key]:.6f}" if values.get(key) is not None else "–" for key in PRINTED_METRICS)
        show(" ".join([f"  {name:30}", *(f"{text:>18}" for text in texts)]))


def fit(folder: Path, schema: Schema, max_rows: int = MAX_ROWS) -> Fitted:
    """Fit to train rows and choose the penalty on valid rows, if there are any. Raises ValueError for one class."""
    features, labels, weights = read_features(folder, schema, "train", max_rows)
    if len(np.unique(labels)) < 2:
        raise ValueError(
            f"the {len(labels):,} training rows of {folder} have one class only; there is nothing to learn"
        )
    log.info("logistic regression on %s of %s training rows", f"{len(labels):,}", f"{schema.splits['train'].rows:,}")
    solver = Solver(features, labels, weights)
    if not schema.splits["valid"].rows:
        return solver.fit(FIRST_C)

    def valid_loss(fitted: Fitted) -> float:
        loss = float(evaluate(fitted, folder, schema, "valid").log_loss)
        log.info("inverse penalty C %.2g: log loss %.6f on valid rows", fitted.inverse_penalty, loss)
        return loss

    return _fit_best(solver, valid_loss)


def _fit_best(solver: Solver, valid_loss: Callable[[Fitted], float]) -> Fitted:
    """Return the fit whose penalty has the least loss."""
    first = best = solver.fit(FIRST_C)
    least = valid_loss(best)
    for factor in (STEP_OF_C, 1 / STEP_OF_C):  # up until it gets worse; down if the first step up is one too many
        while SMALLEST_C <= best.inverse_penalty * factor <= LARGEST_C:
            fitted = solver.fit(best.inverse_penalty * factor)
            loss = valid_loss(fitted)
            if loss >= least:
                break
            best, least = fitted, loss
        if best is not first:
            break
    return best


@dataclass(frozen=True)
class CrossesGain:
    """The gain of logistic regression by crosses, on valid rows: of AUC, and of log loss with its standard error.

    The inverse penalty is the best one with crosses.
    """

    auc: float
    log_loss: float
    error: float
    inverse_penalty: float

    @property
    def effects(self) -> CrossEffects:
        if self.auc < LEAST_AUC_OF_CROSSES or self.log_loss <= CERTAIN * self.error:
            return "none"
        if self.auc < LARGE_AUC_OF_CROSSES:
            return "slight"
        return "strong" if self.inverse_penalty >= STRONG_C else "weak"

    def __str__(self) -> str:
        faster = f"their effects are {self.effects}, so the wide part learns them faster, in more epochs"
        then = "that changes no setting" if self.effects == "none" else faster
        return (
            f"crosses change the AUC of logistic regression on valid rows by {self.auc:+.4f}, its log loss by "
            f"{-self.log_loss:+.4f} ± {self.error:.4f}: {then} (train.auto)"
        )


def find_cross_effects(
    folder: Path,
    run: Path,
    schema: Schema,
    by_effects: Callable[[CrossEffects], Config],
    lines: list[str],
    dry: bool = False,
) -> CrossEffects:
    """Return how strong the effects of crosses on clicks are. Add a line for the log to `lines`.

    A run in `run` with the settings `by_effects(answer)` keeps its answer. Ranks take that of the process that started
    them, since processors may round apart. With `dry` nothing is fitted, and the line says so.
    """
    if not started_by_mpi():
        os.environ[CHOICE_OF_CROSSES] = json.dumps(_try_crosses(folder, run, schema, by_effects, dry))
    _, effects, line = _choice_of_crosses()
    lines.append(line)
    return effects


def _try_crosses(
    folder: Path, run: Path, schema: Schema, by_effects: Callable[[CrossEffects], Config], dry: bool
) -> ChoiceOfCrosses:
    if not _is_measured(schema):
        return NO_CHOICE
    for effects in get_args(CrossEffects):
        if is_run_of(run, by_effects(effects), schema):
            return "", effects, ""
    if dry:
        return "", "none", "a training fits regressions with and without the crosses first, which may change settings"
    return measure_cross_effects(folder, schema)


def measure_cross_effects(folder: Path, schema: Schema) -> ChoiceOfCrosses:
    """Fit regressions to the rows, unless this process or the one that started it did so for the same `schema`.

    The choice is left to further trainings of this process and of those that it starts.
    """
    data = checksum_of(asdict(schema))
    choice = _choice_of_crosses()
    if choice[0] != data:
        gain_values = json.loads(_gain_in_a_process(folder)) if _is_measured(schema) else None
        gain = gain_values and CrossesGain(**gain_values)
        choice = (data, gain.effects, str(gain)) if gain else (data, "none", "")
        os.environ[CHOICE_OF_CROSSES] = json.dumps(choice)
    return choice


def _choice_of_crosses() -> ChoiceOfCrosses:
    choice: ChoiceOfCrosses = json.loads(os.environ.get(CHOICE_OF_CROSSES, json.dumps(NO_CHOICE)))
    return choice


def _gain_in_a_process(folder: Path) -> str:
    """Return what --crosses prints. Reading rows imports MindSpore, which this process may not have set up yet."""
    command = [sys.executable, "-P", "-m", "app", "baseline", str(folder), "--crosses", "--json"]
    process = subprocess.run(  # noqa: S603 (this program)
        command,
        env=project_environment(),
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,  # Ctrl-C comes to this process alone
    )
    if process.returncode:
        raise ValueError(f"the crosses of {folder} could not be tried (train.auto): {process.stderr[-1000:].strip()}")
    return process.stdout.strip()


def _is_measured(schema: Schema) -> bool:
    splits, has_crosses = schema.splits, any(field.cross for field in schema.categorical)
    is_small = splits["train"].rows <= MAX_CROSSED_ROWS and schema.vocabulary_size <= MAX_CROSSED_IDS
    return has_crosses and is_small and splits["train"].rows > 0 and splits["valid"].rows > 0


def crosses_gain(folder: Path, schema: Schema) -> CrossesGain | None:
    """Return the gain of all crosses, by the best fits with and without them.

    Return None without crosses or valid rows, if the rows of a split have one class, or for a table beyond
    MAX_CROSSED_ROWS or MAX_CROSSED_IDS. Raises as reading the folder does.
    """
    if not _is_measured(schema):
        return None
    features, labels, weights = read_features(folder, schema, "train")
    valid, valid_labels, of_valid = read_features(folder, schema, "valid", MAX_CROSSED_ROWS)
    if len(np.unique(labels)) < 2 or len(np.unique(valid_labels)) < 2:
        return None

    def losses(logits: NDArray[np.float32]) -> NDArray[np.float64]:
        of_rows: NDArray[np.float64] = np.logaddexp(0.0, logits.astype(np.float64)) - valid_labels * logits
        return of_rows

    def fit_rows() -> tuple[NDArray[np.float32], float]:
        solver = Solver(features, labels, weights)
        best = _fit_best(solver, lambda fitted: float(np.average(losses(fitted.logits(valid)), weights=of_valid)))
        return best.logits(valid), best.inverse_penalty

    crossed, inverse_penalty = fit_rows()
    is_cross = np.zeros(features.shape[1], bool)
    ranges = [ids for field in schema.categorical if field.cross for ids in (field.oov_ids, *field.id_ranges)]
    for begin, end in ranges:
        is_cross[schema.num_numeric + begin : schema.num_numeric + end] = True
    for matrix in (features, valid):
        matrix.data[is_cross[matrix.indices]] = 0
    plain, _ = fit_rows()
    rows = np.ones(len(plain)) if of_valid is None else of_valid.astype(np.float64)
    lowered = losses(plain) - losses(crossed)
    mean = float(np.average(lowered, weights=rows))
    error = float(np.sqrt(rows**2 @ (lowered - mean) ** 2) / rows.sum())
    auc = _auc(crossed, valid_labels, of_valid) - _auc(plain, valid_labels, of_valid)
    return CrossesGain(auc, mean, error, inverse_penalty)


def _auc(logits: NDArray[np.float32], labels: NDArray[np.float32], weights: NDArray[np.float32] | None) -> float:
    stream = MetricStream()
    stream.add(logits, labels, weights)
    return float(stream.result().auc)


class Solver:
    """Fits logistic regressions to the same rows with different L2 penalties, by scikit-learn.

    A fit minimizes Σ weight · log loss + |w|² / 2C, without a penalty on the intercept. Each fit starts at the solution
    of the fit before it.
    """

    def __init__(self, features: Any, labels: NDArray[np.float32], weights: NDArray[np.float32] | None) -> None:
        """Take features [n, N + V], a sparse matrix of float32, labels [n] and, if rows have them, weights [n]."""
        from sklearn.linear_model import LogisticRegression

        self._rows = (features, labels, weights)
        self._model = LogisticRegression(solver="newton-cg", warm_start=True, max_iter=MAX_NEWTON_STEPS)

    def fit(self, inverse_penalty: float) -> Fitted:
        """Fit with the inverse penalty C."""
        model = self._model.set_params(C=inverse_penalty).fit(*self._rows)
        weights = model.coef_[0].astype(np.float64)
        return Fitted(weights, float(model.intercept_[0]), inverse_penalty, len(self._rows[1]))


def evaluate(fitted: Fitted, folder: Path, schema: Schema, split: str) -> Metrics:
    """Return the metrics of all rows of a split, block by block."""
    stream = MetricStream()
    for rows in read_blocks(folder, schema, split):
        stream.add(fitted.logits(one_hot(rows, schema)), rows.labels, rows.weights)
    return stream.result()


def read_features(
    folder: Path, schema: Schema, split: str, max_rows: int | None = None
) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """Return features, sparse [rows, N + V], labels [rows] and weights [rows], if the rows have them.

    They are those of a split, or of about `max_rows` rows of it. Rows of weight 0 are left out.
    """
    from scipy import sparse

    blocks = list(read_spread(folder, schema, split, max_rows))
    features = sparse.vstack([one_hot(rows, schema) for rows in blocks], format="csr")
    rows = concatenate([Examples(rows.ids[:, :0], rows.numeric[:, :0], rows.labels, rows.weights) for rows in blocks])
    return features, rows.labels, rows.weights
