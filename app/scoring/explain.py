"""The parts that the columns of rows have in their logits.

The part of a column is its Shapley value: the mean change of the logit as its cell becomes blank, over orders in which
a row's cells become blank one after the other. So the parts and the logit of a blank row add up to the row's logit.
Each order is taken forward and backward, which is exact where no three columns act together (R. Mitchell et al.,
"Sampling permutations for Shapley value estimation", JMLR 2022).

Letters: n rows, K columns that are fields.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from common.console import progress_bar
from data_prep.encoding.encoder import ParsedRows
from data_prep.options.log_format import LogFormat

INTERCEPT = "(intercept)"  # the logit of a row whose cells are all blank
ORDERS = 4
_SEED = 0


def parts_of_logits(
    rows: ParsedRows, log_format: LogFormat, logits_of: Callable[[ParsedRows], np.ndarray], num_orders: int
) -> dict[str, np.ndarray]:
    """Return the intercept and the part of each column of parsed rows, float64 [n] each; they add up to the logits.

    `num_orders` is the number of orders, each of which is taken in both directions: 2 · K · `num_orders` scores a row.
    The orders are the same for all rows and every call.
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
            left, before = rows, logits
            for place in order:
                left = left.blanked(names[place])
                after = logits_of(left).astype(np.float64)
                parts[place] += before - after
                before = after
                bar.update()
    return {INTERCEPT: after, **dict(zip(names, parts / len(orders), strict=True))}
