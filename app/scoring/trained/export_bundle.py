"""Export a trained model as a bundle. The bundle's scores are compared with the training code's before the bundle's
folder gets its final name.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.checkpoint.read import scoring_arrays
from app.checkpoint.write import ModelState
from app.config import device
from app.evaluation.calibration import Calibrate, Calibration
from app.evaluation.measure import Scorer, check_split, intervals_of
from app.evaluation.metrics import MetricStream, NothingToMeasureError
from app.evaluation.results import Measurement
from app.scoring.bundle_folder import BundleManifest
from app.scoring.bundle_model import are_apart, golden_rows
from app.scoring.bundle_tables import TABLES, RowType
from app.scoring.bundle_writer import new_bundle
from app.scoring.distribution import Distribution
from app.scoring.predictor import Predictor
from app.scoring.trained.code_and_card import Evaluated, texts
from app.scoring.trained.trained_model import Trained, calibrate_on_valid, load_for_scoring
from app.scoring.trained.write_bundle import ExportedModel, finish, logit_tolerances, make_rows, write_model
from app.scoring.trained.write_tower import write_id_model
from app.tables.backends import table_spec
from app.training.assemble import fold_numeric
from app.training.learning_rates import running_mean, step_history
from common.console import progress_bar
from common.settings import as_dict
from data_prep.encoding.encoder import RowEncoder
from data_prep.encoding.prepared_vocabulary import open_encoder, open_vocabulary
from data_prep.encoding.rows_to_score import table_to_chunk
from data_prep.prepared.batches import batches_of, read_batches, written_order

log = logging.getLogger("app")

# Number of made-up rows that are scored by a new bundle and by the training code, to compare the two.
SELF_TEST_ROWS = 1000
# A user is advised to calibrate the bundle (fit its scores to click rates) if the sum of the scores differs from the
# number of clicks by more than this share of that number.
MOST_OFF = 0.1


def export(
    trained: Trained,
    bundle: Path,
    rows: RowType = "float32",
    parent: Predictor | None = None,
    calibrate: Calibrate = False,
    overwrite: bool = False,
    mindir: bool = False,
    onnx_ids: bool = False,
) -> Evaluated | None:
    """Write a model as a bundle into the folder `bundle`, and compare its scores with the training code's. Return the
    metrics of both on test or valid, or None if neither split has labelled rows.

    With `parent`, write a delta, which holds only the changes since the bundle `parent`. With `calibrate`, fit the
    scores to the click rates of the valid split. `rows` is the type in which embedding rows are stored. `overwrite`
    allows replacing an existing bundle. `mindir` adds the tower as a model of MindSpore, and `onnx_ids` the tables and
    the tower as one ONNX model of ids (see `write_mindir` and `write_id_model`).
    """
    # A bundle computes in float32, so the training code must do so too for the comparison.
    trained = trained.with_device(precision="float32")
    for split in ("train", "valid") if calibrate else ("train",):
        check_split(trained.folder, trained.schema, split)
    device.prepare_environment(trained.config.device)
    with new_bundle(bundle, overwrite) as folder:
        # Loading the rows verifies the files of the checkpoint, from which the bundle is then written.
        scorer, calibration = load_for_scoring(trained), None
        if calibrate:
            calibration = calibrate_on_valid(trained, scorer, calibrate)
            scorer = scorer.calibrated(calibration) if calibration else scorer
        if parent and ("calibration" in parent.manifest.model) != (calibration is not None):
            log.warning("warning: one of this bundle and %s is calibrated, the other is not", parent.folder)
        model = exported_model(trained, calibration)
        predictor = write_compared(folder, trained, model, scorer, rows, parent)
        if onnx_ids:
            write_id_model(predictor)
        if mindir:
            from app.scoring.trained.write_mindir import write_mindir

            device.select_device(trained.config.device)
            write_mindir(folder, model.state.dense, trained.config.model.activation, calibration)
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
    # By chance alone, the number of clicks may differ from its expectation by three standard errors. Compute these
    # relative to the number of clicks.
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


def check_made_rows(
    predictor: Predictor,
    trained: Trained,
    scorer: Scorer,
    dense: Mapping[str, np.ndarray],
    encoder: RowEncoder | None = None,
) -> None:
    """Raise ValueError if the bundle's and the training code's logits of made-up rows differ by more than rounding
    explains.

    `predictor` is the opened bundle, with float32 rows, and `scorer` runs the training code. `dense` holds the
    checkpoint's tower arrays that the bundle's ONNX tower was built from. With `encoder`, an open encoder of the
    prepared folder, the bundle's golden rows are compared. Without it, SELF_TEST_ROWS new rows are made up and
    compared.
    """
    if encoder is not None:
        table, encoder = golden_rows(predictor), replace(encoder, options=encoder.options.without_label())
    else:
        _, options, vocabulary = open_vocabulary(trained.folder, trained.schema)
        table = make_rows(vocabulary, options.data, SELF_TEST_ROWS, seed=2)
        encoder = open_encoder(trained.folder, False, trained.schema)
    # Encode the same raw values with the prepared folder's vocabulary, not with the bundle's.
    _, encoded = encoder.encode(table_to_chunk(table, encoder.log_format))
    batches = batches_of(encoded, trained.batch_size)
    expected = np.concatenate([scorer.score(batch, scorer.prepare(batch)) for batch in batches])
    logits = predictor.logits(table)
    tolerances = logit_tolerances(predictor, dense, encoded)
    bad = np.flatnonzero(are_apart(logits, expected, tolerances))
    if bad.size:
        row = bad[0]
        raise ValueError(
            f"the self-test failed: of {len(table)} made rows, {bad.size} have another logit in the bundle than by the "
            f"training code, first row {row}: {logits[row]} and {expected[row]}; rounding explains a difference of "
            f"{tolerances[row]:.0e}"
        )


def evaluate_both(predictor: Predictor, trained: Trained, scorer: Scorer) -> Evaluated | None:
    """Evaluate the bundle and the training code on the test split, or on valid if test has no labelled rows.

    Return None if neither split has labelled rows.
    """
    for split in ("test", "valid"):
        if trained.schema.splits[split].rows:
            with contextlib.suppress(NothingToMeasureError):
                return _evaluate_split(predictor, trained, scorer, split)
    return None


def _evaluate_split(predictor: Predictor, trained: Trained, scorer: Scorer, split: str) -> Evaluated:
    """Evaluate the bundle and the training code on a split, and return the metrics of both. Write the counts of the
    split's rows (see `Distribution`) into the bundle as distribution.json.
    """
    schema, largest = trained.schema, 0.0
    of_bundle, of_training, held_out = MetricStream(), MetricStream(), Distribution(schema)
    batches = read_batches(trained.folder, schema, split, written_order(schema, split), trained.batch_size)
    with progress_bar(total=schema.splits[split].rows, desc=f"compare {split}", unit="row", unit_scale=True) as bar:
        for batch in batches:
            logits = predictor.logits_of_encoded(batch)
            expected = scorer.score(batch, scorer.prepare(batch))
            largest = max(largest, float(np.abs(logits - expected).max()))
            held_out.add(batch, logits)
            of_bundle.add(logits, batch.labels, batch.weights)
            of_training.add(expected, batch.labels, batch.weights)
            bar.update(batch.num_rows)
    held_out.write(predictor.folder)
    measured = Measurement(*of_bundle.result_and_bins())
    return Evaluated(split, measured.metrics, intervals_of(measured, trained.config), of_training.result(), largest)
