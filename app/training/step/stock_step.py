"""Take training steps with the backend `stock`: MindSpore's own host operators look up and update the tables, in one
graph with the tower and its optimizers.

MindSpore's Wide&Deep tutorial does the same, so the backend stock is the baseline for comparisons.

`EmbeddingLookup`, `FusedSparseFtrl` and `FusedSparseLazyAdam` run on the CPU because of the attribute
`primitive_target`, whatever the device target. MindSpore 2.10 announces the removal of the two optimizers. They take
int32 ids and a fixed FTRL rate. `EmbeddingLookup` returns zeros for a bad id and the optimizers silently ignore it, so
ids are checked on the host first.

With `fold_numeric=false`, numeric fields are looked up like all others, as in the tutorial: the numeric field number f
looks up row f and multiplies it by x_f.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from app.config.device import deprecations_silenced
from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.model.dense_state import write_parameter
from app.model.graph import ForwardBackward
from app.model.native_tower import l2_loss
from app.model.tower_optimizers import DenseOptimizers
from app.model.wide_deep import WideDeep
from app.tables.checks import check_ids
from app.tables.fields import NO_ROW
from app.tables.interface import DEEP, STATE_ARRAYS, TableRates, TablesSpec, TableState, UniqueIds
from app.tables.reference import Arrays, WholeTables, initial_arrays
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
from data_prep.prepared.batches import Batch

HOST = "CPU"
MAX_VOCABULARY = 2**31


@dataclass(frozen=True)
class PlacedOps:
    """The four table operators: two lookups and two optimizers. An attribute pins each of them to the host."""

    wide_lookup: ops.Primitive
    deep_lookup: ops.Primitive
    wide_update: ops.Primitive
    deep_update: ops.Primitive


def placed_ops(ftrl: FtrlOptions) -> PlacedOps:
    """Return MindSpore's operators that look up and update the tables, pinned to the host for any device target.

    FTRL's operator takes its learning rate at construction, so the learning rate cannot change later. Raise ValueError
    if this version of MindSpore has one of the operators no longer.
    """
    for name in ("EmbeddingLookup", "FusedSparseFtrl", "FusedSparseLazyAdam"):
        if not hasattr(ops, name):
            raise ValueError(
                f"tables.backend=stock needs mindspore.ops.{name}, which MindSpore {ms.__version__} does not have "
                "(2.10 is the last version that it was tested with); choose tables.backend=native"
            )
    with deprecations_silenced():
        placed = PlacedOps(
            wide_lookup=ops.EmbeddingLookup(),
            deep_lookup=ops.EmbeddingLookup(),
            wide_update=ops.FusedSparseFtrl(lr=ftrl.learning_rate, l1=ftrl.l1, l2=ftrl.l2, lr_power=-0.5),
            deep_update=ops.FusedSparseLazyAdam(),
        )
    for primitive in vars(placed).values():
        primitive.add_prim_attr("primitive_target", HOST)
    return placed


def describe_placement(placed: PlacedOps) -> list[str]:
    """Return a line about each table operator: its role, its name, where it runs, and the attribute that says so."""
    return [
        f"{role}: {primitive.name} on {primitive.attrs['primitive_target']}, "
        f"primitive_target={primitive.attrs['primitive_target']}"
        for role, primitive in vars(placed).items()
    ]


class TableParameters(nn.Cell):
    """Both complete tables and their optimizer states as MindSpore parameters, with the host operators on them."""

    def __init__(self, spec: TablesSpec) -> None:
        super().__init__()
        assert isinstance(spec.wide_optimizer, FtrlOptions)
        assert isinstance(spec.deep_optimizer, LazyAdamOptions)
        for table, arrays in initial_arrays(spec).items():
            for name, array in arrays.items():
                setattr(self, f"{table}_{name}", Parameter(Tensor(array), name=f"{table}.{name}"))
        placed = placed_ops(spec.wide_optimizer)
        self.wide_lookup, self.deep_lookup = placed.wide_lookup, placed.deep_lookup
        self.wide_update, self.deep_update = placed.wide_update, placed.deep_update
        adam = spec.deep_optimizer
        self.betas_and_epsilon = tuple(Tensor(x, ms.float32) for x in (adam.beta1, adam.beta2, adam.epsilon))
        self.no_power = Tensor(0.0, ms.float32)

    def construct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Look up `ids` [B, F]. Return deep rows [B, F, D] and wide rows [B, F, 1]."""
        return self.deep_lookup(self.deep_rows, ids, 0), self.wide_lookup(self.wide_rows, ids, 0)

    def update(self, ids: Tensor, deep_gradients: Tensor, wide_gradients: Tensor, deep_rate: Tensor) -> tuple:
        """Update both tables for `ids` [B * F] with gradients [B * F, D] and [B * F, 1]. Gradients of equal ids are
        summed.

        `deep_rate` includes Adam's bias correction. The operator gets 0 for the powers of beta1 and beta2, which
        switches off its own correction, because its float32 `1 - beta2` would lose four digits in the first steps.
        """
        beta1, beta2, epsilon = self.betas_and_epsilon
        wide = self.wide_update(self.wide_rows, self.wide_accumulator, self.wide_linear, wide_gradients, ids)
        deep = self.deep_update(
            self.deep_rows,
            self.deep_first_moment,
            self.deep_second_moment,
            self.no_power,
            self.no_power,
            deep_rate,
            beta1,
            beta2,
            epsilon,
            deep_gradients,
            ids,
        )
        return wide, deep


@dataclass(frozen=True)
class StockIds(UniqueIds):
    """The ids of a batch in the form that MindSpore's graph of a training step takes.

    `ids` is int32 [B, F]. `first_seen` [B * F, 1] is 1 at the first position of each id in the batch, and otherwise 0.
    """

    ids: np.ndarray
    first_seen: np.ndarray


class StockTables(WholeTables):
    """The wide and the deep table as MindSpore parameters. Lookup and update happen inside `StockGraph`, a step's
    graph.

    `num_looked_up_numeric` is N if numeric fields have embedding rows (`model.fold_numeric=false`), and otherwise 0.
    """

    def __init__(self, spec: TablesSpec, learning_rates: TableRates, num_looked_up_numeric: int = 0) -> None:
        if spec.vocabulary_size >= MAX_VOCABULARY:
            raise ValueError(
                f"tables.backend=stock takes int32 ids: the vocabulary of {spec.vocabulary_size} is above "
                f"{MAX_VOCABULARY - 1}; use tables.backend=native"
            )
        super().__init__(spec)
        self._learning_rates = learning_rates
        self.num_looked_up_numeric = num_looked_up_numeric
        self.parameters = TableParameters(spec)

    def deep_rate(self, step: int) -> float:
        """Return the deep table's learning rate at step number `step`, multiplied by LazyAdam's bias corrections."""
        options = self.spec.deep_optimizer
        assert isinstance(options, LazyAdamOptions)
        return self._learning_rates[DEEP](step) * options.correction(step)

    def unique(self, ids: np.ndarray) -> StockIds:
        """Return the ids of a batch in the form that MindSpore's graph takes.

        `ids` [B, C] are the ids of the categorical fields. The ids of numeric fields are put before them if numeric
        fields have embedding rows. Raise ValueError for a wrong dtype or shape, or for an id outside 0 … V-1.
        """
        numeric_ids = np.broadcast_to(
            np.arange(self.num_looked_up_numeric, dtype=ids.dtype), (len(ids), self.num_looked_up_numeric)
        )
        ids = np.concatenate([numeric_ids, ids], axis=1)
        check_ids(ids, self.spec)
        values, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        first_seen = np.zeros((ids.size, 1), np.float32)
        first_seen[first] = 1
        return StockIds((ids.shape[0], ids.shape[1]), values, inverse.reshape(-1), ids.astype(np.int32), first_seen)

    def copied_rows(self, row_ids: np.ndarray) -> dict[str, TableState]:
        return {
            table: TableState(
                row_ids, {name: parameter.asnumpy()[row_ids] for name, parameter in self._parameters(table).items()}
            )
            for table in STATE_ARRAYS
        }

    def take_arrays(self, arrays: Arrays) -> None:
        for table, by_name in arrays.items():
            for name, parameter in self._parameters(table).items():
                write_parameter(parameter, by_name[name])

    def _parameters(self, table: str) -> dict[str, Parameter]:
        return {name: getattr(self.parameters, f"{table}_{name}") for name in STATE_ARRAYS[table]}


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
