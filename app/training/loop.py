"""Run the training loop: fetch a batch, take a step, log, evaluate and save.

`EpochProgress` shows and logs the progress of an epoch. `KernelProfile` measures kernels for `train.profile=true`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from app.checkpoint.manifest import Position
from app.config.device import records_dropped
from app.distributed.process_group import shows_progress
from app.evaluation.measure import Scorer, measure, one_line
from app.evaluation.metrics import Metrics, NothingToMeasureError, as_score
from app.evaluation.results import Measurement, content_of
from app.evaluation.selection import Selection
from app.run.folder import OP_TIMES, PROFILE_FOLDER, PROFILED_STEPS, RunFolder
from app.run.stop_signals import Stopped
from app.tables.interface import FTRL, LAZY_ADAM, LOOKUP, UniqueIds
from app.training.assemble import assemble
from app.training.context import Callback, RunContext
from app.training.learning_rates import LearningRates
from app.training.saving import CheckpointManager
from app.training.step.step import Losses, TrainStep
from app.training.warm_start.take_over import warm_start
from common.console import progress_bar
from data_prep.prepared.batches import Batch, mean_training_weight, num_batches, read_batches, training_order
from data_prep.prepared.prefetch import Prefetcher

log = logging.getLogger(__name__)

TIMES_FILE = "cpu_op_execute_timestamp_*.txt"


class Trainer:
    """Trains one run: continues from its checkpoint, or from the first step, to the last epoch."""

    def __init__(self, context: RunContext, backend: str) -> None:
        """Load the checkpoint of the run to resume, or take over the model at `train.init_from` in a new run.

        `backend` is the name of the implementation of the tables: native, reference or stock (`pick_backend`).
        """
        self.context, self.config, self.schema, self.run = context, context.config, context.schema, context.run
        self.training = assemble(self.config, self.schema, backend, context.group, self.run.path)
        if decay := self.config.train.ema_decay:
            log.info("evaluations are of the running mean of the weights (train.ema_decay=%g)", decay)
        log.info("the tower runs as %s", "native kernels" if self.training.step.is_native else "MindSpore's graph")
        self.profile = KernelProfile(self.training.step, self.run.path / PROFILE_FOLDER)
        self.position = Position()
        self.mean_weight = mean_training_weight(context.dataset, self.schema)
        self.epoch_steps = num_batches(self.schema, "train", self.config.train.batch_size)
        self.selection = Selection(self.config.eval, self.schema.splits["valid"].files)
        # True once the log has said how many rows belong to no group of `eval.group_field`, so that it says so only
        # once.
        self._has_remarked = False
        # Metrics on the split valid of the model at `position`, or None if it was not evaluated there.
        self.metrics: Metrics | None = None
        self.checkpoints = CheckpointManager(context, self.training, self.selection)
        if self.run.plan.checkpoint is not None:
            self.position = self.checkpoints.restore(self.run.plan.checkpoint)
        elif self.config.train.init_from:
            warm_start(self.training, self.config, self.schema, context.dataset, context.group)

    def train(self) -> None:
        """Train the remaining epochs, with evaluations, and save checkpoints.

        After SIGINT or SIGTERM, or at the time limit, save the state and raise Stopped. Raise FloatingPointError,
        naming the step, if a step produces NaN or infinity; that step changes nothing. Raise NotSavedError if the last
        state cannot be saved.
        """
        try:
            if self.config.train.init_from and self.position.step == 0 and self.schema.splits["valid"].rows:
                measured = self._measure()
                # Log the metrics of the model before the first step, but do not pass them to `selection`. This model is
                # the one at `train.init_from`, so it must not count as the best model of this run.
                if measured is not None:
                    log.info("before the first step: %s", self._log_evaluation(measured.metrics, epoch=0))
            while self.position.epoch <= self.config.train.epochs and not self.selection.is_over:
                self._train_epoch()
                if self._has_all_steps and self.position.epoch_step < self.epoch_steps:
                    break
                if not self.selection.is_over:
                    self._evaluate()
                    self.position = Position(self.position.step, self.position.epoch + 1, 0)
                    self.checkpoints.save(self.position, self.metrics)
            if self.selection.is_over:
                log.info("stopped early: %s", self.selection.reason)
                self.run.append_metrics(step=self.position.step, stopped_early=self.selection.reason)
            self._finish()
        except Stopped:
            self._finish()
            raise
        finally:
            self.checkpoints.close()

    @property
    def _has_all_steps(self) -> bool:
        return 0 < self.config.train.steps <= self.position.step

    def _train_epoch(self) -> None:
        position, limit = self.position, self.config.train.steps
        end = min(self.epoch_steps, position.epoch_step + limit - position.step) if limit else self.epoch_steps
        step, log_every = self.training.step, self.config.train.log_every_steps
        rates, on_step = self.training.learning_rates, self.context.on_step
        progress = EpochProgress(self.run, position, end, log_every, step.seconds, rates, on_step)
        with Prefetcher(self._prepared_batches()) as batches, progress:
            # This training may resume one that was stopped during the evaluation at this position (step and epoch). So
            # first repeat the evaluation and the save that are due here.
            self._evaluate_and_save(progress)
            for num_rows, batch, unique in batches:
                if self.selection.is_over or self._has_all_steps:
                    return
                self.context.stop.check()
                losses = self._take_step(batch, unique)
                progress.add(self.position, losses, num_rows, batches.waited_seconds)
                if self.config.train.profile:
                    self.profile.after_step()
                self._evaluate_and_save(progress)

    def _prepared_batches(self) -> Iterator[tuple[int, Batch, UniqueIds]]:
        """Yield the remaining batches of the epoch, each with the number of rows read, and with its distinct ids.

        The batch has only the rows with a weight above 0. The first value of each tuple counts all rows that were read.
        """
        options, position = self.config.train, self.position
        order = training_order(self.schema, options.seed, position.epoch)
        dataset, size = self.context.dataset, options.batch_size
        for batch in read_batches(dataset, self.schema, "train", order, size, first_batch=position.epoch_step):
            counting = batch.rows_that_count(self.mean_weight)
            yield batch.num_rows, counting, self.training.step.prepare(counting, will_change=True)

    def _take_step(self, batch: Batch, unique: UniqueIds) -> Losses:
        try:
            losses = self.training.step(batch, unique)
        except FloatingPointError as error:
            at = f"epoch {self.position.epoch} step {self.position.epoch_step + 1}"
            raise FloatingPointError(f"{at}: not finite: {error}") from error
        self.position = self.position.after_step()
        self.metrics = None
        return losses

    def _evaluate_and_save(self, progress: EpochProgress) -> None:
        """Evaluate and save between two steps of an epoch, if the settings ask for it after this step.

        The model is also saved if the evaluation shows that it is the best so far. At the end of an epoch nothing is
        done.
        """
        if not 0 < self.position.epoch_step < self.epoch_steps:
            return
        every, step = self.config.eval.every_steps, self.position.step
        is_best, is_due = False, bool(every and step % every == 0)
        if (is_due or self._has_all_steps) and step != self.selection.last_step:
            with progress.paused():
                is_best = self._evaluate(is_extra=not is_due)
        # The best model must be saved now, because the next step changes it.
        save_best = is_best and self.config.checkpoint.keep_best > 0
        if save_best or (self.checkpoints.saved != self.position and self.checkpoints.is_due(step)):
            with progress.paused():
                self.checkpoints.save(self.position, self.metrics)

    def _evaluate(self, is_extra: bool = False) -> bool:
        """Evaluate the model on the split valid, log the result, and lower learning rates that have a plateau schedule.

        Return True if the model is the best so far, otherwise False, also if there is nothing to evaluate. `is_extra`
        marks an evaluation that takes place only because `train.steps` ends the training; patience and learning rates
        ignore it.
        """
        step, epoch = self.position.step, self.position.epoch
        if not self.schema.splits["valid"].rows:
            log.warning("the data has no rows in split 'valid': epoch %d is not evaluated", epoch)
            return False
        measured = self._measure()
        if measured is None:
            return False
        self.metrics = measured.metrics
        line = self._log_evaluation(self.metrics, epoch)
        self.run.write_evaluation(content_of("valid", step, epoch, measured))
        log.info(line)
        if measured.groups is not None and measured.groups.remark and not self._has_remarked:
            log.warning("warning: metrics per value of %s: %s", measured.groups.field, measured.groups.remark)
            self._has_remarked = True
        is_best = self.selection.update(self.metrics, step, is_extra)
        if is_extra:
            return is_best
        metric = self.config.eval.metric
        value = as_score(metric, dataclasses.asdict(self.metrics)[metric])
        for fall in self.training.learning_rates.after_evaluation(metric, value, step):
            log.info("step %d: %s", step, fall)
            self.context.group.rpc("learning_rates", self.training.learning_rates.state())
        return is_best

    def _measure(self) -> Measurement | None:
        """Score the split valid and return its metrics. Return None, with a warning, if no labelled row has a weight
        above 0.
        """
        scorer, group_field = Scorer(self.training.step.prepare, self._score), self.config.eval.group_field
        data = (self.context.dataset, self.schema, "valid", self.config.train.batch_size)
        try:
            with self.training.optimizers.means_as_weights():
                return measure(scorer, *data, group_field, show_progress=shows_progress())
        except NothingToMeasureError as error:
            log.warning("warning: the model is not evaluated on split 'valid': %s", error)
            return None

    def _score(self, batch: Batch, unique: UniqueIds) -> np.ndarray:
        # A signal may interrupt an evaluation. When the training is resumed, it repeats the evaluation.
        self.context.stop.check()
        return self.training.step.score(batch, unique)

    def _log_evaluation(self, metrics: Metrics, epoch: int) -> str:
        """Write metrics of the split valid as a line of eval.log, pass them to `on_evaluation`, and return the line."""
        line = one_line("valid", epoch, self.position.step, metrics)
        self.run.append_eval(line)
        values = {"step": self.position.step, "epoch": epoch, "split": "valid", **dataclasses.asdict(metrics)}
        for call in self.context.on_evaluation:
            call(self.run, values)
        return line

    def _finish(self) -> None:
        if self.config.train.profile:
            self.profile.finish()
        self.checkpoints.finish(self.position, self.metrics)


class EpochProgress:
    """Shows an epoch's progress bar, writes a line of loss.log for each step, and calls the user's callbacks
    `on_step`.
    """

    def __init__(
        self,
        run: RunFolder,
        position: Position,
        epoch_steps: int,
        log_every_steps: int,
        seconds: dict[str, float],
        learning_rates: LearningRates,
        on_step: tuple[Callback, ...],
    ) -> None:
        """`seconds` has the total time in seconds that each part of a step (lookup, tower, update) has taken so far.
        Each step adds to its values.
        """
        self._on_step = (*on_step, self._show)
        self._run = run
        self._log_every_steps = log_every_steps
        self._bar = progress_bar(
            total=epoch_steps,
            initial=position.epoch_step,
            desc=f"epoch {position.epoch}",
            unit="step",
            disable=not shows_progress(),
        )
        self._seconds = seconds
        self._seconds_before = dict(seconds)
        self._learning_rates = learning_rates
        self._lines: list[str] = []
        self._rows = 0
        self._waited = 0.0
        self._since = time.perf_counter()
        self._last: tuple[Position, Losses, float] | None = None

    def __enter__(self) -> EpochProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
        self._bar.close()

    def add(self, position: Position, losses: Losses, rows: int, waited_seconds: float) -> None:
        """Record the step that ended at `position`, for the progress bar and the logs. `rows` is the number of rows
        that were read for it.

        `waited_seconds` is the total time that the epoch has waited for batches so far.
        """
        wide_loss, deep_loss = np.float32(losses.wide_loss), np.float32(losses.deep_loss)
        # Lines of loss.log have the form in which MindSpore's tutorial prints losses.
        place = f"epoch: {position.epoch} step: {position.epoch_step}"
        self._lines.append(f"{place}, wide_loss is {wide_loss!s}, deep_loss is {deep_loss!s}")
        self._rows += rows
        self._last = (position, losses, waited_seconds)
        self._bar.update()
        if position.epoch_step % self._log_every_steps == 0:
            self.flush()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of the `with` block, such as an evaluation, as time of the training steps. Call `flush`
        before the block.
        """
        self.flush()
        yield
        self._since = time.perf_counter()

    def flush(self) -> None:
        """Write the steps since the last flush to loss.log, and call each of `on_step` with the values of these steps.

        The values are the losses and learning rates of the last step, mean times and speed, and the memory in use.
        """
        if self._last is None:
            return
        position, losses, waited = self._last
        seconds = time.perf_counter() - self._since
        speed, wait_share = self._rows / seconds, (waited - self._waited) / seconds
        parts = {part: self._seconds[part] - before for part, before in self._seconds_before.items()}
        self._seconds_before = dict(self._seconds)
        # Resident pages include the process's private memory and the memory that it shares with other processes.
        resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        self._run.append_losses(self._lines)
        values = {
            "step": position.step,
            "epoch": position.epoch,
            **dataclasses.asdict(losses),
            "samples_per_second": round(speed, 1),
            "wait_share": round(wait_share, 4),
            **{f"{group}_learning_rate": rate for group, rate in self._learning_rates.at(position.step).items()},
            **{f"{part}_ms": round(1000 * spent / len(self._lines), 2) for part, spent in parts.items()},
            "memory_bytes": resident_pages * resource.getpagesize(),
        }
        for call in self._on_step:
            call(self._run, values)
        self._lines, self._rows, self._last = [], 0, None
        self._since, self._waited = time.perf_counter(), waited

    def _show(self, _: RunFolder, values: Mapping[str, Any]) -> None:
        speed, loss = values["samples_per_second"], values["wide_loss"]
        text = f"{speed:,.0f} samples/s, loss {loss:.4f}, waiting {values['wait_share']:.0%}"
        self._bar.set_postfix_str(text, refresh=False)


class KernelProfile:
    """Measures the times of kernels over a few steps, and writes them to `folder` with MindSpore's raw profile.

    Log lines look like `host kernel: EmbeddingLookup costs 3066 us`. The kernels of `stock` run inside MindSpore's
    graph and are timed by MindSpore's profiler. The other backends time their own calls. Profiling slows a step, so it
    is limited to `PROFILED_STEPS` steps. It starts with the second step, because the first one compiles the graph.

    MindSpore's profiler first writes to another folder, because version 2.10 refuses paths with spaces or with
    characters beyond ASCII.
    """

    def __init__(self, step: TrainStep, folder: Path) -> None:
        self._step = step
        self._folder = folder
        # Name and microseconds of each run of a kernel outside the graph.
        self._host_runs: list[tuple[str, float]] = []
        self._profiler: Any = None  # The profiler while it is running, otherwise None.
        self._made_in = Path()
        self._steps = 0

    def after_step(self) -> None:
        """Record the kernel times of the step that was just taken. Call this method after every step."""
        self._steps += 1
        if 1 < self._steps <= 1 + PROFILED_STEPS:
            for kernel, seconds in self._step.kernel_seconds().items():
                log_kernel_time(kernel, 1e6 * seconds)
                self._host_runs.append((kernel, 1e6 * seconds))
        if self._steps == 1:
            self._start()
        elif self._steps == 1 + PROFILED_STEPS:
            self.finish()

    def finish(self) -> None:
        """Stop the profiler and write its results, unless that has been done after `PROFILED_STEPS` steps.

        Call this method after the last step, because a run may have fewer steps than that.
        """
        if self._profiler is None:
            return
        with records_dropped(lambda record: True):
            self._profiler.stop()
        self._profiler = None
        runs = graph_op_times(self._made_in)
        for kernel, micros in runs:
            if kernel in (LOOKUP, FTRL, LAZY_ADAM):
                log_kernel_time(kernel, micros)
        (self._made_in / OP_TIMES).write_text(json.dumps(sum_by_op(runs, self._host_runs)), encoding="utf-8")
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.move(self._made_in, self._folder)

    def _start(self) -> None:
        from mindspore import profiler

        self._made_in = Path(tempfile.mkdtemp(prefix="profile-"))
        # Suppress a warning of the profiler, that it has no warm-up schedule.
        with records_dropped(lambda record: True):
            self._profiler = profiler.profile(
                activities=[profiler.ProfilerActivity.CPU],
                start_profile=False,
                on_trace_ready=profiler.tensorboard_trace_handler(str(self._made_in)),
            )
            self._profiler.start()


def sum_by_op(graph: list[tuple[str, float]], host: list[tuple[str, float]]) -> list[dict[str, Any]]:
    """Return the number of runs and total milliseconds of each operator, slowest first, as dicts for the results file.

    `graph` and `host` list (operator, microseconds) of every run inside and outside the graph.
    """
    times: dict[tuple[str, str], list[float]] = {}
    for where, runs in (("graph", graph), ("host", host)):
        for op, micros in runs:
            times.setdefault((op, where), []).append(micros / 1000)
    sums = [{"op": op, "where": where, "runs": len(ms), "ms": round(sum(ms), 3)} for (op, where), ms in times.items()]
    return sorted(sums, key=lambda each: -each["ms"])


def graph_op_times(folder: Path) -> list[tuple[str, float]]:
    """Read the profile that MindSpore has written to `folder`. Return (operator, microseconds) of every run, in order
    of time.
    """
    # Each line of the profiler's file is `scope/Kernel-op0;side;start_ns,milliseconds,… start_ns,milliseconds,…`.
    runs = []
    for path in folder.rglob(TIMES_FILE):
        for line in path.read_text(encoding="utf-8").splitlines():
            scope, _, times = line.split(";")
            kernel = scope.rsplit("/", 1)[-1].rsplit("-", 1)[0]
            fields = (time.split(",") for time in times.split())
            runs += [(int(start), kernel, 1000 * float(millis)) for start, millis, *_ in fields]
    return [(kernel, micros) for _, kernel, micros in sorted(runs)]


def log_kernel_time(kernel: str, micros: float) -> None:
    """Log the time of a kernel in microseconds, in the form of MindSpore's tutorial."""
    log.info("host kernel: %s costs %.0f us", kernel, micros)
