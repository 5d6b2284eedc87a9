"""Write report.html of a prepared folder from its files schema.json, statistics.json, rejects.tsv and timing.json.

timing.json has the time and the memory of the preparation. This module records both and writes that file too. The file
is not part of the data, and schema.json does not list it.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from common.files import parse_json, record_of, write_whole
from common.html.charts import Axis, Bars, Chart, Density, Series, bar_chart, histogram, line_chart
from common.html.page import PagePart, Section, render_page
from common.process import num_cores
from common.settings import setting_text
from common.text import number_text
from data_prep.kernels.numpy_kernels import FLOAT_BINS, bin_bounds
from data_prep.options.prepare_options import SPLIT_RULES
from data_prep.prepared.data_files import whole_log
from data_prep.prepared.schema import NORM_RANKS, NumericField, Schema, read_schema, transform_numbers
from data_prep.statistics.statistics import CategoricalProfile, NumericProfile, Profile, cut_lists, read_statistics

REPORT_FILE, TIMING_FILE = "report.html", "timing.json"
SPLIT_COLUMNS = [("split", "text"), ("rows", "number"), ("share of all rows", "share"), ("clicks", "number"),
                 ("click rate", "percent"), ("files", "number"), ("which rows (checksum)", "code")]  # fmt: skip
FIELD_COLUMNS = [("field", "text"), ("distinct values", "number"), ("with an id", "number"), ("missing", "share"),
                 ("out of vocabulary", "share"), ("ids", "line")]  # fmt: skip
REJECT_COLUMNS = [("reason", "text"), ("lines", "number"), ("share of all lines", "share"), ("examples", "code")]
DRIFT = "In the order of the log. A rate that leaves the dashed band again and again is not chance: the log drifts."
NOT_COUNTED = "Values were not counted: none gets its id by a count in this preparation."
COVERAGE = (
    "A value has an id of its own if at least min_count training rows have it. Rare values take most of the table and "
    "occur in few rows. Below: field by field, the largest first."
)
SETTINGS = "The settings that decide the bytes of the folder, and the log they were applied to."
_MOST_POINTS = 256  # The chart of the click rate over the log has at most this many points.
_MOST_FIELDS = 60  # At most this many fields get charts of their own.
_MOST_BINS = 48  # A histogram of a numeric field's numbers in the report has at most this many bars (bins).
# The histogram of a field's untransformed numbers shows this share of its cells, the smallest ones. An axis that
# reached up to a few very large integers would squeeze all other numbers into one bar.
_SHARE_OF_AXIS = 0.99
_QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_TRANSFORMS = {
    "log1p": "sign(x) · ln(1 + |x|)",
    "max": "x / largest",
    "standardize": "(x − mean) / standard deviation",
    "log1p_standardize": "sign(x) · ln(1 + |x|), minus its mean, divided by its standard deviation",
    "piecewise": "sign(x) · ln(1 + |x|), minus its mean, divided by its standard deviation",
    "quantile": "rank of x among the training rows",
}
_REJECTS_READ_BYTES = 64 << 20
_EXAMPLES = 3  # For each reason to reject lines, the report shows at most this many of the lines.
_EXAMPLE_BYTES = 160
_KIB = 1 << 10  # ru_maxrss is in KiB on Linux.


def write_report(folder: Path) -> Path:
    """Write report.html into a prepared folder, and return its path.

    Raise FileNotFoundError if `folder` is not a prepared folder or has no statistics.json, and ValueError if one of the
    files that the report is made from is damaged.
    """
    schema, profile, timing = read_schema(folder), read_statistics(folder), read_timing(folder)
    counting = " with a label and a weight above 0" if schema.weight else ""
    vectors = f", {len(schema.vectors)} vector columns" if schema.vectors else ""
    subtitle = (
        f"{schema.num_categorical} categorical and {len(profile.numeric)} numeric fields{vectors}. "
        f"Figures of fields are of the {profile.training_rows:,} training rows{counting}, all others of the whole log. "
        f"The {schema.log_format.label_in_words}."
    )
    split_rule, kept = SPLIT_RULES[schema.options["split"]], profile.kept_rows_in_words(schema)
    sections = [
        Section("Splits", PagePart("table", SPLIT_COLUMNS, _splits(schema)), note=f"{split_rule} {kept}".rstrip()),
        Section("Clicks over time", PagePart("charts", _over_time(schema, profile)), note=DRIFT),
        _categorical(schema, profile),
        *_coverage(schema, profile),
        _numeric(schema, profile),
        *([_vectors(schema)] if schema.vectors else []),
        _rejects(schema, folder),
        Section("Settings", *(PagePart("definitions", entries) for entries in _settings(schema)), note=SETTINGS),
        *([_timing(schema, timing)] if timing else []),
    ]
    figures = PagePart("tiles", _key_figures(schema, profile, timing))
    content = render_page(f"Prepared data: {schema.source['name']}", subtitle, [figures], sections)
    write_whole(folder / REPORT_FILE, content)
    return folder / REPORT_FILE


def _key_figures(schema: Schema, profile: Profile, timing: Timing | None) -> list[tuple[str, str, str]]:
    """Return the figures at the top of the report, such as lines and click rate, as (quantity, number, explanation).

    Without `timing`, the figures of speed and memory are left out.
    """
    lines, whole = schema.source["lines"], whole_log(schema)
    figures = [
        ("lines", f"{lines:,}", number_text(schema.source["size_bytes"], "bytes")),
        ("rows kept", f"{whole.rows:,}", f"{schema.rejected_rows:,} lines rejected"),
        ("click rate", number_text(profile.click_rate, "percent"), f"{whole.clicks:,} clicks"),
        ("ids", f"{schema.vocabulary_size:,}", f"of {schema.num_categorical + schema.num_numeric} columns"),
    ]
    if timing is None:
        return figures
    peak = timing.peak_bytes + timing.workers * timing.worker_peak_bytes * (timing.workers > 1)
    return [
        *figures,
        ("lines/s", f"{lines / timing.seconds:,.0f}", f"{number_text(timing.seconds, 'seconds')} in all"),
        ("memory", number_text(peak, "bytes"), "at most: sum of the processes' peaks"),
    ]


def _splits(schema: Schema) -> list[list[object]]:
    num_rows = whole_log(schema).rows or math.nan
    return [
        [name, each.rows, each.rows / num_rows, each.clicks, each.click_rate, len(each.files), each.membership]
        for name, each in schema.splits.items()
    ]


def _over_time(schema: Schema, profile: Profile) -> list[Chart]:
    """Return a chart of the click rate over the lines of the log, and a chart of rejected lines if there are any.

    The chart of the click rate has a band of mean ± 2 standard errors. If the rate often leaves the band, the log
    changes over time.
    """
    per_point = -(-len(profile.rows) // _MOST_POINTS) or 1
    rows, labelled, clicks = (
        [sum(counts[i : i + per_point]) for i in range(0, len(counts), per_point)]
        for counts in (profile.rows, profile.labelled or profile.rows, profile.clicks)
    )
    lines = per_point * profile.span_lines
    middles = [min((i + 0.5) * lines, schema.source["lines"]) for i in range(len(rows))]
    rates = [c / n if n else math.nan for c, n in zip(clicks, labelled, strict=True)]
    mean = sum(clicks) / sum(labelled) if sum(labelled) else math.nan
    margins = [2 * math.sqrt(mean * (1 - mean) / n) if n else math.nan for n in labelled]
    series = [
        Series("click rate", middles, rates, points=len(rates) < 60),
        Series("mean ± 2 standard errors", middles, [mean + margin for margin in margins], reference=True),
        Series("", middles, [mean - margin for margin in margins], reference=True),
    ]
    x = Axis("line of the log")
    charts = [line_chart(f"Click rate per {lines:,} lines", series, x, Axis("click rate", "percent"), "wide")]
    if schema.rejected_rows:
        whole = [min(lines, schema.source["lines"] - i * lines) for i in range(len(rows))]
        bad = [1 - n / total for n, total in zip(rows, whole, strict=True)]
        share = Axis("share of the lines", "percent", low=0)
        charts.append(line_chart("Rejected lines", [Series("rejected", middles, bad)], x, share, "wide"))
    return charts


def _categorical(schema: Schema, profile: Profile) -> Section:
    fields = {field.name: field for field in schema.categorical}
    names = list(fields)
    profiles = [profile.categorical[name] for name in names]
    training = max(profile.training_rows, 1)
    own_ids = [fields[name].num_values - 1 for name in names]  # The missing value's id does not count.
    distinct = [float(p.values[0]) if p.values else math.nan for p in profiles]
    bars = [Bars("in the log", distinct)] * any(p.values for p in profiles) + [Bars("with an id of their own", own_ids)]
    missing = [p.missing / training for p in profiles]
    unknown = [p.unknown / training for p in profiles]
    shares = [Bars("missing", missing), Bars("out of vocabulary", unknown)]
    ids = [", ".join(f"{first:,} … {end - 1:,}" for first, end in fields[name].id_ranges) for name in names]
    charts = [
        bar_chart("Distinct values", names, bars, Axis("distinct values", log=True, low=1)),
        bar_chart("Cells without an id of their own", names, shares, Axis("share of training rows", "percent")),
    ]
    return Section(
        "Categorical fields",
        PagePart("charts", charts),
        PagePart("table", FIELD_COLUMNS, list(zip(names, distinct, own_ids, missing, unknown, ids, strict=True))),
        *(PagePart("paragraph", f"{text}.") for text in [*_clocks(schema), *cut_lists(schema, profile)]),
        note="" if any(p.values for p in profiles) else NOT_COUNTED,
    )


def _clocks(schema: Schema) -> Iterator[str]:
    """For each timestamp column from which hours or weekdays are derived, yield a sentence that names its time zone."""
    log_format = schema.log_format
    for name in log_format.time_fields:
        if log_format.parts_of_time(name):
            zone = log_format.timezone.get(name, "UTC (prepare.data.timezone names another place)")
            yield f"Hours and weekdays of {name} are by the clock of {zone}"


def _coverage(schema: Schema, profile: Profile) -> list[Section]:
    """Return the report's section that shows the size and coverage of the vocabulary for other values of `min_count`.

    Return it as a list of one section, or an empty list if values were not counted.
    """
    fields = {name: field for name, field in profile.categorical.items() if field.values}
    if not fields:
        return []
    counts = [count for count in profile.min_counts if count <= max(profile.training_rows / 10, 10)]
    places = range(len(counts))
    values = [sum(field.values[i] for field in fields.values()) for i in places]
    present = sum(_num_values(field) for field in fields.values())
    covered = [sum(field.rows[i] for field in fields.values()) / present for i in places]
    min_count, low = schema.options["min_count"], min(0.5, *covered)
    x, size = Axis("min_count", log=True, low=1), Axis("distinct values", log=True, low=1)
    known = Axis("share of the values", "percent", low=low, high=1)
    ends = (((1, max(values)), "Size of the vocabulary", values, size), ((low, 1), "Cells with an id", covered, known))
    both = []
    for (first, last), title, curve, y in ends:
        mark = Series(f"min_count {min_count}", [min_count, min_count + 1e-9], [first, last], reference=True)
        both.append(line_chart(title, [Series("all fields", counts, curve, points=True), mark], x, y))
    largest = sorted(fields, key=lambda name: -fields[name].values[0])
    names = [name for name in largest if fields[name].values[0] > 100]
    small = []
    for name in names[:_MOST_FIELDS]:
        field, cells = fields[name], _num_values(fields[name])
        series = [
            Series("cells", counts, [field.rows[i] / cells for i in places]),
            Series("values", counts, [field.values[i] / field.values[0] for i in places]),
        ]
        title, share = f"{name}: {field.values[0]:,} values", Axis("share with an id", "percent", low=0, high=1)
        small.append(line_chart(title, series, x, share, "small"))
    charts = PagePart("charts", both), PagePart("charts", small)
    return [Section("Coverage of the vocabulary", *charts, *left_out(names[_MOST_FIELDS:]), note=COVERAGE)]


def _num_values(field: CategoricalProfile) -> int:
    """Return the number of values that a field has in the training rows.

    A list has several values, a missing cell none. If there are no values, return 1, because the result is a divisor.
    """
    return field.rows[0] or 1  # `rows[0]` belongs to the `min_count` 1, which every value reaches.


def _numeric(schema: Schema, profile: Profile) -> Section:
    """Return the report's section on numeric fields: missing cells, quantiles and histograms of the training rows."""
    title, names = "Numeric fields", list(profile.numeric)
    if not names:
        return Section(title, note="There are none.")
    missing = [profile.numeric[name].missing / max(profile.training_rows, 1) for name in names]
    columns = {field.source: field for field in schema.numeric if field.is_whole}
    pairs = [pair(name, profile.numeric[name], columns[name]) for name in names[:_MOST_FIELDS] if name in columns]
    share = Axis("share of training rows", "percent", low=0)
    quantiles = [(f"{100 * quantile:g} %", "number") for quantile in _QUANTILES]
    rows = [[name, missing[i], *_quantiles(profile.numeric[name])] for i, name in enumerate(names)]
    transform = _TRANSFORMS[schema.options["numeric_transform"]]
    return Section(
        title,
        PagePart("charts", [bar_chart("Missing cells of numeric fields", names, [Bars("missing", missing)], share)]),
        PagePart("table", [("field", "text"), ("missing", "share"), *quantiles, ("largest", "right")], rows),
        PagePart("charts", [chart for both in pairs for chart in both]),
        *left_out(names[_MOST_FIELDS:]),
        note="Before: the numbers as they are, without the largest one per cent. After: all of them after "
        f"{transform}. Quantiles of integers are exact up to 16, all others to an eighth of an octave.",
    )


def _vectors(schema: Schema) -> Section:
    """Return the report's section on vector columns: width, missing vectors, and quantiles of Euclidean norms."""
    columns = [("field", "text"), ("width", "number"), ("scale", "text"), ("missing", "share"),
               *((f"{100 * rank:g} %", "number") for rank in NORM_RANKS)]  # fmt: skip
    rows = [
        [field.name, field.width, field.scale, field.missing, *(field.norms or [None] * len(NORM_RANKS))]
        for field in schema.vectors
    ]
    charts = []
    for field in schema.vectors[:_MOST_FIELDS]:
        if field.norms:
            bins = [(low, high, 1) for low, high in itertools.pairwise(field.norms)]
            edges, shares = _join_bins(bins, len(bins))
            density = Density("share of present vectors", shares)
            charts.append(histogram(f"Norms of {field.name}", edges, [density], Axis("Euclidean norm"), "small"))
    return Section(
        "Vector columns",
        PagePart("table", columns, rows),
        PagePart("charts", charts),
        *left_out([field.name for field in schema.vectors[_MOST_FIELDS:]]),
        note="Quantiles of the Euclidean norms of the vectors as they are written, from a sample of the training rows.",
    )


def left_out(fields: Sequence[str]) -> list[PagePart]:
    """Return a note that the report leaves out the charts of `fields`, as a list with one `PagePart`.

    Return an empty list if there are no such fields.
    """
    text = f"The charts of {len(fields)} more fields are left out; the tables and statistics.json have all."
    return [PagePart("note", text)] if fields else []


def number_bins(field: NumericProfile) -> Sequence[tuple[float, float, int]]:
    """Return (start, end, count) of each bin in the histogram of a numeric field.

    `count` is the number of cells in the bin. A bin of integers contains start … end - 1.
    """
    if field.is_float:
        return [(*bin_bounds(number, FLOAT_BINS), count) for number, count in field.bins]
    bins = []
    for number, count in field.bins:
        low, high = bin_bounds(number)
        # Of the bounds `low` and `high` of a bin, the one nearer to 0 belongs to the bin, and the other one does not.
        first, end = (math.ceil(low), math.ceil(high)) if low >= 0 else (math.floor(low) + 1, math.floor(high) + 1)
        bins.append((first, max(end, first + 1), count))
    return bins


def _quantiles(field: NumericProfile) -> list[object]:
    bins = number_bins(field)
    if not bins:
        return [None] * len(_QUANTILES) + ["–"]
    sums = np.cumsum([count for _, _, count in bins])
    places = [int(np.searchsorted(sums, quantile * sums[-1])) for quantile in _QUANTILES]
    return [
        *(bins[min(place, len(bins) - 1)][0] for place in places),
        f"below {bins[-1][1]:{'.4g' if field.is_float else ','}}",
    ]


def pair(name: str, field: NumericProfile, column: NumericField) -> list[Chart]:
    """Return two charts of a numeric field: a histogram of its numbers, and one of the numbers after its transform.

    Return an empty list if all cells of the field are missing.
    """
    bins = number_bins(field)
    if not bins:
        return []
    sums = np.cumsum([count for _, _, count in bins])
    num_shown = int(np.searchsorted(sums, _SHARE_OF_AXIS * sums[-1])) + 1
    before = [(float(first), float(end), count) for first, end, count in bins[:num_shown]]
    # The ends of bins become floats before the field's transform (such as log1p) is applied to them, because the end of
    # a bin may exceed int64.
    ends = [transform_numbers(column, np.array([first, end], float)) for first, end, _ in bins]
    after = [(float(first), float(end), count) for (first, end), (_, _, count) in zip(ends, bins, strict=True)]
    charts = []
    for title, each, label in (
        (f"{name} before", before, "number" if field.is_float else "integer"),
        (f"{name} after", after, "transformed value"),
    ):
        edges, shares = _join_bins(each, int(sums[-1]))
        charts.append(histogram(title, edges, [Density("share of present cells", shares)], Axis(label), "small"))
    return charts


def _join_bins(bins: Sequence[tuple[float, float, int]], total: int) -> tuple[list[float], list[float]]:
    """Join adjacent bins (start, end, count) of a histogram to at most `_MOST_BINS` bins, and fill the gaps between.

    Return the edges of the new bins, and each new bin's share of the `total` cells. The new edges are chosen among the
    edges of `bins`: they are the edges that follow next after evenly spaced numbers. For the histogram after a field's
    transform, such as log1p, the caller has transformed the ends of `bins`. The transform may round both ends of a bin
    to the same number. The cells of this bin then belong to the new bin below that number.
    """
    firsts, ends, counts = np.array(bins, np.float64).T
    edges = np.unique([firsts, ends])
    evenly = np.linspace(edges[0], edges[-1], _MOST_BINS + 1)
    edges = edges[np.unique(np.searchsorted(edges, evenly).clip(max=len(edges) - 1))]
    if len(edges) == 1:  # All numbers are equal, so that the only bin has the width 0. Make it wider.
        edges = np.append(edges, edges + np.maximum(1.0, np.spacing(edges)))
    below = np.cumsum(counts)
    ramps = np.stack([firsts, ends], axis=1).ravel(), np.stack([below - counts, below], axis=1).ravel()
    inner = np.interp(edges[1:-1], *ramps)
    return edges.tolist(), (np.diff([0, *inner, total]) / total).tolist()


def _rejects(schema: Schema, folder: Path) -> Section:
    """Return the report's section on rejected lines.

    For each reason to reject lines, the section shows the number of lines, their share of all lines, and the beginning
    of the first few of them.
    """
    by_reason, title = schema.source["rejected_by_reason"], "Rejected lines"
    if not by_reason:
        return Section(title, note="No line was rejected.")
    examples: dict[str, list[str]] = {reason: [] for reason in by_reason}
    with (folder / "rejects.tsv").open("rb") as rejects:
        for line in rejects:
            number, reason, content = [*line.rstrip(b"\r\n").split(b"\t", 2), b"", b""][:3]
            of_reason = examples.get(reason.decode(errors="replace"))
            if of_reason is not None and len(of_reason) < _EXAMPLES:
                text = content[:_EXAMPLE_BYTES].decode("utf-8", errors="backslashreplace")
                text = "".join("⇥" if c == "\t" else c if c.isprintable() else repr(c)[1:-1] for c in text)
                dots = "…" if len(content) > _EXAMPLE_BYTES else ""
                of_reason.append(f"{number.decode(errors='replace')}: {text}{dots}")
            if rejects.tell() > _REJECTS_READ_BYTES or all(len(e) >= _EXAMPLES for e in examples.values()):
                break
    frequent_first = sorted(by_reason.items(), key=lambda item: -item[1])
    rows = [[reason, count, count / schema.source["lines"], examples[reason]] for reason, count in frequent_first]
    note = "All of them, with their line numbers, are in rejects.tsv. The table shows the first ones of each reason."
    return Section(title, PagePart("table", REJECT_COLUMNS, rows), note=note)


def _settings(schema: Schema) -> list[Mapping[str, Any]]:
    source = {name: value for name, value in schema.source.items() if isinstance(value, (str, int)) and value != ""}
    size, lines = schema.source["size_bytes"], schema.source["lines"]
    source |= {"size_bytes": number_text(size, "bytes"), "lines": f"{lines:,}"}
    files = {"layout": schema.layout, "type of ids": schema.ids_dtype, "rows per block": schema.block_rows}
    options: dict[str, str] = {}
    for name, value in schema.options.items():
        parts = {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
        options |= {key: setting_text(part) for key, part in parts.items() if part not in ({}, [], "", None)}
    return [options, source, files]


def _timing(schema: Schema, timing: Timing) -> Section:
    stages = {**timing.stages, "all else": timing.seconds - sum(timing.stages.values())}
    cpu = f"{1e6 * timing.cpu_seconds / schema.source['lines']:.2f} µs a line"
    peaks = [number_text(size, "bytes") for size in (timing.peak_bytes, timing.worker_peak_bytes)]
    rows = [[name, seconds, seconds / timing.seconds] for name, seconds in stages.items()]
    facts = {
        "finished": timing.finished,
        "wall clock": number_text(timing.seconds, "seconds"),
        "CPU time": f"{number_text(timing.cpu_seconds, 'seconds')}, {cpu}",
        "workers": f"{timing.workers} on {timing.cores} cores, {timing.machine}, Python {timing.python}",
        "peak memory": f"{peaks[0]} of the main process, {peaks[1]} of the largest worker (resident)",
    }
    parts = [
        PagePart("table", [("part", "text"), ("time", "seconds"), ("share of the whole", "share")], rows),
        PagePart("definitions", facts),
    ]
    if schema.rejected_rows > 0.001 * schema.source["lines"]:
        many = "More than one line in a thousand was rejected: look at the rejected lines above."
        parts.append(PagePart("warning", many))
    note = "Only this part of the page differs between two runs with the same log and settings."
    return Section("The run", *parts, note=note)


@dataclass(frozen=True)
class Timing:
    """The content of timing.json: time and memory of the process that completed the prepared folder.

    If the preparation was interrupted, work before the interruption is not included.
    """

    finished: str  # Time in UTC at which the preparation ended.
    seconds: float
    stages: dict[str, float]  # Seconds of each pass over the log, by its title.
    cpu_seconds: float  # CPU seconds of this process and of the workers that it started on this machine.
    peak_bytes: int  # Peak resident memory of this process.
    worker_peak_bytes: int  # Peak resident memory of the largest worker.
    workers: int
    cores: int
    machine: str
    python: str


class RunClock:
    """Measures the time of a preparation, from the creation of this object to the call of `stop`.

    The caller sets `stages`, the seconds of each pass over the log, and `workers`, the number of worker processes.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._cpu_before = _cpu_seconds()
        self.stages: Mapping[str, float] = {}
        self.workers = 1

    def stop(self) -> Timing:
        return Timing(
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=time.monotonic() - self._start,
            stages=dict(self.stages),
            cpu_seconds=_cpu_seconds() - self._cpu_before,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
            worker_peak_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _KIB,
            workers=self.workers,
            cores=num_cores(),
            machine=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
        )


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def write_timing(timing: Timing, folder: Path) -> None:
    """Write timing.json atomically, so that the report never reads a partial file."""
    write_whole(folder / TIMING_FILE, json.dumps(asdict(timing), indent=1) + "\n")


def read_timing(folder: Path) -> Timing | None:
    """Return the content of timing.json, or None if there is no such file. Raise ValueError if it is damaged."""
    path = folder / TIMING_FILE
    if not path.is_file():
        return None
    try:
        return record_of(parse_json(path.read_bytes()), Timing)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error!r}); remove it and run the command again") from error
