#!/usr/bin/env bash
# pyiceberg 0.12.0 with polars 2.1.0: a table made for a column of uint32 or uint64, such as hashed ids, has the types
# int and long, because Iceberg has no unsigned types, but append leaves the data files unsigned. polars refuses the
# table. pyiceberg reads it as uint64, and after a second file with int64 as int64. Without statistics of values, append
# even takes ids of 2^63 and above, which are no long. With statistics they are refused, with the error "argument out of
# range".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "pyiceberg[sql-sqlite]==0.12.0" pyarrow==25.0.1 \
    polars==2.1.0 \
    numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import os
import struct

import polars
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

catalog = SqlCatalog("catalog", uri="sqlite:///catalog.db", warehouse=f"file://{os.getcwd()}/warehouse")
catalog.create_namespace("shop")


def made(name, ids, kind, **properties):
    rows = pa.table({"user": pa.array(ids, kind)})
    table = catalog.create_table(f"shop.{name}", rows.schema, properties=properties)
    table.append(rows)
    return table


for name, kind, written in (("small", pa.uint32(), "int"), ("large", pa.uint64(), "long")):
    table = made(name, [7, 40], kind)
    found = table.scan().to_arrow()["user"]
    print(f"{kind}: the table says {table.schema().fields[0].field_type}, pyiceberg reads {found.type}")
    assert str(table.schema().fields[0].field_type) == written and found.type == kind and found.to_pylist() == [7, 40]
    try:
        polars.scan_iceberg(table).collect()
        raise AssertionError("polars read it")
    except polars.exceptions.SchemaError as error:
        print("polars:", error)
table.append(pa.table({"user": pa.array([9], pa.int64())}))
print("after a second file:", table.scan().to_arrow()["user"].type)
assert table.scan().to_arrow()["user"].type == pa.int64()

HASH = 2**63 + 5
try:
    made("refused", [HASH], pa.uint64())
    raise AssertionError("it was written")
except struct.error as error:
    print(f"the id {HASH}: {error}")
    assert str(error) == "argument out of range"
unchecked = made("unchecked", [HASH], pa.uint64(), **{"write.metadata.metrics.default": "counts"})
print(f"without statistics of values: {unchecked.scan().to_arrow()['user'].to_pylist()} in a column of type long")
assert str(unchecked.schema().fields[0].field_type) == "long"
assert unchecked.scan().to_arrow()["user"].to_pylist() == [HASH]
PROGRAM
venv/bin/python -W ignore program.py
