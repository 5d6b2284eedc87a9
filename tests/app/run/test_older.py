"""The upgrade of older runs, with settings patched in as added or removed."""

import json

import pytest

from app.checkpoint.manifest import write_manifest
from app.checkpoint.retention import whole_checkpoints
from app.config.config import Config
from app.config.optimizer_settings import FtrlOptions
from app.run import identity as older_runs
from app.run.decision import describe_kept
from app.run.folder import best_of_run, run_config
from app.run.identity import ignored, read_config, upgraded
from common import settings
from common.settings import Removed


def change_configs(run, change):
    """Let `change` alter the configuration in run.json and in the manifests of a run's checkpoints."""
    state = json.loads((run / "run.json").read_text())
    change(state["identity"]["config"])
    (run / "run.json").write_text(json.dumps(state))
    for checkpoint in whole_checkpoints(run / "checkpoints"):
        change(checkpoint.manifest.config)
        write_manifest(checkpoint.path, checkpoint.manifest)


@pytest.fixture
def as_if_added(monkeypatch, start, tiny_config):
    """A stopped run as if `path` had come after it, and runs before it had done `value`."""

    def make(path, value, section, key):
        monkeypatch.setattr(type(getattr(tiny_config(), section)), "ADDED", {key: value}, raising=False)
        assert (path, value) in older_runs.added()
        change_configs(start(steps=(7,), status="stopped").path, lambda config: config[section].pop(key))

    return make


def test_a_later_setting_has_its_default_if_older_runs_behaved_so(as_if_added, start, tiny_config):
    as_if_added("loss.label_smoothing", 0.0, "loss", "label_smoothing")
    opened = start()
    assert (opened.plan.kind, opened.plan.refused) == ("resume", {})
    assert opened.config == tiny_config()


@pytest.mark.parametrize(
    ("path", "section", "key", "value"),
    [
        ("loss.label_smoothing", "loss", "label_smoothing", 0.25),
        ("wide_optimizer[ftrl].initial_accumulator", "wide_optimizer", "initial_accumulator", 0.5),
    ],
)
def test_a_resumed_run_keeps_to_what_its_release_did(as_if_added, start, tiny_config, path, section, key, value):
    """Today's default is another one; and again after it was resumed once."""
    as_if_added(path, value, section, key)
    asked = tiny_config()
    for _ in range(2):
        opened = start()
        assert (opened.plan.kind, opened.plan.refused) == ("resume", {})
        assert getattr(getattr(opened.config, section), key) == value
        default = getattr(getattr(asked, section), key)
        said = f"{section}.{key} is {value} in this run, not {default}: an older release began it so"
        assert said in describe_kept(asked, opened.config)


def test_a_later_setting_that_is_asked_for_is_another_run(as_if_added, start):
    as_if_added("loss.label_smoothing", 0.0, "loss", "label_smoothing")
    plan = start("loss.label_smoothing=0.1").plan
    assert (plan.kind, plan.reason) == ("new", "the run there differs: loss.label_smoothing was 0.0, is 0.1")


def test_another_run_has_today_s_default(as_if_added, start):
    as_if_added("loss.label_smoothing", 0.25, "loss", "label_smoothing")
    opened = start("train.seed=2")
    assert (opened.plan.kind, opened.config.loss.label_smoothing) == ("new", 0.0)


def test_a_setting_of_another_optimizer_is_left_alone(monkeypatch):
    monkeypatch.setattr(FtrlOptions, "ADDED", {"power": 2}, raising=False)
    monkeypatch.setattr(Config, "ADDED", {"order": "seeded"}, raising=False)
    sections: dict = {name: {"name": "sgd"} for name in ("wide_optimizer", "deep_optimizer")}
    sections["tables"] = {"dtype": "bfloat16"}
    assert ("wide_optimizer[ftrl].power", 2) in older_runs.added()
    assert upgraded(sections) == sections | {"order": "seeded"}
    assert "order" not in sections


def with_removed_setting(run, value):
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("loss:\n", f"loss:\n  halve: {value}\n"))
    change_configs(run, lambda config: config["loss"].update(halve=value))


def test_a_run_with_a_removed_setting_resumes_if_that_changed_nothing(start, monkeypatch):
    monkeypatch.setattr(Config, "REMOVED", {"loss.halve": Removed("a loss is halved once", 1)})
    run = start(steps=(7,), status="stopped").path
    with_removed_setting(run, 1)
    saved = read_config(best_of_run(run).manifest.config, where="manifest.json")
    assert run_config(run).loss == saved.loss == Config().loss
    assert start().plan.kind == "resume"


def test_a_removed_setting_prevents_resuming_but_not_reading(start, monkeypatch):
    monkeypatch.setattr(Config, "REMOVED", {"loss.halve": Removed("a loss is halved once", 1)})
    run = start(steps=(7,), status="stopped").path
    with_removed_setting(run, 2)
    assert run_config(run).loss == Config().loss
    plan = start().plan
    assert (plan.kind, plan.reason) == ("new", "the run there differs: loss.halve was 2, is None")


def test_a_run_that_split_its_tower_goes_on_without(start, tmp_path):
    """Release 1.0.0 had settings that said where a run computes. Its dense arrays are whole under all of them."""
    run = start(steps=(7,), status="stopped").path
    removed = {"tensor_parallel": 2, "strategies": {"matrix_0": "((1, 2), (2, 1))"}, "recompute": []}
    for checkpoint in whole_checkpoints(run / "checkpoints"):
        path, manifest = checkpoint.path, checkpoint.manifest
        manifest.config["parallel"] = removed
        manifest.config["checkpoint"]["tower_slices"] = True
        write_manifest(path, manifest)
    opened = start()
    assert (opened.plan.kind, opened.plan.refused) == ("resume", {})
    saved = opened.plan.checkpoint.manifest.config
    assert read_config(saved, where="manifest.json") == opened.config
    assert ignored(saved) == ["checkpoint.tower_slices=True", "parallel.tensor_parallel=2"]
    assert ignored(settings.as_dict(opened.config)) == []


def test_default_values_of_removed_settings_are_not_told():
    assert ignored({"parallel": {"tensor_parallel": 1, "recompute": []}, "checkpoint": {"tower_slices": False}}) == []


def test_settings_of_single_fields_are_read_as_prepare_fields():
    sections = {"prepare": {"field_min_count": {"C3": 20}, "field_max_size": {"C3": 900}, "field_max_length": {}}}
    config = read_config(sections, where="config.yaml")
    assert settings.as_dict(config)["prepare"]["fields"]["C3"].items() >= {"min_count": 20, "max_size": 900}.items()
    today = settings.as_dict(config)
    assert upgraded(today)["prepare"] == today["prepare"]
