"""A contender on MindSpore: the project's own training step, with its tables and tower or with MindSpore's."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from app.config import device
from app.config.config import Backend, Config, ModelOptions, TablesOptions, TrainOptions
from app.config.device import DeviceOptions
from app.tables.native.tables import NativeTables
from benchmarks.harness.contender import Parts
from benchmarks.harness.workload import NUM_NUMERIC, Workload, make_batches, steps_on_prefetched_batches
from benchmarks.training.kernels import NUM_FIELDS
from data_prep.prepared.schema import FORMAT_VERSION, CategoricalField, NumericField, Schema

if TYPE_CHECKING:
    from app.training import assemble  # This imports MindSpore, so the environment must be prepared before.


def make_config(workload: Workload, backend: Backend) -> Config:
    """Return the settings of a run with the sizes of a workload. All other settings have their defaults."""
    return Config(
        device=DeviceOptions("CPU", workload.threads, workload.precision),
        model=ModelOptions(
            workload.embedding_dim,
            workload.hidden_widths,
            fold_numeric=workload.fold_numeric,
            first_layer=workload.first_layer,
        ),
        tables=TablesOptions(backend),
        train=TrainOptions(batch_size=workload.batch_size),
    )


def make_schema(workload: Workload) -> Schema:
    """Return the schema of a prepared folder that has the workload's fields, but no rows."""
    numeric, categorical = ([f"{kind}{i + 1}" for i in range(n)] for kind, n in (("I", NUM_NUMERIC), ("C", NUM_FIELDS)))
    return Schema(
        format_version=FORMAT_VERSION,
        numeric=tuple(NumericField(name, name, "log1p", {}) for name in numeric),
        categorical=tuple(CategoricalField(name, (0, 0), ()) for name in categorical),
        vocabulary_size=workload.vocabulary_size,
        ids_dtype="int32",
        block_rows=1000,
        splits={},
        rejected_rows=0,
        options={},
        source={},
        other_files=(),
    )


def prepare_device(workload: Workload) -> None:
    """Set up MindSpore for the CPU, with the threads and the precision of the workload."""
    options = DeviceOptions("CPU", workload.threads, workload.precision)
    device.prepare_environment(options)
    device.select_device(options)


def assemble_parts(workload: Workload, backend: Backend) -> assemble.TrainingState:
    from app.training import assemble

    return assemble.assemble(make_config(workload, backend), make_schema(workload), backend)


def leave_out_native_layers() -> None:
    """Let the tower use MindSpore's own operators, without a warning that the native library is missing."""
    os.environ["DENSE_LAYER_LIBRARY"] = "none"
    logging.getLogger("app.config.device").setLevel(logging.ERROR)


def contender(kind: Backend, workload: Workload) -> Callable[[int], Parts]:
    """Return a function that takes the training steps of `make train`.

    Every row exists before the first step, as in the peers' tables.
    """
    prepare_device(workload)
    if kind == "stock":
        leave_out_native_layers()
    step = assemble_parts(workload, kind).step
    if isinstance(step.tables, NativeTables):
        step.tables.touch(np.unique([batch.ids for batch in make_batches(workload)]).astype(np.int64))
    return steps_on_prefetched_batches(step, step, workload)
