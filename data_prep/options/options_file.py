"""Read the options of a preparation from YAML files and from the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from common import settings, yaml_settings
from common.settings import Removed
from data_prep.options.prepare_options import RECORDED, PrepareOptions, fields_as_set

# The only section that this module reads from the YAML file with the settings of a training. The package `app` checks
# the other sections.
PREPARE_SECTION = "prepare"
RECIPE = Path("configs/auto.yaml")  # File of the settings for commands and functions to which the user gives none.
DOWNLOAD_SECTION = "download"
# Settings of the section `prepare` that earlier releases had and this release refuses, each with the explanation that
# its error message gives.
REMOVED = {
    "prepare.block_rows": Removed("a MindRecord sample has 1,000 rows"),
    "prepare.missing_indicator": Removed("numeric fields have indicators, but not in prepare.layout=zoo"),
    "prepare.data.archive_member": Removed("the log in a .tar.gz is its file named train; else unpack it"),
}


def read_data(path: Path) -> dict[str, Any]:
    """Read the format of a log from the YAML file that describes the log's data set. Return it as a mapping.

    The section `download` of the file is left out. Raise ValueError if the file has no other content, because the
    result would then silently be Criteo's format.
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
    """Return the options of a preparation, combined from files and the command line.

    Later sources override earlier ones. The sources are, in this order, the section `prepare` of a run's YAML file
    `yaml_path`, the log format in `data_path`, and `overrides` such as `prepare.min_count=2`. Raise FileNotFoundError
    if a file does not exist, and ValueError if a setting is unknown or has a wrong value.
    """
    run = _Run()
    if yaml_path is not None:
        section: Any = yaml_settings.read_yaml(yaml_path).get(PREPARE_SECTION, {})
        run = settings.merge(run, {PREPARE_SECTION: section}, where=str(yaml_path))
    if data_path is not None:
        run = settings.merge(run, {PREPARE_SECTION: {"data": read_data(data_path)}}, where=str(data_path))
    return yaml_settings.override(run, overrides).prepare


def read_recorded(recorded: Mapping[str, Any], where: str) -> PrepareOptions:
    """Return the options of the preparation that wrote a schema.json. `recorded` are the options in that file.

    Settings that a later release has removed are left out. Raise ValueError if an option is unknown or has a wrong
    value. `where` names the file in the message.
    """
    plain = {name: value for name, value in recorded.items() if name not in RECORDED}
    sections = {PREPARE_SECTION: plain | {"fields": fields_as_set(recorded)}}
    return settings.merge(_Run(), settings.without_removed(sections, REMOVED), where=where).prepare
