"""Start a new run from a trained model: take over the rows of its tables, its tower, or both."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from app.config.config import Config
from app.distributed.process_group import ProcessGroup
from app.tables.interface import DEEP, WIDE
from app.tables.model_fields import fields_of_model
from app.tables.optimizers import MEAN
from app.training.assemble import TrainingState, fold_numeric
from app.training.warm_start.blocks import NUMERIC, VECTOR, dense_layouts, move_dense
from app.training.warm_start.source import Source, open_source
from app.training.warm_start.start_tables import take_rows
from data_prep.prepared.schema import Schema

log = logging.getLogger(__name__)


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
    # Running means start anew.
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
