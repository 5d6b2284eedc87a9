"""Take training steps with the backend `stock`, where lookup, tower and all optimizers form one graph."""

from __future__ import annotations

import time

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from app.model.graph import ForwardBackward
from app.model.native_tower import l2_loss
from app.model.tower_optimizers import DenseOptimizers
from app.model.wide_deep import WideDeep
from app.tables.fields import NO_ROW
from app.tables.interface import UniqueIds
from app.training.step.step import (
    Losses,
    StepSettings,
    TrainStep,
    Watched,
    batch_places,
    describe_not_finite,
    gradient_places,
    pad_rows,
)
from app.training.step.stock_tables import StockIds, StockTables
from data_prep.prepared.batches import Batch


class StockLookup(nn.Cell):
    """Looks up the inputs of the model for the ids of a batch, inside the graph.

    If numeric fields have embedding rows (`model.fold_numeric=false`), these rows are looked up too, and each is
    multiplied by the value of its field.
    """

    def __init__(self, tables: StockTables) -> None:
        super().__init__()
        self.parameters_of_tables = tables.parameters
        self.num_numeric = tables.num_looked_up_numeric
        self.unfolded = self.num_numeric > 0
        self.num_categorical = len(tables.spec.field_names) - self.num_numeric
        self.sum = ops.ReduceSum()

    def field_weights(self, numeric: Tensor) -> Tensor:
        """Return the factors by which the looked-up embedding rows are multiplied, [B, F, 1].

        The factor of a numeric field is its value x_f in the batch row. The factor of a categorical field is 1.
        """
        numbers = numeric[:, : self.num_numeric]
        return ops.concat((numbers, ops.ones((numeric.shape[0], self.num_categorical), ms.float32)), 1).expand_dims(-1)

    def construct(self, ids: Tensor, numeric: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Look up `ids` [B, F]. Return the deep table's rows unchanged, [B, F, D], and then the model's two inputs.

        The inputs are the deep rows, [B, F * D], and the sums of the wide rows, [B]. For the inputs, every row has been
        multiplied by its factor from `field_weights`.
        """
        table_rows, wide = self.parameters_of_tables(ids)
        deep = table_rows
        if self.unfolded:
            weights = self.field_weights(numeric)
            deep, wide = deep * weights, wide * weights
        return table_rows, deep.reshape(ids.shape[0], -1), self.sum(wide, (1, 2))


class StockGraph(nn.Cell):
    """A whole training step in one MindSpore graph: lookup, forward pass, backward pass and all optimizers."""

    def __init__(
        self, tables: StockTables, forward_backward: ForwardBackward, optimizers: DenseOptimizers, loss_scale: float
    ) -> None:
        super().__init__()
        self.lookup = StockLookup(tables)
        self.forward_backward = forward_backward
        self.optimizers = optimizers
        self.num_fields, self.width = len(tables.spec.field_names), tables.spec.embedding_dim
        self.l2_coef = tables.spec.l2_coef
        self.gradient_scale = 1 / loss_scale
        self.sum = ops.ReduceSum()

    def construct(
        self,
        ids: Tensor,
        first_seen: Tensor,
        numeric: Tensor,
        labels: Tensor,
        example_weights: Tensor,
        deep_rate: Tensor,
        noise: Tensor,
    ) -> tuple:
        """Take a step. Return the deep loss without the tables' L2 term, the wide loss, Σ‖row‖² over distinct deep
        rows, and True if all values are finite.

        `ids` has shape [B, F]. `first_seen` [B * F, 1] is 1 at the first position of each id in the batch, and
        otherwise 0. If a value is not finite, nothing is updated.
        """
        table_rows, deep_rows, wide_rows = self.lookup(ids, numeric)
        losses, finite, row_gradients, dense_gradients = self.forward_backward(
            deep_rows, wide_rows, numeric, labels, example_weights, noise
        )
        unique_rows = table_rows.reshape(-1, self.width) * first_seen
        squared_norm = self.sum(ops.square(unique_rows))
        deep_loss, wide_loss = losses
        if finite:
            deep, wide = self.gradients_by_position(row_gradients, numeric)
            tables = self.lookup.parameters_of_tables.update(
                ids.reshape(-1), deep + self.l2_coef * unique_rows, wide, deep_rate
            )
            deep_loss = ops.depend(deep_loss, (tables, self.optimizers(dense_gradients)))
        return deep_loss, wide_loss, squared_norm, finite

    def gradients_by_position(self, row_gradients: tuple[Tensor, Tensor], numeric: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of the deep and the wide table rows by position, [B * F, D] and [B * F, 1].

        `row_gradients` are the gradients with respect to the model's two inputs, [B, F * D] and [B], multiplied by the
        loss scale. The result is divided by the loss scale.
        """
        deep = row_gradients[0].reshape(-1, self.num_fields, self.width) * self.gradient_scale
        wide = row_gradients[1].reshape(-1, 1, 1) * self.gradient_scale
        wide = ops.tile(wide, (1, self.num_fields, 1))
        if self.lookup.unfolded:
            weights = self.lookup.field_weights(numeric)
            deep, wide = deep * weights, wide * weights
        return deep.reshape(-1, self.width), wide.reshape(-1, 1)


class StockScoring(nn.Cell):
    """A MindSpore graph that computes the logits of a batch: it looks up rows and runs the forward pass."""

    def __init__(self, lookup: StockLookup, model: WideDeep) -> None:
        super().__init__()
        self.lookup = lookup
        self.model = model

    def construct(self, ids: Tensor, numeric: Tensor) -> Tensor:
        """Return the logits [B] for `ids` [B, F] and `numeric` [B, N + K], the result of `Batch.numbers`."""
        _, deep_rows, wide_rows = self.lookup(ids, numeric)
        return self.model(deep_rows, wide_rows, numeric)


class StockStep(TrainStep):
    """The training step with the backend `stock`, whose tables and optimizers are MindSpore's own operators on the
    host.
    """

    tables: StockTables

    def __init__(self, tables: StockTables, settings: StepSettings) -> None:
        self.tables = tables
        self.settings = settings
        self.graph = StockGraph(tables, settings.forward_backward(), settings.optimizers, settings.loss.loss_scale)
        self.seconds = {"graph": 0.0}
        self._scoring = StockScoring(self.graph.lookup, settings.model)

    def prepare(self, batch: Batch, will_change: bool = False) -> UniqueIds:
        return self.tables.unique(batch.ids)

    def __call__(self, batch: Batch, unique: UniqueIds) -> Losses:
        assert isinstance(unique, StockIds)
        start = time.perf_counter()
        first_seen = np.zeros((self.settings.batch_size * unique.shape[1], 1), np.float32)
        first_seen[: len(unique.first_seen)] = unique.first_seen
        # A short batch is padded with negative ids, which the operators skip. With any other id, LazyAdam would move
        # the row of that id although the gradient is 0.
        padding = ((0, self.settings.batch_size - batch.num_rows), (0, 0))
        inputs = [np.pad(unique.ids, padding, constant_values=NO_ROW), first_seen] + [
            pad_rows(values, self.settings.batch_size) for values in (batch.numbers(), batch.labels, batch.shares())
        ]
        self.settings.set_learning_rates(self.tables.step + 1)
        rate = self.tables.deep_rate(self.tables.step + 1)
        noise = Tensor(self.settings.noise.of_step(self.tables.step + 1))
        outputs = self.graph(*(Tensor.from_numpy(values) for values in inputs), Tensor(rate, ms.float32), noise)
        deep_loss, wide_loss, squared_norm, finite = (output.asnumpy() for output in outputs)
        if not finite:
            raise FloatingPointError(self._find_bad(batch, unique))
        self.tables.step += 1
        self.tables.mark_updated(unique.values)
        self.seconds["graph"] += time.perf_counter() - start
        return Losses(
            float(wide_loss), float(deep_loss) + float(l2_loss(float(squared_norm), self.settings.loss.l2_coef))
        )

    def score(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        assert isinstance(unique, StockIds)
        inputs = (pad_rows(values, self.settings.batch_size) for values in (unique.ids, batch.numbers()))
        return self._scoring(*(Tensor.from_numpy(values) for values in inputs)).asnumpy()[: batch.num_rows]

    def _find_bad(self, batch: Batch, unique: StockIds) -> str:
        noise = self.settings.noise.of_step(self.tables.step + 1)
        ids, numeric, labels, weights, noise = (
            Tensor(values) for values in (unique.ids, batch.numbers(), batch.labels, batch.shares(), noise)
        )
        deep, wide = (rows.asnumpy().reshape(batch.num_rows, -1) for rows in self.tables.parameters(ids))
        _, deep_inputs, wide_inputs = self.graph.lookup(ids, numeric)
        gradients = self.graph.forward_backward(deep_inputs, wide_inputs, numeric, labels, weights, noise)[2]
        fields = self.tables.spec.field_names
        return describe_not_finite(
            (
                Watched("deep row", deep, fields, unique.ids),
                Watched("wide row", wide, fields, unique.ids),
                *batch_places(batch, self.settings.number_names),
            ),
            self.settings.model.named_parameters(),
            gradient_places(gradients[0].asnumpy(), gradients[1].asnumpy(), fields, unique.ids),
        )
