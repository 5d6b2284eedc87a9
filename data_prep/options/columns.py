"""The categorical columns of a prepared folder, and where each comes from: hex values, text, or buckets of integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from data_prep.options.log_format import LogFormat


@dataclass(frozen=True)
class CategoricalColumn:
    """One column of `ids`."""

    name: str
    kind: Literal["hex32", "string", "bucket"]
    place: int  # among the columns of text, or among those worked on as numbers (hex values, then buckets)

    @property
    def is_text(self) -> bool:
        """Whether its values are strings; others are worked on as numbers."""
        return self.kind == "string"


def categorical_columns(log_format: LogFormat, integer_buckets: bool) -> tuple[CategoricalColumn, ...]:
    """All of them in their order: the log's, then a column of buckets for each numeric field if asked for."""
    columns = [
        CategoricalColumn(name, "string", log_format.text_fields.index(name))
        if name in log_format.text_fields
        else CategoricalColumn(name, "hex32", log_format.hex_fields.index(name))
        for name in log_format.categorical_fields
    ]
    if integer_buckets:
        first = len(log_format.hex_fields)
        columns += [
            CategoricalColumn(bucket_field(name), "bucket", first + place)
            for place, name in enumerate(log_format.numeric_fields)
        ]
    return tuple(columns)


_SUFFIX = "_bucket"


def bucket_field(name: str) -> str:
    """The categorical field of a numeric one's buckets."""
    return name + _SUFFIX
