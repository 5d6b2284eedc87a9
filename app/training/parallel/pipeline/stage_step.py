"""A step over two stages of the tower: micro-batches pass a pair of ranks, one forward, one backward in turn.

    first stage   F0 F1    B0 F2 B1 F3 B2    B3      F forward, B backward (recomputes the values)
    last stage       FB0   FB1   FB2   FB3           forward and backward at once

Gradients are summed over micro-batches, then over the ranks of the same stage.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, nn

from app.config.config import Config
from app.distributed.gradient_sum import GradientSum
from app.distributed.process_group import ProcessGroup
from app.distributed.watchdog import waiting
from app.model.dense_layer import MatMul, write_parameter
from app.model.graph import DEEP_LOSS, NUM_BAD, WIDE_LOSS, Gradients, LossGradient, Optimizers
from app.model.wide_deep import NumericFields, Tower, WideDeep, WideHead
from app.training.parallel.pipeline.stage_plan import FIRST, PipelinePlan, plan_pipeline
from app.training.parallel.pipeline.stages import (
    NUM_DATA,
    FirstLoss,
    FirstStage,
    GivenSquaredNorm,
    LastLoss,
    LastStage,
)
from app.training.parallel.placement import Arrays, TowerPlacement
from app.training.step.step import StepSettings


class PipelinePlacement(TowerPlacement):
    """The tower in two stages. `arrays` and `layers` are the whole tower's initial values and hidden layers."""

    def __init__(self, config: Config, arrays: Arrays, layers: list[nn.Cell], group: ProcessGroup) -> None:
        shapes = {name: array.shape for name, array in arrays.items()}
        self.plan: PipelinePlan = plan_pipeline(config.parallel, shapes, group.size)
        self.stage, second = self.plan.stage(group.rank), self.plan.second_stage
        self.rows = self.plan.micro_rows(config.train.batch_size) * self.plan.micro_batches
        self.cell: FirstStage | LastStage
        if self.stage == FIRST:
            numeric_fields = NumericFields(arrays)
            tower, wide = Tower(numeric_fields, arrays, layers[:second], output=None), WideHead(numeric_fields.num)
            self.cell = FirstStage(wide, tower, config.model.dropout > 0)
            super().__init__(WideDeep(tower, wide), self.rows)
        else:
            model = WideDeep(Tower(NumericFields({}), arrays, layers[second:], MatMul(), first=second), wide=None)
            self.cell = LastStage(model, config.model.dropout > 0)
            super().__init__(model, batch_rows=1)  # the last stage looks up no row
        widths = (0, *config.model.hidden_widths)
        self.squared_norm: GivenSquaredNorm = GivenSquaredNorm()
        self.link = Channel(group, self.plan, self.rows, widths[self.plan.second_stage])
        self._group = group

    def graph(self, settings: StepSettings) -> PipelineGraph:
        return PipelineGraph(self, settings.shared_by(self.plan.num_pairs * self.plan.micro_batches), self._group)

    def scorer(self) -> PipelineScorer:
        return PipelineScorer(self)

    def rows_of(self, num_rows: int, rank: int, num_ranks: int) -> slice:
        return self.plan.rows_of(num_rows, rank, num_ranks)

    def holds(self, name: str) -> bool:
        return self.plan.holds(self.stage, name)

    def gather(self, arrays: Arrays) -> Arrays:
        mine = arrays if self._group.rank % self.plan.num_pairs == 0 else {}
        return {name: array for stage_arrays in self._group.gather(mine) for name, array in stage_arrays.items()}

    def slices(self, arrays: Arrays) -> Arrays:
        if self._group.rank % self.plan.num_pairs:
            return {}
        return {n: array for n, array in arrays.items() if self.stage == FIRST or not self.plan.holds(FIRST, n)}


class Channel:
    """The pair's link: messages [n, H + 3] to the last stage, gradients [n, H + 1] back."""

    def __init__(self, group: ProcessGroup, plan: PipelinePlan, batch_rows: int, width: int) -> None:
        self.world, self.partner = group.communicator, plan.partner(group.rank)
        self.width = width
        self._on_its_way: list[tuple[Any, np.ndarray]] = []

    def send(self, values: np.ndarray) -> None:
        """Start to send an array. Keep a copy until `finish`."""
        array = np.array(values, order="C")
        self._on_its_way.append((self.world.Isend(array, dest=self.partner), array))

    def receive(self, *shape: int) -> Tensor:
        array = np.empty(shape, np.float32)
        with waiting():
            self.world.Recv(array, source=self.partner)
        return Tensor.from_numpy(array)

    def finish(self) -> None:
        with waiting():
            for request, _ in self._on_its_way:
                request.Wait()
        self._on_its_way.clear()


class PipelineGraph:
    """`DeviceGraph` over a pair of ranks, with losses, flag and dense gradients summed over all pairs."""

    def __init__(self, run: PipelinePlacement, settings: StepSettings, group: ProcessGroup) -> None:
        self._run, self._group, self._link = run, group, run.link
        self._micro_rows = run.rows // run.plan.micro_batches
        stage_gradients = run.model.named_parameters().values()
        if isinstance(run.cell, FirstStage):
            gradient = LossGradient(FirstLoss(run.cell, settings.loss), (0, 1), stage_gradients)
        else:
            gradient = LossGradient(LastLoss(run.cell, settings.loss), (0,), stage_gradients)
        self._gradients = Gradients(gradient)
        self._sum = GradientSum(group.communicator.Split(color=run.stage, key=group.rank))
        self._optimizers = Optimizers(settings.optimizers)
        self._clips, self._num_wide = settings.loss.tower_clip_norm > 0, settings.optimizers.num_wide
        self._loss_scale = settings.loss.loss_scale

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Take `DeviceGraph.construct`'s inputs. The last stage has no rows, and returns zeros as their gradients."""
        deep_rows, wide_rows, *_, noise = inputs
        if self._run.stage == FIRST:
            sums, (deep, wide) = self._first(inputs)
        else:
            sums, deep, wide = self._last(noise), np.zeros(deep_rows.shape), np.zeros(wide_rows.shape)
        self._link.finish()
        scalars, *gradients = sums
        gradients, finite = self._sum(gradients)
        scalars[NUM_BAD] += not finite
        scalars = np.sum(self._group.gather(scalars), axis=0)
        finite = bool(scalars[NUM_BAD] == 0)
        if finite and self._clips:  # by Σ gradient² of the whole tower; each rank has its stage's gradients
            stage_gradients = gradients[self._num_wide :]
            squares = sum(float(np.sum(np.square(values / self._loss_scale))) for values in stage_gradients)
            total = sum(self._group.gather(squares)) / self._run.plan.num_pairs
            write_parameter(self._run.squared_norm.value, np.array([total], np.float32))
        if finite:
            self._optimizers(*map(Tensor.from_numpy, gradients)).asnumpy()
        losses = Tensor(float(scalars[DEEP_LOSS])), Tensor(float(scalars[WIDE_LOSS]))
        return (*losses, Tensor(finite), Tensor(deep.astype(np.float32)), Tensor(wide.astype(np.float32)))

    def _first(self, inputs: tuple[Tensor, ...]) -> tuple[list[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        *arrays, noise = inputs
        sums: list[np.ndarray] = []
        rows: list[tuple[np.ndarray, np.ndarray]] = []
        before: list[Tensor] = []
        for number in range(self._run.plan.micro_batches):
            part = slice(number * self._micro_rows, (number + 1) * self._micro_rows)
            micro_batch = [*(Tensor.from_numpy(a.asnumpy()[part]) for a in arrays), self._noise(noise, number)]
            self._link.send(self._run.cell(*micro_batch).asnumpy())
            if before:
                rows.append(self._backward(before, sums))
            before = micro_batch
        rows.append(self._backward(before, sums))
        deep, wide = zip(*rows, strict=True)
        return sums, (np.concatenate(deep), np.concatenate(wide))

    def _backward(self, micro_batch: list[Tensor], sums: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Add a micro-batch's dense gradients to `sums`. Return its row gradients."""
        gradient = self._link.receive(self._micro_rows, self._link.width + 1)
        deep, wide, *stage_gradients = (values.asnumpy() for values in self._gradients(*micro_batch, gradient))
        add(sums, stage_gradients)
        return np.array(deep), np.array(wide)

    def _last(self, noise: Tensor) -> list[np.ndarray]:
        sums: list[np.ndarray] = []
        for number in range(self._run.plan.micro_batches):
            message = self._link.receive(self._micro_rows, self._link.width + 1 + NUM_DATA)
            gradient, *stage_gradients = (
                values.asnumpy() for values in self._gradients(message, self._noise(noise, number))
            )
            self._link.send(gradient[:, : self._link.width + 1])
            add(sums, stage_gradients)
        return sums

    def _noise(self, noise: Tensor, number: int) -> Tensor:
        """Return the dropout keys of a micro-batch, whose rows start later in the batch."""
        values = noise.asnumpy().copy()
        values[:, 1] += number * self._micro_rows
        return Tensor(values)


class PipelineScorer:
    """Scores a pair's rows: forward through both stages. The logits return to the first."""

    def __init__(self, run: PipelinePlacement) -> None:
        self._run, self._link = run, run.link

    def __call__(self, deep_rows: Tensor, wide_rows: Tensor, numeric: Tensor) -> Tensor:
        """[B, C * D], [B], [B, N] -> [B]. All ranks call it together."""
        if self._run.stage == FIRST:
            self._link.send(self._run.cell(deep_rows, wide_rows, numeric, wide_rows, wide_rows, None).asnumpy())
            logits = self._link.receive(self._run.rows)
        else:
            message = self._link.receive(self._run.rows, self._link.width + 1 + NUM_DATA)
            self._link.send(self._run.cell(message, None).asnumpy())
            logits = wide_rows
        self._link.finish()
        return logits


def add(sums: list[np.ndarray], terms: list[np.ndarray]) -> None:
    """Add the terms to the sums in place. Empty `sums` become copies of the terms."""
    if not sums:
        sums.extend(np.array(term) for term in terms)
        return
    for total, term in zip(sums, terms, strict=True):
        total += term
