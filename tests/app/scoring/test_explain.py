"""The parts of columns: against values worked out by hand, and their sums against the logits."""

import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.cli.bundle import add_arguments
from app.cli.predict import main
from app.scoring.explain import INTERCEPT, about_effects, effects_of_log, effects_of_rows, parts_of_logits
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


def test_they_are_the_means_of_the_explanations_of_the_rows(scored):
    """Lists with values that come twice, crosses, times and missing values too: by column, range and value."""
    predictor, rows = scored
    for name in predictor.log_format.columns_of_kind("list"):
        separator = predictor.log_format.list_form(name).separator
        rows[name] = [separator.join([cell, cell]) if isinstance(cell, str) and cell else cell for cell in rows[name]]
    log_format, table = predictor.log_format, predictor.effects(rows, values=1000)
    explained = pd.DataFrame([{e.field: e.change for e in predictor.explain(row)} for row in mappings(rows)])
    assert set(table["column"]) == set(explained) == {name for name, _ in log_format.fields}
    for line in table.to_dict("records"):
        cells, changes = rows[line["column"]].reset_index(drop=True), explained[line["column"]]
        if line["cells"] == "missing":
            changes = changes[is_missing(cells)]
            assert not changes.any()
        elif line["cells"] == "vector":
            changes = changes[cells.notna()]
        elif line["cells"] == "range":
            changes = changes[pd.to_numeric(cells).between(line["low"], line["high"])]
        elif line["cells"] in ("hour", "weekday"):
            times = pd.to_datetime(pd.to_numeric(cells), unit="ms")
            shown = (
                times.dt.hour.map("{:.0f}:00".format) if line["cells"] == "hour" else times.dt.day_name().str.lower()
            )
            changes = changes[shown == line["value"]]
        elif line["cells"] == "value":
            separator = log_format.list_form(line["column"]).separator if is_list(predictor, line["column"]) else None
            changes = changes[[has_value(cell, line["value"], separator) for cell in cells]]
        assert line["rows"] == len(changes) > 0, line
        assert line["mean_change"] == pytest.approx(changes.mean(), abs=1e-12)
        assert line["mean_absolute_change"] == pytest.approx(changes.abs().mean(), abs=1e-12)
    whole = table[table["cells"] == "all"]["mean_absolute_change"]
    assert whole.is_monotonic_decreasing and whole.iloc[0] > 0
    for name in log_format.time_fields:
        assert {*table["cells"][table["column"] == name]} - {"all", "missing"} == {"hour", "weekday"}, name
    covered = table[table["cells"] != "all"].groupby("column")["rows"].sum()
    assert all(covered[name] >= len(rows) for name in log_format.sized_fields)


def mappings(rows):
    return pa.Table.from_pandas(rows, preserve_index=False).to_pylist()


def is_list(predictor, name):
    return predictor.log_format.columns[name] == "list"


def is_missing(cells):
    return cells.isna() | cells.astype(str).isin(["", "nan", "None"])


def has_value(cell, value, separator):
    """`1` and `0` are the cells of a table's booleans in a log."""
    if separator is None:
        return str(cell) == {"true": "1", "false": "0"}.get(value, value)
    return value in str(cell).split(separator)


def test_a_table_of_arrow_gets_one(scored):
    predictor, rows = scored
    table = predictor.effects(pa.Table.from_pandas(rows, preserve_index=False))
    assert table.to_pydict() == effects_of_rows(predictor, predictor.parsed(rows)).to_pydict()


@pytest.fixture
def log(scored, tmp_path):
    """The rows of a bundle as a table of Parquet, 20 times: and the predictor."""
    predictor, rows = scored
    path = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pandas(pd.concat([rows] * 20), preserve_index=False), path, row_group_size=100)
    return predictor, path


def test_a_log_s_effects_are_those_of_its_rows(log, scored):
    predictor, path = log
    whole, rows = effects_of_log(predictor, [str(path)]), effects_of_rows(predictor, predictor.parsed(scored[1]))
    assert about_effects(whole)["rows"] == 20 * len(scored[1])
    of_log, of_rows = (
        {line["column"]: line["mean_change"] for line in table.to_pylist() if line["cells"] == "all"}
        for table in (whole, rows)
    )
    assert of_log == pytest.approx(of_rows, abs=1e-9)


def test_a_draw_depends_on_its_seed_and_on_no_chunk(log, monkeypatch):
    predictor, path = log
    first = effects_of_log(predictor, [str(path)], most_rows=150)
    assert {name: about_effects(first)[name] for name in ("lines", "drawn", "rows", "seed")} == {
        "lines": pq.read_metadata(path).num_rows, "drawn": 150, "rows": 150, "seed": 1
    }  # fmt: skip
    monkeypatch.setattr("data_prep.encoding.rows_to_score._CHUNK_BYTES", 3_000)
    assert effects_of_log(predictor, [str(path)], most_rows=150).equals(first)
    assert effects_of_log(predictor, [str(path)], most_rows=150, seed=2).column("mean_change") != first.column(
        "mean_change"
    )


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_command_prints_and_writes_them(log, tmp_path, capsys, ending):
    predictor, path = log
    output = tmp_path / f"effects.{ending}"
    words = ["effects", str(predictor.folder), str(path), "--rows", "100", "--output", str(output)]
    assert main(add_arguments, "app.cli.bundle", words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("effects over 100 good ones of 100 lines, of 2,000 in all: mean absolute change")
    assert len(printed) == 2 + len(predictor.log_format.fields) and printed[-1] == str(output)
    table = pd.read_csv(output) if ending == "csv" else pd.read_parquet(output)
    assert table["rows"].max() == 100 and np.isfinite(table["mean_change"]).all()


def test_what_cannot_be_done_is_refused(log, tmp_path, caplog):
    predictor, path = log
    for words, message in (
        (["--output", "effects.txt"], "expected a .csv or .parquet file"),
        (["--rows", "0"], "expected 1 row and 1 value or more, found 0"),
    ):
        assert main(add_arguments, "app.cli.bundle", ["effects", str(predictor.folder), str(path), *words]) == 2
        assert message in caplog.text
