"""Read the true click probabilities of a synthetic log, and compute the best metrics that a model can reach.

The file `LOG.truth.parquet` lies beside the log and has one row per line of the log, in the same order. Its columns are
row_number int64 (the line number, from 0), probability float64 and label int8.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.packages import python_command

TRUTH_SCHEMA = pa.schema([("row_number", pa.int64()), ("probability", pa.float64()), ("label", pa.int8())])


@dataclass(frozen=True)
class Best:
    """Metrics of a model that would predict the true click probability of each row.

    No model can be expected to reach better ones.
    """

    rows: int
    auc: float
    log_loss: float


def truth_path(log_path: Path) -> Path:
    """Return the path of the file with a log's true probabilities: for `train.txt` it is `train.txt.truth.parquet`."""
    return log_path.with_name(log_path.name + ".truth.parquet")


def read_truth(path: Path, row_numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the true click probabilities [n] float64 and the labels [n] int8 of rows of the log, in the given order.

    `row_numbers` [n] are the line numbers of the rows. Only the Parquet row groups that contain some of these rows are
    read, one at a time. Raise FileNotFoundError if there is no file at `path`, ValueError for a row number that the log
    does not have.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no true probabilities at {path}: only a synthetic log has them "
            f"({python_command('data_prep synthesize LOG --rows 1000000')})"
        )
    order = np.argsort(row_numbers, kind="stable")
    rows_in_order = np.asarray(row_numbers)[order]
    probability, label = np.empty(len(rows_in_order)), np.empty(len(rows_in_order), dtype=np.int8)
    with pq.ParquetFile(path) as file:
        total = file.metadata.num_rows
        if len(rows_in_order) and not 0 <= rows_in_order[0] <= rows_in_order[-1] < total:
            outside = rows_in_order[0] if rows_in_order[0] < 0 else rows_in_order[-1]
            raise ValueError(f"{path} has rows 0 to {total - 1:,}, asked for row {outside:,}: is it of another log?")
        first_row = 0
        for group in range(file.num_row_groups):
            end_row = first_row + file.metadata.row_group(group).num_rows
            here = slice(*np.searchsorted(rows_in_order, [first_row, end_row]))
            if here.start < here.stop:
                rows = file.read_row_group(group, columns=["probability", "label"])
                probability[order[here]] = rows["probability"].to_numpy()[rows_in_order[here] - first_row]
                label[order[here]] = rows["label"].to_numpy()[rows_in_order[here] - first_row]
            first_row = end_row
    return probability, label


def best_possible(path: Path, row_numbers: np.ndarray) -> Best:
    """Return AUC and log loss that the true click probabilities, as predictions, have on the labels of the given rows.

    The AUC is NaN if all labels are equal.
    """
    probability, label = read_truth(path, row_numbers)
    likelihood = np.where(label == 1, probability, 1 - probability)
    return Best(len(label), area_under_curve(probability, label), float(-np.log(likelihood).mean()))


def area_under_curve(score: np.ndarray, label: np.ndarray, rows: np.ndarray | None = None) -> float:
    """Return the area under the ROC curve (AUC) of predictions `score` [n] for labels `label` [n].

    It is computed from the ranks of the scores (Mann-Whitney U). Equal scores share their mean rank. If `rows` [n] is
    given, each score is the prediction for that number of rows, and its label is their number of clicks.

    >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    group = np.unique(score, return_inverse=True)[1]
    count, clicked = np.bincount(group, rows), np.bincount(group, label)
    rank = np.cumsum(count) - (count - 1) / 2
    clicks = int(clicked.sum())
    pairs = clicks * (int(count.sum()) - clicks)
    above = (rank * clicked).sum() - clicks * (clicks + 1) / 2
    return float(above / pairs) if pairs else float("nan")
