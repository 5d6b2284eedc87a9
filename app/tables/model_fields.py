"""Determine from a run's settings which fields the model looks up, and which part of the model sees each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.config.config import ModelOptions
from app.tables.fields import TableField
from common.settings import did_you_mean
from data_prep.prepared.schema import Schema


def fields_of_model(schema: Schema, model: ModelOptions) -> tuple[TableField, ...]:
    """Return the categorical fields of the data, in their order, each with the parts of the model that see it.

    By default both parts see every field, except that only the wide part sees crosses (fields that combine other
    fields). Raise ValueError, with the nearest known name, if a setting names a field that the data does not have.
    """
    names = [field.name for field in schema.categorical]
    for setting in ("wide_fields", "deep_fields"):
        for name in getattr(model, setting) or ():
            if name in (vector.name for vector in schema.vectors):
                raise ValueError(
                    f"model.{setting}: {name} is a vector, which needs no table rows and always enters the deep part; "
                    "leave it out here. If the model should not see it, prepare the data with its kind `ignored`"
                )
            if name not in names:
                raise ValueError(
                    f"model.{setting}: {name} is no categorical field of the data; {did_you_mean(name, names)}"
                )
    wide = names if model.wide_fields is None else model.wide_fields
    deep = [f.name for f in schema.categorical if not f.cross] if model.deep_fields is None else model.deep_fields
    return tuple(
        TableField(field.name, field.name in wide, field.name in deep, field.max_length, field.pool == "mean")
        for field in schema.categorical
    )


def is_plain(fields: tuple[TableField, ...]) -> bool:
    """Return True if both parts see every field and no field is a list. The backend `stock` supports no other model."""
    return all(field.wide and field.deep and field.length == 1 for field in fields)


def are_seen(ids: np.ndarray, schema: Schema, by_field: Sequence[bool]) -> np.ndarray:
    """Return a boolean array that is True for each of `ids` whose field one part of the model sees.

    The part sees all numeric fields, and the categorical fields whose entry in `by_field` is True.
    """
    mask: np.ndarray = ids < schema.num_numeric
    for field, is_seen in zip(schema.categorical, by_field, strict=True):
        for first, end in (field.oov_ids, *field.id_ranges) if is_seen else ():
            mask |= (ids >= first) & (ids < end)
    return mask


def num_deep_inputs(fields: tuple[TableField, ...]) -> int:
    """Return the number of embedding rows per example that the tower takes as input: one per field that it sees.

    If the tower sees no field, the result is 1, for a placeholder row of zeros.
    """
    return max(1, sum(field.deep for field in fields))
