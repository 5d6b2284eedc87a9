"""The report's part on numeric fields: missing cells, and the values before and after their transform."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from common.html.axes import Axis
from common.html.charts import Bars, Density, Html, bar_chart, histogram
from common.html.page import grid, section, share, table
from data_prep.kernels.reference import bin_bounds
from data_prep.prepared.schema import INDICATOR, NumericField, Schema, transform_integers
from data_prep.statistics.file import NumericProfile, Profile

_MOST_BINS = 48  # drawn
_SHOWN = 0.99  # of the cells before the transform: the few largest integers would hide the others
_QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


def numeric_section(schema: Schema, profile: Profile) -> Html:
    """Of the training rows."""
    if not profile.numeric:
        return section("Numeric fields", note="There are none.")
    names = list(profile.numeric)
    training = max(profile.training_rows, 1)
    missing = [profile.numeric[name].missing / training for name in names]
    rows = [[name, share(missing[i]), *_quantiles(profile.numeric[name])] for i, name in enumerate(names)]
    head = ["field", "missing", *(f"{100 * quantile:g} %" for quantile in _QUANTILES), "largest"]
    transformed = {field.source: field for field in schema.numeric if field.transform != INDICATOR}
    pairs = [_pair(name, profile.numeric[name], transformed[name]) for name in names if name in transformed]
    note = (
        f"Left: the integers as they are, without the largest one per cent. Right: after {_transform(schema)}, all of "
        "them. Quantiles are exact up to 16, then to an eighth of an octave."
    )
    parts = [
        bar_chart("Missing cells", names, [Bars("missing", missing)], Axis("of training rows", "percent", low=0)),
        table(head, rows),
        grid(*itertools.chain.from_iterable(pairs)),
    ]
    return section("Numeric fields", *parts, note=note)


def _transform(schema: Schema) -> str:
    return {
        "log1p": "sign(x) · ln(1 + |x|)",
        "max": "x / largest",
        "standardize": "(x − mean) / standard deviation",
    }[schema.options["numeric_transform"]]


def whole_bins(field: NumericProfile) -> list[tuple[int, int, int]]:
    """(from, to, count) of the bins: the integers from … to - 1."""
    bins = []
    for number, count in field.bins:
        low, high = bin_bounds(number)
        # Away from 0 a bin holds its nearer end and not its farther one.
        first, end = (math.ceil(low), math.ceil(high)) if low >= 0 else (math.floor(low) + 1, math.floor(high) + 1)
        bins.append((first, max(end, first + 1), count))
    return bins


def _quantiles(field: NumericProfile) -> list[object]:
    bins = whole_bins(field)
    if not bins:
        return ["–"] * (len(_QUANTILES) + 1)
    sums = np.cumsum([count for _, _, count in bins])
    places = [int(np.searchsorted(sums, quantile * sums[-1])) for quantile in _QUANTILES]
    return [*(bins[min(place, len(bins) - 1)][0] for place in places), f"below {bins[-1][1]:,}"]


def _pair(name: str, field: NumericProfile, column: NumericField) -> list[Html]:
    """Histograms before and after; none of a field without a value."""
    bins = whole_bins(field)
    if not bins:
        return []
    sums = np.cumsum([count for _, _, count in bins])
    num_shown = int(np.searchsorted(sums, _SHOWN * sums[-1])) + 1
    before = [(float(first), float(end), count) for first, end, count in bins[:num_shown]]
    after = [(_transformed(column, first), _transformed(column, end), count) for first, end, count in bins]
    total = int(sums[-1])
    return [_histogram(f"{name} before", before, total, "integer"), _histogram(f"{name} after", after, total, "number")]


def _transformed(column: NumericField, integer: int) -> float:
    return float(transform_integers(column, np.array([float(integer)]))[0])  # a bin's end may be above int64


def _histogram(title: str, bins: Sequence[tuple[float, float, int]], total: int, label: str) -> Html:
    edges, shares = _joined(bins, total)
    return histogram(title, edges, [Density("of present cells", shares)], Axis(label), "small")


def _joined(bins: Sequence[tuple[float, float, int]], total: int) -> tuple[list[float], list[float]]:
    """Edges and shares of bins side by side: narrow ones joined, gaps filled with 0.

    None is narrower than can be seen: a transform may round the ends of a bin to the same number.
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
