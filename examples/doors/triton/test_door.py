"""NVIDIA's client gets the bundle's scores from the service, and so does a request to the Python backend."""

from __future__ import annotations

import importlib.util
import runpy
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import tritonclient
import tritonclient.http as triton
from google.protobuf import text_format


@pytest.fixture
def golden(folder):
    return pq.read_table(folder / "bundle" / "golden.parquet")


def test_the_client_gets_the_scores_of_the_bundle(commands, run, service, golden):
    *_, client = commands("Triton")
    began, address = time.time(), service()
    done = run(client.replace("localhost:8000", address))
    assert [*map(float, done.stdout.split())] == golden["score"].to_pylist()
    assert f"{golden.num_rows} rows scored" in done.stderr
    with triton.InferenceServerClient(address) as server:
        assert server.is_server_live() and server.is_server_ready() and server.is_model_ready("bundle")
        (model,) = server.get_model_repository_index()
        metadata, config = server.get_model_metadata("bundle"), server.get_model_config("bundle")
        assert (model["name"], [model["version"]], model["state"]) == ("bundle", metadata["versions"], "READY")
        assert [each["dims"] for each in config["input"]] == [each["shape"] for each in metadata["inputs"]]
        (statistics,) = server.get_inference_statistics("bundle", model["version"])["model_stats"]
        assert statistics["inference_stats"]["success"]["count"] == 1
        assert 0 < statistics["inference_stats"]["success"]["ns"] < 1e9 * (time.time() - began)
        assert statistics["last_inference"] >= 1000 * began


def test_the_python_backend_gives_the_same_scores(folder, monkeypatch, golden):
    """The stub has the members of triton_python_backend_utils that model.py uses, because no package provides them."""
    repository = folder / "models"
    shutil.copytree("examples/doors/triton/models", repository)
    shutil.copytree("bundle", repository / "clicks" / "1" / "bundle")
    stub = ModuleType("triton_python_backend_utils")
    stub.get_input_tensor_by_name = dict.get
    stub.Tensor = lambda name, array: (name, array)
    stub.TritonError = str
    stub.InferenceResponse = lambda output_tensors, error=None: SimpleNamespace(outputs=output_tensors, error=error)
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    monkeypatch.setattr(sys, "path", [*sys.path])
    model_class = runpy.run_path(str(repository / "clicks" / "1" / "model.py"))["TritonPythonModel"]

    completed = []
    config = SimpleNamespace(add_input=completed.append, add_output=completed.append)
    assert model_class.auto_complete_config(config) is config
    names = [each["name"] for each in completed[:-1]]
    assert names == golden.column_names[:-3] and completed[-1]["name"] == "score"

    def request(cells):
        texts = {
            name: [b"" if each is None else str(each).encode() for each in cells[name].to_pylist()] for name in names
        }
        return {name: SimpleNamespace(as_numpy=lambda t=each: np.array(t, np.object_)) for name, each in texts.items()}

    model = model_class()
    model.initialize({})
    wrong = golden.slice(0, 1).set_column(0, names[0], [["no number"]])
    good, bad = model.execute([request(golden), request(wrong)])
    ((name, scores),) = good.outputs
    assert name == "score" and scores.dtype == np.float32 and scores.tolist() == golden["score"].to_pylist()
    assert not bad.outputs and names[0] in bad.error


def test_the_configuration_is_of_triton():
    """Parse config.pbtxt by Triton's own definition of model configurations."""
    path = Path(tritonclient.__file__).parent / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    spec.loader.exec_module(definition := importlib.util.module_from_spec(spec))
    text = Path(__file__).with_name("models").joinpath("clicks", "config.pbtxt").read_text()
    config = text_format.Parse(text, definition.ModelConfig())
    assert (config.name, config.backend, config.max_batch_size) == ("clicks", "python", 0)
