"""Compare the preparation of a Delta and an Iceberg table with that of plain Parquet files of the same rows.

    python -m benchmarks.preparation.lake                      1 M synthetic rows in eight appends
    python -m benchmarks.preparation.lake --rows 5000000 --only delta

The plain files are the data files of the Delta table, in the order in which the table is read. The three preparations
take turns. The splits of the prepared folders must have the same bytes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import deltalake
import numpy as np
import pyarrow as pa

from benchmarks.harness.timing import new_parser, print_result
from data_prep.options.kinds import Kind
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.raw_log.log_files import find_log

PARTS, FIELDS = 8, 12
TABLES = ("delta", "iceberg")
CATEGORIES: dict[str, Kind] = {f"c{place}": "string" for place in range(FIELDS)}
COLUMNS: dict[str, Kind] = {"click": "label", **CATEGORIES, "price": "float"}


def rows(seed: int, num_rows: int) -> pa.Table:
    """Return synthetic rows: a label, categorical fields of 30,000 values each, and a number."""
    rng = np.random.default_rng(seed)
    values = rng.pareto(0.8, (FIELDS, num_rows)).astype(np.int64) % 30_000
    cells = {f"c{place}": pa.array(column).cast(pa.string()) for place, column in enumerate(values)}
    return pa.table({"click": rng.integers(0, 2, num_rows), **cells, "price": rng.random(num_rows).round(3)})


def write_tables(folder: Path, num_rows: int) -> dict[str, list[str]]:
    """Write the rows as a Delta and an Iceberg table. Return the inputs of each contender."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake")
    catalog.create_namespace("n")
    iceberg = catalog.create_table("n.t", rows(0, 1).schema)
    for part in range(PARTS):
        table = rows(part, num_rows // PARTS)
        deltalake.write_deltalake(folder / "delta", table, mode="append")
        iceberg.append(table)
    plain = folder / "plain"
    plain.mkdir()
    for place, file in enumerate(find_log(folder / "delta")):
        shutil.copy(file.location, plain / f"{place:03}.parquet")
    return {"parquet": [str(plain)], "delta": [str(folder / "delta")], "iceberg": [f"{folder}/lake/n/t"]}


def splits(folder: Path) -> dict[str, bytes]:
    """Return the content of the vocabulary and the splits of a prepared folder, by the names of their files."""
    names = ("*.mindrecord", "*.npy", "vocabulary.parquet")
    return {path.name: path.read_bytes() for name in names for path in sorted(folder.glob(name))}


def main() -> None:
    """Run the comparison, print the rows per second of each contender, and end with one line of JSON."""
    parser = new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=TABLES, default=TABLES, nargs="+", help="tables to compare (all)")
    arguments = parser.parse_args()
    options = PrepareOptions(data=LogFormat(columns=COLUMNS), min_count=2)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        inputs = write_tables(folder, arguments.rows)
        inputs = {name: log for name, log in inputs.items() if name not in {*TABLES} - {*arguments.only}}
        seconds: dict[str, list[float]] = {name: [] for name in inputs}
        for _ in range(arguments.rounds):
            for name, log in inputs.items():
                start = time.perf_counter()
                prepare(log, folder / f"out-{name}", options, overwrite=True)
                seconds[name].append(time.perf_counter() - start)
        rates = {name: arguments.rows / median(taken) for name, taken in seconds.items()}
        for name, rate in rates.items():
            share = rate / rates["parquet"]
            print(f"{name:8} {rate:12,.0f} rows/s, {share:.2f} × plain Parquet; seconds {seconds[name]}")
        same = {name: splits(folder / f"out-{name}") == splits(folder / "out-parquet") for name in inputs}
    print_result(arguments, rows_per_second=rates, same_bytes=same, seconds=seconds)


if __name__ == "__main__":
    main()
