#!/usr/bin/env bash
# polars 2.1.0 with deltalake 1.6.6: write_delta writes a column of arrays of one length, such as embeddings, but
# scan_delta and read_delta cannot read the table that it wrote. Delta knows only lists of any length, so the table says
# list, but the data file keeps Arrow's note that it holds arrays of a fixed length, and polars refuses the difference.
# deltalake, and polars with use_pyarrow=True, read the table as lists.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check polars==2.1.0 deltalake==1.6.6 pyarrow==25.0.1 \
    numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import polars
from deltalake import DeltaTable

VECTORS = [[0.5, 0.25], [1.0, -2.0]]
for name, kind in (("lists", polars.List(polars.Float32)), ("arrays", polars.Array(polars.Float32, 2))):
    rows = polars.DataFrame({"item": [1, 2], "embedding": VECTORS}, schema_overrides={"embedding": kind})
    rows.write_delta(name)
    table = DeltaTable(name)
    assert table.to_pyarrow_table()["embedding"].to_pylist() == VECTORS
    assert polars.read_delta(name, use_pyarrow=True)["embedding"].to_list() == VECTORS
    assert polars.read_parquet(table.file_uris())["embedding"].dtype == kind
    print(f"{name}: the table says {table.schema().fields[1].type}")
    errors = []
    for read in (polars.read_delta, lambda folder: polars.scan_delta(folder).collect()):
        try:
            assert read(name)["embedding"].to_list() == VECTORS
        except polars.exceptions.SchemaError as error:
            errors.append(str(error))
    print(f"{name}: errors of polars {errors}")
    assert len(errors) == (2 if name == "arrays" else 0)
    assert all("incoming: Array(Float32, 2) != target: List(Float32)" in error for error in errors)
PROGRAM
venv/bin/python program.py
