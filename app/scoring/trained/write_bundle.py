"""Write a bundle from a checkpoint's arrays and the prepared folder that the model was trained on. Make up raw rows, as
examples and to compare the bundle with the training code.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.checkpoint.write import ModelState
from app.config.config import Config
from app.evaluation.calibration import Calibration
from app.scoring.bundle_folder import GOLDEN, TOLERANCE, BundleManifest
from app.scoring.bundle_model import golden_rows
from app.scoring.bundle_tables import INDEX, NO_IDS, BundleTables, BundleTablesSpec, RowType, are_among, lookup
from app.scoring.bundle_writer import (
    ReadStored,
    chain_row_ids,
    chain_stored,
    in_pieces,
    numbered,
    version_of,
    write_manifest,
    write_rows,
)
from app.scoring.predictor import Predictor, probabilities
from app.scoring.trained.code_and_card import CODE, PACKAGES, write_code
from app.scoring.trained.write_tower import rounding_bound, write_tower
from app.tables.backends import fields_of_model, is_plain
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, WIDE, TableSnapshot, TableState, scored_table, widened_layout
from app.tables.optimizers import ROWS, RunningMean, StepHistory
from data_prep.encoding.encoder import NUM_EXPIRED
from data_prep.encoding.prepared_vocabulary import (
    BaseVocabulary,
    open_vocabulary,
    write_additions,
    write_lookup,
    write_lookup_expired,
)
from data_prep.encoding.rows_to_score import table_to_chunk
from data_prep.options.kinds import KINDS, time_range, time_text
from data_prep.options.log_format import LogFormat
from data_prep.prepared.data_files import union, write_schema
from data_prep.prepared.examples import Examples
from data_prep.prepared.schema import DAY, NEWEST, Schema, VectorField

log = logging.getLogger(__name__)

GOLDEN_ROWS, NEW_GOLDEN_ROWS = 100, 10
# Lower bound of the tolerances in golden.parquet, within which other machines must reproduce the logits of made-up
# rows. On the machine of the export, logits have the same bits, but another processor may round differently.
GOLDEN_TOLERANCE = 1e-5


@dataclass(frozen=True)
class ExportedModel:
    """Source of a bundle: the state of a checkpoint, and the `prepared` folder that it was trained on.

    - `state`: the tables and the dense arrays. The dense arrays include the embedding rows of the numeric fields.
    - `checkpoint`: what the bundle's manifest says about the checkpoint: its id, step, epoch and number of training
      rows.
    - `history`: if the deep table's optimizer (`adam`) also moves rows that a step does not look up, the steps that it
      made. Every id then has a row in the bundle.
    - `means`: settings of the running average of weights (train.ema_decay). If given, the bundle stores the averages of
      the rows instead of the rows.
    - `changed`: deltas only: ascending ids [n] of all rows that may differ from the parent bundle's. If None, all rows
      are compared with the parent's.
    - `schema`: the schema of the prepared folder when the model was trained, if it may have changed since. If None,
      schema.json is read.
    - `expired`: used together with `changed`: ascending ids whose rows the delta removes, because their values have
      expired.
    """

    state: ModelState
    config: Config
    prepared: Path
    checkpoint: dict[str, Any]
    history: StepHistory | None = None
    means: RunningMean | None = None
    calibration: Calibration | None = None
    changed: np.ndarray | None = None
    schema: Schema | None = None
    expired: np.ndarray | None = None

    def row_ids(self, schema: Schema) -> np.ndarray:
        """Return the ascending ids whose rows the bundle has to store (for a delta with `changed`, only ids in
        `changed`). Ids of numeric fields are left out, because their rows are part of the tower.
        """
        if self.changed is not None:
            return self.changed[self.changed >= schema.num_numeric]
        if self.history is not None:
            return np.arange(schema.num_numeric, schema.vocabulary_size)
        wide, deep = (table.row_ids for table in self.state.tables.values())
        row_ids = deep if np.array_equal(wide, deep) else union(wide, deep)
        return row_ids[row_ids >= schema.num_numeric]

    def read(self, table: str, ids: np.ndarray) -> np.ndarray:
        """Return the rows of `ids` [n] that the model scores with, float32: [n] for the wide table, [n, D] for the deep
        one.

        An id that training never looked up has its initial row. In the deep table, the optimizer steps recorded in
        `history`, if any, are then applied to the initial row.
        """
        saved = self._views[table]
        is_known = are_among(saved.row_ids, ids)
        values = np.zeros((len(ids), saved.layout[ROWS].width), np.float32)
        values[is_known] = saved.read(ROWS, np.searchsorted(saved.row_ids, ids[is_known]))
        if table == DEEP and not is_known.all():
            model, dtype, others = self.config.model, self.config.tables.dtype, ids[~is_known]
            initial = initial_rows(self.config.train.seed, others, model.embedding_dim, model.initial_row_scale, dtype)
            values[~is_known] = initial if self.history is None else self._moved(others, initial)
        return values[:, 0] if table == WIDE else values

    @cached_property
    def _views(self) -> dict[str, TableSnapshot]:
        return {table: self._scored(table, saved) for table, saved in self.state.tables.items()}

    def _scored(self, table: str, saved: TableSnapshot) -> TableSnapshot:
        return scored_table(saved, self.checkpoint["step"], self.history if table == DEEP else None, self.means)

    def _moved(self, ids: np.ndarray, initial: np.ndarray) -> np.ndarray:
        """Return the values [n, D] of the deep rows of `ids` after all optimizer steps that `self.history` records.
        Training never looked up these rows. `initial` [n, D] holds their initial values.
        """
        layout = widened_layout(self.state.tables[DEEP].layout).items()
        arrays = {name: np.zeros((len(ids), width), dtype) for name, (dtype, width) in layout}
        moved = self._scored(DEEP, TableState(ids, {**arrays, ROWS: initial}))
        return moved.read(ROWS, slice(None))


def write_model(
    folder: Path, model: ExportedModel, rows: RowType, parent: Predictor | None = None, num_threads: int = 1
) -> Predictor:
    """Write a bundle's tables, tower, vocabulary, golden rows, schema and code into the new `folder`, without manifest
    and README. Return the opened bundle.

    `rows` is the type in which deep rows are stored. With a `parent`, write a delta, which holds only rows that differ
    from the parent's. Raise ValueError if the model has other fields or sizes than the parent, or if its vocabulary
    does not extend the parent's.
    """
    schema, _, vocabulary = open_vocabulary(model.prepared, model.schema)
    config, dense = model.config, model.state.dense
    spec = BundleTablesSpec(
        num_rows=0,
        num_ids=schema.vocabulary_size,
        width=config.model.embedding_dim,
        dtype=rows,
        seed=config.train.seed,
        initial_scale=config.model.initial_row_scale,
        initial_dtype=config.tables.dtype,
    )
    row_ids, stored, deleted = model.row_ids(schema), stored_as(rows, model.read), NO_IDS
    if parent is not None:
        _check_fits(parent, schema, spec)
        if model.changed is None:
            num_rows = len(row_ids)
            row_ids, deleted = _changed_rows(parent.tables, row_ids, stored)
            if 2 * len(row_ids) > num_rows:
                log.warning(
                    "warning: %.0f %% of the rows differ from those of %s, so a whole bundle is about as small: write "
                    "one, without --delta-from",
                    100 * len(row_ids) / num_rows,
                    parent.folder,
                )
        elif model.expired is not None:
            deleted = model.expired
    spec = replace(spec, num_rows=len(row_ids), num_deleted=len(deleted))
    # Store the sizes and checksums of the log's files, so that the command `predict` notices if it scores a file on
    # which the model was trained.
    source = {key: schema.source[key] for key in ("name", "lines")}
    source["files"] = [
        {key: file[key] for key in ("size_bytes", "checksum")} for file in schema.source.get("files", ())
    ]
    write_schema(replace(schema, splits={}, other_files=(), source=source), folder)
    write_tower(folder, dense, config.model.activation, model.calibration)
    write_rows(folder, spec, row_ids, stored, deleted)
    since = None if parent is None or model.changed is None else parent.schema.vocabulary_size
    manifest = _manifest_of(model, schema, spec, _write_vocabulary(folder, vocabulary, parent, since), parent)
    chain, opened = (parent.chain, parent.tables) if parent else ((), ())
    predictor = Predictor([*chain, (folder, manifest)], num_threads, opened)
    _write_golden(predictor, _made_golden(predictor.log_format, vocabulary, parent, since), dense)
    write_code(folder / CODE)
    return predictor


def _manifest_of(
    model: ExportedModel, schema: Schema, spec: BundleTablesSpec, vocabulary: dict[str, Any], parent: Predictor | None
) -> BundleManifest:
    options, fields = model.config.model, fields_of_model(schema, model.config.model)
    content: dict[str, Any] = {"hidden_widths": list(options.hidden_widths), "activation": options.activation}
    if not is_plain(fields):
        content["fields"] = [field._asdict() for field in fields]
    content |= {"vectors": {field.name: field.width for field in schema.vectors}} if schema.vectors else {}
    content |= {"serve_as": schema.log_format.serve_as} if schema.log_format.serve_as else {}
    content |= {"batch_norm": options.batch_norm, "label_smoothing": model.config.loss.label_smoothing}
    content |= {"calibration": asdict(model.calibration)} if model.calibration else {}
    content["numeric_weights"] = model.state.dense.get("wide.numeric_weight", np.zeros(0)).ravel().tolist()
    manifest = BundleManifest(
        model=content,
        rows=spec.as_json(),
        vocabulary=vocabulary,
        checkpoint=model.checkpoint,
        format_version=version_of(content, spec.as_json(), NUM_EXPIRED in vocabulary),
        versions={"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    )
    if parent is None:
        return manifest
    return replace(
        manifest,
        parent={"id": parent.version, "name": parent.folder.absolute().name},
        generation=parent.generation + 1,
        whole_serial=parent.manifest.whole_serial,
    )


def _check_fits(parent: Predictor, schema: Schema, spec: BundleTablesSpec) -> None:
    """Raise ValueError if the model's columns, or the width, type or initial values of its embedding rows, differ from
    those of the bundle `parent`. A delta (a bundle with changed rows only) cannot express such a change.
    """
    parent_spec = parent.tables[0].spec
    differences = [
        f"{name} {getattr(spec, name)}, there {getattr(parent_spec, name)}"
        for name in ("width", "dtype", "seed", "initial_scale", "initial_dtype")
        if getattr(spec, name) != getattr(parent_spec, name)
    ]
    if differences:
        raise ValueError(f"this model is no change of {parent.folder}: {'; '.join(differences)}; export a whole bundle")
    parent_fields = [(field.name, field.oov_ids) for field in parent.schema.categorical]
    if parent_fields != [(field.name, field.oov_ids) for field in schema.categorical]:
        raise ValueError(f"this model has other columns than {parent.folder}; export a whole bundle")


def _changed_rows(
    parent: Sequence[BundleTables], row_ids: np.ndarray, stored: ReadStored
) -> tuple[np.ndarray, np.ndarray]:
    """Compare embedding rows with those of the bundle chain `parent` (a whole bundle and its deltas), byte by byte in
    their stored form.

    Return the ids in `row_ids` (ascending) whose rows differ or are new, and the ids that have a row in the parent but
    are not in `row_ids`.
    """
    before, old = chain_row_ids(parent), chain_stored(parent)
    names = [name for name in parent[0].spec.layout() if not name.endswith("padding") and name != INDEX]
    changed = [np.zeros(0, np.int64)]
    for ids in in_pieces(row_ids):
        differs = ~are_among(before, ids)
        for name in names:
            new_bytes, old_bytes = (read(name, ids).reshape(len(ids), -1).view(np.uint8) for read in (stored, old))
            differs |= (new_bytes != old_bytes).any(axis=1)
        changed.append(ids[differs])
    return np.concatenate(changed), np.setdiff1d(before, row_ids, assume_unique=True)


def logit_tolerances(predictor: Predictor, dense: Mapping[str, np.ndarray], rows: Examples) -> np.ndarray:
    """Return for each of n encoded rows how far two correct float32 computations of its logit may differ, [n]. The
    result is at least GOLDEN_TOLERANCE.

    `dense` holds the arrays that the bundle's tower was built from. See `rounding_bound`.
    """
    deep, _ = predictor.tower_inputs(rows.ids)
    _, wide = lookup(predictor.tables, np.maximum(rows.ids, 0))
    slope = abs(predictor.manifest.model.get("calibration", {}).get("slope", 1))
    return np.maximum(GOLDEN_TOLERANCE, slope * rounding_bound(dense, deep, wide, rows.numeric, rows.vectors))


def _write_vocabulary(
    folder: Path, vocabulary: BaseVocabulary, parent: Predictor | None, since: int | None
) -> dict[str, Any]:
    """Write a bundle's vocabulary files (lookup.bin, and expired.npy for a delta), and return their description for the
    manifest.

    A delta of `parent` gets the values that the parent lacks, and the ids whose values have expired since the parent
    was written. If `since` (the parent's vocabulary size) is given, the vocabulary is the parent's with values added
    after the first `since` ids, so only these values are written and nothing is compared.
    """
    if parent is None:
        return write_lookup(vocabulary, folder)
    values = parent.manifest.vocabulary.get("values", "")
    if since is None:
        record = write_lookup(vocabulary, folder, parent.schema.categorical, values)
    else:
        record = write_additions(vocabulary, folder, parent.encoder, since, values)
    expired = np.setdiff1d(vocabulary.expired, parent.encoder.expired, assume_unique=True)
    return record | write_lookup_expired(folder, expired)


def _made_golden(
    log_format: LogFormat, vocabulary: BaseVocabulary, parent: Predictor | None, since: int | None
) -> pa.Table:
    """Return the golden rows of a new bundle, still without scores.

    Without `since` they are made up anew. With `since`, they are up to NEW_GOLDEN_ROWS made-up rows with values whose
    ids are `since` or above, followed by the first golden rows of `parent`.
    """
    if parent is None or since is None:
        return make_rows(vocabulary, log_format, GOLDEN_ROWS, seed=1)
    of_parent = golden_rows(parent)
    if vocabulary.schema.vocabulary_size == since:
        return of_parent
    added = make_rows(vocabulary, log_format, NEW_GOLDEN_ROWS, seed=1, since=since)
    return pa.concat_tables([added, of_parent.slice(0, len(of_parent) - len(added))])


def _write_golden(predictor: Predictor, table: pa.Table, dense: Mapping[str, np.ndarray]) -> None:
    """Write golden.parquet: the made-up rows in `table` with the bundle's logit and score of each row, and the
    tolerance within which other machines must reproduce the logit.
    """
    scored = predictor.score_chunk(table_to_chunk(table, predictor.log_format))
    assert scored.encoded is not None
    tolerances = logit_tolerances(predictor, dense, scored.encoded)
    scores = {"logit": scored.logits, "score": probabilities(scored.logits), TOLERANCE: tolerances}
    for name, values in scores.items():
        table = table.append_column(name, pa.array(values))
    pq.write_table(table, predictor.folder / GOLDEN)


def finish(folder: Path, manifest: BundleManifest, texts: Mapping[str, str], beside: Path) -> None:
    """Write the text files into the bundle in `folder`, then its manifest. The manifest gets a serial number above
    those of the bundles in the folder `beside`.
    """
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    write_manifest(folder, numbered(manifest, beside))


_EVERY_ROW = 255.0


# Function that takes a table's name ("deep" or "wide") and ids [n], and returns their rows, float32: [n, D] for "deep",
# [n] for "wide".
ReadRows = Callable[[str, np.ndarray], np.ndarray]


def stored_as(dtype: RowType, read: ReadRows) -> ReadStored:
    """Return a function that calls `read` and converts the float32 rows to the type `dtype` in which a bundle stores
    deep rows. Wide rows stay float32.

    The returned function raises ValueError for a value beyond the range of float16.
    """
    return lambda name, ids: read("wide", ids) if name == "wide" else _stored(name, ids, read("deep", ids), dtype)


def _stored(name: str, ids: np.ndarray, deep: np.ndarray, dtype: RowType) -> np.ndarray:
    """Convert float32 deep rows [n, D] to the form in which a bundle with `dtype` stores them.

    For int8, a row is stored in three arrays, and `name` selects which one to return: "deep" (the numbers [n, D]),
    "scale" or "offset" ([n] each).
    """
    if dtype == "float32":
        return deep
    if dtype == "float16":
        with np.errstate(over="ignore"):
            half = deep.astype(np.float16)
        bad = np.flatnonzero(~np.isfinite(half).all(axis=1))
        if bad.size:
            raise ValueError(f"row {ids[bad[0]]} has a value beyond float16's 65,504; export with rows=float32")
        return half
    lowest = deep.min(axis=1, keepdims=True)
    scale = (deep.max(axis=1, keepdims=True) - lowest) / np.float32(_EVERY_ROW)
    if name == "scale":
        return scale[:, 0]
    if name == "offset":
        return (lowest + np.float32(128) * scale)[:, 0]
    steps = np.rint((deep - lowest) / np.where(scale > 0, scale, np.float32(1)))
    return (np.clip(steps, 0, _EVERY_ROW) - 128).astype(np.int8)


OUTSIDE, MISSING = 0.1, 0.1  # Share of made-up cells with a value outside the vocabulary, and share of missing cells.
# If the schema has no newest time for a time column, the column's made-up times lie before this time (in milliseconds
# since 1970).
SOME_TIME = 1_700_000_000_000


def make_rows(vocabulary: BaseVocabulary, log_format: LogFormat, num_rows: int, seed: int, since: int = 0) -> pa.Table:
    """Return made-up rows with all columns that a model reads. A missing value is null.

    The cells of a categorical column are missing (share MISSING), outside the vocabulary (share OUTSIDE) or drawn from
    it. With `since`, only values whose ids are `since` or above, which were added later, are drawn from it.
    """
    generator = np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {name: _integers(num_rows, generator) for name in log_format.numeric_fields}
    for name in log_format.float_fields:
        columns[name] = [number if number is None else number / 8 for number in columns[name]]
    newest = {
        field.source: field.parameters[NEWEST] for field in vocabulary.schema.numeric if NEWEST in field.parameters
    }
    for name in log_format.time_fields:
        ages = [None if days is None else days + generator.random() for days in columns[name]]
        columns[name] = _times(ages, newest.get(name, SOME_TIME), log_format.time_form(name))
    fields = {field.name: field for field in vocabulary.live_fields(since)}
    for column in vocabulary.columns:
        if log_format.columns.get(column.name, "ignored") == "ignored":
            continue
        field = fields[column.shares or column.name]
        known = np.flatnonzero(field.values >= 0)
        known = known[generator.integers(0, len(known), num_rows)] if len(known) else known
        chances = generator.random(num_rows)
        cell_of = KINDS[log_format.columns[column.name]].made_up
        unknown = generator.integers(0, 2**32 if field.texts is None else 2**31, num_rows)
        cells: list[Any] = [cell_of(number) for number in unknown]
        if field.texts is None:
            inside = [cell_of(number) for number in field.values[known]]
        else:
            inside = [text.decode() for text in field.texts.take(known).tolist()]
        # `cells` has a value outside the vocabulary for each row, and `inside` one in the vocabulary, or nothing if
        # the field has no values. A row gets the latter if its random number in `chances` is at least MISSING +
        # OUTSIDE.
        for row, cell in enumerate(inside):
            if chances[row] >= MISSING + OUTSIDE:
                cells[row] = cell
        columns[column.name] = [None if chance < MISSING else cell for chance, cell in zip(chances, cells, strict=True)]
    types = {name: pa.string() for name in columns} | dict.fromkeys(log_format.integer_fields, pa.int64())
    types |= dict.fromkeys(log_format.float_fields, pa.float64())
    for vector in vocabulary.schema.vectors:
        types[vector.name] = pa.list_(pa.float64())
        columns[vector.name] = _vectors(vector, num_rows, generator)
    order = [name for name in log_format.columns if name in columns]
    return pa.table({name: pa.array(columns[name], types[name]) for name in order})


def _times(ages: Sequence[float | None], newest: float, form: str) -> list[str | None]:
    """Return the texts of times that lie `ages` days before the time `newest`, in the log's time format `form`. Times
    that `form` cannot express are moved into its range. A missing age gives None.
    """
    first, last = time_range(form)
    times = (None if age is None else int(newest - age * DAY) for age in ages)
    return [None if time is None else time_text(min(max(time, first), last), form) for time in times]


def _vectors(field: VectorField, num_rows: int, generator: np.random.Generator) -> list[list[float] | None]:
    """Return vectors drawn around the training mean, with few digits so that examples of requests stay short."""
    drawn = generator.normal(field.mean, field.deviation, (num_rows, field.width)).tolist()
    present = generator.random(num_rows) >= MISSING
    return [
        [float(f"{x:.3g}") for x in vector] if there else None for vector, there in zip(drawn, present, strict=True)
    ]


def _integers(num_rows: int, generator: np.random.Generator) -> list[int | None]:
    numbers = np.rint(generator.lognormal(1.5, 1.5, num_rows)).astype(int) - 1
    missing = generator.random(num_rows) < MISSING
    return [None if absent else int(number) for number, absent in zip(numbers, missing, strict=True)]
