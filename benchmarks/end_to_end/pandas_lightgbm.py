"""pandas and LightGBM: categories as pandas categories, which LightGBM splits itself, and early stopping on valid."""

from __future__ import annotations

from pathlib import Path

import lightgbm
import pandas as pd

from benchmarks.end_to_end.columns import CATEGORIES, COLUMNS, Result, measure, run, splits

PARAMETERS = {"objective": "binary", "learning_rate": 0.1, "num_leaves": 63, "seed": 1, "verbosity": -1}
ROUNDS, PATIENCE = 1000, 30


def train(log: Path) -> Result:
    """Train on the training rows of a log, and return the metrics of the test rows."""
    rows = pd.read_csv(log, sep="\t", names=COLUMNS, dtype=dict.fromkeys(CATEGORIES, "category"), quoting=3)
    parts = {name: rows.iloc[part] for name, part in splits(len(rows)).items()}
    data = {name: lightgbm.Dataset(part.drop(columns="label"), part["label"]) for name, part in parts.items()}
    early = lightgbm.early_stopping(PATIENCE, verbose=False)
    model = lightgbm.train(PARAMETERS, data["train"], ROUNDS, [data["valid"]], callbacks=[early])
    scores = model.predict(parts["test"].drop(columns="label"), num_iteration=model.best_iteration)
    return measure(scores, parts["test"]["label"].to_numpy())


if __name__ == "__main__":
    run(train)
