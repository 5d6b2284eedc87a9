"""The source of a warm start: a checkpoint, the best one of a run, or a `.ckpt` of the model zoo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from app.checkpoint.manifest import MANIFEST, Manifest
from app.checkpoint.read import Checkpoint, scoring_arrays
from app.checkpoint.write import ModelState
from app.config.config import Config
from app.run.folder import CONFIG_FILE, best_of_run
from app.run.identity import data_identity
from app.run.older import read_config
from app.tables.fields import TableField, fields_of_model
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, Indices, RowArray, TableSnapshot, scored_table
from app.tables.optimizers import ROWS, TableOptimizer, state_arrays
from app.training.learning_rates import STEPS_BEFORE, running_mean, step_history
from app.training.warm_start.origins import row_origins
from common import settings
from data_prep.prepared.schema import CategoricalField, NumericField, Schema, read_schema

OF_TOWER = ["hidden_widths", "activation", "batch_norm"]  # settings by which towers differ


@dataclass(frozen=True)
class Source:
    """A model to take from, whose columns are those of `schema`.

    `origins` [V here] are the ids that its rows had, None if all are the same. `folded` is True if its numeric fields
    belong to the tower; `fields` are the others with the parts that see them. `rescaled` are the numeric fields that it
    saw scaled otherwise. `untouched` gives the deep rows of ids that no step of it touched, of which rows of the same
    id are another's here if `own_initial`. `steps` is the number of its optimizers' steps, `metrics` are those of its
    run on `valid`.
    """

    where: str
    state: ModelState
    schema: Schema
    fields: tuple[TableField, ...]
    folded: bool
    origins: np.ndarray | None = None
    rescaled: tuple[str, ...] = ()
    untouched: Callable[[np.ndarray], TableSnapshot] | None = None
    own_initial: bool = False
    steps: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


def check_source(config: Config, schema: Schema) -> Path | None:
    """Return the path of the model that a new run starts from, None if there is none.

    Raises ValueError or FileNotFoundError if it is missing, is a model of another shape, or lacks the vocabulary
    by which its rows are mapped.
    """
    if not config.train.init_from:
        return None
    found_source = find_source(Path(config.train.init_from))
    if isinstance(found_source, Path):
        return found_source  # the zoo's file is checked as it is read
    path, manifest = found_source.path, found_source.manifest
    model = read_config(manifest.config, where=str(path)).model
    keys = ["embedding_dim", "fold_numeric"]
    if config.train.init_take != "tables":
        keys += OF_TOWER
    for key in keys:
        found, expected = (settings.as_dict(options)[key] for options in (model, config.model))
        if found != expected:
            advice = "; train.init_take=tables leaves the tower out" if key in OF_TOWER else ""
            raise ValueError(f"train.init_from={path} has model.{key}={found}, expected {expected}{advice}")
    if config.train.init_take != "tower" and not _has_same_ids(manifest, schema):
        _open_dataset(manifest, config)
    return path


def find_source(path: Path) -> Checkpoint | Path:
    """Return the checkpoint, or the zoo's `.ckpt` file, that a path given as `train.init_from` means."""
    if path.is_file():
        return path
    if (path / MANIFEST).is_file():
        return Checkpoint.open(path)
    if (path / CONFIG_FILE).is_file():
        return best_of_run(path)
    raise FileNotFoundError(
        f"train.init_from={path}: expected a checkpoint (a folder with {MANIFEST}), a run (a folder with "
        f"{CONFIG_FILE}) or a .ckpt file; {'it is none of them' if path.exists() else 'there is no such path'}"
    )


def open_source(config: Config, schema: Schema, dataset: Path) -> Source:
    """Open and verify the model at `train.init_from`.

    Raises ValueError if it is damaged, or its rows cannot be mapped to the prepared folder `dataset`.
    """
    checkpoint = find_source(Path(config.train.init_from))
    if isinstance(checkpoint, Path):
        return _zoo_source(checkpoint, config, schema)
    checkpoint.verify()
    manifest, saved = checkpoint.manifest, checkpoint.state()
    trained = read_config(manifest.config, where=str(checkpoint.path))
    there, origins = _trained_schema(manifest, schema), None
    if config.train.init_take != "tower" and not _has_same_ids(manifest, schema):
        origins = row_origins(*_open_dataset(manifest, config), dataset, schema)
    history = step_history(manifest)
    # The optimizers' state is that of the newest weights; without it the model is the one that was evaluated.
    means = None if config.train.init_optimizer else running_mean(manifest)

    def scored(table: str, rows: TableSnapshot) -> TableSnapshot:
        return scored_table(rows, manifest.step, history if table == DEEP else None, means)

    def untouched(row_ids: np.ndarray) -> TableSnapshot:
        initial = InitialTable(row_ids, trained.deep_optimizer, saved.tables[DEEP].layout, *_initial_values(trained))
        return scored(DEEP, initial)

    return Source(
        str(checkpoint.path),
        ModelState(
            saved.dense if means is None else scoring_arrays(saved.dense, manifest.step),
            {table: scored(table, rows) for table, rows in saved.tables.items()},
        ),
        there,
        fields_of_model(there, trained.model),
        trained.model.fold_numeric,
        origins,
        _rescaled(there, schema),
        untouched,
        own_initial=_initial_values(trained) != _initial_values(config)
        or (history is not None and history.l2_coef > 0 and history.step > 0),
        steps=manifest.step + manifest.schedules.get(STEPS_BEFORE, 0),
        metrics=manifest.metrics,
    )


class InitialTable:
    """A `TableSnapshot` of deep rows that no step has touched."""

    def __init__(
        self, row_ids: np.ndarray, options: TableOptimizer, layout: dict[str, RowArray], seed: int, scale: float
    ) -> None:
        """`layout` is that of a table with this optimizer."""
        self.row_ids, self.layout = row_ids, layout
        self._seed, self._scale = seed, scale
        self._initial = {array.name: array.initial for array in state_arrays(options)}

    def read(self, name: str, places: Indices) -> np.ndarray:
        row_ids, array = self.row_ids[places], self.layout[name]
        if name == ROWS:
            return initial_rows(self._seed, row_ids, array.width, self._scale)
        return np.full((row_ids.size, array.width), self._initial.get(name, 0), array.dtype)


def _initial_values(config: Config) -> tuple[int, float]:
    """Return what the initial deep rows follow from."""
    return config.train.seed, config.model.initial_scale


def _has_same_ids(manifest: Manifest, schema: Schema) -> bool:
    """Return True if the rows of the source have the ids of the same values here."""
    there, here = (
        {
            "vocabulary": (data["vocabulary"], data["vocabulary_size"]),
            "fields": {name: (field["oov_ids"], field["is_text"]) for name, field in data["fields"].items()},
            "looked up": [] if manifest.config["model"]["fold_numeric"] else list(data["numeric"]),
        }
        for data in (manifest.data, data_identity(schema))
    )
    return there == here


def _trained_schema(manifest: Manifest, schema: Schema) -> Schema:
    """Return `schema` with the columns that the source was trained on, but for the ids of their values."""
    numeric = tuple(
        NumericField(**{**column, "quantiles": tuple((number, rank) for number, rank in column["quantiles"])})
        for column in manifest.data["numeric"].values()
    )
    categorical = tuple(
        CategoricalField(
            name, (of["oov_ids"][0], of["oov_ids"][1]), (), tuple(of["cross"]), of["max_length"], of["pool"]
        )
        for name, of in manifest.data["fields"].items()
    )
    return replace(schema, numeric=numeric, categorical=categorical)


def _rescaled(there: Schema, here: Schema) -> tuple[str, ...]:
    """Return the columns of both that are computed otherwise: numbers scaled, the rows of a list's values pooled."""
    scales = {column.name: _scale(column) for column in here.numeric}
    pools = {column.name: column.pool for column in here.categorical}
    numeric = [column.name for column in there.numeric if scales.get(column.name, _scale(column)) != _scale(column)]
    lists = [column.name for column in there.categorical if pools.get(column.name, column.pool) != column.pool]
    return *numeric, *lists


def _scale(column: NumericField) -> tuple[object, ...]:
    return column.transform, column.parameters, column.quantiles


def _open_dataset(manifest: Manifest, config: Config) -> tuple[Path, Schema]:
    """Return the prepared folder that the source was trained on, and its schema; raise if it is not that folder."""
    old_folder = Path(config.train.init_dataset or manifest.dataset)
    try:
        old = read_schema(old_folder)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error}: rows are mapped by that folder's vocabulary; give its new path with train.init_dataset=DIR"
        ) from error
    found = data_identity(old)
    for key, what in (("vocabulary", "vocabulary"), ("fields", "categorical fields")):
        if found[key] != manifest.data[key]:
            raise ValueError(
                f"{old_folder} has {what} {found[key]}, the checkpoint was trained with {manifest.data[key]}; give the "
                "path of that folder with train.init_dataset=DIR"
            )
    return old_folder, old


def _zoo_source(path: Path, config: Config, schema: Schema) -> Source:
    from app.checkpoint.zoo import read_zoo_checkpoint

    state = read_zoo_checkpoint(path)
    dim, deep = config.model.embedding_dim, state.tables[DEEP]
    num_inputs = (schema.num_numeric + schema.num_categorical) * dim
    for what, found, expected in (
        ("its vocabulary", deep.row_ids.size, schema.vocabulary_size),
        ("its embedding width", deep.layout["rows"].width, dim),
        ("the inputs of its first layer", len(state.dense["tower.matrix_0"]), num_inputs),
    ):
        if found != expected:
            raise ValueError(
                f"train.init_from={path}: {what} is {found}, expected {expected}; its fields and ids must be those of "
                "the prepared folder, as `prepare --layout zoo` writes them for the zoo"
            )
    fields = tuple(TableField(field.name) for field in schema.categorical)
    return Source(str(path), state, schema, fields, folded=False)
