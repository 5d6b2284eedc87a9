"""A training step: rows go to the device, row gradients come back, nothing else crosses between host and device.

    rows = tables.lookup(unique)
    loss, row_gradients = forward_backward(rows, numeric, labels)     model/graph.py, dense optimizers inside
    tables.update(unique, row_gradients)

All or nothing: the graph computes one flag of loss, row gradients, dense gradients and dense parameters. If a value is
NaN or infinite, no optimizer writes and the step raises FloatingPointError, naming the first bad value.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from mindspore import Parameter, Tensor

from app.batches import Batch
from app.config.config import LossOptions
from app.model.dropout import DropoutNoise
from app.model.graph import ForwardBackward, HostGraph, l2_loss
from app.model.tower_optimizers import DenseOptimizers
from app.model.wide_deep import WideDeep
from app.tables.checks import LARGEST_GRADIENT
from app.tables.interface import DEEP, LOOKUP, WIDE, HostTables, RowGradients, Rows, Tables, UniqueIds
from app.training.learning_rates import LearningRates

NATIVE_TOWER = "NativeTower"  # among the kernels that a profile shows
OVERFLOWED = "the loss or a gradient overflowed"
ADVICE = "try a lower loss.loss_scale or learning rate"


@dataclass(frozen=True)
class Losses:
    """The losses of one step, as in docs/internals/DESIGN.md."""

    wide_loss: float
    deep_loss: float


class TrainStep(ABC):
    """A training step and scoring over one table backend."""

    tables: Tables
    seconds: dict[str, float]  # spent in each part of the steps so far, by name
    is_native = False  # the tower runs as native kernels, and not as a graph

    @abstractmethod
    def prepare(self, batch: Batch) -> UniqueIds:
        """Return what can be computed of a batch before its step. It is called on the prefetch thread."""

    @abstractmethod
    def __call__(self, batch: Batch, unique: UniqueIds) -> Losses:
        """Take one step. Raise FloatingPointError, with nothing written, if a value is NaN or infinite."""

    @abstractmethod
    def score(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        """Return the logits [n] of a batch, and change nothing."""

    def kernel_seconds(self) -> dict[str, float]:
        """Return what the table kernels of the last step took outside the graph, by name."""
        return {}


@dataclass(frozen=True)
class StepSettings:
    """The parts of a step besides its tables. `numeric_names` are for messages."""

    model: WideDeep
    optimizers: DenseOptimizers
    learning_rates: LearningRates
    noise: DropoutNoise
    loss: LossOptions
    batch_size: int
    numeric_names: tuple[str, ...]

    def forward_backward(self) -> ForwardBackward:
        """Return the cell that computes the gradients."""
        return ForwardBackward(self.model, self.loss, drops=self.noise.rate > 0)

    def shared_by(self, num_ranks: int) -> StepSettings:
        """Return the parts for one of several ranks, each with its share of the L2 term of the numeric fields' rows."""
        return replace(self, loss=replace(self.loss, l2_coef=self.loss.l2_coef / num_ranks))

    def set_learning_rates(self, step: int) -> None:
        """Set the dense optimizers' learning rates of step 1, 2, …"""
        rates = self.learning_rates.at(step)
        self.optimizers.set_learning_rates(rates["wide"], rates["tower"])
        self.optimizers.set_step(step)


# `DeviceGraph`, or the same over several ranks.
Graph = Callable[..., tuple[Tensor, ...]]


class ByPosition:
    """The form in which rows cross to the device: one row for each position of the batch."""

    def __init__(self, tables: HostTables, batch_size: int) -> None:
        self.tables = tables
        self.batch_size = batch_size

    def prepare(self, batch: Batch) -> UniqueIds:
        """Return the ids that `tables` look up and update. It is called on the prefetch thread."""
        return self.tables.unique(batch.ids)

    def grow(self, vocabulary_size: int) -> None:
        """See `HostTables.grow`."""
        self.tables.grow(vocabulary_size)

    def renumber(self, new_ids: np.ndarray, vocabulary_size: int) -> None:
        """See `HostTables.renumber`."""
        self.tables.renumber(new_ids, vocabulary_size)

    def lookup(self, unique: UniqueIds, means: bool = False) -> Rows:
        """See `HostTables.lookup`."""
        return self.tables.lookup(unique, means)

    def update(self, unique: UniqueIds, gradients: RowGradients) -> None:
        """Take a step of the tables. The graph has checked the gradients."""
        self.tables.update(unique, gradients, checked=True)

    def inputs(self, unique: UniqueIds, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return deep and wide rows, padded to the shape that the graph is compiled for."""
        return pad_rows(rows.deep, self.batch_size), pad_rows(rows.wide, self.batch_size)

    def index(self, unique: UniqueIds) -> dict[str, np.ndarray]:
        """Return the model's further inputs by name."""
        return {}

    def places(self, batch: Batch, unique: UniqueIds, rows: Rows) -> tuple[Watched, Watched, Watched]:
        """Return deep rows, wide rows and their sums, to find a value that is not finite."""
        spec, wide_ids = self.tables.spec, ids_of(unique.of(WIDE))
        # The next lookup may write over `rows`.
        deep = Watched("deep row", rows.deep.copy(), spec.deep_names, ids_of(unique.of(DEEP)))
        wide_names = tuple(spec.field_names[place] for place in spec.columns_of(WIDE))
        wide = Watched("wide row", self._wide_rows_of_bad_sum(wide_ids, rows.wide), wide_names, wide_ids)
        return deep, wide, Watched("sum of wide rows", rows.wide)

    def gradient_places(self, batch: Batch, unique: UniqueIds, gradients: RowGradients) -> tuple[Watched, Watched]:
        """Return the gradients of deep rows and of sums of wide rows."""
        return gradient_places(gradients.deep, gradients.wide, self.tables.spec.deep_names, ids_of(unique.of(DEEP)))

    def _wide_rows_of_bad_sum(self, ids: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """[n, C]: the wide rows behind the first of `sums` [n] that is not finite, each C times. The rest is 0.

        `lookup` gives sums over fields only, so each id of that batch row is looked up as a row of its own.
        """
        wide = np.zeros(ids.shape, np.float32)
        bad_row = np.flatnonzero(~np.isfinite(sums))[:1]
        # Also if there is none: a lookup may be one of all ranks together.
        id_by_id = np.repeat(ids[bad_row].reshape(-1, 1), self.tables.spec.num_positions, axis=1)
        wide[bad_row] = self.tables.lookup(self.tables.unique(id_by_id)).wide.reshape(-1, ids.shape[1])
        return wide


class HostTablesScorer:
    """Logits of a batch from tables outside the graph, which needs no optimizer and changes nothing.

    If the tables keep running means of their rows, it scores with those. The model must then have its own.
    """

    def __init__(self, rows: ByPosition, logits: Callable[..., np.ndarray]) -> None:
        """`logits` computes those of the host's arrays."""
        self.tables = rows.tables
        self.prepare = rows.prepare
        self._rows = rows
        self._logits = logits
        self._means = rows.tables.spec.ema_decay > 0

    def __call__(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        """Return the logits [n] of a batch of n <= batch_size rows."""
        deep, wide = self._rows.inputs(unique, self._rows.lookup(unique, self._means))
        inputs = (deep, wide, pad_rows(batch.numeric, self._rows.batch_size))
        return self._logits(*inputs, **self._rows.index(unique))[: batch.num_rows]


class HostTablesStep(TrainStep):
    """The step over tables that live outside the graph (`reference`, `native`)."""

    tables: HostTables

    def __init__(
        self,
        rows: ByPosition,
        settings: StepSettings,
        graph: HostGraph,
        logits: Callable[..., np.ndarray],
    ) -> None:
        """`graph` and `logits` compute a step's `DeviceGraph`, and scores, of the host's arrays."""
        self.tables = rows.tables
        self.rows = rows
        self.settings = settings
        self.graph, self.is_native = graph, graph.is_native
        self._kernel_seconds: dict[str, float] = {}  # of the last step
        self.seconds = {"lookup": 0.0, "tower": 0.0, "update": 0.0}
        self._scorer = HostTablesScorer(rows, logits)

    def grow(self, vocabulary_size: int) -> None:
        """See `HostTables.grow`."""
        self.rows.grow(vocabulary_size)

    def remove(self, row_ids: np.ndarray) -> None:
        """See `HostTables.remove`."""
        self.rows.tables.remove(row_ids)

    def renumber(self, new_ids: np.ndarray, vocabulary_size: int) -> None:
        """See `HostTables.renumber`."""
        self.rows.renumber(new_ids, vocabulary_size)

    def prepare(self, batch: Batch) -> UniqueIds:
        return self.rows.prepare(batch)

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
        tower = {NATIVE_TOWER: computed - looked_up} if self.is_native else {}
        self._kernel_seconds = {LOOKUP: looked_up - start, **tower, **self.tables.update_seconds}
        self.seconds["lookup"] += looked_up - start
        self.seconds["tower"] += computed - looked_up
        self.seconds["update"] += time.perf_counter() - computed
        return Losses(wide_loss, deep_loss + float(l2_loss(rows.squared_norm, self.settings.loss.l2_coef)))

    def _forward_backward(self, batch: Batch, unique: UniqueIds, rows: Rows) -> tuple[float, float, bool, RowGradients]:
        """Run the device's graph: wide loss, deep loss without the tables' L2 term, finite, row gradients."""
        of_batch = (batch.numeric, batch.labels, batch.shares())
        inputs = (*self.rows.inputs(unique, rows), *(pad_rows(values, self.settings.batch_size) for values in of_batch))
        noise, index = self.settings.noise.of_step(self.tables.step + 1, batch.first_row), self.rows.index(unique)
        deep_loss, wide_loss, finite, deep, wide = self.graph(*inputs, noise, *index.values())
        count = len(rows.wide)
        gradients = RowGradients(deep[:count], wide[:count], scale=1 / self.settings.loss.loss_scale)
        return float(wide_loss), float(deep_loss), bool(finite), gradients

    def score(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        return self._scorer(batch, unique)

    def kernel_seconds(self) -> dict[str, float]:
        return self._kernel_seconds

    def _find_bad(self, batch: Batch, unique: UniqueIds, rows: Rows, gradients: RowGradients) -> str:
        return describe_not_finite(
            (*self.rows.places(batch, unique, rows), *batch_places(batch, self.settings.numeric_names)),
            self.settings.model.named_parameters(),
            self.rows.gradient_places(batch, unique, gradients),
        )


def ids_of(unique: UniqueIds) -> np.ndarray:
    """Return the ids [n, C] that the distinct ones were found in, of a list the first."""
    inverse = unique.inverse if unique.lists is None else unique.inverse[unique.lists.first[:-1]]
    return unique.values[inverse].reshape(unique.shape)


def pad_rows(values: np.ndarray, batch_size: int) -> np.ndarray:
    """Return `values` [n, …] with zero rows up to `batch_size`: one shape is one compiled graph."""
    if len(values) == batch_size:
        return values
    padded = np.zeros((batch_size, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    return padded


@dataclass(frozen=True)
class Watched:
    """Input or output array of a step: [n], or [n, F * W] for F `fields`, with `ids` [n, F] for messages."""

    what: str
    values: np.ndarray
    fields: tuple[str, ...] = ()
    ids: np.ndarray | None = None
    limit: float = math.inf

    def first_bad(self) -> str | None:
        """Describe the first value that is NaN or outside ±limit, or None if there is none."""
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


def batch_places(batch: Batch, numeric_names: tuple[str, ...]) -> tuple[Watched, Watched]:
    """Return the values of a batch besides its ids."""
    return Watched("numeric input", batch.numeric, numeric_names), Watched("label", batch.labels)


def gradient_places(
    deep: np.ndarray, wide: np.ndarray, fields: tuple[str, ...], ids: np.ndarray
) -> tuple[Watched, Watched]:
    """Return the row gradients [n, F * D] and [n], with the limit beyond which optimizers might overflow."""
    limit = float(LARGEST_GRADIENT)
    return (
        Watched("gradient of the deep row", deep, fields, ids, limit),
        Watched("gradient of the wide rows", wide, limit=limit),
    )


def describe_not_finite(
    inputs: Iterable[Watched], parameters: dict[str, Parameter], gradients: Iterable[Watched]
) -> str:
    """Describe the first bad value among inputs, then parameters, then gradients: each may result from those before."""
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
