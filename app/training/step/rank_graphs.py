"""The MindSpore graphs of a step that several ranks take together, each with its slice of the batch.

On a CPU, the step has two graphs: one for the forward and backward pass, and one for the dense optimizers. Between
them, losses and dense gradients are summed over the ranks outside any graph (`app/distributed/process_group.py`). On
Ascend and GPU, the step has a single graph, in which MindSpore's AllReduce (HCCL, NCCL) computes these sums. The code
for Ascend and GPU was never run, because no such device was available.
"""

from __future__ import annotations

from mindspore import Tensor, nn, ops

from app.distributed.process_group import GradientSum, ProcessGroup
from app.model.graph import AllFinite, Gradients, Optimizers, scalars
from app.model.native_tower import DEEP_LOSS, NUM_BAD, WIDE_LOSS
from app.training.step.step import StepSettings


class SummedGraph:
    """`DeviceGraph` (the part of a step outside the tables) for a CPU and several ranks: losses, dense gradients and
    the flag that all values are finite are combined over the ranks.

    The sum of the losses must contain the L2 term of the numeric fields' rows only once. So each rank adds an equal
    share of this term to its loss.
    """

    def __init__(self, settings: StepSettings, group: ProcessGroup) -> None:
        self.forward_backward = settings.shared_by(group.size).forward_backward()
        self.sum = GradientSum(group.communicator)
        self._gradients = Gradients(self.forward_backward)
        self._optimizers = Optimizers(settings.optimizers)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        deep_gradients, wide_gradients, *rank_values = self._gradients(*inputs)
        # `finite` is False if a sum overflows. `sums[NUM_BAD]` counts the ranks that have found a bad value.
        (sums, *gradients), finite = self.sum([values.asnumpy() for values in rank_values])
        finite = finite and sums[NUM_BAD] == 0
        if finite:
            self._optimizers(*map(Tensor.from_numpy, gradients)).asnumpy()
        losses = (Tensor(float(sums[DEEP_LOSS])), Tensor(float(sums[WIDE_LOSS])))
        return (*losses, Tensor(bool(finite)), deep_gradients, wide_gradients)


class AllReducedGraph(nn.Cell):
    """`DeviceGraph` (the part of a step outside the tables) for Ascend or GPU and several ranks, which sums gradients
    by MindSpore's AllReduce. It was never run.
    """

    def __init__(self, settings: StepSettings, group: ProcessGroup) -> None:
        super().__init__()
        self.forward_backward = settings.shared_by(group.size).forward_backward()
        self.optimizers = settings.optimizers
        self.all_reduce, self.all_finite = ops.AllReduce(), AllFinite()

    def construct(self, *inputs: Tensor) -> tuple:
        (deep_loss, wide_loss), finite, row_gradients, dense_gradients = self.forward_backward(*inputs)
        sums = self.all_reduce(scalars(deep_loss, wide_loss, finite))
        summed: tuple[Tensor, ...] = ()
        for gradient in dense_gradients:
            summed = (*summed, self.all_reduce(gradient))
        finite = self.all_finite(summed, sums[NUM_BAD] == 0)
        deep_loss = sums[DEEP_LOSS]
        if finite:
            deep_loss = ops.depend(deep_loss, self.optimizers(summed))
        return deep_loss, sums[WIDE_LOSS], finite, row_gradients[0], row_gradients[1]
