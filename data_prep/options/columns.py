"""Categorical columns of a prepared folder, made from hex values, text, or buckets of integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from data_prep.options.log_format import LogFormat


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of `ids`."""

    name: str
    kind: Literal["hex32", "string", "bucket"]
    place: int  # index among the text columns, or among the numeric ones (hex values, then buckets)

    @property
    def is_text(self) -> bool:
        """True if values are strings, not numbers."""
        return self.kind == "string"


def categorical_columns(log_format: LogFormat, integer_buckets: bool) -> tuple[CategoricalColumn, ...]:
    """Return the log's columns in order, then a column of buckets for each numeric field if asked for."""
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
    return tuple(columns)
