"""The contents of a prepared folder, for comparisons, and options of single fields."""

import pyarrow.parquet as pq

from data_prep.options.prepare_options import FieldOptions

ALL_TRAINED = {"train_fraction": 1, "valid_fraction": 0, "test_fraction": 0}  # options of `prepare`


def contents(folder):
    """Return the bytes of every file, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def vocabulary_of(folder):
    """Return {(field, value): (count, id)}."""
    rows = pq.read_table(folder / "vocabulary.parquet").to_pylist()
    return {(row["field"], row["value"]): (row["count"], row["id"]) for row in rows}


def field_options(**numbers):
    """Return `PrepareOptions.fields` from numbers by field of each option, such as max_size={"C1": 3}."""
    names = {name for of_option in numbers.values() for name in of_option}
    return {
        name: FieldOptions(**{key: of_option[name] for key, of_option in numbers.items() if name in of_option})
        for name in names
    }
