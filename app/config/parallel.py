"""The section `parallel`: how the tower is spread over ranks. The tables' rows are spread in any case."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from common.settings import Bounds, Checked, Count

FOR_ACCELERATORS = ("search_mode", "optimizer_level")


@dataclass(frozen=True)
class ParallelOptions(Checked):
    """The tower over several ranks (docs/internals/parallel.md)."""

    tensor_parallel: Count = 1  # The number of ranks that compute a part of the batch together.
    # How such a group splits a layer's product, in MindSpore's notation: {matrix_0: "((2, 4), (4, 1))"}. Layers that
    # are not named split the batch.
    strategies: dict[str, str] = field(default_factory=dict)
    # The strategy.json of another run, whose strategies or pipeline stages are taken.
    strategy_file: str = ""
    # Split the optimizer's state among the ranks that hold the same weights (ZeRO 1).
    optimizer_shards: bool = False
    # The hidden layers whose values the backward pass computes again instead of keeping them: [all], or runs of layers
    # such as ["matrix_0:matrix_2", matrix_4]. The inputs of a run are kept.
    recompute: tuple[str, ...] = ()
    # 2: the first and the last layers of the tower are on different ranks of a pair.
    pipeline_stages: Annotated[int, Bounds(least=1, most=2, expected="1 or 2")] = 1
    # The first layer of the second stage, such as matrix_1. If empty, it is chosen to halve the work.
    second_stage: str = ""
    # The number of parts of the batch that go through the pipeline one after the other.
    micro_batches: Count = 4
    # On Ascend and GPU only: let MindSpore find splits for the layers that strategies does not name.
    search_mode: Literal["none", "sharding_propagation", "recursive_programming"] = "none"
    # On Ascend and GPU only, with optimizer_shards: the level of MindSpore's AutoParallel.hsdp.
    optimizer_level: Literal["level1", "level2", "level3"] = "level1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.second_stage and self.pipeline_stages == 1:
            raise ValueError(f"parallel.second_stage={self.second_stage} needs parallel.pipeline_stages=2, which is 1")
        if self.pipeline_stages > 1 and (self.is_sharded or self.recompute or self.search_mode != "none"):
            raise ValueError(
                "parallel.pipeline_stages=2 cannot be combined with parallel.tensor_parallel, strategies, "
                "strategy_file, optimizer_shards, search_mode or recompute (the first stage recomputes); leave one out"
            )
        if self.strategy_file and (self.strategies or self.tensor_parallel > 1):
            raise ValueError(
                "parallel.strategy_file brings tensor_parallel and strategies with it; give the file or the two of them"
            )
        if self.strategies and self.tensor_parallel == 1:
            raise ValueError("parallel.strategies splits products over parallel.tensor_parallel ranks, which is 1")

    @property
    def is_sharded(self) -> bool:
        """True if ranks hold parts of layers, or of the optimizer's state."""
        return self.tensor_parallel > 1 or self.optimizer_shards or bool(self.strategy_file)

    @property
    def is_spread(self) -> bool:
        """True if a rank holds less than the whole tower with its optimizer's state."""
        return self.is_sharded or self.pipeline_stages > 1

    def unused_on_cpu(self) -> list[str]:
        """Return the changed settings that only Ascend and GPU have, as `parallel.key=value`."""
        defaults = {f.name: f.default for f in fields(self) if f.name in FOR_ACCELERATORS}
        values = {name: getattr(self, name) for name in defaults}
        return [f"parallel.{name}={value}" for name, value in values.items() if value != defaults[name]]


ALL = "all"

Run = tuple[int, int]  # the first layer, and the one after the last


def recomputed_runs(entries: Sequence[str], num_hidden: int) -> tuple[Run, ...]:
    """Return the runs of layers of `parallel.recompute`. `all` means runs of about √layers.

    Raises ValueError for an unknown layer, and for one that is named twice.
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
    names = [f"matrix_{i}" for i in range(num_hidden)]
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
