"""In which order a pipeline's stage computes its micro-batches: one forward, one backward in turn.

Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training" (2019): after a few forward passes to
fill the pipeline each stage alternates, so at most as many micro-batches are under way as there are stages after it.
"""

from __future__ import annotations

from enum import Enum


class Pass(Enum):
    """What is done with a micro-batch."""

    FORWARD = "forward"
    BACKWARD = "backward"


def one_forward_one_backward(stage: int, num_stages: int, num_micro_batches: int) -> list[tuple[Pass, int]]:
    """The passes of a stage, 0 being the first, with their micro-batches."""
    ahead = min(num_stages - 1 - stage, num_micro_batches)
    passes = [(Pass.FORWARD, i) for i in range(ahead)]
    for i in range(num_micro_batches):
        if i + ahead < num_micro_batches:
            passes.append((Pass.FORWARD, i + ahead))
        passes.append((Pass.BACKWARD, i))
    return passes
