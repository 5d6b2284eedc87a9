"""Export a trained model as a bundle. It is compared with the training code before it gets its final name."""

from __future__ import annotations

import logging
import math
from pathlib import Path

from app.checkpoint.read import scoring_arrays
from app.checkpoint.write import ModelState
from app.config import device
from app.evaluation.calibration import Calibration
from app.evaluation.measure import Scorer, check_split
from app.scoring.bundle_folder import BundleManifest
from app.scoring.bundle_tables import TABLES, RowType
from app.scoring.bundle_writer import new_bundle
from app.scoring.predictor import Predictor
from app.scoring.trained.card import Evaluated, texts
from app.scoring.trained.compare_bundle import check_made_rows, evaluate_both
from app.scoring.trained.evaluate_split import calibrate_on_valid
from app.scoring.trained.trained_model import Trained
from app.scoring.trained.write_bundle import ExportedModel, finish, write_model
from app.training.learning_rates import running_mean, step_history, table_spec
from common.settings import as_dict
from data_prep.encoding.encoder import RowEncoder

log = logging.getLogger("app")

# A user is advised to calibrate if the sum of the scores differs from that of the clicks by more than this share.
MOST_OFF = 0.1


def export(
    trained: Trained,
    bundle: Path,
    rows: RowType = "float32",
    parent: Predictor | None = None,
    calibrate: bool = False,
    overwrite: bool = False,
) -> Evaluated | None:
    """Write a model as the bundle `bundle` and check it. Return its metrics, or None if there are no rows to measure
    on.

    With `parent`, write a delta that holds only the changes since that bundle. With `calibrate`, fit the scores to the
    rows of the valid split.
    """
    # Bundles compute in float32.
    trained = trained.with_device(precision="float32")
    for split in ("train", "valid") if calibrate else ("train",):
        check_split(trained.folder, trained.schema, split)
    if parent and ("calibration" in parent.manifest.model) != calibrate:
        log.warning("warning: one of this bundle and %s is calibrated, the other is not", parent.folder)
    device.prepare_environment(trained.config.device)
    device.select_device(trained.config.device)
    with new_bundle(bundle, overwrite) as folder:
        # This imports MindSpore, so the environment must be prepared first.
        from app.scoring.trained.load import load_for_scoring

        trained.checkpoint.verify()
        scorer, calibration = load_for_scoring(trained), None
        if calibrate:
            calibration = calibrate_on_valid(trained, scorer)
            scorer = scorer.calibrated(calibration)
            log.info("calibrated: %s", calibration)
        predictor = write_compared(folder, trained, exported_model(trained, calibration), scorer, rows, parent)
        evaluated = evaluate_both(predictor, trained, scorer)
        if calibration is None and (reason := _why_no_probabilities(trained.config.loss.label_smoothing, evaluated)):
            log.warning("warning: %s; for probabilities export with --calibrate (in Python: calibrate=True)", reason)
        finish_bundle(folder, bundle.absolute().parent, trained, predictor.manifest, evaluated)
    return evaluated


def exported_model(trained: Trained, calibration: Calibration | None = None) -> ExportedModel:
    """Return the state, settings and data that a bundle of this model is made from."""
    checkpoint, config, schema = trained.checkpoint, trained.config, trained.schema
    manifest, state = checkpoint.manifest, checkpoint.state()
    state = ModelState(scoring_arrays(state.dense, manifest.step), state.tables)
    if not config.model.fold_numeric:
        from app.training.assemble import fold_numeric

        state = ModelState(fold_numeric(state, table_spec(config, schema), schema.num_numeric), state.tables)
    train = schema.splits["train"]
    record = {"id": manifest.id, "step": manifest.step, "epoch": manifest.position.last_epoch}
    record |= {"train_rows": train.rows, "train_clicks": train.clicks}
    history, means = step_history(manifest), running_mean(manifest)
    return ExportedModel(state, config, trained.folder, record, history, means, calibration, schema=schema)


def write_compared(
    folder: Path,
    trained: Trained,
    model: ExportedModel,
    scorer: Scorer,
    rows: RowType,
    parent: Predictor | None,
    encoder: RowEncoder | None = None,
) -> Predictor:
    """Write a model into `folder` without its manifest, compare it with `scorer`, and return the opened bundle.

    `scorer` runs the training code. It is compared if everything is float32. `encoder` and the errors are those of
    `check_made_rows` and `write_model`.
    """
    predictor = write_model(folder, model, rows, parent, trained.config.device.num_threads)
    if rows == "float32" and trained.config.device.precision == "float32":
        check_made_rows(predictor, trained, scorer, model.state.dense, encoder)
    return predictor


def _why_no_probabilities(label_smoothing: float, evaluated: Evaluated | None) -> str:
    """Return why scores are far from click rates, or "" if they are not. `evaluated` is None if nothing was
    measured.
    """
    smoothed = f"loss.label_smoothing={label_smoothing:g} draws scores toward 0.5" if label_smoothing else ""
    if evaluated is None:
        return smoothed
    metrics = evaluated.metrics
    noise = 3 / math.sqrt(max(metrics.click_rate * metrics.rows, 1))  # Three standard errors of the number of clicks.
    if not abs(metrics.calibration - 1) > max(MOST_OFF, noise):
        return ""
    found = f"the scores of {evaluated.split} sum to {metrics.calibration:.2f} times its clicks"
    return f"{found}, as {smoothed}" if smoothed else found


def finish_bundle(
    folder: Path, beside: Path, trained: Trained, manifest: BundleManifest, evaluated: Evaluated | None = None
) -> None:
    """Write the text files and the manifest of a bundle. See `write_bundle.finish`."""
    table_bytes = (folder / TABLES).stat().st_size
    finish(folder, manifest, texts(manifest, as_dict(trained.config), trained.schema, evaluated, table_bytes), beside)
