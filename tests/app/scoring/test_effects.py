"""Effects over many rows: against the explanations of the rows one by one, and the lines that are drawn."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.cli.bundle import add_arguments
from app.cli.predict import main
from app.scoring.effects import about_effects, effects_of_log, effects_of_rows


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
