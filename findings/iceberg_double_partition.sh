#!/usr/bin/env bash
# pyiceberg 0.12.0: in a table partitioned by a double column, a filter such as price = 0.1 loses its rows. The manifest
# holds the right partition value (fastavro reads 0.1), but pyiceberg reads it as a float32, 0.10000000149011612, and
# skips the file. Only values that a float32 holds exactly, such as 0.25, are found. The same rows in a table without
# partitions are all found.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    "pyiceberg[sql-sqlite]==0.12.0" pyarrow==25.0.1 fastavro==1.13.1 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import os
from pathlib import Path

import fastavro
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

PRICES = [0.1, 0.25, 0.7, 2.5]
catalog = SqlCatalog("catalog", uri="sqlite:///catalog.db", warehouse=f"file://{os.getcwd()}/warehouse")
catalog.create_namespace("shop")
rows = pa.table({"price": pa.array(PRICES, pa.float64())})
plain = catalog.create_table("shop.plain", rows.schema)
partitioned = catalog.create_table("shop.partitioned", rows.schema)
with partitioned.update_spec() as spec:
    spec.add_identity("price")
for table in (plain, partitioned):
    table.append(rows)


def prices(table, condition):
    return sorted(table.scan(row_filter=condition).to_arrow()["price"].to_pylist())


assert sorted(partitioned.scan().to_arrow()["price"].to_pylist()) == PRICES
for condition, lost in {
    "price = 0.1": [0.1],
    "price <= 0.1": [0.1],
    "price in (0.1, 0.7)": [0.1, 0.7],
    "price != 2.5": [],
    "price = 0.25": [],
}.items():
    right, found = prices(plain, condition), prices(partitioned, condition)
    print(f"{condition:20} without partitions {right}, with partitions {found}")
    assert found == [price for price in right if price not in lost]
(manifest,) = Path("warehouse/shop/partitioned/metadata").glob("*-m0.avro")
with manifest.open("rb") as file:
    written = sorted(entry["data_file"]["partition"]["price"] for entry in fastavro.reader(file))
read = sorted(task.file.partition[0] for task in partitioned.scan().plan_files())
print(f"partition values by fastavro {written}, by pyiceberg {read}")
assert written == PRICES and read == [0.10000000149011612, 0.25, 0.699999988079071, 2.5]
PROGRAM
venv/bin/python -W ignore program.py
