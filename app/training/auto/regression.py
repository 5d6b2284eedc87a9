"""Fit a logistic regression on a prepared folder with scikit-learn, as a baseline for the model, and measure how much
crosses improve it. By this, `train.auto` decides how strong the effects of crosses are. A cross is a field whose values
are combinations of the values of other fields.

Features are the one-hot ids of the categorical fields, the numeric columns and the components of vectors. The training
rows are held in memory. Rows of valid and test are read in batches. Shapes use N for the number of numeric columns, K
for the inputs of vectors and V for the vocabulary size.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from app.config.config import Config
from app.distributed.mpirun import CHOICE_OF_CROSSES
from app.evaluation.metrics import Metrics, MetricStream
from app.run.decision import is_run_of
from common.process import run_module, started_by_mpi
from data_prep.prepared.examples import Examples, concatenate, one_hot
from data_prep.prepared.reader import read_blocks, read_spread
from data_prep.prepared.schema import Schema, checksum_of

log = logging.getLogger("app")

# Rows as features, sparse float32 [n, N + K + V], their labels [n], and their weights [n] or None.
Features = tuple[Any, NDArray[np.float32], NDArray[np.float32] | None]

MAX_ROWS = 1_000_000
MAX_VALUES = 150_000_000  # Upper bound of training rows times feature values per row. So many values take 1.2 GB.
# Inverse L2 penalty C: the first value tried, the factor between values, and the limits of the search.
FIRST_C, STEP_OF_C, SMALLEST_C, LARGEST_C = 10**-1.5, 10**0.5, 1e-4, 1e2
MAX_NEWTON_STEPS = 100
MOST_TOLERANCE = 1e-5

CrossEffects = Literal["none", "slight", "weak", "strong"]  # How strongly crosses affect clicks.
# The effects of crosses (fields that combine other fields) on clicks count as "none" unless crosses raise the AUC of
# logistic regression on valid rows by LEAST_AUC_OF_CROSSES and lower its log loss by CERTAIN times the standard error.
# From LARGE_AUC_OF_CROSSES on, they count as more than "slight". On data whose clicks hardly depend on a cross, a lower
# limit of 0.005 would give a better model. But crosses that were suggested for real tables raise the AUC of logistic
# regression by up to 0.0066, and with a limit of 0.005 they would cost the model up to 0.014 AUC. On data with more
# training rows than MAX_CROSSED_ROWS, or more ids than MAX_CROSSED_IDS, nothing is measured.
LEAST_AUC_OF_CROSSES, LARGE_AUC_OF_CROSSES, CERTAIN = 0.0075, 0.015, 2.0
# Effects of crosses above "slight" are "strong" if logistic regression is best with an inverse penalty of at least
# this, and otherwise "weak".
STRONG_C = 0.5
MAX_CROSSED_ROWS, MAX_CROSSED_IDS = 400_000, 2_000_000


@dataclass(frozen=True)
class FittedRegression:
    """A fitted logistic regression, the inverse penalty C that was best on valid rows, and the number of
    training rows.
    """

    # Weights of the numeric columns, then of the vectors' inputs, then of the ids, [N + K + V].
    weights: NDArray[np.float64]
    intercept: float
    inverse_penalty: float
    train_rows: int

    def logits(self, features: Any) -> NDArray[np.float32]:
        """Return the logits, float32 [n], of n rows. `features` [n, N + K + V] is sparse, from `read_features`."""
        return features @ np.float32(self.weights) + np.float32(self.intercept)


def fit(folder: Path, schema: Schema, max_rows: int = MAX_ROWS) -> FittedRegression:
    """Fit a logistic regression to the training rows of a prepared folder, and return it.

    The penalty is chosen by the log loss on the valid rows. Without valid rows it is FIRST_C. At most about `max_rows`
    training rows are used, see `most_rows`. Raise ValueError if all training rows have the same label.
    """
    features, labels, weights = read_features(folder, schema, "train", most_rows(schema, max_rows))
    if len(np.unique(labels)) < 2:
        raise ValueError(
            f"the {len(labels):,} training rows of {folder} have one class only; there is nothing to learn"
        )
    log.info("logistic regression on %s of %s training rows", f"{len(labels):,}", f"{schema.splits['train'].rows:,}")
    solver = Solver(features, labels, weights)
    if not schema.splits["valid"].rows:
        return solver.fit(FIRST_C)

    def valid_loss(fitted: FittedRegression) -> float:
        loss = float(evaluate(fitted, folder, schema, "valid").log_loss)
        log.info("inverse penalty C %.2g: log loss %.6f on valid rows", fitted.inverse_penalty, loss)
        return loss

    return fit_best(solver, valid_loss)


def fit_best(solver: Solver, valid_loss: Callable[[FittedRegression], float]) -> FittedRegression:
    """Fit with one penalty after another, in steps of STEP_OF_C, and return the fit with the smallest `valid_loss`."""
    first = best = solver.fit(FIRST_C)
    least = valid_loss(best)
    # Raise C until the loss gets worse. If the first raise already makes the loss worse, lower C in the same way.
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


def log_losses(logits: NDArray[np.float32], labels: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the log loss of each row [n]."""
    losses: NDArray[np.float64] = np.logaddexp(0.0, logits.astype(np.float64)) - labels * logits
    return losses


def fit_rows(train: Features, valid: Features) -> FittedRegression:
    """Fit to the rows `train` with the penalty whose log loss on the rows `valid` is the smallest."""
    features, labels, weights = valid

    def valid_loss(fitted: FittedRegression) -> float:
        return float(np.average(log_losses(fitted.logits(features), labels), weights=weights))

    return fit_best(Solver(*train), valid_loss)


class Solver:
    """Fits logistic regressions to the same rows with different L2 penalties, using scikit-learn.

    A fit minimizes Σ weight · log loss + |w|² / 2C, without a penalty on the intercept. Each fit starts from the
    solution of the previous one.
    """

    def __init__(self, *rows: *Features) -> None:
        from sklearn.linear_model import LogisticRegression

        self._rows = rows
        # scikit-learn compares the tolerance with the gradient of the mean loss. A categorical value that occurs in few
        # rows contributes little to this gradient. With scikit-learn's default tolerance, a fit with a changed C would
        # often end before its first step.
        self._model = LogisticRegression(
            solver="newton-cg", warm_start=True, max_iter=MAX_NEWTON_STEPS, tol=min(MOST_TOLERANCE, 1 / len(rows[1]))
        )

    def fit(self, inverse_penalty: float) -> FittedRegression:
        """Fit the logistic regression with the inverse penalty C to the rows, and return it."""
        model = self._model.set_params(C=inverse_penalty).fit(*self._rows)
        weights = model.coef_[0].astype(np.float64)
        return FittedRegression(weights, float(model.intercept_[0]), inverse_penalty, len(self._rows[1]))


def evaluate(fitted: FittedRegression, folder: Path, schema: Schema, split: str) -> Metrics:
    """Return the metrics of the regression `fitted` on all rows of a split, reading one block at a time."""
    stream = MetricStream()
    for rows in read_blocks(folder, schema, split):
        stream.add(fitted.logits(one_hot(rows, schema)), rows.labels, rows.weights)
    return stream.result()


def most_rows(schema: Schema, max_rows: int) -> int:
    """Return `max_rows`, or a smaller number if `max_rows` rows would have more than MAX_VALUES values in all."""
    return min(max_rows, MAX_VALUES // (schema.num_numeric + schema.vector_inputs + schema.num_positions))


def read_features(folder: Path, schema: Schema, split: str, max_rows: int | None = None) -> Features:
    """Return the rows of a split: their features as a sparse matrix [rows, N + K + V] (numbers, inputs of vectors, and
    a column for each id), their labels [rows], and their weights [rows], or None if they have none.

    With `max_rows`, read only about that many rows, in blocks spread over the split. Rows with weight 0 are left out.
    """
    from scipy import sparse

    blocks = list(read_spread(folder, schema, split, max_rows))
    features = sparse.vstack([one_hot(rows, schema) for rows in blocks], format="csr")
    rows = concatenate([Examples(rows.ids[:, :0], rows.numeric[:, :0], rows.labels, rows.weights) for rows in blocks])
    return features, rows.labels, rows.weights


@dataclass(frozen=True)
class CrossesChoice:
    """How strongly crosses (fields that combine other fields) affect clicks (`effects`), by which `train.auto` chooses
    settings, and a line about it for the log (`line`), or "".

    `data` is the checksum of the schema of the data on which the effects were measured, or "" if they were not
    measured. `given` is a line for the log about given settings that replace choices of `train.auto`, or "".
    """

    effects: CrossEffects = "none"
    line: str = ""
    data: str = ""
    given: str = ""

    @property
    def lines(self) -> list[str]:
        """The lines for the log."""
        return [line for line in (self.line, self.given) if line]

    def as_message(self) -> dict[str, str]:
        """Return the environment variable that passes this choice to a new process, which then need not measure the
        effects again.
        """
        return {CHOICE_OF_CROSSES: json.dumps(astuple(self))}


@dataclass(frozen=True)
class CrossesGain:
    """By how much crosses (fields that combine other fields) improve logistic regression on the valid rows.

    `auc` is the AUC with crosses minus the AUC without them. `log_loss` is the log loss without crosses minus the log
    loss with them, and `error` the standard error of this difference. `inverse_penalty` is the inverse L2 penalty C of
    the best regression with crosses.
    """

    auc: float
    log_loss: float
    error: float
    inverse_penalty: float

    @property
    def effects(self) -> CrossEffects:
        """How strongly crosses affect clicks, judged by their gain in logistic regression: none, slight, weak or
        strong.
        """
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
    folder: Path, run: Path, schema: Schema, by_effects: Callable[[CrossEffects], Config], dry: bool = False
) -> CrossesChoice:
    """Return how strongly crosses (fields that combine other fields) affect clicks, for a training in the run folder
    `run`.

    `folder` is the prepared folder. `by_effects` returns the settings that a training has for a given strength. If the
    run folder already has a run with the settings for one strength, return that strength. Ranks of an MPI job take over
    the result of the process that started them, because results may be rounded differently on other processors.
    Otherwise logistic regressions are fitted. With `dry`, no regressions are fitted, and the line for the log says that
    a training would fit them.
    """
    if started_by_mpi():
        return _received()
    if not _is_measured(schema):
        return CrossesChoice()
    for effects in get_args(CrossEffects):
        if is_run_of(run, by_effects(effects), schema):
            return CrossesChoice(effects)
    if dry:
        line = "a training fits regressions with and without the crosses first, which may change settings"
        return CrossesChoice("none", line)
    return measure_cross_effects(folder, schema)


def measure_cross_effects(folder: Path, schema: Schema) -> CrossesChoice:
    """Fit logistic regressions with and without crosses (fields that combine other fields), and return how strongly
    crosses affect clicks.

    If this process, or the sweep that started it, has a result for the same `schema`, return that without fitting.
    """
    data = checksum_of(asdict(schema))
    if (received := _received()).data == data:
        return received
    gain = _measured_gain(folder, data) if _is_measured(schema) else None
    return CrossesChoice(gain.effects, str(gain), data) if gain else CrossesChoice(data=data)


def _received() -> CrossesChoice:
    """Return how strongly crosses affect clicks, as the parent process has measured and passed on, or the default if it
    has passed nothing.
    """
    return CrossesChoice(*json.loads(os.environ.get(CHOICE_OF_CROSSES, "[]")))


@functools.cache
def _measured_gain(folder: Path, data: str) -> CrossesGain | None:
    """Return how much crosses (fields that combine other fields) of a prepared folder improve a logistic regression,
    measured in another process and cached in this one.

    `data` is the checksum of the folder's schema, so that changed data are measured again. Return None if nothing can
    be measured, for example because there are no crosses or no valid rows (`crosses_gain`).
    """
    try:
        # The other process imports MindSpore to read rows. This process may not have set the environment variables that
        # MindSpore reads at import.
        values = json.loads(run_module("app", "baseline", str(folder), "--crosses", "--json"))
    except ValueError as error:
        raise ValueError(f"the crosses of {folder} could not be tried (train.auto): {error}") from None
    return CrossesGain(**values) if values else None


def _is_measured(schema: Schema) -> bool:
    splits, has_crosses = schema.splits, any(field.cross for field in schema.categorical)
    is_small = splits["train"].rows <= MAX_CROSSED_ROWS and schema.vocabulary_size <= MAX_CROSSED_IDS
    return has_crosses and is_small and splits["train"].rows > 0 and splits["valid"].rows > 0


def crosses_gain(folder: Path, schema: Schema) -> CrossesGain | None:
    """Return by how much the best logistic regression with crosses (fields that combine other fields) is better than
    the best one without them, on the valid rows.

    Return None if there are no crosses or no valid rows, if all rows of a split have the same label, or if the data is
    larger than MAX_CROSSED_ROWS or MAX_CROSSED_IDS. Raise ValueError or FileNotFoundError if the folder cannot be read.
    """
    from sklearn.metrics import roc_auc_score

    if not _is_measured(schema):
        return None
    max_rows = most_rows(schema, MAX_CROSSED_ROWS)
    train, valid = (read_features(folder, schema, split, max_rows) for split in ("train", "valid"))
    _, labels, weights = valid
    if len(np.unique(train[1])) < 2 or len(np.unique(labels)) < 2:
        return None
    with_crosses = fit_rows(train, valid)
    crossed = with_crosses.logits(valid[0])
    is_cross = np.zeros(train[0].shape[1], bool)
    first = len(is_cross) - schema.vocabulary_size  # Column of the id 0.
    ranges = [ids for field in schema.categorical if field.cross for ids in (field.oov_ids, *field.id_ranges)]
    for begin, end in ranges:
        is_cross[first + begin : first + end] = True
    for features, *_ in (train, valid):
        features.data[is_cross[features.indices]] = 0
    plain = fit_rows(train, valid).logits(valid[0])
    rows = np.ones(len(plain)) if weights is None else weights.astype(np.float64)
    lowered = log_losses(plain, labels) - log_losses(crossed, labels)
    mean = float(np.average(lowered, weights=rows))
    error = float(np.sqrt(rows**2 @ (lowered - mean) ** 2) / rows.sum())
    auc, plain_auc = (roc_auc_score(labels, logits, sample_weight=weights) for logits in (crossed, plain))
    return CrossesGain(float(auc - plain_auc), mean, error, with_crosses.inverse_penalty)
