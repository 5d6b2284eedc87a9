"""Run the tower with the wide head in onnxruntime. app/scoring/trained/write_tower.py builds the ONNX model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

TOWER = "tower.onnx"
# The bits of a matrix product may depend on its number of rows, so only these numbers are used. `OnnxTower` checks
# which of them give the same bits as MANY.
ONE, FEW, MANY = 1, 8, 256
# Maximum number of rows for which runs of this size are faster than one run of the next size.
MOST_ROWS = {ONE: 2, FEW: 96}


class OnnxTower:
    """tower.onnx in onnxruntime, for any number of rows. A row's logit does not depend on the other rows."""

    def __init__(self, path: Path, num_threads: int) -> None:
        """Load the model. Raise ValueError if onnxruntime cannot read the file."""
        # Import onnxruntime late: it takes a third of a second, and every command of `app` imports this file.
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
        # The arena would keep the largest amount of memory that any run used.
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        # onnxruntime's errors have no common base class.
        except Exception as error:
            raise ValueError(
                f"{path} cannot be used by onnxruntime {onnxruntime.__version__}: {error}; install the version of the "
                "bundle's requirements.txt"
            ) from error
        self._names = ("deep_rows", "wide_rows", "numeric")
        self._widths = [value.shape[1:] for value in self._session.get_inputs()]
        self._sizes = [*self._sizes_that_agree(), MANY]

    def _sizes_that_agree(self) -> Iterator[int]:
        """Yield the batch sizes that give every row the same bits as a batch of MANY rows, wherever the row stands."""
        generator = np.random.default_rng(0)
        inputs = [generator.standard_normal((MANY, *width), np.float32) for width in self._widths]
        expected = self._run(inputs)
        for size in MOST_ROWS:
            parts = [self._run([values[i : i + size] for values in inputs]) for i in range(0, MANY, size)]
            if np.array_equal(np.concatenate(parts), expected):
                yield size

    def __call__(self, deep_rows: np.ndarray, wide_rows: np.ndarray, numeric: np.ndarray) -> np.ndarray:
        """Return the logits [n], float32, of deep rows [n, C * D], summed wide rows [n] and numeric columns [n, N]."""
        if len(wide_rows) in self._sizes:
            return self._run([deep_rows, wide_rows, numeric])
        logits = np.empty(len(wide_rows), np.float32)
        start = 0
        while start < len(logits):
            remaining = len(logits) - start
            size = next(size for size in self._sizes if remaining <= MOST_ROWS.get(size, remaining))
            inputs = [_padded(values[start : start + size], size) for values in (deep_rows, wide_rows, numeric)]
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
