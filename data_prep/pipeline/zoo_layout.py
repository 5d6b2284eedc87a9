"""Rewrite finished files for `layout: zoo`: as MindRecord files that the MindSpore model zoo's Wide&Deep can read.

    train_input_part.mindrecord00 …     whole samples of 1,000 rows. The zoo opens the first file and finds the others
    test_input_part.mindrecord0 …       the same for test, and for valid
    <split>_input_rest.mindrecord       the remaining rows, which the zoo's own preparation drops

`data_prep/prepared/schema.py` describes a sample. Read in the order in which schema.json lists them, the files hold the
blocks of rows in the same order as the files of the project's own layout.

A shard is one of the numbered files of a split. MindSpore divides the samples of each write evenly among the shards, in
order, and distributes the remainder at random. To make the files reproducible, the number of shards is chosen so that
it divides the number of samples. If no allowed number does, the samples that are too many go to the file of remaining
rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.options.prepare_options import ZOO_BLOCK_ROWS
from data_prep.prepared.data_files import block_checksum, data_file
from data_prep.prepared.examples import Examples
from data_prep.prepared.reader import read_files
from data_prep.prepared.schema import Split
from data_prep.prepared.writer import as_os_error, require_room

# Allowed numbers of shards (numbered files). The reader of MindSpore's model zoo opens shard "00" of train and shard
# "0" of valid or test, so the numbers of train's shards need two digits and those of the other splits one digit.
_FEWEST, _MOST = {"train": 11, "valid": 2, "test": 2}, {"train": 100, "valid": 10, "test": 10}
# Numbers of shards (numbered files) of each split that the preparation of MindSpore's model zoo writes.
_USUAL = {"train": 21, "valid": 3, "test": 3}
# Size of a file's header. A MindRecord file consists of a header and of pages of equal size, which hold the samples.
# The header lists the pages, so it must be large enough for the largest shard.
_HEADER_BYTES = 1 << 20
# Size of a page. With Criteo's 39 columns, a page holds 13 samples of 1,000 rows.
_PAGE_BYTES = 4 << 20
_COLUMNS = {
    "feat_ids": {"type": "int32", "shape": [-1]},
    "feat_vals": {"type": "float32", "shape": [-1]},
    "label": {"type": "float32", "shape": [-1]},
}

log = logging.getLogger(__name__)


def num_shards(split: str, num_samples: int) -> int:
    """Return the number of files among which to divide `num_samples` samples evenly, so that the fewest are left over.

    If several numbers leave equally few samples over, choose the one nearest to the number of files that the
    preparation of MindSpore's model zoo writes for the split.
    """
    possible = range(_FEWEST[split], _MOST[split] + 1)
    return min(possible, key=lambda number: (num_samples % number, abs(number - _USUAL[split])))


def part_files(split: str, shards: int) -> list[str]:
    """Return the names of the files (shards) that hold the rows of a split, in samples of exactly 1,000 rows each.

    MindSpore ends each name with the number of the shard, with as many digits as the number of the last shard needs.
    """
    digits = len(str(shards - 1))
    return [f"{split}_input_part.mindrecord{shard:0{digits}d}" for shard in range(shards)]


def rest_file(split: str) -> str:
    """Return the name of the file with the remaining rows of a split, which the files of `part_files` do not hold."""
    return f"{split}_input_rest.mindrecord"


def zoo_row_bytes(num_columns: int) -> int:
    """Return the number of bytes of a row in the layout of MindSpore's model zoo.

    A row has an int32 id and a float32 value for each of `num_columns` columns, and a float32 label.
    """
    return 8 * num_columns + 4


def check_ids_fit(vocabulary_size: int) -> None:
    """Raise ValueError if `vocabulary_size` ids are too many for int32, the type of ids in the model zoo's layout."""
    if vocabulary_size >= 2**31:
        raise ValueError(
            f"layout zoo has int32 ids, and the vocabulary has {vocabulary_size:,}; raise prepare.min_count, or set "
            "max_size in prepare.fields for the largest fields"
        )


def lay_out_for_zoo(splits: dict[str, Split], blocks_folder: Path, folder: Path) -> dict[str, Split]:
    """Convert the MindRecord files in `blocks_folder` to the model zoo's layout. Write the new files into `folder`.

    Return the entries of the splits for schema.json, with the new files. Raise OSError if a file cannot be written.
    """
    for path in folder.glob("*_input_*.mindrecord*"):  # Remove the files that an interrupted preparation has left.
        path.unlink()
    return {name: _write_split(name, split, blocks_folder, folder) for name, split in splits.items()}


def _write_split(name: str, split: Split, blocks_folder: Path, folder: Path) -> Split:
    sources = [file.name for file in split.files]
    num_samples = split.rows // ZOO_BLOCK_ROWS
    shards = num_shards(name, num_samples)
    each = num_samples // shards
    rows: dict[str, tuple[int, str]] = {}  # Name of a written file -> its number of rows, and checksums of its blocks.
    if each:
        # The writer deals out blocks of rows to the shards in turn, so each shard gets `each` blocks (samples) in all.
        # The blocks are read in such an order that shard 0 gets the first `each` blocks of the split, shard 1 the next
        # ones, and so on.
        numbers = [shard * each + index for index in range(each) for shard in range(shards)]
        blocks = read_files(blocks_folder, sources, numbers)
        checksums = _write_samples(folder / f"{name}_input_part.mindrecord", shards, blocks)
        rows |= {
            file: (each * ZOO_BLOCK_ROWS, "".join(checksums[shard::shards]))
            for shard, file in enumerate(part_files(name, shards))
        }
    elif name == "train":
        log.warning(
            "%s rows to train on do not fill %s files of %s: all are in %s, which the zoo does not read",
            f"{split.rows:,}",
            _FEWEST[name],
            f"{ZOO_BLOCK_ROWS:,}",
            rest_file(name),
        )
    rest = split.rows - shards * each * ZOO_BLOCK_ROWS
    if rest:
        blocks = read_files(blocks_folder, sources, range(shards * each, -(-split.rows // ZOO_BLOCK_ROWS)))
        rows[rest_file(name)] = rest, "".join(_write_samples(folder / rest_file(name), 1, blocks))
        log.info("%s: the last %s of %s rows are in %s", name, f"{rest:,}", f"{split.rows:,}", rest_file(name))
    files = tuple(data_file(folder, file, *rows_and_blocks) for file, rows_and_blocks in rows.items())
    return dataclasses.replace(split, files=files)


def _write_samples(path: Path, shards: int, blocks: Iterable[Examples]) -> list[str]:
    """Write each block of rows as a sample to one of `shards` files, in turn. Return the checksum of each block.

    The first block goes to the first file, the second block to the second file, and so on. The path of a file is `path`
    followed by the number of the shard, or `path` itself if `shards` is 1.
    """
    from mindspore.mindrecord import FileWriter

    writer = FileWriter(str(path), shards)
    writer.set_header_size(_HEADER_BYTES)
    writer.set_page_size(_PAGE_BYTES)
    writer.add_schema(_COLUMNS, "rows for the model zoo's Wide&Deep")
    checksums: list[str] = []
    first_shard = path.with_name(path.name + "0" * len(str(shards - 1))) if shards > 1 else path
    with as_os_error(path.parent):
        samples = map(_sample, blocks)
        while one_a_shard := list(itertools.islice(samples, shards)):
            sample_bytes = sum(column.nbytes for column in one_a_shard[0].values())
            require_room(first_shard, shards * (sample_bytes + _HEADER_BYTES) + 2 * _PAGE_BYTES)
            writer.write_raw_data(one_a_shard)
            checksums += [block_checksum(sample.values()) for sample in one_a_shard]
        writer.commit()
    return checksums


def _sample(block: Examples) -> dict[str, Any]:
    """Convert a block of rows to a sample of the model zoo's layout (see schema.py). Return its arrays by name.

    Each row has N + C ids and N + C values. A numeric column has its index as id and its number as value; a categorical
    column has its id and the value 1.
    """
    n, num_numeric = block.numeric.shape
    numeric_ids = np.broadcast_to(np.arange(num_numeric, dtype=np.int32), (n, num_numeric))
    values = np.concatenate([block.numeric, np.ones(block.ids.shape, np.float32)], axis=1)
    ids = np.concatenate([numeric_ids, block.ids], axis=1)
    return {"feat_ids": ids.ravel(), "feat_vals": values.ravel(), "label": block.labels}
