"""Two stages of the tower, a pair of ranks each: which layers and which rows are whose. No MPI, no MindSpore.

Of N ranks, the first N / 2 hold the first layers (and the wide head), the others the rest and the loss; ranks p and
p + N / 2 are a pair. The pairs share the batch out; the first rank of a pair looks its rows up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.config.parallel import ParallelOptions
from app.distributed.process_group import largest_share, share
from app.training.parallel.tensor.plan import TOWER, Shapes, layer_names

FIRST, LAST = 0, 1  # the stages


@dataclass(frozen=True)
class PipelinePlan:
    """`second_stage` is the number of the last stage's first layer."""

    num_ranks: int
    micro_batches: int
    second_stage: int

    @property
    def num_pairs(self) -> int:
        """Pairs of ranks: how often the tower is there."""
        return self.num_ranks // 2

    def stage(self, rank: int) -> int:
        """The rank's stage."""
        return rank // self.num_pairs

    def partner(self, rank: int) -> int:
        """The other rank of its pair."""
        return (rank + self.num_pairs) % self.num_ranks

    def layer_stage(self, number: int) -> int:
        """The stage of a layer."""
        return FIRST if number < self.second_stage else LAST

    def rows_of(self, num_rows: int, rank: int, num_ranks: int) -> slice:
        """The rows of a batch that a rank looks up: none on the last stage, at the place of its pair's."""
        rows = share(num_rows, rank % self.num_pairs, self.num_pairs)
        return rows if self.stage(rank) == FIRST else slice(rows.start, rows.start)

    def micro_rows(self, batch_size: int) -> int:
        """The rows of a micro-batch; what is too much fills up, and weighs nothing."""
        return largest_share(largest_share(batch_size, self.num_pairs), self.micro_batches)

    def holds(self, stage: int, name: str) -> bool:
        """Whether a stage has an array of the model or of its optimizers, such as `adam.first_moment.tower.bias_1`."""
        _, dot, key = name.rpartition(TOWER)
        if not dot:
            return "wide." not in name or stage == FIRST  # else a number that every optimizer has
        kind, _, number = key.rpartition("_")
        if kind not in ("matrix", "bias"):
            return stage == FIRST  # the numeric fields' rows and matrix
        return stage == self.layer_stage(int(number))


def plan_pipeline(options: ParallelOptions, whole: Shapes, num_ranks: int) -> PipelinePlan:
    """The plan that the settings ask for. Raises ValueError where ranks or layers do not fit."""
    if num_ranks % 2:
        raise ValueError(
            f"parallel.pipeline_stages=2 needs an even number of ranks, found {num_ranks}: a pair holds the tower"
        )
    names = layer_names([0] * (len([name for name in whole if name.startswith("matrix_")]) - 1))
    if options.second_stage and options.second_stage not in names[1:]:
        raise ValueError(
            f"parallel.second_stage={options.second_stage}: the last stage begins with one of {', '.join(names[1:])}"
        )
    second = names.index(options.second_stage) if options.second_stage else balanced(whole, len(names))
    return PipelinePlan(num_ranks, options.micro_batches, second)


def balanced(whole: Mapping[str, tuple[int, ...]], num_layers: int) -> int:
    """The layer at which the last stage begins so that the larger of both has the fewest weights to multiply with."""
    sizes = [whole[f"matrix_{i}"][0] * whole[f"matrix_{i}"][1] for i in range(num_layers)]
    return min(range(1, num_layers), key=lambda i: max(sum(sizes[:i]), sum(sizes[i:])))


def describe_pipeline(plan: PipelinePlan, whole: Shapes) -> list[str]:
    """A line for each rank: its stage, and what it holds."""
    return [
        f"rank {rank}: stage {plan.stage(rank)}, with rank {plan.partner(rank)}, "
        f"{plan.micro_batches} micro-batches: {_words(plan, plan.stage(rank), whole.items())}"
        for rank in range(plan.num_ranks)
    ]


def _words(plan: PipelinePlan, stage: int, shapes: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    held = [f"{name} {list(shape)}" for name, shape in shapes if plan.holds(stage, TOWER + name)]
    return ", ".join(["wide head", *held] if stage == FIRST else held)
