"""Fit power laws to the published value counts of C1-C26, for the synthetic log's generator.

    python -m benchmarks.accuracy.fit_synthetic_shape [--write]

For each field: the share of the rows that the value of rank r holds, straight lines over (log r, log share)
between knots half a decade apart. The top value's share is the published one; the lines' slopes make the
expected counts (distinct values of 137,139 rows and of all rows, values seen at least 10 times in 36.7 M
rows) the published ones, and stay as even as these counts allow. Prints published beside fitted; `--write`
puts the knots into configs/data/criteo_shape.json.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
from scipy.optimize import least_squares
from scipy.special import gammainc

from data_prep.sources.shape import CATEGORICAL_NAMES, FACTS_FILE, SHAPE_FILE, ValueShape

SAMPLE_ROWS = 137_139
VOCABULARY_ROWS = 36_672_493
VOCABULARY_MIN_COUNT = 10
RELATIVE_TOLERANCE = 0.01  # of a published count, against 1 of a slope that differs from its neighbour's
STEEPEST_SLOPE = 12.0
UNSEEN_FACTORS = (1, 1.1, 2, 10)  # values that exist over values that the whole log shows; the best fit is taken


def published_counts(facts: dict, field: int) -> np.ndarray:
    """Distinct values of the sample, vocabulary, distinct values of the whole log; missing is not counted."""
    categorical = facts["categorical"]
    has_missing = categorical["missing_percent"][field] > 0
    return np.array(
        [
            categorical["distinct_in_137139_rows"][field],
            categorical["vocabulary_at_min_count_10_of_36672493_rows"][field]
            - categorical["vocabulary_includes_placeholders"],
            categorical["cardinality_including_missing"][field] - has_missing,
        ],
        dtype=np.float64,
    )


def expected_counts(shape: ValueShape, log_rows: int) -> np.ndarray:
    """Return the expected `published_counts` of a log drawn from `shape`."""
    values, share = np.diff(shape.edges), shape.share_of_bin
    return np.array(
        [
            (values * -np.expm1(-SAMPLE_ROWS * share)).sum(),
            (values * gammainc(VOCABULARY_MIN_COUNT, VOCABULARY_ROWS * share)).sum(),
            (values * -np.expm1(-log_rows * share)).sum(),
        ]
    )


def knot_ranks(last: float) -> np.ndarray:
    """1, 2, then half a decade apart (a factor of two in small fields) up to `last` [k]."""
    between = 2.0 ** np.arange(2, 10) if last < 1000 else np.round(10 ** np.arange(0.5, 9, 0.5))
    return np.unique(np.concatenate([[1, 2], between[between < last / 1.5], [round(last)]]))


def fit_with(
    ranks: np.ndarray, published: np.ndarray, top: float, live: float, log_rows: int
) -> tuple[float, ValueShape]:
    """The best shape through knots at `ranks`, with its cost."""
    run = np.diff(np.log(ranks))

    def shape_of(slopes: np.ndarray) -> ValueShape:
        return ValueShape.from_knots(ranks, top * np.exp(-np.concatenate([[0], np.cumsum(slopes * run)])), live)

    def residuals(slopes: np.ndarray) -> np.ndarray:
        shape = shape_of(slopes)
        counts = np.log(expected_counts(shape, log_rows) / published)
        return np.concatenate(
            [counts / RELATIVE_TOLERANCE, [np.log(shape.rescaled) / RELATIVE_TOLERANCE], np.diff(slopes)]
        )

    fits = [least_squares(residuals, np.full(len(run), start), bounds=(0, STEEPEST_SLOPE)) for start in (0.7, 1.1)]
    best = min(fits, key=lambda result: result.cost)
    return best.cost, shape_of(best.x)


def fit(facts: dict, field: int) -> tuple[ValueShape, np.ndarray, np.ndarray]:
    """The fitted shape of a field with its published and expected counts."""
    published = published_counts(facts, field)
    top = facts["categorical"]["top_value_percent"][field] / 100
    live = 1 - facts["categorical"]["missing_percent"][field] / 100
    candidates = [
        fit_with(knot_ranks(factor * published[-1]), published, top, live, facts["rows"]) for factor in UNSEEN_FACTORS
    ]
    shape = min(candidates, key=lambda candidate: candidate[0])[1]
    return shape, published, expected_counts(shape, facts["rows"])


def write_knots(knots: dict[str, dict[str, list]]) -> None:
    """Write one line per field, so that a new fit makes a readable diff."""
    about = "Share of all rows held by the value of each rank, at knots; straight lines in log-log between."
    fields = ",\n".join(f'  "{name}": {json.dumps(knots[name])}' for name in knots)
    SHAPE_FILE.write_text(
        f'{{\n "about": "{about}",\n'
        ' "command": "python -m benchmarks.accuracy.fit_synthetic_shape --write",\n'
        f' "values": {{\n{fields}\n }}\n}}\n',
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {SHAPE_FILE.name}")
    arguments = parser.parse_args()
    facts = json.loads(FACTS_FILE.read_text(encoding="utf-8"))
    knots: dict[str, dict[str, list]] = {}
    print("field   distinct in 137,139 rows     10 times in 36.7 M rows      distinct in 45.8 M rows")
    for field, name in enumerate(CATEGORICAL_NAMES):
        shape, published, expected = fit(facts, field)
        knots[name] = {
            "ranks": [int(rank) for rank in shape.knot_ranks],
            "shares": [float(f"{share:.6g}") for share in shape.knot_shares],
        }
        columns = [f"{a:>10,.0f} {b:>10,.0f} {b / a - 1:>+6.1%}" for a, b in zip(published, expected, strict=True)]
        print(f"{name:<5}", *columns)
    if arguments.write:
        write_knots(knots)
        print(f"wrote {SHAPE_FILE}")


if __name__ == "__main__":
    main()
