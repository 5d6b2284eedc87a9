"""The contents of a prepared folder, for comparisons."""

import pyarrow.parquet as pq


def contents(folder):
    """Return the bytes of every file, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def vocabulary_of(folder):
    """Return {(field, value): (count, id)}."""
    rows = pq.read_table(folder / "vocabulary.parquet").to_pylist()
    return {(row["field"], row["value"]): (row["count"], row["id"]) for row in rows}
