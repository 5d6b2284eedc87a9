"""Models that follow one another in a folder: swapped under load, refused, rolled back, folded."""

import argparse
import asyncio
import errno
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from app.checkpoint.write import ModelState
from app.cli import serve as serve_command
from app.scoring.bundle_folder import short
from app.scoring.distribution import Distribution, held_out_rows
from app.scoring.predictor import Predictor
from app.serving import statement
from app.serving.generations import FOLDED, RECENT_ROWS, Generations
from app.serving.options import ServerOptions
from app.tables.interface import TableState
from data_prep.kernels.parsed import Chunk
from tests.app.serving.conftest import Client, run_beside
from tests.app.serving.test_service import ARROW, infer_of, score
from tests.damage import flip_bit
from tests.request_bodies import arrow_stream


@pytest.fixture(scope="module")
def models(tmp_path_factory, make_bundle, tiny_dataset, tiny_config, tiny_state, predictor, golden):
    """A whole bundle 1, deltas 2 and 3 of it in turn, another whole one 10; and the golden rows' scores by each."""
    folder, config, state = tmp_path_factory.mktemp("made"), tiny_config(), tiny_state
    shutil.copytree(predictor.folder, folder / "1")
    for name in ("2", "3"):
        state = moved(state, by=float(name), share=0.04)
        make_bundle(
            tiny_dataset, config, state, parent=Predictor.open(folder / f"{int(name) - 1}"), folder=folder / name
        )
    make_bundle(tiny_dataset, config, moved(state, by=0.5, share=1), folder=folder / "10")
    names = ("1", "2", "3", "10")
    return folder, {name: Predictor.open(folder / name).score(golden).tolist() for name in names}


def moved(state, by, share):
    """A state of which the first rows differ."""
    tables = {}
    for name, table in state.tables.items():
        rows = table.arrays["rows"].copy()
        rows[: int(len(rows) * share)] += np.float32(by)
        tables[name] = TableState(table.row_ids, {"rows": rows})
    return ModelState(state.dense, tables)


@pytest.fixture
def watched(models, tmp_path):
    """An empty folder, and how a model comes into it: whole, by a rename."""
    folder = tmp_path / "models"
    folder.mkdir()

    def put(name):
        shutil.copytree(models[0] / name, tmp_path / "copy")
        (tmp_path / "copy").rename(folder / name)
        return folder / name

    return folder, put


@pytest.fixture
def make_generations():
    def make(folder, is_first=False, **options):
        return Generations(ServerOptions(folder, "clicks", **options), is_first)

    return make


def refused_by(generations):
    return {name: entry["reason"] for name, entry in generations.status()["refused"].items()}


def test_a_delta_waits_for_its_parent(watched, make_generations, caplog):
    folder, put = watched
    put("1")
    generations = make_generations(folder)
    put("3")
    generations.refresh()
    assert (generations.status()["folder"], "waits for its parent 2" in caplog.text) == ("1", True)
    put("2")
    generations.refresh()
    assert generations.status()["folder"] == "3"


@pytest.mark.parametrize("file", ["manifest.json", "tables.safetensors", "tower.onnx", "golden.parquet", "lookup.bin"])
@pytest.mark.parametrize("name", ["2", "10"])
def test_a_damaged_model_is_refused_and_the_old_one_serves(models, watched, make_generations, golden, file, name):
    (_, scores), (folder, put) = models, watched
    put("1")
    generations = make_generations(folder)
    path = put(name) / file
    flip_bit(path, path.stat().st_size // 2)
    generations.refresh()
    if (name, file) == ("10", "tables.safetensors"):  # found when the block is touched, which golden rows may not do
        assert generations.status()["folder"] in ("1", "10")
        return
    assert generations.current.score(golden).tolist() == scores["1"]
    assert name in generations.status()["refused"]
    shutil.rmtree(folder / name)
    put(name)  # whole now
    generations.refresh()
    assert (generations.status()["folder"], refused_by(generations)) == (name, {})


def test_a_model_whose_golden_rows_score_otherwise_is_refused(watched, make_generations, golden, monkeypatch):
    folder, put = watched
    put("1")
    generations = make_generations(folder)
    check = Predictor.check_golden
    monkeypatch.setattr(
        Predictor, "check_golden", lambda self: check(self) and (_ for _ in ()).throw(ValueError("row 3"))
    )
    put("2")
    generations.refresh()
    assert (generations.status()["folder"], refused_by(generations)) == ("1", {"2": "row 3"})


def test_the_last_rows_are_scored_before_a_swap(watched, make_generations, predictor, golden, monkeypatch):
    folder, put = watched
    put("1")
    generations = make_generations(folder)
    generations.keep_recent(predictor.log_format, predictor.chunk_of(golden))
    monkeypatch.setattr(Predictor, "check_golden", lambda _: 100)
    score_chunk = Predictor.score_chunk

    def not_a_number(self, chunk):
        scored = score_chunk(self, chunk)
        if self.generation:
            scored.logits[0] = np.nan
        return scored

    monkeypatch.setattr(Predictor, "score_chunk", not_a_number)
    put("2")
    generations.refresh()
    assert (generations.status()["folder"], "NaN" in refused_by(generations)["2"]) == ("1", True)


def test_rows_as_large_as_a_body_are_not_kept(watched, make_generations, predictor):
    _, put = watched
    put("1")
    generations, cells = make_generations(watched[0]), b"\t" * 39
    for size in (100, 1 << 20):
        generations.keep_recent(predictor.log_format, Chunk(0, 1, b"x" * size + cells + b"\n"))
    assert [len(chunk.lines) for _, chunk in generations._recent] == [140]


def test_the_last_rows_are_scored_together(watched, make_generations, predictor, golden, monkeypatch):
    folder, put = watched
    put("1")
    generations = make_generations(folder)
    chunk, scored = predictor.chunk_of(golden.slice(0, 1)), []
    for _ in range(RECENT_ROWS + 50):
        generations.keep_recent(predictor.log_format, chunk)
    score_chunk = Predictor.score_chunk
    monkeypatch.setattr(Predictor, "check_golden", lambda _: 100)
    monkeypatch.setattr(
        Predictor, "score_chunk", lambda self, chunk: scored.append(chunk.num_lines) or score_chunk(self, chunk)
    )
    put("2")
    generations.refresh()
    assert (generations.status()["folder"], scored) == ("2", [RECENT_ROWS])


def test_a_roll_back_holds_in_all_processes(models, watched, make_generations, make_service, golden):
    (_, scores), (folder, put) = models, watched
    put("1")
    service, other = make_service(folder), make_generations(folder)  # which share the file of roll-backs
    put("2")
    service.generations.refresh()
    other.refresh()
    client = Client(service)
    first = score(client, golden.to_pylist()).json()
    assert first["scores"] == scores["2"]
    assert client.post("/v1/rollback", content="{}").status_code == 415
    assert client.post("/v1/rollback", json={"version": "other"}).status_code == 409
    assert client.post("/v1/rollback", json={"version": first["version"]}).json()["generation"] == 0
    assert client.post("/v1/rollback", json={"version": first["version"]}).status_code == 409
    assert score(client, golden.to_pylist()).json()["scores"] == scores["1"]
    for generations in (other, service.generations):
        generations.refresh()
        assert generations.status()["folder"] == "1"
    put("10")
    for generations in (other, service.generations, make_generations(folder)):  # and after a restart
        generations.refresh()
        assert (generations.status()["folder"], set(generations.status()["waiting"])) == ("1", {"2", "10"})
    assert client.post("/v1/unpin", content="{}").status_code == 415
    assert client.post("/v1/unpin", json={}).json()["generation"] == 0
    other.refresh()
    assert (other.status()["folder"], other.status()["waiting"], other.status()["pinned"]) == ("10", {}, None)
    assert client.post("/v1/pin", json={"version": "other"}).status_code == 409
    assert client.post("/v1/pin", json={"version": first["version"]}).json()["generation"] == 1
    other.refresh()
    assert (other.status()["folder"], other.status()["pinned"]) == ("2", first["version"])
    assert score(client, golden.to_pylist()).json()["scores"] == scores["2"]


def test_a_chain_that_has_grown_is_folded(models, watched, make_generations, golden, project, monkeypatch):
    (_, scores), (folder, put) = models, watched
    monkeypatch.chdir(project)
    for name in ("1", "2", "3"):
        put(name)
    monkeypatch.setattr("app.serving.generations.FOLD_SHARE", 0.05)
    generations = make_generations(folder, is_first=True)
    generations.refresh()
    version = generations.current.version
    assert generations._folding.wait(60) == 0
    generations.refresh()
    assert (generations.status()["folder"], generations.current.version) == (f"3{FOLDED}", version)
    assert (len(generations.current.chain), generations.current.generation) == (1, 2)
    assert generations.current.score(golden).tolist() == scores["3"]
    again = make_generations(folder)
    again.refresh()
    assert again.status()["folder"] == f"3{FOLDED}"


def test_swaps_under_load_lose_no_request_and_mix_no_models(models, watched, make_service, golden):
    (_, scores), (folder, put) = models, watched
    put("1")
    service = make_service(folder, max_queue=1000)
    found = []

    async def send_while_models_come(client):
        is_done = False

        async def send():
            while not is_done:
                found.append(await client.post("/v1/score", json={"rows": golden.to_pylist()}))

        senders = [asyncio.create_task(send()) for _ in range(2)]
        for name in ("2", "3", "10"):
            put(name)
            await asyncio.to_thread(service.generations.refresh)
        while len(found) < 20:
            await asyncio.sleep(0.01)
        is_done = True
        await asyncio.gather(*senders)

    run_beside(service, send_while_models_come)
    assert {response.status_code for response in found} == {200}
    by_version = {}
    for response in found:
        by_version.setdefault(response.headers["x-model-version"], response.json()["scores"])
        assert response.json()["scores"] == by_version[response.json()["version"]]
    assert all(values in scores.values() for values in by_version.values())


def test_a_version_that_is_asked_for_is_the_one_that_scores(watched, make_service, golden):
    """Another model comes between the headers and the body."""
    folder, put = watched
    put("1")
    service = make_service(folder)
    first = short(service.generations.current.version)
    body = json.dumps(infer_of(golden)).encode()

    async def parts():
        yield body[:100]
        put("2")
        await asyncio.to_thread(service.generations.refresh)
        yield body[100:]

    async def send(client):
        slowly = await client.post(f"/v2/models/clicks/versions/{first}/infer", content=parts())
        return slowly, await client.post("/v2/models/clicks/infer", content=body)

    slowly, after = run_beside(service, send)
    assert slowly.status_code == 404
    assert after.json()["model_version"] in slowly.json()["error"]


def test_a_model_of_another_log_is_served_after_requests_of_the_one_before(
    watched, make_service, golden, golden_scores, text_bundle, predictor
):
    folder, put = watched
    put("1")
    service = make_service(folder)
    client, arrow = Client(service), {"content-type": ARROW}
    for _ in range(2):
        answer = client.post("/v1/score", content=arrow_stream(golden), headers=arrow)
        assert answer.json()["scores"] == golden_scores
        assert score(client, golden.to_pylist()).json()["scores"] == golden_scores
    shutil.copytree(text_bundle, folder / "20")
    service.generations.pin(short(Predictor.open(text_bundle).version))
    assert (service.generations.status()["folder"], refused_by(service.generations)) == ("20", {})
    assert score(client, [service.generations.current.example]).status_code == 200
    assert "wide_deep_psi" in client.get("/metrics").text
    service.generations.pin(short(predictor.version))
    assert client.get("/v1/status").json()["fields"].keys() == set(golden.schema.names)
    answer = client.post("/v1/score", content=arrow_stream(golden), headers=arrow)
    assert answer.json()["scores"] == golden_scores
    assert client.get("/metrics").status_code == 200


def test_what_is_newer_and_does_not_serve_is_measured(watched, make_service):
    folder, put = watched
    put("1")
    service = make_service(folder)
    (put("10") / "lookup.bin").unlink()
    service.refresh()
    for refused in (1.0, 0.0):
        service.refresh()
        metrics = Client(service).get("/metrics").text
        assert f"wide_deep_refused_bundles {refused}" in metrics
        assert ("wide_deep_newest_age_seconds 0.0\n" in metrics) == (refused == 0)
        shutil.rmtree(folder / "10", ignore_errors=True)


def test_what_cannot_be_written_or_opened_is_not_pinned(watched, make_service, monkeypatch):
    folder, put = watched
    put("1"), put("2")
    client = Client(make_service(folder))
    newest, first = (short(Predictor.open(folder / name).version) for name in ("2", "1"))

    def fails(address, version, message):
        answer = client.post(address, json={"version": version})
        assert answer.status_code == 409 and message in answer.json()["error"], answer.text
        assert (client.get("/v1/status").json()["version"], client.get("/v1/status").json()["pinned"]) == (newest, None)

    with monkeypatch.context() as patched:
        patched.setattr(statement, "write_whole", lambda *_: (_ for _ in ()).throw(OSError(errno.EROFS, "Read-only")))
        for address, version in (("/v1/rollback", newest), ("/v1/pin", first)):
            fails(address, version, "cannot be written (Read-only)")
        assert "--state" in client.post("/v1/unpin", json={}).json()["error"]
    content = (folder / "1" / "lookup.bin").read_bytes()
    (folder / "1" / "lookup.bin").unlink()
    fails("/v1/pin", first, "lookup.bin is missing")
    fails("/v1/rollback", newest, "no older version")
    (folder / "1" / "lookup.bin").write_bytes(content)
    assert client.post("/v1/rollback", json={"version": newest}).json()["version"] == first  # at once


def test_one_bundle_is_not_chosen_from(make_service, tiny_bundle):
    client, version = Client(make_service(tiny_bundle)), short(Predictor.open(tiny_bundle).version)
    for address in ("/v1/pin", "/v1/rollback", "/v1/unpin"):
        answer = client.post(address, json={"version": version})
        assert answer.status_code == 409 and "serve a folder of bundles" in answer.json()["error"]


def test_a_fold_that_failed_is_tried_again_after_pauses(watched, monkeypatch):
    folder, put = watched
    for name in ("1", "2", "3"):
        put(name)
    now, commands = [0.0], []

    def start(command, **_):
        commands.append((now[0], command[-1]))
        return SimpleNamespace(poll=lambda: 1)

    monkeypatch.setattr("app.serving.generations.FOLD_SHARE", 0.05)
    monkeypatch.setattr("app.serving.generations.subprocess.Popen", start)
    generations = Generations(ServerOptions(folder, "clicks"), True, lambda: now[0])
    for now[0] in range(0, 600, 10):
        generations.refresh()
        (folder / f"3{FOLDED}").mkdir(exist_ok=True)  # its name is taken
    version = short(generations.current.version)
    assert [when for when, _ in commands] == [0, 60, 180, 420]
    assert {Path(path).name for _, path in commands} == {f"3{FOLDED}", f"3-{version}{FOLDED}"}


def test_drift_has_its_held_out_rows_after_the_folder_was_removed(watched, make_generations, predictor):
    folder, put = watched
    Distribution(predictor.schema).write(put("1"))
    generations = make_generations(folder)
    (folder / "1").rename(folder / "01")
    generations.refresh()
    assert held_out_rows(generations.current) is not None
    assert generations.status()["folder"] == "01"
    shutil.rmtree(folder / "01")
    generations.refresh()
    assert generations.status()["folder"] is None


def test_a_version_is_pinned_before_the_start(watched, monkeypatch, tmp_path, tiny_bundle):
    folder, put = watched
    put("1"), put("2")
    started = []
    monkeypatch.setattr(serve_command, "serve", lambda options: started.append(options) or 0)
    parser = argparse.ArgumentParser()
    serve_command.add_arguments(parser)

    def run(path, *words):
        return serve_command.run(parser.parse_args([str(path), *words]))

    first = short(Predictor.open(folder / "1").version)
    for path, expected in ((folder, "no such version; it has.*\\(1\\)"), (tiny_bundle, "is one bundle")):
        with pytest.raises(ValueError, match=expected):
            run(path, "--version", "other")
    assert not started and not (folder / "current.json").exists()
    for version, serving in ((first, "1"), ("newest", "2")):
        run(folder, "--state", str(tmp_path / "state"), "--version", version)
        assert Generations(started[-1], is_first=False).status()["folder"] == serving
    shutil.rmtree(folder / "1")
    (tmp_path / "state" / "current.json").write_text(json.dumps({"pinned": first}))
    with pytest.raises(FileNotFoundError, match=f"{first}, which .*current.json pins .--version newest"):
        Generations(started[-1], is_first=False)
