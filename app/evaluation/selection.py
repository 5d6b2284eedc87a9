"""Decide which evaluation of a training is the best so far, and when to stop the training early."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from app.config.config import EvalOptions
from app.evaluation.metrics import METRICS, Metrics, as_score
from data_prep.prepared.schema import DataFile


@dataclass
class SelectionState:
    """The state of a `Selection` (the best evaluation so far and the improvements since), which a checkpoint stores for
    resumed runs.

    `best` is the best value of the metric so far, and `reference` the last value that counted as an improvement for
    early stopping. A step of -1 means that there was no evaluation yet. `basis` identifies the rows on which the values
    were measured: the checksums of the files of the split valid and, for a metric of groups, the setting
    `eval.group_field`. Values with a different basis are not compared.
    """

    metric: str
    basis: list[str] = field(default_factory=list)
    best: float | None = None
    best_step: int = -1
    reference: float | None = None
    since_reference: int = 0  # Number of evaluations after the one whose value is `reference`.
    last_step: int = -1  # Step of the last evaluation.


class Selection:
    """Decides after each evaluation whether the model is the best so far, and whether the training stops early
    (`is_over`).
    """

    def __init__(self, options: EvalOptions, valid_files: Sequence[DataFile] = ()) -> None:
        """Start before the first evaluation. `valid_files` are the files of the split valid, on whose rows the model is
        evaluated.
        """
        self._options = options
        of_groups = [options.group_field] if METRICS[options.metric].in_groups else []
        self._state = SelectionState(options.metric, [*(file.checksum for file in valid_files), *of_groups])

    @property
    def last_step(self) -> int:
        """Step of the last evaluation, -1 before the first one."""
        return self._state.last_step

    @property
    def is_over(self) -> bool:
        """True if none of the last `patience` evaluations improved the metric, so that the training stops early."""
        return 0 < self._options.patience <= self._state.since_reference

    @property
    def reason(self) -> str:
        """Message for the log that says why the training ends early: how long the metric has not improved. It is only
        valid if `is_over` is True.
        """
        state, options = self._state, self._options
        way = "fallen below" if METRICS[state.metric].better == "lower" else "risen above"
        return (
            f"{state.metric} on valid has not {way} {state.reference:.6f} for {state.since_reference} "
            f"evaluations (eval.patience={options.patience}); the best is {state.best:.6f}, of step {state.best_step}"
        )

    def update(self, metrics: Metrics, step: int, is_extra: bool = False) -> bool:
        """Add the `metrics` of an evaluation after `step` steps. Return True if it is the best so far.

        `is_extra` marks an evaluation that is only made because `train.steps` ends the training at this step. It does
        not count for `patience`, so that a run that is stopped and resumed ends at the same step as a run that was
        never stopped.

        Raise ValueError if the metric is undefined on the rows of valid.
        """
        state, value = self._state, float(asdict(metrics)[self._options.metric])
        if math.isnan(value):
            raise ValueError(
                f"eval.metric={state.metric} is undefined on valid: no group of rows that it ranks has both clicks and "
                "other rows, and values without an id of their own are none; choose eval.metric=log_loss, another "
                "eval.group_field, or the kind id for its column"
            )
        score = as_score(state.metric, value)
        is_best = state.best is None or score > as_score(state.metric, state.best)
        if is_best:
            state.best, state.best_step = value, step
        state.last_step = step
        if is_extra:
            return is_best
        if state.reference is None or score > as_score(state.metric, state.reference):
            state.reference, state.since_reference = value, 0
        else:
            state.since_reference += 1
        return is_best

    def state(self) -> dict[str, Any]:
        """Return the state of this selection as a mapping (the fields of `SelectionState` by name). A checkpoint stores
        the mapping, and `load_state` takes it.
        """
        return asdict(self._state)

    def load_state(self, saved: dict[str, Any]) -> None:
        """Continue from the state that a checkpoint has stored.

        If the stored values are of another metric, or were measured on other rows or groups (`basis`), only the stored
        `last_step` is used.
        """
        state = SelectionState(**{**asdict(self._state), **saved})
        if (state.metric, state.basis) != (self._state.metric, self._state.basis):
            state = replace(self._state, last_step=state.last_step)
        self._state = state
