"""Verify the files of a prepared folder and print tables of its rows, for the command `inspect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.text import show
from data_prep.prepared.data_files import block_sizes, verify_files, whole_log
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import INDICATOR, NORM_RANKS, SPLITS, VOCABULARY_FILE, Schema, read_schema, vector_slices
from data_prep.statistics.statistics import cut_lists, read_statistics

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
# Quantiles of a split (such as the training rows) are computed from evenly spaced blocks of it with about this many
# rows in all. Other figures use all rows.
QUANTILE_ROWS = 1_000_000


def inspect(folder: Path) -> None:
    """Verify the size and checksum of every file of a prepared folder, and print tables of its splits and columns.

    Raise FileNotFoundError if `folder` is not a prepared folder, and ValueError if a file is damaged.
    """
    schema = read_schema(folder)
    num_files = verify_files(folder, schema)
    show(f"{folder}: {num_files} files with the right size and checksum")
    show(f"layout: {schema.layout} ({', '.join(_file_ranges(schema))})")
    show(f"{schema.vocabulary_size:,} ids, {schema.rejected_rows:,} of {schema.source['lines']:,} lines rejected")
    whole, profile = whole_log(schema), read_statistics(folder)
    show(f"{schema.log_format.label_in_words}; click rate {profile.click_rate:.2%}")
    if kept := profile.kept_rows_in_words(schema):
        show(kept)
    print_table(
        "Splits",
        ["rows", "fraction", "files", "clicks", "click rate"],
        {
            name: [split.rows, split.rows / max(whole.rows, 1), len(split.files), split.clicks, split.click_rate]
            for name, split in schema.splits.items()
        },
    )
    summaries = {split: summarize(folder, schema, split) for split in SPLITS if schema.splits[split].rows}
    print_table(
        "Categorical columns: values with an id, and % of a split's rows that are missing or out of vocabulary",
        ["values", *(f"missing {split}" for split in summaries), *(f"oov {split}" for split in summaries)],
        {
            field.name: [
                field.num_values,
                *(summary.missing_percent[index] for summary in summaries.values()),
                *(summary.oov_percent[index] for summary in summaries.values()),
            ]
            for index, field in enumerate(schema.categorical)
        },
    )
    if any(field.max_length > 1 for field in schema.categorical):
        show("\n".join(cut_lists(schema, profile)))
    quantile_names = [f"{100 * quantile:g} %" for quantile in QUANTILES]
    for split, summary in summaries.items():
        title = f"Numeric columns of {split}: % missing, and quantiles of the others as written"
        print_table(title, ["missing", *quantile_names], summary.numeric)
    if schema.vectors:
        print_table(
            "Vector columns: % missing, and quantiles of the Euclidean norms in train",
            ["width", *(f"missing {split}" for split in summaries), *(f"{100 * rank:g} %" for rank in NORM_RANKS)],
            {
                field.name: [
                    field.width,
                    *(summary.vectors_missing_percent[index] for summary in summaries.values()),
                    *(field.norms or ["–"] * len(NORM_RANKS)),
                ]
                for index, field in enumerate(schema.vectors)
            },
        )


def print_table(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[object]]) -> None:
    """Print a table with a title, the header `columns` and a line for each row. Floats have four significant digits."""
    lines = [["", *columns], *([name, *map(_cell, row)] for name, row in rows.items())]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    show(f"\n{title}")
    for first, *cells in lines:
        show("  ".join([first.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip())


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _file_ranges(schema: Schema) -> Iterator[str]:
    """For each split (train, valid, test) that has files, yield a text that names its first and last file."""
    for split in schema.splits.values():
        names = [file.name for file in split.files]
        if names:
            yield names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


@dataclass(frozen=True)
class SplitSummary:
    """Figures about the columns of one split of a prepared folder, for the tables that `inspect` prints."""

    missing_percent: NDArray[np.float64]  # Percentage of rows whose cell is missing, for each categorical column [C].
    # Percentage of rows with an out-of-vocabulary value, for each categorical column [C]. If the column is a list, a
    # row is included if at least one value of its list is out of vocabulary.
    oov_percent: NDArray[np.float64]
    # A list for each numeric column, by name: the percentage of missing cells, then the quantiles `QUANTILES` of the
    # present cells. If the folder was prepared without missing indicators, the percentage is 0, and missing cells count
    # as numbers in the quantiles.
    numeric: dict[str, list[float]]
    vectors_missing_percent: list[float]  # Percentage of rows whose vector is missing, by vector column.


def summarize(folder: Path, schema: Schema, split: str) -> SplitSummary:
    """Read all rows of a split (train, valid or test). Return its columns' shares of missing cells and quantiles."""
    lengths = np.array([field.max_length for field in schema.categorical])
    starts = np.cumsum(lengths) - lengths
    missing_ids = np.repeat(_missing_ids(folder, schema), lengths)
    oov_ids = np.repeat([field.oov_ids for field in schema.categorical], lengths, axis=0)
    sample_every = max(1, len(block_sizes(schema, split)) * schema.block_rows // QUANTILE_ROWS)
    counts, sample = np.zeros((2, schema.num_categorical), np.int64), []
    indicators = [components.stop for components in vector_slices(schema.vectors)]
    vectors_missing = np.zeros(len(indicators))
    for number, block in enumerate(read_blocks(folder, schema, split)):
        is_oov = (block.ids >= oov_ids[:, 0]) & (block.ids < oov_ids[:, 1])
        for count, is_counted in zip(counts, (block.ids == missing_ids, is_oov), strict=True):
            count += np.logical_or.reduceat(is_counted, starts, axis=1).sum(axis=0)
        vectors_missing += block.vectors[:, indicators].sum(axis=0)
        if number % sample_every == 0:
            sample.append(block.numeric)
    missing, oov = 100 * counts / schema.splits[split].rows
    numeric = _quantiles(schema, np.concatenate(sample))
    return SplitSummary(missing, oov, numeric, (100 * vectors_missing / schema.splits[split].rows).tolist())


def _missing_ids(folder: Path, schema: Schema) -> list[int]:
    """Return, for each categorical field [C], the id that the rows of the folder have for a missing cell."""
    values = pq.read_table(folder / VOCABULARY_FILE, columns=["field", "id"], filters=pc.field("value") == "")
    missing_ids = dict(zip(values["field"].to_pylist(), values["id"].to_pylist(), strict=True))
    # Fields that share a vocabulary have a single entry in vocabulary.parquet. Such fields have the same range of
    # out-of-vocabulary ids, by which they are recognized.
    missing_of = {field.oov_ids: missing_ids[field.name] for field in schema.categorical if field.name in missing_ids}
    return [missing_of[field.oov_ids] for field in schema.categorical]


def _quantiles(schema: Schema, sample: NDArray[np.float32]) -> dict[str, list[float]]:
    columns = {field.name: sample[:, index] for index, field in enumerate(schema.numeric)}
    rows = {}
    for field in schema.numeric:
        if field.is_whole:
            indicator = columns.get(f"{field.source}_{INDICATOR}", np.zeros(len(sample), np.float32))
            present = columns[field.name][indicator == 0]
            quantiles = np.quantile(present, QUANTILES) if len(present) else np.full(len(QUANTILES), np.nan)
            rows[field.name] = [100 * float(np.mean(indicator, dtype=np.float64)), *map(float, quantiles)]
    return rows
