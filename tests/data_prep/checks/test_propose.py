"""The description that is proposed for a log prepares that log unedited."""

import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from data_prep.__main__ import main
from data_prep.checks.propose import describe
from data_prep.options.options_file import read_options
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import read_schema

SHIPPED = Path(__file__).parents[3] / "configs" / "data"


def prepare_as_described(log, folder, capsys):
    """Prepare `log` with its proposed description; return the description and the schema."""
    assert main(["describe", str(log)]) == 0
    text = capsys.readouterr().out
    (folder / "my.yaml").write_text(text)
    prepared = folder / "prepared"
    words = ["prepare", str(log), str(prepared), "--data", str(folder / "my.yaml"), "prepare.min_count=1"]
    assert main([*words, "prepare.workers=1"]) == 0
    return yaml.safe_load(text), read_schema(prepared)


def prepare_lines(lines, folder, capsys):
    """Prepare a log of these lines with its proposed description; return the description and the schema."""
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    return prepare_as_described(folder / "log.csv", folder, capsys)


def kinds_of(lines, folder):
    """The kinds that are proposed for the columns of a log of these lines, and the proposal as text."""
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    text = describe(str(folder / "log.csv")).as_yaml()
    return yaml.safe_load(text)["columns"], text


def test_an_avazu_log_is_prepared_as_described(make_avazu, tmp_path, capsys):
    (tmp_path / "train.csv").write_text(make_avazu(2_000))
    proposed, schema = prepare_as_described(tmp_path / "train.csv", tmp_path, capsys)
    kinds = proposed["columns"]
    assert (proposed["separator"], proposed["header"], kinds["click"], kinds["id"]) == (",", True, "label", "ignored")
    assert kinds["site_id"] == "hex32"
    assert (kinds["hour"], proposed["timestamps"]) == ("timestamp", {"hour": "%y%m%d%H"})
    assert kinds["device_type"] == kinds["C21"] == "string"
    assert schema.rejected_rows == 0


@pytest.mark.parametrize("header", [["click", "N", "A", "price", "user"], None])
def test_names_that_are_values_of_their_columns_too(tmp_path, capsys, header):
    random_ = random.Random(2)
    choices = "MNO", "ABC", ["", "0.5", "2", "7.25"], range(50)
    rows = [[int(random_.random() < 0.3), *map(random_.choice, choices)] for _ in range(500)]
    if header is None:  # the first row has no number, and is none of names
        rows = [["no" if click else "yes", *others] for click, *others in rows]
        rows[0][3:] = ["?", "?"]
    lines = [",".join(map(str, row)) for row in ([header] if header else []) + rows]
    proposed, schema = prepare_lines(lines, tmp_path, capsys)
    assert (list(proposed["columns"]), proposed.get("header", False)) == (
        header or [f"column_{number}" for number in range(1, 6)],
        header is not None,
    )
    assert sum(split.rows for split in schema.splits.values()) + schema.rejected_rows == len(rows)


def test_a_log_between_semicolons_with_quotes_and_missing_words(tmp_path, capsys):
    random_ = random.Random(1)
    rows = [
        f'{random_.choice(["yes", "no"])};{random_.choice(["17", "NULL", "4", "-3"])};"{random_.choice("abc")};x";0.5'
        for _ in range(500)
    ]
    proposed, schema = prepare_lines(rows, tmp_path, capsys)
    kinds = {"column_1": "label", "column_2": "integer", "column_3": "string", "column_4": "ignored"}
    words = {"separator": ";", "quotes": True, "missing": ["NULL"], "clicked": ["yes"], "not_clicked": ["no"]}
    assert proposed == {**words, "columns": kinds}
    assert schema.rejected_rows == 0


def test_broken_lines_and_cells_and_texts_with_spaces(tmp_path, capsys):
    """A space divides more of the lines alike than the comma does, for some lines have a comma too many."""
    random_ = random.Random(3)
    lines = ["when seen,user id,price,text,converted"]
    for number in range(2_000):
        price = "?" if number % 200 == 7 else f"{random_.random():.2f}"
        converted = "maybe" if number % 300 == 3 else random_.choice(["yes", "no"])
        when = f"2024-03-{random_.randrange(1, 29):02}T10:00:00Z"
        lines.append(f'{when},{random_.randrange(300)},{price},"buy {number % 9}, ""now""",{converted}')
        lines[-1] += ",more" * (number % 250 == 11)
    proposed, schema = prepare_lines(lines, tmp_path, capsys)
    kinds = {"when seen": "timestamp", "user id": "string", "price": "float", "text": "string", "converted": "label"}
    assert proposed["columns"] == kinds
    assert (proposed["separator"], proposed["clicked"], proposed["not_clicked"]) == (",", ["yes"], ["no"])
    assert proposed["missing"] == ["?"]
    assert schema.rejected_rows == 8 + 7


def test_a_decimal_comma_is_no_separator(tmp_path, capsys):
    lines = ["click;shop;price;size", *(f"{n * 7 % 3 % 2};{'abc'[n % 3]};{n},5;{n % 7},2" for n in range(500))]
    proposed, schema = prepare_lines(lines, tmp_path, capsys)
    assert proposed["columns"] == {"click": "label", "shop": "ignored", "price": "float", "size": "float"}
    assert (proposed["decimal"], schema.rejected_rows) == (",", 0)


def test_criteo_s_form_is_recognized(tiny_log, tmp_path, capsys):
    proposed, schema = prepare_as_described(tiny_log, tmp_path, capsys)
    assert list(proposed) == ["columns"]
    assert list(proposed["columns"])[:3] == ["label", "I1", "I2"]
    assert list(proposed["columns"].values()) == ["label", *["integer"] * 13, *["hex32"] * 26]
    assert schema.rejected_rows == 0


def test_a_parquet_log(tmp_path, capsys):
    random_ = random.Random(2)
    table = pa.table(
        {
            "user": [random_.choice(["ann", "bob", "eve"]) for _ in range(400)],
            "bought": [random_.random() < 0.3 for _ in range(400)],
            "price": [random_.choice([1.0, 2.0, None]) for _ in range(400)],
            "when": [random_.random() for _ in range(400)],
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    proposed, schema = prepare_as_described(tmp_path / "log.parquet", tmp_path, capsys)
    assert proposed["columns"] == {"user": "string", "bought": "label", "price": "integer", "when": "float"}
    assert schema.rejected_rows == 0


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_a_description_of_a_table_is_one_of_a_csv_file_of_it(tmp_path, capsys, ending):
    random_ = random.Random(3)
    user, price = ["ann", 'bob, "b"', "eve\t1", None], [0.5, 1.25, 3.0, None]
    rows = [
        {"user": random_.choice(user), "price": random_.choice(price), "bought": int(random_.random() < 0.3)}
        for _ in range(400)
    ]
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "log.parquet")
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table.to_pandas().to_csv(tmp_path / "log.csv", index=False)
    prepare_as_described(tmp_path / f"log.{ending}", tmp_path, capsys)
    words = ["prepare", str(tmp_path / "log.csv"), str(tmp_path / "of_csv"), "--data", str(tmp_path / "my.yaml")]
    assert main([*words, "prepare.min_count=1", "prepare.workers=1"]) == 0
    for name in ["train-00000.mindrecord", "valid-00000.mindrecord", "vocabulary.parquet"]:
        assert (tmp_path / "prepared" / name).read_bytes() == (tmp_path / "of_csv" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("names", "row", "kinds"),
    [
        ('click,"a, ""b""",c', '{n},"x, {n}",y{n}', {"click": "label", 'a, "b"': "string", "c": "string"}),
        (",click,c", "{row},{n},x{n}", {"click": "label", "c": "string"}),  # as pandas writes a table
    ],
    ids=["quoted", "numbered rows"],
)
def test_names_as_csv_has_them(tmp_path, capsys, names, row, kinds):
    lines = [row.format(row=number, n=number % 2) for number in range(200)]
    lines[7] = lines[7].replace("1,y1", "3,y3").replace("x1", "x3")  # no column is the label's
    proposed, schema = prepare_lines([names, *lines], tmp_path, capsys)
    assert proposed["columns"].keys() == kinds.keys()
    assert proposed["columns"]["click"] == "label"
    assert schema.rejected_rows == 0


def test_categories_that_no_row_has_are_no_values():
    frame = pd.DataFrame({"shop": ["a", "b"] * 50, "land": "de", "click": [0, 1, 1, 0] * 25}).astype("category")
    frame["land"] = frame["land"].cat.add_categories(["fr"])
    guesses = {each.name: each for each in describe(frame).guesses}
    assert guesses["land"].reason == "one value only: de" and guesses["shop"].reason.startswith("2 values")


@pytest.mark.parametrize(("asked", "expected"), [(250, 250), (1_000, 400)])
def test_rows_of_several_row_groups_are_looked_at(tmp_path, asked, expected):
    click = pa.array([row % 3 % 2 for row in range(400)])
    shop = pa.array([f"s{row // 100}" for row in range(400)]).dictionary_encode()
    pq.write_table(pa.table({"shop": shop, "click": click}), tmp_path / "log.parquet", row_group_size=100)
    proposal = describe(str(tmp_path / "log.parquet"), asked)
    assert proposal.rows.num_rows == expected
    assert proposal.guesses[0].reason.startswith("4 values")
    assert f"# {expected} of these rows are good" in proposal.as_yaml()


def test_the_types_of_a_parquet_log_decide(tmp_path, capsys):
    random_ = random.Random(4)
    rows = range(1_200)
    table = pa.table(
        {
            "seen": [datetime(1962, 3, 1, tzinfo=UTC) + timedelta(seconds=61 * row) for row in rows],
            "day": [date(2024, 3, 1 + row % 28) for row in rows],
            "tags": [["a|b", "c", None][: row % 3] if row % 7 else None for row in rows],
            "text": [b"xyz"[row % 3 :] for row in rows],
            "price": [Decimal(random_.randrange(1_000)) / 100 for _ in rows],
            "user_id": [Decimal(10**18 + random_.randrange(5)) for _ in rows],
            "more": [{"x": row} for row in rows],
            "clicks": [random_.choice([0, 0, 1, 2]) for _ in rows],
            "mobile": [random_.random() < 0.5 for _ in rows],
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    proposed, schema = prepare_as_described(tmp_path / "log.parquet", tmp_path, capsys)
    kinds = {"seen": "timestamp", "day": "timestamp", "tags": "list", "text": "string", "price": "float"}
    assert "# objects: give their keys columns of their own" in describe(str(tmp_path / "log.parquet")).as_yaml()
    kinds |= {"user_id": "string", "more": "ignored", "clicks": "label", "mobile": "boolean"}
    assert proposed["columns"] == kinds
    assert proposed["clicked"] == ">= 1"
    assert proposed["timestamps"] == {"seen": "iso", "day": "iso"}
    assert proposed["lists"] == {"tags": {"separator": ";", "max_length": 2, "pool": "mean"}}
    assert schema.rejected_rows == 0
    (users,) = [field for field in schema.categorical if field.name == "user_id"]
    assert users.num_values == 5 + 1  # and the missing one


@pytest.mark.parametrize(
    "written",
    [
        lambda number: f"2024-03-01T10:{number % 60:02}:07.{number % 1000:03}Z",
        lambda number: f"2024-03-01 10:{number % 60:02}:07+01:00",
    ],
)
def test_times_with_fractions_and_offsets(tmp_path, capsys, written):
    random_ = random.Random(5)
    lines = ["click,seen,price", *(f"{random_.randrange(2)}.0,{written(n)},{random_.random()}" for n in range(400))]
    proposed, schema = prepare_lines(lines, tmp_path, capsys)
    assert proposed["timestamps"] == {"seen": "iso"}
    assert (proposed["clicked"], schema.rejected_rows) == (["1.0"], 0)


def test_lines_of_another_encoding_are_counted(tmp_path, capsys):
    lines = ["click,city", *(f"{number % 2},{'Köln' if number % 4 == 1 else 'Bonn'}" for number in range(40))]
    (tmp_path / "log.csv").write_bytes("\n".join(lines).encode("latin-1"))
    found = "10 of these rows are not valid UTF-8 and will be rejected; convert the log: iconv"
    assert main(["describe", str(tmp_path / "log.csv")]) == 0
    output = capsys.readouterr()
    assert f"# {found}" in output.out and f"\nwrong: {found}" in output.err


def test_prepare_names_the_encoding_of_all_rejected_lines(tmp_path, capsys):
    lines = ["click,city", *(f"{row % 2},{['Омск', 'Москва', 'Казань'][row % 3]}" for row in range(200))]
    (tmp_path / "log.csv").write_bytes("\n".join(lines).encode("cp1251"))
    (tmp_path / "my.yaml").write_text("separator: ','\nheader: true\ncolumns: {click: label, city: string}")
    words = ["prepare", str(tmp_path / "log.csv"), str(tmp_path / "out"), "--data", str(tmp_path / "my.yaml")]
    assert main([*words, "prepare.workers=1"]) == 2
    assert "iconv -f CP1251 -t UTF-8 OLD > NEW" in capsys.readouterr().err


def test_names_of_another_encoding_are_reported(tmp_path):
    lines = ["click,größe", *(f"{number % 2},{number % 4}" for number in range(40))]
    (tmp_path / "log.csv").write_bytes("\n".join(lines).encode("latin-1"))
    (finding,) = describe(str(tmp_path / "log.csv")).findings
    assert (finding.what, finding.do[:7]) == ("the names of the columns are not valid UTF-8", "convert")


def make_movielens(num_rows, seed=6):
    """Text of a log as MovieLens's, ratings joined with movies; ratings follow the genres."""
    random_ = random.Random(seed)
    genres = ["Action", "Comedy", "Drama", "Horror", "Sci-Fi", "War", "Western"]
    movies = [sorted(random_.sample(genres, random_.choice([1, 2, 3, 4]))) for _ in range(200)]
    lines = ["userId,movieId,rating,timestamp,genres"]
    for _ in range(num_rows):
        movie = random_.randrange(200)
        stars = min(5, max(0.5, (7 if "Drama" in movies[movie] else 4) / 2 + random_.randrange(-2, 3) / 2))
        time = 1_100_000_000 + random_.randrange(200_000_000)
        lines.append(f"{random_.randrange(1, 80)},{movie},{stars:.1f},{time},{'|'.join(movies[movie])}")
    return "\n".join(lines) + "\n"


def test_a_log_of_ratings_with_lists_and_times(tmp_path, capsys):
    (tmp_path / "ratings.csv").write_text(make_movielens(2_000))
    proposed, schema = prepare_as_described(tmp_path / "ratings.csv", tmp_path, capsys)
    kinds = {"userId": "string", "movieId": "string", "rating": "label", "timestamp": "timestamp", "genres": "list"}
    assert proposed["columns"] == kinds
    assert proposed["clicked"].startswith(">= ")
    assert proposed["timestamps"] == {"timestamp": "seconds"}
    assert proposed["lists"] == {"genres": {"separator": "|", "max_length": 4, "pool": "mean"}}
    assert schema.rejected_rows == 0
    assert 0.2 < sum(split.clicks for split in schema.splits.values()) / 2_000 < 0.8
    options = read_options(data_path=SHIPPED / "movielens.yaml", overrides=["prepare.min_count=1", "prepare.workers=1"])
    shipped = prepare(tmp_path / "ratings.csv", tmp_path / "shipped", options)
    names = ["userId", "movieId", "genres", "timestamp_hour", "timestamp_weekday"]
    assert [field.name for field in shipped.categorical] == names
    assert (shipped.num_positions, shipped.rejected_rows) == (14, 0)


def test_a_timestamp_does_not_give_what_a_column_has(tmp_path, capsys):
    lines = [f"{n // 28 % 2},2024-03-{n % 28 + 1:02} {n % 24:02}:10:00,{n % 24},site {n % 7}" for n in range(500)]
    proposed, schema = prepare_lines(["click,when,when_hour,site", *lines], tmp_path, capsys)
    assert proposed["features"] == {"when": ["weekday"]}
    assert schema.rejected_rows == 0
    names = [field.name for field in (*schema.categorical, *schema.numeric)]
    assert {"when_weekday", "when_hour"} < set(names) and len(set(names)) == len(names)


def test_criteos_day_files_have_the_columns_of_its_contest():
    assert (
        read_options(None, [], SHIPPED / "criteo_1tb.yaml").data == read_options(None, [], SHIPPED / "criteo.yaml").data
    )


def test_what_no_model_should_see_is_ignored_with_its_reason(tmp_path):
    random_ = random.Random(3)
    lines = ["click,shop,order_id,country,clicked_at,comment"]
    for row in range(3_000):
        click = random_.random() < 0.4
        cells = [int(click), random_.choice("xyz"), 5_000_000 + 7 * row, "de", "a9" if click else "b9", f"text {row}"]
        lines.append(",".join(map(str, cells)))
    kinds, text = kinds_of(lines, tmp_path)
    assert kinds == {"click": "label", "shop": "string", **dict.fromkeys(lines[0].split(",")[2:], "ignored")}
    reasons = {line.split(":")[0].strip(): line.split("# ")[1] for line in text.splitlines() if ": ignored" in line}
    assert "identifier" in reasons["order_id"]
    assert "one value only" in reasons["country"]
    assert "predicts the label by itself (AUC 1.000)" in reasons["clicked_at"]
    assert "new value in nearly every row" in reasons["comment"]


@pytest.mark.parametrize("bad_line", ['1\t"a\t3', "1\t" + "x" * 200_000 + "\t3"], ids=["open quote", "too long"])
def test_a_bad_line_does_not_hide_the_others(tmp_path, bad_line):
    rows = [f"{row % 2}\t{'abc'[row % 3]}\t{row % 7}" for row in range(36_000)]  # more than csv takes for one cell
    kinds, _ = kinds_of([rows[0], bad_line, *rows[1:]], tmp_path)
    assert kinds == {"column_1": "label", "column_2": "string", "column_3": "integer"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no lines"),
        (b"abc\ndef\n", "no separator"),
        (b"a,b\n", "no rows"),
        (b"click,a,a\n" + b"1,x,y\n0,y,x\n" * 9, "its header names 'a' twice"),
        ("a,b\n".encode("utf-16"), "iconv -f UTF-16"),
        (b'{"click": 1, "c": "x"}\n{"click": 0, "c": "y"}\n', "ends in .jsonl; rename it"),
    ],
)
def test_what_cannot_be_described_is_refused(tmp_path, content, message, capsys):
    (tmp_path / "log.csv").write_bytes(content)
    assert main(["describe", str(tmp_path / "log.csv")]) == 2
    assert message in capsys.readouterr().err
