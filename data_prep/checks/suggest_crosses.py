"""Find pairs of fields whose cross helps the wide part of the model, for the command `suggest-crosses`.

A logistic regression on the single fields is fitted to one half of the training rows. It predicts the probabilities p
of the other half, whose labels are y. If p is wrong for the rows with a certain pair of values, a cross can correct
them: each pair of values gets the weight of one Newton step, sum(y - p) / (sum(p (1 - p)) + 1 / C). The gain of a pair
of fields is the amount by which these weights lower the log loss on valid rows.

Out-of-vocabulary values get no weight, because a pair with such a value is too rare to get an id. In a row with lists,
the weights of all pairs of values are averaged or summed, as the model does for a cross with a list.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.packages import python_command
from data_prep.kernels.strings import combinations, shorten
from data_prep.prepared.examples import Examples, concatenate, one_hot
from data_prep.prepared.reader import read_spread
from data_prep.prepared.schema import NO_ID, CategoricalField, Schema, read_schema

# Inverse of the L2 penalty (scikit-learn's C), both of the logistic regression on single values and of the weight that
# is then estimated for each pair of values.
INVERSE_PENALTY = 0.05
MAX_ROWS = 400_000  # At most this many rows of the split train are read, and at most as many rows of valid.
# Of each split, at most so many rows are read that their vectors have this many components in all. A component takes 4
# bytes in the rows, and 12 in the regression.
MAX_COMPONENTS = 1 << 26
# Significance level of the gains: if no pair of fields helps, the probability that one is suggested nevertheless is at
# most this.
LEVEL = 0.05
MOST_SUGGESTED = 5  # Maximum number of pairs of fields in the suggested setting.
# Maximum number of pairs of values that are used from one row whose fields are lists. The limit bounds the memory for
# the pairs of all rows.
MOST_PAIRS = 40


@dataclass(frozen=True)
class Gain:
    """How much a cross of two fields, which has a weight for each pair of their values, lowers the log loss."""

    fields: tuple[str, str]
    log_loss: float  # Amount by which the cross lowers the mean log loss on valid rows.
    error: float  # Standard error of the number `log_loss`.
    is_certain: bool  # True if the gain is statistically significant.


# Which of the P ids of a row belong to one field, and the field.
FieldColumns = tuple[slice, CategoricalField]


@dataclass(frozen=True)
class _Scored:
    """Rows [n] of a prepared folder, with the log odds of a click that the logistic regression predicts for each."""

    ids: NDArray[Any]
    labels: NDArray[Any]
    weights: NDArray[Any]  # Weight of each row, which is 1 if the rows have no weights.
    logits: NDArray[Any]  # Log odds of a click that the regression predicts, by row.


def find_gains(folder: Path) -> list[Gain]:
    """Return the gain of a cross for each pair of fields that has no cross yet, the largest gain first.

    Raise ValueError if the prepared folder has no valid rows, has training rows of one class only, has fewer than two
    fields, has a cross of every pair already, or has 2**31 ids or more.
    """
    schema = read_schema(folder)
    columns = field_columns(schema)
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
        lowered = _lowered_loss(second, valid, [columns[name] for name in pair])
        total = valid.weights.sum()
        mean = float(valid.weights @ lowered / total)
        error = float(np.sqrt(valid.weights**2 @ (lowered - mean) ** 2) / total)
        gains.append(Gain(pair, mean, error, mean > least * error))
    return sorted(gains, key=lambda gain: -gain.log_loss)


def field_columns(schema: Schema) -> dict[str, FieldColumns]:
    """Return which ids of a row belong to each field that is no cross, by the field's name."""
    ends = np.cumsum([field.max_length for field in schema.categorical], dtype=int).tolist()
    fields = zip(schema.categorical, ends, strict=True)
    return {field.name: (slice(end - field.max_length, end), field) for field, end in fields if not field.cross}


def _score(folder: Path, schema: Schema) -> tuple[_Scored, _Scored]:
    """Fit the logistic regression on single fields to the first half of the training rows that are read.

    Return the second half and the valid rows, each with the log odds that the regression predicts for them. The
    training rows are shuffled, so both halves have the same distribution.
    """
    from sklearn.linear_model import LogisticRegression  # Imported late, because the import takes a second.

    for split in ("train", "valid"):
        if split not in schema.splits or not schema.splits[split].rows:
            raise ValueError(f"{folder} has no rows in split {split!r}; crosses are fitted to train, measured on valid")
    max_rows = min(MAX_ROWS, MAX_COMPONENTS // max(schema.vector_inputs, 1))
    train = concatenate(list(read_spread(folder, schema, "train", max_rows)))
    valid = concatenate(list(read_spread(folder, schema, "valid", max_rows)))
    if not len(valid):
        raise ValueError(f"{folder} has no row in split 'valid' with a weight above 0; crosses are measured on valid")
    first, second = train.take(slice(len(train) // 2)), train.take(slice(len(train) // 2, None))
    if len(np.unique(first.labels)) < 2:
        raise ValueError(f"the {len(first):,} training rows read of {folder} have one class only")
    model = LogisticRegression(C=INVERSE_PENALTY, max_iter=200)
    model.fit(one_hot(first, schema), first.labels, first.weights)

    def scored(rows: Examples) -> _Scored:
        logits = model.decision_function(one_hot(rows, schema)).astype(np.float64)
        weights = np.ones(len(rows)) if rows.weights is None else rows.weights.astype(np.float64)
        return _Scored(rows.ids, rows.labels, weights, logits)

    return scored(second), scored(valid)


def _lowered_loss(fitted: _Scored, valid: _Scored, fields: Sequence[FieldColumns]) -> NDArray[np.float64]:
    """Return by how much a cross of two fields lowers the log loss of each row of `valid`, [n].

    The cross has a weight for each pair of values, which is fitted to the rows `fitted`.
    """
    cross, values = cross_features(fitted.ids, fields)
    probabilities = 1 / (1 + np.exp(-fitted.logits))
    wrong = cross.T @ (fitted.weights * (fitted.labels - probabilities))
    curvature = cross.power(2).T @ (fitted.weights * probabilities * (1 - probabilities))
    cross, _ = cross_features(valid.ids, fields, values)
    moved = valid.logits + cross @ (wrong / (curvature + 1 / INVERSE_PENALTY))
    lowered: NDArray[np.float64] = np.logaddexp(0, valid.logits) - np.logaddexp(0, moved)
    return lowered + valid.labels * (moved - valid.logits)


def cross_features(
    ids: NDArray[Any], fields: Sequence[FieldColumns], values: NDArray[np.int64] | None = None
) -> tuple[Any, NDArray[np.int64]]:
    """Return the features of a cross of two `fields` for a regression, and the K pairs of values that they stand for,
    each as one number.

    The features of n rows with the given `ids` [n, P] are a sparse matrix [n, K]. An element is 1 if the row has the
    pair of values, or 1 divided by the row's number of pairs if one of the fields is a list whose embedding rows are
    averaged. Pairs with an out-of-vocabulary value are left out. `values` are the pairs to look for; by default, they
    are all pairs of the rows.
    """
    from scipy import sparse

    lengths = np.array([np.count_nonzero(ids[:, columns] != NO_ID, axis=1) for columns, _ in fields])
    num_values = shorten(lengths, MOST_PAIRS)
    of_row, places = combinations(num_values)
    is_mean = any(field.max_length > 1 and field.pool == "mean" for _, field in fields)
    shares = 1 / num_values.prod(axis=0)[of_row] if is_mean else np.ones(len(of_row))
    pairs, known = np.zeros(len(of_row), np.int64), np.ones(len(of_row), bool)
    for (columns, field), place in zip(fields, places, strict=True):
        of_field = ids[of_row, columns.start + place]
        pairs = pairs << 32 | of_field
        known &= (of_field < field.oov_ids[0]) | (of_field >= field.oov_ids[1])
    values = np.unique(pairs[known]) if values is None else values
    index = np.minimum(np.searchsorted(values, pairs), len(values) - 1)
    known &= np.append(values, -1)[index] == pairs  # The index is -1 if there are no values.
    return sparse.csr_matrix((shares[known], (of_row[known], index[known])), (len(ids), len(values))), values


def describe_gains(gains: list[Gain], most: int, crosses: Sequence[tuple[str, ...]]) -> str:
    """Return a text: a table of the `most` best pairs of fields, and a setting that adds crosses of pairs.

    The setting lists `crosses`, which the folder already has, and then the best pairs whose gain is statistically
    significant. The setting is quoted for a shell.
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
    compare = f"and compare: {python_command('app baseline PREPARED')}"
    return "\n".join([*lines, f"prepare again with: {setting}", compare])
