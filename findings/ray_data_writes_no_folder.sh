#!/usr/bin/env bash
# Ray Data 2.60.0: write_parquet, write_csv and write_json write nothing if a filter leaves no row: no file, and not
# even the folder. They raise no error, although the schema of the rows is known. The next program of a pipeline finds a
# missing folder where it expects an empty table with columns. A filter that leaves a row writes the folder.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "ray[data]==2.60.0" pyarrow==25.0.1 \
    pandas==3.0.6 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import ray

ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
pq.write_table(pa.table({"user": range(10), "clicks": range(10)}), "log.parquet")
log = ray.data.read_parquet("log.parquet")
for limit in (3, 0):
    rows = log.filter(expr=f"user < {limit}")
    written = {}
    for form in ("parquet", "csv", "json"):
        folder = Path(f"under_{limit}_{form}")
        getattr(rows, f"write_{form}")(str(folder))
        written[form] = folder.exists()
    print(f"{rows.count()} rows left, columns {rows.schema().names}, folder written: {written}")
    assert rows.count() == limit and rows.schema().names == ["user", "clicks"]
    assert set(written.values()) == {limit > 0}
PROGRAM
export RAY_TMPDIR="$work/ray" RAY_USAGE_STATS_ENABLED=0
venv/bin/python -W ignore program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
