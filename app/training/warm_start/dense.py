"""Start a new run from a trained model: take over the rows of its tables, its tower, or both.

Some arrays of the dense model have a block of rows for each field. They are rearranged to fit a model with other
fields. A layout describes such an array. It lists the blocks in order, each with the field and the number of rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from app.config.config import Config, ModelOptions
from app.distributed.process_group import ProcessGroup
from app.tables.fields import TableField
from app.tables.interface import DEEP, WIDE
from app.tables.model_fields import fields_of_model
from app.tables.optimizers import MEAN
from app.training.assemble import TrainingState, fold_numeric
from app.training.warm_start.source import Source, open_source
from app.training.warm_start.start_tables import take_rows
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)

Key = tuple[str, str | None]  # Kind of a field (numeric, vector or categorical) and its name.
Layout = Sequence[tuple[Key, int]]  # The blocks of an array in order: the field and the number of rows of each.
Arrays = Mapping[str, np.ndarray]

NUMERIC, VECTOR, FIELD = "numeric", "vector", "field"
NUMERIC_PARAMETERS = ("wide.numeric_weight", "tower.numeric_rows", "tower.numeric_matrix")
FIELD_PARAMETERS = (*NUMERIC_PARAMETERS, "tower.vector_matrix", "tower.matrix_0")


def warm_start(training: TrainingState, config: Config, schema: Schema, dataset: Path, group: ProcessGroup) -> None:
    """Copy the part of the model at `train.init_from` that `train.init_take` names into a new run, before its first
    step.

    With `train.init_optimizer`, optimizer state is copied, too. Steps, and therefore learning-rate schedules, start
    from 0. Adam's bias corrections continue if its moments are taken over. Every rank must call this. Raise ValueError
    if the shapes of the models differ.
    """
    source = open_source(config, schema, dataset)
    if source.metrics:
        values = ", ".join(
            f"{name} {source.metrics[name]:.6f}" for name in ("auc", "log_loss") if name in source.metrics
        )
        log.info("%s: its run evaluated it as %s", source.where, values)
    _log_fields(source, schema, config)
    take = config.train.init_take
    if take in ("all", "tower"):
        _take_dense(training, source, schema, config)
    if take in ("all", "tables"):
        group.rpc("warm_start", dataset, config.train.init_from)
        tables = training.step.tables
        take_rows(tables.loading, tables.spec, training.learning_rates, config, schema, source)


def _take_dense(training: TrainingState, source: Source, schema: Schema, config: Config) -> None:
    if source.rescaled:
        log.warning(
            "warning: %s saw fields scaled otherwise than they are here: %s", source.where, ", ".join(source.rescaled)
        )
    expected = [*training.model.named_parameters(), *training.model.named_statistics()]
    memory = training.optimizers.named_state() if config.train.init_optimizer else {}
    # The running means of the dense weights (train.ema_decay) are not taken over, but start anew.
    memory = {name: state for name, state in memory.items() if not name.startswith(f"{MEAN}.")}
    dense = source.state.dense
    if config.model.fold_numeric and not source.folded:
        dense = fold_numeric(source.state, training.step.tables.spec, source.schema.num_numeric)
    source_layouts = dense_layouts(source.schema, source.fields, config.model)
    layouts = dense_layouts(schema, fields_of_model(schema, config.model), config.model)
    # Take all dense parameters of the trained model (the source), whose names begin with "wide." or "tower.". Take an
    # array of the source's optimizer state only if the new run's optimizer state, `memory`, has an array of the same
    # name. Such a name begins with the optimizer's name (`adam.first_moment.tower.bias_0`).
    arrays = {name: array for name, array in dense.items() if name in memory or name.startswith(("wide.", "tower."))}
    fresh = training.dense_values()
    arrays = move_dense(arrays, {name: fresh[name] for name in [*expected, *memory]}, source_layouts, layouts)
    training.check_dense(arrays, [*expected, *memory])
    training.write_dense({name: np.asarray(values, np.float32, order="C") for name, values in arrays.items()})
    rates = training.learning_rates.at(1)
    training.optimizers.start_from_weights(rates[WIDE], rates["tower"])
    log.info("%s: took %d dense arrays", source.where, len(arrays))


def _log_fields(source: Source, schema: Schema, config: Config) -> None:
    """Log the names of the fields that a part of the model sees in only one of the two models, source and new model."""
    source_fields, fields_here = (
        dict.fromkeys(
            [(NUMERIC, column.name) for column in of.numeric]
            + [(VECTOR, vector.name) for vector in of.vectors]
            + [(part, field.name) for field in fields for part in (WIDE, DEEP) if getattr(field, part)]
        )
        for of, fields in ((source.schema, source.fields), (schema, fields_of_model(schema, config.model)))
    )
    if new := dict.fromkeys(name for part, name in fields_here if (part, name) not in source_fields):
        log.info("%s: it has nothing for these fields, which begin anew: %s", source.where, ", ".join(new))
    if dropped := dict.fromkeys(name for part, name in source_fields if (part, name) not in fields_here):
        log.warning("warning: %s: what it learned of these fields is left out: %s", source.where, ", ".join(dropped))


def dense_layouts(schema: Schema, fields: Sequence[TableField], model: ModelOptions) -> dict[str, Layout]:
    """Return the layout of each parameter in `FIELD_PARAMETERS`, for a model with the looked-up fields `fields`.

    The layout of tower.matrix_0 begins with the numeric fields of `schema` if these fields have embedding rows
    (`fold_numeric` is False). If the deep part sees none of `fields`, the layout has one block for the tower's
    placeholder input of zeros.
    """
    numeric: list[Key] = [(NUMERIC, column.name) for column in schema.numeric]
    inputs: list[Key] = [(FIELD, field.name) for field in fields if field.deep] or [(FIELD, None)]
    folded = [(key, 1) for key in numeric if model.fold_numeric]
    if not model.fold_numeric:
        inputs = [*numeric, *inputs]
    layouts: dict[str, Layout] = dict.fromkeys(NUMERIC_PARAMETERS, folded)
    layouts["tower.vector_matrix"] = [((VECTOR, vector.name), vector.inputs) for vector in schema.vectors]
    return layouts | {"tower.matrix_0": [(key, model.embedding_dim) for key in inputs]}


def move_dense(
    source: Arrays, fresh: Arrays, source_layouts: Mapping[str, Layout], layouts: Mapping[str, Layout]
) -> dict[str, np.ndarray]:
    """Return the dense arrays of a trained model (`source`), with their rows arranged for a new model with the arrays
    `fresh`.

    All arrays are given and returned by name.

    `source_layouts` are the layouts of the arrays in `source` by parameter name, and `layouts` those of the arrays in
    `fresh`. Blocks that `source` lacks are taken from `fresh`. An array of `source` is left out if the new model has
    none of the array's fields. Optimizer state has the layout of its parameter. Raise ValueError for an array that does
    not fit its layout.
    """
    moved = {name: array for name, array in source.items() if name in fresh or _parameter(name) is None}
    for name, values in fresh.items():
        parameter = _parameter(name)
        if parameter is not None and (name in source or not source_layouts[parameter]):
            array = source.get(name, values[:0])
            expected = (sum(size for _, size in source_layouts[parameter]), *values.shape[1:])
            if array.shape != expected:
                raise ValueError(
                    f"the checkpoint is of another model: {name} has shape {list(array.shape)}, expected "
                    f"{list(expected)}"
                )
            moved[name] = move_blocks(array, source_layouts[parameter], layouts[parameter], values)
    return moved


def move_blocks(source: np.ndarray, source_layout: Layout, layout: Layout, fresh: np.ndarray) -> np.ndarray:
    """Return a copy of `fresh` in which each field's block of rows has the values of that field's block in `source`.

    Blocks of fields that `source` lacks stay as in `fresh`.

    Both arrays have shape [rows, …], and a field's blocks have the same number of rows in both. `source_layout` is the
    layout of `source`, and `layout` that of `fresh`.
    """
    source_slices, moved = _slices(source_layout), fresh.copy()
    for name, block in _slices(layout).items():
        if name in source_slices:
            moved[block] = source[source_slices[name]]
    return moved


def _slices(layout: Layout) -> dict[Key, slice]:
    ends = np.cumsum([0, *(size for _, size in layout)]).tolist()
    return {name: slice(first, first + size) for (name, size), first in zip(layout, ends, strict=False)}


def _parameter(name: str) -> str | None:
    """Return the parameter in `FIELD_PARAMETERS` that the array `name` holds, or whose optimizer state it holds.

    Return None for an array of any other parameter. Such an array has no blocks of rows for fields, so it need not be
    rearranged.
    """
    return next((parameter for parameter in FIELD_PARAMETERS if f".{name}".endswith(f".{parameter}")), None)
