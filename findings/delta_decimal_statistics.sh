#!/usr/bin/env bash
# deltalake 1.6.6: filters lose rows with decimals of 17 digits. The table's log has the smallest and the largest value
# of each data file as JSON numbers, and deltalake rounds them to float64, which has 15 to 17 digits: a price of
# 1234567.1234567893 is said to be at most 1234567.1234567892. A filter for the price skips the file, whether the reader
# is deltalake's own QueryBuilder, its dataset for pyarrow 25.0.1, or polars 2.1.0. Reading the whole table has every
# row.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==25.0.1 polars==2.1.0 \
    numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import random
from decimal import Decimal

import polars
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

FILES, ROWS = 20, 50
TYPE = pa.decimal128(20, 10)
random.seed(0)
files = [sorted(Decimal(random.randrange(10**16, 2 * 10**16)).scaleb(-10) for _ in range(ROWS)) for _ in range(FILES)]
for prices in files:
    write_deltalake("table", pa.table({"price": pa.array(prices, TYPE)}), mode="append")
table = DeltaTable("table")
dataset = table.to_pyarrow_dataset(filesystem=SubTreeFileSystem("table", LocalFileSystem()))
assert sorted(table.to_pyarrow_table()["price"].to_pylist()) == sorted(sum(files, []))
query = QueryBuilder().register("log", table)


def found(price):
    """Return which of three readers find the row of a price."""
    text = f"select * from log where price = cast('{price}' as decimal(20, 10))"
    literal = polars.lit(price, dtype=polars.Decimal(20, 10))
    return (
        pa.table(query.execute(text).read_all()).num_rows,
        dataset.to_table(filter=pc.field("price") == pa.scalar(price, TYPE)).num_rows,
        len(polars.scan_delta("table").filter(polars.col("price") == literal).collect()),
    )


edges = [price for prices in files for price in (prices[0], prices[-1])]
counts = [sum(rows) for rows in zip(*map(found, edges), strict=True)]
inner = [sum(rows) for rows in zip(*(found(prices[ROWS // 2]) for prices in files), strict=True)]
limits = pa.table(table.get_add_actions(flatten=True))
largest, smallest = (set(limits[name].to_pylist()) for name in ("max.price", "min.price"))
wrong = sum(prices[0] not in smallest for prices in files) + sum(prices[-1] not in largest for prices in files)
print(f"of {2 * FILES} smallest and largest prices of a file, {wrong} are other numbers in the log")
print(f"{2 * FILES - counts[0]} of them are not found by QueryBuilder, {2 * FILES - counts[1]} by pyarrow, "
      f"{2 * FILES - counts[2]} by polars; of {FILES} prices in the middle of a file, found {inner}")
assert counts == [26] * 3 and inner == [FILES] * 3 and wrong > 20
PROGRAM
venv/bin/python -W ignore program.py
