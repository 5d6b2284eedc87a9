"""`RunContext`: one launch of a run, as every part of a training needs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.config.config import Config
from app.distributed.process_group import ProcessGroup
from app.run.folder import RunFolder
from app.training.stopping import StopRequest
from data_prep.prepared.schema import Schema


@dataclass(frozen=True)
class RunContext:
    """A launch of a run: its settings, its data (`schema` of the prepared folder `dataset`) and its folder.

    `stop` is checked between steps; `group` are the ranks that train.
    """

    config: Config
    dataset: Path
    schema: Schema
    run: RunFolder
    stop: StopRequest
    group: ProcessGroup
