"""Options of `prepare` from files and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from common import settings, yaml_settings
from common.settings import Removed
from data_prep.options.prepare_options import RECORDED, PrepareOptions, fields_as_set

# `app` checks the other sections of the file.
PREPARE_SECTION = "prepare"
DOWNLOAD_SECTION = "download"
REMOVED = {  # The settings of the section `prepare` that earlier releases had.
    "prepare.block_rows": Removed("a MindRecord sample has 1,000 rows"),
    "prepare.missing_indicator": Removed("numeric fields have indicators, but not in prepare.layout=zoo"),
    "prepare.data.archive_member": Removed("the log in a .tar.gz is its file named train; else unpack it"),
}


def read_data(path: Path) -> dict[str, Any]:
    """Read the log format from a data set's YAML file, without its section `download`.

    Raises ValueError if there is none, as it would silently be Criteo's.
    """
    data = {key: value for key, value in yaml_settings.read_yaml(path).items() if key != DOWNLOAD_SECTION}
    if not data:
        raise ValueError(
            f"{path} does not describe a log's format; expected columns: and what else differs from Criteo's, as in "
            "configs/data/avazu.yaml. For a log in Criteo's format leave --data out"
        )
    return data


@dataclass(frozen=True)
class _Run:
    prepare: PrepareOptions = field(default_factory=PrepareOptions)

    REMOVED: ClassVar[Mapping[str, Removed]] = REMOVED


def read_options(
    yaml_path: Path | None = None, overrides: Iterable[str] = (), data_path: Path | None = None
) -> PrepareOptions:
    """Read the section `prepare` of a run's YAML file, the log format of `data_path`, then `prepare.key=value`.

    Raises ValueError and FileNotFoundError as `yaml_settings.resolve`.
    """
    run = _Run()
    if yaml_path is not None:
        section: Any = yaml_settings.read_yaml(yaml_path).get(PREPARE_SECTION, {})
        run = settings.merge(run, {PREPARE_SECTION: section}, where=str(yaml_path))
    if data_path is not None:
        run = settings.merge(run, {PREPARE_SECTION: {"data": read_data(data_path)}}, where=str(data_path))
    return yaml_settings.override(run, overrides).prepare


def read_recorded(recorded: Mapping[str, Any], where: str) -> PrepareOptions:
    """Return the options that a prepared folder records. `where` names their file in errors (ValueError)."""
    plain = {name: value for name, value in recorded.items() if name not in RECORDED}
    sections = {PREPARE_SECTION: plain | {"fields": fields_as_set(recorded)}}
    return settings.merge(_Run(), settings.without_removed(sections, REMOVED), where=where).prepare
