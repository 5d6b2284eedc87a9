#!/usr/bin/env bash
# deltalake 1.6.6 does not return binary values of a partition column as they were written: the byte "a" comes back as
# the six bytes "\u0061", in the rows, in SQL and in the table's list of files. Hashes that partition a table are such
# values. Binary columns that are no partition columns are right.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==25.0.1 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import deltalake
import pyarrow as pa

rows = pa.table({"part": pa.array([b"a", b"b"], pa.binary()), "plain": pa.array([b"a", b"b"], pa.binary())})
deltalake.write_deltalake("table", rows, partition_by=["part"])
table = deltalake.DeltaTable("table")
by_arrow = table.to_pyarrow_table()
by_sql = pa.table(deltalake.QueryBuilder().register("t", table).execute("SELECT part, plain FROM t").read_all())
by_files = [each["partition"]["part"] for each in pa.table(table.get_add_actions()).to_pylist()]
for name, found in (("rows", by_arrow), ("SQL", by_sql)):
    pairs = sorted(zip(found["part"].to_pylist(), found["plain"].to_pylist()))
    print(deltalake.__version__, name, pairs)
    assert pairs == [(b"\\u0061", b"a"), (b"\\u0062", b"b")]
print(deltalake.__version__, "files", sorted(by_files))
assert sorted(by_files) == [b"\\u0061", b"\\u0062"]
PROGRAM
venv/bin/python program.py
