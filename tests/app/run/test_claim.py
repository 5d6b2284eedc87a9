"""Actions of a launch: new, resume, continue, or put the old run aside."""

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest
import yaml

from app.checkpoint.manifest import read_manifest, write_manifest
from app.checkpoint.retention import whole_checkpoints
from app.run.claim import RunIsFinishedError, check_launch, check_name, open_run, rank_folder
from app.run.decision import Plan, make_plan, settings_of_run
from app.run.folder import RunFolder, run_checkpoints
from app.run.identity import data_identity, first_difference, identity
from app.training.warm_start.source import find_source
from common import settings
from common.files import lock_folder
from tests.app.run.conftest import save_checkpoint, state_of


def test_the_first_run_is_new_and_described(start, tiny_config, tiny_schema):
    run = start("train.epochs=2")
    assert (run.plan.kind, run.plan.reason) == ("new", "there is no run yet")
    assert run.path.name == "device_0"
    assert run.log_path.name == "test_deep0.log"
    written = yaml.safe_load((run.path / "config.yaml").read_text())
    assert written == settings.as_dict(tiny_config("train.epochs=2"))
    state = state_of(run)
    assert (state["status"], state["epochs"]) == ("running", 2)
    assert {"command", "commit", "versions", "python", "machine"} <= state.keys()
    assert state["identity"] == identity(tiny_config(), tiny_schema)


def test_the_folders_above_a_run_are_made(tmp_path, tiny_config, tiny_schema):
    run, lock = open_run(tmp_path / "a" / "b/c", tiny_config(), tiny_schema, asked=tiny_config())
    lock.close()
    assert (run.path, run.path.is_dir()) == (tmp_path / "a/b/c", True)


@pytest.mark.parametrize("status", ["running", "failed"])
def test_an_unfinished_run_is_resumed_from_its_newest_checkpoint(start, status):
    start(steps=(2, 10), status=status)
    run = start()
    assert run.plan.kind == "resume"
    assert run.plan.checkpoint.path.name == "step-00000010"
    assert state_of(run)["status"] == "running"


@pytest.mark.parametrize(
    "free",
    [
        "train.epochs=7",
        "train.log_every_steps=1",
        "train.profile=true",
        "checkpoint.every_steps=3",
        "eval.bootstrap=10",
        "device.threads=1",
        "prepare.workers=3",
    ],
)
def test_what_changes_no_step_may_differ(start, free):
    start(steps=(2,))
    assert start(free).plan.kind == "resume"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ("train.seed=2", "train.seed was 1, is 2"),
        ("train.batch_size=100", "train.batch_size was 500, is 100"),
        ("model.hidden_widths=[8]", r"model.hidden_widths was [32, 16], is [8]"),
        ("loss.l2_coef=0", "loss.l2_coef was 8e-05, is 0.0"),
        ("device.precision=bfloat16", "device.precision was 'float32', is 'bfloat16'"),
        ("tables.backend=reference", "tables.backend was 'auto', is 'reference'"),
    ],
)
def test_a_different_run_is_put_aside_and_the_difference_logged(start, tmp_path, changed, reason):
    start(steps=(2,))
    run = start(changed)
    assert run.plan.kind == "new"
    assert run.plan.reason == f"the run there differs: {reason}"
    assert whole_checkpoints(tmp_path / "device_0.1" / "checkpoints")
    assert not whole_checkpoints(run.path / "checkpoints")


def test_a_launch_that_resumes_nothing_chooses_anew(tmp_path, tiny_config, tiny_schema):
    path, asked = tmp_path / "device_0", "device.precision=auto"
    _, claim = open_run(path, tiny_config("device.precision=bfloat16"), tiny_schema, asked=tiny_config(asked))
    claim.close()
    found = [
        settings_of_run(path, tiny_config(asked, f"train.resume={word}"), tiny_schema) for word in ("auto", "never")
    ]
    assert [config.device.precision for config in found] == ["bfloat16", "auto"]


def test_an_automatic_run_of_other_epochs_is_new_and_the_reason_is_logged(start):
    of_epochs = {number: f"tower_optimizer.schedule={{name: cosine, decay_steps: {number}000}}" for number in (2, 3)}
    start("train.auto=true", "train.epochs=2", of_epochs[2], steps=(2,))
    found = "the run there differs: tower_optimizer.schedule.decay_steps was 2000, is 3000"
    why = "so the run there, of 2, is not the beginning of one of 3"
    assert start("train.auto=true", "train.epochs=2", of_epochs[3], steps=(2,)).plan.reason == found
    reason = start("train.auto=true", "train.epochs=3", of_epochs[2]).plan.reason
    assert reason.startswith("the run there differs: tower_optimizer.schedule.decay_steps") and reason.endswith(why)


def test_an_automatic_run_of_other_data_is_new_and_the_data_are_named_beside_what_follows_from_them(
    tmp_path, tiny_config, tiny_schema
):
    path, other = (
        tmp_path / "device_0",
        dataclasses.replace(tiny_schema, vocabulary_size=tiny_schema.vocabulary_size + 1),
    )
    _, claim = open_run(path, tiny_config("train.auto=true"), tiny_schema)
    claim.close()
    for schema, words in ((other, "; the prepared data differ from that run's"), (tiny_schema, "")):
        reason = make_plan(path, tiny_config("train.auto=true", "loss.l2_coef=0"), schema).reason
        assert reason.startswith("the run there differs: loss.l2_coef was 8e-05, is 0.0" + words)
        assert ("the prepared data" in reason) == bool(words)


def test_evaluations_that_a_learning_rate_waits_for_are_part_of_the_run(start):
    plateau = "deep_optimizer.schedule={name: plateau}"
    start(plateau, steps=(2,))
    assert start(plateau, "eval.bootstrap=10").plan.kind == "resume"
    run = start(plateau, "eval.every_steps=5")
    assert run.plan.reason == "the run there differs: eval.every_steps was 0, is 5"


def other_transform(schema):
    first = dataclasses.replace(schema.numeric[0], transform="max", parameters={"max": 5.0})
    return dataclasses.replace(schema, numeric=(first, *schema.numeric[1:]))


def other_vocabulary(schema):
    return dataclasses.replace(schema, vocabulary_size=10**6)


def other_rows(schema):
    fewer = dataclasses.replace(schema.splits["train"], files=schema.splits["train"].files[:1])
    return dataclasses.replace(schema, splits={**schema.splits, "train": fewer})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_transform, "data.numeric.I1.parameters.max was None, is 5.0"),
        (other_vocabulary, "data.vocabulary_size was [0-9]+, is 1000000"),
        (other_rows, "data.train_files was"),
    ],
)
def test_other_data_is_another_run(start, tiny_schema, change, reason):
    start(steps=(2,))
    plan = start(schema=change(tiny_schema)).plan
    assert plan.kind == "new"
    assert re.search(reason, plan.reason)


def test_a_run_without_a_checkpoint_starts_anew(start, tmp_path):
    start(status="failed")
    assert start().plan.reason == "the run there has no whole checkpoint"
    assert (tmp_path / "device_0.1").is_dir()


@pytest.mark.parametrize("content", ["", "[]", '{"status": "run', '{"status": "stopped"}'])
@pytest.mark.parametrize("epochs_done", [0, 1])
def test_checkpoints_make_up_for_a_damaged_run_json(start, tmp_path, content, epochs_done):
    """A power cut leaves it empty; one that is there in parts knows nothing of the run."""
    run = start(steps=(2, 10), epochs_done=epochs_done)
    (run.path / "run.json").write_text(content)
    note = r" \(device_0/run\.json is damaged: taken from step-00000010\)"
    if epochs_done:
        with pytest.raises(RunIsFinishedError, match=f"all 1 epochs are done{note}"):
            start()
    else:
        plan = start().plan
        assert (plan.kind, plan.checkpoint.path.name) == ("resume", "step-00000010")
        assert re.search(note, plan.reason)
        assert state_of(run)["status"] == "running"
    assert [path.name for path in tmp_path.iterdir()] == ["device_0"]


def test_without_run_json_another_run_s_checkpoints_stay_its_own(start):
    (start(steps=(2,)).path / "run.json").unlink()
    plan = start("train.seed=2").plan
    assert plan.kind == "new"
    reason = "the run there differs: train.seed was 1, is 2 (device_0 has no run.json: taken from step-00000002)"
    assert plan.reason == reason


def test_a_damaged_run_json_without_checkpoints_is_named(start, tmp_path):
    (start().path / "run.json").write_text("")
    assert start().plan.reason == "device_0/run.json is damaged, and it has no whole checkpoint"
    assert (tmp_path / "device_0.1").is_dir()


def test_the_status_is_written_whatever_became_of_run_json_meanwhile(start):
    run = start(steps=(2,))
    (run.path / "run.json").write_text("")
    run.set_status("stopped")
    assert start().plan.reason == "unfinished, same settings and data"


@pytest.mark.parametrize("version", [2, 99])
def test_a_run_of_another_format_is_refused(start, tmp_path, version):
    run = start(steps=(2,))
    (run.path / "run.json").write_text(json.dumps({**state_of(run), "format_version": version}))
    said = rf"run\.json has format version {version}, this program reads 3 to 4; continue .*, or begin a new one with "
    with pytest.raises(ValueError, match=said):
        start()
    assert [path.name for path in tmp_path.iterdir()] == ["device_0"]


def test_a_folder_that_is_no_run_is_put_aside(start, tmp_path):
    (tmp_path / "device_0").mkdir()
    (tmp_path / "device_0" / "notes.txt").write_text("mine")
    assert start().plan.reason == "device_0 has no run.json, and it has no whole checkpoint"
    assert (tmp_path / "device_0.1" / "notes.txt").read_text() == "mine"


def test_a_run_is_put_aside_under_the_next_free_number(start, tmp_path):
    for seed in (2, 3, 4):
        start(f"train.seed={seed}", steps=(2,))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["device_0", "device_0.1", "device_0.2"]


@pytest.mark.parametrize("words", [(), ("train.resume=require",), ("checkpoint.keep_last=1",)])
def test_a_finished_run_is_reported_and_left_as_it_is(start, tmp_path, tiny_config, tiny_schema, words):
    start(steps=(2,), status="finished", epochs_done=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    said = "the run in .*device_0 is finished: all 1 epochs are done; .* train.resume=never starts a new run"
    with pytest.raises(RunIsFinishedError, match=said):
        start(*words)
    with pytest.raises(RunIsFinishedError, match=said):
        check_launch(tmp_path / "device_0", tiny_config(*words), tiny_schema, pytest.fail)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert start("train.resume=never").plan.reason == "train.resume=never"


def test_more_epochs_continue_a_finished_run_and_fewer_do_not(start):
    start("train.epochs=2", steps=(2,), status="finished", epochs_done=2)
    run = start("train.epochs=5", steps=(5,), epochs_done=5)
    assert (run.plan.kind, run.plan.reason) == ("continue", "the run there finished 2 epochs of 5")
    run.set_status("finished")
    plan = start("train.epochs=4").plan
    assert (plan.kind, plan.reason) == ("new", "the run there finished 5 epochs, 4 are wanted")


def test_steps_end_a_run_and_more_or_none_continue_it(start):
    start("train.epochs=2", "train.steps=12", steps=(12,), status="finished")
    with pytest.raises(RunIsFinishedError, match="all 12 steps are done"):
        start("train.epochs=2", "train.steps=12")
    for steps in (30, 0):
        run = start("train.epochs=2", f"train.steps={steps}")
        reason = "the run there ended after step 12, in epoch 1 of 2"
        assert (run.plan.kind, run.plan.reason) == ("continue", reason)
        run.set_status("finished")
    plan = start("train.epochs=2", "train.steps=5").plan
    assert (plan.kind, plan.reason) == ("new", "the run there finished 12 steps, 5 are wanted")


@pytest.mark.parametrize("status", ["stopped", "finished"])
@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (["train.epochs=1"], "the run there finished 2 epochs, 1 are wanted"),
        (["train.epochs=2"], "the run there went on to step 12, in epoch 3, 2 are wanted"),
        (["train.epochs=5", "train.steps=11"], "the run there finished 12 steps, 11 are wanted"),
    ],
)
def test_a_run_that_went_further_than_is_wanted_is_not_its_beginning(
    start, tiny_config, tiny_schema, status, wanted, reason
):
    run = start("train.epochs=5", "train.steps=20")
    save_checkpoint(run.path / "checkpoints", 12, run.config, tiny_schema, epochs_done=2, epoch_step=2)
    run.set_status(status)
    plan = start(*wanted).plan
    assert (plan.kind, plan.reason, plan.checkpoint) == ("new", reason, None)


def test_a_run_that_stopped_early_is_finished_until_its_patience_is_more(start, tiny_schema):
    overrides = ("train.epochs=9", "eval.patience=2", "eval.metric=auc")
    run = start(*overrides, status="finished")
    manifest = save_checkpoint(run.path / "checkpoints", 5, run.config, tiny_schema, epochs_done=3)
    selection = {"metric": "auc", "best": 0.7, "best_step": 3, "reference": 0.7, "since_reference": 2, "last_step": 5}
    write_manifest(manifest, dataclasses.replace(read_manifest(manifest), selection=selection))
    older = json.dumps({**state_of(run), "format_version": 3})  # The default was auc, so nobody had to name it.
    for words, state in ((overrides, None), (overrides[:2], older)):
        (run.path / "run.json").write_text(state or json.dumps(state_of(run)))
        with pytest.raises(RunIsFinishedError, match=r"it stopped early: auc on valid has not risen above 0\.700000"):
            start(*words)
    plan = start("train.epochs=9", "eval.patience=3").plan
    assert (plan.kind, plan.reason) == ("continue", "the run there finished 3 epochs of 9")


def test_resume_require_is_refused_if_nothing_can_be_resumed(start, tmp_path):
    with pytest.raises(ValueError, match=r"require, but .*device_0 cannot be resumed: there is no run yet"):
        start("train.resume=require")
    assert list(tmp_path.iterdir()) == []
    start(steps=(2,))
    with pytest.raises(ValueError, match=r"cannot be resumed: the run there differs: train\.seed was 1, is 2"):
        start("train.resume=require", "train.seed=2")
    assert start("train.resume=require").plan.kind == "resume"


def test_two_trainings_cannot_use_one_folder(start, tmp_path):
    with lock_folder(start(steps=(2,)).path):
        for overrides in ((), ("train.seed=2",)):
            with pytest.raises(ValueError, match=r"another process trains in .*device_0; wait for it"):
                start(*overrides)
    assert [path.name for path in tmp_path.iterdir()] == ["device_0"]
    assert start().plan.kind == "resume"


def test_a_run_holds_its_lock(tmp_path, tiny_config, tiny_schema):
    _, lock = open_run(tmp_path / "device_0", tiny_config(), tiny_schema)
    with lock, pytest.raises(ValueError, match="another process trains in"):
        open_run(tmp_path / "device_0", tiny_config(), tiny_schema)


def eval_line(step, split="valid"):
    return f"epoch: 1 step: {step} split: {split} rows: 9, auc is 0.5"


def test_what_was_logged_after_the_checkpoint_is_forgotten(start):
    run = start(steps=(2,))
    run.append_losses([f"epoch: 1 step: {step}, wide_loss is 0.5, deep_loss is 0.6" for step in range(1, 5)])
    for step in (1, 2, 3):
        run.append_metrics(step=step, wide_loss=0.5)
        run.append_eval(eval_line(step))
        run.write_evaluation({"split": "valid", "step": step})
    for path, cut in ((run.metrics_path, '{"step": 2'), (run.eval_path, "epoch: 1 step: 1 spl")):
        with path.open("a") as file:
            file.write(cut)
    resumed = start()
    losses = resumed.loss_path.read_text().splitlines()
    assert [line.split(",")[0] for line in losses] == ["epoch: 1 step: 1", "epoch: 1 step: 2"]
    assert [json.loads(line)["step"] for line in resumed.metrics_path.read_text().splitlines()] == [1, 2]
    assert resumed.eval_path.read_text().splitlines() == [eval_line(1)]  # step 2 was saved, not evaluated
    assert [path.name for path in (resumed.path / "evaluations").iterdir()] == ["valid-step-00000001.json"]


def test_curves_that_cannot_be_written_do_not_end_the_run(start, caplog):
    run = start()
    (run.path / "evaluations").write_text("in the way")
    run.write_evaluation({"split": "valid", "step": 7})
    assert "error: no curves of step 7: " in caplog.text
    assert run.write_errors() == ["the curves of 1 evaluation(s)"]


def test_undefined_metrics_are_null(start):
    run = start()
    run.append_metrics(step=1, auc=float("nan"), split="valid", log_loss=0.25)
    line = json.loads(run.metrics_path.read_text(), parse_constant=pytest.fail)
    assert (line["auc"], line["split"], line["log_loss"]) == (None, "valid", 0.25)


def test_a_checkpoint_folder_of_the_user_s_own(start, tmp_path, tiny_config, tiny_schema):
    """Relative to where the run was started, found by `evaluate`, and never shared by two runs."""
    overrides = ("checkpoint.dir=kept",)
    run = start(*overrides)
    save_checkpoint(tmp_path / "kept", 2, tiny_config(*overrides), tiny_schema)
    assert run_checkpoints(run.path) == tmp_path / "kept"
    assert start(*overrides).plan.kind == "resume"
    with pytest.raises(ValueError, match=r"a new run starts \(.* train\.seed .*\), but checkpoint\.dir=.*kept holds"):
        start(*overrides, "train.seed=2")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["device_0", "kept"]
    assert start("checkpoint.dir=other", "train.seed=2").plan.kind == "new"


def damage_manifest(path):
    (path / "manifest.json").write_text((path / "manifest.json").read_text().replace('"step": 10', '"step": 99'))


def damage_array_file(path):
    os.truncate(path / "dense.safetensors", 5)


def make_newer(path):
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"format_version": 4', '"format_version": 6'))


def make_foreign(path):
    manifest = read_manifest(path)
    config = {**manifest.config, "model": {**manifest.config["model"], "embedding_dim": 99}}
    write_manifest(path, dataclasses.replace(manifest, config=config))


UNUSABLE = [
    (damage_manifest, r"manifest\.json is damaged: checksum xxh3:\w+, expected xxh3:\w+"),
    (damage_array_file, r"dense\.safetensors has 5 bytes, expected \d+"),
    (make_newer, "has format version 6, this program reads 4 to 5;"),
    (make_foreign, "step-00000010 is of another run: model.embedding_dim was 99, is 8"),
]


@pytest.mark.parametrize(("damage", "reason"), UNUSABLE)
def test_the_next_older_whole_checkpoint_is_taken_and_the_newer_kept_aside(start, damage, reason):
    """With train.resume=require the older one is offered instead."""
    run = start(steps=(2, 10))
    damage(run.path / "checkpoints" / "step-00000010")
    with pytest.raises(ValueError, match=f"{reason}.*; train.resume=auto resumes from .*step-00000002"):
        start("train.resume=require")
    assert (run.path / "checkpoints" / "step-00000010").is_dir()
    plan = start().plan
    assert (plan.kind, plan.checkpoint.path.name) == ("resume", "step-00000002")
    (refused,) = plan.refused.values()
    assert re.search(reason, refused)
    names = sorted(path.name for path in (run.path / "checkpoints").glob("step-*"))
    assert names == ["step-00000002", "step-00000010.refused.1"]
    assert start().plan.refused == {}


def test_two_runs_cannot_save_to_one_folder(start, tmp_path, tiny_config, tiny_schema):
    with open_run(tmp_path / "device_0", tiny_config("checkpoint.dir=shared"), tiny_schema)[1]:
        (tmp_path / "elsewhere").mkdir()
        config = tiny_config("checkpoint.dir=../shared")
        with pytest.raises(ValueError, match=r"another process .* saves to .*shared; .* another checkpoint\.dir"):
            open_run(tmp_path / "elsewhere" / "device_0", config, tiny_schema)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_checkpoint_folder_that_cannot_be_written_is_refused_at_once(start, tmp_path):
    """/proc, as no folder is read-only to root."""
    with pytest.raises(OSError, match=r"nothing can be written to .*/proc/self/kept: .*; .* another checkpoint\.dir"):
        start("checkpoint.dir=/proc/self/kept")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_whose_replacement_was_cut_short_gets_its_name_back(start):
    path = start(steps=(2,)).path / "checkpoints" / "step-00000002"
    path.rename(path.with_suffix(".replaced"))
    path.with_suffix(".partial").mkdir()
    assert start().plan.checkpoint.path == path
    assert list(path.parent.glob("step-*")) == [path]


def test_first_difference_goes_by_key_and_in_order():
    assert first_difference({"a": {"b": 1}}, {"a": {"b": 1}}) is None
    assert first_difference({"config": {"b": 1, "a": [1]}}, {"config": {"b": 2, "a": [2]}}) == "a was [1], is [2]"
    assert first_difference({"a": 1}, {"a": 1, "b": 2}) == "b was None, is 2"


def test_the_rank_names_the_folder_s_log(tmp_path, tiny_config):
    assert RunFolder(tmp_path, 3, Plan("new", "", None), tiny_config()).log_path.name == "test_deep3.log"


def test_a_file_in_the_run_folder_s_place_is_named(start, tmp_path):
    (tmp_path / "device_0").write_text("mine")
    with pytest.raises(FileExistsError, match="device_0 is a file, expected a run's folder; move it away"):
        start()
    assert (tmp_path / "device_0").read_text() == "mine"


def displaced_start(start, monkeypatch, tmp_path, steps=()):
    """Start a run with the model of device_0, as `train.init_from=device_0` says."""
    monkeypatch.chdir(tmp_path)
    return start("train.init_from=device_0", steps=steps, find_source=lambda: find_source(Path("device_0")).path)


def test_the_model_of_the_run_that_is_put_aside_is_followed(start, tmp_path, monkeypatch):
    start(steps=(2, 10))
    run = displaced_start(start, monkeypatch, tmp_path)
    moved = "device_0.1/checkpoints/step-00000010"
    assert run.plan.kind == "new"
    assert run.config.train.init_from == moved
    assert find_source(Path(moved)).path == Path(moved)
    assert state_of(run)["asked"] == {"train.init_from": "device_0"}


def test_the_same_command_resumes_the_run_that_displaced_its_source(start, tmp_path, monkeypatch):
    start(steps=(2,))
    displaced_start(start, monkeypatch, tmp_path, steps=(4,))
    for _ in range(2):
        run = displaced_start(start, monkeypatch, tmp_path)
        assert (run.plan.kind, run.plan.checkpoint.path.name) == ("resume", "step-00000004")
        assert run.config.train.init_from == "device_0.1/checkpoints/step-00000002"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["device_0", "device_0.1"]


def test_the_same_command_before_the_first_checkpoint_begins_with_the_same_model(start, tmp_path, monkeypatch):
    start(steps=(2,))
    displaced_start(start, monkeypatch, tmp_path)
    run = start(
        "train.init_from=device_0", find_source=lambda: Path("device_0.1/checkpoints/step-00000002"), steps=(4,)
    )
    assert run.plan.reason == "the run there has no whole checkpoint"
    assert run.config.train.init_from == "device_0.1/checkpoints/step-00000002"
    assert displaced_start(start, monkeypatch, tmp_path).plan.kind == "resume"


def test_a_source_in_a_checkpoint_folder_of_the_user_s_own_stays(
    start, tmp_path, tiny_config, tiny_schema, monkeypatch
):
    start("checkpoint.dir=kept")
    save_checkpoint(tmp_path / "kept", 2, tiny_config("checkpoint.dir=kept"), tiny_schema)
    assert displaced_start(start, monkeypatch, tmp_path).config.train.init_from == "kept/step-00000002"


def test_a_source_elsewhere_is_left_as_it_was_given(start, tmp_path):
    start(steps=(2,))
    run = start("train.init_from=device_0.7", find_source=lambda: tmp_path / "device_0.7")
    assert run.config.train.init_from == "device_0.7"
    assert state_of(run)["asked"] == {}


def test_a_run_of_another_name_is_renamed_alone(tmp_path, tiny_config, tiny_schema):
    (tmp_path / "device_1").mkdir()
    for seed in (1, 2):
        run, lock = open_run(tmp_path / "mine", tiny_config(f"train.seed={seed}"), tiny_schema)
        lock.close()
    assert run.path == tmp_path / "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["device_1", "mine", "mine.1"]


def test_a_run_of_another_name_takes_its_ranks_along(start, tmp_path, tiny_config, tiny_schema):
    """A name's ranks are numbered beside it, and a new run of fewer ranks puts the others aside, as device_<rank>."""
    names = ("wide.rank1", "wide.rank2", "wide.ranking", "wider.rank3", "device_2")
    assert [rank_folder(tmp_path / "wide", rank).name for rank in (0, 1)] == ["wide", "wide.rank1"]
    assert [rank_folder(tmp_path / "device_0", rank).name for rank in (0, 1)] == ["device_0", "device_1"]
    for seed in (1, 2):
        _, lock = open_run(tmp_path / "wide", tiny_config(f"train.seed={seed}"), tiny_schema)
        lock.close()
        for name in names if seed == 1 else ():
            (tmp_path / name).mkdir()
    aside = {"wide", "wide.1", "wide.rank1.1", "wide.rank2.1"}
    assert {path.name for path in tmp_path.iterdir()} == aside | set(names[2:])


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/tmp", "-x", "device_1", "server_0", "a.rank1", "a.server0", "a.1"]
)
def test_names_that_no_run_may_have(name):
    with pytest.raises(ValueError, match=f"--name '{re.escape(name)}': expected a name for a folder"):
        check_name(name)


@pytest.mark.parametrize("name", ["device_0", "wide", "größe 8", "2026-11-24", "lr=1e-3", "rank1", "a.b"])
def test_names_that_a_run_may_have(name):
    check_name(name)


def test_a_folder_that_is_no_run_is_not_renamed_for_a_name(tmp_path, tiny_config, tiny_schema):
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "schema.json").write_text("mine")
    for call in (check_launch, open_run):
        with pytest.raises(FileExistsError, match=r"prepared is no run's folder: it has no run.json, and holds schema"):
            call(tmp_path / "prepared", tiny_config(), tiny_schema, find_source=lambda: None)
    assert [path.name for path in tmp_path.rglob("*")] == ["prepared", "schema.json"]


@pytest.mark.parametrize("quantiles", [(), ((0.5, 0.1), (2.0, 0.9))])
def test_the_data_s_identity_is_the_same_after_it_was_saved(tiny_schema, quantiles):
    fields = [dataclasses.replace(field, quantiles=quantiles) for field in tiny_schema.numeric]
    identity = data_identity(dataclasses.replace(tiny_schema, numeric=tuple(fields)))
    assert json.loads(json.dumps(identity)) == identity
