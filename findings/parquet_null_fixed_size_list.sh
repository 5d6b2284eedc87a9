#!/usr/bin/env bash
# pyarrow 25.0.1 writes a Parquet column of fixed-size lists of which some are null, but cannot read it back: "Expected
# all lists to be of size=2 but index 2 had size=0". It cannot read a column of the type Array with nulls by polars 2.1.0
# either. pyarrow 26.0.1 and polars read both, and pyarrow 25.0.1 reads the column as list<float>. Embeddings that some
# items lack are such columns.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
cd "$work"
cat > program.py <<'PROGRAM'
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

vectors = [[0.5, 1.5], None, [2.5, 3.5]]
fixed = pa.table({"v": pa.array(vectors, pa.list_(pa.float32(), 2))})
pq.write_table(fixed, "pyarrow.parquet")
pl.DataFrame({"v": pl.Series(vectors, dtype=pl.Array(pl.Float32, 2))}).write_parquet("polars.parquet")
for path in ("pyarrow.parquet", "polars.parquet"):
    assert pl.read_parquet(path)["v"].to_list() == vectors
    try:
        found = pq.read_table(path)["v"].to_pylist()
    except pa.ArrowInvalid as error:
        found = str(error)
    print(pa.__version__, path, found)
    is_old = pa.__version__ == "25.0.1"
    assert found == ("Expected all lists to be of size=2 but index 2 had size=0" if is_old else vectors)
pq.write_table(pa.table({"v": fixed["v"].cast(pa.list_(pa.float32()))}), "list.parquet")
assert pq.read_table("list.parquet")["v"].to_pylist() == vectors
PROGRAM
for version in 25.0.1 26.0.1; do
    venv/bin/pip install --quiet --disable-pip-version-check "pyarrow==$version" polars==2.1.0 numpy==2.4.6
    venv/bin/python program.py
done
