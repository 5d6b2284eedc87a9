"""Columns that tell the label by themselves: what `pre-check` can see of a leak in the first rows.

Letters: n rows, K values of a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from data_prep.checks.rejects import Findings
from data_prep.kernels.rows import LogRows
from data_prep.options.log_format import LogFormat
from data_prep.prepared.truth import area_under_curve

_LEAK_AUC = 0.95  # the best models of public click logs, with all columns, come to 0.8
_FEWEST_OF_A_LABEL = 50  # clicks, and other rows, to test on: with these the AUC of chance is within 0.5 ± 0.2


def judge_leaks(rows: Sequence[LogRows], log_format: LogFormat, findings: Findings) -> None:
    """Tell of each column by which alone clicks can be told from other rows."""
    labels = np.concatenate([part.labels for part in rows])
    is_test = np.random.default_rng(1).random(len(labels)) < 0.5
    num_clicks = int(labels[is_test].sum())
    if min(num_clicks, int(is_test.sum()) - num_clicks) < _FEWEST_OF_A_LABEL:
        return
    for name, codes, numbers in _columns(rows, log_format):
        found = area_under_curve(_click_rates(codes, labels, is_test), labels[is_test])
        if numbers is not None:
            by_number = area_under_curve(numbers, labels)
            found = max(found, by_number, 1 - by_number)
        if found > _LEAK_AUC:
            findings.odd.append(
                f"{name} alone tells clicks from other rows (AUC {found:.3f}): it seems to be made from the label, or "
                "known only after the click. Unless it is known before, give it the kind ignored in the --data file"
            )


def _columns(
    rows: Sequence[LogRows], log_format: LogFormat
) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.int64] | None]]:
    """Each column's values as codes 0 … K-1 [n], one of them for missing; a numeric one's as ranks [n] too."""
    for place, name in enumerate(log_format.numeric_fields):
        # Missing is below all numbers: it may be what tells.
        ranks = np.concatenate([part.integers[place] for part in rows])
        present = np.concatenate([part.integers_present[place] for part in rows])
        codes = np.where(present, np.unique(ranks, return_inverse=True)[1] + 1, 0)
        yield name, codes, codes
    for place, name in enumerate(log_format.hex_fields):
        values = np.concatenate([part.values[place] for part in rows])
        present = np.concatenate([part.values_present[place] for part in rows])
        yield name, np.where(present, np.unique(values, return_inverse=True)[1] + 1, 0), None
    for place, name in enumerate(log_format.text_fields):
        known: dict[bytes, int] = {}
        texts = [text for part in rows for text in part.texts[place].tolist()]
        present = np.concatenate([part.texts_present[place] for part in rows])
        codes = np.array([known.setdefault(text, len(known) + 1) for text in texts], np.int64)
        yield name, np.where(present, codes, 0), None


def _click_rates(
    codes: NDArray[np.int64], labels: NDArray[np.bool_], is_test: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The click rate of each test row's value among the other rows; that of all of them for a value not seen there.

    So a value that is seen once, as an identifier of rows is, tells nothing.
    """
    seen, clicked = codes[~is_test], labels[~is_test]
    counts = np.bincount(seen, minlength=codes.max() + 1)
    clicks = np.bincount(seen, clicked, minlength=codes.max() + 1)
    rates: NDArray[np.float64] = (clicks + clicked.mean()) / (counts + 1)
    return rates[codes[is_test]]
