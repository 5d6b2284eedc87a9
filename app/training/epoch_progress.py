"""Report the progress of an epoch: progress bar, loss.log and metrics.jsonl."""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from app.checkpoint.manifest import Position
from app.distributed.process_group import shows_progress
from app.run.folder import RunFolder
from app.training.context import Callback
from app.training.learning_rates import LearningRates
from app.training.step.step import Losses
from common.console import progress_bar


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
