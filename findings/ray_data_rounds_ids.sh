#!/usr/bin/env bash
# Ray Data 2.60.0: map_batches with its default batches changes 64-bit ids if one id of the batch is null, although the
# function returns the batch as it is. The batches are of NumPy, which has no null for integers, so the ids become
# float64, and ids above 2^53 become other ids. Hashes of users are such ids: of 1,000 random ones, almost all change.
# The type of the column then depends on the block. batch_format="pyarrow" and "pandas" keep all ids and nulls.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "ray[data]==2.60.0" pyarrow==25.0.1 \
    pandas==3.0.6 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import numpy as np
import pyarrow as pa
import ray

IDS = 1000
ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
ids = np.random.default_rng(0).integers(2**60, 2**63, IDS).tolist()
for name, users in (("with a null", [*ids, None]), ("without", ids)):
    log = ray.data.from_arrow(pa.table({"user": pa.array(users, pa.int64())}))
    for batch_format in ("default", "pandas", "pyarrow"):
        mapped = log.map_batches(lambda batch: batch, batch_format=batch_format)
        found = [row["user"] for row in mapped.take_all()]
        changed = sum(int(after) != before for before, after in zip(ids, found, strict=False))
        print(f"{name:12}{batch_format:8} column of type {mapped.schema().types[0]}, {changed} of {IDS} ids changed")
        assert changed > 900 if (name, batch_format) == ("with a null", "default") else changed == 0
PROGRAM
export RAY_TMPDIR="$work/ray" RAY_USAGE_STATS_ENABLED=0
venv/bin/python -W ignore program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
