"""scikit-learn: FeatureHasher over all cells, integers as the whole part of their logarithm, and SGDClassifier."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import SGDClassifier

from benchmarks.end_to_end.columns import COLUMNS, INTEGERS, Result, Stopping, measure, run, splits

MOST_EPOCHS, PATIENCE = 20, 2
PENALTY = 1e-4  # The best of 1e-6, 1e-5 and 1e-4 on valid of 400,000 synthetic rows, with averaged weights.


def tokens(line: str) -> list[str]:
    """Return a token for each cell after the label: the name of the column and the value."""
    cells = line.split("\t")[1:]
    for place, cell in enumerate(cells[: len(INTEGERS)]):
        if cell and (number := int(cell)) > 2:
            cells[place] = f"log {int(np.log(number) ** 2)}"
    return [f"{name}={cell}" for name, cell in zip(COLUMNS[1:], cells, strict=True)]


def train(log: Path) -> Result:
    """Train on the training rows of a log, and return the metrics of the test rows."""
    lines = log.read_text(encoding="utf-8").splitlines()
    features = FeatureHasher(2**20, input_type="string", dtype=np.float32).transform(map(tokens, lines))
    labels = np.array([line[0] == "1" for line in lines])
    parts = splits(len(lines))
    model, stopping = SGDClassifier(loss="log_loss", alpha=PENALTY, average=True, random_state=1), Stopping(PATIENCE)

    def scored(split: str) -> Result:
        return measure(model.predict_proba(features[parts[split]])[:, 1], labels[parts[split]])

    for _ in range(MOST_EPOCHS):
        model.partial_fit(features[parts["train"]], labels[parts["train"]], classes=[False, True])
        if stopping.is_over(scored("valid"), lambda: copy.deepcopy(model)):
            break
    model = stopping.best
    return scored("test")


if __name__ == "__main__":
    run(train)
