"""Models that follow one another in a folder: swapped under load, refused, rolled back, folded."""

import asyncio
import shutil

import httpx
import numpy as np
import pytest

from app.checkpoint.write import ModelState
from app.scoring.predictor import Predictor
from app.serving.generations import FOLDED, RECENT_ROWS, Generations
from app.tables.interface import TableState
from tests.app.serving.conftest import Client
from tests.app.serving.test_service import ARROW, arrow_of, score


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
def make_generations(tmp_path):
    def make(folder, folds=False):
        return Generations(folder, 1, tmp_path / "rolled_back.json", folds)

    return make


def test_deltas_and_later_bundles_are_served(models, watched, make_generations, golden):
    (_, scores), (folder, put) = models, watched
    put("1")
    generations = make_generations(folder)
    for name, generation in (("2", 1), ("3", 2), ("10", 0)):
        put(name)
        generations.refresh()
        assert (generations.current.score(golden).tolist(), generations.current.generation) == (
            scores[name],
            generation,
        )
    generations.refresh()
    assert generations.status()["folder"] == "10"


def test_a_start_serves_the_newest_of_a_folder(models, watched, make_generations):
    folder, put = watched
    for name in ("3", "1", "2"):
        put(name)
    generations = make_generations(folder)
    generations.refresh()
    assert generations.status()["folder"] == "3"


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
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    generations.refresh()
    if (name, file) == ("10", "tables.safetensors"):  # found when the block is touched, which golden rows may not do
        assert generations.status()["folder"] in ("1", "10")
        return
    assert generations.current.score(golden).tolist() == scores["1"]
    assert name in generations.status()["refused"]
    shutil.rmtree(folder / name)
    put(name)  # whole now
    generations.refresh()
    assert generations.status() | {"age_seconds": 0} == {"folder": name, "refused": {}, "age_seconds": 0}


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
    assert (generations.status()["folder"], generations.status()["refused"]) == ("1", {"2": "row 3"})


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
    assert (generations.status()["folder"], "NaN" in generations.status()["refused"]["2"]) == ("1", True)


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
    other.refresh()
    assert other.status()["folder"] == "10"


def test_a_chain_that_has_grown_is_folded(models, watched, make_generations, golden, project, monkeypatch):
    (_, scores), (folder, put) = models, watched
    monkeypatch.chdir(project)
    for name in ("1", "2", "3"):
        put(name)
    monkeypatch.setattr("app.serving.generations.FOLD_SHARE", 0.05)
    generations = make_generations(folder, folds=True)
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

    async def run():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(service), base_url="http://here") as client:
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

    asyncio.run(run())
    assert {response.status_code for response in found} == {200}
    by_version = {}
    for response in found:
        by_version.setdefault(response.headers["x-model-version"], response.json()["scores"])
        assert response.json()["scores"] == by_version[response.json()["version"]]
    assert all(values in scores.values() for values in by_version.values())


def test_a_model_of_another_log_is_served_after_requests_of_the_one_before(
    watched, make_service, golden, golden_scores, text_bundle
):
    folder, put = watched
    put("1")
    service = make_service(folder)
    client, arrow = Client(service), {"content-type": ARROW}
    for _ in range(2):
        answer = client.post("/v1/score", content=arrow_of(golden), headers=arrow)
        assert answer.json()["scores"] == golden_scores
        assert score(client, golden.to_pylist()).json()["scores"] == golden_scores
    shutil.copytree(text_bundle, folder / "20")
    service.generations.refresh()
    assert (service.generations.status()["folder"], service.generations.status()["refused"]) == ("20", {})
    assert score(client, [service.generations.current.example]).status_code == 200
    assert "wide_deep_psi" in client.get("/metrics").text
    shutil.rmtree(folder / "1")  # what is mapped can be rolled back to
    version = client.get("/v1/status").json()["version"]
    assert client.post("/v1/rollback", json={"version": version}).status_code == 200
    assert client.get("/v1/status").json()["fields"].keys() == set(golden.schema.names)
    answer = client.post("/v1/score", content=arrow_of(golden), headers=arrow)
    assert answer.json()["scores"] == golden_scores
    assert client.get("/metrics").status_code == 200
