"""What schema.json says of the folder that was made."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from data_prep import schema
from data_prep.checksums import checksum
from data_prep.log_reading import LogReading
from data_prep.options import PrepareOptions
from data_prep.statistics import LogStatistics
from data_prep.truth import truth_path
from data_prep.used_vocabulary import UsedVocabulary


def describe(
    reading: LogReading,
    statistics: LogStatistics,
    vocabulary: UsedVocabulary,
    numeric: tuple[schema.NumericField, ...],
    splits: dict[str, schema.Split],
    options: PrepareOptions,
    folder: Path,
) -> schema.Schema:
    """schema.json's content."""
    in_splits = {file.name for split in splits.values() for file in split.files}
    return schema.Schema(
        format_version=schema.FORMAT_VERSION,
        numeric=numeric,
        categorical=vocabulary.categorical,
        vocabulary_size=vocabulary.size,
        ids_dtype=vocabulary.ids_dtype,
        block_rows=options.block_rows,
        splits=splits,
        rejected_rows=statistics.num_rejects,
        options=options.decisive(),
        source=_describe_source(reading, statistics),
        other_files=tuple(
            data_file(folder, path.name) for path in sorted(folder.iterdir()) if path.name not in in_splits
        ),
    )


def _describe_source(reading: LogReading, statistics: LogStatistics) -> dict[str, Any]:
    truth = truth_path(reading.path)
    return {
        "name": reading.path.name,
        **dataclasses.asdict(reading.fingerprint),
        "lines": statistics.num_lines,
        "rejected_by_reason": dict(sorted(statistics.rejects_by_reason.items())),
        "truth": str(truth.resolve()) if truth.is_file() else None,
    }


def data_file(folder: Path, name: str, rows: int = 0) -> schema.DataFile:
    """A finished file, as schema.json names it."""
    path = folder / name
    return schema.DataFile(name, rows, path.stat().st_size, checksum(path))
