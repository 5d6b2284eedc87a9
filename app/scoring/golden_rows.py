"""Golden rows: made rows with their logits, by which a consumer checks what scores here."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq

from app.scoring.bundle_folder import GOLDEN, TOLERANCE
from app.scoring.bundle_model import BundleModel
from data_prep.encoding.from_table import table_to_chunk


def check_golden(model: BundleModel) -> int:
    """Score the golden rows and return their number. Raises ValueError naming the first that scores otherwise."""
    golden = pq.read_table(model.folder / GOLDEN)
    expected = golden["logit"].to_numpy()
    rows = golden.select([name for name, _ in model.log_format.fields])
    logits = model.score_chunk(table_to_chunk(rows, model.log_format)).logits
    bad = np.flatnonzero(are_apart(logits, expected, golden[TOLERANCE].to_numpy()))
    if bad.size:
        raise ValueError(
            f"row {bad[0]} of {model.folder / GOLDEN} has logit {logits[bad[0]]} here, expected {expected[bad[0]]}; "
            f"the packages here are {json.dumps(model.manifest.versions)} in the bundle: install requirements.txt"
        )
    return len(expected)


def are_apart(logits: np.ndarray, expected: np.ndarray, tolerances: np.ndarray | float) -> np.ndarray:
    """Return which of two evaluations of logits [n] differ by more than `tolerances`, bool [n].

    Values beyond float32 have no difference.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        same = (logits == expected) | (np.abs(logits - expected) <= tolerances)
    return ~(same | (np.asarray(tolerances) > np.finfo(np.float32).max))
