"""What all contenders share: the columns of the log, the split of its rows, and the form of a result.

Each contender is a program `python -m benchmarks.end_to_end.NAME LOG`, whose last line is the JSON of a `Result`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.split import RowsToSplit, make_split
from data_prep.prepared.schema import SPLITS
from data_prep.prepared.truth import area_under_curve

INTEGERS, CATEGORIES = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
COLUMNS = ["label", *INTEGERS, *CATEGORIES]
MIN_COUNT = 10  # A value in fewer training rows gets no id of its own, as in `data_prep prepare` with this min_count.


@dataclass
class Result:
    """AUC and log loss of the test rows. `valid` has, if the program evaluates on valid several times, for each
    evaluation its time in seconds since 1970 and its AUC.
    """

    auc: float
    log_loss: float
    valid: list[tuple[float, float]] = field(default_factory=list)


def splits(num_rows: int) -> dict[str, np.ndarray]:
    """Return the numbers of the rows of train, valid and test, as `data_prep prepare` divides a log by default."""
    assigned = make_split(PrepareOptions(), lambda: 0, lambda _: []).assign(RowsToSplit(np.arange(num_rows)))
    return {name: np.flatnonzero(assigned == place) for place, name in enumerate(SPLITS)}


def measure(probabilities: np.ndarray, labels: np.ndarray) -> Result:
    """Return AUC and log loss of some click probabilities [n], given the labels [n]."""
    clicked = labels > 0
    likelihood = np.clip(np.where(clicked, probabilities, 1 - probabilities).astype(np.float64), 1e-15, 1)
    return Result(area_under_curve(probabilities, clicked), float(-np.log(likelihood).mean()))


class Stopping:
    """Early stopping by log loss on valid.

    `best` is what the argument `state` of `is_over` returned at the evaluation with the lowest log loss so far.
    """

    def __init__(self, patience: int, clock: Callable[[], float] = time.time) -> None:
        self.best: object = None
        self.valid: list[tuple[float, float]] = []
        self._patience, self._least, self._worse, self._clock = patience, np.inf, 0, clock

    def is_over(self, result: Result, state: Callable[[], object]) -> bool:
        """Record an evaluation on valid. Return True if the last `patience` evaluations did not lower the log loss.

        If this one did, `state` is called, and returns a copy of the model to keep as the best.
        """
        self.valid.append((self._clock(), result.auc))
        self._worse += 1
        if result.log_loss < self._least:
            self.best, self._least, self._worse = state(), result.log_loss, 0
        return self._worse >= self._patience


def run(program: Callable[[Path], Result]) -> None:
    """Run a contender on the log that the command line names, and print its result."""
    print(json.dumps(asdict(program(Path(sys.argv[1])))))
