"""What is told of a step that was not finite: where the first bad value lies.

Letters: n rows of the batch, F fields, W columns a field.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from mindspore import Parameter

from app.batches import Batch
from app.tables.checks import LARGEST_GRADIENT

OVERFLOWED = "the loss or a gradient overflowed"
ADVICE = "try a lower loss.loss_scale or learning rate"


@dataclass(frozen=True)
class Place:
    """Values that a step took or made: [n], or [n, F * W] for F `fields`, whose `ids` [n, F] are told where given."""

    what: str
    values: np.ndarray
    fields: tuple[str, ...] = ()
    ids: np.ndarray | None = None
    limit: float = math.inf

    def first_bad(self) -> str | None:
        """The first value that is not finite, or not within ±limit, in words; None where all are."""
        bad = np.argwhere(~(np.abs(self.values) < self.limit))
        if not len(bad):
            return None
        row, *column = bad[0]
        field = self._field(row, column[0]) if column else ""
        return f"the {self.what} of batch row {row}{field} is {self.values[tuple(bad[0])]}"

    def _field(self, row: int, column: int) -> str:
        field = column // (self.values.shape[1] // len(self.fields))
        told_id = "" if self.ids is None else f" (id {self.ids[row, field]})"
        return f", field {self.fields[field]}{told_id}"


def batch_places(batch: Batch, numeric_names: tuple[str, ...]) -> tuple[Place, Place]:
    """What a batch holds besides its ids."""
    return Place("numeric input", batch.numeric, numeric_names), Place("label", batch.labels)


def gradient_places(
    deep: np.ndarray, wide: np.ndarray, fields: tuple[str, ...], ids: np.ndarray
) -> tuple[Place, Place]:
    """Return the row gradients [n, F * D] and [n], which may not come near infinity."""
    limit = float(LARGEST_GRADIENT)
    return (
        Place("gradient of the deep row", deep, fields, ids, limit),
        Place("gradient of the wide rows", wide, limit=limit),
    )


def describe_not_finite(inputs: Iterable[Place], parameters: dict[str, Parameter], gradients: Iterable[Place]) -> str:
    """The first bad value among inputs, then parameters, then gradients, as each may have come from those before."""
    found = _first_in(inputs) or _first_parameter(parameters)
    return (found or f"{_first_in(gradients) or OVERFLOWED}; {ADVICE}") + "; no table and no parameter was changed"


def _first_in(places: Iterable[Place]) -> str | None:
    return next((bad for place in places if (bad := place.first_bad())), None)


def _first_parameter(parameters: dict[str, Parameter]) -> str | None:
    for name, parameter in parameters.items():
        values = parameter.asnumpy()
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            return f"the parameter {name}{bad[0].tolist()} is {values[tuple(bad[0])]}"
    return None
