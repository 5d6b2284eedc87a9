#!/usr/bin/env bash
# duckdb 2.0.0 and pyarrow 25.0.1: a filter on a Parquet file loses rows with NaN that the same filter finds in the same
# rows in memory. The smallest and largest value of a row group leave NaN out, and both readers skip row groups by them.
# duckdb takes NaN for larger than all numbers, but "price > 2" skips the row group [1, NaN]. In pyarrow NaN is not
# equal to a number, but "price != 1" skips the row group [1, NaN]. polars 2.1.0 finds the same rows in both places.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.0 pyarrow==25.0.1 polars==2.1.0 \
    numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import math
import operator

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

NAN = math.nan
rows = pa.table({"row": range(6), "price": [1.0, NAN, 3.0, 3.0, NAN, NAN]})
pq.write_table(rows, "rows.parquet", row_group_size=2)
group = pq.ParquetFile("rows.parquet").metadata.row_group(0).column(1).statistics
print(f"row group [1, NaN]: smallest {group.min}, largest {group.max}")
assert (group.min, group.max) == (1.0, 1.0)


def found(sign, number):
    """Return the rows that a filter leaves, for each reader in memory and in the file."""
    compare = {">": operator.gt, "!=": operator.ne, "<": operator.lt}[sign]
    field, column = compare(pc.field("price"), number), compare(polars.col("price"), number)
    return {
        "duckdb": [
            duckdb.sql(f"select row from {source} where price {sign} {number}").fetchnumpy()["row"].tolist()
            for source in ("rows", "'rows.parquet'")
        ],
        "pyarrow": [
            rows.filter(field)["row"].to_pylist(),
            pq.read_table("rows.parquet", filters=field)["row"].to_pylist(),
        ],
        "polars": [
            polars.from_arrow(rows).filter(column)["row"].to_list(),
            polars.scan_parquet("rows.parquet").filter(column).collect()["row"].to_list(),
        ],
    }


for sign, number, lost in ((">", 2, {"duckdb": [1]}), ("!=", 1, {"duckdb": [1], "pyarrow": [1]}), ("<", 2, {})):
    for name, (memory, file) in found(sign, number).items():
        print(f"price {sign} {number}: {name:8}in memory {memory}, in the file {file}")
        assert sorted(file) == [row for row in sorted(memory) if row not in lost.get(name, [])]
PROGRAM
venv/bin/python program.py
