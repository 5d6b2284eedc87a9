"""MindSpore computes the logits that the bundle itself stores for its golden rows."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq


def test_mindspore_gives_the_bundle_s_logits(
    folder: Path, commands: Callable[[str], list[str]], run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    *_, command = commands("MindIR")
    logits = np.array(run(command).stdout.split(), np.float32)
    expected = pq.read_table(folder / "bundle" / "golden.parquet")["logit"].to_numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
