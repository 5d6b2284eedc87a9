"""Read the rows of a prepared folder block by block, from MindRecord files in one of the two layouts of schema.py."""

from __future__ import annotations

import atexit
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.packages import load_alone
from common.process import held
from data_prep.prepared.data_files import (
    block_checksum,
    block_checksums,
    block_sizes,
    damaged_files,
    numbering_of_rows,
    wrong_sizes,
)
from data_prep.prepared.examples import KEY_PREFIX, NO_VECTORS, VECTORS, Examples
from data_prep.prepared.schema import Schema, advice, read_schema

_COLUMNS = {"blocks": ["ids", "numeric", "label"], "zoo": ["feat_ids", "feat_vals", "label"]}


def read_blocks(folder: Path, schema: Schema, split: str, numbers: Sequence[int] | None = None) -> Iterator[Examples]:
    """Yield the blocks of rows of a split that have the given numbers, in the order of `numbers`.

    If `numbers` is None, yield all blocks. Ids that expired or were renumbered since the rows were written are replaced
    by their present ids. Raise ValueError if MindSpore cannot read a file, or if a block differs from the one that was
    written.
    """
    numbers = range(len(block_sizes(schema, split))) if numbers is None else numbers
    if not len(numbers):
        return
    paths = [folder / file.name for file in schema.splits[split].files]
    beside = ["weight"] * bool(schema.weight) + [f"{KEY_PREFIX}{name}" for name in schema.keys]
    beside += [VECTORS] * bool(schema.vectors)
    if any(wrong_sizes(folder, schema, split)):  # A file of a wrong size may make MindSpore's reader end the process.
        raise ValueError(_damaged(folder, schema, split, "a file had another size"))
    samples, checksums = read_samples(paths, schema.layout, numbers, beside), block_checksums(schema, split)
    numbering = numbering_of_rows(folder, schema)
    for number in numbers:
        try:
            sample = next(samples, ())
        except RuntimeError as error:
            raise ValueError(_damaged(folder, schema, split, _reason(error))) from error
        if not sample or block_checksum(sample) != checksums[number]:
            raise ValueError(_damaged(folder, schema, split, f"block {number} is not the one that was written"))
        rows = _block(schema, *sample)
        yield rows if numbering is None else dataclasses.replace(rows, ids=numbering[rows.ids])


def _reason(error: RuntimeError) -> str:
    """Return the first line of MindSpore's error text that begins with [ERROR], as text for an error message.

    The whole error text has several pages.
    """
    lines = str(error).splitlines()
    reason = next((line.removeprefix("[ERROR] ") for line in lines if line.startswith("[ERROR] ")), lines[0])
    return f"MindSpore cannot read it: {reason}"


def _damaged(folder: Path, schema: Schema, split: str, reason: str) -> str:
    """Return the error message that names the damaged files of a split that cannot be read.

    All files of the split are read, and the message names those that are missing or have a wrong checksum. If there are
    none, the message gives `reason` instead. If schema.json has changed since `schema` was read, the message only says
    that.
    """
    with suppress(OSError, ValueError):
        if read_schema(folder).splits.get(split) != schema.splits[split]:
            return (
                f"{folder} was prepared anew while split {split!r} was read: schema.json names other rows now; run the "
                "same command again for these, or prepare the former log again, with its settings, for the former ones"
            )
    damaged = list(damaged_files(folder, schema, split))
    reasons = "; ".join(damaged) or f"{reason}, though its files have the checksums of schema.json"
    return f"the data of split {split!r} in {folder} is damaged: {reasons}; {advice(folder)}"


def read_samples(
    paths: Sequence[Path], layout: str, numbers: Sequence[int] | None = None, beside: Sequence[str] = ()
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the samples of .mindrecord files that have the given numbers, in the order of `numbers`.

    If `numbers` is None, yield all samples. Samples are numbered from 0 over all files. A sample is a tuple of arrays:
    ids, numbers and labels, followed by the columns named in `beside`. Raise RuntimeError if MindSpore cannot read the
    files.
    """
    # Signals are deferred while the library is loaded. If a signal ended Python then, the process would abort with
    # pages of messages.
    with held():
        engine: Any = load_alone("mindspore._c_dataengine")
    if numbers is None:
        sampler = engine.MindrecordSequentialSampler(0, 0)
    else:
        sampler = engine.MindrecordSubsetSampler([int(number) for number in numbers])
    # One worker, because more workers read no faster, and would take cores from the training.
    data = engine.MindDataNode(
        list(map(str, paths)),
        [*_COLUMNS[layout], *beside],
        SimpleNamespace(parse_for_minddataset=lambda: sampler),  # The engine calls this method.
        {},  # This argument and the next one would describe padding samples. There are none.
        0,
        engine.ShuffleMode.FALSE,
    ).set_num_workers(1)
    context, iterator = engine.PythonRuntimeContext(), engine.PythonIteratorConsumer(1)
    context.Init()
    iterator.Init(data, 0, -1)
    context.AssignConsumer(iterator)
    # MindSpore's threads must end before Python does, also if the caller never takes the last sample. So they are ended
    # at exit.
    atexit.register(context.Terminate)
    try:
        while columns := iterator.GetNextAsList():
            yield tuple(column.as_array() for column in columns)
    finally:
        atexit.unregister(context.Terminate)
        context.Terminate()


def read_files(
    folder: Path, files: Sequence[str], numbers: Sequence[int] | None = None, ids_dtype: DTypeLike = "int32"
) -> Iterator[Examples]:
    """Yield the blocks of rows in .mindrecord files with the layout `blocks`. Weights and keys are left out.

    The blocks are not compared with their checksums. Only the blocks with the given `numbers`, counted from 0 over all
    `files`, are read, in the order of `numbers`. If `numbers` is None, all are read.
    """
    if not files:
        return
    for ids, numeric, labels in read_samples([folder / name for name in files], "blocks", numbers):
        n = len(labels)
        yield Examples(ids_of(ids, n, ids_dtype), rows_of(numeric, n), labels)


def ids_of(stored: np.ndarray, n: int, dtype: DTypeLike) -> NDArray[np.signedinteger]:
    """Return the ids of a sample, which is a stored block of n rows, as an array [n, P].

    `stored` are the bytes that MindRecord returns for the ids.
    """
    return stored.view(np.dtype(dtype).newbyteorder("<")).reshape(n, -1)


def rows_of(values: np.ndarray, n: int) -> np.ndarray:
    """Return the values of a sample (a stored block of n rows) as an array [n, N], or [n, 0] if `values` is a scalar.

    MindRecord returns a scalar for an empty array.
    """
    return values.reshape(n, -1) if values.ndim else np.empty((n, 0), values.dtype)


def _block(schema: Schema, ids: np.ndarray, values: np.ndarray, labels: np.ndarray, *beside: np.ndarray) -> Examples:
    """Return the n rows that a MindRecord sample stores, given the sample's arrays.

    In the layout `blocks`, `ids` are bytes, `values` is [n · N], and `beside` has the weights, the keys and the vectors
    [n · K]. In the layout `zoo`, `ids` and `values` are [n · (N + C)], and there is nothing else.
    """
    n, num_numeric = len(labels), schema.num_numeric
    if schema.layout == "zoo":  # The layout zoo has no columns of weights or keys.
        ids, values = ids.reshape(n, -1), values.reshape(n, -1)
        ids, values = np.ascontiguousarray(ids[:, num_numeric:]), np.ascontiguousarray(values[:, :num_numeric])
        return Examples(ids, values, labels)
    others = list(beside)
    weights = others.pop(0) if schema.weight else None
    vectors = rows_of(others.pop(), n) if schema.vectors else NO_VECTORS
    by_name = dict(zip(schema.keys, others, strict=True))
    return Examples(ids_of(ids, n, schema.ids_dtype), rows_of(values, n), labels, weights, by_name, vectors)


def read_spread(folder: Path, schema: Schema, split: str, max_rows: int | None = None) -> Iterator[Examples]:
    """Yield the blocks of rows of a split, without the rows of weight 0.

    With `max_rows`, yield only some blocks, spread evenly over the split, with about `max_rows` rows in all.
    """
    sizes = np.array(block_sizes(schema, split))
    num_blocks = len(sizes)
    if max_rows is not None and sizes.sum() > max_rows:
        num_blocks = max(1, int(max_rows / sizes.mean()))
    numbers = np.unique(np.linspace(0, len(sizes) - 1, num_blocks).astype(int))
    for rows in read_blocks(folder, schema, split, numbers.tolist()):
        yield rows if rows.weights is None else rows.take(rows.weights > 0)
