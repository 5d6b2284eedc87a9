"""Take a training step. The tables stay on the host: only the table rows of a batch go to the device, and only the
gradients of these rows come back to the tables.

    rows = tables.lookup(unique)
    loss, row_gradients = forward_backward(rows, numeric, labels)     model/graph.py, dense optimizers inside
    tables.update(unique, row_gradients)

A step changes everything or nothing: the graph computes one flag from the loss, row gradients, dense gradients and
dense parameters. If any of these values is NaN or infinite, no optimizer writes, and the step raises
FloatingPointError, which names the first bad value.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from app.config.config import LossOptions
from app.distributed.process_group import ProcessGroup, mark_collective
from app.evaluation.measure import Scorer
from app.model.dense_state import AnyParameter, DropoutNoise
from app.model.native_tower import HostGraph, distinct_rows, l2_loss
from app.tables.checks import LARGEST_GRADIENT, check_ids
from app.tables.interface import DEEP, LOOKUP, WIDE, HostTables, RowGradients, Rows, Tables, TablesSpec, UniqueIds
from app.training.learning_rates import LearningRates
from data_prep.prepared.batches import Batch, slice_of_batch

if TYPE_CHECKING:
    from mindspore import Tensor

    from app.model.graph import ForwardBackward

log = logging.getLogger(__name__)

NATIVE_TOWER = "NativeTower"  # Name of the C++ tower in the results of `kernel_seconds`.
OVERFLOWED = "the loss or a gradient overflowed"
ADVICE = "try a lower loss.loss_scale or learning rate"
CAPACITY_STEP = 256  # The capacity of a compiled graph, in distinct rows, is a multiple of this number.
# A graph is compiled for a number of distinct rows, its capacity. The first graph has room for 1.08 times the rows of
# the batch that it is compiled for, and the second for 1.5 times. The third and last fits any batch.
MARGINS = 1.08, 1.5


@dataclass(frozen=True)
class Losses:
    """The two losses of one step. The wide loss is the cross-entropy. The deep loss is the wide loss plus the L2 terms
    of embedding rows.
    """

    wide_loss: float
    deep_loss: float


class TrainStep(ABC):
    """Base of the classes that train on a batch (take a step) and score a batch, each for one kind of table backend."""

    tables: Tables
    seconds: dict[str, float]  # Total seconds of each part of a step (such as lookup or update) in all steps so far.
    is_native = False  # True if C++ kernels compute the tower, False if MindSpore's graph does.

    @abstractmethod
    def prepare(self, batch: Batch, will_change: bool = False) -> UniqueIds:
        """Return the distinct ids of a batch, with whatever else the backend can compute before the batch's step.

        The thread that reads batches ahead calls this. `will_change` says that the batch is for a training step, which
        will update the rows.
        """

    @abstractmethod
    def __call__(self, batch: Batch, unique: UniqueIds) -> Losses:
        """Take one training step on a batch, and return its losses. `unique` is the result of `prepare` for this batch.

        Raise FloatingPointError, and change nothing, if a loss, gradient or parameter is NaN or infinite.
        """

    @abstractmethod
    def score(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        """Return the logits [n] of a batch without changing anything. `unique` is the result of `prepare` for this
        batch.
        """

    def kernel_seconds(self) -> dict[str, float]:
        """Return the seconds that each table kernel outside the graph took in the last step, by name."""
        return {}


@dataclass(frozen=True)
class StepSettings:
    """What a training step needs besides its tables: model, optimizers, learning rates, dropout, loss and batch size.
    `number_names` are the names of the numeric fields and of the vectors' inputs, for messages.
    """

    model: Any  # A `NativeModel`, or a `WideDeep` that MindSpore runs.
    optimizers: Any  # `OptimizerStates`, or `DenseOptimizers` that MindSpore runs.
    learning_rates: LearningRates
    noise: DropoutNoise
    loss: LossOptions
    batch_size: int
    number_names: tuple[str, ...]

    def forward_backward(self) -> ForwardBackward:
        """Return a cell that computes a batch's losses, and the gradients with respect to table rows and parameters."""
        from app.model.graph import ForwardBackward, LossCell

        loss = LossCell(self.model, self.loss, drops=self.noise.rate > 0)
        return ForwardBackward(loss, self.model.named_parameters().values())

    def shared_by(self, num_ranks: int) -> StepSettings:
        """Return the settings for one of `num_ranks` ranks. The loss of a step is the sum of the losses of all ranks.

        The sum would contain the L2 term of the numeric fields' embedding rows once per rank, so the coefficient of
        this term is divided by the number of ranks.
        """
        if num_ranks == 1:
            return self
        return replace(self, loss=replace(self.loss, l2_coef=self.loss.l2_coef / num_ranks))

    def set_learning_rates(self, step: int) -> None:
        """Prepare the dense optimizers for step number `step` (1, 2, …): set their learning rates and the step."""
        rates = self.learning_rates.at(step)
        self.optimizers.set_learning_rates(rates["wide"], rates["tower"])
        self.optimizers.set_step(step)


# Function that computes the losses and gradients of a batch: a `DeviceGraph`, or a callable such as `SummedGraph`, in
# which several ranks do so together.
Graph = Callable[..., tuple["Tensor", ...]]


class ByPosition:
    """Passes table rows to the device by position: one embedding row for each batch row and field, even if rows
    repeat.
    """

    def __init__(self, tables: HostTables, batch_size: int) -> None:
        self.tables = tables
        self.batch_size = batch_size

    def prepare(self, batch: Batch, will_change: bool = False) -> UniqueIds:
        """Return the distinct ids of a batch, for `lookup` and `update`, and read their rows into memory. The thread
        that reads batches ahead calls this method. With `will_change`, the rows will be updated.
        """
        unique = self.tables.unique(batch.ids)
        self.tables.read_ahead(unique, will_change)
        return unique

    def lookup(self, unique: UniqueIds, means: bool = False) -> Rows:
        """Look up and return the rows of a batch, or with `means` their running means, as `HostTables.lookup`
        describes.
        """
        return self.tables.lookup(unique, means)

    def update(self, unique: UniqueIds, gradients: RowGradients) -> None:
        """Update the tables' rows by `gradients`. The step has already checked that all values are finite."""
        self.tables.update(unique, gradients, checked=True)

    def inputs(self, unique: UniqueIds, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return the deep and the wide rows as inputs of the graph, padded to the shape that it is compiled for."""
        return pad_rows(rows.deep, self.batch_size), pad_rows(rows.wide, self.batch_size)

    def index(self, unique: UniqueIds) -> dict[str, np.ndarray]:
        """Return, by name, the arrays that the model needs besides the rows of a batch.

        The result is {}, because the model needs no more than one row per position. `ByDistinctRow` overrides this
        method and returns the arrays `index` and `fields`.
        """
        return {}

    def places(self, batch: Batch, unique: UniqueIds, rows: Rows) -> tuple[Watched, Watched, Watched]:
        """Return the inputs of a step that come from the tables: deep rows, wide rows and sums of wide rows.

        If a step fails because a value is NaN or infinite, the caller searches these arrays for the first bad value.
        """
        spec, wide_ids = self.tables.spec, ids_of(unique.of(WIDE))
        # Copy the rows, because the lookup in `_wide_rows_of_bad_sum` may overwrite them.
        deep = Watched("deep row", rows.deep.copy(), spec.deep_names, ids_of(unique.of(DEEP)))
        wide_names = tuple(spec.field_names[place] for place in spec.columns_of(WIDE))
        wide = Watched("wide row", self._wide_rows_of_bad_sum(wide_ids, rows.wide), wide_names, wide_ids)
        return deep, wide, Watched("sum of wide rows", rows.wide)

    def gradient_places(self, batch: Batch, unique: UniqueIds, gradients: RowGradients) -> tuple[Watched, Watched]:
        """Return the gradients of the deep rows and of the sums of wide rows.

        If a step fails because a value is NaN or infinite, the caller searches the gradients for the first bad value.
        """
        return gradient_places(gradients.deep, gradients.wide, self.tables.spec.deep_names, ids_of(unique.of(DEEP)))

    def _wide_rows_of_bad_sum(self, ids: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Return wide rows [n, C] that show which id makes the first sum in `sums` [n] that is not finite.

        `lookup` returns only sums over fields. So this method looks up a batch with one row for each of the C ids of
        the bad batch row, and this row has the id at all positions. Its sum is not finite if the id's weight is not.
        The C sums are the result for the bad batch row. The result for every other batch row is 0.
        """
        wide = np.zeros(ids.shape, np.float32)
        bad_row = np.flatnonzero(~np.isfinite(sums))[:1]
        # This lookup takes place even if no sum is bad, because all ranks must take part in a lookup.
        id_by_id = np.repeat(ids[bad_row].reshape(-1, 1), self.tables.spec.num_positions, axis=1)
        wide[bad_row] = self.tables.lookup(self.tables.unique(id_by_id)).wide.reshape(-1, ids.shape[1])
        return wide


@dataclass(frozen=True)
class DistinctIds(UniqueIds):
    """The distinct rows of a batch, and the positions of the batch at which each distinct row is used.

    `rows` has the ids of the distinct rows as a batch with one field, [U, 1]. `index`, int32 [B, C], has the number
    (from 0 to U - 1) of the distinct row at each position. `fields`, int32 [2 * C + 1], has three parts: for each field
    the number of its first distinct row; the number U; and for each field 1 if the tower's first layer multiplies each
    distinct row once, or 0 if the layer multiplies the row of every position.
    """

    rows: UniqueIds
    index: np.ndarray
    fields: np.ndarray


class ByDistinctRow(ByPosition):
    """Passes each distinct table row of a batch to the device once, and receives one summed gradient for it.

    The embedding tables get the distinct rows, ordered by field, in the form of a batch that has one field and one
    batch row for each distinct row. If two fields use the same row, it is passed twice, once for each field.

    The array of the distinct rows is padded to one of at most three sizes. A graph is compiled for each size.
    """

    def __init__(self, tables: HostTables, spec: TablesSpec, batch_size: int, most_distinct: float) -> None:
        """`spec` describes the fields of the batches. `tables` are made from `one_field(spec)`, with a single field.

        The tower's first layer multiplies each distinct row of a field once if the field's distinct rows in a batch are
        at most the share `most_distinct` of its positions. Otherwise the layer multiplies the row of every position.
        """
        super().__init__(tables, batch_size)
        self._spec = spec
        self._most_distinct = most_distinct
        self._capacities: list[int] = []
        self._deep = np.zeros((0, spec.embedding_dim), np.float32)

    def prepare(self, batch: Batch, will_change: bool = False) -> DistinctIds:
        size = self.tables.spec.vocabulary_size
        if size != self._spec.vocabulary_size:  # The vocabulary of an online run grows, and ids are renumbered.
            self._spec = replace(self._spec, vocabulary_size=size)
        check_ids(batch.ids, self._spec)
        row_ids, index, starts = distinct_rows(batch.ids)
        is_distinct = np.diff(starts) <= self._most_distinct * batch.num_rows
        rows = self.tables.unique(row_ids[:, None])
        self.tables.read_ahead(rows, will_change)
        # A short batch is filled up with copies of its first batch row, which get weight 0. An empty batch has no row
        # to copy, so `starts` gives each field one distinct row, and the batch is filled up with these rows.
        filling = index[:1]
        if not batch.num_rows:
            starts = np.arange(len(starts), dtype=np.int32)
            filling = starts[None, :-1]
        index = np.concatenate([index, np.repeat(filling, self.batch_size - batch.num_rows, axis=0)])
        fields = np.concatenate([starts, is_distinct.astype(np.int32)])
        return DistinctIds(rows.shape, rows.values, rows.inverse, rows, index, fields)

    def lookup(self, unique: UniqueIds, means: bool = False) -> Rows:
        return self.tables.lookup(own(unique).rows, means)

    def update(self, unique: UniqueIds, gradients: RowGradients) -> None:
        self.tables.update(own(unique).rows, gradients, checked=True)

    def inputs(self, unique: UniqueIds, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        num_rows = len(rows.wide)
        capacity = self._capacity(max(num_rows, len(self._spec.fields)))
        if len(self._deep) != capacity:
            self._deep = np.zeros((capacity, rows.deep.shape[1]), np.float32)
        # The rows of `_deep` from `num_rows` on may keep the values of an earlier batch, because the model does not use
        # them: `index` refers to none of them.
        self._deep[:num_rows] = rows.deep
        return self._deep, pad_rows(rows.wide, capacity)

    def index(self, unique: UniqueIds) -> dict[str, np.ndarray]:
        unique = own(unique)
        return {"index": unique.index, "fields": unique.fields}

    def places(self, batch: Batch, unique: UniqueIds, rows: Rows) -> tuple[Watched, Watched, Watched]:
        names, index = self._spec.field_names, own(unique).index[: batch.num_rows]
        deep = Watched("deep row", rows.deep[index].reshape(batch.num_rows, -1), names, batch.ids)
        wide = Watched("wide row", rows.wide[index], names, batch.ids)
        return deep, wide, Watched("sum of wide rows", rows.wide[index].sum(axis=1))

    def gradient_places(self, batch: Batch, unique: UniqueIds, gradients: RowGradients) -> tuple[Watched, Watched]:
        index = own(unique).index[: batch.num_rows]
        deep = gradients.deep[index].reshape(batch.num_rows, -1)
        return gradient_places(deep, gradients.wide[index].sum(axis=1), self._spec.field_names, batch.ids)

    def _capacity(self, num_rows: int) -> int:
        fitting = [capacity for capacity in self._capacities if capacity >= num_rows]
        if fitting:
            return min(fitting)
        most = self.batch_size * len(self._spec.fields)
        with_room = num_rows * MARGINS[len(self._capacities)] if len(self._capacities) < len(MARGINS) else most
        capacity = min(most, -(-int(with_room) // CAPACITY_STEP) * CAPACITY_STEP)
        self._capacities.append(capacity)
        log.info("the graph of a batch with up to %d distinct rows is compiled: one has %d", capacity, num_rows)
        return capacity


def own(unique: UniqueIds) -> DistinctIds:
    """Return `unique` unchanged, typed as `DistinctIds`. It must be a result of `ByDistinctRow.prepare`."""
    assert isinstance(unique, DistinctIds)
    return unique


def score_batch(rows: ByPosition, logits: Callable[..., np.ndarray], batch: Batch, unique: UniqueIds) -> np.ndarray:
    """Return the logits [n] of a batch of n <= batch_size rows. Change neither the tables nor the model.

    `rows` looks the embedding rows up in tables outside the graph. `logits` is a function that computes the model's
    logits from arrays in host memory. If the tables keep running means of their rows, the means are used, and the
    caller must have put the running means of the dense weights into the model.
    """
    deep, wide = rows.inputs(unique, rows.lookup(unique, means=rows.tables.spec.ema_decay > 0))
    inputs = (deep, wide, pad_rows(batch.numbers(), rows.batch_size))
    return logits(*inputs, **rows.index(unique))[: batch.num_rows]


class HostTablesStep(TrainStep):
    """The training step over tables outside MindSpore's graph (backends `reference` and `native`)."""

    tables: HostTables

    def __init__(
        self,
        rows: ByPosition,
        settings: StepSettings,
        graph: HostGraph,
        logits: Callable[..., np.ndarray],
    ) -> None:
        """`rows` passes table rows to the device, `graph` computes losses and gradients and updates the dense
        parameters, and `logits` computes the logits of a batch for scoring.
        """
        self.tables = rows.tables
        self.rows = rows
        self.settings = settings
        self.graph, self.is_native = graph, graph.is_native
        self._kernel_seconds: dict[str, float] = {}  # Seconds of each kernel in the last step.
        self.seconds = {"lookup": 0.0, "tower": 0.0, "update": 0.0}
        self._logits = logits

    def prepare(self, batch: Batch, will_change: bool = False) -> UniqueIds:
        return self.rows.prepare(batch, will_change)

    def __call__(self, batch: Batch, unique: UniqueIds) -> Losses:
        start = time.perf_counter()
        self.settings.set_learning_rates(self.tables.step + 1)
        rows = self.rows.lookup(unique)
        looked_up = time.perf_counter()
        wide_loss, deep_loss, finite, gradients = self._forward_backward(batch, unique, rows)
        computed = time.perf_counter()
        if not finite:
            raise FloatingPointError(self._find_bad(batch, unique, rows, gradients))
        self.rows.update(unique, gradients)
        updated = time.perf_counter()
        self.graph.update()
        tower_seconds = computed - looked_up + time.perf_counter() - updated
        tower = {NATIVE_TOWER: tower_seconds} if self.is_native else {}
        self._kernel_seconds = {LOOKUP: looked_up - start, **tower, **self.tables.update_seconds}
        self.seconds["lookup"] += looked_up - start
        self.seconds["tower"] += tower_seconds
        self.seconds["update"] += updated - computed
        return Losses(wide_loss, deep_loss + float(l2_loss(rows.squared_norm, self.settings.loss.l2_coef)))

    def _forward_backward(self, batch: Batch, unique: UniqueIds, rows: Rows) -> tuple[float, float, bool, RowGradients]:
        """Compute losses and gradients, and update the dense parameters, for a batch with the looked-up `rows`.

        Return the wide loss, the deep loss without the tables' L2 term, whether all values are finite, and the row
        gradients. If a value is not finite, no parameter is updated.
        """
        of_batch = (batch.numbers(), batch.labels, batch.shares())
        inputs = (*self.rows.inputs(unique, rows), *(pad_rows(values, self.settings.batch_size) for values in of_batch))
        noise, index = self.settings.noise.of_step(self.tables.step + 1, batch.first_row), self.rows.index(unique)
        deep_loss, wide_loss, finite, deep, wide = self.graph(*inputs, noise, *index.values())
        count = len(rows.wide)
        gradients = RowGradients(deep[:count], wide[:count], scale=1 / self.settings.loss.loss_scale)
        return float(wide_loss), float(deep_loss), bool(finite), gradients

    def score(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        return score_batch(self.rows, self._logits, batch, unique)

    def kernel_seconds(self) -> dict[str, float]:
        return self._kernel_seconds

    def _find_bad(self, batch: Batch, unique: UniqueIds, rows: Rows, gradients: RowGradients) -> str:
        return describe_not_finite(
            (*self.rows.places(batch, unique, rows), *batch_places(batch, self.settings.number_names)),
            self.settings.model.named_parameters(),
            self.rows.gradient_places(batch, unique, gradients),
        )


def ids_of(unique: UniqueIds) -> np.ndarray:
    """Return the id at each batch row and field, [n, C]. A cell that is a list contributes the list's first id."""
    inverse = unique.inverse if unique.lists is None else unique.inverse[unique.lists.first[:-1]]
    return unique.values[inverse].reshape(unique.shape)


def pad_rows(values: np.ndarray, batch_size: int) -> np.ndarray:
    """Return `values` [n, …] with zero rows appended up to `batch_size`, because MindSpore would compile a graph for
    each n.
    """
    if len(values) == batch_size:
        return values
    padded = np.zeros((batch_size, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    return padded


@dataclass(frozen=True)
class Watched:
    """An array in which a bad value is searched after a failed step, with the names for the error message.

    `values` has shape [n], or [n, F * W] for the F names in `fields` with W columns each. `ids` [n, F] has the id of
    each batch row and field. `what` is the name of the array in the message. A value is bad if it is NaN or outside
    ±`limit`.
    """

    what: str
    values: np.ndarray
    fields: tuple[str, ...] = ()
    ids: np.ndarray | None = None
    limit: float = math.inf

    def first_bad(self) -> str | None:
        """Return a text that names the first bad value with its batch row, field and id, or None if there is none."""
        bad = np.argwhere(~(np.abs(self.values) < self.limit))
        if not len(bad):
            return None
        row, *column = bad[0]
        field = self._field(row, column[0]) if column else ""
        return f"the {self.what} of batch row {row}{field} is {self.values[tuple(bad[0])]}"

    def _field(self, row: int, column: int) -> str:
        field = column // (self.values.shape[1] // len(self.fields))
        id_text = "" if self.ids is None else f" (id {self.ids[row, field]})"
        return f", field {self.fields[field]}{id_text}"


def batch_places(batch: Batch, number_names: tuple[str, ...]) -> tuple[Watched, Watched]:
    """Return numbers, vectors and labels of a batch as `Watched` arrays, in which NaN or infinity can be searched.

    `number_names` are the names of the columns of `Batch.numbers`.
    """
    return Watched("numeric input", batch.numbers(), number_names), Watched("label", batch.labels)


def gradient_places(
    deep: np.ndarray, wide: np.ndarray, fields: tuple[str, ...], ids: np.ndarray
) -> tuple[Watched, Watched]:
    """Return the row gradients `deep` [n, F * D] and `wide` [n] as `Watched` arrays, in which a bad value can be
    searched.

    A gradient is bad if it is NaN or too large for the optimizers.
    """
    limit = float(LARGEST_GRADIENT)
    return (
        Watched("gradient of the deep row", deep, fields, ids, limit),
        Watched("gradient of the wide rows", wide, limit=limit),
    )


def describe_not_finite(
    inputs: Iterable[Watched], parameters: dict[str, AnyParameter], gradients: Iterable[Watched]
) -> str:
    """Return a text for the error message that names the first bad value of a step.

    Inputs are searched first, then parameters, then gradients. Bad values spread in this order, so the first one is the
    cause rather than a consequence.
    """
    reason = _first_in(inputs)
    for name, parameter in parameters.items():
        if reason:
            break
        values = parameter.asnumpy()
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            reason = f"the parameter {name}{bad[0].tolist()} is {values[tuple(bad[0])]}"
    return (reason or f"{_first_in(gradients) or OVERFLOWED}; {ADVICE}") + "; no table and no parameter was changed"


def _first_in(places: Iterable[Watched]) -> str | None:
    return next((bad for place in places if (bad := place.first_bad())), None)


class DataParallelStep(TrainStep):
    """A training step by several ranks. All ranks have read the whole batch, and each computes a slice of the batch's
    rows.
    """

    def __init__(self, step: HostTablesStep, group: ProcessGroup) -> None:
        self.tables, self.seconds = step.tables, step.seconds
        self._step = step
        self._group = group
        self._scorer = over_ranks(Scorer(step.prepare, step.score), group)
        self.is_native = step.is_native

    @property
    def graph(self) -> HostGraph:
        return self._step.graph

    def prepare(self, batch: Batch, will_change: bool = False) -> UniqueIds:
        # The table rows lie on the ranks that own them. An owner learns only at the lookup which rows a batch uses, so
        # no row is read ahead here, and `will_change` is ignored.
        unique: UniqueIds = self._scorer.prepare(batch)
        return unique

    def __call__(self, batch: Batch, unique: UniqueIds) -> Losses:
        rank_batch = slice_of_batch(batch, self._group.rows_of(batch.num_rows))
        try:
            return self._step(rank_batch, unique)
        # All ranks raise an error here, but only a rank whose slice contains the bad value can describe that value.
        except FloatingPointError as error:
            where = f"rank {self._group.rank}, whose rows begin at the batch's row {rank_batch.first_row}"
            reasons = self._group.gather(f"{where}: {error}")
            reason = next((reason for reason in reasons if OVERFLOWED not in reason), str(error))
            raise mark_collective(FloatingPointError(reason)) from error

    def score(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        """Score a batch on all ranks together: each rank computes a slice, and every rank returns the logits [n] of the
        whole batch.
        """
        return self._scorer.score(batch, unique)

    def kernel_seconds(self) -> dict[str, float]:
        return self._step.kernel_seconds()


def over_ranks(scorer: Scorer, group: ProcessGroup) -> Scorer:
    """Return a scorer of whole batches, in which each rank computes a slice with `scorer`, and every rank gets all
    logits.
    """

    def part(batch: Batch) -> Batch:
        return slice_of_batch(batch, group.rows_of(batch.num_rows))

    def score(batch: Batch, unique: Any) -> np.ndarray:
        slices = [group.rows_of(batch.num_rows, rank) for rank in range(group.size)]
        return group.gather_rows(scorer.score(part(batch), unique), [rows.stop - rows.start for rows in slices])

    return Scorer(lambda batch: scorer.prepare(part(batch)), score)
