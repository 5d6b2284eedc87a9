#!/usr/bin/env bash
# One moment with the time zone Europe/Berlin, 14:00 on the 1st of July 2026, written by pandas 3.1.1, polars 2.1.0 and
# duckdb 2.0.1 to CSV and JSON lines gives seven cells in six forms: with T or a blank, with +02:00, +0200, +02 or Z,
# with six, three or no digits of a fraction, or as milliseconds since 1970. No two libraries agree on one file format.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    pandas==3.1.1 polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1 numpy==2.4.6
cd "$work"
venv/bin/python -W ignore - <<'PROGRAM'
import json
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl

frame = pd.DataFrame({"t": pd.to_datetime([datetime(2026, 7, 1, 12, tzinfo=UTC)]).tz_convert("Europe/Berlin")})
polars_frame = pl.from_pandas(frame)
duckdb.sql("set timezone = 'Europe/Berlin'")
duckdb.sql("copy (select * from frame) to 'd.csv'")
duckdb.sql("copy (select * from frame) to 'd.json'")
found = {
    "pandas CSV": frame.to_csv(index=False).splitlines()[1],
    "pandas JSON": json.loads(frame.to_json(orient="records", lines=True))["t"],
    "pandas JSON, iso": json.loads(frame.to_json(orient="records", lines=True, date_format="iso"))["t"],
    "polars CSV": polars_frame.write_csv().splitlines()[1],
    "polars JSON": json.loads(polars_frame.write_ndjson())["t"],
    "duckdb CSV": Path("d.csv").read_text().splitlines()[1],
    "duckdb JSON": json.loads(Path("d.json").read_text())["t"],
}
print(*(f"{name:18}{cell}" for name, cell in found.items()), sep="\n")
assert found == {
    "pandas CSV": "2026-07-01 14:00:00+02:00",
    "pandas JSON": 1782907200000,
    "pandas JSON, iso": "2026-07-01T12:00:00.000Z",
    "polars CSV": "2026-07-01T14:00:00.000000+0200",
    "polars JSON": "2026-07-01T14:00:00+02:00",
    "duckdb CSV": "2026-07-01 14:00:00+02",
    "duckdb JSON": "2026-07-01 14:00:00+02",
}
PROGRAM
