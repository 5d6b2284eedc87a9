"""Measure how much crosses improve logistic regression, by which `train.auto` decides how strong their effects are.

A cross is a field whose values are combinations of the values of other fields.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from app.config.config import Config
from app.distributed.mpirun import CHOICE_OF_CROSSES
from app.run.decision import is_run_of
from app.training.auto.regression import fit_rows, log_losses, most_rows, read_features
from common.process import run_module, started_by_mpi
from data_prep.prepared.schema import Schema, checksum_of

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
