"""Run folders that older releases left: tests/app/run/kept_runs has them, with the log of the whole run.

They are of `synthesize --rows 3000 --seed 1`, prepared with configs/tiny.yaml and `prepare.min_count=60`, in two epochs
of five steps; one was stopped after step 7. Keep such a pair from each release whose run.json has another form.
"""

import json
import logging
import re
import shutil
from pathlib import Path

import pytest

from app.__main__ import main
from app.checkpoint.manifest import write_manifest
from app.checkpoint.retention import whole_checkpoints
from app.cli.evaluate import saved_config
from app.config.config import Config
from app.run import older as older_runs
from app.run.folder import RunIsFinishedError, best_of_run, check_launch, open_run, run_config
from app.run.identity import difference, identity, kept_settings
from app.run.older import upgraded
from app.run.plan import describe_kept, make_plan, settings_of_run
from common import settings
from data_prep.options.prepare_options import read_options
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import read_schema

KEPT = Path(__file__).parent / "kept_runs"
WORDS = (
    "train.epochs=2",
    "model.embedding_dim=2",
    "model.hidden_widths=[4]",
    "tables.backend=reference",
    "train.log_every_steps=1",
)
THEN = (*WORDS, "wide_optimizer.exact_l1=false", "model.first_layer=direct")  # what the kept runs did


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, tiny_log, project):
    folder = tmp_path_factory.mktemp("kept") / "prepared"
    prepare(
        tiny_log, folder, read_options(project / "configs/tiny.yaml", ["prepare.min_count=60", "prepare.workers=1"])
    )
    return folder


@pytest.fixture(scope="module")
def schema(dataset):
    return read_schema(dataset)


@pytest.fixture
def kept_run(tmp_path):
    """Put one of the kept runs into `tmp_path`, as device_0."""

    def put(name):
        return Path(shutil.copytree(KEPT / name, tmp_path / "device_0"))

    return put


def test_a_stopped_run_of_an_older_release_is_resumed(kept_run, tiny_config, schema):
    plan = make_plan(kept_run("unfinished"), tiny_config(*THEN), schema)
    assert (plan.kind, plan.refused) == ("resume", {})
    assert plan.checkpoint.path.name == "step-00000007"


def test_a_finished_run_of_an_older_release_is_finished(kept_run, tiny_config, schema):
    run = kept_run("finished")
    with pytest.raises(RunIsFinishedError, match="all 2 epochs are done"):
        check_launch(run.parent, tiny_config(*THEN), schema, pytest.fail)
    plan = make_plan(run, tiny_config(*THEN, "train.epochs=3"), schema)
    assert (plan.kind, plan.checkpoint.path.name) == ("continue", "step-00000010")


def test_an_older_run_is_read_with_all_its_settings(kept_run, tiny_config):
    run = kept_run("finished")
    for found in (run_config(run), saved_config(best_of_run(run))):
        assert kept_settings(settings.as_dict(found)) == kept_settings(settings.as_dict(tiny_config(*THEN)))


def test_each_setting_that_decides_a_result_is_known_of_older_runs(tiny_config, schema):
    """If this fails, a setting was added or removed: enter in app/run/older.py the value that runs had before."""
    state = json.loads((KEPT / "finished" / "run.json").read_text())
    here = identity(tiny_config(*WORDS), schema)
    kept = kept_settings(state["identity"]["config"])
    assert paths_of(kept) == paths_of(here["config"])


def paths_of(sections, before=""):
    return {
        path
        for name, value in sections.items()
        for path in (paths_of(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}"})
    }


def test_the_rest_of_an_older_run_ends_as_it_would_have(kept_run, project, dataset, tmp_path, monkeypatch, cpu, caplog):
    """Losses within rounding, as another processor may sum in another order; a changed rule would be far off."""
    run = kept_run("unfinished")
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    words = ["--config", str(project / "configs/tiny.yaml"), "--dataset", str(dataset), *WORDS]
    assert main(["train", *words]) == 0
    assert "Resuming " in caplog.text
    assert "wide_optimizer.exact_l1 is False in this run, not True" in caplog.text
    assert losses_of(run) == pytest.approx(losses_of(KEPT / "finished"), rel=1e-4)
    assert json.loads((run / "run.json").read_text())["format_version"] == older_runs.FORMAT_VERSION
    assert main(["train", *words]) == 0
    assert "is finished: all 2 epochs are done" in caplog.text


def losses_of(run):
    return [float(loss) for loss in re.findall(r"wide_loss is (\S+),", (run / "loss.log").read_text())]


def forget(run, section, key):
    """Make the run one that was begun before there was the setting."""
    state = json.loads((run / "run.json").read_text())
    del state["identity"]["config"][section][key]
    (run / "run.json").write_text(json.dumps(state))
    for checkpoint in whole_checkpoints(run / "checkpoints"):
        path, manifest = checkpoint.path, checkpoint.manifest
        del manifest.config[section][key]
        write_manifest(path, manifest)


@pytest.fixture
def as_if_added(monkeypatch, kept_run):
    """The stopped run as if `path` had come after it, and runs before it had done `value`."""

    def make(path, value, section, key):
        monkeypatch.setitem(older_runs.ADDED, 2, {**older_runs.ADDED[2], path: value})
        run = kept_run("unfinished")
        forget(run, section, key)
        return run

    return make


def launch(run, schema, asked):
    config = settings_of_run(run, asked, schema)
    opened, lock = open_run(run.parent, config, schema, asked=asked)
    lock.close()
    return opened


def test_a_setting_that_came_later_has_its_default_where_that_is_what_runs_did(as_if_added, tiny_config, schema):
    run = as_if_added("loss.label_smoothing", 0.0, "loss", "label_smoothing")
    opened = launch(run, schema, tiny_config(*WORDS))
    assert (opened.plan.kind, opened.plan.refused) == ("resume", {})
    assert opened.config == tiny_config(*THEN)


@pytest.mark.parametrize(
    ("path", "section", "key", "value"),
    [
        ("loss.label_smoothing", "loss", "label_smoothing", 0.25),
        ("wide_optimizer[ftrl].initial_accumulator", "wide_optimizer", "initial_accumulator", 0.5),
    ],
)
def test_a_resumed_run_keeps_to_what_its_release_did(as_if_added, tiny_config, schema, path, section, key, value):
    """Today's default is another one; and again after it was resumed once."""
    run, asked = as_if_added(path, value, section, key), tiny_config(*WORDS)
    for _ in range(2):
        opened = launch(run, schema, asked)
        assert (opened.plan.kind, opened.plan.refused) == ("resume", {})
        assert getattr(getattr(opened.config, section), key) == value
        default = getattr(getattr(asked, section), key)
        said = f"{section}.{key} is {value} in this run, not {default}: an older release began it so"
        assert said in describe_kept(asked, opened.config)


def test_a_later_setting_that_is_asked_for_is_another_run(as_if_added, tiny_config, schema):
    run = as_if_added("loss.label_smoothing", 0.0, "loss", "label_smoothing")
    plan = launch(run, schema, tiny_config(*WORDS, "loss.label_smoothing=0.1")).plan
    assert (plan.kind, plan.reason) == ("new", "the run there differs: loss.label_smoothing was 0.0, is 0.1")


def test_another_run_has_today_s_default(as_if_added, tiny_config, schema):
    run = as_if_added("loss.label_smoothing", 0.25, "loss", "label_smoothing")
    opened = launch(run, schema, tiny_config(*WORDS, "train.seed=2"))
    assert (opened.plan.kind, opened.config.loss.label_smoothing) == ("new", 0.0)


def test_a_setting_of_another_optimizer_is_left_alone(monkeypatch):
    monkeypatch.setitem(older_runs.ADDED, 2, {"deep_optimizer[adam].power": 2, "train.order": "seeded"})
    sections = {"deep_optimizer": {"name": "sgd"}, "train": {"seed": 1}}
    assert upgraded(sections) == {"deep_optimizer": {"name": "sgd"}, "train": {"seed": 1, "order": "seeded"}}
    assert sections["train"] == {"seed": 1}


def with_removed_setting(run, value):
    state = json.loads((run / "run.json").read_text())
    state["identity"]["config"]["loss"]["halve"] = value
    (run / "run.json").write_text(json.dumps(state))
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("loss:\n", f"loss:\n  halve: {value}\n"))
    for checkpoint in whole_checkpoints(run / "checkpoints"):
        path, manifest = checkpoint.path, checkpoint.manifest
        manifest.config["loss"]["halve"] = value
        write_manifest(path, manifest)


def test_a_run_with_a_setting_that_was_removed_goes_on_where_that_changed_nothing(
    kept_run, monkeypatch, tiny_config, schema
):
    monkeypatch.setitem(older_runs.REMOVED, 2, {"loss.halve": 1})
    run = kept_run("unfinished")
    with_removed_setting(run, 1)
    assert run_config(run).loss == saved_config(best_of_run(run)).loss == Config().loss
    assert launch(run, schema, tiny_config(*WORDS)).plan.kind == "resume"


def test_a_run_that_made_use_of_a_setting_that_was_removed_cannot_go_on(kept_run, monkeypatch, tiny_config, schema):
    monkeypatch.setitem(older_runs.REMOVED, 2, {"loss.halve": 1})
    run = kept_run("unfinished")
    with_removed_setting(run, 2)
    plan = launch(run, schema, tiny_config(*WORDS)).plan
    assert (plan.kind, plan.reason) == ("new", "the run there differs: loss.halve was 2, is None")


def test_what_an_older_release_did_not_write_of_the_data_is_no_difference(tiny_config, schema):
    here = identity(tiny_config(), schema)
    older = json.loads(json.dumps(here))
    del older["data"]["vocabulary_size"], older["data"]["numeric"]["I1"]["source"]
    assert difference(older, here) is None
    older["data"]["train_files"] = ["xxh3:0"]
    assert "data.train_files was ['xxh3:0']" in difference(older, here)
