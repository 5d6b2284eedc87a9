"""Open the source of a warm start: a checkpoint, the best checkpoint of a run, or a file of the model zoo. Find, for
each row of the new run's tables, the row of the source that stands for the same value.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.checkpoint.manifest import MANIFEST, Manifest
from app.checkpoint.read import Checkpoint, scoring_arrays
from app.checkpoint.write import ModelState
from app.config.config import Config, TableDtype
from app.run.decision import ASKED, read_state
from app.run.folder import CONFIG_FILE, run_config, run_or_checkpoint
from app.run.identity import VECTORS, data_identity, read_config
from app.tables.backends import fields_of_model
from app.tables.fields import TableField
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, Indices, RowArray, TableSnapshot, scored_table, widened_layout
from app.tables.optimizers import ROWS, StepHistory, TableOptimizer, state_arrays
from app.training.learning_rates import STEPS_BEFORE, running_mean, step_history
from common import settings
from data_prep.prepared.data_files import read_expired, schema_at
from data_prep.prepared.schema import CategoricalField, NumericField, Schema, VectorField, read_schema

log = logging.getLogger(__name__)

NONE = -1
OF_TOWER = ("hidden_widths", "activation", "batch_norm")  # Names of the settings that describe a model's tower.


@dataclass(frozen=True)
class Source:
    """The trained model that a warm start copies from. `where` names it in messages."""

    where: str
    state: ModelState
    schema: Schema  # Schema with the columns that the model was trained on, without the ids of their values.
    # The model's looked-up fields, each with the parts of the model (wide, deep) that see it.
    fields: tuple[TableField, ...]
    # True if the rows of the numeric fields are parameters of the tower, False if they are rows of the tables.
    folded: bool
    # The id that the trained model (the source) has for the value of each id of the new run, [V], or NONE if it has no
    # such value. `origins` itself is None if all ids are the same.
    origins: np.ndarray | None = None
    # Names of the columns whose numbers the new run scales differently, or whose lists it pools differently.
    rescaled: tuple[str, ...] = ()
    # Function from ids of the trained model (the source) to their deep rows, for rows that its training never updated.
    untouched: Callable[[np.ndarray], TableSnapshot] | None = None
    # True if rows that the trained model's run never updated have other values than the new run would give them at its
    # start.
    own_initial: bool = False
    steps: int = 0  # Number of steps that the trained model's optimizers have taken.
    # Metrics of the trained model on the split valid, as its own run measured them.
    metrics: Mapping[str, float] = field(default_factory=dict)


def check_source(config: Config, schema: Schema) -> Path | None:
    """Check the trained model that a new run starts from, and return its path, or None if `train.init_from` is empty.

    Raise ValueError or FileNotFoundError if the model is missing, if its embedding width, its tower or its setting
    `fold_numeric` differs from `config`, or if a vector has another width in the model than in `schema`. Also raise an
    error if values have other ids in the model than in `schema`, and the model's vocabulary, which is needed to
    translate the ids, is missing.
    """
    if not config.train.init_from:
        return None
    source = find_source(Path(config.train.init_from))
    if isinstance(source, Path):
        # A file of MindSpore's model zoo has no manifest to check. `open_source` checks the file when it reads it.
        return source
    path, manifest = source.path, source.manifest
    model = read_config(manifest.config, where=str(path)).model
    for key in ("embedding_dim", "fold_numeric", *(OF_TOWER if config.train.init_take != "tables" else ())):
        actual, expected = (settings.as_dict(options)[key] for options in (model, config.model))
        if actual != expected:
            advice = "; train.init_take=tables leaves the tower out" if key in OF_TOWER else ""
            raise ValueError(f"train.init_from={path} has model.{key}={actual}, expected {expected}{advice}")
    there = _vectors(manifest.data) if config.train.init_take != "tables" else {}
    for vector in schema.vectors:
        if vector.name in there and (width := there[vector.name]["width"]) != vector.width:
            raise ValueError(
                f"train.init_from={path} has the vector {vector.name} with width {width}, the data have it with width "
                f"{vector.width}; give the column another name in the data's description, so that its weights begin "
                "anew; train.init_take=tables leaves the tower out"
            )
    if _needs_mapping(manifest, config, schema):
        _open_dataset(manifest)
    return path


def source_settings(config: Config, run: Path) -> Config | None:
    """Return the settings of the model that the run in the folder `run` starts from.

    Return None if the run starts from no model, or from a file of MindSpore's model zoo. If the run is resumed and the
    model it started from no longer exists, return the run's own settings, because this model is not needed any more. If
    starting the run has renamed the model's folder, look the model up under the new name. Raise the errors of
    `find_source`.
    """
    path = Path(config.train.init_from)
    if not config.train.init_from:
        return None
    if read_state(run).get(ASKED, {}).get("train.init_from") == config.train.init_from:
        path = Path(run_config(run).train.init_from)
    if not path.exists() and (run / CONFIG_FILE).is_file():
        return run_config(run)
    source = find_source(path)
    return read_config(source.manifest.config, where=str(source.path)) if isinstance(source, Checkpoint) else None


def find_source(path: Path) -> Checkpoint | Path:
    """Return the trained model that `path`, a value of `train.init_from`, refers to.

    If `path` is a file, it is a file of MindSpore's model zoo, and the result is `path` itself. If `path` is the folder
    of a checkpoint, the result is this checkpoint. If `path` is the folder of a run, the result is the run's best
    checkpoint. Raise FileNotFoundError if `path` is anything else.
    """
    if path.is_file():
        return path
    if (path / MANIFEST).is_file() or (path / CONFIG_FILE).is_file():
        return run_or_checkpoint(path)
    raise FileNotFoundError(
        f"train.init_from={path}: expected a checkpoint (a folder with {MANIFEST}), a run (a folder with "
        f"{CONFIG_FILE}) or a .ckpt or .safetensors file; "
        f"{'it is none of them' if path.exists() else 'there is no such path'}"
    )


def open_source(config: Config, schema: Schema, dataset: Path) -> Source:
    """Open, verify and return the trained model at `train.init_from`, for a run on the prepared folder `dataset`.

    Raise ValueError if the model is damaged, or if its rows cannot be mapped to the ids of `dataset`.
    """
    checkpoint = find_source(Path(config.train.init_from))
    if isinstance(checkpoint, Path):
        return _zoo_source(checkpoint, config, schema)
    checkpoint.verify()
    manifest = checkpoint.manifest
    trained = read_config(manifest.config, where=str(checkpoint.path))
    columns, history = _trained_columns(manifest, schema), step_history(manifest)
    state, untouched = _scored_state(checkpoint, trained, history, config.train.init_optimizer)
    moves_untouched_rows = history is not None and history.l2_coef > 0 and history.step > 0
    has_other_ids = _needs_mapping(manifest, config, schema)
    return Source(
        where=str(checkpoint.path),
        state=state,
        schema=columns,
        fields=fields_of_model(columns, trained.model),
        folded=trained.model.fold_numeric,
        origins=row_origins(*_open_dataset(manifest), dataset, schema) if has_other_ids else None,
        rescaled=(*_rescaled(columns, schema), *_rescaled_vectors(manifest, schema)),
        untouched=untouched,
        own_initial=_initial_values(trained) != _initial_values(config) or moves_untouched_rows,
        steps=manifest.step + manifest.schedules.get(STEPS_BEFORE, 0),
        metrics=manifest.metrics,
    )


def _scored_state(
    checkpoint: Checkpoint, trained: Config, history: StepHistory | None, with_optimizer: bool
) -> tuple[ModelState, Callable[[np.ndarray], TableSnapshot]]:
    """Return the state to take over from a checkpoint, and a function from ids of untrained rows to these deep rows.

    If optimizer state is taken over, the state contains the newest weights, because the optimizer state belongs to
    these weights. Otherwise it contains the weights that evaluations used: running means, if the model keeps any.
    """
    manifest, saved = checkpoint.manifest, checkpoint.state()
    means = None if with_optimizer else running_mean(manifest)

    def scored(table: str, rows: TableSnapshot) -> TableSnapshot:
        return scored_table(rows, manifest.step, history if table == DEEP else None, means)

    def untouched(row_ids: np.ndarray) -> TableSnapshot:
        layout = widened_layout(saved.tables[DEEP].layout)
        return scored(DEEP, InitialTable(row_ids, trained.deep_optimizer, layout, *_initial_values(trained)))

    dense = saved.dense if means is None else scoring_arrays(saved.dense, manifest.step)
    return ModelState(dense, {table: scored(table, rows) for table, rows in saved.tables.items()}), untouched


def _needs_mapping(manifest: Manifest, config: Config, schema: Schema) -> bool:
    return config.train.init_take != "tower" and not _has_same_ids(manifest, schema)


@dataclass(frozen=True)
class InitialTable:
    """Deep rows that no step has updated, with the interface of saved rows (`TableSnapshot`). Their values are computed
    when they are read. `seed`, `scale` and `dtype` determine them, see `initial_rows`.
    """

    row_ids: np.ndarray
    options: TableOptimizer  # The table's optimizer.
    layout: dict[str, RowArray]  # The table's arrays, with float32 in place of bfloat16.
    seed: int
    scale: float
    dtype: TableDtype = "float32"

    def read(self, name: str, indices: Indices) -> np.ndarray:
        row_ids, array = self.row_ids[indices], self.layout[name]
        if name == ROWS:
            return initial_rows(self.seed, row_ids, array.width, self.scale, self.dtype)
        initial = {each.name: each.initial for each in state_arrays(self.options)}
        return np.full((row_ids.size, array.width), initial.get(name, 0), array.dtype)


def _initial_values(config: Config) -> tuple[int, float, TableDtype]:
    """Return the seed, scale and dtype that determine a model's initial deep rows."""
    return config.train.seed, config.model.initial_row_scale, config.tables.dtype


def _has_same_ids(manifest: Manifest, schema: Schema) -> bool:
    """Return True if every value has the same id in `schema` as in the data that the model of the checkpoint `manifest`
    was trained on.
    """
    source_ids, ids = (
        {
            "vocabulary": (data["vocabulary"], data["vocabulary_size"], data.get("expired")),
            "fields": {name: (field["oov_ids"], field["is_text"]) for name, field in data["fields"].items()},
            "looked up": [] if manifest.config["model"]["fold_numeric"] else list(data["numeric"]),
        }
        for data in (manifest.data, data_identity(schema))
    )
    return source_ids == ids


def _trained_columns(manifest: Manifest, schema: Schema) -> Schema:
    """Return a copy of `schema` with the columns that the model of the checkpoint `manifest` was trained on.

    The ids of the columns' values are left out.
    """
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
    vectors = tuple(VectorField(name, of["width"], of["scale"], (), ()) for name, of in _vectors(manifest.data).items())
    return replace(schema, numeric=numeric, categorical=categorical, vectors=vectors)


def _rescaled(source: Schema, schema: Schema) -> tuple[str, ...]:
    """Return the names of the columns in both schemas whose numbers are scaled or lists are pooled differently."""
    scales = {column.name: _scale(column) for column in schema.numeric}
    pools = {column.name: column.pool for column in schema.categorical}
    numeric = [column.name for column in source.numeric if scales.get(column.name, _scale(column)) != _scale(column)]
    lists = [column.name for column in source.categorical if pools.get(column.name, column.pool) != column.pool]
    return *numeric, *lists


def _rescaled_vectors(manifest: Manifest, schema: Schema) -> list[str]:
    """Return the names of the vector columns that are scaled in one way in `schema`, and in another way in the data of
    the checkpoint `manifest`.
    """
    here = _vectors(data_identity(schema))
    return [name for name, of in _vectors(manifest.data).items() if here.get(name, of) != of]


def _vectors(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the descriptions of the vector columns (such as width and scaling) by name from `data`, a result of
    `data_identity` of any release. The result is {} if the data has no vectors.
    """
    return dict(data.get(VECTORS, {}))


def _scale(column: NumericField) -> tuple[object, ...]:
    return column.transform, column.parameters, column.quantiles


def _open_dataset(manifest: Manifest) -> tuple[Path, Schema]:
    """Return the prepared folder that the model of the checkpoint `manifest` was trained on, and its schema.

    Raise FileNotFoundError if the folder does not exist, and ValueError if its vocabulary or categorical fields are not
    those that the model was trained with.
    """
    old_folder = Path(manifest.dataset)
    try:
        old = schema_at(read_schema(old_folder), manifest.data)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error}: rows are mapped by that folder's vocabulary; if it was moved, link it: ln -s NEW_PLACE "
            f"{shlex.quote(str(old_folder))}"
        ) from error
    identity = data_identity(old)
    for key, title in (("vocabulary", "vocabulary"), ("fields", "categorical fields")):
        if identity[key] != manifest.data[key]:
            raise ValueError(
                f"{old_folder} has {title} {identity[key]}, the checkpoint was trained with {manifest.data[key]}; put "
                "the folder that it was trained on in its place"
            )
    return old_folder, old


def _zoo_source(path: Path, config: Config, schema: Schema) -> Source:
    from app.checkpoint.zoo import read_zoo_checkpoint

    state = read_zoo_checkpoint(path)
    dim, deep = config.model.embedding_dim, state.tables[DEEP]
    num_inputs = (schema.num_numeric + schema.num_categorical) * dim
    for quantity, actual, expected in (
        ("its vocabulary", deep.row_ids.size, schema.vocabulary_size),
        ("its embedding width", deep.layout["rows"].width, dim),
        ("the inputs of its first layer", len(state.dense["tower.matrix_0"]), num_inputs),
    ):
        if actual != expected:
            raise ValueError(
                f"train.init_from={path}: {quantity} is {actual}, expected {expected}; its fields and ids must be "
                "those of the prepared folder, as `prepare --layout zoo` writes them for the zoo"
            )
    fields = tuple(TableField(field.name) for field in schema.categorical)
    return Source(str(path), state, replace(schema, vectors=()), fields, folded=False)


def row_origins(old_folder: Path, old: Schema, new_folder: Path, new: Schema) -> np.ndarray:
    """Return, for each id of the schema `new`, the id of the same value in the schema `old`, int64 [V of `new`].

    NONE means that `old` lacks the field or the value. The ids of numeric fields are matched by the fields' names. The
    ids of values are matched by the name of the field and the value. The ids for out-of-vocabulary values are matched
    by the values' hashes. If several fields share a vocabulary in `new` but not in `old`, a value may have an old id in
    several of these fields. Then the first field that has an old id for the value decides. The first field is the one
    that the vocabulary is named after, and the others follow in the schema's order.
    """
    origins = np.full(new.vocabulary_size, NONE, np.int64)
    numeric = {field.name: place for place, field in enumerate(old.numeric)}
    for place, number in enumerate(new.numeric):
        origins[place] = numeric.get(number.name, NONE)
    of_old = {field.name: field for field in old.categorical}
    takers: dict[str, list[str]] = {}
    for name, fields in _vocabularies(new).items():
        # The vocabularies that `fields` use in `old`, by name, each with the first of the fields that use it there.
        sources: dict[str, CategoricalField] = {}
        for column in fields:
            if column.name in of_old:
                sources.setdefault(old.vocabulary_of(column.name), column)
        values = _values(new_folder, new, name)
        # Ids that are written to `origins` later overwrite earlier ones. The first vocabulary in `sources` decides, so
        # its ids are written last.
        for source, column in reversed(sources.items()):
            takers.setdefault(source, []).append(column.name)
            new_ids, old_ids = (
                np.concatenate(parts)
                for parts in zip(
                    _buckets(of_old[column.name], column, old, new),
                    _same_values(_values(old_folder, old, source), values),
                    strict=True,
                )
            )
            if meeting := np.count_nonzero(origins[new_ids] != NONE):
                log.warning(
                    "warning: the fields %s share a vocabulary here: of the %s rows that several of them had, those "
                    "of %s are taken",
                    ", ".join(field.name for field in fields),
                    f"{meeting:,}",
                    column.name,
                )
            origins[new_ids] = old_ids
    for source, names in takers.items():
        if len(names) > 1:
            log.info("%s shared the vocabulary %s: each takes its rows", ", ".join(names), source)
    return origins


def _vocabularies(schema: Schema) -> dict[str, list[CategoricalField]]:
    """Return the fields that use each vocabulary, by the vocabulary's name. The field of the same name comes first."""
    fields_of: dict[str, list[CategoricalField]] = {}
    for column in sorted(schema.categorical, key=lambda column: schema.vocabulary_of(column.name) != column.name):
        fields_of.setdefault(schema.vocabulary_of(column.name), []).append(column)
    return fields_of


def _buckets(
    before: CategoricalField, here: CategoricalField, old: Schema, new: Schema
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of a field's out-of-vocabulary rows in `new`, and the ids of the rows in `old` with the same
    values.

    `before` is the field in `old`, and `here` the field in `new`. A field with k out-of-vocabulary rows (buckets) puts
    a value with hash h into the bucket ⌊h·k / 2³²⌋. If the new field has m buckets and m is a multiple of k, the new
    bucket j contains only values of the old bucket ⌊j·k / m⌋. If m is no multiple of k, or if the new field hashes its
    values in another way, a new bucket mixes values of several old buckets. In this case, return empty arrays and log a
    warning.
    """
    (old_first, old_end), (new_first, new_end) = before.oov_ids, here.oov_ids
    old_count, new_count = old_end - old_first, new_end - new_first
    if new_count % old_count or old.is_text(before) != new.is_text(here):
        kinds = ["text" if schema.is_text(field) else "numbers" for schema, field in ((old, before), (new, here))]
        log.warning(
            "warning: the %s rows of %s for values out of vocabulary start fresh: the model that this run starts from "
            "has %s (of %s), whose values are not those of these rows (of %s); a multiple of them would follow",
            f"{new_count:,}",
            here.name,
            f"{old_count:,}",
            *kinds,
        )
        return np.empty(0, np.int64), np.empty(0, np.int64)
    buckets = np.arange(new_count)
    return new_first + buckets, old_first + buckets // (new_count // old_count)


def _same_values(old: pa.Table, new: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids in `new` and the ids in `old` of the values that occur in both tables (columns `value`, `id`)."""
    both = new.join(old, "value", join_type="inner", right_suffix="_old")
    return both["id"].to_numpy(), both["id_old"].to_numpy()


def _values(folder: Path, of: Schema, field: str) -> pa.Table:
    """Return a table with the columns `value` and `id` of the vocabulary of `field`, read from the prepared folder
    `folder` with schema `of`, without the values that have expired.
    """
    schema = pa.schema([("value", pa.string()), ("id", pa.int64())])
    parts = [schema.empty_table()]
    for name in of.vocabulary_files:
        with pq.ParquetFile(folder / name) as file:
            for number in range(file.num_row_groups):
                statistics = file.metadata.row_group(number).column(0).statistics
                if statistics is not None and not statistics.min <= field <= statistics.max:
                    continue
                group = file.read_row_group(number, columns=["field", "value", "id"])
                of_field = group.filter(pc.equal(group["field"].cast(pa.string()), field))
                parts.append(of_field.select(["value", "id"]).cast(schema))
    values, expired = pa.concat_tables(parts), read_expired(folder, of)
    return values.filter(~np.isin(values["id"].to_numpy(), expired)) if len(expired) else values
