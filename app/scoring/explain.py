"""Explain logits: split the logit of a row into one part for each column, compute the effect of each cell of a row, or
average the effects of cells over many rows.

The part of a column is an estimate of its Shapley value. Blank the cells of a row one after the other, in a random
order of the columns. The column's part is the logit just before its cell becomes blank minus the logit just after that,
averaged over several orders. The parts and the logit of a blank row therefore add up to the row's logit. Each order is
used forward and backward, which makes the result exact if no three columns interact (R. Mitchell et al., "Sampling
permutations for Shapley value estimation", JMLR 2022).

The effect of a cell is the row's logit minus the logit of the same row with this cell blank. If the model crosses a
column with others, the effect of the cross is part of the effect of each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from app.scoring.bundle_model import ROWS_AT_ONCE, BundleModel
from app.scoring.bundle_tables import lookup
from app.tables.fields import field_of_position, position_weights
from common.arrays.hashing import GOLDEN, mix64
from common.console import progress_bar
from common.files import new_file
from common.text import number_text
from data_prep.encoding.encoder import Chunk, ParsedRows
from data_prep.encoding.from_values import add_label, chunk_to_mapping, rejected
from data_prep.encoding.rows_to_score import LogToScore
from data_prep.options.columns import NumberGroup
from data_prep.options.kinds import UNITS, WEEKDAYS, time_text
from data_prep.options.log_format import TIME_FEATURES, LogFormat

if TYPE_CHECKING:
    import pyarrow as pa

INTERCEPT = "(intercept)"  # Name under which the logit of a row with only blank cells is returned.
ORDERS = 4
_SEED = 0
_SHOWN_TIME = "%Y-%m-%d %H:%M:%S"
_SHOWN_NUMBERS = 4  # Number of a vector's components that are shown.


@dataclass(frozen=True)
class FieldEffect:
    """Effect of one column of a row. `wide` is the sum of the column's terms in the linear part of the row's logit.
    `change` is the row's logit minus the logit of the same row with the column's cell blank.
    """

    field: str
    # The cell. A time that the log writes as a number is written as a date here, and a vector by its first numbers.
    value: str | None
    in_vocabulary: bool | None  # True if the categorical value has an id. None for numeric columns and vectors.
    wide: float
    change: float


def parts_of_logits(
    rows: ParsedRows, log_format: LogFormat, logits_of: Callable[[ParsedRows], np.ndarray], num_orders: int
) -> dict[str, np.ndarray]:
    """Split the logits of n parsed rows. Return the intercept (the logit of a blank row) and the part of each column,
    by name, float64 [n] each. They add up to the logits.

    `logits_of` scores parsed rows. The K columns are put into `num_orders` random orders, which are the same for all
    rows and all calls. Each order is used in both directions, so each row is scored 1 + 2 · K · `num_orders` times.
    """
    if num_orders < 1:
        raise ValueError(f"an explanation takes 1 order of the columns or more; found orders={num_orders}")
    names = [name for name, _ in log_format.fields]
    generator = np.random.default_rng(_SEED)
    forward = [generator.permutation(len(names)) for _ in range(num_orders)]
    orders = [order for one in forward for order in (one, one[::-1])]
    parts = np.zeros((len(names), len(rows.labels)))
    logits = after = logits_of(rows).astype(np.float64)
    with progress_bar(total=len(orders) * len(names), desc="explain", unit="column", leave=False, delay=2) as bar:
        for order in orders:
            blanked_rows, before = rows, logits
            for column in order:
                blanked_rows = blanked_rows.blanked(names[column])
                after = logits_of(blanked_rows).astype(np.float64)
                parts[column] += before - after
                before = after
                bar.update()
    return {INTERCEPT: after, **dict(zip(names, parts / len(orders), strict=True))}


def changes_of_logits(model: BundleModel, rows: ParsedRows) -> np.ndarray:
    """Return for each column and each of n rows the row's logit minus its logit with the column's cell blank, float32
    [K, n].

    Each row is scored K + 1 times.
    """
    # No column is named "". So the first result, in which the column "" is blank, has the logits of the rows as they
    # are.
    columns = ["", *(name for name, _ in model.log_format.fields)]
    at_once, logits = max(ROWS_AT_ONCE // max(len(rows.labels), 1), 1), []
    with progress_bar(total=len(columns), desc="explain", unit="column", leave=False, delay=2) as bar:
        for start in range(0, len(columns), at_once):
            some = columns[start : start + at_once]
            logits.append(model.logits_of_parsed(rows.blanked(*some)))
            bar.update(len(some))
    by_column = np.concatenate(logits).reshape(len(columns), -1)
    return by_column[0] - by_column[1:]


def effects(model: BundleModel, chunk: Chunk) -> list[FieldEffect]:
    """Explain the score of one row, the only row of the chunk: return the effect of each column, sorted by the absolute
    value of `change`, the largest first.

    Raise ValueError if the row is rejected.
    """
    parsed, encoded = model.encoder.encode(chunk)
    if parsed.rejects_tsv:
        raise ValueError(f"the row cannot be explained: {rejected(chunk, parsed)[0]}")
    cells = chunk_to_mapping(chunk, model.log_format)
    for name in model.log_format.time_fields:
        (time,), (is_present,) = parsed.rows.columns[name]
        # Show a time that the log writes as a number as a date, which people can read.
        if is_present and model.log_format.time_form(name) in UNITS:
            cells[name] = f"{time_text(int(time), _SHOWN_TIME)} UTC"
    for name in model.log_format.vector_fields:
        (vector,), (is_present,) = parsed.rows.columns[name]
        cells[name] = _vector_text(vector) if is_present else None
    (changes,) = changes_of_logits(model, parsed.rows).T
    ids, numeric = encoded.ids[0], encoded.numeric[0] * model.manifest.model["numeric_weights"]
    _, wide = lookup(model.tables, np.maximum(encoded.ids, 0))
    wide = (wide * position_weights(encoded.ids, model.fields))[0]
    of_columns = [
        FieldEffect(
            field=name,
            value=cells[name],
            in_vocabulary=_is_in_vocabulary(model, ids, name),
            wide=_wide_weight(model, wide, numeric, name),
            change=float(change),
        )
        for (name, _), change in zip(model.log_format.fields, changes, strict=True)
    ]
    return sorted(of_columns, key=lambda effect: -abs(effect.change))


def _vector_text(vector: np.ndarray) -> str:
    """Return a text with the first numbers of a vector and, if it has more, the number of its components."""
    shown = " ".join(f"{number:.4g}" for number in vector[:_SHOWN_NUMBERS])
    return shown if len(vector) <= _SHOWN_NUMBERS else f"{shown} … ({len(vector):,} numbers)"


def _wide_weight(model: BundleModel, wide: np.ndarray, numeric: np.ndarray, column: str) -> float:
    """Return the sum of a column's terms in the linear part of one row's logit.

    `wide` [P] holds the term of the wide row at each position, and `numeric` [N] the term of each numeric column. The
    sum includes the terms of the fields that are derived from the column: its bucket (range of numbers) and its time
    features.
    """
    names = [column, *(f"{column}{ending}" for ending in ("_bucket", *TIME_FEATURES.values()))]
    fields = [index for index, field in enumerate(model.fields) if field.wide and field.name in names]
    positions = np.isin(field_of_position(model.fields), fields)
    numbers = [index for index, field in enumerate(model.schema.numeric) if field.source == column]
    slope = model.manifest.model.get("calibration", {}).get("slope", 1)
    return slope * float(wide[positions].sum() + numeric[numbers].sum())


def _is_in_vocabulary(model: BundleModel, ids: np.ndarray, column: str) -> bool | None:
    if column not in model.log_format.categorical_fields:
        return None
    names = [field.name for field in model.fields]
    index = names.index(column)
    first, end = model.schema.categorical[index].oov_ids
    return not first <= ids[np.searchsorted(field_of_position(model.fields), index)] < end


# Number of ranges into which the numbers of a column are divided. Each holds about the same number of rows.
RANGES = 10
VALUES = 20  # Number of values listed for a categorical column: those with the largest mean changes of the logit.
# A value is not listed if it occurs in fewer than 1 in 1,000 rows, because the mean change of the
# logit that it causes is mostly noise.
RARE = 1_000
ROWS = 100_000  # Default number of lines drawn from a log.
VECTOR = "vector"  # Value of `ColumnEffect.cells` that stands for those cells of a vector column that are not missing.
_MOST_CELLS = 3  # Number of ranges or values that the text output shows for a column.


@dataclass(frozen=True)
class ColumnEffect:
    """Mean change and mean absolute change of the logit over some cells of a column. The change of a cell is the row's
    logit minus the logit of the same row with this cell blank.

    `cells` says which cells these are: `all`, the `missing` ones, those with a number in a `range`, those with a time
    in one `hour` or `weekday`, those with one `value`, or those with a `vector`. `rows` is their number.
    """

    column: str
    cells: str
    # The categorical value, the range such as "1 to 5", the hour such as "7:00" or the weekday that `cells` refers to,
    # as text. None for the other kinds of `cells`.
    value: str | None
    # Smallest and largest number in a range, otherwise None. Times are in milliseconds since 1970.
    low: float | None
    high: float | None
    rows: int
    mean_change: float
    mean_absolute_change: float


# A pair: n parsed rows, and the effect of each of their cells on the logit of its row, [K, n] for K columns.
Explained = tuple[ParsedRows, np.ndarray]


def effects_of_rows(model: BundleModel, rows: ParsedRows, values: int = VALUES) -> pa.Table:
    """Return the effects of columns over rows as a table with one line for each `ColumnEffect`. The column with the
    largest mean absolute change comes first.

    `values` is the number of values listed for a categorical column. The table's metadata says how many rows there
    were, see `about_effects`. With K columns, each row is scored K + 1 times.
    """
    return _table(model, [(rows, changes_of_logits(model, rows))], values, {"lines": len(rows.labels)})


def effects_of_log(
    model: BundleModel, inputs: Sequence[str], most_rows: int = ROWS, seed: int = 1, values: int = VALUES
) -> pa.Table:
    """Return a table of the effects of columns, as `effects_of_rows` does, over the lines of a log or over `most_rows`
    lines drawn from the log at random with `seed`. Bad lines are left out.

    `inputs` are files, folders, globs or URIs. Raise ValueError if no line is good.
    """
    if min(most_rows, values) < 1:
        raise ValueError(f"expected 1 row and 1 value or more, found {most_rows} and {values}")
    log, explained, sample = LogToScore.of(inputs, model.log_format), list[Explained](), _Sample(most_rows, seed)
    for chunk in log.chunks():
        sample.add(chunk)
    for chunk in sample.chunks():
        parsed, _ = model.encoder.encode(chunk if log.has_labels else add_label(chunk, model.log_format))
        explained.append((parsed.rows, changes_of_logits(model, parsed.rows)))
    most = min(most_rows, sample.num_lines)
    if not any(len(rows.labels) for rows, _ in explained):
        raise ValueError(f"{', '.join(inputs)}: none of {most:,} lines is good. Is it a log of the model's columns?")
    return _table(model, explained, values, {"lines": sample.num_lines, "drawn": most, "seed": seed})


def _table(model: BundleModel, explained: Sequence[Explained], values: int, about: dict[str, Any]) -> pa.Table:
    import pyarrow as pa

    num_rows = sum(len(rows.labels) for rows, _ in explained)
    about = {"drawn": about["lines"], **about, "rows": num_rows, "step": model.manifest.checkpoint["step"]}
    names = [field.name for field in fields(ColumnEffect)]
    text, number = pa.string(), pa.float64()
    types = [text, text, text, number, number, pa.int64(), number, number]
    schema = pa.schema(zip(names, types, strict=True), metadata={"effects": json.dumps(about)})
    effects = _summed(explained, model.log_format, values)
    return pa.Table.from_pylist([asdict(effect) for effect in effects], schema)


def write_effects(table: pa.Table, output: Path) -> None:
    """Write a table of effects to `output`, as Parquet if the name ends in .parquet and otherwise as CSV. An existing
    file is replaced.
    """
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    write = pq.write_table if output.suffix == ".parquet" else pa_csv.write_csv
    with new_file(output) as beside:
        write(table, beside)


def describe_effects(table: pa.Table) -> str:
    """Return a table of effects as text: one line per column, with the mean absolute change and the ranges or values
    that change the logit most.
    """
    about, by_column = about_effects(table), dict[str, list[dict[str, Any]]]()
    for line in table.to_pylist():
        by_column.setdefault(line["column"], []).append(line)
    of = f"{about['rows']:,} good ones of {about['drawn']:,} lines, of {about['lines']:,} in all"
    lines = [f"effects over {of}: mean absolute change of the logit, and the cells with the largest mean changes"]
    for column, (whole, *parts) in by_column.items():
        strongest = sorted(parts, key=lambda part: -abs(part["mean_change"]))[:_MOST_CELLS]
        texts = [f"{_short(part)} {part['mean_change']:+.4f}" for part in strongest if part["value"] is not None]
        if any(part["cells"] == VECTOR for part in parts):
            texts = ["(a vector, which has no ranges and no values)"]
        lines.append(f"  {column:16} {whole['mean_absolute_change']:.4f}  {', '.join(texts)}")
    return "\n".join(lines)


def _short(part: dict[str, Any]) -> str:
    """Return the value or range of a line of the effects table as text. A value is cut to 24 characters. A range is not
    cut, because a reader needs both its numbers.
    """
    return str(part["value"] if part["cells"] == "range" else part["value"][:24])


def about_effects(table: pa.Table) -> dict[str, Any]:
    """Return the metadata of a table of effects.

    `lines` is the number of lines in the log, `drawn` the number of lines that were drawn at random (all lines if none
    were left out), `rows` the number of drawn lines that were not rejected, and `step` the model's step. `seed` is the
    seed of the draw. A table from `effects_of_rows` has no `seed`.
    """
    return json.loads(table.schema.metadata[b"effects"])


class _Sample:
    """A random sample of a log's lines.

    The key of a line is a hash of its number and the seed. The `most_rows` lines with the smallest keys are the sample.
    """

    def __init__(self, most_rows: int, seed: int) -> None:
        self.num_lines, self._most_rows, self._seed = 0, most_rows, np.uint64(seed * int(GOLDEN) % 2**64)
        self._bound = np.uint64(2**64 - 1)  # No line whose key (a hash) is larger than this is in the sample.
        self._samples: list[tuple[np.ndarray, Chunk]] = []

    def add(self, chunk: Chunk) -> None:
        """Add to the sample those lines of the log's next chunk whose keys (hashes) are among the smallest so far."""
        numbers = np.arange(self.num_lines, self.num_lines + chunk.num_lines, dtype=np.uint64)
        self.num_lines += chunk.num_lines
        self._samples.append(_up_to(self._bound, mix64(numbers + self._seed), chunk))
        if sum(len(keys) for keys, _ in self._samples) > 2 * self._most_rows:
            self._cut()

    def chunks(self) -> Iterator[Chunk]:
        """Return the sampled lines as chunks (groups of lines), in the order of the log."""
        self._cut()
        return (chunk for _, chunk in self._samples)

    def _cut(self) -> None:
        keys = np.concatenate([np.zeros(0, np.uint64), *(keys for keys, _ in self._samples)])
        if len(keys) > self._most_rows:
            self._bound = np.partition(keys, self._most_rows - 1)[self._most_rows - 1]
        cut = (_up_to(self._bound, *sample) for sample in self._samples)
        self._samples = [sample for sample in cut if len(sample[0])]


def _up_to(bound: np.uint64, keys: np.ndarray, chunk: Chunk) -> tuple[np.ndarray, Chunk]:
    """Select the lines of a chunk whose keys (hashes) are at most `bound`. Return their keys, and a chunk of these
    lines.
    """
    places = np.flatnonzero(keys <= bound)
    if len(places) == len(keys):
        return keys, chunk
    lines = chunk.lines.split(b"\n")
    text = b"".join(lines[at] + b"\n" for at in places)
    vectors = {name: cells.take(places) for name, cells in chunk.vectors.items()}
    return keys[places], replace(chunk, num_lines=len(places), lines=text, vectors=vectors)


def _summed(explained: Sequence[Explained], log_format: LogFormat, values: int) -> list[ColumnEffect]:
    by_column = []
    for place, (name, _) in enumerate(log_format.fields):
        changes = np.concatenate([changes[place] for _, changes in explained]).astype(np.float64)
        present = np.concatenate([rows.columns[name].present for rows, _ in explained])
        whole = [_mean(name, "all", changes)]
        whole += [_mean(name, "missing", changes[~present])] if not present.all() else []
        if name in log_format.vector_fields:
            parts = [_mean(name, VECTOR, changes[present])]
        elif name in log_format.numeric_fields:
            numbers = np.concatenate([rows.columns[name].values for rows, _ in explained])
            is_time = name in log_format.time_fields
            parts = _by_clock(name, explained, changes[present], log_format) if is_time else []
            if not is_time or log_format.has_age(name):
                parts += _ranges(name, numbers[present], changes[present], is_time)
        else:
            distinct, of_rows = _values(name, explained, changes)
            if log_format.columns[name] == "boolean":
                distinct = np.array(["false", "true"])[distinct]
            parts = _strongest(name, distinct, of_rows, max(len(changes) // RARE, 1), values)
        by_column.append([*whole, *parts])
    by_column.sort(key=lambda effects: -effects[0].mean_absolute_change)
    return [effect for effects in by_column for effect in effects]


def _mean(column: str, cells: str, changes: np.ndarray, **of: Any) -> ColumnEffect:
    mean, absolute = (float(each.mean()) if len(each) else 0.0 for each in (changes, np.abs(changes)))
    of_cells = {"value": None, "low": None, "high": None, **of}
    return ColumnEffect(column, cells, **of_cells, rows=len(changes), mean_change=mean, mean_absolute_change=absolute)


def _ranges(column: str, numbers: np.ndarray, changes: np.ndarray, are_times: bool) -> list[ColumnEffect]:
    """Divide the `numbers` [n] of a column into at most RANGES ranges with about the same number of rows each. Return
    the mean effects of the cells in each range. A number that is frequent enough fills a range alone. `changes` [n] are
    the effects of the single cells.
    """
    if not len(numbers):
        return []
    ends = np.unique(np.quantile(numbers, np.linspace(0, 1, RANGES + 1)[1:], method="inverted_cdf"))
    places = np.searchsorted(ends, numbers)
    curve = []
    for place in range(len(ends)):
        inside = numbers[places == place]
        low, high = float(inside.min()), float(inside.max())
        texts = [_time_text(end) if are_times else number_text(end) for end in sorted({low, high})]
        value = " to ".join(dict.fromkeys(texts))
        curve.append(_mean(column, "range", changes[places == place], value=value, low=low, high=high))
    return curve


def _by_clock(
    column: str, explained: Sequence[Explained], changes: np.ndarray, log_format: LogFormat
) -> list[ColumnEffect]:
    """Return the mean effects of a time column by hour of the day and by weekday, as far as the model uses these.

    `changes` holds the effect of each of the column's cells that has a time, in the order of the rows.
    """
    effects = []
    for part in log_format.parts_of_time(column):
        group = NumberGroup(part, log_format.timezone.get(column, ""), (column,))
        cells = [rows.number_columns([group]) for rows, _ in explained]
        values = np.concatenate([each.values[0][each.present[0]] for each in cells])
        for value in np.unique(values):
            text = WEEKDAYS[value] if part == "weekday" else f"{value}:00"
            effects.append(_mean(column, part, changes[values == value], value=text))
    return effects


def _time_text(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _values(name: str, explained: Sequence[Explained], changes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a categorical column in all rows, and for each value the effect of the cell that it is in.

    A cell with a list counts once for each distinct item of the list, each time with the effect of the whole cell.
    `changes` [n] holds the effects of the cells.
    """
    values, places, first = [], [], 0
    for rows, _ in explained:
        cells, num_rows = rows.columns[name], len(rows.labels)
        if name in rows.lists:
            items, rows_of = rows.lists[name].values, rows.lists[name].rows
        else:
            rows_of = np.flatnonzero(cells.present)
            items = cells.values.take(rows_of)
        of_rows = items if isinstance(items, np.ndarray) else np.array(items.tolist(), object)
        if name in rows.lists:
            distinct, of_items = np.unique(of_rows, return_inverse=True)
            once = np.unique(rows_of.astype(np.int64) * len(distinct) + of_items, return_index=True)[1]
            of_rows, rows_of = of_rows[once], rows_of[once]
        values.append(of_rows)
        places.append(first + rows_of)
        first += num_rows
    return np.concatenate(values), changes[np.concatenate(places)]


def _strongest(column: str, values: np.ndarray, changes: np.ndarray, least: int, most: int) -> list[ColumnEffect]:
    """Return the mean effects of the `most` values that change the logit most (by absolute value), the largest first.
    Values that fewer than `least` rows have are left out.
    """
    distinct, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    means = np.bincount(places, changes, len(distinct)) / np.maximum(counts, 1)
    frequent = np.flatnonzero(counts >= least)
    strongest = frequent[np.argsort(-np.abs(means[frequent]), kind="stable")[:most]]
    return [_mean(column, "value", changes[places == place], value=_text(distinct[place])) for place in strongest]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    return value.decode(errors="replace") if isinstance(value, bytes) else f"{int(value):08x}"
