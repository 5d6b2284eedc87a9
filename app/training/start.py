"""A launch of a training in this process: check everything, open the run's folder, train, write the status.

The command `train` and the notebook's function come this way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.batches import check_files
from app.checkpoint.read import DamagedCheckpointError
from app.config import device
from app.config.by_rows import describe_by_rows, describe_few_steps
from app.config.config import Config
from app.distributed.mpirun import DID_NOT_LEARN
from app.distributed.process_group import ONE_PROCESS, ProcessGroup
from app.run.claim import RunIsFinishedError, check_launch, evaluation_of, open_run
from app.run.decision import describe_kept, read_state, settings_of_run
from app.run.report import NOT_WRITTEN, leave_report
from app.run.training_loss import trained_click_rate, why_useless
from app.tables.backends import pick_backend
from app.tables.model_fields import fields_of_model, is_plain
from app.training.context import LOGS, Callback, RunContext
from app.training.learning_rates import table_spec
from app.training.parallel.strategy_file import STRATEGY_FILE, read_strategies, strategy_record, write_strategy
from app.training.step import first_layer, precision
from app.training.stop_signals import Stopped, StopRequest
from app.training.validate import fits_stock, validate, validate_target
from app.training.warm_start.source import check_source
from common.console import PrintableFormatter
from common.files import message_of
from data_prep.options.options_file import read_recorded
from data_prep.prepared.schema import SCHEMA_FILE, Schema, read_schema

if TYPE_CHECKING:
    from app.training.loop import Trainer  # imports MindSpore

log = logging.getLogger("app")


USELESS_BECAUSE = "useless_because"  # of run.json


@dataclass(frozen=True)
class Launch:
    """A training that was found possible: of the run in `path`, by `config`, on the prepared folder `dataset`.

    `asked` are the settings before those that an older run keeps. `choices` are the log's lines on what `auto` chose.
    `on_step` and `on_evaluation` are called as well. `make_trainer` makes a `Trainer` of another kind.
    """

    path: Path
    asked: Config
    config: Config
    dataset: Path
    schema: Schema
    backend: str
    choices: tuple[str, ...] = ()
    on_step: tuple[Callback, ...] = ()
    on_evaluation: tuple[Callback, ...] = ()
    make_trainer: Callable[[RunContext, str], Trainer] | None = None

    def check_folder(self) -> None:
        """Raise the errors of opening the run's folder, RunIsFinishedError among them. Change nothing."""
        check_launch(self.path, self.config, self.schema, self._find_source)

    def select_device(self) -> str:
        """Import MindSpore and return its target. Raise ValueError for settings that do not go with it."""
        target = device.select_device(self.config.device)
        validate_target(self.config, target)
        if target == "CPU" and (unused := self.config.parallel.unused_on_cpu()):
            log.warning("warning: %s: for Ascend and GPU only; ignored on a CPU", ", ".join(unused))
        return target

    def train(self, target: str, group: ProcessGroup = ONE_PROCESS) -> int:
        """Train on the device `target`, as one of the ranks `group`, and return the exit status.

        Raises as `Trainer.train`, but for what it has saved.
        """
        # One process finds a damaged checkpoint as it loads it, which reads each byte once. Several verify it before.
        damaged: dict[Path, str] | None = None if group.sharded else {}
        while True:
            try:
                return self._train_in_folder(target, group, damaged)
            except RunIsFinishedError as finished:
                with group:  # so that servers end
                    return report_finished(finished)
            except DamagedCheckpointError as error:
                if damaged is None or error.checkpoint is None or error.checkpoint in damaged:
                    raise
                damaged[error.checkpoint] = error.what

    def _find_source(self) -> Path | None:
        return check_source(self.config, self.schema)

    def _train_in_folder(self, target: str, group: ProcessGroup, damaged: dict[Path, str] | None) -> int:
        """Open the run's folder and train. Raise DamagedCheckpointError if the checkpoint to resume is damaged."""
        folder, lock = open_run(self.path, self.config, self.schema, group, self._find_source, damaged, self.asked)
        config = folder.config
        with (
            lock,
            StopRequest(config.train.time_limit, all_reduce_max=group.all_reduce_max) as stop,
            _log_to(folder.log_path),
        ):
            verb = {"new": "Starting", "resume": "Resuming", "continue": "Continuing"}[folder.plan.kind]
            log.info("%s %s (%s)", verb, folder.path, folder.plan.reason)
            for checkpoint, reason in folder.plan.refused.items():
                log.warning("warning: a newer checkpoint is not used, %s: %s", checkpoint.name, reason)
            for line in describe_kept(self.asked, config):
                log.info("%s", line)
            self.describe_steps(config)
            for line in filter(None, self.choices):
                log.info("%s", line)
            threads = config.device.num_threads
            log.info("the tower runs on %s, the tables are %s, %d host threads", target, self.backend, threads)
            spec = table_spec(config, self.schema)
            row_bytes = f"{spec.row_bytes():,} bytes, with its optimizers' state ({spec.dtype})"
            log.info("host memory: a touched row takes %s; there are %s ids", row_bytes, f"{spec.vocabulary_size:,}")
            if group.size > 1:
                rows = config.train.batch_size
                log.info("rank %d of %d, which share batches of %d rows", group.rank, group.size, rows)
            if config.parallel.is_spread:
                write_strategy(folder.path / STRATEGY_FILE, strategy_record(config, self.schema, group.size))
            else:
                (folder.path / STRATEGY_FILE).unlink(missing_ok=True)  # an earlier launch may have written it
            on_step, on_evaluation = (*LOGS, *self.on_step), (*LOGS, *self.on_evaluation)
            try:
                with group:
                    context = RunContext(config, self.dataset, self.schema, folder, stop, group, on_step, on_evaluation)
                    return _train(context, self.backend, self.make_trainer)
            except DamagedCheckpointError as error:
                error.checkpoint = folder.plan.checkpoint.path if folder.plan.checkpoint else None
                raise

    def describe_steps(self, config: Config) -> None:
        """Log what follows from the rows, and a warning where that is few steps."""
        train = self.schema.splits["train"]
        if self.make_trainer is not None:  # its steps are not of these rows
            return
        if config.train.auto:
            log.info("%s", describe_by_rows(config, train))
        if few_steps := describe_few_steps(config, train.rows):
            log.warning("warning: %s", few_steps)


def plan_launch(
    config: Config, dataset: Path, path: Path, num_ranks: int = 1, num_servers: int = 0, choices: Sequence[str] = ()
) -> Launch:
    """Check settings and data, and set the environment of MindSpore. Nothing is imported or written yet.

    `path` is the run's folder, on several ranks that of the first. `choices` are lines for the log on what was
    chosen before. Raises ValueError or FileNotFoundError.
    """
    schema = read_schema(dataset)
    check_files(dataset, schema)
    # The settings of a run are on record beside it: those of its data are the folder's, whatever a file or default has.
    config = replace(config, prepare=read_recorded(schema.options, str(dataset / SCHEMA_FILE)))
    asked = read_strategies(config, schema)
    config = settings_of_run(path, asked, schema)
    tower_precision, precision_line = precision.choose(config, schema, num_ranks)
    config = replace(config, device=replace(config.device, precision=tower_precision))
    device.prepare_environment(config.device)
    plain, num_processes = is_plain(fields_of_model(schema, config.model)), num_ranks + num_servers
    backend = pick_backend(config.tables.backend, config.model.fold_numeric, num_processes, fits_stock(config, plain))
    validate(config, schema, num_ranks, num_servers, backend)
    way, line = first_layer.choose(asked.model.first_layer, config, schema, dataset, backend, num_processes)
    config = replace(config, model=replace(config.model, first_layer=way))
    return Launch(path, asked, config, dataset, schema, backend, (*choices, precision_line, line))


def report_finished(finished: RunIsFinishedError) -> int:
    """Log that the run needs no training. Return the exit status that its training had."""
    log.info("%s", finished)
    useless_because = read_state(finished.path).get(USELESS_BECAUSE, "")
    return _warn_of_useless(useless_because) if useless_because else 0


def _warn_of_useless(reason: str) -> int:
    log.warning("warning: the training did not learn: %s; its checkpoints are kept; try smaller learning rates", reason)
    return DID_NOT_LEARN


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Copy the log to a file."""
    log_file = logging.FileHandler(path, encoding="utf-8")
    log_file.setFormatter(PrintableFormatter("%(asctime)s %(message)s"))
    logging.getLogger().addHandler(log_file)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(log_file)
        log_file.close()


def _train(context: RunContext, backend: str, make_trainer: Callable[[RunContext, str], Trainer] | None = None) -> int:
    """Train, write the run's status and report to its folder, and return the exit status."""
    from app.training.loop import Trainer
    from app.training.saving import NotSavedError

    exit_status, run = 0, context.run
    try:
        (make_trainer or Trainer)(context, backend).train()
    except Stopped as stopped:
        exit_status = stopped.exit_status
        run.set_status("stopped")
        log.info("stopped after saving: %s; run the same command to resume", stopped)
    except DamagedCheckpointError:
        if run.plan.checkpoint is None:  # of a warm start
            run.set_status("failed")
        raise
    except NotSavedError as error:
        run.set_status("failed")
        log.error("error: %s", error)
    except BaseException as error:
        run.set_status("failed")
        log.info("the run stopped: %s: %s", type(error).__name__, message_of(error))
        leave_report(run.path)
        raise
    else:
        click_rate = trained_click_rate(context.dataset, context.schema)
        reason = why_useless(run.loss_path, click_rate, context.config.loss.label_smoothing)
        run.set_status("finished", **({USELESS_BECAUSE: reason} if reason else {}))
        log.info("finished; evaluate it on the test rows with: %s (in Python: evaluate(run))", evaluation_of(run.path))
        if reason:
            exit_status = _warn_of_useless(reason)
    unwritten = [*run.write_errors(), *leave_report(run.path)]
    if unwritten:
        log.error("error: could not write %s", ", ".join(unwritten))
        return NOT_WRITTEN
    return exit_status
