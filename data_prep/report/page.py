"""report.html: a prepared folder to look at, drawn from schema.json, statistics.json, rejects.tsv and timing.json.

Letters: N numeric fields, C categorical fields.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from common.files import write_whole
from common.html.axes import Axis, number_text
from common.html.charts import Bars, Html, Series, bar_chart, line_chart
from common.html.page import amount, code, definitions, grid, page, section, share, table, tiles, unbroken, warning
from data_prep.prepared.schema import CategoricalField, Schema, read_schema, wrong_bins, wrong_ids
from data_prep.report.numeric import numeric_section
from data_prep.report.timing import Timing, read_timing
from data_prep.statistics.file import CategoricalProfile, Profile, read_statistics

REPORT_FILE = "report.html"
_SPLIT_RULES = {
    "hash": "A row's split follows from a hash of its line number.",
    "chronological": "The log's first lines are for training, the next ones valid, the last ones test.",
    "stratified": "Exact shares, with the same share of clicks in every split.",
    "files": "Whole files of the log are valid and test.",
}
_MOST_POINTS = 256  # of the click rate over the log
_REJECTS_READ_BYTES = 64 << 20
_EXAMPLES = 3  # of each reason
_EXAMPLE_BYTES = 160


def write_report(folder: Path) -> Path:
    """Write the report of a prepared folder into it.

    Raises FileNotFoundError and ValueError as `read_schema`, `read_statistics` and `read_timing`.
    """
    schema, profile, run = read_schema(folder, allow_wrong_ids=True), read_statistics(folder), read_timing(folder)
    path = folder / REPORT_FILE
    title = f"Prepared data: {schema.source['name']}"
    subtitle = (
        f"{schema.num_categorical} categorical and {len(profile.numeric)} numeric fields. Figures of fields are of the "
        f"{profile.training_rows:,} training rows, all others of the whole log."
    )
    parts = [
        *map(warning, filter(None, (wrong_ids(schema, folder), wrong_bins(schema, folder)))),
        _tiles(schema, profile, run),
        _splits(schema),
        _timeline(schema, profile),
        *_categorical(schema, profile),
        numeric_section(schema, profile),
        _rejects(schema, folder),
        _settings(schema),
    ]
    if run is not None:
        parts.append(_run(schema, run))
    write_whole(path, page(title, subtitle, parts))
    return path


def _tiles(schema: Schema, profile: Profile, run: Timing | None) -> Html:
    lines, rows = schema.source["lines"], sum(split.rows for split in schema.splits.values())
    clicks = sum(split.clicks for split in schema.splits.values())
    figures = [
        ("lines", f"{lines:,}", number_text(schema.source["size_bytes"], "bytes")),
        ("rows kept", f"{rows:,}", f"{schema.rejected_rows:,} lines rejected"),
        ("click rate", number_text(clicks / rows if rows else math.nan, "percent"), f"{clicks:,} clicks"),
        ("ids", f"{schema.vocabulary_size:,}", f"of {schema.num_categorical + schema.num_numeric} columns"),
    ]
    if run is not None:
        peak = run.peak_bytes + run.workers * run.worker_peak_bytes * (run.workers > 1)
        figures += [
            ("rows a second", f"{lines / run.seconds:,.0f}", f"{number_text(run.seconds, 'seconds')} in all"),
            ("memory", number_text(peak, "bytes"), "at most: peaks of all processes"),
        ]
    return tiles(figures)


def _splits(schema: Schema) -> Html:
    rows = sum(split.rows for split in schema.splits.values())
    highest = max((s.click_rate for s in schema.splits.values() if s.rows), default=1.0)
    content = [
        [
            name,
            split.rows,
            share(split.rows / rows if rows else math.nan),
            split.clicks,
            share(split.click_rate, of=highest),
            len(split.files),
            code(split.membership),
        ]
        for name, split in schema.splits.items()
    ]
    head = ["split", "rows", "of all rows", "clicks", "click rate", "files", "which rows (checksum)"]
    return section("Splits", table(head, content), note=_SPLIT_RULES[schema.options["split"]])


def _timeline(schema: Schema, profile: Profile) -> Html:
    """Clicks over the log; a rate that wanders further than chance allows is drift."""
    per_point = -(-len(profile.rows) // _MOST_POINTS) or 1
    rows = [sum(profile.rows[i : i + per_point]) for i in range(0, len(profile.rows), per_point)]
    clicks = [sum(profile.clicks[i : i + per_point]) for i in range(0, len(profile.clicks), per_point)]
    lines = per_point * profile.span_lines
    middles = [min((i + 0.5) * lines, schema.source["lines"]) for i in range(len(rows))]
    rates = [c / n if n else math.nan for c, n in zip(clicks, rows, strict=True)]
    mean = sum(clicks) / sum(rows) if sum(rows) else math.nan
    margins = [2 * math.sqrt(mean * (1 - mean) / n) if n else math.nan for n in rows]
    series = [
        Series("click rate", middles, rates, points=len(rates) < 60),
        Series("mean ± 2 standard errors", middles, [mean + margin for margin in margins], reference=True),
        Series("", middles, [mean - margin for margin in margins], reference=True),
    ]
    axis = Axis("line of the log")
    charts = [line_chart(f"Click rate, of {lines:,} lines each", series, axis, Axis("clicks", "percent"))]
    if schema.rejected_rows:
        whole = [min(lines, schema.source["lines"] - i * lines) for i in range(len(rows))]
        bad = [1 - n / total for n, total in zip(rows, whole, strict=True)]
        charts.append(
            line_chart("Rejected lines", [Series("rejected", middles, bad)], axis, Axis("", "percent", low=0))
        )
    note = "In the order of the log. A rate that leaves the dashed band again and again is not chance: the log drifts."
    return section("Clicks over time", *charts, note=note)


def _categorical(schema: Schema, profile: Profile) -> list[Html]:
    fields = {field.name: field for field in schema.categorical}
    names = list(fields)
    profiles = [profile.categorical[name] for name in names]
    training = max(profile.training_rows, 1)
    own_ids = [fields[name].num_values - 1 for name in names]  # without that of the missing value
    distinct = [float(p.values[0]) if p.values else math.nan for p in profiles]
    counted = any(p.values for p in profiles)
    bars = [Bars("in the log", distinct)] * counted + [Bars("with an id of their own", own_ids)]
    missing = [p.missing / training for p in profiles]
    unknown = [p.unknown / training for p in profiles]
    shares = [Bars("missing", missing), Bars("out of vocabulary", unknown)]
    rows = [
        [
            name,
            distinct[i],
            own_ids[i],
            share(missing[i]),
            share(unknown[i]),
            _id_text(fields[name]),
        ]
        for i, name in enumerate(names)
    ]
    head = ["field", "distinct values", "with an id", "missing", "out of vocabulary", "ids"]
    parts = [
        bar_chart("Distinct values", names, bars, Axis("values", log=True, low=1)),
        bar_chart("Cells without a value of their own", names, shares, Axis("of training rows", "percent")),
        table(head, rows),
    ]
    note = "" if counted else "Values were not counted: none gets its id by a count in this preparation."
    sections = [section("Categorical fields", *parts, note=note)]
    return [*sections, _coverage(schema, profile)] if counted else sections


def _id_text(field: CategoricalField) -> Html:
    return Html(", ".join(unbroken(f"{first:,} … {end - 1:,}") for first, end in field.id_ranges))


def _coverage(schema: Schema, profile: Profile) -> Html:
    """What a larger or smaller min_count would give and take."""
    counts = [count for count in profile.min_counts if count <= max(profile.training_rows / 10, 10)]
    fields = {name: field for name, field in profile.categorical.items() if field.values}
    places = range(len(counts))
    values = [sum(field.values[i] for field in fields.values()) for i in places]
    present = sum(profile.training_rows - field.missing for field in fields.values()) or 1
    covered = [sum(field.rows[i] for field in fields.values()) / present for i in places]
    chosen = schema.options["min_count"]
    x = Axis("min_count", log=True, low=1)

    def mark(high: float, low: float = 0.0) -> Series:
        return Series(f"min_count {chosen}", [chosen, chosen + 1e-9], [low, high], reference=True)

    both = [
        line_chart(
            "Size of the vocabulary",
            [Series("values of all fields", counts, values, points=True), mark(max(values), 1)],
            x,
            Axis("values", log=True),
            "half",
        ),
        line_chart(
            "Cells that a vocabulary knows",
            [Series("present cells of all fields", counts, covered, points=True), mark(1)],
            x,
            Axis("", "percent", high=1.0, low=min(0.5, *covered)),
            "half",
        ),
    ]
    largest = sorted(fields, key=lambda name: -fields[name].values[0])
    small = [
        _field_coverage(name, fields[name], profile, counts, x) for name in largest if fields[name].values[0] > 100
    ]
    note = (
        "A value has an id of its own if at least min_count training rows have it. Rare values take most of the table "
        "and little of the rows; by field below, the largest first."
    )
    return section("Coverage of the vocabulary", grid(*both), grid(*small), note=note)


def _field_coverage(name: str, field: CategoricalProfile, profile: Profile, counts: Sequence[int], x: Axis) -> Html:
    places = range(len(counts))
    present = profile.training_rows - field.missing or 1
    series = [
        Series("rows", counts, [field.rows[i] / present for i in places]),
        Series("values", counts, [field.values[i] / field.values[0] for i in places]),
    ]
    return line_chart(f"{name}, {field.values[0]:,}", series, x, Axis("", "percent", low=0, high=1), "small")


def _rejects(schema: Schema, folder: Path) -> Html:
    by_reason = schema.source["rejected_by_reason"]
    if not by_reason:
        return section("Rejected lines", note="No line was rejected.")
    examples = _examples(folder, set(by_reason))
    rows = [
        [reason, count, share(count / schema.source["lines"]), Html("<br>".join(examples.get(reason, [])))]
        for reason, count in sorted(by_reason.items(), key=lambda item: -item[1])
    ]
    note = "All of them, with their line numbers, are in rejects.tsv. Here are the first ones of each reason."
    return section("Rejected lines", table(["reason", "lines", "of all lines", "examples"], rows), note=note)


def _examples(folder: Path, reasons: set[str]) -> dict[str, list[Html]]:
    """Line number and start of the first few lines of each reason."""
    found: dict[str, list[Html]] = {reason: [] for reason in reasons}
    with (folder / "rejects.tsv").open("rb") as rejects:
        for line in rejects:
            number, reason, content = [*line.rstrip(b"\r\n").split(b"\t", 2), b"", b""][:3]
            of_reason = found.get(reason.decode(errors="replace"))
            if of_reason is not None and len(of_reason) < _EXAMPLES:
                shown = content[:_EXAMPLE_BYTES].decode("utf-8", errors="backslashreplace")
                shown = "".join("⇥" if c == "\t" else c if c.isprintable() else repr(c)[1:-1] for c in shown)
                dots = "…" if len(content) > _EXAMPLE_BYTES else ""
                of_reason.append(code(f"{number.decode(errors='replace')}: {shown}{dots}"))
            if rejects.tell() > _REJECTS_READ_BYTES or all(len(e) >= _EXAMPLES for e in found.values()):
                break
    return found


def _settings(schema: Schema) -> Html:
    source = {name: value for name, value in schema.source.items() if isinstance(value, (str, int)) and value != ""}
    source["size_bytes"] = number_text(schema.source["size_bytes"], "bytes")
    source["lines"] = f"{schema.source['lines']:,}"
    files = definitions({"layout": schema.layout, "ids": schema.ids_dtype, "rows a block": schema.block_rows})
    options = {name: value for name, value in schema.options.items() if value not in ({}, None)}
    note = "What decides the bytes of the folder, and the log that they are of."
    return section("Settings", definitions(options), definitions(source), files, note=note)


def _run(schema: Schema, run: Timing) -> Html:
    other = run.seconds - sum(run.stages.values())
    stages = [[name, amount(seconds, "seconds"), share(seconds / run.seconds)] for name, seconds in run.stages.items()]
    stages.append(["all else", amount(other, "seconds"), share(other / run.seconds)])
    facts = {
        "finished": run.finished,
        "wall clock": number_text(run.seconds, "seconds"),
        "CPU time": f"{number_text(run.cpu_seconds, 'seconds')}, "
        f"{1e6 * run.cpu_seconds / schema.source['lines']:.2f} µs a line",
        "workers": f"{run.workers} on {run.cores} cores, {run.machine}, Python {run.python}",
        "peak memory": f"{number_text(run.peak_bytes, 'bytes')} of the main process, "
        f"{number_text(run.worker_peak_bytes, 'bytes')} of the largest worker (resident, shared pages included)",
    }
    parts = [table(["part", "time", "of the whole"], stages), definitions(facts)]
    if schema.rejected_rows > 0.001 * schema.source["lines"]:
        parts.append(warning("More than one line of a thousand was rejected: look at the rejected lines above."))
    return section(
        "The run", *parts, note="The only part of this page that is not the same for the same log and settings."
    )
