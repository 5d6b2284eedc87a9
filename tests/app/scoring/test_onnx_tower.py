"""tower.onnx: how onnxruntime runs it, and how exact it is."""

import itertools

import numpy as np
import pytest

from app.evaluation.calibration import Calibration
from app.scoring.bundle_model import FEW, MANY, ONE, TOWER, OnnxTower
from app.scoring.trained import write_tower as writer
from app.scoring.trained.write_tower import write_tower


@pytest.fixture
def dense():
    generator = np.random.default_rng(0)
    shapes = {"wide.bias": (1,), "tower.matrix_0": (64, 48), "tower.bias_0": (48,), "tower.matrix_1": (48, 1)}
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def logits(folder, num_rows=20):
    generator = np.random.default_rng(1)
    inputs = [generator.standard_normal((num_rows, *width)).astype(np.float32) for width in ((64,), (), (0,))]
    return OnnxTower(folder / TOWER, 1)(*inputs)


def test_the_file_is_what_the_pinned_onnxruntime_reads(tmp_path, dense):
    import onnx

    write_tower(tmp_path, dense, "gelu")
    assert [path.name for path in tmp_path.iterdir()] == ["tower.onnx"]
    model = onnx.load(tmp_path / "tower.onnx")
    assert (model.ir_version, [(o.domain, o.version) for o in model.opset_import]) == (9, [("", 20)])
    assert [i.name for i in model.graph.input] == ["deep_rows", "wide_rows", "numeric"]
    assert logits(tmp_path).shape == (20,)


def test_what_onnxruntime_cannot_read_is_refused(tmp_path):
    (tmp_path / "tower.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"tower.onnx cannot be used by onnxruntime"):
        OnnxTower(tmp_path / "tower.onnx", 1)


def test_runs_whose_bits_differ_are_of_one_size(tmp_path, dense, monkeypatch):
    """Imitate a processor whose products depend on the number of rows."""
    write_tower(tmp_path, dense, "relu")
    run = OnnxTower._run
    monkeypatch.setattr(OnnxTower, "_run", lambda self, i: run(self, i) + np.float32(1e-6) * (len(i[1]) == ONE))
    assert OnnxTower(tmp_path / "tower.onnx", 1)._sizes == [FEW, MANY]
    monkeypatch.setattr(OnnxTower, "_run", lambda self, i: run(self, i) + np.float32(1e-6) * (len(i[1]) < MANY))
    assert OnnxTower(tmp_path / "tower.onnx", 1)._sizes == [MANY]
    monkeypatch.undo()
    assert OnnxTower(tmp_path / "tower.onnx", 1)._sizes == [ONE, FEW, MANY]


def test_a_calibrated_tower_moves_each_logit(dense, tmp_path):
    calibration = Calibration(0.75, -0.5, rows=10)
    write_tower(tmp_path, dense, "relu")
    plain = logits(tmp_path)
    write_tower(tmp_path, dense, "relu", calibration)
    np.testing.assert_array_equal(logits(tmp_path), calibration(plain))


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
@pytest.mark.parametrize("widths", [(5,), (64, 32), (300, 200, 100, 50)])
def test_rounding_stays_within_its_bound_and_a_wrong_weight_does_not(tmp_path, widths, scale):
    """The bound follows the numbers' size; at the usual one it is near 1e-5."""
    rng = np.random.default_rng(len(widths))
    sizes = (40, *widths, 1)
    dense = {"wide.bias": np.float32([0.2]), "wide.numeric_weight": rng.standard_normal((3, 1), np.float32)}
    dense["tower.numeric_rows"] = rng.standard_normal((3, 4), np.float32)
    dense["tower.numeric_matrix"] = rng.standard_normal((3, 4, widths[0]), np.float32) / 4
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        dense[f"tower.matrix_{i}"] = rng.standard_normal((fan_in, fan_out), np.float32) / np.float32(fan_in**0.5)
        if i < len(widths):
            dense[f"tower.bias_{i}"] = rng.standard_normal(fan_out, np.float32)
    deep, wide = rng.standard_normal((200, 40), np.float32), rng.standard_normal((200, 7), np.float32)
    numeric = rng.standard_normal((200, 3), np.float32) * np.float32(scale)
    vectors = rng.standard_normal((200, 5), np.float32)
    dense["tower.vector_matrix"] = rng.standard_normal((5, widths[0]), np.float32) / 4

    hidden = np.concatenate([deep, numeric, vectors], axis=1).astype(np.float64)
    layers, last = writer.folded_layers(dense)
    for matrix, bias in layers:
        hidden = np.maximum(hidden @ matrix.astype(np.float64) + bias, 0)
    exact = (hidden @ last + numeric.astype(np.float64) @ dense["wide.numeric_weight"])[:, 0]
    exact += wide.astype(np.float64).sum(1) + dense["wide.bias"]
    bound = writer.rounding_bound(dense, deep, wide, numeric, vectors)
    assert np.median(bound) == pytest.approx(1e-5 * scale, rel=1)

    def scored(arrays):
        write_tower(tmp_path, arrays, "relu")
        return OnnxTower(tmp_path / TOWER, 1)(deep, wide.sum(1), numeric, vectors)

    assert (np.abs(scored(dense) - exact) <= bound).all()
    wrong = {**dense, "tower.matrix_0": dense["tower.matrix_0"] * np.float32(1.001)}
    if scale > 1:
        wrong = {**dense, "tower.numeric_rows": dense["tower.numeric_rows"] * np.float32(1.001)}
    assert (np.abs(scored(wrong) - exact) > bound).any()


def test_the_bound_allows_steps_of_float32_at_a_large_logit():
    """Terms behind a ReLU share a sign: their sum is far above the root of their squares."""
    dense = {"wide.bias": np.float32([0]), "tower.bias_0": np.full(400, 0.1, np.float32)}
    dense |= {
        "tower.matrix_0": np.full((40, 400), 0.1, np.float32),
        "tower.matrix_1": np.full((400, 1), -0.1, np.float32),
    }
    deep, wide = np.full((1, 40), 0.2, np.float32), np.zeros((1, 7), np.float32)
    bound = writer.rounding_bound(dense, deep, wide, *np.zeros((2, 1, 0), np.float32))
    assert 4 * np.spacing(np.float32(36)) <= bound[0] <= 32 * np.spacing(np.float32(36))
