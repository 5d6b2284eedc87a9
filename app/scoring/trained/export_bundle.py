"""Export a trained model as a bundle. The bundle's scores are compared with the training code's before the bundle's
folder gets its final name.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

from app.checkpoint.read import scoring_arrays
from app.checkpoint.write import ModelState
from app.config import device
from app.evaluation.calibration import Calibrate, Calibration
from app.evaluation.measure import Scorer, check_split
from app.scoring.bundle_folder import BundleManifest
from app.scoring.bundle_tables import TABLES, RowType
from app.scoring.bundle_writer import new_bundle
from app.scoring.predictor import Predictor
from app.scoring.trained.card import Evaluated, texts
from app.scoring.trained.compare_bundle import check_made_rows, evaluate_both
from app.scoring.trained.evaluate_split import calibrate_on_valid
from app.scoring.trained.load import load_for_scoring
from app.scoring.trained.trained_model import Trained
from app.scoring.trained.write_bundle import ExportedModel, finish, write_model
from app.training.assemble import fold_numeric
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
    calibrate: Calibrate = False,
    overwrite: bool = False,
) -> Evaluated | None:
    """Write a model as a bundle into the folder `bundle`, and compare its scores with the training code's. Return the
    metrics of both on test or valid, or None if neither split has labelled rows.

    With `parent`, write a delta, which holds only the changes since the bundle `parent`. With `calibrate`, fit the
    scores to the click rates of the valid split. `rows` is the type in which embedding rows are stored. `overwrite`
    allows replacing an existing bundle.
    """
    # Bundles compute in float32.
    trained = trained.with_device(precision="float32")
    for split in ("train", "valid") if calibrate else ("train",):
        check_split(trained.folder, trained.schema, split)
    device.prepare_environment(trained.config.device)
    with new_bundle(bundle, overwrite) as folder:
        trained.checkpoint.verify()
        scorer, calibration = load_for_scoring(trained), None
        if calibrate:
            calibration = calibrate_on_valid(trained, scorer, calibrate)
            scorer = scorer.calibrated(calibration) if calibration else scorer
        if parent and ("calibration" in parent.manifest.model) != (calibration is not None):
            log.warning("warning: one of this bundle and %s is calibrated, the other is not", parent.folder)
        predictor = write_compared(folder, trained, exported_model(trained, calibration), scorer, rows, parent)
        evaluated = evaluate_both(predictor, trained, scorer)
        if calibration is None and (reason := _why_no_probabilities(trained.config.loss.label_smoothing, evaluated)):
            log.warning("warning: %s; for probabilities export with --calibrate (in Python: calibrate=True)", reason)
        finish_bundle(folder, bundle.absolute().parent, trained, predictor.manifest, evaluated)
    return evaluated


def exported_model(trained: Trained, calibration: Calibration | None = None) -> ExportedModel:
    """Return everything that `write_model` needs to write a bundle of this model: its rows, its tower with the
    numeric fields' rows as parameters, its settings and its prepared folder.
    """
    checkpoint, config, schema = trained.checkpoint, trained.config, trained.schema
    manifest, state = checkpoint.manifest, checkpoint.state()
    state = ModelState(scoring_arrays(state.dense, manifest.step), state.tables)
    if not config.model.fold_numeric:
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
    """Write a bundle except its manifest into `folder`, compare it with the training code, and return the opened
    bundle.

    `scorer` runs the training code. The logits of both are compared only if the bundle's rows (`rows`) and the training
    code's precision are float32. With `encoder`, an open encoder of the prepared folder, the bundle's golden rows are
    compared; without it, newly made-up rows. Raise ValueError if logits differ by more than rounding explains, or if a
    delta cannot express the model (see `write_model`).
    """
    predictor = write_model(folder, model, rows, parent, trained.config.device.num_threads)
    if rows == "float32" and trained.config.device.precision == "float32":
        check_made_rows(predictor, trained, scorer, model.state.dense, encoder)
    return predictor


def _why_no_probabilities(label_smoothing: float, evaluated: Evaluated | None) -> str:
    """Return why the bundle's scores are no click probabilities, as a text for a warning, or "" if their sum is near
    the number of clicks. `evaluated` is None if nothing was measured. Label smoothing then is the only reason that can
    be found.
    """
    smoothed = f"loss.label_smoothing={label_smoothing:g} draws scores toward 0.5" if label_smoothing else ""
    if evaluated is None:
        return smoothed
    metrics = evaluated.metrics
    # Three standard errors of the number of clicks, relative to that number.
    noise = 3 / math.sqrt(max(metrics.click_rate * metrics.rows, 1))
    if not abs(metrics.calibration - 1) > max(MOST_OFF, noise):
        return ""
    found = f"the scores of {evaluated.split} sum to {metrics.calibration:.2f} times its clicks"
    return f"{found}, as {smoothed}" if smoothed else found


def finish_bundle(
    folder: Path, beside: Path, trained: Trained, manifest: BundleManifest, evaluated: Evaluated | None = None
) -> None:
    """Write the text files (README.md, requirements.txt and the files for MLflow) and then the manifest into the bundle
    in `folder`. The bundle gets a serial number above those of the bundles in the folder `beside`.
    """
    table_bytes = (folder / TABLES).stat().st_size
    finish(folder, manifest, texts(manifest, as_dict(trained.config), trained.schema, evaluated, table_bytes), beside)
