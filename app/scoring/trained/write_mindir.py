"""Write the function of a bundle's tower.onnx as MindIR, MindSpore's own format of models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from app.evaluation.calibration import Calibration
from app.model.dense_layer import ACTIVATIONS
from app.scoring.bundle_model import TOWER
from app.scoring.trained.write_tower import VECTOR_MATRIX, folded_layers


class FoldedTower(nn.Cell):
    """The tower with the wide part's sum. The numeric fields' rows and batch normalization are folded into layers."""

    def __init__(self, dense: Mapping[str, np.ndarray], activation: str, calibration: Calibration | None) -> None:
        """`dense` are the dense arrays of a checkpoint. Without `calibration`, the logits stay as they are."""
        super().__init__()
        layers, last = folded_layers(dense)
        # The wide part has weights for the numeric columns only, which stand between deep rows and vectors.
        wide = np.zeros((len(layers[0][0]), 1), np.float32)
        weights = dense.get("wide.numeric_weight", wide[:0])
        end = len(wide) - len(dense.get(VECTOR_MATRIX, ()))
        wide[end - len(weights) : end] = weights
        hidden = [cell for layer in layers for cell in (_dense(*layer), ACTIVATIONS[activation]())]
        self.tower = nn.SequentialCell([*hidden, _dense(last, dense["wide.bias"])])
        self.wide = _dense(wide, np.zeros(1, np.float32))
        self.slope, self.intercept = (calibration.slope, calibration.intercept) if calibration else (1.0, 0.0)

    def construct(self, inputs: Tensor, wide_rows: Tensor) -> Tensor:
        """Return the logits [n]. `inputs` [n, C * D + N + K] are deep rows, numbers and vectors; `wide_rows` is [n]."""
        return self.slope * ((self.tower(inputs) + self.wide(inputs)).reshape(-1) + wide_rows) + self.intercept


def _dense(matrix: np.ndarray, bias: np.ndarray) -> nn.Cell:
    return nn.Dense(*matrix.shape, weight_init=Tensor(np.ascontiguousarray(matrix.T)), bias_init=Tensor(bias))


def write_mindir(
    folder: Path, dense: Mapping[str, np.ndarray], activation: str, calibration: Calibration | None
) -> None:
    """Write tower.mindir into `folder`. The model takes any number of rows, see `FoldedTower.construct`."""
    tower = FoldedTower(dense, activation, calibration)
    inputs = Tensor(shape=[None, tower.wide.in_channels], dtype=ms.float32), Tensor(shape=[None], dtype=ms.float32)
    ms.export(tower, *inputs, file_name=str(folder / Path(TOWER).stem), file_format="MINDIR")
