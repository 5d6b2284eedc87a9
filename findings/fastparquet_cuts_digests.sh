#!/usr/bin/env bash
# fastparquet 2026.9.0: binary values of a fixed size lose zero bytes at their end, because they become NumPy's bytes,
# which have no such zeros. One MD5 digest in 256 ends in a zero byte. Of 100,000 digests that pyarrow 25.0.1 wrote, 385
# are other keys in fastparquet, so that a join by them loses these rows. pyarrow and polars 2.1.0 read all digests as
# they were written, and so does fastparquet if the column has binary values of any size.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check fastparquet==2026.9.0 pyarrow==25.0.1 polars==2.1.0 \
    pandas==3.0.6 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
from hashlib import md5

import fastparquet
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.parquet as pq

USERS = 100_000
digests = [md5(str(user).encode(), usedforsecurity=False).digest() for user in range(USERS)]
log = pd.DataFrame({"user": digests, "clicks": range(USERS)})
for name, kind in (("fixed", pa.binary(16)), ("any", pa.binary())):
    pq.write_table(pa.table({"user": pa.array(digests, kind)}), f"{name}.parquet")
    found = {
        "pyarrow": pq.read_table(f"{name}.parquet")["user"].to_pylist(),
        "polars": polars.read_parquet(f"{name}.parquet")["user"].to_list(),
        "fastparquet": fastparquet.ParquetFile(f"{name}.parquet").to_pandas()["user"].tolist(),
    }
    changed = {by: sum(a != b for a, b in zip(digests, values, strict=True)) for by, values in found.items()}
    joined = len(log.merge(pd.DataFrame({"user": found["fastparquet"]}), on="user"))
    print(f"size {name}: changed {changed}; rows in a join with fastparquet's {joined:,}")
    assert changed["pyarrow"] == changed["polars"] == 0
    assert changed["fastparquet"] == (sum(each[-1] == 0 for each in digests) if name == "fixed" else 0)
    assert joined == USERS - changed["fastparquet"]
    assert all(a.rstrip(b"\0") == b.rstrip(b"\0") for a, b in zip(digests, found["fastparquet"], strict=True))
PROGRAM
venv/bin/python program.py
