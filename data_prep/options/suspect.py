"""Find prepared folders that an earlier release may have written wrongly, by what their schema.json says.

Up to format version 2 the native kernels took the cells of a chunk for those of other rows and columns, where a line
with the right number of columns was rejected for a bad cell and the log was not of the form that the native parser
reads. schema.json does not say which kernels there were: with `kernels=numpy` all is right.
"""

from __future__ import annotations

from pathlib import Path

from common import settings
from data_prep.options.log_format import CATEGORICAL, INTEGER, LABEL, REASONS, LogFormat
from data_prep.prepared.schema import SCHEMA_FILE, Schema

_LAST_VERSION = 2
_REASONS = tuple(REASONS[code] for code in (LABEL, INTEGER, CATEGORICAL))  # of lines with the right columns


def check_ids(schema: Schema, folder: Path) -> None:
    """Raise ValueError where the ids of a prepared `folder` may be those of other cells."""
    found = wrong_ids(schema, folder)
    if found:
        raise ValueError(found)


def wrong_ids(schema: Schema, folder: Path) -> str:
    """Return what is wrong with the ids of a prepared `folder` and what to do, or "" where they are right."""
    num_bad, log_format = _bad_cells(schema, folder)
    num_hex, num_integer = len(log_format.hex_fields), len(log_format.numeric_fields)
    if schema.options.get("integer_buckets"):
        mixed_up = num_hex > 0 and num_integer > 0 and num_hex + num_integer > 2
    else:
        mixed_up = num_hex > 1
    if not num_bad or not mixed_up:
        return ""
    return (
        f"{folder} has wrong ids: an earlier release prepared it (format version {schema.format_version}), whose native"
        f" kernels mixed up the cells of hex32 and bucket columns around lines rejected for a bad cell ({num_bad:,} of "
        f"{schema.source['name']}). {_advice(folder)} (if it was made with prepare.kernels=numpy, nothing changes: "
        "its runs can be resumed with the new folder)"
    )


def wrong_bins(schema: Schema, folder: Path) -> str:
    """Return what is wrong with the counts of integers by size in statistics.json, or "" where they are right."""
    num_bad, log_format = _bad_cells(schema, folder)
    if not num_bad or len(log_format.numeric_fields) < 2:
        return ""
    return (
        f"statistics.json and report.html of {folder} have wrong counts of integers by size: an earlier release "
        f"prepared it (format version {schema.format_version}) from a log with bad cells ({num_bad:,}). "
        f"{_advice(folder)}"
    )


def _advice(folder: Path) -> str:
    return (
        f"Prepare it again: python -m data_prep prepare LOG {folder} --overwrite, with the same --config, --data and "
        "settings"
    )


def _bad_cells(schema: Schema, folder: Path) -> tuple[int, LogFormat]:
    """How many lines were rejected for a bad cell on the faulty path, and how the log was written."""
    log_format = settings.merge(LogFormat(), schema.options.get("data", {}), where=str(folder / SCHEMA_FILE))
    if schema.format_version > _LAST_VERSION or log_format.is_criteo_like:
        return 0, log_format
    rejects = schema.source.get("rejected_by_reason", {})
    return sum(rejects.get(reason, 0) for reason in _REASONS), log_format
