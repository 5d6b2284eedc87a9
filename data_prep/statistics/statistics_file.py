"""Write and read statistics.json, the counts of a preparation for its report and for other programs.

The file has the same bytes in every run of the same preparation.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from common.files import parse_json
from data_prep.options.plain_values import from_dict
from data_prep.prepared.schema import Schema
from data_prep.statistics.profile import MIN_COUNTS
from data_prep.statistics.statistics import LogStatistics

STATISTICS_FILE = "statistics.json"


@dataclass(frozen=True)
class NumericProfile:
    """Counts of a numeric field's cells in the training rows.

    `bins` are pairs (number of the bin, count).
    """

    missing: int
    bins: tuple[tuple[int, int], ...]
    is_float: bool = False  # True if the bins are FLOAT_BINS, False if they are INTEGER_BINS.


@dataclass(frozen=True)
class CategoricalProfile:
    """Counts of a categorical field's cells in the training rows.

    `missing` cells are empty. `unknown` cells are out of vocabulary; a list is unknown if one of its values is.
    `cut` lists have more values than are kept.

    With the i-th of the file's `min_counts`, the vocabulary would have `values[i]` values, which occur in `rows[i]`
    rows. Both tuples are empty if values were not counted.
    """

    missing: int
    unknown: int
    values: tuple[int, ...]
    rows: tuple[int, ...]
    cut: int | None = None  # None if the field is no list.


@dataclass(frozen=True)
class Profile:
    """The content of statistics.json.

    `rows`, `clicks` and `labelled` are numbers of kept lines in each span of `span_lines` lines of the log.
    """

    training_rows: int
    span_lines: int
    rows: tuple[int, ...]
    clicks: tuple[int, ...]
    min_counts: tuple[int, ...]
    numeric: dict[str, NumericProfile]
    categorical: dict[str, CategoricalProfile]
    labelled: tuple[int, ...] = ()  # Empty if it equals `rows`, that is, if all lines have a label.


def write_statistics(statistics: LogStatistics, folder: Path) -> None:
    """Write statistics.json into a prepared folder."""
    num_rows, timeline, log_format = statistics.num_training_rows, statistics.timeline, statistics.log_format
    numeric = {
        name: NumericProfile(
            num_rows - int(counts.sum()),
            tuple((int(number), int(counts[number])) for number in np.flatnonzero(counts)),
            name in log_format.float_fields,
        )
        for name, counts in zip(log_format.sized_fields, statistics.bins, strict=True)
    }
    columns = zip(statistics.missing, statistics.unknown.tolist(), statistics.coverage, strict=True)
    categorical = {}
    for column, (missing, unknown, covered) in zip(statistics.columns, columns, strict=True):
        is_counted = covered.values.any()
        values, rows = (tuple(c.tolist()) if is_counted else () for c in (covered.values, covered.rows))
        categorical[column.name] = CategoricalProfile(missing, unknown, values, rows, statistics.cut.get(column.name))
    by_span, labelled, clicks = (tuple(counts) for counts in timeline.counts.tolist())
    labelled = () if labelled == by_span else labelled
    profile = Profile(num_rows, timeline.span_lines, by_span, clicks, MIN_COUNTS, numeric, categorical, labelled)
    (folder / STATISTICS_FILE).write_text(json.dumps(asdict(profile)) + "\n", encoding="utf-8")


def read_statistics(folder: Path) -> Profile:
    """Read statistics.json of a prepared folder.

    Raise FileNotFoundError if there is none, ValueError if it is damaged.
    """
    path = folder / STATISTICS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; prepare the data again")
    try:
        return from_dict(parse_json(path.read_text(encoding="utf-8")), Profile)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); prepare the data again") from error


def cut_lists(schema: Schema, profile: Profile) -> list[str]:
    """Return a sentence for each list field whose lists were cut because they were too long."""
    return [
        f"{field.name}: {cut:,} of {profile.training_rows:,} training rows have more than {field.max_length} values; "
        "the others were left out"
        for field in schema.categorical
        if (cut := profile.categorical[field.name].cut)
    ]
