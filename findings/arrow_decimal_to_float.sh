#!/usr/bin/env bash
# pyarrow 26.0.1 casts decimal(7, 2) to float64 by dividing in floating point: 13,929 of the 100,000 numbers from 0.00 to
# 999.99 become a neighbour of the float64 that their text is (4.02 becomes 4.0200000000000005). polars 2.1.0 and duckdb
# 2.0.1 differ in none. A rule such as "clicked: <= 4.02" or a category of such numbers depends on it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.1 numpy==2.4.6
cd "$work"
venv/bin/python - <<'PROGRAM'
from decimal import Decimal

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

numbers = [Decimal(cents).scaleb(-2) for cents in range(100_000)]
of_text = np.array([float(str(number)) for number in numbers])
column = pa.array(numbers, pa.decimal128(7, 2))
decimals = pa.table({"d": column})
differing = {
    "pyarrow": int((column.cast(pa.float64()).to_numpy() != of_text).sum()),
    "pyarrow, by text": int((column.cast(pa.string()).cast(pa.float64()).to_numpy() != of_text).sum()),
    "polars": int((pl.Series(numbers, dtype=pl.Decimal(7, 2)).cast(pl.Float64).to_numpy() != of_text).sum()),
    "duckdb": int((duckdb.sql("select d::double as x from decimals").fetchnumpy()["x"] != of_text).sum()),
}
print(differing, column[402].cast(pa.float64()))
assert differing == {"pyarrow": 13_929, "pyarrow, by text": 0, "polars": 0, "duckdb": 0}, differing
PROGRAM
