"""tower.onnx: small in one file, large with its weights beside it."""

import numpy as np
import pytest

from app.evaluation.calibration import Calibration
from app.scoring import tower
from app.scoring.tower import FEW, MANY, ONE, Tower, write_tower


@pytest.fixture
def dense():
    generator = np.random.default_rng(0)
    shapes = {"wide.bias": (1,), "tower.matrix_0": (64, 48), "tower.bias_0": (48,), "tower.matrix_1": (48, 1)}
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def logits(folder, num_rows=20):
    generator = np.random.default_rng(1)
    inputs = [generator.standard_normal((num_rows, *width)).astype(np.float32) for width in ((64,), (), (0,))]
    return Tower(folder / tower.TOWER, 1)(*inputs)


def test_a_model_beyond_protobuf_s_limit_has_its_weights_beside_it(tmp_path, dense, monkeypatch):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for folder in (whole, parted):
        folder.mkdir()
    write_tower(whole, dense, "relu")
    monkeypatch.setattr(tower, "MOST_BYTES", 1000)
    write_tower(parted, dense, "relu")
    assert [path.name for path in whole.iterdir()] == ["tower.onnx"]
    assert sorted(path.name for path in parted.iterdir()) == ["tower.onnx", "tower.onnx.data"]
    assert (parted / "tower.onnx").stat().st_size < 48 * 64 * 4 <= (parted / "tower.onnx.data").stat().st_size
    assert np.array_equal(logits(whole), logits(parted))


def test_the_file_is_what_the_pinned_onnxruntime_reads(tmp_path, dense):
    import onnx

    write_tower(tmp_path, dense, "gelu")
    model = onnx.load(tmp_path / "tower.onnx")
    assert (model.ir_version, [(o.domain, o.version) for o in model.opset_import]) == (9, [("", 20)])
    assert [i.name for i in model.graph.input] == ["deep_rows", "wide_rows", "numeric"]
    assert logits(tmp_path).shape == (20,)


def test_what_onnxruntime_cannot_read_is_refused(tmp_path):
    (tmp_path / "tower.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"tower.onnx cannot be used by onnxruntime"):
        Tower(tmp_path / "tower.onnx", 1)


def test_runs_whose_bits_differ_are_of_one_size(tmp_path, dense, monkeypatch):
    """Imitate a processor whose products depend on the number of rows."""
    write_tower(tmp_path, dense, "relu")
    run = Tower._run
    monkeypatch.setattr(Tower, "_run", lambda self, i: run(self, i) + np.float32(1e-6) * (len(i[1]) == ONE))
    assert Tower(tmp_path / "tower.onnx", 1)._sizes == [FEW, MANY]
    monkeypatch.setattr(Tower, "_run", lambda self, i: run(self, i) + np.float32(1e-6) * (len(i[1]) < MANY))
    assert Tower(tmp_path / "tower.onnx", 1)._sizes == [MANY]
    monkeypatch.undo()
    assert Tower(tmp_path / "tower.onnx", 1)._sizes == [ONE, FEW, MANY]


def test_a_calibrated_tower_moves_each_logit(dense, tmp_path):
    calibration = Calibration(0.75, -0.5, rows=10)
    write_tower(tmp_path, dense, "relu")
    plain = logits(tmp_path)
    write_tower(tmp_path, dense, "relu", calibration)
    np.testing.assert_array_equal(logits(tmp_path), calibration(plain))
