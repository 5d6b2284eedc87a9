"""`python -m app export`: a checkpoint as a bundle, which scores raw rows without MindSpore."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np

from app import device
from app.batches import Batch, read_batches, written_order
from app.checkpoint.manifest import MANIFEST
from app.checkpoint.read import Checkpoint, scoring_arrays
from app.checkpoint.write import ModelState
from app.cli.evaluate import check_data, saved_config
from app.config.config import Config
from app.evaluation.calibration import fit_calibration
from app.evaluation.measure import check_split, intervals_of, measure
from app.evaluation.metrics import MetricStream, NothingToMeasureError
from app.evaluation.results import Measurement
from app.run.folder import best_of_run
from app.scoring import card
from app.scoring.bundle_folder import new_bundle
from app.scoring.bundle_tables import TABLES, RowType
from app.scoring.distribution import Distribution
from app.scoring.made_rows import make_rows
from app.scoring.predictor import Predictor, are_apart
from app.scoring.write_bundle import finish, logit_tolerances, write_model
from app.training.learning_rates import running_mean, step_history, table_spec
from common.console import progress_bar
from common.packages import require
from data_prep.encoding.encoder import open_encoder, open_vocabulary
from data_prep.encoding.from_table import table_to_chunk
from data_prep.prepared.schema import Schema

log = logging.getLogger("app")

Trained: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]  # ids [n, C] and numbers [n, N] to logits [n]
SELF_TEST_ROWS = 1000
MOST_AUC_LOST = {"float32": 1e-5, "float16": 1e-5, "int8": 1e-4}


def add_parser(commands: Any) -> None:
    """Add the command to those of `python -m app`."""
    parser = commands.add_parser("export", help="write a bundle that scores raw rows without MindSpore")
    parser.add_argument("source", type=Path, metavar="RUN|CHECKPOINT", help="a run's folder (its best) or a checkpoint")
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the new folder")
    parser.add_argument("--dataset", type=Path, metavar="DIR", help="prepared folder (the one it was trained on)")
    parser.add_argument("--delta-from", type=Path, metavar="PARENT", help="write only the changes since this bundle")
    parser.add_argument("--calibrate", action="store_true", help="fit the scores to the click rates of valid (Platt)")
    parser.add_argument("--overwrite", action="store_true", help="replace a bundle that is there")
    parser.add_argument(
        "settings", nargs="*", default=(), metavar="rows=TYPE", help="embeddings as float32, float16 or int8"
    )
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Write and check a bundle; return the exit status."""
    require("onnx", "onnxruntime")
    parent = Predictor.open(arguments.delta_from) if arguments.delta_from else None
    rows: RowType = parent.tables[0].spec.dtype if parent else "float32"
    for word in arguments.settings:
        name, _, rows = word.partition("=")
        if name != "rows" or rows not in get_args(RowType):
            raise ValueError(f"argument {word!r}: expected rows=float32, rows=float16 or rows=int8")
    source = arguments.source
    opened = Checkpoint.open(source) if (source / MANIFEST).is_file() else best_of_run(source)
    overwrite, calibrate = arguments.overwrite, arguments.calibrate
    evaluated = export(opened, arguments.bundle, rows, arguments.dataset, overwrite, parent, calibrate)
    _print(arguments.bundle, rows, evaluated)
    return 0


def export(
    opened: Checkpoint,
    bundle: Path,
    rows: RowType = "float32",
    dataset: Path | None = None,
    overwrite: bool = False,
    parent: Predictor | None = None,
    calibrate: bool = False,
) -> card.Evaluated | None:
    """Write a checkpoint as a bundle and check that; return its metrics, None where the data has no rows for them.

    With `parent` only what has changed since that bundle is written. `calibrate` fits its scores to the rows of valid.
    """
    saved = saved_config(opened)
    config = replace(saved, device=replace(saved.device, precision="float32"))  # what a bundle computes in
    dataset, schema = check_data(opened, "train", dataset, config)
    if calibrate:
        check_split(dataset, schema, "valid")
    if parent and ("calibration" in parent.manifest.model) != calibrate:
        log.warning("warning: one of this bundle and %s is calibrated, the other is not", parent.folder)
    device.prepare_environment(config.device)
    device.select_device(config.device)
    with new_bundle(bundle, overwrite) as folder:
        return _export(opened, config, dataset, schema, rows, folder, bundle.absolute().parent, parent, calibrate)


def _export(
    opened: Checkpoint,
    config: Config,
    dataset: Path,
    schema: Schema,
    rows: RowType,
    folder: Path,
    beside: Path,
    parent: Predictor | None,
    calibrate: bool,
) -> card.Evaluated | None:
    from app.training.assemble import fold_numeric, load_for_scoring

    opened.verify()
    manifest, state = opened.manifest, opened.state()
    state = ModelState(scoring_arrays(state.dense, manifest.step), state.tables)
    if not config.model.fold_numeric:
        spec = table_spec(config, schema)
        state = ModelState(fold_numeric(state, spec, schema.num_numeric), state.tables)
    train = schema.splits["train"]
    checkpoint = {"id": manifest.id, "step": manifest.step, "epoch": manifest.position.last_epoch}
    checkpoint |= {"train_rows": train.rows, "train_clicks": train.clicks}
    batch_size = config.eval.batch_size or config.train.batch_size
    scorer = load_for_scoring(opened, config, schema, batch_size)
    calibration = None
    if calibrate:
        valid = measure(dataset, schema, "valid", batch_size, scorer.prepare, scorer)
        calibration = fit_calibration(valid.bins, valid.metrics.rows)
        log.info("calibrated: %s", calibration)

    def trained(ids: np.ndarray, numeric: np.ndarray) -> np.ndarray:
        batch = Batch(ids, numeric, np.zeros(len(ids), np.float32))
        logits = scorer(batch, scorer.prepare(batch))
        return calibration(logits) if calibration else logits

    history, means = step_history(manifest), running_mean(manifest)
    made = write_model(folder, state, config, dataset, checkpoint, rows, history, means, parent, calibration)
    chain = [*(parent.chain if parent else ()), (folder, made)]
    predictor = Predictor(chain, config.device.num_threads)
    _self_test(predictor, trained, state.dense, dataset, batch_size)
    evaluated = _compare(predictor, trained, config, dataset, schema)
    row_bytes = 4 * (config.model.embedding_dim + 1)
    sizes = {"tables": (folder / TABLES).stat().st_size, "float32": made.rows["num_rows"] * row_bytes}
    finish(folder, made, card.texts(made, config, schema, evaluated, sizes), beside)
    return evaluated


def _self_test(
    predictor: Predictor, trained: Trained, dense: dict[str, np.ndarray], dataset: Path, batch_size: int
) -> None:
    """Score made rows by the training code, `trained`, and by the bundle, whose rows are float32 or not compared.

    Raises ValueError where they differ by more than rounding explains.
    """
    if predictor.manifest.rows["dtype"] != "float32":
        return
    _, options, given = open_vocabulary(dataset)
    table = make_rows(given, options.data, SELF_TEST_ROWS, seed=2)
    _, encoded = open_encoder(dataset).encode(table_to_chunk(table, options.data))  # from raw values on
    parts = [slice(start, start + batch_size) for start in range(0, SELF_TEST_ROWS, batch_size)]
    expected = np.concatenate([trained(encoded.ids[part], encoded.numeric[part]) for part in parts])
    found = predictor.logits(table)
    tolerances = logit_tolerances(predictor, dense, encoded.ids, encoded.numeric)
    bad = np.flatnonzero(are_apart(found, expected, tolerances))
    if bad.size:
        row = bad[0]
        raise ValueError(
            f"the self-test failed: of {SELF_TEST_ROWS} made rows, {bad.size} have another logit in the bundle than by "
            f"the training code, first row {row}: {found[row]} and {expected[row]}; rounding explains a difference of "
            f"{tolerances[row]:.0e}"
        )


def _compare(
    predictor: Predictor, trained: Trained, config: Config, dataset: Path, schema: Schema
) -> card.Evaluated | None:
    """Score the rows of a split by the training code, `trained`, and by the bundle."""
    batch_size = config.eval.batch_size or config.train.batch_size
    for split in ("test", "valid"):
        if schema.splits[split].rows:
            with contextlib.suppress(NothingToMeasureError):
                return _evaluate(predictor, trained, config, dataset, schema, split, batch_size)
    return None


def _evaluate(
    predictor: Predictor, trained: Trained, config: Config, dataset: Path, schema: Schema, split: str, batch_size: int
) -> card.Evaluated:
    here, there, held_out = MetricStream(), MetricStream(), Distribution(schema)
    largest = 0.0
    batches = read_batches(dataset, schema, split, written_order(schema, split), batch_size)
    with progress_bar(total=schema.splits[split].rows, desc=f"compare {split}", unit="row", unit_scale=True) as bar:
        for batch in batches:
            found = predictor.logits_of_ids(batch.ids, batch.numeric)
            expected = trained(batch.ids, batch.numeric)
            largest = max(largest, float(np.abs(found - expected).max()))
            held_out.add(batch.ids, batch.numeric, found)
            here.add(found, batch.labels, batch.weights)
            there.add(expected, batch.labels, batch.weights)
            bar.update(batch.num_rows)
    held_out.write(predictor.folder)
    measured = Measurement(*here.result_and_bins())
    return card.Evaluated(split, measured.metrics, intervals_of(measured, config), there.result(), largest)


def _print(path: Path, rows: RowType, evaluated: card.Evaluated | None) -> None:
    print(
        f"{path}: rows as {rows}, {(path / TABLES).stat().st_size:,} bytes of tables; {path / 'README.md'} describes it"
    )
    if evaluated is None:
        return
    lost = evaluated.trained.auc - evaluated.metrics.auc
    print(
        f"  on {evaluated.split}: AUC {evaluated.metrics.auc:.6f}, by the training code {evaluated.trained.auc:.6f}; "
        f"logits differ by at most {evaluated.largest_difference:.1e}"
    )
    if lost > MOST_AUC_LOST[rows]:
        log.warning("warning: rows=%s lose %.1e of AUC; expected at most %.0e", rows, lost, MOST_AUC_LOST[rows])
