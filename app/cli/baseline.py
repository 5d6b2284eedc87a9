"""`python -m app baseline`: fit logistic regression to a prepared folder, as a floor that Wide&Deep has to beat.

Features are the one-hot ids of the categorical fields and the numeric columns. The training rows are held in memory, so
at most `--max-rows` of them are used. Rows of valid and test are read in batches. Shapes use N for the number of
numeric columns, C for categorical fields and V for the vocabulary size.
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
# Inverse penalty C: first value, factor between values, and the limits of the search.
FIRST_C, STEP_OF_C, SMALLEST_C, LARGEST_C = 10**-1.5, 10**0.5, 1e-4, 1e2
MAX_NEWTON_STEPS = 100
# Crosses count for `train.auto` if they raise the AUC on valid rows by LEAST_AUC_OF_CROSSES, and lower the log loss by
# CERTAIN of its standard errors. From LARGE_AUC_OF_CROSSES on, their effects are more than slight. If clicks
# hardly depend on a cross, a limit of 0.005 would be better. But the crosses suggested for real tables, which cost up
# to 0.014 AUC at that limit, raise the AUC by up to 0.0066. For larger tables the gain is not measured.
LEAST_AUC_OF_CROSSES, LARGE_AUC_OF_CROSSES, CERTAIN = 0.0075, 0.015, 2.0
STRONG_C = 0.5  # The effects of crosses are strong if the best inverse penalty is at least this large.
MAX_CROSSED_ROWS, MAX_CROSSED_IDS = 400_000, 2_000_000
# Checksum of the schema that a choice is valid for ("" for the choice of an existing run), the effects, and a line for
# the log.
ChoiceOfCrosses = tuple[str, CrossEffects, str]
NO_CHOICE: ChoiceOfCrosses = ("", "none", "")
PRINTED_METRICS = ("auc", "log_loss", "normalized_entropy")


@dataclass(frozen=True)
class Fitted:
    """A fitted logistic regression, the inverse penalty C that was best on valid rows, and the number of
    training rows.
    """

    weights: NDArray[np.float64]  # Weights of the numeric columns, then of the ids, [N + V].
    intercept: float
    inverse_penalty: float
    train_rows: int

    def logits(self, features: Any) -> NDArray[np.float32]:
        """Return the logits, float32 [n], of `features`, a sparse matrix [n, N + V]."""
        logits: NDArray[np.float32] = features @ np.float32(self.weights) + np.float32(self.intercept)
        return logits


def add_parser(commands: Any) -> None:
    """Add the command to `python -m app`."""
    parser = commands.add_parser(
        "baseline",
        help="fit logistic regression to a prepared folder, the floor for a model",
        description="Fit an L2-penalized logistic regression (scikit-learn) to train rows, choose the penalty "
        "by log loss on valid rows, and evaluate it. Takes about 20 bytes per training row and column (0.8 GB for a "
        "million rows of Criteo's 39), up to 100 bytes per id, and minutes per million rows. If the log has more than "
        "--max-rows training rows, a fit to all of them would have better metrics, so the printed floor is too low.",
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
        help="fit with and without the folder's crosses, and show their effect on the metrics of valid rows",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command: fit, evaluate and print the table."""
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
    # Read the run before the fit, so that a wrong folder fails early.
    if arguments.run:
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
    """Fit to the training rows, and choose the penalty by log loss on the valid rows, if there are any.

    Raise ValueError if all training rows have the same label.
    """
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
    """Search the penalty with the smallest loss, and return its fit."""
    first = best = solver.fit(FIRST_C)
    least = valid_loss(best)
    # Step up until the loss gets worse. If the first step up is already worse, step down.
    for factor in (STEP_OF_C, 1 / STEP_OF_C):
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
    """Gain of logistic regression from crosses, measured on valid rows.

    `auc` is the rise of the AUC, `log_loss` the fall of the log loss, and `error` the standard error of the latter.
    `inverse_penalty` is the best one with crosses.
    """

    auc: float
    log_loss: float
    error: float
    inverse_penalty: float

    @property
    def effects(self) -> CrossEffects:
        """Strength of the crosses' effects: none, slight, weak or strong."""
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
    """Return how strong the effects of crosses on clicks are. Append a line for the log to `lines`.

    If there is a run in `run` with the settings `by_effects(answer)`, its answer is kept. The ranks of a job take over
    the answer of the process that started them, because results may be rounded differently on other processors. With
    `dry`, nothing is fitted, and the line says so.
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
    """Measure the effects of crosses by fitting regressions, or return an earlier result for the same `schema`.

    The result is stored in an environment variable for later trainings in this process and in processes that it starts.
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
    """Return the output of the option --crosses, computed in a separate process.

    Reading rows imports MindSpore, whose environment may not be prepared yet in this process.
    """
    command = [sys.executable, "-P", "-m", "app", "baseline", str(folder), "--crosses", "--json"]
    process = subprocess.run(  # noqa: S603 (this program)
        command,
        env=project_environment(),
        capture_output=True,
        text=True,
        check=False,
        # Ctrl-C must not reach the process directly.
        start_new_session=True,
    )
    if process.returncode:
        raise ValueError(f"the crosses of {folder} could not be tried (train.auto): {process.stderr[-1000:].strip()}")
    return process.stdout.strip()


def _is_measured(schema: Schema) -> bool:
    splits, has_crosses = schema.splits, any(field.cross for field in schema.categorical)
    is_small = splits["train"].rows <= MAX_CROSSED_ROWS and schema.vocabulary_size <= MAX_CROSSED_IDS
    return has_crosses and is_small and splits["train"].rows > 0 and splits["valid"].rows > 0


def crosses_gain(folder: Path, schema: Schema) -> CrossesGain | None:
    """Return the gain from all crosses, by comparing the best fits with and without them.

    Return None if there are no crosses or no valid rows, if all rows of a split have the same label, or if the table is
    larger than MAX_CROSSED_ROWS or MAX_CROSSED_IDS. Raise the errors of reading the folder.
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
    """Fits logistic regressions to the same rows with different L2 penalties, using scikit-learn.

    A fit minimizes Σ weight · log loss + |w|² / 2C, without a penalty on the intercept. Each fit starts from the
    solution of the previous one.
    """

    def __init__(self, features: Any, labels: NDArray[np.float32], weights: NDArray[np.float32] | None) -> None:
        """`features` is a sparse float32 matrix [n, N + V]. `labels` and `weights` have shape [n]."""
        from sklearn.linear_model import LogisticRegression

        self._rows = (features, labels, weights)
        self._model = LogisticRegression(solver="newton-cg", warm_start=True, max_iter=MAX_NEWTON_STEPS)

    def fit(self, inverse_penalty: float) -> Fitted:
        """Fit with the inverse penalty C."""
        model = self._model.set_params(C=inverse_penalty).fit(*self._rows)
        weights = model.coef_[0].astype(np.float64)
        return Fitted(weights, float(model.intercept_[0]), inverse_penalty, len(self._rows[1]))


def evaluate(fitted: Fitted, folder: Path, schema: Schema, split: str) -> Metrics:
    """Return the metrics of all rows of a split, reading one block at a time."""
    stream = MetricStream()
    for rows in read_blocks(folder, schema, split):
        stream.add(fitted.logits(one_hot(rows, schema)), rows.labels, rows.weights)
    return stream.result()


def read_features(
    folder: Path, schema: Schema, split: str, max_rows: int | None = None
) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """Return features, sparse [rows, N + V], labels [rows], and weights [rows] or None, of the rows of a split.

    With `max_rows`, read only about that many rows, in blocks spread over the split. Rows with weight 0 are left out.
    """
    from scipy import sparse

    blocks = list(read_spread(folder, schema, split, max_rows))
    features = sparse.vstack([one_hot(rows, schema) for rows in blocks], format="csr")
    rows = concatenate([Examples(rows.ids[:, :0], rows.numeric[:, :0], rows.labels, rows.weights) for rows in blocks])
    return features, rows.labels, rows.weights
