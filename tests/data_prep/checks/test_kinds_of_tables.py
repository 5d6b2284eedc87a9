"""describe guesses the kinds of generated tables such as others wrote; what it proposes is prepared uncorrected."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from data_prep.__main__ import main
from data_prep.checks.propose import describe
from data_prep.kernels.native import choose_kernels
from data_prep.options.log_format import VectorForm
from data_prep.prepared.schema import read_schema
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.reading import file_of_log, first_chunks
from tests.data_prep.checks import generated_tables

ROWS = 1_200


def base(seed=1):
    """A label that a shop decides, and the generator of the other columns."""
    random = np.random.default_rng(seed)
    shop = random.integers(0, 6, ROWS)
    click = (random.random(ROWS) < np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])[shop]).astype(int)
    return {"click": click, "shop": np.array([f"shop{number}" for number in shop])}, random


def prepared(log: Path, folder: Path) -> tuple[dict, int]:
    """The proposal of a log and the rows that its preparation rejects."""
    proposal = describe(str(log))
    (folder / "my.yaml").write_text(proposal.as_yaml())
    words = ["prepare", str(log), str(folder / "out"), "--data", str(folder / "my.yaml"), "prepare.workers=1"]
    assert main([*words, "prepare.integer_buckets=false"]) == 0
    read = yaml.safe_load(proposal.as_yaml())
    return read, yaml.safe_load((folder / "out" / "schema.json").read_text())["rejected_rows"]


@pytest.mark.parametrize(
    ("cells", "kind", "settings"),
    [
        (lambda r: r.choice(["Drama", "Noir", "Drama|Noir"]), "list",
         {"lists": {"x": {"separator": "|", "max_length": 2, "pool": "mean"}}}),
        (lambda r: "^".join(r.choice(list("abcd"), r.integers(1, 4), replace=False)), "list",
         {"lists": {"x": {"separator": "^", "max_length": 3, "pool": "mean"}}}),
        (lambda r: r.choice(["a|b", "c|d"]), "string", {}),
        (lambda r: f"{r.integers(0, 90)},{r.integers(0, 90)}", "float", {"decimal": ","}),
        (lambda r: r.choice(["NULL", "red", "blue", "green"]), "string", {"missing": ["NULL"]}),
        (lambda r: r.choice(["unknown", str(r.integers(0, 900))]), "integer", {"missing": ["unknown"]}),
        (lambda r: r.choice(["no tariff", *map(str, r.integers(0, 900, 3) / 8)]), "float", {"missing": ["no tariff"]}),
        (lambda r: f" {r.choice(['red', 'blue'])}", "string", {"trim": True}),
        (lambda r: r.choice([" ", *map(str, r.integers(0, 900, 20))]), "integer", {"trim": True}),
        (lambda r: f"0{r.integers(1000, 1300)}", "string", {}),
        (lambda r: r.choice(["TRUE", "true", "False", "?"]), "boolean", {"missing": ["?"]}),
        (lambda r: r.choice(["Y", "n", ""]), "boolean", {}),
        (lambda r: r.choice(["Y", "N", "U"]), "string", {}),
        (lambda r: r.choice(["0", "1"]), "integer", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_kind_of_a_column(tmp_path, cells, kind, settings):
    columns, random = base()
    columns["x"] = np.array([cells(random) for _ in range(ROWS)], object)
    read, rejected = prepared(generated_tables.write_csv(tmp_path / "log.csv", columns, ";"), tmp_path)
    assert (read["columns"]["x"], rejected) == (kind, 0)
    assert {name: read.get(name) for name in settings} == settings


@pytest.mark.parametrize("place", range(len(generated_tables.WRITTEN)))
def test_a_style_of_cells_is_recognized(tmp_path, place):
    """Each style alone: its kind, the form of its times and its remark; the preparation rejects no row of it."""
    name, _, kind, form, remark = style = generated_tables.WRITTEN[place]
    columns, random = base()
    columns[name] = generated_tables.written_cells(style, random, ROWS)
    log = generated_tables.write_csv(tmp_path / "log.csv", columns, ";")
    read, rejected = prepared(log, tmp_path)
    assert kind in ("", read["columns"][name])
    assert (read.get("timestamps", {name: ""}), rejected) == ({name: form}, 0)
    assert remark in _guesses(log)[name].reason
    values = {*columns[name]} - {*read.get("missing", [])}
    assert ("NA" in values) == (name == "country") and not values & {"inf", "-inf", "3e39", "#DIV/0!"}


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["\t", ",", " ,", "|", "parquet"]))
def test_columns_are_read_as_written(tmp_path_factory, seed, separator):
    columns, kinds, clicks = generated_tables.written_table(seed)
    log, is_table = tmp_path_factory.mktemp("log") / "log.csv", separator == "parquet"
    if is_table:
        pd.DataFrame(columns).to_parquet(log := log.with_suffix(".parquet"))
    else:
        columns = {name: cells for name, cells in columns.items() if not any(separator[-1] in cell for cell in cells)}
        spaced = {name: [separator[:-1] + cell for cell in cells] for name, cells in columns.items()}
        generated_tables.write_csv(log, {"click": columns["click"], **spaced}, separator[-1])
    proposal = describe(str(log))
    guesses = {guess.name: guess for guess in proposal.guesses}
    assert {name: guesses[name].kind for name in kinds if name in columns and not is_table} == {
        name: kind for name, kind in kinds.items() if name in columns and not is_table
    }
    assert (proposal.label.name, proposal.click_rate) == ("click", clicks.mean())
    log_format = proposal.as_format()
    assert yaml.safe_load(proposal.as_yaml())["columns"] == log_format.columns
    rows = choose_kernels("auto").parse_chunk(proposal.rows.chunk(log_format), log_format)
    assert len(rows.rows.labels) == len(clicks), rows.rejects_tsv[:300]
    values = [value for name in guesses if guesses[name].kind == "list" for value in _values(proposal, name)]
    assert not any(set(value) & set("[](' ~|") for value in values)


def _values(proposal, name):
    log_format, kernels = proposal.as_format(), choose_kernels("auto")
    rows = kernels.parse_chunk(proposal.rows.chunk(log_format), log_format).rows.with_lists(log_format, kernels)
    return {value.decode() for value in rows.lists[name].values.tolist()}


@pytest.mark.parametrize("of_type", [pa.list_(pa.float32()), pa.list_(pa.float64(), 8), pa.large_list(pa.float16())])
def test_describe_proposes_vectors_of_a_table(of_type):
    columns, random = base()
    rows = [
        None if row % 9 == 2 else each.tolist() for row, each in enumerate(np.float16(random.normal(size=(ROWS, 8))))
    ]
    proposal = describe(pa.table({**columns, "vector": pa.array(rows, of_type)}))
    assert proposal.as_format().vectors == {"vector": VectorForm(8)}
    assert yaml.safe_load(proposal.as_yaml())["vectors"] == {"vector": {"width": 8, "scale": "standardize"}}
    log_format = proposal.as_format()
    rows = choose_kernels("auto").parse_chunk(proposal.rows.chunk(log_format), log_format).rows
    assert np.count_nonzero(~rows.columns["vector"].present) == len(range(2, ROWS, 9))


@pytest.mark.parametrize(
    "spoil", [lambda row: row[:5], lambda row: [*row[:-1], math.nan], lambda row: [None, *row[1:]]]
)
def test_describe_ignores_vectors_that_differ(spoil):
    columns, random = base()
    rows = random.normal(size=(ROWS, 8)).tolist()
    for share, kind in ((ROWS, "vector"), (7, "ignored")):
        spoiled = [spoil(row) if number % share == 1 else row for number, row in enumerate(rows)]
        (guess,) = [each for each in describe(pa.table({**columns, "v": spoiled})).guesses if each.name == "v"]
        assert guess.kind == kind and ("rejected: 1" if kind == "vector" else "the same number") in guess.reason


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_a_frames_texts_are_its_rows(tmp_path, unit, zone):
    """A model described from a frame reads the CSV, JSON and Parquet that pandas writes of it."""
    columns, random = base()
    times = pd.Series(
        pd.to_datetime(generated_tables.START * 1000 + random.integers(0, 10**9, ROWS), unit="ms")
    ).dt.as_unit(unit)
    columns["seen"] = times.dt.tz_localize("UTC").dt.tz_convert(zone) if zone else times
    frame = pd.DataFrame(columns)
    frame.loc[::7, "seen"] = pd.NaT
    log_format = describe(frame).as_format()
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.warns(pd.errors.Pandas4Warning):  # it writes numbers
        frame.to_json(tmp_path / "b.jsonl", orient="records", lines=True)
    frame.to_json(tmp_path / "c.jsonl", orient="records", lines=True, date_format="iso")
    frame.to_parquet(tmp_path / "d.parquet")
    expected = times.where(frame["seen"].notna()).dt.as_unit("ms")
    for log in tmp_path.iterdir():
        (file,) = find_log(log)
        (_, task), *_ = first_chunks(file, log_format, file_of_log(0, "", 0, file, log_format), 1 << 20)
        parsed = choose_kernels("auto").parse_chunk(task.load(), log_format)
        values, present = parsed.rows.columns["seen"]
        assert not parsed.rejects_by_reason
        found = pd.Series(pd.to_datetime(values, unit="ms")).where(present).dt.as_unit("ms")
        assert found.equals(expected), log


@pytest.mark.parametrize("marks", [",.", ".,"])
def test_decimals_with_marks_between_thousands_are_named_as_numbers(tmp_path, marks):
    columns, random = base()
    columns["price"] = np.array(
        [f"{number:,.2f}".translate(str.maketrans(",.", marks)) for number in random.random(ROWS) * 9_000], object
    )
    (price,) = [
        each
        for each in describe(str(generated_tables.write_csv(tmp_path / "log.csv", columns, ";"))).guesses
        if each.name == "price"
    ]
    assert (price.kind, price.reason.split("; ")[1]) == (
        "string",
        "to have numbers, leave only digits, points and minus signs in its cells",
    )


def test_times_with_names_of_zones_are_named_as_times(tmp_path):
    columns, _ = base()
    columns["seen"] = np.array([f"2026-03-{1 + row % 28} 10:{row % 60:02} CE{'S' * (row % 2)}T" for row in range(ROWS)])
    seen = _guesses(generated_tables.write_csv(tmp_path / "log.csv", columns))["seen"]
    assert seen.kind == "string" and "times of several forms or zones: write all alike" in seen.reason


def test_blanks_and_quotes_after_separators(tmp_path):
    columns, random = base()
    columns["x"] = np.array([f' "a, {number}"' for number in random.integers(0, 5, ROWS)], object)
    columns = {" click": columns["click"], " shop": columns["shop"], " x": columns["x"]}
    read, rejected = prepared(generated_tables.write_csv(tmp_path / "log.csv", columns), tmp_path)
    assert (read["columns"], rejected) == ({"click": "label", "shop": "string", "x": "string"}, 0)
    assert (read["trim"], read["quotes"]) == (True, True)


def test_identifiers_and_texts_of_small_tables_are_ignored(tmp_path):
    columns, random = base()
    columns = {"PassengerId": np.arange(1, ROWS + 1), **columns, "price": random.normal(30, 4, ROWS)}
    columns["Name"] = np.array([f"name {number}" for number in random.permutation(ROWS)])
    columns = {name: cells[:300] for name, cells in columns.items()}
    kinds = {
        name: guess.kind for name, guess in _guesses(generated_tables.write_csv(tmp_path / "log.csv", columns)).items()
    }
    assert kinds == {
        "PassengerId": "ignored", "click": "label", "shop": "string", "price": "float", "Name": "ignored"
    }  # fmt: skip


def _guesses(log):
    return {guess.name: guess for guess in describe(str(log)).guesses}


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_the_index_of_a_sorted_table_is_no_column_and_leaks_are_left_out(tmp_path, kind):
    columns, random = base()
    columns |= {"status": np.where(columns["click"] == 1, "done", "open"), "hint": random.integers(0, 9, ROWS)}
    frame = pd.DataFrame(columns).sort_values("hint", kind="stable")
    if kind == "csv":
        frame.to_csv(log := tmp_path / "log.csv")
    elif kind == "parquet":
        frame.to_parquet(log := tmp_path / "log.parquet")
    else:
        log = frame
    proposal = describe(log if kind == "frame" else str(log))
    kinds = {guess.name: guess.kind for guess in proposal.guesses}
    assert kinds == {"click": "label", "shop": "string", "status": "ignored", "hint": kinds["hint"]}
    assert "AUC 1.000" in next(guess.reason for guess in proposal.guesses if guess.name == "status")
    assert (pa.Table.from_pandas(frame).num_columns, proposal.as_format().label_column) == (5, "click")
    first = "1,200 rows from all over" if kind == "parquet" else "the first 1,200 rows of"
    assert repr(proposal).startswith(f"# Proposed from {first} ")
    if kind != "frame":
        assert prepared(log, tmp_path)[1] == 0


def test_typed_headers(tmp_path):
    random = np.random.default_rng(5)
    columns = {
        "user_id:token": random.integers(0, 50, ROWS),
        "age:token": random.integers(18, 60, ROWS),
        "genres:token_seq": np.array([" ".join(random.choice(list("abc"), 2)) for _ in range(ROWS)]),
        "price:float": random.integers(0, 60, ROWS),
        "timestamp:float": random.integers(880_000_000, 890_000_000, ROWS),
        "rating:float": random.integers(1, 6, ROWS),
    }
    read, rejected = prepared(generated_tables.write_csv(tmp_path / "log.inter", columns, "\t"), tmp_path)
    assert [*read["columns"].values()] == ["string", "string", "list", "integer", "timestamp", "label"]
    assert (read["clicked"], read["lists"]["genres:token_seq"]["separator"], rejected) == (">= 3", " ", 0)


@pytest.mark.parametrize("declared", ["", ":float"])
def test_numbers_alone_keep_their_order(tmp_path, declared):
    random = np.random.default_rng(6)
    glucose, mass = f"glucose{declared}", f"mass{declared}"
    columns = {glucose: random.integers(50, 200, ROWS), mass: np.round(random.normal(30, 5, ROWS), 1)}
    columns["Outcome"] = (columns[glucose] + random.normal(0, 40, ROWS) > 140).astype(int)
    read, rejected = prepared(generated_tables.write_csv(tmp_path / "log.csv", columns), tmp_path)
    assert read["columns"] == {glucose: "integer", mass: "float", "Outcome": "label"}
    assert rejected == 0
    schema = read_schema(tmp_path / "out")  # a model needs a category, which says whether the first number is there
    assert [field.name for field in schema.categorical] == [f"{glucose}_present"]
    assert [field.source for field in schema.numeric if field.is_whole] == [glucose, mass]


def test_a_missing_label_is_optional(tmp_path):
    columns, random = base()
    columns["click"] = np.where(random.random(ROWS) < 0.1, "NULL", columns["click"].astype(str))
    read, rejected = prepared(generated_tables.write_csv(tmp_path / "log.csv", columns), tmp_path)
    assert (read["label"], read["missing"], rejected) == ("optional", ["NULL"], 0)


@pytest.mark.parametrize("rows", [1, 2, 3, 30])
def test_tables_of_few_rows(tmp_path, rows):
    columns = {
        "click": np.arange(rows) % 2,
        "x": [f"x{row}" for row in range(rows)],
        "amount": np.sin(np.arange(rows)) * 1e30,
    }
    path = generated_tables.write_csv(tmp_path / "log.csv", columns)
    if rows < 2:
        with pytest.raises(ValueError, match="no column looks like a label"):
            describe(str(path))
        return
    proposal = describe(str(path))
    assert (proposal.label.name, len(proposal.guesses)) == ("click", 3)
    assert proposal.as_yaml()


def test_carriage_returns_alone_are_refused_with_what_to_do(tmp_path, capsys):
    (tmp_path / "log.csv").write_bytes(b"click,shop\r1,a\r0,b\r" * 50)
    assert main(["describe", str(tmp_path / "log.csv")]) == 2
    assert "lines end in \\r alone" in capsys.readouterr().err


def _auc(columns, label, categories, numbers):
    """The AUC of a logistic regression on hashed categories, and numbers with their logarithms, on held-out rows."""
    count = len(columns[label])
    texts = [[f"{name}={columns[name][row]}" for name in categories] for row in range(count)]
    hashed = FeatureHasher(1 << 15, input_type="string", alternate_sign=False).transform(texts).tocsr()
    rows = np.random.default_rng(0).permutation(count)
    train, test = rows[: count * 4 // 5], rows[count * 4 // 5 :]
    if numbers:
        import scipy.sparse as sp

        dense = np.stack([np.log1p(columns[name].astype(float)) for name in numbers], axis=1)
        hashed = sp.hstack([hashed, (dense - dense.mean(axis=0)) / dense.std(axis=0)]).tocsr()
    model = LogisticRegression(C=0.3, max_iter=60, tol=1e-3).fit(hashed[train], columns[label][train])
    return roc_auc_score(columns[label][test], model.predict_proba(hashed[test])[:, 1])


@pytest.mark.parametrize("make", [generated_tables.access_table, generated_tables.ad_table])
def test_codes_that_are_numbers_cost_no_auc(tmp_path, make):
    columns, codes, amounts = make(15_000)
    guesses = _guesses(generated_tables.write_csv(tmp_path / "log.csv", columns))
    (label,) = [name for name, guess in guesses.items() if guess.kind == "label"]
    as_strings = [name for name, guess in guesses.items() if guess.kind == "string"]
    as_numbers = [name for name, guess in guesses.items() if guess.kind in ("integer", "float")]
    by_hand = _auc(columns, label, codes, amounts)
    assert _auc(columns, label, as_strings, as_numbers) > by_hand - 0.005
    assert _auc(columns, label, [], codes + amounts) < by_hand - 0.02  # what these tables are for
    assert any("log loss -" in guesses[name].reason for name in codes)


@pytest.mark.parametrize("kind", ["integer", "float"])
def test_rare_amounts_are_no_codes(kind):
    """Whether a value recurs tells much of the label here, but the values have no effects of their own."""
    random, count = np.random.default_rng(1), 8_000
    click = random.random(count) < 0.3
    bills = np.where(random.random(count) < 0.4 - 0.2 * click, 390, random.integers(0, 90_000, count))
    sizes = random.gamma(2, 40, count).round(1) + np.where(click, 0, random.integers(0, 1_000, count)) / 1e4
    table = pa.table({"click": click.astype(int), "x": bills if kind == "integer" else sizes})
    assert [each.kind for each in describe(table, label="click").guesses] == ["label", kind]


def test_values_of_a_table_are_shown_and_counted_as_a_log_of_it_has_them(tmp_path):
    """Also those of the label: a click that is written otherwise would be none."""
    columns, random = base()
    columns["click"] = np.where(columns["click"], 0.9, 0.1).astype(np.float32)
    columns["seen"] = np.array(["2026-03-01T10:00:00.5"], "datetime64[ns]").repeat(ROWS)
    columns["seen"] += random.integers(0, 2, ROWS).astype("timedelta64[h]")
    columns["weight_class"] = random.choice(np.array([0.25, 0.7], np.float32), ROWS)
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    read, rejected = prepared(tmp_path / "log.parquet", tmp_path)
    proposed = describe(str(tmp_path / "log.parquet")).as_yaml()
    assert (read["clicked"], read["not_clicked"], rejected) == (["0.9"], ["0.1"], 0)
    assert "2026-03-01 10:00:00.5" in proposed and "00.5000" not in proposed
    assert "0.7" in proposed and "0.699" not in proposed
