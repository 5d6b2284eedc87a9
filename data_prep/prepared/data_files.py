"""List the files of a prepared folder with their checksums, as in schema.json, and find damaged ones."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.files import checksum, write_whole
from data_prep.prepared.schema import CHECKSUM, SCHEMA_FILE, VOCABULARY, DataFile, Schema, Split, advice, checksum_of

BLOCK_CHECKSUM = 8  # Number of hex digits of a block's checksum.


def row_numbers_file(split: str) -> str:
    """Return the name of the file with the log's line number, from 0, of each row of valid or test: int64 [rows]."""
    return f"row_numbers-{split}.npy"


def write_schema(schema: Schema, folder: Path) -> None:
    """Write schema.json into `folder` atomically."""
    content = dataclasses.asdict(schema)
    content[CHECKSUM] = checksum_of(content)
    write_whole(folder / SCHEMA_FILE, json.dumps(content, indent=1) + "\n")


def data_file(folder: Path, name: str, rows: int = 0, blocks: str = "") -> DataFile:
    """Return the entry of a finished file in schema.json, with its size and checksum."""
    path = folder / name
    return DataFile(name, rows, path.stat().st_size, checksum(path), blocks)


def block_sizes(schema: Schema, split: str) -> list[int]:
    """Return the number of rows of each block of a split, in order."""
    sizes: list[int] = []
    for file in schema.splits[split].files:
        sizes += [schema.block_rows] * (file.rows // schema.block_rows)
        if file.rows % schema.block_rows:
            sizes.append(file.rows % schema.block_rows)
    return sizes


def block_checksum(columns: Iterable[NDArray[Any]]) -> str:
    """Return the checksum of the arrays that a block stores, in `BLOCK_CHECKSUM` hex digits."""
    digest = xxhash.xxh3_64()
    for column in columns:
        if column.ndim:  # MindRecord returns an empty array as a scalar.
            digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()[:BLOCK_CHECKSUM]


def block_checksums(schema: Schema, split: str) -> list[str]:
    """Return the checksum of each block of a split, in order."""
    checksums = "".join(file.blocks for file in schema.splits[split].files)
    return [checksums[i : i + BLOCK_CHECKSUM] for i in range(0, len(checksums), BLOCK_CHECKSUM)]


def whole_log(schema: Schema) -> Split:
    """Return the sums of rows, clicks and unlabelled rows over all splits, as a split without files."""
    counts = ("rows", "clicks", "unlabelled")
    return Split(files=(), **{of: sum(getattr(split, of) for split in schema.splits.values()) for of in counts})


def has_one_class(split: Split) -> bool:
    """Return True if the split has rows, and all labels are clicks or none is."""
    return split.rows > 0 and split.clicks in (0, split.num_labelled)


def all_files(schema: Schema) -> Iterator[DataFile]:
    """Yield the entries of all files except schema.json itself."""
    for split in schema.splits.values():
        yield from split.files
    yield from schema.other_files


def wrong_sizes(folder: Path, schema: Schema, names: str = "") -> Iterator[str]:
    """Yield a sentence for each MindRecord file, or its index, that is missing or has another size than was written.

    Only files whose names begin with `names` are looked at, and none is read.
    """
    for file in all_files(schema):
        path = folder / file.name
        if ".mindrecord" in file.name and file.name.startswith(names):
            num_bytes = path.stat().st_size if path.is_file() else None
            if num_bytes != file.size_bytes:
                found = "is missing" if num_bytes is None else f"has {num_bytes} bytes"
                yield f"prepared file {path} {found}, expected {file.size_bytes} bytes"


def damaged_files(folder: Path, schema: Schema, names: str = "") -> Iterator[str]:
    """Yield a sentence for each file that differs from its entry in schema.json.

    Only files whose names begin with `names` are read.
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
    """Raise ValueError unless the row files and their indices have the right sizes, and the vocabulary the right
    checksum.

    The bytes of the rows are checked when they are read.
    """
    for sentence in (*damaged_files(folder, schema, VOCABULARY), *wrong_sizes(folder, schema)):
        raise ValueError(f"{sentence}; {advice(folder)}; see python -m data_prep inspect {folder}")


def verify_files(folder: Path, schema: Schema) -> int:
    """Compare every file of a prepared folder with its size and checksum in the schema. Return the number of files.

    Raise ValueError that names each file that is missing or damaged.
    """
    damaged = list(damaged_files(folder, schema))
    if damaged:
        raise ValueError(f"{'; '.join(damaged)}; {advice(folder)}")
    return len(list(all_files(schema)))
