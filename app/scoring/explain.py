"""Explain logits: split the logit of a row into one part for each column, or compute the effect of each cell of a row.

The part of a column is an estimate of its Shapley value. Blank the cells of a row one after the other, in a random
order of the columns. The column's part is the logit just before its cell becomes blank minus the logit just after that,
averaged over several orders. The parts and the logit of a blank row therefore add up to the row's logit. Each order is
used forward and backward, which makes the result exact if no three columns interact (R. Mitchell et al., "Sampling
permutations for Shapley value estimation", JMLR 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.scoring.bundle_model import ROWS_AT_ONCE, BundleModel
from app.scoring.bundle_tables import lookup
from app.tables.fields import field_of_position, position_weights
from common.console import progress_bar
from data_prep.encoding.encoder import Chunk, ParsedRows
from data_prep.encoding.from_values import chunk_to_mapping, rejected
from data_prep.options.kinds import UNITS, time_text
from data_prep.options.log_format import TIME_FEATURES, LogFormat

INTERCEPT = "(intercept)"  # Name under which the logit of a row with only blank cells is returned.
ORDERS = 4
_SEED = 0
_SHOWN_TIME = "%Y-%m-%d %H:%M:%S"
_SHOWN_NUMBERS = 4  # Number of a vector's components that are shown.


@dataclass(frozen=True)
class FieldEffect:
    """Effect of one column of a row. `wide` is the sum of the column's terms in the linear part of the row's logit.
    `change` is the row's logit minus the logit of the same row with the column's cell blank.
    """

    field: str
    # The cell. A time that the log writes as a number is written as a date here, and a vector by its first numbers.
    value: str | None
    in_vocabulary: bool | None  # True if the categorical value has an id. None for numeric columns and vectors.
    wide: float
    change: float


def parts_of_logits(
    rows: ParsedRows, log_format: LogFormat, logits_of: Callable[[ParsedRows], np.ndarray], num_orders: int
) -> dict[str, np.ndarray]:
    """Split the logits of n parsed rows. Return the intercept (the logit of a blank row) and the part of each column,
    by name, float64 [n] each. They add up to the logits.

    `logits_of` scores parsed rows. The number of random orders of the columns is `num_orders`. Each order is used in
    both directions, so each row is scored 1 + 2 · K · `num_orders` times. The orders are the same for all rows and all
    calls.
    """
    if num_orders < 1:
        raise ValueError(f"an explanation takes 1 order of the columns or more; found orders={num_orders}")
    names = [name for name, _ in log_format.fields]
    generator = np.random.default_rng(_SEED)
    forward = [generator.permutation(len(names)) for _ in range(num_orders)]
    orders = [order for one in forward for order in (one, one[::-1])]
    parts = np.zeros((len(names), len(rows.labels)))
    logits = after = logits_of(rows).astype(np.float64)
    with progress_bar(total=len(orders) * len(names), desc="explain", unit="column", leave=False, delay=2) as bar:
        for order in orders:
            blanked_rows, before = rows, logits
            for column in order:
                blanked_rows = blanked_rows.blanked(names[column])
                after = logits_of(blanked_rows).astype(np.float64)
                parts[column] += before - after
                before = after
                bar.update()
    return {INTERCEPT: after, **dict(zip(names, parts / len(orders), strict=True))}


def changes_of_logits(model: BundleModel, rows: ParsedRows) -> np.ndarray:
    """Return for each column and each of n rows the row's logit minus its logit with the column's cell blank, float32
    [K, n].

    Each row is scored K + 1 times.
    """
    # No column is named "". So the first result, in which the column "" is blank, has the logits of the rows as they
    # are.
    columns = ["", *(name for name, _ in model.log_format.fields)]
    at_once, logits = max(ROWS_AT_ONCE // max(len(rows.labels), 1), 1), []
    with progress_bar(total=len(columns), desc="explain", unit="column", leave=False, delay=2) as bar:
        for start in range(0, len(columns), at_once):
            some = columns[start : start + at_once]
            logits.append(model.logits_of_parsed(rows.blanked(*some)))
            bar.update(len(some))
    by_column = np.concatenate(logits).reshape(len(columns), -1)
    return by_column[0] - by_column[1:]


def effects(model: BundleModel, chunk: Chunk) -> list[FieldEffect]:
    """Explain the score of one row, the only row of the chunk: return the effect of each column, sorted by the absolute
    value of `change`, the largest first.

    Raise ValueError if the row is rejected.
    """
    parsed, encoded = model.encoder.encode(chunk)
    if parsed.rejects_tsv:
        raise ValueError(f"the row cannot be explained: {rejected(chunk, parsed)[0]}")
    cells = chunk_to_mapping(chunk, model.log_format)
    for name in model.log_format.time_fields:
        (time,), (is_present,) = parsed.rows.columns[name]
        # Show a time that the log writes as a number as a date, which people can read.
        if is_present and model.log_format.time_form(name) in UNITS:
            cells[name] = f"{time_text(int(time), _SHOWN_TIME)} UTC"
    for name in model.log_format.vector_fields:
        (vector,), (is_present,) = parsed.rows.columns[name]
        cells[name] = _vector_text(vector) if is_present else None
    (changes,) = changes_of_logits(model, parsed.rows).T
    ids, numeric = encoded.ids[0], encoded.numeric[0] * model.manifest.model["numeric_weights"]
    _, wide = lookup(model.tables, np.maximum(encoded.ids, 0))
    wide = (wide * position_weights(encoded.ids, model.fields))[0]
    of_columns = [
        FieldEffect(
            field=name,
            value=cells[name],
            in_vocabulary=_is_in_vocabulary(model, ids, name),
            wide=_wide_weight(model, wide, numeric, name),
            change=float(change),
        )
        for (name, _), change in zip(model.log_format.fields, changes, strict=True)
    ]
    return sorted(of_columns, key=lambda effect: -abs(effect.change))


def _vector_text(vector: np.ndarray) -> str:
    """Return a text with the first numbers of a vector and, if it has more, the number of its components."""
    shown = " ".join(f"{number:.4g}" for number in vector[:_SHOWN_NUMBERS])
    return shown if len(vector) <= _SHOWN_NUMBERS else f"{shown} … ({len(vector):,} numbers)"


def _wide_weight(model: BundleModel, wide: np.ndarray, numeric: np.ndarray, column: str) -> float:
    """Return the sum of a column's terms in the linear part of one row's logit.

    `wide` [P] holds the term of the wide row at each position, and `numeric` [N] the term of each numeric column. The
    sum includes the terms of the fields that are derived from the column: its bucket (range of numbers) and its time
    features.
    """
    names = [column, *(f"{column}{ending}" for ending in ("_bucket", *TIME_FEATURES.values()))]
    fields = [index for index, field in enumerate(model.fields) if field.wide and field.name in names]
    positions = np.isin(field_of_position(model.fields), fields)
    numbers = [index for index, field in enumerate(model.schema.numeric) if field.source == column]
    slope = model.manifest.model.get("calibration", {}).get("slope", 1)
    return slope * float(wide[positions].sum() + numeric[numbers].sum())


def _is_in_vocabulary(model: BundleModel, ids: np.ndarray, column: str) -> bool | None:
    if column not in model.log_format.categorical_fields:
        return None
    names = [field.name for field in model.fields]
    index = names.index(column)
    first, end = model.schema.categorical[index].oov_ids
    return not first <= ids[np.searchsorted(field_of_position(model.fields), index)] < end
