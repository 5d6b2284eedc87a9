"""An online run: each row is trained on once, and whatever stops it, the same command ends with the same bits."""

import errno
import json
import random
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext

import numpy as np
import pytest

from app.checkpoint import write
from app.checkpoint.manifest import read_manifest
from app.checkpoint.retention import step_folders, whole_checkpoints
from app.distributed.process_group import ONE_PROCESS
from app.online import online_trainer
from app.online.online_options import ADMISSION_MIB
from app.online.online_trainer import OnlineTrainer
from app.online.publish import Publisher
from app.run.folder import best_of_run, run_config
from app.scoring.bundle_folder import chains, read_chain, read_manifests
from app.scoring.bundle_folder import read_manifest as read_bundle
from app.scoring.bundle_writer import fold
from app.scoring.predictor import Predictor
from app.scoring.trained import export_bundle
from app.serving.statement import read_trained_parts
from app.training.start import plan_launch
from common.files import checksum, lock_folder
from data_prep.encoding.growing import GrowingVocabulary, open_to_grow
from data_prep.kernels.parsed import Chunk
from data_prep.prepared import data_files
from data_prep.prepared.batches import batches_of
from tests.app.online.conftest import SETTINGS, Online
from tests.checkpoints import load
from tests.damage import flip_bit
from tests.kills import Killed, fails_at, num_kills

STEPS_A_PART = 3


@pytest.fixture(scope="module")
def never_killed(make_online, parts):
    """The folder of a run over three parts that nothing disturbed."""
    folder = make_online("never-killed", parts[:3])
    assert folder.run() == 0
    return folder


def checkpoints_of(folder):
    return {path.name: read_manifest(path) for path in step_folders(folder.path / "online/checkpoints")}


def bundle_bytes(folder):
    """The files of all bundles that a score follows from."""
    return {
        str(path.relative_to(folder.path)): path.read_bytes()
        for path in sorted((folder.path / "bundles").glob("step-*/*"))
        if path.name in ("tables.safetensors", "tower.onnx", "lookup.bin", "golden.parquet")
    }


def metrics_of(folder):
    """The lines of metrics.jsonl on parts."""
    text = (folder.path / "online/metrics.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if "part" in line]


def assert_same_end(folder, expected):
    """Compare all files of checkpoints, and those of bundles, with those of another folder."""
    assert {name: saved.files for name, saved in checkpoints_of(folder).items()} == {
        name: saved.files for name, saved in checkpoints_of(expected).items()
    }
    here, there = bundle_bytes(folder), bundle_bytes(expected)
    assert here.keys() == there.keys()
    assert [name for name in there if here[name] != there[name]] == []
    vocabularies = [
        {path.name: checksum(path) for path in (each.path / "online/prepared").glob("vocabulary*")}
        for each in (folder, expected)
    ]
    assert vocabularies[0] == vocabularies[1]


def trained_by_hand(folder, parts, dataset, schema, work):
    """Train a run's model, with its optimizers' state, by one plain step after the other. Return its parts and the
    sizes of the vocabulary after each part, for which `test_growing` has what they must be.
    """
    from app.training.assemble import assemble
    from app.training.warm_start.take_over import warm_start

    config = run_config(folder.path / "online")
    by_hand = assemble(config, schema, "native")
    warm_start(by_hand, config, schema, dataset, ONE_PROCESS)
    open_to_grow(dataset, work, None)
    vocabulary, sizes = GrowingVocabulary(work, ADMISSION_MIB << 20), [schema.vocabulary_size]
    for part in parts:
        lines = part.read_bytes()
        parsed, encoded = vocabulary.encoder.encode(Chunk(0, lines.count(b"\n"), lines))
        vocabulary.add_values_of([parsed.rows], encoded)
        sizes.append(vocabulary.schema.vocabulary_size)
        by_hand.step.tables.grow(sizes[-1])
        for batch in batches_of(vocabulary.encoder.encode_rows(parsed.rows), config.train.batch_size):
            by_hand.step(batch, by_hand.step.prepare(batch))
    return by_hand, sizes


def test_each_row_is_trained_on_once_in_the_log_s_order(
    never_killed, parts, cpu, tiny_dataset, tiny_schema, assert_same_bits, tmp_path
):
    assert run_config(never_killed.path / "online").deep_optimizer.name == "lazy_adam"
    by_hand, sizes = trained_by_hand(never_killed, parts[:3], tiny_dataset, tiny_schema, tmp_path)
    manifest, state = load(never_killed.path / "online/checkpoints/step-00000009")
    assert_same_bits(state, by_hand.state())
    assert manifest.data["vocabulary_size"] == sizes[-1]
    assert sizes[0] < sizes[1] < sizes[2] < sizes[3]
    new_values = [line["new_values"] for line in metrics_of(never_killed)]
    assert new_values == np.diff(sizes).tolist()
    assert np.diff([line["ids_in_use"] for line in metrics_of(never_killed)]).tolist() == new_values[1:]
    assert min(line["pending_values"] for line in metrics_of(never_killed)) > 0
    assert list(manifest.online["trained"]) == [part.name for part in parts[:3]]


def test_running_statistics_go_on_and_are_published(
    cpu, parts, tiny_config, tiny_dataset, tiny_schema, tmp_path, assert_same_bits
):
    """Batch normalization online, in one launch or in several: it goes on from the statistics of the run."""
    trained = tmp_path / "device_0"
    words = (*SETTINGS, "model.batch_norm=true", "train.batch_size=130")
    assert plan_launch(tiny_config(*words), tiny_dataset, trained).train(cpu) == 0
    one, two = Online(tmp_path / "one", trained), Online(tmp_path / "two", trained)
    for part in parts[:2]:
        one.deliver(part)
        two.deliver(part)
        assert two.run() == 0
    assert one.run() == 0
    assert_same_end(two, one)
    before = load(best_of_run(trained).path)[1]
    start = load(step_folders(one.path / "online/checkpoints")[0])[1]
    state = load(step_folders(one.path / "online/checkpoints")[-1])[1]
    assert_same_bits(state, trained_by_hand(one, parts[:2], tiny_dataset, tiny_schema, tmp_path / "by hand")[0].state())
    for name in (f"tower.running_{of}_{layer}" for of in ("mean", "variance") for layer in (0, 1)):
        np.testing.assert_array_equal(start.dense[name], before.dense[name])
        assert (state.dense[name] != start.dense[name]).any()


def test_moments_of_adam_and_the_floor_of_rates_come_along(never_killed, trained_run):
    source = whole_checkpoints(trained_run / "checkpoints")[-1]
    _, state = load(never_killed.path / "online/checkpoints/step-00000000")
    saved = source.state().tables["deep"]
    moments = saved.read("second_moment", slice(None))
    assert moments.any()
    assert set(state.tables["deep"].arrays) == {"rows", "first_moment", "second_moment"}
    places = np.searchsorted(state.tables["deep"].row_ids, saved.row_ids)
    decay = 0.999 ** (source.manifest.step - saved.read("last_step", slice(None)))
    np.testing.assert_allclose(state.tables["deep"].arrays["second_moment"][places], moments * decay, rtol=0.05)
    config = run_config(never_killed.path / "online")
    assert config.tower_optimizer.schedule.name == "constant"
    assert config.tower_optimizer.learning_rate == pytest.approx(
        0.3 * run_config(trained_run).tower_optimizer.learning_rate
    )


def test_what_is_measured_is_of_the_model_before_the_part(never_killed, parts):
    lines = metrics_of(never_killed)
    assert [line["part"] for line in lines] == [part.name for part in parts[:3]]
    for line, before in zip(lines, ("step-00000000", "step-00000003", "step-00000006"), strict=True):
        rows = parts[lines.index(line)].read_text().splitlines()
        scores = Predictor.open(never_killed.path / "bundles" / before).score(rows)
        labels = np.array([row[0] == "1" for row in rows])
        assert line["calibration"] == pytest.approx(scores.sum() / labels.sum(), rel=1e-5)
        assert 0.5 < line["best_auc"] < 1
    assert ["scores_psi" in line for line in lines] == [False, True, True]
    assert not any("fields_psi" in line for line in lines)  # The parts have too few rows for it.
    shown = read_trained_parts(never_killed.path / "bundles")["parts"]
    assert [(part["part"], part["auc"]) for part in shown] == [(line["part"], line["auc"]) for line in lines]
    assert all(part["lag_seconds"] > 0 for part in shown)
    assert parts[2].name in (never_killed.path / "online/online.html").read_text()
    assert [page.name for page in (never_killed.path / "online").glob("*.html")] == ["online.html"]
    status = json.loads((never_killed.path / "online/status.json").read_text())
    assert status["parts"] == 3
    assert status["last"]["part"] == parts[2].name


def test_a_part_follows_a_bundle_that_a_service_has_folded(make_online, parts, monkeypatch):
    """The trainer removes the deltas that the fold stands for, and must not use them any more."""
    folder, take_part = make_online("folded", parts[:3]), OnlineTrainer._take_part

    def fold_before(trainer, *arguments):
        newest = max(folder.path.glob("bundles/step-*"))
        if read_bundle(newest).parent is not None:
            fold(newest, newest.with_name(f"{newest.name}-folded"))
        take_part(trainer, *arguments)

    monkeypatch.setattr(OnlineTrainer, "_take_part", fold_before)
    assert folder.run("--keep", "1") == 0
    names = [path.name for path, _ in read_chain(folder.path / "bundles/step-00000009")]
    assert names == ["step-00000006-folded", "step-00000009"]
    assert not (folder.path / "bundles/step-00000003").exists()


# Where it is killed, one launch after the other: a function, and at which of its calls.
DEATHS = [
    (write, "write_manifest", 1),  # in the first checkpoint
    (Publisher, "publish", 1),  # before the first bundle
    (export_bundle, "finish", 1),  # in it
    (online_trainer, "read_part", 1),
    (GrowingVocabulary, "_write", 1),  # before its new values are on disk
    (data_files, "write_schema", 1),  # before schema.json names them
    (OnlineTrainer, "_take_new_ids", 1),  # before any step knows them
    (OnlineTrainer, "_take_step", 2),  # in a part
    (write, "write_manifest", 1),  # in its checkpoint
    (Publisher, "publish", 2),  # after its checkpoint: the first call is that of the launch
    (export_bundle, "finish", 1),  # in its bundle
    (OnlineTrainer, "_take_part", 2),  # between parts
    (OnlineTrainer, "_write_status", 1),  # after all
]


WRITES = ("write_manifest", "publish", "finish", "_write", "write_schema", "_write_status")


FULL_DISK = OSError(errno.ENOSPC, "no space left")


@pytest.mark.parametrize(
    "error", [Killed(), pytest.param(FULL_DISK, marks=pytest.mark.slow)], ids=["killed", "full disk"]
)
def test_a_run_that_ends_at_each_boundary_goes_on_to_the_same_bits(error, make_online, never_killed, parts, caplog):
    folder = make_online("ended", parts[:3])
    for owner, name, number in [each for each in DEATHS if isinstance(error, Killed) or each[1] in WRITES]:
        end = pytest.raises(Killed) if isinstance(error, Killed) else nullcontext()
        with fails_at(owner, name, number, error), end:
            assert folder.run() in (1, 2, 3)
            assert isinstance(error, Killed) or "make room" in caplog.text
        caplog.clear()
    assert folder.run() == 0
    assert_same_end(folder, never_killed)


def test_suspicious_parts_are_held_until_released(make_online, parts, caplog):
    """Each reason to hold a part has its test in test_log_parts.py."""
    folder = make_online("held", parts[1:2])
    assert folder.run() == 0
    before, work = checkpoints_of(folder), ("--work", folder.path / "online")
    status = folder.path / "online/status.json"
    folder.deliver(parts[0])  # comes before
    cells = [line.split(b"\t") for line in parts[2].read_bytes().splitlines(keepends=True)]
    emptied = b"".join(b"\t".join([*of_line[:14], b"", *of_line[15:]]) for of_line in cells)
    folder.deliver(parts[2], "part-00025.txt", emptied)
    folder.deliver(parts[2], "part-00026.txt.gz", b"\x1f\x8b cut")
    assert folder.run() == 5
    assert checkpoints_of(folder) == before
    held = json.loads(status.read_text())["held"]
    reasons = {
        parts[0].name: f"it comes before {parts[1].name}",
        "part-00025.txt": "100.0% of the values of C1 are missing",
        "part-00026.txt.gz": "is damaged",
    }
    assert held.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in held[name] and reason in caplog.text
    folder.deliver(parts[2], "part-00025.txt")  # repaired
    (folder.source / "part-00026.txt.gz").unlink()
    assert folder.run() == 5
    assert list(json.loads(status.read_text())["held"]) == [parts[0].name]
    assert folder.app("online", "status", *work) == 5
    assert folder.app("online", "release", parts[0].name, *work) == 0
    assert folder.run() == 0
    assert folder.app("online", "status", *work) == 0
    assert (json.loads(status.read_text())["parts"], len(checkpoints_of(folder))) == (3, 4)


def test_small_parts_with_equal_labels_are_trained_on(make_online, parts, caplog):
    """Chance explains equal labels of few rows. AUC and, without clicks, calibration are left out for them."""
    folder = make_online("one-label")
    assert folder.run() == 0
    rows = parts[0].read_bytes().splitlines(keepends=True)
    others, clicks = ([row for row in rows if row[:1] == label] for label in (b"0", b"1"))
    for number, content in enumerate((others[:20], clicks[:1], others, rows), 1):
        folder.deliver(parts[0], f"part-{number}", b"".join(content))
    more = ("--most-worse", "1e9", "--frozen", folder.path / "bundles/step-00000000")
    with caplog.at_level("INFO", "app"):
        assert folder.run(*more) == 5
    names = ("auc", "calibration", "frozen_auc", "frozen_calibration", "log_loss")
    found = [[name in line for name in names] for line in metrics_of(folder)]
    assert found == [[False] * 4 + [True], [False, True, False, True, True], [True] * 5]
    assert "part-2: 1 rows, no AUC as all labels are equal, log loss" in caplog.text and "no clicks; s" in caplog.text
    status = json.loads((folder.path / "online/status.json").read_text())
    assert "all its labels are equal: it has 0 clicks, and" in status["held"]["part-3"]
    assert folder.app("online", "release", "part-3", "--work", folder.path / "online") == 0
    assert folder.run(*more) == 0
    assert metrics_of(folder)[-1]["part"] == "part-3"
    files = [folder.path / name for name in ("online/metrics.jsonl", "online/status.json", "bundles/parts.json")]
    assert not any(word in path.read_text() for path in files for word in ("NaN", "Infinity", "null"))


def test_a_model_that_got_worse_is_saved_and_not_published(make_online, parts, caplog):
    folder = make_online("worse", parts[:1])
    rates = [f"{group}_optimizer.learning_rate=20" for group in ("wide", "tower")]
    assert folder.run(*rates) == 5
    assert list(checkpoints_of(folder)) == ["step-00000000", "step-00000003"]
    for _ in range(2):  # the same command again publishes it no more
        assert [path.name for path in sorted((folder.path / "bundles").glob("step-*"))] == ["step-00000000"]
        status = json.loads((folder.path / "online/status.json").read_text())
        assert "worse by more than 2% (--most-worse)" in status["withheld"]
        assert f"step-00000003 is not published: {status['withheld']}" in caplog.text
        caplog.clear()
        assert folder.run(*rates) == 5
    folder.deliver(parts[1])
    assert folder.run(*rates, "--most-worse", "1e9") == 0
    assert read_chain(folder.path / "bundles/step-00000006")[0][0].name == "step-00000006"  # it is whole


def test_another_run_does_not_go_on_in_the_folder(never_killed, trained_run, caplog):
    before = checkpoints_of(never_killed)
    assert never_killed.run("deep_optimizer.learning_rate=0.5") == 2
    assert "deep_optimizer.learning_rate was " in caplog.text
    assert never_killed.run("--from", never_killed.path / "online") == 2
    assert f"began from {trained_run}/checkpoints/step-" in caplog.text
    assert checkpoints_of(never_killed) == before


def test_two_runs_do_not_publish_into_one_folder(make_online, parts, caplog):
    folder = make_online("two-publish", parts[:1])
    with lock_folder(folder.path / "bundles"):
        assert folder.run() == 2
    assert "another online run publishes into" in caplog.text
    assert folder.run() == 0
    assert folder.run() == 0  # the first one has let it go


def test_a_damaged_checkpoint_is_named_and_the_one_before_leads_to_the_same_bits(
    make_online, never_killed, parts, caplog
):
    folder = make_online("damaged")
    shutil.copytree(never_killed.path, folder.path, dirs_exist_ok=True)
    flip_bit(folder.path / "online/checkpoints/step-00000009/dense.safetensors")
    assert folder.run() == 2
    assert "train.resume=auto resumes from" in caplog.text
    frozen = folder.path / "bundles/step-00000000"
    assert folder.run("train.resume=auto", "--frozen", frozen) == 0
    assert_same_end(folder, never_killed)
    line = json.loads((folder.path / "online/status.json").read_text())["last"]
    rows = parts[2].read_text().splitlines()
    labels = np.array([row[0] == "1" for row in rows])
    assert line["frozen_calibration"] == pytest.approx(Predictor.open(frozen).score(rows).sum() / labels.sum())


def test_it_waits_for_the_next_part_and_ends_on_a_signal(make_online, parts, command_environment):
    folder = make_online("waits")
    words = [word for word in folder.words() if word != "--once"]
    process = subprocess.Popen([sys.executable, "-m", "app", *words], cwd=folder.path, env=command_environment)
    status = folder.path / "online/status.json"
    try:
        for count, part in enumerate(parts[:2], 1):
            folder.deliver(part)
            deadline = time.monotonic() + 120
            while not status.exists() or json.loads(status.read_text())["parts"] < count:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
        process.terminate()
        assert process.wait(60) == 143
    finally:
        process.kill()
    assert list(checkpoints_of(folder)) == ["step-00000000", "step-00000003", "step-00000006"]
    assert folder.run() == 0  # nothing is left


@pytest.mark.kills
def test_kills_at_random_moments_lose_and_repeat_nothing(make_online, never_killed, parts, command_environment):
    folder = make_online("at-random", parts[:3])
    kill_at_random(folder, never_killed, command_environment, num_kills("online"))


def kill_at_random(folder, never_killed, command_environment, num_kills, after_kill=lambda: None):
    """Run the command again and again, and kill it at random moments. It must end with the bits of `never_killed`."""
    launch, chance = [sys.executable, "-m", "app", *folder.words()], random.Random(5)
    start = time.monotonic()
    kills, longest = 0, 60.0
    while kills < num_kills:
        process = subprocess.Popen(launch, cwd=folder.path, env=command_environment, stderr=subprocess.DEVNULL)
        try:
            process.wait(chance.uniform(0, longest))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            after_kill()
            there = read_manifests(folder.path / "bundles") if (folder.path / "bundles").exists() else {}
            assert len(chains(there)) == len(there)  # whatever is served, nothing that it needs is missing
            for path in there:
                Predictor.open(path)
            continue
        assert process.returncode == 0
        longest = time.monotonic() - start
        assert_same_end(folder, never_killed)
        for name in ("online", "bundles"):
            shutil.rmtree(folder.path / name)
        start = time.monotonic()
    assert folder.run() == 0
    assert_same_end(folder, never_killed)
