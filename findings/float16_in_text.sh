#!/usr/bin/env bash
# The float16 number 0.1 is the text 0.1 in CSV by pandas 3.1.1, 0.0999755859 in its JSON, and 0.099975586 in CSV and JSON
# by polars 2.1.0 and in a cast by pyarrow 26.0.1. Whoever treats such a column as a category has three values for one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 numpy==2.4.6
cd "$work"
venv/bin/python - <<'PROGRAM'
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

numbers = np.array([0.1], np.float16)
frame, polars_frame = pd.DataFrame({"x": numbers}), pl.DataFrame({"x": pl.Series([0.1], dtype=pl.Float16)})
found = {
    "pandas CSV": frame.to_csv(index=False).split()[1],
    "pandas JSON": frame.to_json(orient="records", lines=True).strip(),
    "polars CSV": polars_frame.write_csv().split()[1],
    "polars JSON": polars_frame.write_ndjson().strip(),
    "pyarrow": pa.array(numbers).cast(pa.float32()).cast(pa.string())[0].as_py(),
}
print(*(f"{name:14}{text}" for name, text in found.items()), sep="\n")
assert found == {
    "pandas CSV": "0.1",
    "pandas JSON": '{"x":0.0999755859}',
    "polars CSV": "0.099975586",
    "polars JSON": '{"x":0.099975586}',
    "pyarrow": "0.099975586",
}
PROGRAM
