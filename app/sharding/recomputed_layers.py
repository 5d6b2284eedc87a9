"""Which hidden layers are computed again in the backward pass: `parallel.recompute` read. No MindSpore."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from app.sharding.tower_plan import layer_names

ALL = "all"
Run = tuple[int, int]  # the first layer, and the one after the last


def recomputed_runs(entries: Sequence[str], num_hidden: int) -> tuple[Run, ...]:
    """The runs of layers that `entries` name: `matrix_2`, `matrix_0:matrix_2`, or `all`, in runs of about √layers.

    Raises ValueError for what is no hidden layer, and for one that is named twice.
    """
    if ALL in entries:
        if len(entries) > 1:
            raise ValueError(f"parallel.recompute: {ALL} stands alone, found {list(entries)}")
        length = math.ceil(math.sqrt(num_hidden))
        return tuple((first, min(first + length, num_hidden)) for first in range(0, num_hidden, length))
    runs = sorted(_run(entry, num_hidden) for entry in entries)
    for before, after in itertools.pairwise(runs):
        if after[0] < before[1]:
            raise ValueError(f"parallel.recompute: matrix_{after[0]} is named twice in {list(entries)}")
    return tuple(runs)


def _run(entry: str, num_hidden: int) -> Run:
    names = layer_names([0] * num_hidden)[:-1]
    first, _, last = entry.partition(":")
    for name in (first, last or first):
        if name not in names:
            raise ValueError(
                f"parallel.recompute: there is no hidden layer {name!r}; they are {', '.join(names)}; a run of them is "
                f"written {names[0]}:{names[-1]}"
            )
    run = names.index(first), names.index(last or first) + 1
    if run[0] >= run[1]:
        raise ValueError(f"parallel.recompute: {entry} ends before it begins")
    return run
