"""statistics.json: what was counted on the way, for the report and whoever wants it; no byte depends on the run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.options.prepare_options import PrepareOptions
from data_prep.statistics.profile import MIN_COUNTS
from data_prep.statistics.statistics import LogStatistics

STATISTICS_FILE = "statistics.json"


@dataclass(frozen=True)
class NumericProfile:
    """Of a numeric field's cells in the training rows; `bins` are (number, count) as statistics/profile.py numbers
    them.
    """

    missing: int
    bins: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class CategoricalProfile:
    """Of a categorical field's cells in the training rows; `unknown` ones are out of vocabulary.

    At the i-th of the file's `min_counts`, a vocabulary has `values[i]` values, which `rows[i]` rows have; both are
    empty where values were not counted.
    """

    missing: int
    unknown: int
    values: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """statistics.json. `rows` and `clicks` are of all kept lines, a span of `span_lines` lines of the log each."""

    training_rows: int
    span_lines: int
    rows: tuple[int, ...]
    clicks: tuple[int, ...]
    min_counts: tuple[int, ...]
    numeric: dict[str, NumericProfile]
    categorical: dict[str, CategoricalProfile]


def write_statistics(statistics: LogStatistics, options: PrepareOptions, folder: Path) -> None:
    """Write the file."""
    bins = dict(zip(options.data.numeric_fields, statistics.bins, strict=True))
    names = [column.name for column in options.categorical_columns]
    columns = zip(names, statistics.missing, statistics.unknown.tolist(), statistics.coverage, strict=True)
    content = {
        "training_rows": statistics.num_training_rows,
        "span_lines": statistics.timeline.span_lines,
        "rows": statistics.timeline.rows.tolist(),
        "clicks": statistics.timeline.clicks.tolist(),
        "min_counts": MIN_COUNTS,
        "numeric": {
            name: {
                "missing": statistics.num_training_rows - int(counts.sum()),
                "bins": [[int(number), int(counts[number])] for number in np.flatnonzero(counts)],
            }
            for name, counts in bins.items()
        },
        "categorical": {
            name: {
                "missing": missing,
                "unknown": unknown,
                "values": covered.values.tolist() if covered.values.any() else [],
                "rows": covered.rows.tolist() if covered.values.any() else [],
            }
            for name, missing, unknown, covered in columns
        },
    }
    (folder / STATISTICS_FILE).write_text(json.dumps(content) + "\n", encoding="utf-8")


def read_statistics(folder: Path) -> Profile:
    """Read the file. Raises FileNotFoundError where a folder has none, ValueError where it is damaged."""
    path = folder / STATISTICS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the folder was prepared by an older version; prepare it again")
    try:
        return _from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); prepare the data again") from error


def _from_json(content: dict[str, Any]) -> Profile:
    numeric = {
        name: NumericProfile(field["missing"], tuple((number, count) for number, count in field["bins"]))
        for name, field in content["numeric"].items()
    }
    categorical = {
        name: CategoricalProfile(field["missing"], field["unknown"], tuple(field["values"]), tuple(field["rows"]))
        for name, field in content["categorical"].items()
    }
    lists = {name: tuple(content[name]) for name in ("rows", "clicks", "min_counts")}
    return Profile(content["training_rows"], content["span_lines"], **lists, numeric=numeric, categorical=categorical)
