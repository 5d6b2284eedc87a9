"""`inspect`: whether a prepared folder is as it was written, and tables of what it holds.

Letters: n rows of a block, N numeric columns, C categorical fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.files import checksum
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.rows import Rows
from data_prep.prepared.schema import INDICATOR, SPLITS, VOCABULARY_FILE, Schema, read_schema, wrong_bins, wrong_ids

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
# Quantiles are of at most so many rows of a split, in evenly spaced blocks; all other figures of all rows.
QUANTILE_ROWS = 1_000_000


def inspect(folder: Path) -> None:
    """Check every file and print the tables.

    Raises FileNotFoundError and ValueError as `read_schema` and `verify_files`, and ValueError where an earlier release
    may have written wrong ids.
    """
    schema = read_schema(folder, allow_wrong_ids=True)
    num_files = verify_files(folder, schema)
    print(f"{folder}: {num_files} files with the right size and checksum")
    print(f"layout: {schema.layout} ({', '.join(_file_ranges(schema))})")
    print(f"{schema.vocabulary_size:,} ids, {schema.rejected_rows:,} of {schema.source['lines']:,} lines rejected")
    summaries = {split: summarize(folder, schema, split) for split in SPLITS if schema.splits[split].rows}
    with pd.option_context("display.max_rows", None, "display.max_columns", None, "display.width", 160):
        _print("Splits", splits_frame(schema))
        _print("Categorical fields: ids, and % of a split's rows", categorical_frame(schema, summaries))
        for split, summary in summaries.items():
            _print(f"Numeric columns of {split}: % missing, and quantiles of the others as written", summary.numeric)
    if found := wrong_bins(schema, folder):
        print(f"\nwarning: {found}")
    if found := wrong_ids(schema, folder):
        raise ValueError(found)


def _print(title: str, frame: pd.DataFrame) -> None:
    print(f"\n{title}\n{frame.to_string(float_format='{:.4g}'.format)}")


def _file_ranges(schema: Schema) -> Iterator[str]:
    """The files of each split, shortly."""
    for split in schema.splits.values():
        names = [file.name for file in split.files]
        if names:
            yield names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def verify_files(folder: Path, schema: Schema) -> int:
    """The number of files that schema.json names, all found as they were written.

    Raises FileNotFoundError for a missing one, ValueError for one of another size or checksum.
    """
    files = list(schema.all_files())
    for file in files:
        path = folder / file.name
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing, though schema.json names it; prepare the data again")
        found = (path.stat().st_size, checksum(path))
        if found != (file.size_bytes, file.checksum):
            raise ValueError(
                f"{path} is damaged: {found[0]:,} bytes, checksum {found[1]}; schema.json says {file.size_bytes:,} "
                f"bytes, {file.checksum}. Copy it again or prepare the data again"
            )
    return len(files)


def splits_frame(schema: Schema) -> pd.DataFrame:
    """Rows, share of all rows, clicks and click rate of each split."""
    frame = pd.DataFrame(
        {
            "rows": {name: split.rows for name, split in schema.splits.items()},
            "files": {name: len(split.files) for name, split in schema.splits.items()},
            "clicks": {name: split.clicks for name, split in schema.splits.items()},
            "click rate": {name: split.click_rate for name, split in schema.splits.items()},
        }
    )
    frame.insert(1, "share", frame["rows"] / frame["rows"].sum())
    return frame


def categorical_frame(schema: Schema, summaries: dict[str, SplitSummary]) -> pd.DataFrame:
    """A row a categorical field: its values in the vocabulary, percent missing and out of vocabulary by split."""
    frame = pd.DataFrame({"values": {field.name: field.num_values for field in schema.categorical}})
    for share in ("missing", "oov"):
        for split, summary in summaries.items():
            frame[f"{share} {split}"] = summary.categorical[share]
    return frame


def missing_ids(folder: Path) -> dict[str, int]:
    """The id of each categorical field's missing value."""
    table = pq.read_table(folder / VOCABULARY_FILE, columns=["field", "value", "id"], filters=pc.field("value") == "")
    return dict(zip(table["field"].to_pylist(), table["id"].to_pylist(), strict=True))


def summarize(folder: Path, schema: Schema, split: str) -> SplitSummary:
    """Figures of all rows of a split."""
    summary = SplitSummary(schema, missing_ids(folder), num_blocks=len(schema.block_sizes(split)))
    for block in read_blocks(folder, schema, split):
        summary.add(block)
    return summary


class SplitSummary:
    """Figures of the rows of one split, gathered block by block."""

    def __init__(self, schema: Schema, missing_ids: dict[str, int], num_blocks: int) -> None:
        self._schema = schema
        self._missing_ids = np.array([missing_ids[field.name] for field in schema.categorical])
        self._oov_ids = np.array([field.oov_ids for field in schema.categorical])
        self._sample_every = max(1, num_blocks * schema.block_rows // QUANTILE_ROWS)
        self._num_blocks = 0
        self._num_rows = 0
        self._num_missing: NDArray[np.int64] = np.zeros(schema.num_categorical, np.int64)
        self._num_oov: NDArray[np.int64] = np.zeros(schema.num_categorical, np.int64)
        self._sample: list[NDArray[np.float32]] = []

    def add(self, block: Rows) -> None:
        """Count a block in."""
        self._num_missing += np.sum(block.ids == self._missing_ids, axis=0)
        self._num_oov += np.sum((block.ids >= self._oov_ids[:, 0]) & (block.ids < self._oov_ids[:, 1]), axis=0)
        if self._num_blocks % self._sample_every == 0:
            self._sample.append(block.numeric)
        self._num_blocks += 1
        self._num_rows += len(block.labels)

    @property
    def categorical(self) -> pd.DataFrame:
        """Percent of rows that are missing and out of vocabulary, by field."""
        names = [field.name for field in self._schema.categorical]
        shares = {"missing": self._num_missing, "oov": self._num_oov}
        return pd.DataFrame({name: 100 * counts / self._num_rows for name, counts in shares.items()}, index=names)

    @property
    def numeric(self) -> pd.DataFrame:
        """Percent missing, and quantiles of the present cells, by numeric column (of all cells without indicators)."""
        sample = np.concatenate(self._sample)
        columns = {field.name: sample[:, place] for place, field in enumerate(self._schema.numeric)}
        rows = {}
        for field in self._schema.numeric:
            if field.transform != INDICATOR:
                indicator = columns.get(f"{field.source}_{INDICATOR}", np.zeros(len(sample), np.float32))
                present = columns[field.name][indicator == 0]
                quantiles = np.quantile(present, QUANTILES) if len(present) else np.full(len(QUANTILES), np.nan)
                rows[field.name] = [100 * np.mean(indicator, dtype=np.float64), *quantiles]
        names = ["missing", *(f"{100 * quantile:g} %" for quantile in QUANTILES)]
        return pd.DataFrame.from_dict(rows, orient="index", columns=names)
