"""The parts of columns: against values worked out by hand, and their sums against the logits."""

import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from app.scoring.explain import INTERCEPT, parts_of_logits
from app.scoring.predictor import Predictor
from data_prep.encoding.from_values import mappings_to_chunk
from data_prep.kernels.numpy_kernels import parse_chunk
from data_prep.options.log_format import LogFormat

FOUR = LogFormat({"label": "label", **dict.fromkeys("abcd", "string")}, ",")


def rows_of(*cells):
    """Parsed rows with text in these of the columns a to d."""
    mappings = [{name: name if name in row else None for name in "abcd"} for row in cells]
    return parse_chunk(mappings_to_chunk(mappings, FOUR), FOUR).rows


def logits_by(function):
    """`function` of where each of the four columns is present [4, n]."""
    return lambda rows: function(np.array([rows.columns[name].present for name in "abcd"], np.float64)).astype(
        np.float32
    )


def test_pairs_share_what_they_do_together_from_the_first_order_on():
    logits = logits_by(lambda x: 0.5 + 2 * x[0] - x[1] + 4 * x[0] * x[1] - 8 * x[1] * x[3])
    found = parts_of_logits(rows_of("abcd", "ab", "bd", ""), FOUR, logits, 1)
    assert {name: part.tolist() for name, part in found.items()} == {
        INTERCEPT: [0.5, 0.5, 0.5, 0.5],
        "a": [4, 4, 0, 0],
        "b": [-1 + 2 - 4, 1, -1 - 4, 0],
        "c": [0, 0, 0, 0],
        "d": [-4, 0, -4, 0],
    }


def test_more_orders_come_close_if_three_columns_act_together():
    logits = logits_by(lambda x: 12 * x[0] * x[1] * x[2])
    far = parts_of_logits(rows_of("abc"), FOUR, logits, 1)["a"]
    near = parts_of_logits(rows_of("abc"), FOUR, logits, 300)["a"]
    assert abs(near[0] - 4) < 0.3 < abs(far[0] - 4)


def test_an_explanation_needs_an_order():
    with pytest.raises(ValueError, match="1 order of the columns or more; found orders=0"):
        parts_of_logits(rows_of("a"), FOUR, logits_by(lambda x: x[0]), 0)


def test_parts_add_up_to_the_logit_under_the_table_s_index(scored):
    predictor, rows = scored
    parts = predictor.explain(rows, orders=1)
    logits = predictor.logits(rows)
    assert list(parts.columns) == [INTERCEPT, *(name for name, _ in predictor.log_format.fields)]
    pd.testing.assert_index_equal(parts.index, rows.index)
    pd.testing.assert_series_equal(parts.sum(axis=1).astype(np.float32), logits, check_names=False)
    assert parts[INTERCEPT].nunique() == 1
    blank = dict.fromkeys(parts.columns[1:])
    assert np.float32(parts[INTERCEPT].iloc[0]) == predictor.logits([blank])[0]
    assert (parts.to_numpy()[:, 1:][rows[parts.columns[1:]].isna().to_numpy()] == 0).all()


def test_scores_are_a_series_under_the_table_s_index(scored):
    predictor, rows = scored
    scores = predictor.score(rows)
    assert (scores.name, scores.dtype) == ("score", np.float32)
    pd.testing.assert_index_equal(scores.index, rows.index)
    np.testing.assert_array_equal(scores, predictor.score(pa.Table.from_pandas(rows, preserve_index=False)))
    highest = rows.loc[scores.sort_values().index[-1:]]
    assert predictor.score(highest).iloc[0] == scores.max()
    assert len(predictor.score(rows.iloc[:0])) == len(predictor.explain(rows.iloc[:0])) == 0


def test_parts_do_not_depend_on_the_rows_beside_them_nor_on_their_form(scored):
    predictor, rows = scored
    parts = predictor.explain(rows.iloc[:20], orders=1)
    pd.testing.assert_frame_equal(predictor.explain(rows.iloc[7:9], orders=1), parts.iloc[7:9], check_exact=True)
    table = pa.Table.from_pandas(rows.iloc[:20], preserve_index=False)
    assert predictor.explain(table, orders=1).to_pydict() == parts.to_dict("list")
    mappings = table.to_pylist()
    pd.testing.assert_frame_equal(predictor.explain(mappings, orders=1), parts.reset_index(drop=True), check_exact=True)


def test_a_table_of_polars_gets_polars(scored):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    predictor, rows = scored
    table = polars.from_pandas(rows)
    scored_table = table.with_columns(predictor.score(table))
    assert scored_table["score"].to_list() == predictor.score(rows).to_list()
    assert predictor.explain(table, orders=1).to_dicts() == predictor.explain(rows, orders=1).to_dict("records")


def test_a_bad_row_is_named(scored):
    predictor, rows = scored
    bad = rows.astype(object).iloc[:3].to_dict("records")
    bad[1][next(name for name, kind in predictor.log_format.fields if kind in ("hex32", "string"))] = "x" * 70_000
    with pytest.raises(ValueError, match=r"row 1 cannot be scored: (categorical|too long)"):
        predictor.explain(bad)


def test_without_pandas_the_message_names_it(scored, monkeypatch):
    predictor, rows = scored
    mappings = pa.Table.from_pandas(rows.iloc[:1], preserve_index=False).to_pylist()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="has no pandas; run make setup"):
        predictor.explain(mappings, orders=1)


def test_a_time_is_explained_as_a_date(typed_bundle):
    predictor = Predictor.open(typed_bundle)
    row = predictor.example | {"seen": "1772319616000"}
    assert {effect.field: effect.value for effect in predictor.explain(row)}["seen"] == "2026-02-28 23:00:16 UTC"
    assert {effect.field: effect.value for effect in predictor.explain(row | {"seen": None})}["seen"] is None
