"""Upgrade the settings of runs and checkpoints that an older release wrote. No other file knows of older ones.

Add a new setting that changes a run's result (see `app.run.identity`) to `ADDED`, with the value that corresponds to
the program before it, which need not be today's default. A resumed run keeps that value, so its arithmetic never
changes halfway. If you remove a setting, add it to `app.config.removed.REMOVED`, with the value that the program now
behaves as if it had. Keep the config.yaml of a run of each release in tests/app/run, and compare its settings with both
tables there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from app.config.config import Config
from common import settings

# The format of run.json, incremented by each release that adds or removes a setting, and the oldest that is read.
FORMAT_VERSION, OLDEST_VERSION = 4, 3

# By the format that added it: setting -> the value that a run without it had. In a section with variants, the variant's
# `name` stands in brackets: "wide_optimizer[ftrl].power", "deep_optimizer.schedule[cosine].floor".
ADDED: dict[int, dict[str, Any]] = {4: {"tables.dtype": "float32"}}


def upgraded(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a run of any release wrote, by section, with today's keys."""
    result = settings.without_removed(sections, Config.removed)
    for setting, value in added():
        section, key = section_of(result, setting)
        section.setdefault(key, copy.deepcopy(value))
    return result


def added() -> Iterator[tuple[str, Any]]:
    """Yield each setting of `ADDED` with its value."""
    for of_form in ADDED.values():
        yield from of_form.items()


def section_of(sections: dict[str, Any], setting: str) -> tuple[dict[str, Any], str]:
    """Return the section that has a setting, which is made if it is missing, and the setting's key there.

    If the section is of another variant than the setting names, as in "deep_optimizer.schedule[cosine].floor", an
    empty one takes its place.
    """
    *names, key = setting.split(".")
    for name, _, variant in (part.removesuffix("]").partition("[") for part in names):
        sections = sections.setdefault(name, {})
        if variant and sections.get("name") != variant:
            return {}, key
    return sections, key


def read_config(sections: Mapping[str, Any], where: str) -> Config:
    """Return the settings that a run or checkpoint of any release wrote. `where` names the file in errors.

    Raises ValueError for a setting, or a value of one, that is unknown or no longer supported.
    """
    return settings.merge(Config(), upgraded(sections), where=where)
