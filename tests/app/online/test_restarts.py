"""Online runs that begin from each checkpoint of another, publish beside it, or are resumed with damaged state."""

import shutil

import pytest

from app.checkpoint.manifest import read_manifest
from app.checkpoint.retention import step_folders
from app.online.online_trainer import OnlineTrainer
from app.scoring.bundle_folder import chains, rank, read_manifests
from app.scoring.predictor import Predictor
from tests.app.online.test_online_trainer import assert_same_end, bundle_bytes, metrics_of
from tests.kills import Killed, fails_at


@pytest.fixture(scope="module")
def first_run(make_online, parts):
    """The folder of a run over two parts."""
    folder = make_online("first-run", parts[:2])
    assert folder.run() == 0
    return folder


@pytest.mark.parametrize("step", [pytest.param(0, marks=pytest.mark.slow), 3, pytest.param(6, marks=pytest.mark.slow)])
def test_a_run_from_a_checkpoint_leaves_its_parts_and_bundles(step, make_online, first_run, parts, caplog):
    """A chain of three runs that publish into one folder, killed and resumed: each part is trained on once."""
    first, second, third = (make_online(f"restarted-{number}") for number in range(3))
    shutil.copytree(first_run.path, first.path, dirs_exist_ok=True)
    bundles, before = first.path / "bundles", bundle_bytes(first)
    second.source, second.trained = first.source, first.path / f"online/checkpoints/step-{step:08d}"
    first.deliver(parts[2])
    serve = ("--serve", bundles)
    expected = [part.name for part in parts[step // 3 : 3]]
    caplog.set_level("INFO", "app")
    for number in range(1, len(expected)):
        with fails_at(OnlineTrainer, "_take_step", number, Killed()), pytest.raises(Killed):
            second.run(*serve)
    assert second.run(*serve) == 0
    assert [line["part"] for line in metrics_of(second)] == expected
    known = ", ".join(part.name for part in parts[: step // 3])
    assert (f"trained on them: {known}\n" in caplog.text) == (step > 0)
    assert {name: content for name, content in bundle_bytes(first).items() if name in before} == before
    third.source, third.trained = first.source, step_folders(second.path / "online/checkpoints")[-1]
    assert third.run(*serve) == 0
    assert metrics_of(third) == []
    manifests = read_manifests(bundles)
    assert len(chains(manifests)) == len({manifest.version for manifest in manifests.values()})
    newest = max(chains(manifests).values(), key=rank)[-1]
    assert newest[1].checkpoint["id"] == read_manifest(step_folders(third.path / "online/checkpoints")[-1]).id
    for path in manifests:
        Predictor.open(path)
    assert first.run() == 0  # The first run goes on, too, with a whole bundle.
    assert metrics_of(first)[-1]["part"] == parts[2].name


@pytest.fixture(scope="module")
def undisturbed(make_online, first_run, parts):
    """The folder of `first_run` after a third part."""
    folder = make_online("undisturbed")
    shutil.copytree(first_run.path, folder.path, symlinks=True, dirs_exist_ok=True)
    folder.deliver(parts[2])
    assert folder.run() == 0
    return folder


def damaged_contents(content):
    """Yield a file's content cut after lines, emptied, replaced, and None for a file that is missing."""
    yield None
    yield b""
    yield b"\xff\x00\x1b not what was written\n"
    yield b"[" * 100_000
    yield b'{"step": "x", "seconds": 1, "parts": [], "pinned": 5, "held": 3, "identity": {"config": 1, "data": []}}\n'
    lines = content.splitlines(keepends=True)
    yield b"".join(lines[: len(lines) // 2])
    yield content[: len(content) // 2]


STATE_FILES = [
    *("online/run.json", "online/config.yaml"),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            *("online/status.json", "online/metrics.jsonl", "online/loss.log", "online/prepared/schema.json"),
            *("online/prepared/vocabulary-0*.parquet", "online/samples/step-00000006.npz"),
            *("online/value_counts/step-00000000.npz", "online/value_counts/step-00000006.added.npz"),
            *("online/checkpoints/step-00000006/manifest.json", "online/checkpoints/step-00000006/dense.safetensors"),
            *("online/released/part-00012.txt", "bundles/current.json", "bundles/parts.json"),
            *("bundles/step-00000006/manifest.json", "bundles/step-00000006/schema.json"),
        )
    ),
]


@pytest.mark.parametrize("name", STATE_FILES)
def test_a_damaged_state_file_is_repaired_or_named(name, make_online, first_run, undisturbed, parts, caplog):
    """A resumed run ends with the same bits, says what it lacks, or ends with an error that names the file."""
    folder = make_online("state")
    path = next(iter(first_run.path.glob(name)), first_run.path / name)
    for content in damaged_contents(path.read_bytes() if path.exists() else b"xxh3:0\n"):
        shutil.rmtree(folder.path)
        shutil.copytree(first_run.path, folder.path, symlinks=True)
        damaged = folder.path / path.relative_to(first_run.path)
        damaged.unlink(missing_ok=True)
        if content is not None:
            damaged.parent.mkdir(exist_ok=True)
            damaged.write_bytes(content)
        folder.deliver(parts[2])
        caplog.clear()
        status = folder.run()
        is_named = damaged.name in caplog.text or damaged.parent.name in caplog.text
        assert status == 0 or (status == 2 and is_named), content
        assert "Traceback" not in caplog.text, content
        if status == 0 and not is_named:
            assert_same_end(folder, undisturbed)
        if status == 2:
            folder.run("train.resume=auto")
            assert not (folder.path / "online.1").exists()
