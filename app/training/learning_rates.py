"""Compute learning rates from the number of the step, and for a plateau schedule also from the earlier evaluations.

Every optimizer has its own schedule: `deep_optimizer: {schedule: {name: cosine, decay_steps: 10000}}`. Steps are
numbered from 1.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from app.checkpoint.manifest import Manifest
from app.config.optimizer_settings import DeepOptimizer, PlateauSchedule, Schedule, TowerOptimizer, WideOptimizer
from app.run.identity import read_config
from app.tables.backends import fastest_history
from app.tables.interface import DEEP, WIDE, TableRates
from app.tables.optimizers import RunningMean, StepHistory, history_of_steps

STEPS_BEFORE = "steps_before"
# Constants of plateau schedules, as in the benchmark BARS. A rise of the metric by at most LEAST_GAIN is no
# improvement, and the learning rate falls no further than to LEAST_RATE.
LEAST_GAIN, LEAST_RATE = 1e-6, 1e-6


@dataclass
class PlateauState:
    """State of a plateau schedule, which lowers a learning rate when the metric stops improving.

    `best` is the best score so far. `bad_evaluations` counts the evaluations since the best one, or since the last fall
    of the learning rate. `drops` lists the steps after which the learning rate fell.
    """

    best: float | None = None
    bad_evaluations: int = 0
    drops: list[int] = field(default_factory=list)


class LearningRate:
    """Learning rate of one optimizer as a function of the step, by its base rate and its schedule."""

    def __init__(self, base: float, schedule: Schedule) -> None:
        self.base = base
        self.schedule = schedule
        self.plateau = PlateauState()

    def __call__(self, step: int) -> float:
        """Return the learning rate of step number `step` (1, 2, …), which may be a step that was taken already."""
        rate = self.base * self.schedule.factor(step)
        if isinstance(self.schedule, PlateauSchedule):
            num_drops = bisect.bisect_left(self.plateau.drops, step)
            least = min(self.base, LEAST_RATE)
            return max(rate * self.schedule.drop_factor**num_drops, least) if num_drops else rate
        return rate

    def after_evaluation(self, merit: float, step: int) -> bool:
        """Pass the result of an evaluation after `step` to a plateau schedule: the score `merit`, of which larger is
        better.

        Return True if the learning rate falls after this step. Other schedules ignore evaluations and return False.
        """
        if not isinstance(self.schedule, PlateauSchedule):
            return False
        state = self.plateau
        if state.best is None or merit > state.best + LEAST_GAIN:
            state.best, state.bad_evaluations = merit, 0
            return False
        state.bad_evaluations += 1
        if state.bad_evaluations < self.schedule.patience:
            return False
        state.bad_evaluations = 0
        state.drops.append(step)
        return not math.isclose(self(step + 1), self(step))


class LearningRates:
    """Learning rates of the three optimizers, by the names wide, deep and tower, with the state that checkpoints store.

    After a warm start with optimizer state, `steps_before` is the number of steps that the trained model had taken.
    """

    def __init__(self, optimizers: Mapping[str, WideOptimizer | DeepOptimizer | TowerOptimizer]) -> None:
        """`optimizers` maps wide, deep and tower to the settings of the optimizer (`Config.optimizers`)."""
        self.groups = {group: LearningRate(each.learning_rate, each.schedule) for group, each in optimizers.items()}
        self.steps_before = 0
        self._optimizers = optimizers

    def at(self, step: int) -> dict[str, float]:
        """Return the learning rates of the three optimizers at step number `step`, by the names wide, deep and
        tower.
        """
        return {group: rate(step) for group, rate in self.groups.items()}

    def after_evaluation(self, metric: str, merit: float, step: int) -> list[str]:
        """Pass the result of an evaluation after `step` to the plateau schedules: the score `merit`, of which larger is
        better.

        Return a log line for each learning rate that falls. `metric` is the name of the metric, for these lines.
        """
        return [
            f"{group} learning rate {rate(step):g} -> {rate(step + 1):g} ({metric} has not improved)"
            for group, rate in self.groups.items()
            if rate.after_evaluation(merit, step)
        ]

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores: the state of each plateau schedule, and unless it is 0 `steps_before` (the
        steps that a trained model had taken before this run started from it).
        """
        plateaus = {
            group: asdict(rate.plateau)
            for group, rate in self.groups.items()
            if isinstance(rate.schedule, PlateauSchedule)
        }
        return plateaus | ({STEPS_BEFORE: self.steps_before} if self.steps_before else {})

    def load_state(self, saved: dict[str, Any]) -> None:
        """Restore the schedules from `saved`, a result of `state` that a checkpoint has stored. Plateau schedules that
        are missing in it start anew.
        """
        self.steps_before = saved.get(STEPS_BEFORE, 0)
        for group, rate in self.groups.items():
            rate.plateau = PlateauState(**saved.get(group, {}))

    def of_tables(self) -> TableRates:
        """Return the learning rates of the wide and the deep table as functions of the step. If a plateau schedule
        lowers a rate later, the functions return the lowered rate.

        A table computes Adam's bias correction as if the moments had been 0 before step 1. After a warm start with
        moments, the deep table's rate is scaled so that the result equals Adam's correction after all steps of both
        runs. (Adam's epsilon is not scaled. It acts as in the first steps of a run, which matters only for rows with
        very small gradients.)
        """
        correction = self._optimizers[DEEP].correction

        def deep_rate(step: int) -> float:
            rate, before = self.groups[DEEP](step), self.steps_before
            return rate * (correction(before + step) / correction(step)) if before else rate

        return {WIDE: self.groups[WIDE], DEEP: deep_rate}


def running_mean(manifest: Manifest) -> RunningMean | None:
    """Return the settings of the running average of weights (train.ema_decay) that the checkpoint's rows store beside
    each weight, or None if they store none. `manifest` describes the checkpoint.
    """
    decay = read_config(manifest.config, where="the checkpoint").train.ema_decay
    return RunningMean(decay) if decay else None


def step_history(manifest: Manifest) -> StepHistory | None:
    """Return the steps that the optimizer `adam` had taken when the checkpoint of `manifest` was written.

    `adam` moves every deep row at every step, but postpones the steps of rows that are not in the batch. With the
    result, the rows of the checkpoint can take their postponed steps. Return None if the deep table has another
    optimizer, which updates only the rows of a batch.
    """
    config = read_config(manifest.config, where="the checkpoint")
    rates = LearningRates(config.optimizers)
    rates.load_state(manifest.schedules)
    rate = rates.of_tables()[DEEP]
    return history_of_steps(config.deep_optimizer, config.loss.l2_coef, rate, manifest.step, fastest_history())
