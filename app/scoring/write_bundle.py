"""Write a bundle from a checkpoint's arrays and the prepared folder that it was trained on.

Letters: T touched rows, n rows of one read, D width.
"""

from __future__ import annotations

import ast
import logging
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
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
from app.scoring.bundle_folder import GOLDEN, TOLERANCE, Manifest, numbered, write_manifest
from app.scoring.bundle_tables import BundleTablesSpec, RowType, lookup, stored_as, write_rows
from app.scoring.delta import changed_rows, check_fits
from app.scoring.golden_rows import make_rows
from app.scoring.onnx_tower import rounding_bound, write_tower
from app.scoring.predictor import Predictor, probabilities
from app.tables.fields import fields_of_model, is_plain
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, WIDE, TableSnapshot, TableState, scored_table
from app.tables.optimizers import ROWS, RunningMean, StepHistory
from data_prep.encoding.base import BaseVocabulary
from data_prep.encoding.encoder import open_vocabulary, write_lookup
from data_prep.encoding.from_table import table_to_chunk
from data_prep.prepared.schema import Schema, write_schema

log = logging.getLogger(__name__)

GOLDEN_ROWS = 100
# Of a logit, between processors, if no more is to be expected of its terms; on one machine the bits are the same.
GOLDEN_TOLERANCE = 1e-5
PROJECT = Path(__file__).parents[2]
CODE = "code"
# The package in a bundle's code/ that all its modules are in: on the path, app and common would hide a user's own ones.
CODE_PACKAGE = "wide_deep_bundle"
_OWN_IMPORT = re.compile(r"^( *(?:from|import) )((?:app|data_prep|common)[. ])", re.MULTILINE)
CODE_ROOTS = ("app.cli.predict", "app.cli.bundle", "app.scoring.pyfunc")  # what a bundle brings, with all they import
PACKAGES = ("numpy", "pyarrow", "onnxruntime", "xxhash", "pyyaml", "isal", "tqdm")  # of the core
NATIVE = "data_prep/kernels/csrc/log_kernels.h", "data_prep/kernels/csrc/build/liblog_kernels.so"


@dataclass(frozen=True)
class ExportedModel:
    """What a bundle is written from: the state of a checkpoint, and the `prepared` folder that it was trained on.

    `state.dense` has the numeric fields folded. `history` is that of a deep table whose rows move without being looked
    up (`adam`): then every id has a row. With `means` the rows are their running means.
    """

    state: ModelState
    config: Config
    prepared: Path
    checkpoint: dict[str, Any]  # for the manifest
    history: StepHistory | None = None
    means: RunningMean | None = None
    calibration: Calibration | None = None

    def row_ids(self, schema: Schema) -> np.ndarray:
        """Return the ids, ascending, whose rows are not the initial ones; those of numeric fields are the tower's."""
        if self.history is not None:
            return np.arange(schema.num_numeric, schema.vocabulary_size)
        row_ids = np.union1d(*(table.row_ids for table in self.state.tables.values()))
        return row_ids[row_ids >= schema.num_numeric]

    def read(self, table: str, ids: np.ndarray) -> np.ndarray:
        """Return the rows of `ids` [n] that the model scores with, float32: [n] of the wide table, [n, D] of the deep.

        An id that was not touched has its initial row, which the steps of `history` have moved as well.
        """
        saved = self._views[table]
        if table == WIDE:
            values = np.zeros((len(ids), 1), np.float32)
        else:
            model = self.config.model
            values = initial_rows(self.config.train.seed, ids, model.embedding_dim, model.initial_scale)
        places = np.searchsorted(saved.row_ids, ids)
        places[places == len(saved.row_ids)] = 0
        known = saved.row_ids[places] == ids if len(saved.row_ids) else np.zeros(len(ids), np.bool_)
        if table == DEEP and self.history is not None and not known.all():
            values[~known] = self._moved(ids[~known], values[~known])
        values[known] = saved.read(ROWS, places[known])
        return values[:, 0] if table == WIDE else values

    @cached_property
    def _views(self) -> dict[str, TableSnapshot]:
        return {table: self._scored(table, saved) for table, saved in self.state.tables.items()}

    def _scored(self, table: str, saved: TableSnapshot) -> TableSnapshot:
        return scored_table(saved, self.checkpoint["step"], self.history if table == DEEP else None, self.means)

    def _moved(self, ids: np.ndarray, initial: np.ndarray) -> np.ndarray:
        """Return deep rows [n, D] that were never looked up, after all steps."""
        layout = self.state.tables[DEEP].layout.items()
        arrays = {name: np.zeros((len(ids), width), dtype) for name, (dtype, width) in layout}
        moved = self._scored(DEEP, TableState(ids, {**arrays, ROWS: initial}))
        return moved.read(ROWS, slice(None))


def write_model(folder: Path, model: ExportedModel, rows: RowType, parent: Predictor | None = None) -> Manifest:
    """Write all that a score depends on into the new `folder`, but for the manifest; returns that.

    With a `parent` it is a delta, which has the rows that are not the parent's. Raises ValueError if the model or the
    vocabulary is not the parent's with additions.
    """
    schema, _, base_vocabulary = open_vocabulary(model.prepared)
    config, dense = model.config, model.state.dense
    spec = BundleTablesSpec(
        num_rows=0,
        num_ids=schema.vocabulary_size,
        width=config.model.embedding_dim,
        dtype=rows,
        seed=config.train.seed,
        initial_scale=config.model.initial_row_scale,
    )
    row_ids, stored = model.row_ids(schema), stored_as(rows, model.read)
    deleted = np.zeros(0, np.int64)
    if parent is not None:
        check_fits(parent, schema, spec)
        num_rows = len(row_ids)
        row_ids, deleted = changed_rows(parent.tables, row_ids, stored)
        if 2 * len(row_ids) > num_rows:
            log.warning(
                "warning: %.0f %% of the rows differ from those of %s, so a whole bundle is about as small: write one, "
                "without --delta-from",
                100 * len(row_ids) / num_rows,
                parent.folder,
            )
    spec = replace(spec, num_rows=len(row_ids), num_deleted=len(deleted))
    source = {key: schema.source[key] for key in ("name", "lines")}
    write_schema(replace(schema, splits={}, other_files=(), source=source), folder)
    write_tower(folder, dense, config.model.activation, model.calibration)
    write_rows(folder, spec, row_ids, stored, deleted)
    known = () if parent is None else (parent.schema.categorical, parent.manifest.vocabulary.get("values", ""))
    manifest = Manifest(
        model=_model_content(model, schema),
        rows=asdict(spec),
        vocabulary=write_lookup(base_vocabulary, folder, *known),
        checkpoint=model.checkpoint,
        versions={"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    )
    if parent is not None:
        manifest = replace(
            manifest,
            parent={"id": parent.version, "name": parent.folder.absolute().name},
            generation=parent.generation + 1,
            whole_serial=parent.manifest.whole_serial,
        )
    _write_golden(Predictor([*(parent.chain if parent else ()), (folder, manifest)]), base_vocabulary, dense)
    _write_code(folder / CODE)
    return manifest


def _model_content(model: ExportedModel, schema: Schema) -> dict[str, Any]:
    """Return what the manifest says about the model."""
    options, fields = model.config.model, fields_of_model(schema, model.config.model)
    content: dict[str, Any] = {"hidden_widths": list(options.hidden_widths), "activation": options.activation}
    if not is_plain(fields):
        content["fields"] = [field._asdict() for field in fields]
    content |= {"batch_norm": options.batch_norm, "label_smoothing": model.config.loss.label_smoothing}
    content |= {"calibration": asdict(model.calibration)} if model.calibration else {}
    content["numeric_weights"] = model.state.dense.get("wide.numeric_weight", np.zeros(0)).ravel().tolist()
    return content


def logit_tolerances(
    predictor: Predictor, dense: Mapping[str, np.ndarray], ids: np.ndarray, numeric: np.ndarray
) -> np.ndarray:
    """Return how far float32 may take the logits of encoded rows from others' evaluations, [n]; see `rounding_bound`.

    `dense` are the arrays that the bundle's tower was made of.
    """
    deep, _ = predictor.tower_inputs(ids)
    _, wide = lookup(predictor.tables, np.maximum(ids, 0))
    slope = abs(predictor.manifest.model.get("calibration", {}).get("slope", 1))
    return np.maximum(GOLDEN_TOLERANCE, slope * rounding_bound(dense, deep, wide, numeric))


def _write_golden(predictor: Predictor, vocabulary: BaseVocabulary, dense: Mapping[str, np.ndarray]) -> None:
    """Write golden.parquet: made rows with the scores of this bundle."""
    table = make_rows(vocabulary, predictor.log_format, GOLDEN_ROWS, seed=1)
    scored = predictor.score_chunk(table_to_chunk(table, predictor.log_format))
    assert scored.encoded is not None
    tolerances = logit_tolerances(predictor, dense, scored.encoded.ids, scored.encoded.numeric)
    scores = {"logit": scored.logits, "score": probabilities(scored.logits), TOLERANCE: tolerances}
    for name, values in scores.items():
        table = table.append_column(name, pa.array(values))
    pq.write_table(table, predictor.folder / GOLDEN)


def _write_code(folder: Path) -> None:
    """Write the modules that scoring consists of as one package, and the native encoder where it is built."""
    package = folder / CODE_PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Code that scores by the bundle which it is in."""\n', encoding="utf-8")
    for module in code_modules(CODE_ROOTS):
        path = _module_path(module)
        assert path is not None
        target = package / path.relative_to(PROJECT)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = _OWN_IMPORT.sub(rf"\1{CODE_PACKAGE}.\2", path.read_text(encoding="utf-8"))
        target.write_text(text, encoding="utf-8")
    for file in NATIVE:
        if (PROJECT / file).is_file():
            (package / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / file, package / file)


def code_modules(roots: Iterable[str]) -> list[str]:
    """Return the project's modules that `roots` import when they run, inside functions too, with their packages."""
    found: set[str] = set()
    left = list(roots)
    while left:
        module = left.pop()
        path = _module_path(module)
        if path is None or module in found:
            continue
        found.add(module)
        left.append(module.rpartition(".")[0] or module)
        for node in ast.walk(_WithoutTypes().visit(ast.parse(path.read_text(encoding="utf-8")))):
            if isinstance(node, ast.Import):
                left += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                left += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return sorted(found)


class _WithoutTypes(ast.NodeTransformer):
    """Leaves out the imports for a type checker, which never run."""

    def visit_If(self, node: ast.If) -> ast.If | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


def _module_path(module: str) -> Path | None:
    """Return the file of one of the project's modules; None for any other name."""
    if module.split(".")[0] not in ("app", "data_prep", "common"):
        return None
    path = PROJECT.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def finish(folder: Path, manifest: Manifest, texts: Mapping[str, str], beside: Path) -> None:
    """Write the other files, by name, and last the manifest, numbered above the bundles in the folder `beside`."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    write_manifest(folder, numbered(manifest, beside))
