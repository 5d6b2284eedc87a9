"""One training step: rows go down, row gradients come back, nothing else crosses between host and device.

    rows = tables.lookup(unique)
    loss, row_gradients = forward_backward(rows, numeric, labels)     model/graph.py; dense optimizers inside
    tables.update(unique, row_gradients)

Finite or nothing: the graph makes one flag of loss, row gradients, dense gradients and dense parameters.
Where it is false no optimizer writes and the step raises FloatingPointError with the first bad place.

Letters: B batch size, n rows of this batch (n < B only in an epoch's last), C fields, N numeric, D width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from mindspore import Tensor

from app.batches import Batch
from app.config.config import LossOptions
from app.model.dropout import DropoutNoise
from app.model.graph import DeviceGraph, ForwardBackward, l2_loss
from app.model.optimizers import DenseOptimizers
from app.model.wide_deep import WideDeep
from app.tables.interface import (
    HostTables,
    RowGradients,
    Rows,
    Snapshot,
    TableSnapshot,
    TablesSpec,
    TableState,
    UniqueIds,
    WriteRows,
)
from app.training.learning_rates import LearningRates
from app.training.step.not_finite import Place, batch_places, describe_not_finite, gradient_places
from app.training.step.profile import LOOKUP, HostProfile, KernelProfile


@dataclass(frozen=True)
class Losses:
    """The losses of one step, as in docs/DESIGN.md."""

    wide_loss: float
    deep_loss: float


class StepTables(Protocol):
    """What a run needs of the tables besides the step itself: their state."""

    spec: TablesSpec
    step: int

    def unique(self, ids: np.ndarray) -> UniqueIds:
        """See `HostTables.unique`."""
        ...

    def state(self) -> dict[str, TableState]:
        """See `HostTables.state`."""
        ...

    def snapshot(self, changed_only: bool) -> Snapshot:
        """See `HostTables.snapshot`."""
        ...

    def load_state(self, state: Mapping[str, TableSnapshot], step: int) -> None:
        """See `HostTables.load_state`."""
        ...

    def loading(self, step: int) -> AbstractContextManager[WriteRows]:
        """See `HostTables.loading`."""
        ...


class TrainStep(Protocol):
    """What the training loop calls."""

    seconds: dict[str, float]  # spent in each part of the steps so far, by name

    @property
    def tables(self) -> StepTables:
        """The tables that the step updates."""
        ...

    def prepare(self, batch: Batch) -> UniqueIds:
        """What can be made of a batch before its step; called on the prefetch thread."""
        ...

    def __call__(self, batch: Batch, unique: UniqueIds) -> Losses:
        """One update of tables and tower; raises FloatingPointError, with nothing written, if not finite."""
        ...

    def score(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        """The logits [n] of a batch; changes nothing."""
        ...

    def profile(self, folder: Path) -> KernelProfile:
        """What logs the table kernels' times; raw measurements go to `folder`."""
        ...


@dataclass(frozen=True)
class StepParts:
    """What a step of any backend is made of besides its tables; `numeric_names` are for messages."""

    model: WideDeep
    optimizers: DenseOptimizers
    learning_rates: LearningRates
    noise: DropoutNoise
    loss: LossOptions
    batch_size: int
    numeric_names: tuple[str, ...]

    def forward_backward(self) -> ForwardBackward:
        """What makes the gradients."""
        return ForwardBackward(self.model, self.loss, drops=self.noise.rate > 0)

    def shared_by(self, num_ranks: int) -> StepParts:
        """Those of one of several ranks: each has its share of the L2 term of the numeric fields' rows."""
        return replace(self, loss=replace(self.loss, l2_coef=self.loss.l2_coef / num_ranks))

    def set_learning_rates(self, step: int) -> None:
        """Give the dense optimizers the learning rates of step 1, 2, …"""
        rates = self.learning_rates.at(step)
        self.optimizers.set_learning_rates(rates["wide"], rates["tower"])


class Graph(Protocol):
    """What a step runs on the device, and what surrounds that: `DeviceGraph`, or its like over several ranks."""

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """See `DeviceGraph.construct`."""
        ...


class HostTablesScorer:
    """Logits of a batch from tables outside the graph; needs no optimizer and changes nothing."""

    def __init__(self, tables: HostTables, model: Callable[..., Tensor], batch_size: int) -> None:
        self.tables = tables
        self._model = model
        self._batch_size = batch_size

    def prepare(self, batch: Batch) -> UniqueIds:
        """See `TrainStep.prepare`."""
        return self.tables.unique(batch.ids)

    def __call__(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        """The logits [n] of a batch of n <= batch_size rows."""
        rows = self.tables.lookup(unique)
        inputs = (pad_rows(values, self._batch_size) for values in (rows.deep, rows.wide, batch.numeric))
        return self._model(*(Tensor.from_numpy(values) for values in inputs)).asnumpy()[: batch.num_rows]


class HostTablesStep:
    """The step over tables that live outside the graph (`reference`, `native`)."""

    def __init__(
        self,
        tables: HostTables,
        parts: StepParts,
        graph: Graph | None = None,
        model: Callable[..., Tensor] | None = None,
    ) -> None:
        """`model` makes logits of rows, where that is not the cell `parts.model` alone."""
        self.tables = tables
        self.parts = parts
        self.graph = graph or DeviceGraph(parts.forward_backward(), parts.optimizers)
        self._kernel_seconds: dict[str, float] = {}  # of the last step
        self.seconds = {"lookup": 0.0, "tower": 0.0, "update": 0.0}
        self._scorer = HostTablesScorer(tables, model or parts.model, parts.batch_size)

    def prepare(self, batch: Batch) -> UniqueIds:
        """See `TrainStep.prepare`."""
        return self.tables.unique(batch.ids)

    def __call__(self, batch: Batch, unique: UniqueIds) -> Losses:
        """See `TrainStep.__call__`."""
        start = time.perf_counter()
        self.parts.set_learning_rates(self.tables.step + 1)
        rows = self.tables.lookup(unique)
        looked_up = time.perf_counter()
        wide_loss, deep_loss, finite, gradients = self._forward_backward(batch, rows)
        computed = time.perf_counter()
        if not finite:
            raise FloatingPointError(self._find_bad(batch, unique, rows, gradients))
        self.tables.update(unique, gradients, checked=True)
        self._kernel_seconds = {LOOKUP: looked_up - start, **self.tables.update_seconds}
        self.seconds["lookup"] += looked_up - start
        self.seconds["tower"] += computed - looked_up
        self.seconds["update"] += time.perf_counter() - computed
        return Losses(wide_loss, deep_loss + float(l2_loss(rows.squared_norm, self.parts.loss.l2_coef)))

    def _forward_backward(self, batch: Batch, rows: Rows) -> tuple[float, float, bool, RowGradients]:
        """The device's graph on one batch: wide loss, deep loss without the tables' L2 term, finite, row gradients."""
        inputs = (
            pad_rows(values, self.parts.batch_size)
            for values in (rows.deep, rows.wide, batch.numeric, batch.labels, example_weights(batch))
        )
        noise = Tensor(self.parts.noise.of_step(self.tables.step + 1, batch.first_row))
        outputs = self.graph(*(Tensor.from_numpy(values) for values in inputs), noise)
        deep_loss, wide_loss, finite, deep, wide = (output.asnumpy() for output in outputs)
        gradients = RowGradients(deep[: batch.num_rows], wide[: batch.num_rows], scale=1 / self.parts.loss.loss_scale)
        return float(wide_loss), float(deep_loss), bool(finite), gradients

    def score(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        """See `TrainStep.score`."""
        return self._scorer(batch, unique)

    def profile(self, folder: Path) -> KernelProfile:
        """See `TrainStep.profile`."""
        return HostProfile(lambda: self._kernel_seconds, folder)

    def _find_bad(self, batch: Batch, unique: UniqueIds, rows: Rows, gradients: RowGradients) -> str:
        fields, ids = self.tables.spec.field_names, unique.values[unique.inverse].reshape(unique.shape)
        deep = Place("deep row", rows.deep.copy(), fields, ids)  # the next lookup may write over `rows`
        wide = Place("wide row", self._wide_rows_of_bad_sum(ids, rows.wide), fields, ids)
        return describe_not_finite(
            (deep, wide, Place("sum of wide rows", rows.wide), *batch_places(batch, self.parts.numeric_names)),
            self.parts.model.named_parameters(),
            gradient_places(gradients.deep, gradients.wide, fields, ids),
        )

    def _wide_rows_of_bad_sum(self, ids: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """[n, C]: the wide rows behind the first of `sums` [n] that is not finite, each C times; the rest is 0.

        `lookup` gives sums over fields only, so each id of that batch row is looked up as a row of its own.
        """
        wide = np.zeros(ids.shape, np.float32)
        bad_row = np.flatnonzero(~np.isfinite(sums))[:1]
        # Also where there is none: a lookup may be one of all ranks together.
        id_by_id = np.repeat(ids[bad_row].reshape(-1, 1), ids.shape[1], axis=1)
        wide[bad_row] = self.tables.lookup(self.tables.unique(id_by_id)).wide.reshape(-1, ids.shape[1])
        return wide


def pad_rows(values: np.ndarray, batch_size: int) -> np.ndarray:
    """`values` [n, …] with zero rows up to `batch_size`: one shape is one compiled graph."""
    if len(values) == batch_size:
        return values
    padded = np.zeros((batch_size, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    return padded


def example_weights(batch: Batch) -> np.ndarray:
    """[n] float32, 1 / rows of the whole batch each; padding then weighs 0."""
    return np.full(batch.num_rows, batch.weight, np.float32)
