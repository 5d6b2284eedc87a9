"""Plan of a tower in two stages: the layers and rows of each rank. No MPI, no MindSpore.

Of N ranks, the first N / 2 hold the first layers (and the wide head), the others the rest and the loss. Ranks p and
p + N / 2 are a pair. The batch is split among the pairs. The first rank of a pair looks up its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.config.parallel import ParallelOptions
from app.distributed.process_group import max_rank_rows, rank_slice
from app.training.parallel.tensor.layout_plan import TOWER, Shapes, layer_names

FIRST, LAST = 0, 1  # the stages


@dataclass(frozen=True)
class PipelinePlan:
    """Layers and rows of each rank. `second_stage` is the index of the last stage's first layer."""

    num_ranks: int
    micro_batches: int
    second_stage: int

    @property
    def num_pairs(self) -> int:
        """Number of pairs, which is the number of copies of the tower."""
        return self.num_ranks // 2

    def stage(self, rank: int) -> int:
        return rank // self.num_pairs

    def partner(self, rank: int) -> int:
        return (rank + self.num_pairs) % self.num_ranks

    def layer_stage(self, number: int) -> int:
        return FIRST if number < self.second_stage else LAST

    def rows_of(self, num_rows: int, rank: int, num_ranks: int) -> slice:
        """Return the rows of a batch that a rank looks up: on the last stage an empty slice where its pair's begin."""
        rows = rank_slice(num_rows, rank % self.num_pairs, self.num_pairs)
        return rows if self.stage(rank) == FIRST else slice(rows.start, rows.start)

    def micro_rows(self, batch_size: int) -> int:
        """Return the rows of a micro-batch, including padding rows of weight 0."""
        return max_rank_rows(max_rank_rows(batch_size, self.num_pairs), self.micro_batches)

    def holds(self, stage: int, name: str) -> bool:
        """Return True if a stage holds an array of model or optimizer, such as `adam.first_moment.tower.bias_1`."""
        _, dot, key = name.rpartition(TOWER)
        if not dot:
            return "wide." not in name or stage == FIRST  # else a number that every optimizer has
        kind, _, number = key.rpartition("_")
        if kind not in ("matrix", "bias"):
            return stage == FIRST  # the numeric fields' rows and matrix
        return stage == self.layer_stage(int(number))


def plan_pipeline(options: ParallelOptions, whole: Shapes, num_ranks: int) -> PipelinePlan:
    """Plan the stages of a run. Raise ValueError if ranks or layers do not fit."""
    if num_ranks % 2:
        raise ValueError(
            f"parallel.pipeline_stages=2 needs an even number of ranks, found {num_ranks}: a pair holds the tower"
        )
    names = layer_names(sum(name.startswith("matrix_") for name in whole))
    if options.second_stage and options.second_stage not in names[1:]:
        raise ValueError(
            f"parallel.second_stage={options.second_stage}: the last stage begins with one of {', '.join(names[1:])}"
        )
    second = names.index(options.second_stage) if options.second_stage else balanced(whole, len(names))
    return PipelinePlan(num_ranks, options.micro_batches, second)


def balanced(whole: Mapping[str, tuple[int, ...]], num_layers: int) -> int:
    """Return the last stage's first layer for which the larger stage has the fewest weights."""
    sizes = [whole[f"matrix_{i}"][0] * whole[f"matrix_{i}"][1] for i in range(num_layers)]
    return min(range(1, num_layers), key=lambda i: max(sum(sizes[:i]), sum(sizes[i:])))


def describe_pipeline(plan: PipelinePlan, whole: Shapes) -> list[str]:
    """Return a line for each rank: its stage and its arrays."""
    lines = []
    for rank in range(plan.num_ranks):
        stage = plan.stage(rank)
        parts = ["wide head"] if stage == FIRST else []
        parts += [f"{name} {list(shape)}" for name, shape in whole.items() if plan.holds(stage, TOWER + name)]
        place = f"rank {rank}: stage {stage}, with rank {plan.partner(rank)}, {plan.micro_batches} micro-batches"
        lines.append(f"{place}: {', '.join(parts)}")
    return lines
