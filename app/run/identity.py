"""Read the settings that a run of any release recorded, and define the identity of a run: the settings that affect its
steps, and the data that it is trained on. No other file knows about older settings.

If you add a setting that changes a run's result, add it to the class attribute `ADDED` of its section, with the value
that describes how the program behaved without the setting. This value may differ from today's default. A resumed run
keeps it, so its arithmetic never changes halfway. If you remove a setting, add it to `app.config.config.Config.REMOVED`
with the value that describes how the program behaves now.
"""

from __future__ import annotations

import copy
import dataclasses
import shlex
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.checkpoint.manifest import Manifest
from app.config.config import Config
from common import settings
from common.packages import python_command
from data_prep.options.prepare_options import RECORDED, fields_as_set
from data_prep.prepared.schema import FIRST_VOCABULARY, CategoricalField, Schema, VectorField, checksum_of

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


# A run can be resumed or continued with other values of the settings in these sections and of these keys, because they
# do not change the steps that the run has already taken.
FREE_SECTIONS = ("prepare", "eval", "checkpoint", "cluster")
FREE_DEVICE_KEYS = ("target", "threads")
FREE_TABLES_KEYS = ("memory_limit", "storage")
FREE_TRAIN_KEYS = ("auto", "epochs", "steps", "log_every_steps", "resume", "profile", "time_limit")
# Settings of section eval that belong to the identity of a run with a plateau schedule: this schedule lowers the
# learning rate after evaluations, so their frequency and metric affect the steps.
PLATEAU_EVAL_KEYS = ("every_steps", "metric", "group_field")
# Key of the vectors in the description of the data (`data_identity`). Descriptions of data without vectors lack this
# key, and so do those that earlier releases wrote.
VECTORS = "vectors"


def identity(config: Config, schema: Schema) -> dict[str, Any]:
    """Return the settings and the description of the data that must not change when a run is resumed or continued."""
    return {"config": kept_settings(settings.as_dict(config)), "data": data_identity(schema)}


def kept_settings(sections: dict[str, Any]) -> dict[str, Any]:
    """Return, by section, the settings that must not change when a run is resumed or continued.

    `sections` are all settings of the run, which an older release may have recorded. The result has the names and
    values that this release gives to them.
    """
    sections = upgraded(sections)
    shared = {name: section for name, section in sections.items() if name not in FREE_SECTIONS}
    free_keys = {"train": FREE_TRAIN_KEYS, "device": FREE_DEVICE_KEYS, "tables": FREE_TABLES_KEYS}
    for section, free in free_keys.items():
        shared[section] = {key: value for key, value in shared[section].items() if key not in free}
    if any(section.get("schedule", {}).get("name") == "plateau" for section in shared.values()):
        shared["eval"] = {key: sections["eval"].get(key) for key in PLATEAU_EVAL_KEYS}
    return shared


def difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """Return the first difference between the identity `old` of a run (of any release) and the identity `new` of the
    training that would resume it, or None. An identity is what `identity` returns.

    Values that an online run added to its vocabulary, or whose ids it removed, do not count as a difference.
    """
    old = {"config": kept_settings(old["config"]), "data": old["data"]}
    if any(len(of["data"].get("vocabulary", ())) > 1 or of["data"].get("expired") for of in (old, new)):
        old, new = (of | {"data": _before_it_grew(of["data"])} for of in (old, new))
    return first_difference(old, new)


def _before_it_grew(data: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `data`, a result of `data_identity`, without what changes when an online run adds or expires
    values.

    The copy has only the checksum of the first vocabulary file, and neither the vocabulary's size nor expired values.
    """
    return data | {"vocabulary": data["vocabulary"][:1], "vocabulary_size": None, "expired": None}


def data_identity(schema: Schema) -> dict[str, Any]:
    """Return what distinguishes the data of one prepared folder from those of another, as values that JSON can store.

    The result describes the vocabulary, the fields and the files of training rows, mostly by checksums.
    """

    def as_json(field: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a field with tuples as lists, because JSON has no tuples."""
        return {key: list(map(list, value)) if isinstance(value, tuple) else value for key, value in field.items()}

    vocabulary = [file.checksum for file in schema.other_files if file.name in schema.vocabulary_files]
    if first := schema.source.get(FIRST_VOCABULARY):
        vocabulary.insert(0, first)
    expired = {"expired": num_expired} if (num_expired := schema.num_expired) else {}
    vectors = {field.name: _vector_meaning(field) for field in schema.vectors}
    return {
        **expired,
        **({VECTORS: vectors} if vectors else {}),
        "vocabulary_size": schema.vocabulary_size,
        "numeric": {field.name: as_json(asdict(field)) for field in schema.numeric},
        "categorical": [field.name for field in schema.categorical],
        "fields": {field.name: _meaning(field, schema) for field in schema.categorical},
        "vocabulary": vocabulary,
        "train_files": [file.checksum for file in schema.splits["train"].files],
    }


def _meaning(field: CategoricalField, schema: Schema) -> dict[str, Any]:
    """Return the properties of a field that determine, together with the vocabulary, which value each of the field's
    ids stands for, such as the range of its out-of-vocabulary ids or the fields that a cross combines.
    """
    return {
        "oov_ids": list(field.oov_ids),
        "is_text": schema.is_text(field),
        "cross": list(field.cross),
        "max_length": field.max_length,
        "pool": field.pool,
    }


def _vector_meaning(field: VectorField) -> dict[str, Any]:
    """Return the properties of a vector column that determine how its cells become inputs of the model: `width`, the
    number of components, `scale`, the way of scaling, and `fitted`.

    `fitted` is a checksum of the training means and deviations with which `scale` "standardize" scales the components.
    It is "" for other ways of scaling.
    """
    fitted = checksum_of({"mean": field.mean, "deviation": field.deviation}) if field.scale == "standardize" else ""
    return {"width": field.width, "scale": field.scale, "fitted": fitted}


def check_same_inputs(manifest: Manifest, schema: Schema, folder: Path) -> None:
    """Raise ValueError unless the ids and numeric columns of the prepared folder `folder` mean the same as those of the
    data on which the checkpoint's model was trained.

    `manifest` is the manifest of the checkpoint, and `schema` is the schema of `folder`.
    """
    keys = ("vocabulary_size", "vocabulary", "numeric", "categorical", "fields")
    # The comparison of mappings ignores the order of their keys, but the model identifies numeric columns and vectors
    # by their order. So the lists of their names are compared, too.
    there, here = (
        {
            **{key: data[key] for key in keys},
            **{key: data.get(key) for key in ("expired", VECTORS)},
            "numeric columns": list(data["numeric"]),
            "vector columns": list(data.get(VECTORS, {})),
        }
        for data in (manifest.data, data_identity(schema))
    )
    changed = first_difference(there, here)
    if changed:
        prepare = python_command(f"data_prep prepare LOG OUTPUT --vocabulary {shlex.quote(manifest.dataset)}")
        raise ValueError(
            f"{folder} does not fit the checkpoint, whose inputs mean something else: {changed}; "
            "give the folder that the run was trained on (--dataset DIR). Rows of another log have the model's ids if "
            f"prepared by: {prepare} (with the same --data). Or score the log by a bundle: "
            f"{python_command('app export RUN BUNDLE')}, then {python_command('app predict BUNDLE LOG SCORES')}"
        )


def first_difference(old: Any, new: Any, where: str = "") -> str | None:
    """Return a description of the first difference between two nested mappings, or None if they are equal.

    Keys are visited in sorted order. The description names the key and both values.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            difference = first_difference(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
            if difference:
                return difference
        return None
    return None if old == new else f"{where.removeprefix('config.')} was {old!r}, is {new!r}"
