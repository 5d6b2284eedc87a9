"""The section `parallel:` of a run: how the tower is spread over ranks. The tables are not concerned by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class ParallelOptions:
    """Modes of the tower, the same words on every device (docs/parallel.md).

    `tensor_parallel` ranks form a group that computes its share of the batch together; the ranks divided by it are the
    groups, among which the batch is split. `strategies` gives a layer's product a split over the ranks of a group,
    in MindSpore's notation: `{matrix_0: "((2, 4), (4, 1))"}`. With `optimizer_shards` what the optimizer remembers of
    the tower is split over the ranks that hold the same weights. `pipeline_stages` 2 computes the first
    `first_stage_layers` layers (0: half of them) on one half of the ranks and the others on the other, each batch in
    `micro_batches` parts. `recompute` names layers whose outputs are computed again instead of kept. `search` leaves
    strategies that are not given to MindSpore, on Ascend and GPU alone.
    """

    tensor_parallel: int = 1
    strategies: dict[str, str] = field(default_factory=dict)
    optimizer_shards: bool = False
    pipeline_stages: int = 1
    first_stage_layers: int = 0
    micro_batches: int = 4
    recompute: tuple[str, ...] = ()
    search: Literal["none", "sharding_propagation", "recursive_programming"] = "none"

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "micro_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"parallel.{name} must be 1 or more, found {getattr(self, name)}")
        if self.pipeline_stages not in (1, 2):
            raise ValueError(f"parallel.pipeline_stages must be 1 or 2, found {self.pipeline_stages}")
        if self.first_stage_layers < 0:
            raise ValueError(f"parallel.first_stage_layers must be 0 (half) or more, found {self.first_stage_layers}")
        if self.pipeline_stages > 1 and self.is_sharded:
            raise ValueError(
                "parallel.pipeline_stages=2 goes with data parallelism and recompute alone; leave out "
                "tensor_parallel, strategies and optimizer_shards, or the stages"
            )
        if self.strategies and self.tensor_parallel == 1:
            raise ValueError("parallel.strategies splits products over parallel.tensor_parallel ranks, which is 1")

    @property
    def is_sharded(self) -> bool:
        """Whether ranks hold parts of the tower, or of its optimizer."""
        return self.tensor_parallel > 1 or self.optimizer_shards


def check_parallel(options: ParallelOptions, layers: Sequence[str], num_ranks: int, target: str) -> None:
    """Raise ValueError where ranks, layers or the device do not fit the modes; `layers` are the tower's, in order.

    What depends on the shapes of the layers `plan_tower` checks.
    """
    if num_ranks % options.tensor_parallel:
        raise ValueError(
            f"parallel.tensor_parallel={options.tensor_parallel} does not divide the {num_ranks} ranks: "
            f"{num_ranks % options.tensor_parallel} would be left over"
        )
    if options.pipeline_stages > 1 and num_ranks % options.pipeline_stages:
        raise ValueError(
            f"parallel.pipeline_stages={options.pipeline_stages} needs an even number of ranks, found {num_ranks}"
        )
    if options.pipeline_stages > 1 and options.first_stage_layers >= len(layers):
        raise ValueError(
            f"parallel.first_stage_layers={options.first_stage_layers} leaves the second stage without a layer; the "
            f"tower has {len(layers)}"
        )
    unknown = [name for name in options.recompute if name not in layers]
    if unknown:
        raise ValueError(f"parallel.recompute: there is no layer {unknown[0]!r}; the layers are {', '.join(layers)}")
    if options.search != "none" and target == "CPU":
        raise ValueError(
            f"parallel.search={options.search} is MindSpore's own, and on a CPU it compiles no sharded graph "
            '("only support Ascend/GPU backend"); name the splits by parallel.strategies, or run on Ascend or GPU'
        )
