"""Define `RunContext`, which all parts of a training share: the settings, data, folders and ranks of one launch
(start).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from app.config.config import Config
from app.distributed.process_group import ProcessGroup
from app.run.folder import RunFolder
from app.run.stop_signals import StopRequest
from data_prep.prepared.schema import Schema

# Function that is called with the run's folder and the values of one line of metrics.jsonl: `step`, `epoch` and
# measurements.
Callback: TypeAlias = Callable[[RunFolder, Mapping[str, Any]], object]
LOGS: tuple[Callback, ...] = (RunFolder.write_metrics, RunFolder.write_events)


@dataclass(frozen=True)
class RunContext:
    """What all parts of one launch (start) of a training share: the settings, the data (`schema` of the prepared folder
    `dataset`) and the run folder.

    `stop` is checked between steps, and raises `Stopped` after SIGINT or SIGTERM, or at the time limit. `group` are the
    ranks (processes) that train. The functions in `on_step` are called every `train.log_every_steps` steps with
    measurements of these steps (`EpochProgress.flush`), those in `on_evaluation` after each evaluation on the split
    valid.
    """

    config: Config
    dataset: Path
    schema: Schema
    run: RunFolder
    stop: StopRequest
    group: ProcessGroup
    on_step: tuple[Callback, ...] = LOGS
    on_evaluation: tuple[Callback, ...] = LOGS
