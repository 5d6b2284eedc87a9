"""Pairs of fields whose cross helps a logistic regression, the wide part: `python -m data_prep suggest-crosses`.

A regression on the fields alone is fitted to one half of the training rows. If its predictions on the other half are
wrong for a pair of values, a cross can correct them: each pair gets the weight of one Newton step, sum(y - p) / (sum(p
(1 - p)) + 1 / C). The gain of two fields is by how much these weights lower the log loss on valid rows. Values out of
vocabulary count for nothing, as a pair of them is too rare for an id of its own. The pairs of a row with a list are
averaged or summed as its cross would be.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.kernels.lists import combinations, shorten
from data_prep.prepared.examples import Examples, concatenate
from data_prep.prepared.features import one_hot, read_spread
from data_prep.prepared.schema import NO_ID, Schema, read_schema

INVERSE_PENALTY = 0.05  # C of the regression and of the pairs' weights
MAX_ROWS = 400_000  # of training, and of valid
LEVEL = 0.05  # the chance that any pair that does not help is suggested
MOST_SUGGESTED = 5
MOST_PAIRS = 40  # of a row with lists, so that those of all rows fit into memory


@dataclass(frozen=True)
class Gain:
    """The mean log loss on valid rows that a cross takes away, its standard error, and whether that is no chance."""

    fields: tuple[str, str]
    log_loss: float
    error: float
    is_certain: bool


class _Columns(NamedTuple):
    """The columns of ids of a field, and whether it is a mean of several values."""

    ids: slice
    is_mean: bool


@dataclass(frozen=True)
class _Scored:
    """Rows [n] with the regression's log odds. `weights` are all 1 if the rows have none."""

    ids: NDArray[Any]
    labels: NDArray[Any]
    weights: NDArray[Any]
    logits: NDArray[Any]
    known: NDArray[np.bool_]  # [n, P]: not out of vocabulary


def find_gains(folder: Path) -> list[Gain]:
    """Return the gain of each pair of fields that is not crossed yet, the largest first.

    Raises ValueError for a folder without valid rows, with rows of one class, with fewer than two such fields, or with
    2**31 ids or more.
    """
    schema = read_schema(folder)
    ends = np.cumsum([field.max_length for field in schema.categorical], dtype=int)
    columns = {
        field.name: _Columns(slice(end - field.max_length, end), field.max_length > 1 and field.pool == "mean")
        for field, end in zip(schema.categorical, ends.tolist(), strict=True)
        if not field.cross
    }
    if schema.vocabulary_size >= 2**31:
        raise ValueError(f"{folder} has {schema.vocabulary_size:,} ids; pairs are counted of fewer than 2,147,483,648")
    if len(columns) < 2:
        raise ValueError(f"{folder} has {len(columns)} categorical fields; a cross needs two")
    second, valid = _score(folder, schema)
    crossed = [set(field.cross) for field in schema.categorical]
    pairs = [pair for pair in itertools.combinations(columns, 2) if set(pair) not in crossed]
    if not pairs:
        raise ValueError(f"{folder} has a cross of every pair of its fields already")
    least = NormalDist().inv_cdf(1 - LEVEL / len(pairs))  # Bonferroni's correction
    gains = []
    for pair in pairs:
        lowered = _lowered_loss(second, valid, columns[pair[0]], columns[pair[1]])
        total = valid.weights.sum()
        mean = float(valid.weights @ lowered / total)
        error = float(np.sqrt(valid.weights**2 @ (lowered - mean) ** 2) / total)
        gains.append(Gain(pair, mean, error, mean > least * error))
    return sorted(gains, key=lambda gain: -gain.log_loss)


def _score(folder: Path, schema: Schema) -> tuple[_Scored, _Scored]:
    """Fit to the first half of the training rows, which are shuffled. Score the second half and the valid rows."""
    from sklearn.linear_model import LogisticRegression  # late: the import takes a second

    for split in ("train", "valid"):
        if split not in schema.splits or not schema.splits[split].rows:
            raise ValueError(f"{folder} has no rows in split {split!r}; crosses are fitted to train, measured on valid")
    train = concatenate(list(read_spread(folder, schema, "train", MAX_ROWS)))
    valid = concatenate(list(read_spread(folder, schema, "valid", MAX_ROWS)))
    if not len(valid):
        raise ValueError(f"{folder} has no row in split 'valid' with a weight above 0; crosses are measured on valid")
    first, second = train.take(slice(len(train) // 2)), train.take(slice(len(train) // 2, None))
    if len(np.unique(first.labels)) < 2:
        raise ValueError(f"the {len(first):,} training rows read of {folder} have one class only")
    model = LogisticRegression(C=INVERSE_PENALTY, max_iter=200)
    model.fit(one_hot(first, schema), first.labels, first.weights)
    out = np.array([field.oov_ids for field in schema.categorical for _ in range(field.max_length)])

    def scored(rows: Examples) -> _Scored:
        logits = model.decision_function(one_hot(rows, schema)).astype(np.float64)
        weights = np.ones(len(rows)) if rows.weights is None else rows.weights.astype(np.float64)
        known = (rows.ids < out[:, 0]) | (rows.ids >= out[:, 1])
        return _Scored(rows.ids.astype(np.int64), rows.labels, weights, logits, known)

    return scored(second), scored(valid)


def _lowered_loss(fitted: _Scored, valid: _Scored, one: _Columns, other: _Columns) -> NDArray[np.float64]:
    """Return by how much the weights of a pair's values, fitted to `fitted`, lower the log loss of each valid row."""
    rows, pairs, shares = _pairs(fitted, one, other)
    values, places = np.unique(pairs, return_inverse=True)
    probabilities = (1 / (1 + np.exp(-fitted.logits)))[rows]
    weights = fitted.weights[rows] * shares
    wrong = np.bincount(places, weights * (fitted.labels[rows] - probabilities))
    curvature = np.bincount(places, weights * shares * probabilities * (1 - probabilities))
    steps = np.where(values < 0, 0.0, wrong / (curvature + 1 / INVERSE_PENALTY))
    rows, pairs, shares = _pairs(valid, one, other)
    index = np.minimum(np.searchsorted(values, pairs), len(values) - 1)
    moves = np.where(values[index] == pairs, steps[index], 0.0) * shares
    moved = valid.logits + np.bincount(rows, moves, len(valid.logits))
    return np.logaddexp(0, valid.logits) - np.logaddexp(0, moved) + valid.labels * (moved - valid.logits)


def _pairs(
    rows: _Scored, one: _Columns, other: _Columns
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return of each pair [M] of values of two fields its row, its value (-1: one is out of vocabulary), its share."""
    fields = (one, other)
    lengths = np.array([np.count_nonzero(rows.ids[:, field.ids] != NO_ID, axis=1) for field in fields])
    num_values = shorten(lengths, MOST_PAIRS)
    of_row, places = combinations(num_values)
    at = [(of_row, field.ids.start + place) for field, place in zip(fields, places, strict=True)]
    values = np.where(rows.known[at[0]] & rows.known[at[1]], rows.ids[at[0]] << 32 | rows.ids[at[1]], -1)
    is_mean = one.is_mean or other.is_mean
    return of_row, values, 1 / num_values.prod(axis=0)[of_row] if is_mean else np.ones(len(of_row))


def describe_gains(gains: list[Gain], most: int, crosses: Sequence[tuple[str, ...]]) -> str:
    """Return a table of the best pairs, and the setting of those that help for certain beside `crosses` of the folder.

    The setting is quoted as a shell needs it.
    """
    lines = [
        f"the best {min(most, len(gains))} of {len(gains)} pairs, by what a cross takes from the log loss of valid"
    ]
    lines += [
        f"  {' * '.join(gain.fields):40} {gain.log_loss:+.6f} ± {gain.error:.6f}{'  helps' * gain.is_certain}"
        for gain in gains[:most]
    ]
    certain = [gain.fields for gain in gains if gain.is_certain][:MOST_SUGGESTED]
    if not certain:
        more, advice = (" further", "add none") if crosses else ("", "leave crosses out")
        return "\n".join([*lines, f"no{more} pair helps by more than chance: {advice}"])
    of_pairs = ",".join(f"[{','.join(pair)}]" for pair in (*crosses, *certain))
    setting = shlex.quote(f"prepare.crosses=[{of_pairs}]")
    return "\n".join([*lines, f"prepare again with: {setting}", "and compare: python -m app baseline"])
