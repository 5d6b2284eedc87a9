import numpy as np
import pytest

from app.tables.interface import TableState
from app.tables.row_statistics import SAMPLED_ROWS, merged, table_statistics


def test_norms_and_share_of_small_tables():
    rows = np.array([[3, 4], [0, 0]], np.float32)
    tables = {
        "wide": TableState(np.array([1, 7]), {"rows": np.array([[1], [-7]], np.float32)}),
        "deep": TableState(np.array([1, 7]), {"rows": rows}),
    }
    found = table_statistics(tables, 8)
    assert found == pytest.approx(
        {"touched_rows": 2, "touched_share": 0.25, "wide_row_norm": 5.0, "deep_row_norm": np.sqrt(12.5)}
    )


def test_an_untrained_run_has_no_rows():
    empty = {"wide": TableState(np.zeros(0, np.int64), {"rows": np.zeros((0, 1), np.float32)})}
    assert table_statistics(empty, 8) == {"touched_rows": 0, "touched_share": 0.0, "wide_row_norm": 0.0}


def test_of_many_rows_a_sample_over_all_of_them_is_taken():
    count = 3 * SAMPLED_ROWS
    values = np.where(np.arange(count) < count // 2, 1, 3).astype(np.float32)[:, None]
    found = table_statistics({"wide": TableState(np.arange(count), {"rows": values})}, count)
    assert found["wide_row_norm"] == pytest.approx(np.sqrt(5), rel=1e-3)


def test_parts_merge_into_the_statistics_of_all_rows():
    rng = np.random.default_rng(1)
    row_ids, rows = np.arange(90), rng.standard_normal((90, 4)).astype(np.float32)
    whole = table_statistics({"deep": TableState(row_ids, {"rows": rows})}, 1000)
    shards = [table_statistics({"deep": TableState(row_ids[i::4], {"rows": rows[i::4]})}, 1000) for i in range(4)]
    assert merged([*shards, table_statistics({}, 1000)]) == pytest.approx(whole)
    assert merged([whole]) is whole
