"""Launch a training in this process: check everything, open the run's folder, train, and write the final status.

The command `train` and `app.api.train` both use this module.
"""

from __future__ import annotations

import gc
import logging
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from app.checkpoint.read import DamagedCheckpointError
from app.config import device
from app.config.config import Config
from app.distributed.mpirun import DID_NOT_LEARN
from app.distributed.process_group import ONE_PROCESS, ProcessGroup, local_processes
from app.model.native_tower import trains_natively
from app.run.claim import RunIsFinishedError, check_launch, evaluation_of, open_run
from app.run.decision import describe_kept, read_state, settings_of_run
from app.run.identity import ignored
from app.run.record import trained_click_rate, why_useless
from app.run.report import NOT_WRITTEN, leave_report
from app.run.stop_signals import Stopped, StopRequest
from app.tables.backends import table_spec
from app.training.auto.memory import MemoryPlan, plan_to_fit, plan_training, shortage, total
from app.training.context import LOGS, Callback, RunContext
from app.training.loop import Trainer
from app.training.saving import NotSavedError
from app.training.step import first_layer, precision
from app.training.validate import choose_backend
from app.training.warm_start.source import check_source
from common.arrays.pages import give_back_freed_memory
from common.console import PrintableFormatter
from common.files import message_of
from common.packages import python_command
from common.process import cpu_quota, peak_memory, run_module
from common.text import number_text
from data_prep.options.options_file import read_recorded
from data_prep.prepared.data_files import check_files
from data_prep.prepared.schema import SCHEMA_FILE, Schema, Split, read_schema

log = logging.getLogger("app")


# If a training has fewer steps than this, a warning is logged, because the model has hardly begun to learn.
FEW_STEPS = 100
# Crosses (fields that combine two other fields) are tried after a training if the number of training rows times the
# number of pairs of fields is at most this. Trying them then takes three seconds.
MOST_TRIED = 1_000_000
USELESS_BECAUSE = "useless_because"  # Key in the file run.json of the reason why the model has learned nothing.


@dataclass(frozen=True)
class Launch:
    """A training that passed all checks: the run folder `path`, the settings `config`, the prepared folder `dataset`.

    `asked` are the settings that the user gave. `config` may differ from them, because a run that is resumed keeps some
    settings. `memory` is the memory that the training is expected to take. `choices` are log lines about automatically
    chosen settings. `on_step` and `on_evaluation` are callbacks that are called in addition to `LOGS`, the callbacks
    that write a run's measurements to its folder. `make_trainer` replaces the class `Trainer`.
    """

    path: Path
    asked: Config
    config: Config
    dataset: Path
    schema: Schema
    backend: str
    memory: MemoryPlan
    choices: tuple[str, ...] = ()
    on_step: tuple[Callback, ...] = ()
    on_evaluation: tuple[Callback, ...] = ()
    make_trainer: Callable[[RunContext, str], Trainer] | None = None

    def check_folder(self) -> None:
        """Raise the error that opening the run folder for training would raise, such as RunIsFinishedError. Change
        nothing.
        """
        check_launch(self.path, self.config, self.schema, self._find_source)

    def select_device(self) -> str:
        """Return the name of the device to use, such as CPU. Import MindSpore unless the steps are native kernels.

        Raise ValueError if this machine does not have the device that the settings ask for.
        """
        if self.backend != "stock" and trains_natively(self.config):
            return "CPU"
        return device.select_device(self.config.device)

    def train(self, target: str, group: ProcessGroup = ONE_PROCESS) -> int:
        """Train on the device `target` as one rank of `group`, and return the exit status of the process.

        Stopped and NotSavedError of `Trainer.train` become exit statuses. Other errors of `Trainer.train` are raised.
        """
        # A single process finds damage while it loads a checkpoint, so that each byte is read once. It then starts
        # again without the damaged checkpoint. `damaged` maps the path of each damaged checkpoint to a text that says
        # what is wrong with it. Several ranks verify a checkpoint before they load it, so `damaged` is None.
        damaged: dict[Path, str] | None = None if group.sharded else {}
        while True:
            try:
                return self._train_in_folder(target, group, damaged)
            except RunIsFinishedError as finished:
                with group:  # Leaving the `with` block ends the job's servers (ranks that only own table rows).
                    return report_finished(finished)
            except DamagedCheckpointError as error:
                if damaged is None or error.checkpoint is None or error.checkpoint in damaged:
                    raise
                damaged[error.checkpoint] = error.what

    def _find_source(self) -> Path | None:
        return check_source(self.config, self.schema)

    def _train_in_folder(self, target: str, group: ProcessGroup, damaged: dict[Path, str] | None) -> int:
        """Open the run's folder, train in it, and return the exit status.

        `damaged` maps the path of each checkpoint that must not be resumed to a text that says what is wrong with the
        checkpoint. Raise DamagedCheckpointError if the checkpoint that the run would resume is damaged, too.
        """
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
            saved = folder.plan.checkpoint.manifest.config if folder.plan.checkpoint else {}
            if settings_before := ignored(saved):
                log.warning(
                    "warning: this run had %s; every rank now holds the whole tower", ", ".join(settings_before)
                )
            self.describe_steps(config)
            self.describe_memory()
            for line in filter(None, self.choices):
                log.info("%s", line)
            threads = config.device.num_threads
            words = target, self.backend, threads, cpu_quota()[1]
            log.info("the tower runs on %s, the tables are %s, %d host threads%s", *words)
            spec = table_spec(config, self.schema)
            row_bytes = f"{spec.row_bytes():,} bytes, with its optimizers' state ({spec.dtype})"
            log.info("host memory: a touched row takes %s; there are %s ids", row_bytes, f"{spec.vocabulary_size:,}")
            if group.size > 1:
                rows = config.train.batch_size
                log.info("rank %d of %d, which share batches of %d rows", group.rank, group.size, rows)
            on_step, on_evaluation = (*LOGS, *self.on_step), (*LOGS, *self.on_evaluation)
            try:
                with group:
                    context = RunContext(config, self.dataset, self.schema, folder, stop, group, on_step, on_evaluation)
                    return _train(context, self)
            except DamagedCheckpointError as error:
                error.checkpoint = folder.plan.checkpoint.path if folder.plan.checkpoint else None
                raise

    def describe_steps(self, config: Config) -> None:
        """Log the settings that `train.auto` has chosen by the number of training rows, and warn if the training has
        few steps.
        """
        train = self.schema.splits["train"]
        # An online run, which has its own trainer, does not train on the rows of the prepared folder.
        if self.make_trainer is not None:
            return
        if config.train.auto:
            log.info("%s", describe_by_rows(config, train))
        if few_steps := describe_few_steps(config, train.rows):
            log.warning("warning: %s", few_steps)

    def describe_memory(self) -> None:
        """Log the memory that the training is expected to take, and warn if this host has less."""
        if self.make_trainer is not None:  # An online run, whose vocabulary grows, is not predicted.
            return
        num_processes = self.memory.num_ranks + self.memory.num_servers
        log.info("%s", self.memory.summary())
        if missing := shortage(self.memory, self.config, local_processes(num_processes)):
            command = python_command(f"app plan {shlex.quote(str(self.dataset))}")
            log.warning("warning: %s; remedies, with the settings of this training: %s", missing, command)


def plan_launch(
    config: Config, dataset: Path, path: Path, num_ranks: int = 1, num_servers: int = 0, choices: Sequence[str] = ()
) -> Launch:
    """Check settings and data of a training, set MindSpore's environment variables, and return the training to launch.

    MindSpore is not imported, and nothing is written. `path` is the run folder of rank 0. `choices` are log lines about
    settings that were chosen automatically before this call. Raise ValueError or FileNotFoundError for the first thing
    that is wrong.
    """
    schema = read_schema(dataset)
    check_files(dataset, schema)
    # The prepared folder records the settings `prepare` that it was made with. These replace whatever a configuration
    # file says.
    config = replace(config, prepare=read_recorded(schema.options, str(dataset / SCHEMA_FILE)))
    asked, config = config, settings_of_run(path, config, schema)
    tower_precision, precision_line = precision.choose(config, schema, num_ranks)
    config = replace(config, device=replace(config.device, precision=tower_precision))
    device.prepare_environment(config.device)
    num_processes, backend = num_ranks + num_servers, choose_backend(config, schema, num_ranks, num_servers)
    way, line = first_layer.choose(asked.model.first_layer, config, schema, dataset, backend, num_processes)
    config = replace(config, model=replace(config.model, first_layer=way))
    memory, _ = plan_to_fit(
        config,
        local_processes(num_processes),
        lambda changed: plan_training(changed, schema, backend, dataset, num_ranks, num_servers),
    )
    return Launch(path, asked, config, dataset, schema, backend, memory, (*choices, precision_line, line))


def num_steps(num_rows: int, epochs: int, batch_size: int, steps: int) -> int:
    """Return the number of steps of a whole training: of all epochs, or `steps` if that is smaller and not 0."""
    of_epochs = epochs * math.ceil(num_rows / batch_size)
    return min(steps, of_epochs) if steps else of_epochs


def describe_by_rows(config: Config, train: Split) -> str:
    """Return a log line with the settings that `train.auto` has chosen by the number of rows of the split `train`."""
    among = "" if train.num_counting == train.rows else f" that count, of {train.rows:,}"
    rows = f"{train.num_counting:,} training rows{among}"
    steps = f", at most {config.train.steps:,} steps" if config.train.steps else ""
    wide, widths = config.wide_optimizer, "-".join(map(str, config.model.hidden_widths))
    dropout = f" with dropout {config.model.dropout:g}" if config.model.dropout else ""
    return (
        f"settings for {rows} (train.auto): D {config.model.embedding_dim}, tower {widths}{dropout}, L2 "
        f"{config.loss.l2_coef:g}; rates wide {wide.learning_rate:g}, deep {config.deep_optimizer.learning_rate:g}, "
        f"tower {config.tower_optimizer.learning_rate:g}; {config.train.epochs} epochs of batches of "
        f"{config.train.batch_size:,} rows{steps}. config.yaml has all of them"
    )


def describe_few_steps(config: Config, num_rows: int) -> str:
    """Return a warning if a training has fewer than FEW_STEPS steps or a batch larger than its data, else "".

    No warning is returned if the user asked for that number of steps, or if the run starts from a trained model.
    """
    epochs, batch_size = config.train.epochs, config.train.batch_size
    steps = num_steps(num_rows, epochs, batch_size, config.train.steps)
    is_asked_for = steps == config.train.steps or config.train.init_from
    if (steps >= FEW_STEPS and batch_size <= num_rows) or is_asked_for:
        return ""
    fitting = max(1, min(num_rows * epochs // FEW_STEPS, num_rows))
    digits = 10 ** (len(str(fitting)) - 1)
    is_few = steps < FEW_STEPS
    return (
        f"the training takes {steps:,} step(s) in all, {f'fewer than {FEW_STEPS}' if is_few else 'each on all rows'}: "
        f"{num_rows:,} training rows, train.batch_size={batch_size}, train.epochs={epochs}; set train.batch_size="
        f"{fitting // digits * digits} or less{', or more train.epochs' if is_few else ''}"
        f"{'' if config.train.auto else ', or train.auto=true (configs/auto.yaml), which finds both by the rows'}"
    )


def report_finished(finished: RunIsFinishedError) -> int:
    """Log that the run is finished already. Return the exit status that its training had."""
    log.info("%s", finished)
    useless_because = read_state(finished.path).get(USELESS_BECAUSE, "")
    return _warn_of_useless(useless_because) if useless_because else 0


def _warn_of_useless(reason: str) -> int:
    log.warning("warning: the training did not learn: %s; its checkpoints are kept; try smaller learning rates", reason)
    return DID_NOT_LEARN


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Write the messages that are logged inside the `with` block to the file `path`, too."""
    log_file = logging.FileHandler(path, encoding="utf-8")
    log_file.setFormatter(PrintableFormatter("%(asctime)s %(message)s"))
    logging.getLogger().addHandler(log_file)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(log_file)
        log_file.close()


def can_try_crosses(schema: Schema, most: float) -> bool:
    """Return True if the data has valid rows and two or more categorical fields that crosses (fields that combine other
    fields) could combine, but no cross, and if its training rows times the pairs of fields are at most `most`.
    """
    can_cross = schema.layout != "zoo" and not any(field.cross for field in schema.categorical)
    tried = schema.splits["train"].rows * math.comb(len(schema.categorical), 2)
    return can_cross and 0 < tried <= most and schema.splits["valid"].rows > 0


def advise_crosses(folder: Path, schema: Schema, is_first: bool) -> None:
    """Log the best cross of two fields and how much it lowers the log loss of a regression, if this takes few seconds
    and this process is the `is_first` of its group. Otherwise log the command that finds the crosses.
    """
    if is_first and can_try_crosses(schema, MOST_TRIED):
        with suppress(ValueError):
            log.info(run_module("data_prep", "suggest-crosses", str(folder), "--top", "1").rstrip())
            return
    command = python_command(f"data_prep suggest-crosses {shlex.quote(str(folder))}")
    log.info("crosses of two fields may rank rows better; find those that lower the log loss with: %s", command)


def _train(context: RunContext, launch: Launch) -> int:
    """Train, write the run's status and report into the run's folder, and return the exit status."""
    exit_status, run = 0, context.run
    try:
        (launch.make_trainer or Trainer)(context, launch.backend).train()
        peaks = [*context.group.gather(peak_memory()), *context.group.rpc("peak_memory")]
        used = ", ".join(number_text(peak, "bytes") for peak in peaks)
        log.info("memory used at most: %s; expected: %s", used, number_text(total(launch.memory.rank), "bytes"))
        # The trainer is part of reference cycles. Free its tables now, because the report below takes memory, too.
        gc.collect()
        give_back_freed_memory()
    except Stopped as stopped:
        exit_status = stopped.exit_status
        run.set_status("stopped")
        log.info("stopped after saving: %s; run the same command to resume", stopped)
    except DamagedCheckpointError:
        # A new run has no checkpoint of its own yet, so the damaged one belongs to the model that the run starts from.
        if run.plan.checkpoint is None:
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
        elif context.config.train.auto and can_try_crosses(context.schema, math.inf):
            advise_crosses(context.dataset, context.schema, is_first=context.group.rank == 0)
    # An online run writes a page of its own in place of the report, because it has none of the evaluations that the
    # report shows.
    unwritten = [*run.write_errors(), *([] if launch.make_trainer else leave_report(run.path))]
    if unwritten:
        log.error("error: could not write %s", ", ".join(unwritten))
        return NOT_WRITTEN
    return exit_status
