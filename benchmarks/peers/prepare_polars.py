"""A straightforward polars pipeline that gives rows the ids and numbers of `data_prep prepare`, as Parquet.

    python -m benchmarks.peers.prepare_polars LOG OUTPUT --form eager|streaming

*eager* holds all rows in memory. *streaming* reads the log twice with polars' streaming engine. Both leave out what
`prepare` does besides: bad lines, shuffling of the training rows, checksums, the vocabulary as a file. Parquet is
written without compression, which is polars' fastest.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

import polars as pl
from polars.testing import assert_frame_equal

from benchmarks.harness.commands import read_rows
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.split import TRAIN, RowsToSplit, make_split
from data_prep.prepared.schema import SPLITS, read_schema

INTEGERS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]
SCHEMA = {"label": pl.Int8} | dict.fromkeys(INTEGERS, pl.Int64) | dict.fromkeys(CATEGORIES, pl.String)
FIRST_OOV_ID = 2 * len(INTEGERS)  # Smaller ids belong to the numeric columns and to their indicators of missing cells.
# Largest relative difference between a number of `prepare` and the same number here: both programs round float64 to
# float32, but the last bit of a logarithm depends on the library.
LAST_BIT = 2e-7
Form = Literal["eager", "streaming"]


def split_column() -> pl.Expr:
    """Return an expression for the index of each row's split, by the hash of the row's number that `prepare` uses."""
    split = make_split(PrepareOptions(), lambda: 0, lambda _: [])

    def assign(rows: pl.Series) -> pl.Series:
        return pl.Series(split.assign(RowsToSplit(rows.cast(pl.Int64).to_numpy())))

    return pl.col("row").map_batches(assign, return_dtype=pl.Int8, is_elementwise=True)


def count_values(rows: pl.LazyFrame, name: str, min_count: int) -> pl.LazyFrame:
    """Return the values of a field that get an id, in the order of their ids."""
    counts = rows.group_by(pl.col(name).fill_null("").alias("value")).agg(pl.len().alias("count"))
    frequent = counts.filter((pl.col("count") >= min_count) | (pl.col("value") == ""))
    return frequent.sort(["count", "value"], descending=[True, False]).select("value")


def id_columns(vocabulary: list[pl.DataFrame]) -> list[pl.Expr]:
    columns, next_id = [], FIRST_OOV_ID + len(CATEGORIES)
    for place, (name, field) in enumerate(zip(CATEGORIES, vocabulary, strict=True)):
        if "" not in field["value"]:  # A missing cell has an id even if no training row has one.
            field.extend(pl.DataFrame({"value": [""]}))
        ids = pl.int_range(next_id, next_id + len(field), dtype=pl.Int32, eager=True)
        column = pl.col(name).fill_null("")
        columns.append(
            column.replace_strict(field["value"], ids, default=FIRST_OOV_ID + place, return_dtype=pl.Int32).alias(name)
        )
        next_id += len(field)
    return columns


def number_columns() -> list[pl.Expr]:
    """Return expressions for the signed logarithms of the integers, then for 1 where an integer is missing, else 0."""
    logarithms = [
        (pl.col(name).sign() * pl.col(name).abs().log1p()).fill_null(0).cast(pl.Float32).alias(name)
        for name in INTEGERS
    ]
    return logarithms + [pl.col(name).is_null().cast(pl.Float32).alias(f"{name}_missing") for name in INTEGERS]


def prepare(log: Path, output: Path, min_count: int, form: Form) -> None:
    """Prepare a log with polars: write one Parquet file of encoded rows for each split."""
    output.mkdir(parents=True)
    read = pl.read_csv if form == "eager" else pl.scan_csv
    read_log = read(log, separator="\t", has_header=False, schema=SCHEMA, row_index_name="row", quote_char=None)
    rows = read_log.with_columns(split=split_column()).lazy()
    engine: Literal["in-memory", "streaming"] = "in-memory" if form == "eager" else "streaming"
    training = rows.filter(pl.col("split") == TRAIN)
    vocabulary = pl.collect_all([count_values(training, name, min_count) for name in CATEGORIES], engine=engine)
    encoded = rows.select("split", pl.col("label").cast(pl.Float32), *id_columns(vocabulary), *number_columns())
    if form == "eager":
        encoded = encoded.collect().lazy()
    parts = [encoded.filter(pl.col("split") == place).drop("split") for place in range(len(SPLITS))]
    sinks = [
        part.sink_parquet(output / f"{name}.parquet", compression="uncompressed", lazy=True)
        for name, part in zip(SPLITS, parts, strict=True)
    ]
    pl.collect_all(sinks, engine=engine)


def check_agreement(ours: Path, theirs: Path) -> int:
    """Compare labels, ids and numbers of two prepared logs, split by split. Return the number of rows.

    Training rows are compared in any order. Raise ValueError, naming the split, if rows differ, because the times would
    mean nothing.
    """
    schema, num_rows = read_schema(ours), 0
    for split in SPLITS:
        rows, found = read_rows(ours, schema, split), pl.read_parquet(theirs / f"{split}.parquet")
        columns = (rows.labels, *rows.ids.T, *rows.numeric.T)
        expected = pl.DataFrame(dict(zip(found.columns, columns, strict=True)))
        try:
            assert_frame_equal(found, expected, check_row_order=split != "train", rel_tol=LAST_BIT, abs_tol=0)
        except AssertionError as error:
            raise ValueError(f"split {split} is not the same: {error}") from None
        num_rows += len(rows)
    return num_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--min-count", type=int, default=10)
    parser.add_argument("--form", choices=["eager", "streaming"], default="eager")
    command = parser.parse_args()
    prepare(command.log, command.output, command.min_count, command.form)


if __name__ == "__main__":
    main()
