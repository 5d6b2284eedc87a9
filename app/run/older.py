"""Upgrade the settings of runs and checkpoints that an older release wrote. No other file knows about older settings.

If you add a setting that changes a run's result (see `app.run.identity`), add it to the class attribute `ADDED` of its
section, with the value that describes how the program behaved without the setting. This value may differ from today's
default. A resumed run keeps it, so its arithmetic never changes halfway. If you remove a setting, add it to
`app.config.config.Config.REMOVED` with the value that describes how the program behaves now.
"""

from __future__ import annotations

import copy
import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from app.config.config import Config
from common import settings
from data_prep.options.prepare_options import RECORDED, fields_as_set

# Format version of run.json, and the oldest version that this release can read. A release that adds or removes a
# setting increments the version.
FORMAT_VERSION, OLDEST_VERSION = 4, 3

# Removed settings, with their defaults, whose only effect was to choose the devices or ranks that compute a run. If an
# earlier release began a run with such settings, this release resumes the run without them.
WITHOUT_EFFECT: dict[str, Any] = {
    "checkpoint.tower_slices": False,
    "parallel.tensor_parallel": 1,
    "parallel.strategies": {},
    "parallel.strategy_file": "",
    "parallel.optimizer_shards": False,
    "parallel.recompute": [],
    "parallel.pipeline_stages": 1,
    "parallel.second_stage": "",
    "parallel.micro_batches": 4,
    "parallel.search_mode": "none",
    "parallel.optimizer_level": "level1",
}


def upgraded(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded settings of a run of any release, by section, converted to the settings of this release.

    Removed settings are dropped (`without_removed`), and settings that were added since get their values in `added`.
    """
    result = settings.without_removed(sections, Config.REMOVED)
    for setting, value in added():
        section, key = section_of(result, setting)
        section.setdefault(key, copy.deepcopy(value))
    prepare = result.get("prepare", {})
    if of_fields := fields_as_set(prepare):
        prepare["fields"] = of_fields
    for name in RECORDED:  # Drop the settings of earlier releases that the setting prepare.fields has replaced.
        prepare.pop(name, None)
    return result


def ignored(sections: Mapping[str, Any]) -> list[str]:
    """Return the settings without effect in this release (`WITHOUT_EFFECT`) that an older run had set to another value
    than their default.

    Each is a text `section.key=value`.
    """
    values = WITHOUT_EFFECT | settings.flatten(dict(sections))
    return [f"{name}={values[name]}" for name, default in WITHOUT_EFFECT.items() if values[name] != default]


def added(section_class: type = Config, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name of each setting that a later release added, and the value of a run that lacks the setting.

    Both come from the class attribute `ADDED` of the settings class `section_class` and of the sections within it.
    `before` is put before each name. If a section has variants, the name contains the variant's `name` in brackets, as
    in "wide_optimizer[ftrl].power" or "deep_optimizer.schedule[cosine].floor".
    """
    for key, value in getattr(section_class, "ADDED", {}).items():
        yield f"{before}{key}", value
    for name, hint in settings.type_hints(section_class).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from added(hint, f"{before}{name}.")
        elif isinstance(hint, types.UnionType):
            for variant in (each for each in typing.get_args(hint) if hasattr(each, "name")):
                yield from added(variant, f"{before}{name}[{variant.name}].")


def section_of(sections: dict[str, Any], setting: str) -> tuple[dict[str, Any], str]:
    """Return the section that contains a setting, and the setting's key in it. Create missing sections in `sections`.

    If the setting belongs to a variant (as in "deep_optimizer.schedule[cosine].floor") that the section does not have,
    return an empty section that is not part of `sections`.
    """
    *names, key = setting.split(".")
    for name, _, variant in (part.removesuffix("]").partition("[") for part in names):
        sections = sections.setdefault(name, {})
        if variant and sections.get("name") != variant:
            return {}, key
    return sections, key


def read_config(sections: Mapping[str, Any], where: str) -> Config:
    """Return the settings that a run or checkpoint of any release wrote. `where` names the file in error messages.

    Removed settings are left out, whatever their values were, because they only decided how the run trained, and a run
    that differs in them is not resumed (`app.run.identity.difference`). Removed settings of learning-rate schedules
    (the bounds of the schedule plateau) remain an error: with the optimizer `adam`, embedding rows that no batch had
    still have to take past steps, which are computed with the learning rates of the schedule.

    Raise ValueError for a setting or a value that is unknown or no longer supported.
    """
    without_effect = {
        name: dataclasses.replace(gone, value=settings.ANY_VALUE)
        for name, gone in Config.REMOVED.items()
        if ".schedule." not in name
    }
    return settings.merge(Config(), settings.without_removed(upgraded(sections), without_effect), where=where)
