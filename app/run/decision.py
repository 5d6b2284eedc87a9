"""Decide whether a launch (one start of a training) begins a new run, resumes the existing one if it is unfinished, or
continues it if it is finished. Nothing is changed on disk.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.checkpoint.manifest import Manifest, what_and_advice
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import step_folders, whole_checkpoints
from app.config.config import Config, EvalOptions
from app.evaluation.selection import Selection
from app.run.identity import FORMAT_VERSION, OLDEST_VERSION, added, difference, identity, kept_settings, section_of
from common import settings
from common.files import check_format_version, parse_json
from data_prep.prepared.schema import Schema

STATE_FILE = "run.json"

ASKED = "asked"  # Key in run.json of the settings whose values in the run differ from those that the user asked for.


@dataclass(frozen=True)
class Plan:
    """What a launch (one start of a training) does with the run folder (`kind`), the reason, and the checkpoint that it
    resumes from.

    `checkpoint` is None if training starts at step 0.
    """

    # What to do with the run folder: new, resume, continue (a finished run for more epochs) or finished (nothing).
    kind: str
    reason: str
    checkpoint: Checkpoint | None
    # Checkpoints that are newer than `checkpoint` but cannot be used, each with the reason.
    refused: dict[Path, str] = field(default_factory=dict)


def make_plan(path: Path, config: Config, schema: Schema, damaged: Mapping[Path, str] | None = None) -> Plan:
    """Return what a training with the settings `config` and the data of `schema` must do with the run folder `path`.

    `damaged` maps checkpoints that proved damaged when they were loaded to the reason (`find_newest`). Raise ValueError
    if `train.resume=require` finds nothing to resume, or if run.json has a format version that this release cannot
    read.
    """
    resume = config.train.resume
    if resume == "never" and path.exists():
        return Plan("new", "train.resume=never", None)
    plan = _plan_from_state(path, config, schema, damaged)
    if resume == "require" and plan.kind == "new":
        reasons = "; ".join([plan.reason, *plan.refused.values()])
        raise ValueError(f"train.resume=require, but {path} cannot be resumed: {reasons}")
    if resume == "require" and plan.checkpoint and plan.refused:
        raise ValueError(
            f"train.resume=require, but the newest checkpoint cannot be used: {next(iter(plan.refused.values()))}; "
            f"train.resume=auto resumes from {plan.checkpoint.path}"
        )
    return plan


def _plan_from_state(path: Path, config: Config, schema: Schema, damaged: Mapping[Path, str] | None) -> Plan:
    if not path.exists():
        return Plan("new", "there is no run yet", None)
    folder = checkpoint_folder(path, config)
    state, note = _known_state(path, folder)
    if not state:
        return Plan("new", note, None)
    here = identity(config, schema)
    if changed := difference(state["identity"], here):
        why = _of_other_data(state, config, here) or _of_other_epochs(state, config, changed)
        return Plan("new", f"the run there differs: {changed}{why}{note}", None)
    newest, refused = find_newest(folder, here, damaged)
    if newest is None:
        return Plan("new", f"the run there has no whole checkpoint{note}", None, refused)
    kind, reason = _what_is_left(state, config, schema, newest.manifest)
    return Plan(kind, reason + note, None if kind == "new" else newest, refused)


def _of_other_data(state: Mapping[str, Any], config: Config, here: dict[str, Any]) -> str:
    """Return a clause for the message that a run cannot be resumed because its settings differ from the new ones. The
    clause says that they differ because the prepared data differ. Return "" if that is not the reason.

    It is the reason if the data differ and `train.auto`, which chooses settings by the data, is on.
    """
    if not config.train.auto or not difference({**here, "data": state["identity"]["data"]}, here):
        return ""
    return "; the prepared data differ from that run's, and train.auto chooses settings by them"


def _of_other_epochs(state: Mapping[str, Any], config: Config, setting: str) -> str:
    """Return a clause for the message that a run cannot be resumed because its learning-rate schedule differs from the
    new one. The clause says that it differs because the number of epochs differs. Return "" if that is not the reason.

    It is the reason if `train.auto` is on, which derives a schedule's `decay_steps` from the number of epochs.
    """
    if not config.train.auto or "decay_steps" not in setting or state["epochs"] == config.train.epochs:
        return ""
    return (
        f"; train.auto lets the learning rates fall within the epochs, so the run there, of {state['epochs']}, is not "
        f"the beginning of one of {config.train.epochs}"
    )


def _what_is_left(state: Mapping[str, Any], config: Config, schema: Schema, manifest: Manifest) -> tuple[str, str]:
    """Return what must be done with a run that has the settings and data of the new training: the kind of the plan
    (new, resume, continue or finished) and the reason.

    `manifest` is that of the run's newest checkpoint. The kind depends on how the step and the epoch of this checkpoint
    compare with the numbers of steps and epochs in `config`.
    """
    epochs, done_epochs = config.train.epochs, manifest.epoch - 1  # `done_epochs` counts whole epochs.
    steps, done_steps = config.train.steps, manifest.step
    # Each epoch of an online run is a part (file) of a log that never ends, so the run never finishes.
    if manifest.online:
        return "resume", "unfinished, same settings and data"
    if epochs == done_epochs and manifest.epoch_step:
        return "new", f"the run there went on to step {done_steps}, in epoch {manifest.epoch}, {epochs} are wanted"
    if epochs < done_epochs:
        return "new", f"the run there finished {done_epochs} epochs, {epochs} are wanted"
    if 0 < steps < done_steps:
        return "new", f"the run there finished {done_steps} steps, {steps} are wanted"
    if state["status"] != "finished":
        return "resume", "unfinished, same settings and data"
    selection = Selection(config.eval, schema.splits["valid"].files)
    selection.load_state(manifest.selection)
    if selection.is_over:
        return "finished", f"it stopped early: {selection.reason}"
    if steps == done_steps:
        return "finished", f"all {steps} steps are done"
    if epochs > done_epochs and manifest.epoch_step:
        return "continue", f"the run there ended after step {done_steps}, in epoch {manifest.epoch} of {epochs}"
    if epochs > done_epochs:
        return "continue", f"the run there finished {done_epochs} epochs of {epochs}"
    return "finished", f"all {epochs} epochs are done"


def _known_state(path: Path, checkpoints: Path) -> tuple[dict[str, Any], str]:
    """Return the state of the run in `path` as run.json holds it (status, epochs, identity: settings and data), and a
    note.

    If run.json is missing or damaged, the state is made from the newest whole checkpoint, and the note says so;
    otherwise the note is "". Without any whole checkpoint the state is empty. Raise ValueError if run.json has a format
    version that this release cannot read.
    """
    state = read_state(path)
    if "format_version" in state:
        advice = "continue the run with the release that began it, or begin a new one with train.resume=never"
        check_format_version(path / STATE_FILE, state["format_version"], FORMAT_VERSION, advice, OLDEST_VERSION)
    parts = state.get("identity")
    if isinstance(parts, dict) and {"config", "data"} <= parts.keys() and {"status", "epochs"} <= state.keys():
        return state, ""
    what = f"{path.name} has no {STATE_FILE}"
    if (path / STATE_FILE).exists():
        what = f"{path.name}/{STATE_FILE} is damaged"
    whole = whole_checkpoints(checkpoints)
    if not whole:
        return {}, f"{what}, and it has no whole checkpoint"
    manifest = whole[-1].manifest
    epochs = manifest.config["train"]["epochs"]
    status = "finished" if manifest.epoch > epochs else "stopped"
    began = {"config": kept_settings(manifest.config), "data": manifest.data}
    note = f" ({what}: taken from {whole[-1].path.name})"
    return {"status": status, "epochs": epochs, "identity": began}, note


def settings_of_run(path: Path, config: Config, schema: Schema) -> Config:
    """Return `config` changed so that a launch can resume the run in `path`. Return `config` itself if no launch can.

    If an older release began the run, settings that were added since get the values that describe how that release
    behaved. The setting eval.metric, whose default has changed, keeps the run's value, unless `config` sets another
    value than the default. If the run started from a model in the folder of an older run that was then renamed,
    `train.init_from` gets the new path of that model.
    """
    if config.train.resume == "never" or not path.exists():
        return config
    state, _ = _known_state(path, checkpoint_folder(path, config))
    if not state:
        return config
    began, here = state["identity"]["config"], identity(config, schema)["config"]
    asked: dict[str, Any] = state.get(ASKED, {})
    changes: dict[str, Any] = {}
    for setting, value in added():
        of_any_variant = re.sub(r"\[\w+\]", "", setting)
        *names, key = of_any_variant.split(".")
        section = functools.reduce(getattr, names, config)
        is_older = _get(began, setting) is None or of_any_variant in asked
        if is_older and _get(here, setting) is not None and getattr(section, key) == getattr(type(section)(), key):
            _set(changes, of_any_variant, value)
    whole = whole_checkpoints(checkpoint_folder(path, config)) if state.get("format_version") == OLDEST_VERSION else []
    if whole and config.eval.metric == EvalOptions.metric:
        changes["eval"] = {"metric": whole[-1].manifest.config["eval"]["metric"]}
    for setting, value in asked.items():
        if _get(here, setting) == value:
            _set(changes, setting, _get(began, setting))
    resumed = settings.merge(config, changes, where=str(path / STATE_FILE))
    return config if difference(state["identity"], identity(resumed, schema)) else resumed


def is_run_of(path: Path, config: Config, schema: Schema) -> bool:
    """Return True if a training with the settings `config` would resume the run in `path`, or find it finished."""
    state = {} if config.train.resume == "never" else _known_state(path, checkpoint_folder(path, config))[0]
    resumed = settings_of_run(path, config, schema)
    return bool(state) and difference(state["identity"], identity(resumed, schema)) is None


def asked_otherwise(asked: Config, config: Config) -> dict[str, Any]:
    """Return the settings for which the run uses another value than the user asked for.

    `asked` are the settings that the user gave, and `config` those of the run. The result maps the full name of each
    differing setting to the value in `asked`.
    """
    values = settings.flatten(settings.as_dict(config))
    asked_values = settings.flatten(settings.as_dict(asked))
    return {path: value for path, value in asked_values.items() if values.get(path) != value}


def describe_kept(asked: Config, config: Config) -> list[str]:
    """Return a sentence for each setting whose value in the run differs from the one that the user asked for.

    Settings for which the user asked for "auto" are left out.
    """
    has = settings.flatten(settings.as_dict(config))
    why = {"train.init_from": "the run there was renamed"}
    return [
        f"{path} is {has[path]!r} in this run, not {value!r}: {why.get(path, 'an older release began it so')}"
        for path, value in asked_otherwise(asked, config).items()
        if value != "auto"
    ]


def _get(sections: dict[str, Any], setting: str) -> Any:
    """Return the value of `setting` (a full name such as `train.epochs`) in `sections`, which maps each section to its
    settings. Return None if the setting is missing.
    """
    # `section_of` adds missing sections to its argument, so pass it a copy.
    section, key = section_of(copy.deepcopy(sections), setting)
    return section.get(key)


def _set(sections: dict[str, Any], setting: str, value: Any) -> None:
    section, key = section_of(sections, setting)
    section[key] = value


def checkpoint_folder(run_path: Path, config: Config) -> Path:
    """Return the folder of a run's checkpoints. A relative `checkpoint.dir` is relative to the working
    directory from which the run is launched."""
    return run_path.parent / config.checkpoint.dir if config.checkpoint.dir else run_path / "checkpoints"


def read_state(path: Path) -> dict[str, Any]:
    """Return the content of run.json in the run folder `path`, or {} if the file is missing or damaged."""
    try:
        state = parse_json((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def find_newest(
    folder: Path, identity: dict[str, Any], damaged: Mapping[Path, str] | None
) -> tuple[Checkpoint | None, dict[Path, str]]:
    """Find the newest usable checkpoint in `folder` that belongs to the run with this `identity` (settings and data).

    Return the checkpoint, or None, and for each newer checkpoint the reason why it cannot be used.

    `damaged` holds checkpoints that proved damaged when they were loaded, with the reason. If it is given, only
    manifests and file sizes are checked, because loading checks the rest. If it is None, every byte is read.
    """
    refused: dict[Path, str] = {}
    for path in reversed(step_folders(folder)):
        try:
            if damaged and path in damaged:
                raise ValueError(damaged[path])
            checkpoint = Checkpoint.open(path)
            checkpoint.verify(sizes_only=damaged is not None)
            manifest = checkpoint.manifest
            if changed := difference({"config": manifest.config, "data": manifest.data}, identity):
                raise ValueError(f"{path} is of another run: {changed}")
        except (ValueError, OSError) as error:
            # The message of the error advises to remove the checkpoint. Leave the advice out, because the training will
            # rename the checkpoint instead.
            refused[path], _ = what_and_advice(error)
        else:
            return checkpoint, refused
    return None, refused
