"""Describe a preparation: the content of schema.json, and the fingerprint of a run.

A run that finds unfinished work compares fingerprints to decide whether an interrupted run of the same command left it.
"""

from __future__ import annotations

import dataclasses
import functools
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common.files import checksum
from common.packages import PROJECT
from common.process import checksum_of_sources
from data_prep.encoding.base import BaseVocabulary
from data_prep.execution.prepared_folder import OWN_NAMES
from data_prep.options.options_file import PREPARE_SECTION
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.first_pass import Fitted
from data_prep.prepared import schema
from data_prep.prepared.data_files import data_file
from data_prep.prepared.schema import SCHEMA_FILE
from data_prep.prepared.truth import truth_path
from data_prep.raw_log.reading import LogReading
from data_prep.raw_log.storage import LogFile, is_uri
from data_prep.statistics.statistics import LogStatistics


def describe(
    reading: LogReading,
    fitted: Fitted,
    splits: dict[str, schema.Split],
    options: PrepareOptions,
    folder: Path,
) -> schema.Schema:
    """Return the content of schema.json for a folder in which all other files are finished."""
    in_splits = {file.name for split in splits.values() for file in split.files}
    return schema.Schema(
        format_version=schema.FORMAT_VERSION,
        numeric=fitted.numeric,
        categorical=fitted.vocabulary.categorical,
        vocabulary_size=fitted.vocabulary.size,
        ids_dtype=fitted.vocabulary.ids_dtype,
        block_rows=options.block_rows,
        splits=splits,
        rejected_rows=fitted.statistics.num_rejects,
        options=options.decisive(),
        source=_describe_source(reading, fitted.statistics),
        other_files=tuple(
            data_file(folder, path.name)
            for path in sorted(folder.iterdir())
            if path.name not in {*in_splits, *OWN_NAMES}
        ),
        weight=options.data.weight_source,
        keys=options.data.key_fields,
    )


def _describe_source(reading: LogReading, statistics: LogStatistics) -> dict[str, Any]:
    file, is_one = reading.files[0], len(reading.files) == 1
    # Path of the file with a synthetic log's true probabilities. A log of several files has no such file.
    truth = truth_path(Path(file.location)) if is_one and not is_uri(file.location) else None
    return {
        "name": file.name if is_one else reading.name,
        **dataclasses.asdict(reading.fingerprint),
        "files": [dataclasses.asdict(file) for file in reading.files_read],
        "lines": statistics.num_lines,
        "rejected_by_reason": dict(sorted(statistics.rejects_by_reason.items())),
        "truth": str(truth.resolve()) if truth and truth.is_file() else None,
    }


_LIBRARIES = ("numpy", "pyarrow", "mindspore")


def run_fingerprint(
    files: Sequence[LogFile], options: PrepareOptions, base: BaseVocabulary | None, file_rows: int
) -> dict[str, Any]:
    """Return all inputs that can change a byte of the prepared folder, as plain values.

    The keys are shown to users when an interrupted run had other inputs.
    """
    return {
        **{f"{PREPARE_SECTION}.{name}": value for name, value in options.decisive().items()},
        "input": [file.location if is_uri(file.location) else str(Path(file.location).resolve()) for file in files],
        **{f"size of {file.name}": file.state.size for file in files},
        **{f"time of {file.name} in ns": file.state.modified_ns for file in files},
        "--vocabulary": str(base.folder.resolve()) if base else None,
        "--extend": base.extends if base else False,
        "--vocabulary's checksum": checksum(base.folder / SCHEMA_FILE) if base else None,
        "rows of a file": file_rows,
        "program": _program(),
        "python": platform.python_version(),
        **{name: version(name) for name in _LIBRARIES},
    }


@functools.cache
def _program() -> str:
    """Return the checksum of this program's sources. Unfinished work can only be resumed by the same version."""
    return checksum_of_sources(PROJECT, ("common", "data_prep"))
