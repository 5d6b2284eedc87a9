"""Change a prepared folder in place: values that expire, and ids that are renumbered.

It also reconstructs the schema of an earlier moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.files import new_file
from data_prep.prepared.data_files import data_file
from data_prep.prepared.schema import EXPIRED_PREFIX, NO_ID, NUMPY, Schema, first_added_id

# File with an array [V at that time] that maps the ids in row files to present ids.
NUMBERING_FILE = f"numbering{NUMPY}"
NOTHING = np.zeros(0, np.int64)


def union(*ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct ids of all arrays, ascending.

    It sorts, because `np.union1d` of NumPy 2.3 and later uses a hash table, which takes 100 times as long for ids.
    """
    ordered = np.sort(np.concatenate(ids), kind="stable")  # A stable sort of sorted arrays is a merge.
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: ordered.size]]


def schema_at(schema: Schema, moment: Mapping[str, Any]) -> Schema:
    """Return the schema as it was when a checkpoint was written, before values were added or expired in place.

    `moment` is the field `data` of the checkpoint's manifest.
    """
    firsts = [first_added_id(file.name) for file in schema.other_files]
    later = [first for first in firsts if first >= max(moment["vocabulary_size"], 1)]
    size, first_undone = min(later, default=schema.vocabulary_size), expired_file_name(moment.get("expired", 0))
    undone = [file for file in schema.expired_files if file.name >= first_undone]
    files = [file for file in schema.other_files if first_added_id(file.name) < size and file not in undone]
    categorical = tuple(
        replace(field, id_ranges=tuple(each for each in field.id_ranges if each[0] < size))
        for field in schema.categorical
    )
    return replace(schema, categorical=categorical, vocabulary_size=size, other_files=tuple(files))


def expired_file_name(num_before: int) -> str:
    """Return the name of the file with the ids that expired after `num_before` other ids had."""
    return f"{EXPIRED_PREFIX}{num_before:012d}{NUMPY}"


def read_expired(folder: Path, schema: Schema) -> NDArray[np.int64]:
    """Return the ids, ascending, whose values expired since the vocabulary was written as a whole."""
    return np.sort(np.concatenate([NOTHING, *(np.load(folder / file.name) for file in schema.expired_files)]))


def with_expired(folder: Path, schema: Schema, ids: NDArray[np.int64]) -> Schema:
    """Write a file with the ids, ascending, whose values expire now. Return the schema that lists the file."""
    name = expired_file_name(schema.num_expired)
    write_array(folder / name, ids)
    return replace(schema, other_files=(*schema.other_files, data_file(folder, name, rows=len(ids))))


def write_array(path: Path, array: NDArray[np.int64]) -> None:
    """Write a .npy file atomically: if the process is killed, it is complete or does not exist."""
    with new_file(path, lone_writer=True) as beside, beside.open("wb") as file:
        np.save(file, array)


def out_of_vocabulary(schema: Schema, expired: NDArray[np.int64]) -> NDArray[np.int64]:
    """Map each id to itself, or, if it is in `expired`, to the first out-of-vocabulary id of its field.

    The result [V + 1] maps the index NO_ID, its last entry, to NO_ID.
    """
    ids = np.append(np.arange(schema.vocabulary_size), NO_ID)
    is_expired = np.zeros(schema.vocabulary_size, np.bool_)
    is_expired[expired[expired < schema.vocabulary_size]] = True
    for field in schema.categorical if len(expired) else ():
        for first, end in field.id_ranges:
            ids[first:end][is_expired[first:end]] = field.oov_ids[0]
    return ids


def numbering_of_rows(folder: Path, schema: Schema) -> NDArray[np.signedinteger] | None:
    """Map the ids stored in row files to present ids, or return None if no id has changed.

    The result maps an id whose value expired to the first out-of-vocabulary id of its field. Its last entry maps
    NO_ID to NO_ID.
    """
    expired = read_expired(folder, schema)
    is_renumbered = any(file.name == NUMBERING_FILE for file in schema.other_files)
    if not is_renumbered and not len(expired):
        return None
    numbering = out_of_vocabulary(schema, expired)
    if is_renumbered:
        numbering = numbering[np.append(np.load(folder / NUMBERING_FILE), NO_ID)]
    return numbering.astype(schema.ids_dtype)
