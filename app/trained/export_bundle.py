"""Export a trained model as a bundle, which is compared with the training code before it gets its name."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.batches import Batch, read_batches, written_order
from app.checkpoint.read import scoring_arrays
from app.checkpoint.write import ModelState
from app.config import device
from app.evaluation.calibration import Calibration
from app.evaluation.measure import Scorer, check_split, intervals_of
from app.evaluation.metrics import MetricStream, NothingToMeasureError
from app.evaluation.results import Measurement
from app.scoring.bundle_folder import new_bundle
from app.scoring.bundle_tables import TABLES, RowType
from app.scoring.distribution import Distribution
from app.scoring.golden_rows import are_apart
from app.scoring.predictor import Predictor
from app.trained import card
from app.trained.evaluate_split import calibrate_on_valid
from app.trained.made_rows import make_rows
from app.trained.trained_model import Trained
from app.trained.write_bundle import ExportedModel, finish, logit_tolerances, write_model
from app.training.learning_rates import running_mean, step_history, table_spec
from common.console import progress_bar
from data_prep.encoding.from_table import table_to_chunk
from data_prep.encoding.prepared_vocabulary import open_encoder, open_vocabulary

log = logging.getLogger("app")

SELF_TEST_ROWS = 1000


def export(
    trained: Trained,
    bundle: Path,
    rows: RowType = "float32",
    parent: Predictor | None = None,
    calibrate: bool = False,
    overwrite: bool = False,
) -> card.Evaluated | None:
    """Write a model as a bundle, check it, and return its metrics, or None if the data has no rows for them.

    With `parent`, write only the changes since that bundle. `calibrate` fits its scores to the rows of valid.
    """
    trained = trained.with_device(precision="float32")  # what a bundle computes in
    for split in ("train", "valid") if calibrate else ("train",):
        check_split(trained.folder, trained.schema, split)
    if parent and ("calibration" in parent.manifest.model) != calibrate:
        log.warning("warning: one of this bundle and %s is calibrated, the other is not", parent.folder)
    device.prepare_environment(trained.config.device)
    device.select_device(trained.config.device)
    with new_bundle(bundle, overwrite) as folder:
        return _export(trained, folder, bundle.absolute().parent, rows, parent, calibrate)


def _export(
    trained: Trained, folder: Path, beside: Path, rows: RowType, parent: Predictor | None, calibrate: bool
) -> card.Evaluated | None:
    from app.trained.load import load_for_scoring  # imports MindSpore, whose environment is prepared first

    trained.checkpoint.verify()
    scorer, calibration = load_for_scoring(trained), None
    if calibrate:
        calibration = calibrate_on_valid(trained, scorer)
        scorer = scorer.calibrated(calibration)
        log.info("calibrated: %s", calibration)
    config, model = trained.config, _exported_model(trained, calibration)
    manifest = write_model(folder, model, rows, parent)
    predictor = Predictor([*(parent.chain if parent else ()), (folder, manifest)], config.device.num_threads)
    comparison = _Comparison(trained, predictor, _logits_by(scorer))
    if rows == "float32":
        comparison.check_made_rows(model.state.dense)
    evaluated = comparison.evaluate()
    row_bytes = 4 * (config.model.embedding_dim + 1)
    sizes = {"tables": (folder / TABLES).stat().st_size, "float32": manifest.rows["num_rows"] * row_bytes}
    finish(folder, manifest, card.texts(manifest, config, trained.schema, evaluated, sizes), beside)
    return evaluated


def _exported_model(trained: Trained, calibration: Calibration | None) -> ExportedModel:
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
    return ExportedModel(state, config, trained.folder, record, history, means, calibration)


Logits = Callable[[np.ndarray, np.ndarray], np.ndarray]  # ids [n, C] and numbers [n, N] to logits [n]


def _logits_by(scorer: Scorer) -> Logits:
    def logits(ids: np.ndarray, numeric: np.ndarray) -> np.ndarray:
        batch = Batch(ids, numeric, np.zeros(len(ids), np.float32))
        return scorer.score(batch, scorer.prepare(batch))

    return logits


@dataclass(frozen=True)
class _Comparison:
    """The bundle, open in `predictor`, and the training code, `expected`, on the same rows."""

    trained: Trained
    predictor: Predictor
    expected: Logits

    def check_made_rows(self, dense: dict[str, np.ndarray]) -> None:
        """Raise ValueError if the logits of made rows differ by more than rounding explains. For float32 rows."""
        folder, size = self.trained.folder, self.trained.batch_size
        _, options, vocabulary = open_vocabulary(folder)
        table = make_rows(vocabulary, options.data, SELF_TEST_ROWS, seed=2)
        _, encoded = open_encoder(folder).encode(table_to_chunk(table, options.data))  # from raw values on
        batches = [slice(start, start + size) for start in range(0, SELF_TEST_ROWS, size)]
        expected = np.concatenate([self.expected(encoded.ids[batch], encoded.numeric[batch]) for batch in batches])
        logits = self.predictor.logits(table)
        tolerances = logit_tolerances(self.predictor, dense, encoded.ids, encoded.numeric)
        bad = np.flatnonzero(are_apart(logits, expected, tolerances))
        if bad.size:
            row = bad[0]
            raise ValueError(
                f"the self-test failed: of {SELF_TEST_ROWS} made rows, {bad.size} have another logit in the bundle "
                f"than by the training code, first row {row}: {logits[row]} and {expected[row]}; rounding explains a "
                f"difference of {tolerances[row]:.0e}"
            )

    def evaluate(self) -> card.Evaluated | None:
        """Score the rows of test by both, else of valid. Return None if no row has a label."""
        for split in ("test", "valid"):
            if self.trained.schema.splits[split].rows:
                with contextlib.suppress(NothingToMeasureError):
                    return self._evaluate_split(split)
        return None

    def _evaluate_split(self, split: str) -> card.Evaluated:
        folder, schema = self.trained.folder, self.trained.schema
        of_bundle, of_training, held_out = MetricStream(), MetricStream(), Distribution(schema)
        largest = 0.0
        batches = read_batches(folder, schema, split, written_order(schema, split), self.trained.batch_size)
        with progress_bar(total=schema.splits[split].rows, desc=f"compare {split}", unit="row", unit_scale=True) as bar:
            for batch in batches:
                logits = self.predictor.logits_of_ids(batch.ids, batch.numeric)
                expected = self.expected(batch.ids, batch.numeric)
                largest = max(largest, float(np.abs(logits - expected).max()))
                held_out.add(batch.ids, batch.numeric, logits)
                of_bundle.add(logits, batch.labels, batch.weights)
                of_training.add(expected, batch.labels, batch.weights)
                bar.update(batch.num_rows)
        held_out.write(self.predictor.folder)
        measured = Measurement(*of_bundle.result_and_bins())
        intervals = intervals_of(measured, self.trained.config)
        return card.Evaluated(split, measured.metrics, intervals, of_training.result(), largest)
