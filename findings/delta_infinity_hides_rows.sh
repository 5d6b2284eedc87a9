#!/usr/bin/env bash
# deltalake 1.6.6 with pyarrow 25.0.1: one infinite number hides all rows of its data file from filters on its column.
# The table's log is JSON, which has no infinity, so deltalake writes null as the smallest or largest value of the file.
# to_pyarrow_dataset turns it into a comparison with null, which is never true, and skips the file. The logarithm of 0
# is such a number. The finite rows of the file are lost too, for each of the filters =, <, >, <= and >=. polars 2.1.0
# and the QueryBuilder of deltalake find all rows, and so does pyarrow in the Parquet files themselves.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==25.0.1 polars==2.1.0 \
    numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import json
from pathlib import Path

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

for counts in ([0, 1, 8], [2, 4]):  # Two data files. Only the first has the logarithm of 0.
    write_deltalake("table", pa.table({"log_count": pc.log2(pa.array(counts, pa.float64()))}), mode="append")
table = DeltaTable("table")
dataset = table.to_pyarrow_dataset(filesystem=SubTreeFileSystem("table", LocalFileSystem()))
entries = [json.loads(line) for file in sorted(Path("table/_delta_log").glob("*.json")) for line in file.open()]
statistics = [json.loads(entry["add"]["stats"]) for entry in entries if "add" in entry]
print("smallest and largest values in the log:", [(each["minValues"], each["maxValues"]) for each in statistics])
assert statistics[0]["minValues"] == {"log_count": None} and statistics[0]["maxValues"] == {"log_count": 3.0}

column, name = pc.field("log_count"), polars.col("log_count")
filters = {
    "= 3": (column == 3.0, name == 3.0, [3.0]),
    "> 1": (column > 1.0, name > 1.0, [2.0, 3.0]),
    "< 2": (column < 2.0, name < 2.0, [float("-inf"), 0.0, 1.0]),
    ">= 0": (column >= 0.0, name >= 0.0, [0.0, 1.0, 2.0, 3.0]),
    "<= 3": (column <= 3.0, name <= 3.0, [float("-inf"), 0.0, 1.0, 2.0, 3.0]),
}
query = QueryBuilder().register("log", table)
for text, (by_pyarrow, by_polars, right) in filters.items():
    others = [
        ds.dataset(table.file_uris()).to_table(filter=by_pyarrow)["log_count"].to_pylist(),
        polars.scan_delta("table").filter(by_polars).collect()["log_count"].to_list(),
        pa.table(query.execute(f"select * from log where log_count {text}").read_all())["log_count"].to_pylist(),
    ]
    found = sorted(dataset.to_table(filter=by_pyarrow)["log_count"].to_pylist())
    print(f"log_count {text}: to_pyarrow_dataset {found}, the three others {right}")
    assert [sorted(other) for other in others] == [right] * 3
    assert found == [each for each in right if each in (1.0, 2.0)]
PROGRAM
venv/bin/python -W ignore program.py
