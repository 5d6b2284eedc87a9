#!/usr/bin/env bash
# deltalake 1.6.6 cannot write a negative decimal with a fraction as the value of a partition column: -2.50 becomes the
# text "-2.-50". The write raises an error, but only after its commit. So the table has a new version, in which it cannot
# be opened or appended to: one such value blocks all earlier rows too. 2.50 and -2.00 are right.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==25.0.1 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import json
from decimal import Decimal
from pathlib import Path

import deltalake
import pyarrow as pa


def append(*texts):
    amounts = pa.array(list(map(Decimal, texts)), pa.decimal128(7, 2))
    rows = pa.table({"amount": amounts, "id": pa.array(range(len(texts)))})
    deltalake.write_deltalake("table", rows, partition_by=["amount"], mode="append")


def error_of(action, *arguments):
    try:
        action(*arguments)
    except deltalake.exceptions.DeltaError as error:
        return str(error)
    return None


append("2.50", "-2.00")
amounts = deltalake.DeltaTable("table").to_pyarrow_table()["amount"].to_pylist()
assert sorted(amounts) == [Decimal("-2.00"), Decimal("2.50")]
errors = {
    "append -2.50": error_of(append, "-2.50"),
    "open the table": error_of(deltalake.DeltaTable, "table"),
    "append 1.00": error_of(append, "1.00"),
}
print(deltalake.__version__, *(f"{name:16}{error}" for name, error in errors.items()), sep="\n")
assert set(errors.values()) == {"Kernel error: Failed to parse value '-2.-50' as 'decimal(7,2)'"}
last = max(Path("table/_delta_log").glob("*.json"))
(added,) = [json.loads(line)["add"] for line in last.read_text().splitlines() if line.startswith('{"add"')]
print(last.name, added["partitionValues"])
assert last.name == "00000000000000000001.json" and added["partitionValues"] == {"amount": "-2.-50"}
PROGRAM
venv/bin/python program.py
