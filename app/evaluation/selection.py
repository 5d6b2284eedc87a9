"""Which evaluation is the best so far, and whether the run goes on: keep-best and early stop."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from app.config.run import EvalOptions
from app.evaluation.metrics import LOWER_IS_BETTER, Metrics, merit


@dataclass
class SelectionState:
    """What a resumed run has to know of the evaluations before; a checkpoint keeps it.

    `best` is the best value of the metric, `reference` the last one that counted as an improvement; -1 is no step.
    """

    metric: str
    best: float | None = None
    best_step: int = -1
    reference: float | None = None
    since_reference: int = 0  # evaluations
    last_step: int = -1  # evaluated


class Selection:
    """Takes each evaluation's metrics; says which is the best and when patience is over."""

    def __init__(self, options: EvalOptions) -> None:
        self._options = options
        self._state = SelectionState(options.metric)

    @property
    def last_step(self) -> int:
        """The last step that was evaluated; -1 before the first."""
        return self._state.last_step

    @property
    def is_over(self) -> bool:
        """Whether as many evaluations as `patience` did not improve the metric."""
        return 0 < self._options.patience <= self._state.since_reference

    @property
    def reason(self) -> str:
        """Why the run ends early, in words."""
        state, options = self._state, self._options
        way = "fallen below" if state.metric in LOWER_IS_BETTER else "risen above"
        by = f" by more than {options.min_improvement:g}" if options.min_improvement else ""
        return (
            f"{state.metric} on valid has not {way} {state.reference:.6f}{by} for {state.since_reference} "
            f"evaluations (eval.patience={options.patience}); the best is {state.best:.6f}, of step {state.best_step}"
        )

    def update(self, metrics: Metrics, step: int) -> bool:
        """Take in an evaluation after `step` steps; whether it is the best so far.

        Raises ValueError where the rows do not have the metric.
        """
        state, value = self._state, float(asdict(metrics)[self._options.metric])
        if math.isnan(value):
            raise ValueError(
                f"eval.metric={state.metric} is undefined on valid: in no group of rows that it ranks are there both "
                "clicks and other rows; choose eval.metric=log_loss, or another eval.group_field"
            )
        is_best = state.best is None or merit(state.metric, value) > merit(state.metric, state.best)
        if is_best:
            state.best, state.best_step = value, step
        if state.reference is None or self._gain(value, state.reference) > self._options.min_improvement:
            state.reference, state.since_reference = value, 0
        else:
            state.since_reference += 1
        state.last_step = step
        return is_best

    def _gain(self, value: float, reference: float) -> float:
        return merit(self._state.metric, value) - merit(self._state.metric, reference)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return asdict(self._state)

    def load_state(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint's state; of another metric's only the last evaluated step counts."""
        state = SelectionState(**{"metric": self._options.metric, **saved})
        if state.metric != self._options.metric:
            state = SelectionState(self._options.metric, last_step=state.last_step)
        self._state = state
