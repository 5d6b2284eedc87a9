"""The source of a warm start: a checkpoint, the best one of a run, or a `.ckpt` of the model zoo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.checkpoint.manifest import MANIFEST, Manifest
from app.checkpoint.read import Checkpoint, scoring_arrays
from app.checkpoint.write import ModelState
from app.config.config import Config
from app.run.folder import CONFIG_FILE, best_of_run
from app.run.identity import data_identity
from app.tables.interface import DEEP, scored_table
from app.training.learning_rates import STEPS_BEFORE, running_mean, step_history
from data_prep.prepared.schema import VOCABULARY_FILE, Schema, read_schema


@dataclass(frozen=True)
class Source:
    """A model to take from; `moves` [V of the source] are the new ids of its rows, None if all ids are unchanged.

    `folded` is True if its numeric fields belong to the tower, `unchanged_numeric` if they are scaled as here. `steps`
    is the number of its optimizers' steps, `metrics` are those of its run on `valid`.
    """

    where: str
    state: ModelState
    folded: bool
    moves: np.ndarray | None
    unchanged_numeric: bool
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
    model = manifest.config["model"]
    here = {"embedding_dim": config.model.embedding_dim, "fold_numeric": config.model.fold_numeric}
    if config.train.init_take != "tables":
        here["hidden_widths"] = list(config.model.hidden_widths)  # type: ignore[assignment]
    for key, expected in here.items():
        found = list(model[key]) if isinstance(expected, list) else model[key]
        if found != expected:
            advice = "; train.init_take=tables leaves the tower out" if key == "hidden_widths" else ""
            raise ValueError(f"train.init_from={path} has model.{key}={found}, expected {expected}{advice}")
    if not _has_same_ids(manifest, schema):
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
    manifest = checkpoint.manifest
    folded = bool(manifest.config["model"]["fold_numeric"])
    moves = None if _has_same_ids(manifest, schema) else _moves(manifest, config, schema, dataset)
    state, history = checkpoint.state(), step_history(manifest)
    # The optimizers' state is that of the newest weights; without it the model is the one that was evaluated.
    means = None if config.train.init_optimizer else running_mean(manifest)
    tables = {
        table: scored_table(saved, manifest.step, history if table == DEEP else None, means)
        for table, saved in state.tables.items()
    }
    state = ModelState(state.dense if means is None else scoring_arrays(state.dense, manifest.step), tables)
    steps = manifest.step + manifest.schedules.get(STEPS_BEFORE, 0)
    unchanged_numeric = manifest.data["numeric"] == data_identity(schema)["numeric"]
    return Source(str(checkpoint.path), state, folded, moves, unchanged_numeric, steps, manifest.metrics)


def _has_same_ids(manifest: Manifest, schema: Schema) -> bool:
    """Return True if ids and numeric fields mean the same as in the source."""
    here = data_identity(schema)
    same = all(manifest.data[key] == here[key] for key in ("vocabulary", "vocabulary_size", "categorical"))
    return same and list(manifest.data["numeric"]) == list(here["numeric"])


def _moves(manifest: Manifest, config: Config, schema: Schema, dataset: Path) -> np.ndarray:
    old_folder, old = _open_dataset(manifest, config)
    return row_moves(old_folder, old, dataset, schema)


def _open_dataset(manifest: Manifest, config: Config) -> tuple[Path, Schema]:
    """Return the prepared folder that the source was trained on, and its schema; raise if it is not that folder."""
    old_folder = Path(config.train.init_dataset or manifest.dataset)
    try:
        old = read_schema(old_folder)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error}: rows are mapped by that folder's vocabulary; give its new path with train.init_dataset=DIR"
        ) from error
    found, expected = data_identity(old)["vocabulary"], manifest.data["vocabulary"]
    if found != expected:
        raise ValueError(
            f"{old_folder} has vocabulary {found}, the checkpoint was trained with {expected}; give the path of "
            "that folder with train.init_dataset=DIR"
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
    return Source(str(path), state, False, None, True)


GONE = -1


def row_moves(old_folder: Path, old: Schema, new_folder: Path, new: Schema) -> np.ndarray:
    """Return the new id of each old one, int64 [V of `old`]; GONE if `new` has no such field and value.

    Out-of-vocabulary ids are mapped by field and order, numeric fields by name.
    """
    moves = np.full(old.vocabulary_size, GONE, np.int64)
    names = {field.name: place for place, field in enumerate(new.numeric)}
    for place, column in enumerate(old.numeric):
        moves[place] = names.get(column.name, GONE)
    spare = {field.name: range(*field.oov_ids) for field in new.categorical}
    for categorical in old.categorical:
        name = categorical.name
        for old_id, new_id in zip(range(*categorical.oov_ids), spare.get(name, ()), strict=False):
            moves[old_id] = new_id
        if name in spare:
            new_values = _values(new_folder, name)
            both = _values(old_folder, name).join(new_values, "value", join_type="inner", right_suffix="_new")
            moves[both["id"].to_numpy()] = both["id_new"].to_numpy()
    return moves


def _values(folder: Path, field: str) -> pa.Table:
    """Return `value` and `id` of one field."""
    schema = pa.schema([("value", pa.string()), ("id", pa.int64())])
    parts = [schema.empty_table()]
    with pq.ParquetFile(folder / VOCABULARY_FILE) as file:
        for number in range(file.num_row_groups):
            statistics = file.metadata.row_group(number).column(0).statistics
            if statistics is not None and not statistics.min <= field <= statistics.max:
                continue
            group = file.read_row_group(number, columns=["field", "value", "id"])
            chosen = group.filter(pc.equal(group["field"].cast(pa.string()), field))
            parts.append(chosen.select(["value", "id"]).cast(schema))
    return pa.concat_tables(parts)
