"""LightGBM on a prepared folder: the integers and, for each field, an ordered target statistic and a count.

The click rate of a value counts only the rows before a training row, as CatBoost's does (Prokhorenkova et al., 2018,
section 3.2), so that no row sees its own label. Rows of another split see all training rows.
Letters: n training rows, m rows of the other split, F fields, C integers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import lightgbm
import numpy as np

from benchmarks.harness.commands import read_rows
from data_prep.prepared.schema import read_schema

ROUNDS_PER_EPOCH = 60  # Rounds of boosting that count as an epoch, after which the scores are taken.


@dataclass(frozen=True)
class TreeSettings:
    """LightGBM's settings, and the number of rows with which a value's own click rate weighs as much as the mean."""

    num_leaves: int
    prior_rows: float
    learning_rate: float = 0.05
    min_data_in_leaf: int = 100
    feature_fraction: float = 0.5


def train(folder: Path, split: str, settings: TreeSettings, epochs: int, seed: int, threads: int) -> np.ndarray:
    """Train LightGBM. Return log odds [epochs, rows] of the rows of `split` after each ROUNDS_PER_EPOCH rounds."""
    schema = read_schema(folder)
    rows, judged = read_rows(folder, schema, "train"), read_rows(folder, schema, split)
    of_rows, of_judged = _statistics(rows.ids, rows.labels, judged.ids, settings.prior_rows)
    parameters = asdict(settings) | {"objective": "binary", "num_threads": threads, "seed": seed}
    parameters |= {"deterministic": True, "verbosity": -1}
    del parameters["prior_rows"]
    data = lightgbm.Dataset(np.hstack([rows.numeric, of_rows]), rows.labels)
    booster = lightgbm.train(parameters, data, epochs * ROUNDS_PER_EPOCH)
    features = np.hstack([judged.numeric, of_judged])
    after = range(ROUNDS_PER_EPOCH, epochs * ROUNDS_PER_EPOCH + 1, ROUNDS_PER_EPOCH)
    return np.array([booster.predict(features, raw_score=True, num_iteration=rounds) for rounds in after])


def _statistics(
    ids: np.ndarray, labels: np.ndarray, judged: np.ndarray, prior_rows: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return click rates and log counts of the rows' values, [n, 2 F] for training rows and [m, 2 F] for judged rows.

    They are computed from ids [n, F] and [m, F] and the labels [n] of the training rows.
    """
    statistics: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    num_ids = max(int(ids.max()), int(judged.max())) + 1
    mean = labels.mean()
    for field in range(ids.shape[1]):
        order = np.argsort(ids[:, field], kind="stable")
        ranked, clicks = ids[order, field], np.cumsum(labels[order])
        first = np.searchsorted(ranked, ranked)  # For each row, the place of the first row with the same value.
        rows_before, clicks_before = np.empty(len(ids)), np.empty(len(ids))
        rows_before[order] = np.arange(len(ids)) - first
        clicks_before[order] = clicks - labels[order] - (clicks[first] - labels[order][first])
        rows_of = np.bincount(ids[:, field], minlength=num_ids)[judged[:, field]]
        clicks_of = np.bincount(ids[:, field], labels, num_ids)[judged[:, field]]
        of_splits = zip(statistics, (rows_before, rows_of), (clicks_before, clicks_of), strict=True)
        for columns, number, positive in of_splits:
            columns += [(positive + prior_rows * mean) / (number + prior_rows), np.log1p(number)]
    return np.stack(statistics[0], axis=1), np.stack(statistics[1], axis=1)
