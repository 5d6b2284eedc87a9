"""onnxruntime alone computes the scores that the bundle itself stores for its golden rows."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq


def test_onnxruntime_alone_gives_the_bundle_s_scores(
    folder: Path, commands: Callable[[str], list[str]], run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    *_, command = commands("ONNX with ids")
    golden = pq.read_table(folder / "bundle" / "golden.parquet")
    names = golden.column_names[: golden.column_names.index("logit")]
    rows = zip(*(golden[name].to_pylist() for name in names), strict=True)
    lines = ["\t".join(["0", *("" if cell is None else str(cell) for cell in row)]) for row in rows]
    Path("new.txt").write_text("\n".join([*lines, ""]))
    scores = np.array(run(command).stdout.split(), np.float32)
    np.testing.assert_allclose(scores, golden["score"].to_numpy(), atol=1e-5)
