"""What schema.json says of the folder that was made."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.log_files import LogFile
from data_prep.log_reading import LogReading
from data_prep.options import PrepareOptions
from data_prep.output_folder import OWN_NAMES
from data_prep.prepared import schema
from data_prep.prepared.schema import data_file
from data_prep.prepared.truth import truth_path
from data_prep.statistics import LogStatistics
from data_prep.storage import is_uri
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
            data_file(folder, path.name)
            for path in sorted(folder.iterdir())
            if path.name not in {*in_splits, *OWN_NAMES}
        ),
    )


def _describe_source(reading: LogReading, statistics: LogStatistics) -> dict[str, Any]:
    return {
        "name": reading.files[0].name if len(reading.files) == 1 else reading.name,
        **dataclasses.asdict(reading.fingerprint),
        "files": [dataclasses.asdict(file) for file in reading.files_read],
        "lines": statistics.num_lines,
        "rejected_by_reason": dict(sorted(statistics.rejects_by_reason.items())),
        "truth": _truth(reading.files),
    }


def _truth(files: Sequence[LogFile]) -> str | None:
    """Where the true probabilities of a synthetic log are; a log of several files has none."""
    if len(files) > 1 or is_uri(files[0].location):
        return None
    truth = truth_path(Path(files[0].location))
    return str(truth.resolve()) if truth.is_file() else None
