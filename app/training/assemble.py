"""Build the tables, the model, the optimizers and the step of a training from its settings and its data's schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.checkpoint.read import Checkpoint
from app.checkpoint.write import ModelState
from app.config.config import Config
from app.config.device import deprecations_silenced, init_communication, runs_on_cpu, select_device
from app.distributed.process_group import ONE_PROCESS, GradientSum, ProcessGroup
from app.model.dense_state import AnyParameter, DropoutNoise, OptimizerStates, write_parameter
from app.model.native_tower import HostGraph, NativeModel, NativeStep, NativeTower, scores_natively, trains_natively
from app.tables.backends import table_spec
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, WIDE, Snapshot, TableRates, TablesSpec, one_field
from app.training.auto.memory import with_storage
from app.training.learning_rates import LearningRates
from app.training.step.first_layer import most_distinct
from app.training.step.step import ByDistinctRow, ByPosition, DataParallelStep, HostTablesStep, StepSettings, TrainStep
from data_prep.prepared.schema import Schema


@dataclass(frozen=True)
class TrainingState:
    """Everything that training changes: the step with its embedding tables, the model, the optimizers and the learning
    rates.
    """

    step: TrainStep
    model: Any  # A `NativeModel`, or a `WideDeep` that MindSpore runs.
    optimizers: OptimizerStates
    learning_rates: LearningRates

    def state(self) -> ModelState:
        """Return copies of all arrays that a checkpoint stores: the dense arrays (all arrays outside the embedding
        tables), and the table rows that were updated or loaded, with their optimizer state.
        """
        return ModelState(self.dense_values(), self.step.tables.state())

    def snapshot_rows(self, changed_only: bool) -> Snapshot:
        """Return a read-only view of the table rows that this rank (process) owns, as they are now.

        With `changed_only`, the view has only the rows that changed since the last view that was saved in a checkpoint.
        """
        return self.step.tables.snapshot(changed_only)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Replace tables, dense arrays (weights and optimizer state outside the tables) and learning rates by those of
        a checkpoint, reading each byte of its files once.

        Raise DamagedCheckpointError if a file is missing or damaged, and ValueError if the checkpoint does not fit the
        model. After an error the tables are empty, the learning rates are those of the checkpoint, and the dense arrays
        are unchanged.
        """
        tables, saved = self.step.tables, checkpoint.manifest
        self.learning_rates.load_state(saved.schedules)
        with tables.loading(saved.step) as place:
            dense = checkpoint.read_once(tables.spec, place)
            self.check_dense(dense, self._dense())
        self._take_dense(dense, saved.step)

    def dense_values(self) -> dict[str, np.ndarray]:
        """Return copies of all arrays outside the embedding tables (dense arrays) by name: parameters, statistics of
        batch normalization, and optimizer state.
        """
        return {name: parameter.asnumpy().copy() for name, parameter in self._dense().items()}

    def _take_dense(self, values: dict[str, np.ndarray], step: int) -> None:
        self.write_dense(values)
        rates = self.learning_rates.at(max(step, 1))
        self.optimizers.set_step(step)
        self.optimizers.resume_learning_rates(rates["wide"], rates["tower"])

    def check_dense(self, arrays: dict[str, np.ndarray], names: Iterable[str]) -> None:
        """Raise ValueError unless `arrays` has exactly the dense arrays (arrays outside the tables) with these `names`,
        each with the shape that it has in this training.
        """
        dense = self._dense()
        check_dense(arrays, {name: dense[name].shape for name in names})

    def write_dense(self, values: dict[str, np.ndarray]) -> None:
        """Write the dense arrays `values`, by name, into the parameters of the model and the optimizers' state."""
        dense = self._dense()
        for name, value in values.items():
            write_parameter(dense[name], value)

    def _dense(self) -> dict[str, AnyParameter]:
        return self.model.named_parameters() | self.model.named_statistics() | self.optimizers.named_state()


def assemble(
    config: Config, schema: Schema, backend: str, group: ProcessGroup = ONE_PROCESS, folder: Path | None = None
) -> TrainingState:
    """Build and return tables, model, optimizers and step of a training, with their initial values.

    `backend` is the name of the implementation of the tables: native, reference or stock (`pick_backend`). `group` are
    the ranks (processes) that train together. If the group has servers, which do not train, the servers own the table
    rows. `folder` is the run folder, in which `tables.storage=auto` may put a file with the table rows.
    """
    numeric = tuple(field.name for field in schema.numeric)
    vectors = (f"{vector.name}[{i}]" for vector in schema.vectors for i in range(vector.inputs))
    looked_up = () if config.model.fold_numeric else numeric
    spec = table_spec(config, schema, looked_up)
    batch_rows, is_native = group.batch_rows(config.train.batch_size), backend != "stock" and trains_natively(config)
    model: Any
    optimizers: OptimizerStates
    if is_native:
        model = NativeModel(config, schema, config.model.fold_numeric)
        optimizers = OptimizerStates(model, config)
    else:
        from app.model.tower_optimizers import DenseOptimizers
        from app.model.wide_deep import make_model

        select_device(config.device)
        model = make_model(config, schema, config.model.fold_numeric)
        with deprecations_silenced():
            optimizers = DenseOptimizers(model, config)
    rates = LearningRates(config.optimizers)
    noise = DropoutNoise(config.train.seed, config.model.dropout, len(config.model.hidden_widths))
    settings = StepSettings(model, optimizers, rates, noise, config.loss, batch_rows, (*numeric, *vectors))
    step: TrainStep
    if backend == "stock":
        from app.training.step.stock_step import StockStep, StockTables

        step = StockStep(StockTables(spec, rates.of_tables(), len(looked_up)), settings)
    else:
        spec = with_storage(spec, config, schema, backend, group, folder)
        rows = rows_for_device(config, spec, rates.of_tables(), backend, group, batch_rows)
        step = HostTablesStep(rows, settings, step_graph(settings, config, group), logits_of(model, config))
        if group.sharded:
            step = DataParallelStep(step, group)
    return TrainingState(step, model, optimizers, rates)


def logits_of(model: Any, config: Config) -> Callable[..., np.ndarray]:
    """Return a function that computes the logits [B] of a `NativeModel` or `WideDeep` from NumPy arrays.

    It runs in C++ if that supports the model.
    """
    if scores_natively(config):
        return NativeTower(model, config).logits
    from app.model.graph import OnDevice

    return OnDevice(model)


def step_graph(settings: StepSettings, config: Config, group: ProcessGroup) -> HostGraph:
    """Return the part of a training step outside the tables, as a function of NumPy arrays: it computes losses and
    gradients, and updates the dense parameters.

    It consists of native kernels if the settings have a native model, and otherwise is MindSpore's graph. If `group`
    has several ranks, losses and dense gradients are summed over them.
    """
    model, optimizers = settings.model, settings.optimizers
    if isinstance(model, NativeModel):
        sum_over_ranks = GradientSum(group.communicator) if group.size > 1 else None
        return NativeStep(model, optimizers, config, settings.shared_by(group.size).loss, sum_over_ranks)
    from app.model.graph import DeviceGraph, OnDevice

    if group.size == 1:
        return OnDevice(DeviceGraph(settings.forward_backward(), optimizers))
    from app.training.step.rank_graphs import AllReducedGraph, SummedGraph

    if runs_on_cpu(config.device):
        return OnDevice(SummedGraph(settings, group))
    init_communication()
    return OnDevice(AllReducedGraph(settings, group))


def rows_for_device(
    config: Config,
    spec: TablesSpec,
    learning_rates: TableRates,
    backend: str,
    group: ProcessGroup,
    batch_rows: int,
) -> ByPosition:
    """Make the embedding tables on the host. Return the object that passes the tables' rows to the device, and the
    gradients of rows back.

    The tables live outside MindSpore's graph. `backend` is native or reference. `batch_rows` is the largest number of
    batch rows (examples) that this rank gets of a batch.
    """
    threads = config.device.num_threads
    if config.model.first_layer != "distinct" or group.sharded:
        return ByPosition(group.make_tables(backend, spec, learning_rates, threads), batch_rows)
    tables = group.make_tables(backend, one_field(spec), learning_rates, threads)
    return ByDistinctRow(tables, spec, batch_rows, most_distinct(config))


def fold_numeric(state: ModelState, spec: TablesSpec, num_numeric: int) -> dict[str, np.ndarray]:
    """Convert a model whose N numeric fields have embedding rows in the tables to an equivalent model, in which these
    rows are parameters of the tower.

    Return the dense arrays of the converted model by name. `state` is not changed.
    """
    rows = initial_rows(spec.seed, np.arange(num_numeric), spec.embedding_dim, spec.initial_scale)
    weights = np.zeros((num_numeric, 1), np.float32)
    for saved, values in ((state.tables[DEEP], rows), (state.tables[WIDE], weights)):
        touched = np.flatnonzero(saved.row_ids < num_numeric)
        values[saved.row_ids[touched]] = saved.read("rows", touched)
    first = state.dense["tower.matrix_0"]
    numeric_part, categorical_part = np.split(first, [num_numeric * spec.embedding_dim])
    return {
        **state.dense,
        "wide.numeric_weight": weights,
        "tower.numeric_rows": rows,
        "tower.numeric_matrix": numeric_part.reshape(num_numeric, spec.embedding_dim, -1),
        "tower.matrix_0": categorical_part,
    }


def check_dense(arrays: dict[str, np.ndarray], expected: dict[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless `arrays` has exactly the names in `expected`, each with the shape given there."""
    missing, foreign = sorted(expected.keys() - arrays.keys()), sorted(arrays.keys() - expected.keys())
    if missing or foreign:
        raise ValueError(
            f"the checkpoint is of another model: it lacks {', '.join(missing) or 'nothing'}, "
            f"and has besides {', '.join(foreign) or 'nothing'}"
        )
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ValueError(
                f"the checkpoint is of another model: {name} has shape {list(arrays[name].shape)}, "
                f"expected {list(shape)}"
            )
