"""Categorical columns of a prepared folder, made from hex values, text, buckets of integers, or crosses of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from data_prep.options.log_format import LogFormat


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of `ids`."""

    name: str
    kind: Literal["hex32", "string", "bucket", "cross"]
    place: int  # index among the columns of text (texts, then crosses), or of numbers (hex values, then buckets)
    cross: tuple[str, ...] = ()  # the crossed columns

    @property
    def is_text(self) -> bool:
        """True if values are strings, not numbers."""
        return self.kind in ("string", "cross")


def cross_name(parts: Sequence[str]) -> str:
    """Return the name of a cross of these columns; its values are written alike, see `kernels.crosses`."""
    return "*".join(parts)


def categorical_columns(
    log_format: LogFormat, integer_buckets: bool, crosses: Sequence[tuple[str, ...]] = ()
) -> tuple[CategoricalColumn, ...]:
    """Return the log's columns in order, then a column of buckets for each numeric field if asked for, then crosses."""
    columns = [
        CategoricalColumn(name, "string", log_format.text_fields.index(name))
        if name in log_format.text_fields
        else CategoricalColumn(name, "hex32", log_format.hex_fields.index(name))
        for name in log_format.categorical_fields
    ]
    if integer_buckets:
        first = len(log_format.hex_fields)
        columns += [
            CategoricalColumn(f"{name}_bucket", "bucket", first + index)
            for index, name in enumerate(log_format.numeric_fields)
        ]
    columns += [
        CategoricalColumn(cross_name(parts), "cross", len(log_format.text_fields) + index, parts)
        for index, parts in enumerate(crosses)
    ]
    return tuple(columns)
