"""Combine a checkpoint with the settings of its run and with a prepared data folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.checkpoint.manifest import MANIFEST
from app.checkpoint.read import Checkpoint
from app.config.config import Config
from app.run.identity import check_same_inputs, read_config
from app.training.validate import check_group_field
from common import yaml_settings
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
