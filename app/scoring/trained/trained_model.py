"""Combine a checkpoint with the settings of its run and with a prepared data folder, load its model for scoring, and
evaluate it on a split of the data, in one process or on several ranks.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.checkpoint.manifest import MANIFEST
from app.checkpoint.read import Checkpoint, scoring_arrays
from app.config import device
from app.config.config import Config
from app.config.device import select_device
from app.config.optimizer_settings import SgdOptions
from app.distributed.process_group import ONE_PROCESS, ProcessGroup, on_all_ranks, shows_progress
from app.evaluation.calibration import Calibrate, Calibration, fit_calibration, fit_temperature
from app.evaluation.measure import Evaluation, Scorer, best_on, check_split, intervals_of, measure, one_line
from app.evaluation.results import as_json, content_of, write_evaluation
from app.evaluation.slices import SliceStream, check_slices, find_parts
from app.model.dense_state import write_parameter
from app.model.native_tower import NativeModel, scores_natively
from app.run.folder import EVAL_LOG
from app.run.identity import check_same_inputs, read_config
from app.run.report import leave_report
from app.run.stop_signals import StopRequest
from app.tables.backends import pick_host_backend, table_spec
from app.tables.native.storage import AUTO
from app.training.assemble import check_dense, fold_numeric, logits_of, rows_for_device
from app.training.auto.memory import with_storage
from app.training.learning_rates import LearningRates
from app.training.step.step import over_ranks, score_batch
from app.training.validate import check_group_field
from common import yaml_settings
from common.files import message_of
from data_prep.prepared.batches import Batch
from data_prep.prepared.data_files import check_files, schema_at
from data_prep.prepared.schema import Schema, read_schema


@dataclass(frozen=True)
class Trained:
    """A checkpoint, the settings of its run, and a prepared `folder` in which ids and numeric columns mean the same as
    in training.
    """

    checkpoint: Checkpoint
    config: Config
    folder: Path
    schema: Schema

    @property
    def batch_size(self) -> int:
        """Number of rows that the training code scores at once: the batch size of the training."""
        return self.config.train.batch_size

    def with_device(self, **changes: Any) -> Trained:
        """Return a copy of this object with the settings of section `device` replaced by `changes`, such as
        `threads=1`.
        """
        return replace(self, config=replace(self.config, device=replace(self.config.device, **changes)))


def read_trained_on(checkpoint: Checkpoint, dataset: Path | None) -> tuple[Path, Schema]:
    """Return the prepared folder to evaluate or export a model with, and its schema. The folder is `dataset`, or the
    one that the model was trained on if `dataset` is None.

    Raise FileNotFoundError if the folder does not exist, and ValueError if its schema.json is not readable.
    """
    folder = dataset or Path(checkpoint.manifest.dataset)
    try:
        return folder, read_schema(folder)
    except FileNotFoundError as error:
        if dataset:
            raise
        raise FileNotFoundError(
            f"{checkpoint.path} was trained on {folder}, and no prepared folder is there; if it was moved, name its "
            "new place: --dataset DIR (in Python: dataset=DIR)"
        ) from error


def open_trained(checkpoint: Checkpoint, dataset: Path | None = None, overrides: Sequence[str] = ()) -> Trained:
    """Return a checkpoint combined with its run's settings, changed by `overrides`, and the prepared folder `dataset`.

    The default folder is the one that the model was trained on. Raise FileNotFoundError or ValueError if the folder is
    incomplete, or if ids and numeric columns mean something else in it than in training.
    """
    manifest = checkpoint.manifest
    config = yaml_settings.override(read_config(manifest.config, where=str(checkpoint.path / MANIFEST)), overrides)
    folder, schema = read_trained_on(checkpoint, dataset)
    schema = schema_at(schema, manifest.data)
    check_files(folder, schema)
    check_same_inputs(manifest, schema, folder)
    check_group_field(config.eval, schema)
    return Trained(checkpoint, config, folder, schema)


log = logging.getLogger("app")


def check_evaluation(trained: Trained, split: str, by: Sequence[str] = (), calibrate: Calibrate = False) -> None:
    """Raise ValueError if the split has no rows to measure, or if its rows cannot be sliced by a name in `by`. With
    `calibrate`, also raise ValueError if the split valid has no rows to measure. MindSpore is not imported.
    """
    check_split(trained.folder, trained.schema, split)
    check_slices(by, trained.schema, split)
    if calibrate:
        check_split(trained.folder, trained.schema, "valid")


def evaluate(
    trained: Trained,
    split: str,
    by: Sequence[str] = (),
    calibrate: Calibrate = False,
    group: ProcessGroup = ONE_PROCESS,
) -> Evaluation:
    """Evaluate a model on a split, and also on each slice (part) of the split's rows. `by` says how the rows are
    divided into slices.

    `by` holds names that `check_slices` accepts, such as those of fields. With `calibrate`, first fit the scores to the
    click rates of the valid split, as `calibrate_on_valid` does. The ranks of `group` divide the rows and the tables
    among them, and each rank returns the metrics of the whole split. Raise ValueError as `check_evaluation` does, for a
    split that cannot be measured or sliced, and Stopped after a signal.
    """
    check_evaluation(trained, split, by, calibrate)
    config, folder, schema = trained.config, trained.folder, trained.schema
    device.prepare_environment(config.device)
    with StopRequest(0, all_reduce_max=group.all_reduce_max, ending="finishing the batch") as stop:
        scorer, calibration = _stoppable(on_all_ranks(group, partial(load_for_scoring, trained, group)), stop), None
        if calibrate:
            calibration = calibrate_on_valid(trained, scorer, calibrate)
            if calibration and split == "valid":
                log.warning("warning: the scores are calibrated on valid and measured there, which flatters them")
            scorer = scorer.calibrated(calibration) if calibration else scorer
        streams = [SliceStream(find_parts(name, folder, schema, split)) for name in by]
        field, has_bar = config.eval.group_field, shows_progress()
        measured = measure(scorer, folder, schema, split, trained.batch_size, field, streams, has_bar)
        manifest = trained.checkpoint.manifest
        return Evaluation(
            checkpoint=trained.checkpoint.path,
            step=manifest.step,
            epoch=manifest.position.last_epoch,
            split=split,
            measured=measured,
            intervals=intervals_of(measured, config),
            best=best_on(folder, schema, split),
            slices=[part for stream in streams for part in stream.result(config.eval.bootstrap, config.train.seed)],
            calibration=calibration,
        )


def load_for_scoring(trained: Trained, group: ProcessGroup = ONE_PROCESS) -> Scorer:
    """Return a `Scorer`, which scores batches with a checkpoint's model. The model's rows are loaded into tables on the
    host, whatever backend (`tables.backend`) trained the model, without the optimizer state that scores do not need.

    The ranks of `group` divide the rows of the tables among them and share each batch. Raise ValueError, naming the
    array, if an array is missing in the checkpoint or has another shape than the settings say.
    """
    checkpoint, config, schema = trained.checkpoint, trained.config, trained.schema
    step = checkpoint.manifest.step
    saved = table_spec(config, schema)
    # Only the optimizer `adam`, which postpones the steps of rows that a batch does not have, needs its state for
    # scores. SGD has none.
    deep_optimizer = config.deep_optimizer if config.deep_optimizer.name == "adam" else SgdOptions()
    config = replace(config, wide_optimizer=SgdOptions(), deep_optimizer=deep_optimizer)
    spec = table_spec(config, schema)
    # The folder of the setting tables.storage may only exist on the machine that trained the model.
    if not Path(config.tables.storage).is_dir():
        config = replace(config, tables=replace(config.tables, storage=AUTO))
    rates = LearningRates(trained.config.optimizers)
    rates.load_state(checkpoint.manifest.schedules)
    batch_rows = group.batch_rows(trained.batch_size)
    backend, folder = pick_host_backend(), checkpoint.path.parent
    stored = with_storage(spec, config, schema, backend, group, folder)
    rows = rows_for_device(config, stored, rates.of_tables(), backend, group, batch_rows)
    with rows.tables.loading(step) as place:
        arrays = checkpoint.read_once(saved, place, spec)
    if not config.model.fold_numeric:
        arrays = fold_numeric(checkpoint.state(), saved, schema.num_numeric)
    arrays = scoring_arrays(arrays, step)
    if scores_natively(config):
        model = NativeModel(config, schema)
    else:
        from app.model.wide_deep import make_model

        select_device(config.device)
        model = make_model(config, schema)
    parameters = model.named_parameters() | model.named_statistics()
    dense = {name: array for name, array in arrays.items() if name in parameters}
    check_dense(dense, {name: parameter.shape for name, parameter in parameters.items()})
    for name, parameter in parameters.items():
        write_parameter(parameter, dense[name])
    scorer = Scorer(rows.prepare, partial(score_batch, rows, logits_of(model, config)))
    return over_ranks(scorer, group) if group.sharded else scorer


def _stoppable(scorer: Scorer, stop: StopRequest) -> Scorer:
    def score(batch: Batch, prepared: Any) -> np.ndarray:
        stop.check()
        return scorer.score(batch, prepared)

    return Scorer(scorer.prepare, score)


def calibrate_on_valid(trained: Trained, scorer: Scorer, calibrate: Calibrate) -> Calibration | None:
    """Return the calibration that fits the model's scores to the click rates of the valid split.

    If `calibrate` is "auto", fit a temperature, and return None if it does not lower the log loss of valid by more than
    its standard error. For any other value, fit Platt's scaling. Raise ValueError if all rows have the same label, or
    if the model ranks them no better than chance.
    """
    has_bar = shows_progress()
    valid = measure(scorer, trained.folder, trained.schema, "valid", trained.batch_size, show_progress=has_bar)
    fitted = (fit_temperature if calibrate == "auto" else fit_calibration)(valid.bins, valid.metrics.rows)
    log.info("calibrated: %s", fitted or "no, a temperature does not lower the log loss of valid beyond its error")
    return fitted


def save_evaluation(evaluation: Evaluation, run: Path) -> list[str]:
    """Write an evaluation into the run folder `run`, add a line to its eval.log, and draw the run's report again.

    Do nothing if `run` is not the run that the evaluated checkpoint belongs to. Return the names of the report's files
    that could not be written. If this user may not write into the folder, log a warning and return [].
    """
    if run.resolve() not in evaluation.checkpoint.resolve().parents:
        return []
    split, step, epoch, measured = evaluation.split, evaluation.step, evaluation.epoch, evaluation.measured
    content = content_of(split, step, epoch, measured, evaluation.intervals, evaluation.best)
    content |= {"slices": [as_json(asdict(part)) for part in evaluation.slices]} if evaluation.slices else {}
    content |= {"calibrated": str(evaluation.calibration)} if evaluation.calibration else {}
    try:
        write_evaluation(run, content)
        with (run / EVAL_LOG).open("a", encoding="utf-8") as eval_log:
            eval_log.write(one_line(split, epoch, step, evaluation.metrics) + "\n")
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        why = message_of(error)
        log.warning("warning: %s does not keep this evaluation: %s; to keep it, let this user write there", run, why)
        return []
    return leave_report(run)
