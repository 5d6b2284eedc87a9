"""Run a bundle's ONNX model (the hidden layers, and the sum with the wide part) in onnxruntime.
app/scoring/trained/write_tower.py builds the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

TOWER = "tower.onnx"
# Batch sizes in which the model is run. The bits of a matrix product may depend on its number of rows, so other sizes
# are padded to one of these. `OnnxTower` checks if the batch sizes ONE and FEW give the same bits as MANY, and does not
# use a size that gives other bits.
ONE, FEW, MANY = 1, 8, 256
# For the batch sizes ONE and FEW: up to how many rows it is faster to run the model several times with this batch size
# than once with the next larger batch size.
MOST_ROWS = {ONE: 2, FEW: 96}


class OnnxTower:
    """A bundle's tower.onnx in onnxruntime. It scores any number of rows, and the bits of a row's logit do not depend
    on the other rows.
    """

    def __init__(self, path: Path, num_threads: int) -> None:
        """Load the ONNX model at `path`. Raise ValueError if onnxruntime cannot read it."""
        # Import onnxruntime late: it takes a third of a second, and every command of `app` imports this file.
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
        # Do not use onnxruntime's memory arena, because it never gives memory back: it would keep as much as the
        # largest run needed.
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        # Catch all exceptions, because onnxruntime's errors have no common base class.
        except Exception as error:
            raise ValueError(
                f"{path} cannot be used by onnxruntime {onnxruntime.__version__}: {error}; install the version of the "
                "bundle's requirements.txt"
            ) from error
        self._names = [value.name for value in self._session.get_inputs()]
        self._widths = [value.shape[1:] for value in self._session.get_inputs()]
        self._sizes = [*self._sizes_that_agree(), MANY]

    def _sizes_that_agree(self) -> Iterator[int]:
        """Yield each batch size in MOST_ROWS with which random rows get exactly the same logits as in one batch of MANY
        rows.
        """
        generator = np.random.default_rng(0)
        inputs = [generator.standard_normal((MANY, *width), np.float32) for width in self._widths]
        expected = self._run(inputs)
        for size in MOST_ROWS:
            parts = [self._run([values[i : i + size] for values in inputs]) for i in range(0, MANY, size)]
            if np.array_equal(np.concatenate(parts), expected):
                yield size

    def __call__(self, deep_rows: np.ndarray, wide_rows: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        """Return the logits, float32 [n], of n rows: their deep rows side by side [n, C * D], the sums of their wide
        rows [n] and, as `numbers`, their numeric columns [n, N] and their vectors [n, K]. If the model has no vectors,
        they may be left out.
        """
        values = [deep_rows, wide_rows, *numbers][: len(self._names)]
        if len(wide_rows) in self._sizes:
            return self._run(values)
        logits = np.empty(len(wide_rows), np.float32)
        start = 0
        while start < len(logits):
            remaining = len(logits) - start
            size = next(size for size in self._sizes if remaining <= MOST_ROWS.get(size, remaining))
            inputs = [_padded(each[start : start + size], size) for each in values]
            logits[start : start + size] = self._run(inputs)[:remaining]
            start += size
        return logits

    def _run(self, inputs: list[np.ndarray]) -> np.ndarray:
        return np.asarray(self._session.run(["logits"], dict(zip(self._names, inputs, strict=True)))[0])


def _padded(values: np.ndarray, size: int) -> np.ndarray:
    if len(values) == size:
        return values
    padded = np.zeros((size, *values.shape[1:]), np.float32)
    padded[: len(values)] = values
    return padded
