"""Find, for each row of a new run's tables, the row that stands for the same value in an older prepared folder."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_prep.prepared.data_files import read_expired
from data_prep.prepared.schema import CategoricalField, Schema

log = logging.getLogger(__name__)

NONE = -1


def row_origins(old_folder: Path, old: Schema, new_folder: Path, new: Schema) -> np.ndarray:
    """Return, for each id of the schema `new`, the id of the same value in the schema `old`, int64 [V of `new`].

    NONE means that `old` lacks the field or the value. The ids of numeric fields are matched by the fields' names. The
    ids of values are matched by the name of the field and the value. The ids for out-of-vocabulary values are matched
    by the values' hashes. If several fields share a vocabulary in `new` but not in `old`, a value may have an old id in
    several of these fields. Then the first field that has an old id for the value decides. The first field is the one
    that the vocabulary is named after, and the others follow in the schema's order.
    """
    origins = np.full(new.vocabulary_size, NONE, np.int64)
    numeric = {field.name: place for place, field in enumerate(old.numeric)}
    for place, column in enumerate(new.numeric):
        origins[place] = numeric.get(column.name, NONE)
    of_old = {field.name: field for field in old.categorical}
    takers: dict[str, list[str]] = {}
    for name, fields in _vocabularies(new).items():
        # The vocabularies that `fields` use in `old`, by name, each with the first of the fields that use it there.
        sources: dict[str, CategoricalField] = {}
        for field in fields:
            if field.name in of_old:
                sources.setdefault(old.vocabulary_of(field.name), field)
        values = _values(new_folder, new, name)
        # Ids that are written to `origins` later overwrite earlier ones. The first vocabulary in `sources` decides, so
        # its ids are written last.
        for source, field in reversed(sources.items()):
            takers.setdefault(source, []).append(field.name)
            new_ids, old_ids = (
                np.concatenate(parts)
                for parts in zip(
                    _buckets(of_old[field.name], field, old, new),
                    _same_values(_values(old_folder, old, source), values),
                    strict=True,
                )
            )
            if meeting := np.count_nonzero(origins[new_ids] != NONE):
                log.warning(
                    "warning: the fields %s share a vocabulary here: of the %s rows that several of them had, those "
                    "of %s are taken",
                    ", ".join(field.name for field in fields),
                    f"{meeting:,}",
                    field.name,
                )
            origins[new_ids] = old_ids
    for source, names in takers.items():
        if len(names) > 1:
            log.info("%s shared the vocabulary %s: each takes its rows", ", ".join(names), source)
    return origins


def _vocabularies(schema: Schema) -> dict[str, list[CategoricalField]]:
    """Return the fields that use each vocabulary, by the vocabulary's name. The field of the same name comes first."""
    fields_of: dict[str, list[CategoricalField]] = {}
    for field in sorted(schema.categorical, key=lambda field: schema.vocabulary_of(field.name) != field.name):
        fields_of.setdefault(schema.vocabulary_of(field.name), []).append(field)
    return fields_of


def _buckets(
    before: CategoricalField, here: CategoricalField, old: Schema, new: Schema
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of a field's out-of-vocabulary rows in `new`, and the ids of the rows in `old` with the same
    values.

    `before` is the field in `old`, and `here` the field in `new`. A field with k out-of-vocabulary rows (buckets) puts
    a value with hash h into the bucket ⌊h·k / 2³²⌋. If the new field has m buckets and m is a multiple of k, the new
    bucket j contains only values of the old bucket ⌊j·k / m⌋. If m is no multiple of k, or if the new field hashes its
    values in another way, a new bucket mixes values of several old buckets. In this case, return empty arrays and log a
    warning.
    """
    (old_first, old_end), (new_first, new_end) = before.oov_ids, here.oov_ids
    old_count, new_count = old_end - old_first, new_end - new_first
    if new_count % old_count or old.is_text(before) != new.is_text(here):
        kinds = ["text" if schema.is_text(field) else "numbers" for schema, field in ((old, before), (new, here))]
        log.warning(
            "warning: the %s rows of %s for values out of vocabulary start fresh: the model that this run starts from "
            "has %s (of %s), whose values are not those of these rows (of %s); a multiple of them would follow",
            f"{new_count:,}",
            here.name,
            f"{old_count:,}",
            *kinds,
        )
        return np.empty(0, np.int64), np.empty(0, np.int64)
    buckets = np.arange(new_count)
    return new_first + buckets, old_first + buckets // (new_count // old_count)


def _same_values(old: pa.Table, new: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids in `new` and the ids in `old` of the values that occur in both tables (columns `value`, `id`)."""
    both = new.join(old, "value", join_type="inner", right_suffix="_old")
    return both["id"].to_numpy(), both["id_old"].to_numpy()


def _values(folder: Path, of: Schema, field: str) -> pa.Table:
    """Return a table with the columns `value` and `id` of the vocabulary of `field`, read from the prepared folder
    `folder` with schema `of`, without the values that have expired.
    """
    schema = pa.schema([("value", pa.string()), ("id", pa.int64())])
    parts = [schema.empty_table()]
    for name in of.vocabulary_files:
        with pq.ParquetFile(folder / name) as file:
            for number in range(file.num_row_groups):
                statistics = file.metadata.row_group(number).column(0).statistics
                if statistics is not None and not statistics.min <= field <= statistics.max:
                    continue
                group = file.read_row_group(number, columns=["field", "value", "id"])
                of_field = group.filter(pc.equal(group["field"].cast(pa.string()), field))
                parts.append(of_field.select(["value", "id"]).cast(schema))
    values, expired = pa.concat_tables(parts), read_expired(folder, of)
    return values.filter(~np.isin(values["id"].to_numpy(), expired)) if len(expired) else values
