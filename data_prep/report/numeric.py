"""Report on numeric fields: missing cells, quantiles, and histograms before and after the transform."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from common.html.charts import Axis, Bars, Chart, Density, bar_chart, histogram
from common.html.page import PagePart, Section
from data_prep.kernels.counting import FLOAT_BINS, bin_bounds
from data_prep.prepared.schema import INDICATOR, NumericField, Schema, transform_numbers
from data_prep.statistics.statistics_file import NumericProfile, Profile

_MOST_BINS = 48  # Upper bound of the bins that are drawn.
# Share of the cells that the histogram before the transform shows. A few very large integers would hide the others.
_SHARE_OF_AXIS = 0.99
_QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_MOST_FIELDS = 60  # Upper bound of the fields with histograms.
_TRANSFORMS = {
    "log1p": "sign(x) · ln(1 + |x|)",
    "max": "x / largest",
    "standardize": "(x − mean) / standard deviation",
    "quantile": "rank of x among the training rows",
}


def numeric_fields(schema: Schema, profile: Profile) -> Section:
    """Return the report's section on numeric fields, from the training rows."""
    title, names = "Numeric fields", list(profile.numeric)
    if not names:
        return Section(title, note="There are none.")
    missing = [profile.numeric[name].missing / max(profile.training_rows, 1) for name in names]
    columns = {field.source: field for field in schema.numeric if field.transform != INDICATOR}
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
        note="Left: the integers as they are, without the largest one per cent. Right: all of them after "
        f"{transform}. Quantiles are exact up to 16, then to an eighth of an octave.",
    )


def left_out(fields: Sequence[str]) -> list[PagePart]:
    """Return a note on the fields that have no chart, or no part if there are none."""
    text = f"The charts of {len(fields)} more fields are left out; the tables and statistics.json have all."
    return [PagePart("note", text)] if fields else []


def number_bins(field: NumericProfile) -> Sequence[tuple[float, float, int]]:
    """Return (from, to, count) of each bin. A bin of integers contains from … to - 1."""
    if field.is_float:
        return [(*bin_bounds(number, FLOAT_BINS), count) for number, count in field.bins]
    bins = []
    for number, count in field.bins:
        low, high = bin_bounds(number)
        # A bin contains its end nearer to 0, but not the other one.
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
    """Return a field's histograms before and after the transform, or no chart if it has no value."""
    bins = number_bins(field)
    if not bins:
        return []
    sums = np.cumsum([count for _, _, count in bins])
    num_shown = int(np.searchsorted(sums, _SHARE_OF_AXIS * sums[-1])) + 1
    before = [(float(first), float(end), count) for first, end, count in bins[:num_shown]]
    # The end of a bin may exceed int64.
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
    """Return edges and shares of adjacent bins. Narrow bins are joined, and gaps become bins with share 0.

    No bin is too narrow to be seen, even if a transform rounds both ends of a bin to the same number.
    """
    width = ((bins[-1][1] - bins[0][0]) or 1.0) / _MOST_BINS * (1 - 1e-9)
    edges, shares = [bins[0][0]], []
    waiting, last_end = 0.0, bins[0][0]
    for first, end, count in bins:
        if first - last_end >= width:
            if waiting:
                edges.append(max(last_end, edges[-1] + width))
                shares.append(waiting)
                waiting = 0.0
            if first > edges[-1]:
                edges.append(first)
                shares.append(0.0)
        waiting, last_end = waiting + count / total, end
        if end - edges[-1] >= width:
            edges.append(end)
            shares.append(waiting)
            waiting = 0.0
    if waiting:
        edges.append(max(last_end, edges[-1] + width))
        shares.append(waiting)
    return edges, shares
