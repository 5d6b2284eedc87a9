"""A pipeline of two stages: the first and the last layers of the tower are on different ranks of a pair.

    first stage: rows ─► first layers ─► hidden, wide logit, label, weight ─── message ──► last stage: layers ─► loss
                 rows' gradients ◄─ the layers once more ◄─── gradient of hidden and wide logit ◄──────────────┘

Of N ranks the first N / 2 hold the wide head and the first layers, the others hold the last layers and the loss. Ranks
p and p + N / 2 are a pair. The batch is split among the pairs, and the first rank of a pair looks up the pair's rows.
The rows of a pair are divided into micro-batches, whose forward and backward passes alternate:

    first stage   F0 F1    B0 F2 B1 F3 B2    B3      F forward, B backward (which computes the values again)
    last stage       FB0   FB1   FB2   FB3           forward and backward at once

Losses are sums over rows, so the gradients of micro-batches add up to those of the batch. Letters: n rows of a
micro-batch, C fields, N numeric fields, D embedding width, H units of the hidden layer in the message.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from app.config.config import Config, LossOptions
from app.distributed.process_group import GradientSum, MpiGroup, max_rank_rows, rank_slice
from app.model.dense_layer import MatMul, Total
from app.model.dense_state import initial_tower
from app.model.graph import ForwardBackward, Gradients, Optimizers, cross_entropy, smoothed
from app.model.native_tower import DEEP_LOSS, NUM_BAD, WIDE_LOSS, l2_loss
from app.model.wide_deep import NumericFields, Tower, WideDeep, WideHead, hidden_layers
from app.training.step.step import StepSettings
from data_prep.prepared.schema import Schema
from examples.tower_over_ranks.whole_tower import Arrays, Options, WholeTower

FIRST, LAST = 0, 1  # the stages
NUM_DATA = 2  # The last two columns of a message are data without a gradient: label and weight.


class FirstLayers(Tower):
    """The hidden layers of the tower that are on the first stage."""

    def hidden(self, deep_rows: Tensor, numeric: Tensor) -> Tensor:
        """Return the hidden units [n, H] of this stage's last layer for `deep_rows` [n, C * D] and `numeric` [n, N]."""
        ones, hidden = ops.ones((deep_rows.shape[0], 1), ms.float32), deep_rows
        for i in range(self.num_hidden):
            inputs, rows = ones, self.biases[i].expand_dims(0)
            if i == 0:
                inputs, rows = self.numeric_fields(numeric, ones, rows)
            hidden = self.layers[i](hidden, self.matrices[i], inputs, rows)
        return hidden


class NoWideHead(nn.Cell):
    """Takes the place of the wide head on the last stage, to which the first stage sends the wide logits."""

    def construct(self, wide_logits: Tensor, numeric: Tensor) -> Tensor:
        return wide_logits

    def named_parameters(self) -> dict[str, Parameter]:
        """Return no parameters."""
        return {}


class FirstStage(nn.Cell):
    """The model on the first stage: the wide head and the first layers of the tower."""

    def __init__(self, tower: FirstLayers, wide: WideHead) -> None:
        super().__init__()
        self.tower, self.wide = tower, wide

    def construct(
        self, deep_rows: Tensor, wide_rows: Tensor, numeric: Tensor, labels: Tensor, example_weights: Tensor
    ) -> Tensor:
        """Return the message [n, H + 3] to the last stage: hidden units, wide logits, labels and weights."""
        columns = (self.wide(wide_rows, numeric), labels, example_weights)
        return ops.concat((self.tower.hidden(deep_rows, numeric), ops.stack(columns, 1)), 1)


class LastStage(nn.Cell):
    """The model on the last stage: the layers of the tower after those of the first stage."""

    def __init__(self, model: WideDeep) -> None:
        super().__init__()
        self.model = model

    def construct(self, hidden: Tensor, wide_logits: Tensor) -> Tensor:
        """Return the logits [n] for `hidden` [n, H] and `wide_logits` [n], which come from the first stage."""
        return self.model(hidden, wide_logits, hidden)


class FirstLoss(nn.Cell):
    """A scalar whose gradients are those that the first stage needs, given the gradient of its message.

    It is the sum of the message's values times their gradients, plus the L2 term of this micro-batch, whose gradient
    only the first stage computes.
    """

    def __init__(self, stage: FirstStage, options: LossOptions) -> None:
        super().__init__()
        self.stage, self.total = stage, Total()
        self.l2_coef, self.loss_scale = options.l2_coef, options.loss_scale

    def construct(
        self,
        deep_rows: Tensor,
        wide_rows: Tensor,
        numeric: Tensor,
        labels: Tensor,
        example_weights: Tensor,
        gradient: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return this scalar, and the parts of the deep loss and of the wide loss that the first stage computes.

        `gradient` [n, H + 1] is the gradient of the message.
        """
        message = self.stage(deep_rows, wide_rows, numeric, labels, example_weights)
        l2 = l2_loss(self.stage.tower.numeric_fields.squared_norm(), self.l2_coef)
        product = self.total(message[:, : gradient.shape[1]] * gradient)
        return product + l2 * self.loss_scale, l2, Tensor(0.0, ms.float32)


class LastLoss(nn.Cell):
    """The loss of a micro-batch, computed on the last stage from the first stage's message."""

    def __init__(self, stage: LastStage, options: LossOptions) -> None:
        super().__init__()
        self.stage = stage
        self.loss_scale, self.label_smoothing = options.loss_scale, options.label_smoothing

    def construct(
        self, hidden: Tensor, wide_logits: Tensor, labels: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss times the loss scale, the deep loss and the wide loss."""
        if self.label_smoothing:
            labels = smoothed(labels, self.label_smoothing)
        loss = cross_entropy(self.stage(hidden, wide_logits), labels, weights)
        return loss * self.loss_scale, loss, loss


class PairGroup(MpiGroup):
    """The ranks of a pipeline. Only the first rank of each pair looks up rows of a batch."""

    @property
    def num_pairs(self) -> int:
        """The number of pairs of ranks, each of which has one copy of the tower."""
        return self.size // 2

    def rows_of(self, num_rows: int, rank: int | None = None) -> slice:
        """Return the range of rows that `rank` looks up. For a rank of the last stage it is empty.

        The empty range begins where the range of the first rank of its pair begins.
        """
        rank = self.rank if rank is None else rank
        rows = rank_slice(num_rows, rank % self.num_pairs, self.num_pairs)
        return rows if rank < self.num_pairs else slice(rows.start, rows.start)


class Pipeline(WholeTower):
    """The model in a pipeline: the stage of the tower that this rank computes."""

    group_class = PairGroup
    group: PairGroup
    cell: FirstStage | LastStage

    def make_model(self, config: Config, schema: Schema, options: Options) -> WideDeep:
        arrays, layers = initial_tower(config, schema), hidden_layers(config, schema)
        if self.group.size % 2:
            raise ValueError(f"a pipeline of two stages needs an even number of ranks, found {self.group.size}")
        if options.micro_batches < 1:
            raise ValueError(f"a batch has 1 micro-batch or more, found {options.micro_batches}")
        self.num_layers = len(layers) + 1
        names = [f"matrix_{i}" for i in range(self.num_layers)]
        if options.second_stage not in ("", *names[1:]):
            raise ValueError(f"the second stage begins with one of {', '.join(names[1:])}, not {options.second_stage}")
        sizes = [arrays[name].size for name in names]
        self.second = names.index(options.second_stage) if options.second_stage else balanced(sizes)
        self.num_micro_batches = options.micro_batches
        pair_rows = max_rank_rows(config.train.batch_size, self.group.num_pairs)
        # The last micro-batch is filled up with rows of weight 0.
        self.micro_rows = max_rank_rows(pair_rows, self.num_micro_batches)
        self.rows = self.micro_rows * self.num_micro_batches
        self.stage = int(self.group.rank >= self.group.num_pairs)
        self.batch_rows = self.rows if self.stage == FIRST else 1
        self.link = Channel(self.group, arrays[names[self.second]].shape[0])
        if self.stage == FIRST:
            own = {name: array for name, array in arrays.items() if self._holds(FIRST, f"tower.{name}")}
            tower = FirstLayers(NumericFields(own), own, layers[: self.second], MatMul())
            wide = WideHead(schema.num_numeric)
            model, self.cell = WideDeep(tower, wide), FirstStage(tower, wide)
        else:
            own = {name: array for name, array in arrays.items() if self._holds(LAST, f"tower.{name}")}
            model = WideDeep(Tower(NumericFields({}), own, layers[self.second :], MatMul()), NoWideHead())
            self.cell = LastStage(model)
        return model

    def graph(self, settings: StepSettings) -> PipelineGraph:
        return PipelineGraph(self, settings.shared_by(self.group.num_pairs * self.num_micro_batches))

    def scorer(self) -> PipelineScorer:
        return PipelineScorer(self)

    def slices(self, arrays: Arrays) -> Arrays:
        """Return the arrays that this rank saves. The first rank of each stage saves the arrays of its stage.

        Optimizers of both stages have a state of powers; the first stage saves it.
        """
        if self.group.rank % self.group.num_pairs:
            return {}
        return {name: array for name, array in arrays.items() if self.stage == FIRST or not self._holds(FIRST, name)}

    def parts(self, whole: Arrays) -> Arrays:
        return {name: array for name, array in whole.items() if self._holds(self.stage, name)}

    def describe(self) -> dict[str, dict[str, str]]:
        last = {f"matrix_{i}": str(LAST) for i in range(self.second, self.num_layers)}
        return {"stages": {f"matrix_{i}": str(FIRST) for i in range(self.second)} | last}

    def _holds(self, stage: int, name: str) -> bool:
        """Return True if a stage holds this array of the model or of an optimizer.

        `name` is its name in the whole model, such as `adam.first_moment.tower.bias_1`.
        """
        _, dot, key = name.rpartition("tower.")
        if not dot:
            return "wide." not in name or stage == FIRST
        kind, _, number = key.rpartition("_")
        if kind not in ("matrix", "bias"):
            return stage == FIRST  # The name is that of the numeric fields' rows or of their matrix.
        return stage == (FIRST if int(number) < self.second else LAST)


class Channel:
    """The connection between the two ranks of a pair.

    Messages [n, H + 3] go to the last stage, and gradients [n, H + 1] come back.
    """

    def __init__(self, group: PairGroup, width: int) -> None:
        self.world, self.width = group.communicator, width
        self.partner = (group.rank + group.num_pairs) % group.size
        self._on_its_way: list[tuple[Any, np.ndarray]] = []

    def send(self, values: np.ndarray) -> None:
        """Start to send an array to the other rank of the pair. A copy of the array is kept until `finish`."""
        array = np.array(values, order="C")
        self._on_its_way.append((self.world.Isend(array, dest=self.partner), array))

    def receive(self, *shape: int) -> np.ndarray:
        array = np.empty(shape, np.float32)
        self.world.Recv(array, source=self.partner)
        return array

    def receive_message(self, num_rows: int) -> tuple[Tensor, ...]:
        """Receive a message. Return its hidden units [n, H], wide logits [n], labels [n] and weights [n]."""
        message = self.receive(num_rows, self.width + 1 + NUM_DATA)
        parts = [message[:, : self.width], *message[:, self.width :].T]
        return tuple(Tensor.from_numpy(np.ascontiguousarray(part)) for part in parts)

    def finish(self) -> None:
        for request, _ in self._on_its_way:
            request.Wait()
        self._on_its_way.clear()


class PipelineGraph:
    """A training step of a pair of ranks, with the interface of `DeviceGraph`.

    Losses, the flag for finite gradients, and dense gradients are summed over all pairs.
    """

    def __init__(self, run: Pipeline, settings: StepSettings) -> None:
        self._run, self._group, self._link, self._rows = run, run.group, run.link, run.micro_rows
        loss = FirstLoss if run.stage == FIRST else LastLoss
        parameters = run.model.named_parameters().values()
        self._gradients = Gradients(ForwardBackward(loss(run.cell, settings.loss), parameters))
        self._sum = GradientSum(self._group.communicator.Split(color=run.stage, key=self._group.rank))
        self._optimizers = Optimizers(settings.optimizers)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Take one step. Inputs and results are those of `DeviceGraph.construct`.

        The last stage has no rows, so it returns zeros as their gradients.
        """
        *arrays, _ = inputs
        if self._run.stage == FIRST:
            sums, (deep, wide) = self._first(arrays)
        else:
            sums, (deep, wide) = self._last(), (np.zeros(values.shape, np.float32) for values in arrays[:2])
        self._link.finish()
        scalars, *gradients = sums
        gradients, finite = self._sum(gradients)
        scalars[NUM_BAD] += not finite
        scalars = np.sum(self._group.gather(scalars), axis=0)
        finite = bool(scalars[NUM_BAD] == 0)
        if finite:
            self._optimizers(*map(Tensor.from_numpy, gradients)).asnumpy()
        losses = Tensor(float(scalars[DEEP_LOSS])), Tensor(float(scalars[WIDE_LOSS]))
        return (*losses, Tensor(finite), Tensor(deep), Tensor(wide))

    def _first(self, arrays: list[Tensor]) -> tuple[list[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        sums: list[np.ndarray] = []
        rows: list[tuple[np.ndarray, np.ndarray]] = []
        before: list[Tensor] = []
        for number in range(self._run.num_micro_batches):
            part = slice(number * self._rows, (number + 1) * self._rows)
            micro_batch = [Tensor.from_numpy(array.asnumpy()[part]) for array in arrays]
            self._link.send(self._run.cell(*micro_batch).asnumpy())
            if before:
                rows.append(self._backward(before, sums))
            before = micro_batch
        rows.append(self._backward(before, sums))
        deep, wide = zip(*rows, strict=True)
        return sums, (np.concatenate(deep), np.concatenate(wide))

    def _backward(self, micro_batch: list[Tensor], sums: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Compute the backward pass of a micro-batch.

        Add its dense gradients to `sums`, and return its row gradients.
        """
        gradient = Tensor.from_numpy(self._link.receive(self._rows, self._link.width + 1))
        deep, wide, *stage_gradients = (values.asnumpy() for values in self._gradients(*micro_batch, gradient))
        add(sums, stage_gradients)
        return np.array(deep), np.array(wide)

    def _last(self) -> list[np.ndarray]:
        sums: list[np.ndarray] = []
        for _ in range(self._run.num_micro_batches):
            message = self._link.receive_message(self._rows)
            hidden, wide, *stage_gradients = (values.asnumpy() for values in self._gradients(*message))
            self._link.send(np.column_stack([hidden, wide]))
            add(sums, stage_gradients)
        return sums


class PipelineScorer:
    """Computes the logits of a pair's rows by a forward pass through both stages. The first stage gets the logits."""

    def __init__(self, run: Pipeline) -> None:
        self._run, self._link = run, run.link

    def __call__(self, deep_rows: Tensor, wide_rows: Tensor, numeric: Tensor) -> Tensor:
        """Return the logits [B] for deep rows [B, C * D], wide rows [B] and numbers [B, N].

        All ranks call it together.
        """
        if self._run.stage == FIRST:
            self._link.send(self._run.cell(deep_rows, wide_rows, numeric, wide_rows, wide_rows).asnumpy())
            logits = Tensor.from_numpy(self._link.receive(self._run.rows))
        else:
            hidden, wide_logits, *_ = self._link.receive_message(self._run.rows)
            self._link.send(self._run.cell(hidden, wide_logits).asnumpy())
            logits = wide_rows
        self._link.finish()
        return logits


def add(sums: list[np.ndarray], terms: list[np.ndarray]) -> None:
    """Add each of `terms` to the array with the same index in `sums`, in place.

    If `sums` is empty, copy the terms into it.
    """
    if not sums:
        sums.extend(np.array(term) for term in terms)
        return
    for total, term in zip(sums, terms, strict=True):
        total += term


def balanced(sizes: list[int]) -> int:
    """Return the index of the layer at which the last stage should begin, given the number of weights of each layer.

    It is chosen so that the larger stage has as few weights as possible.
    """
    return min(range(1, len(sizes)), key=lambda i: max(sum(sizes[:i]), sum(sizes[i:])))
