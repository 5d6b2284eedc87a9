"""List the files of a prepared folder with their checksums, find damaged files, and record values that expire.

An expired value is one that no longer has an id of its own. The files with rows are not rewritten when values expire or
ids are renumbered. Instead, the expired ids, and the new id of each renumbered id, are recorded in files beside them.
`schema_at` reconstructs the schema at the time of a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.files import checksum, new_file, write_whole
from data_prep.prepared.schema import (
    CHECKSUM,
    EXPIRED_PREFIX,
    NO_ID,
    NUMPY,
    SCHEMA_FILE,
    VOCABULARY,
    DataFile,
    Schema,
    Split,
    advice,
    checksum_of,
    first_added_id,
)

BLOCK_CHECKSUM = 8  # Number of hex digits of the checksum of a block of rows.


# File with an int64 array that maps each id stored in files of rows to its present id. The length of the array is the
# size of the vocabulary when the rows were written.
NUMBERING_FILE = f"numbering{NUMPY}"
NOTHING = np.zeros(0, np.int64)


def row_numbers_file(split: str) -> str:
    """Return the name of the file that stores the line number in the log, from 0, of each row of a split: int64 [rows].

    Only valid and test have such a file.
    """
    return f"row_numbers-{split}.npy"


def write_schema(schema: Schema, folder: Path) -> None:
    """Write schema.json into `folder` atomically."""
    content = asdict(schema)
    # Schemas without vectors stay the same, byte for byte, as in releases before the key "vectors" existed.
    if not schema.vectors:
        del content["vectors"]
    content[CHECKSUM] = checksum_of(content)
    write_whole(folder / SCHEMA_FILE, json.dumps(content, indent=1) + "\n")


def data_file(folder: Path, name: str, rows: int = 0, blocks: str = "") -> DataFile:
    """Return the entry for schema.json of the finished file `name` in `folder`, with the file's size and checksum.

    `rows` is the number of rows in the file, and `blocks` has the checksums of its blocks of rows, joined to one text.
    """
    path = folder / name
    return DataFile(name, rows, path.stat().st_size, checksum(path), blocks)


def block_sizes(schema: Schema, split: str) -> list[int]:
    """Return the number of rows of each block of a split, in the order of the split's files."""
    sizes: list[int] = []
    for file in schema.splits[split].files:
        sizes += [schema.block_rows] * (file.rows // schema.block_rows)
        if file.rows % schema.block_rows:
            sizes.append(file.rows % schema.block_rows)
    return sizes


def block_checksum(columns: Iterable[NDArray[Any]]) -> str:
    """Return the checksum of `columns`, the arrays that a block of rows stores, as `BLOCK_CHECKSUM` hex digits."""
    digest = xxhash.xxh3_64()
    for column in columns:
        if column.ndim:  # MindRecord returns an empty array as a scalar, which is left out.
            digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()[:BLOCK_CHECKSUM]


def block_checksums(schema: Schema, split: str) -> list[str]:
    """Return the checksum that schema.json records for each block of a split, in the order of the split's files."""
    checksums = "".join(file.blocks for file in schema.splits[split].files)
    return [checksums[i : i + BLOCK_CHECKSUM] for i in range(0, len(checksums), BLOCK_CHECKSUM)]


def whole_log(schema: Schema) -> Split:
    """Return a `Split` that describes all rows of the folder: its counts are the sums over all splits.

    The result has the counts of rows, clicks and unlabelled rows, and no files.
    """
    counts = ("rows", "clicks", "unlabelled")
    return Split(files=(), **{of: sum(getattr(split, of) for split in schema.splits.values()) for of in counts})


def has_one_class(split: Split) -> bool:
    """Return True if a split has rows and all their labels are equal, so that nothing can be learned from them."""
    return split.rows > 0 and split.clicks in (0, split.num_labelled)


def all_files(schema: Schema) -> Iterator[DataFile]:
    """Yield the entries of all files that schema.json lists, which are all files of the folder but schema.json."""
    for split in schema.splits.values():
        yield from split.files
    yield from schema.other_files


def wrong_sizes(folder: Path, schema: Schema, names: str = "") -> Iterator[str]:
    """Yield an error message for each MindRecord file or index file that is missing or has a wrong size.

    Only files whose names begin with the text `names` are checked. The content of files is not read.
    """
    for file in all_files(schema):
        path = folder / file.name
        if ".mindrecord" in file.name and file.name.startswith(names):
            num_bytes = path.stat().st_size if path.is_file() else None
            if num_bytes != file.size_bytes:
                found = "is missing" if num_bytes is None else f"has {num_bytes} bytes"
                yield f"prepared file {path} {found}, expected {file.size_bytes} bytes"


def damaged_files(folder: Path, schema: Schema, names: str = "") -> Iterator[str]:
    """Yield an error message for each file that is missing, or that differs from its size or checksum in schema.json.

    Only files whose names begin with the text `names` are checked.
    """
    for file in all_files(schema):
        path = folder / file.name
        if file.name.startswith(names) and not path.is_file():
            yield f"{path} is missing, though schema.json names it"
        elif file.name.startswith(names):
            actual = data_file(folder, file.name)
            if (actual.size_bytes, actual.checksum) != (file.size_bytes, file.checksum):
                yield (
                    f"{path} is damaged: {actual.size_bytes:,} bytes, checksum {actual.checksum}; schema.json expects "
                    f"{file.size_bytes:,} bytes, {file.checksum}"
                )


def check_files(folder: Path, schema: Schema) -> None:
    """Raise ValueError if a MindRecord file or its index has a wrong size, or if a vocabulary file is damaged.

    The content of MindRecord files is not read here; `read_blocks` checks it when it reads them.
    """
    for sentence in (*damaged_files(folder, schema, VOCABULARY), *wrong_sizes(folder, schema)):
        raise ValueError(f"{sentence}; {advice(folder)}")


def verify_files(folder: Path, schema: Schema) -> int:
    """Compare every file of a prepared folder with its size and checksum in the schema. Return the number of files.

    Raise ValueError if any file is missing or damaged. The message names all such files.
    """
    damaged = list(damaged_files(folder, schema))
    if damaged:
        raise ValueError(f"{'; '.join(damaged)}; {advice(folder)}")
    return len(list(all_files(schema)))


def union(*ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ids that occur in at least one of the arrays, each once, in ascending order.

    `np.union1d` is not used, because from NumPy 2.3 on it uses a hash table, which takes 100 times as long for ids as
    sorting.
    """
    ordered = np.sort(np.concatenate(ids), kind="stable")  # NumPy's stable sort merges arrays that are already sorted.
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: ordered.size]]


def schema_at(schema: Schema, moment: Mapping[str, Any]) -> Schema:
    """Return the schema as it was when a checkpoint was written.

    Values that got their ids later are not in it. Values that expired later have their ids in it, because they had not
    expired yet. `moment` is the field `data` of the checkpoint's manifest, which has the vocabulary size and the number
    of expired ids at that time.
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
    """Return the name of a file that lists ids which expired together, after `num_before` ids had expired earlier."""
    return f"{EXPIRED_PREFIX}{num_before:012d}{NUMPY}"


def read_expired(folder: Path, schema: Schema) -> NDArray[np.int64]:
    """Return the ids whose values have expired, in ascending order, as int64.

    Ids that expired before the vocabulary was last rewritten with new ids are not among them.
    """
    return np.sort(np.concatenate([NOTHING, *(np.load(folder / file.name) for file in schema.expired_files)]))


def with_expired(folder: Path, schema: Schema, ids: NDArray[np.int64]) -> Schema:
    """Write a new file in the prepared folder that lists `ids`, in ascending order, as expired.

    Return a copy of the schema that lists the file too.
    """
    name = expired_file_name(schema.num_expired)
    write_array(folder / name, ids)
    return replace(schema, other_files=(*schema.other_files, data_file(folder, name, rows=len(ids))))


def write_array(path: Path, array: NDArray[np.int64]) -> None:
    """Write an array to a .npy file atomically: if the process is killed, the file is complete or does not exist."""
    with new_file(path, lone_writer=True) as beside, beside.open("wb") as file:
        np.save(file, array)


def out_of_vocabulary(schema: Schema, expired: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an array that maps each id to itself, or to an out-of-vocabulary id if it is in `expired`.

    An expired id becomes the first out-of-vocabulary id of its field. The result is int64 [V + 1]. NO_ID is -1, so it
    is the index of the last entry, which is NO_ID too.
    """
    ids = np.append(np.arange(schema.vocabulary_size), NO_ID)
    is_expired = np.zeros(schema.vocabulary_size, np.bool_)
    is_expired[expired[expired < schema.vocabulary_size]] = True
    for field in schema.categorical if len(expired) else ():
        for first, end in field.id_ranges:
            ids[first:end][is_expired[first:end]] = field.oov_ids[0]
    return ids


def numbering_of_rows(folder: Path, schema: Schema) -> NDArray[np.signedinteger] | None:
    """Return an array that maps each id stored in files of rows to its present id, or None if no id has changed.

    If the value of an id has expired, its present id is the first out-of-vocabulary id of its field. The last entry of
    the array maps NO_ID (-1) to NO_ID.
    """
    expired = read_expired(folder, schema)
    is_renumbered = any(file.name == NUMBERING_FILE for file in schema.other_files)
    if not is_renumbered and not len(expired):
        return None
    numbering = out_of_vocabulary(schema, expired)
    if is_renumbered:
        numbering = numbering[np.append(np.load(folder / NUMBERING_FILE), NO_ID)]
    return numbering.astype(schema.ids_dtype)
