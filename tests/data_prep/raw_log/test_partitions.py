"""Logs in folders such as `date=2026-11-01`: the names of the folders give columns, in files of every format."""

import itertools
import json
import logging
from collections import Counter
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.checks.propose import describe
from data_prep.encoding.from_values import add_label
from data_prep.encoding.rows_to_score import LogToScore
from data_prep.kernels.parse import parse_chunk
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.storage import column_in
from tests.data_prep.raw_log.test_storage import bucket_fixture  # noqa: F401 (a fixture)
from tests.prepared_folders import ALL_TRAINED, contents, vocabulary_of

TEXTS = ["007", "2026-11-01 00:00:00", "a b", "x/y", "50%", "%20", "k=v", "ü", "a,b", 'q"q', "", "1.0"]
FORMAT = LogFormat(
    columns={"click": "label", "price": "float", "cat": "string"}, separator=",", header=True, quotes=True
)


def hive_name(text, safe=""):
    """The name of a folder for a value: as Arrow and DuckDB write it; polars and Spark escape fewer characters."""
    return f"cat={quote(text, safe=safe) or '__HIVE_DEFAULT_PARTITION__'}"


def write(path, rows, ending, own=True):
    """Write rows (mappings) into a file whose format the ending says; own: with the column `cat`."""
    path.mkdir(parents=True, exist_ok=True)
    rows = [{name: row[name] for name in row if own or name != "cat"} for row in rows]
    file = path / f"part-0{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif ending == ".feather":
        pa.feather.write_feather(pa.Table.from_pylist(rows), file)
    elif ending == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        doubled = ([str(cell).replace('"', '""') for cell in row.values()] for row in rows)
        lines = [",".join(f'"{cell}"' for cell in row) for row in doubled]
        file.write_bytes(b"".join(f"{line}\r\n".encode() for line in [",".join(rows[0])] * (ending == ".csv") + lines))
    return file


def rows_of(text, first=0):
    return [{"click": place % 2, "price": first + place + 0.5, "cat": text} for place in range(6)]


def write_log(folder, ending, own=False, safe=""):
    for place, text in enumerate(TEXTS):
        write(folder / hive_name(text, safe), rows_of(text, 10 * place), ending, own)
    return folder


def prepared(log, output, log_format=FORMAT):
    prepare(log, output, PrepareOptions(data=log_format, min_count=1, workers=1, **ALL_TRAINED))
    return {name: content for name, content in contents(output).items() if name not in ("schema.json", "timing.json")}


ENDINGS = [".parquet", ".feather", ".jsonl", ".csv", ".txt"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("own", "safe"), [(False, ""), (True, '",+'), (False, ' ",+ü')])
def test_rows_are_those_of_one_whole_file(tmp_path, ending, own, safe):
    log = write_log(tmp_path / "log", ending, own and ending != ".txt", safe)
    log_format = replace(FORMAT, header=ending != ".txt")
    text_of = {hive_name(text, safe): text for text in TEXTS}
    texts = [text_of[Path(file.location).parent.name] for file in find_log(log)]
    whole = write(tmp_path, [row for text in texts for row in rows_of(text, 10 * TEXTS.index(text))], ".csv")
    assert prepared(log, tmp_path / "a", log_format) == prepared(whole, tmp_path / "b")
    assert {value for _, value in vocabulary_of(tmp_path / "a")} == set(TEXTS)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("is_labelled", [True, False])
def test_rows_to_score_have_the_columns(tmp_path, ending, is_labelled):
    rows = [row if is_labelled else {"price": row["price"], "cat": ""} for row in rows_of("")]
    for text in TEXTS:
        write(tmp_path / hive_name(text), rows, ending, own=False)
    log_format = replace(FORMAT, header=ending != ".txt")
    log = LogToScore.of([str(tmp_path)], log_format, ["cat"])
    assert log.has_labels == is_labelled
    log_format = replace(log_format, label="optional")
    columns = [parse_chunk(add_label(chunk, log_format), log_format).rows.columns for chunk in log.chunks()]
    cells = itertools.chain(*(each["cat"].values.tolist() for each in columns))
    assert Counter(map(bytes.decode, cells)) == dict.fromkeys(TEXTS, 6)
    assert all(each["price"].present.all() for each in columns)


@pytest.mark.parametrize("ending", ENDINGS)
def test_describe_names_columns_of_folders(tmp_path, ending):
    proposal = describe(str(write_log(tmp_path, ending)))
    assert proposal.guesses[-1].name == "cat" and proposal.guesses[-1].kind == "string"
    assert {*proposal.rows.columns[-1].values} - {""} == {*TEXTS} - {""}  # from all folders
    assert "names of the log's folders (cat=…) give these columns: cat." in proposal.as_yaml()
    assert f"{6 * len(TEXTS)} of these rows are good" in proposal.as_yaml()


@pytest.mark.parametrize("ending", ENDINGS[:-1])
@pytest.mark.parametrize(("text", "cell"), [("7", "8"), ("7", None), ("", "7")])
def test_a_cell_that_contradicts_its_folder_is_named(tmp_path, ending, text, cell):
    write(tmp_path / hive_name("x"), rows_of("x"), ending)
    rows = [*rows_of(text or None)[:5], {"click": 1, "price": 0.5, "cat": cell}]
    file = write(tmp_path / hive_name(text), rows, ending)
    with pytest.raises(ValueError, match=rf"{file}: column 'cat' has '.*', and the name of its folder '{text}'"):
        prepare(tmp_path, tmp_path / "out", PrepareOptions(data=replace(FORMAT, missing=("None",)), workers=1))


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("007", 7),
        ("7.0", 7.0),
        ("1.50", 1.5),
        ("2026-11-01", date(2026, 11, 1)),
        ("2026-11-01 00:00:00.000000", datetime(2026, 11, 1)),
        ("true", True),
        ("", None),
        ("", float("nan")),
    ],
)
def test_typed_cells_may_equal_the_text_of_a_folder(tmp_path, name, cell):
    write(tmp_path / hive_name(name), [{"click": 0, "price": 1.0, "cat": cell}], ".parquet")
    (chunk,) = LogToScore.of([str(tmp_path)], FORMAT).chunks()
    assert chunk.lines == f"0\x1f1\x1f{name}\n".encode()


def test_folders_above_the_input_give_no_column(tmp_path, caplog):
    write(tmp_path / "date=1" / "hour=2", rows_of("a"), ".csv")
    for log, names in (
        (tmp_path, ["date", "hour"]),
        (tmp_path / "date=1", ["hour"]),
        (tmp_path / "*" / "*" / "*.csv", ["date", "hour"]),
        (tmp_path / "date=*", ["date", "hour"]),
        (tmp_path / "date=1" / "hour=*" / "*.csv", ["hour"]),
    ):
        assert [name for name, _ in find_log(str(log))[0].constants] == names
    with caplog.at_level(logging.INFO):
        (file,) = find_log(tmp_path / "date=1" / "hour=2" / "part-0.csv")
    assert file.constants == () and "names of folders above the input give no columns" in caplog.text
    log_format = replace(FORMAT, columns=FORMAT.columns | {"hour": "string"})
    with pytest.raises(ValueError, match=r"not found: hour;.* give the folder that holds hour=…, or the quoted glob"):
        prepare(file.location, tmp_path / "out", PrepareOptions(data=log_format))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a=1/x", "b=1/x"], r"a=1/x has a; \S*b=1/x has b"),
        (["a=1/x", "a=1/b=2/x"], r"a=1/b=2/x has a, b; \S*a=1/x has a"),
        (["a=1/x", "y"], r"a=1/x has a; \S*y has none"),
        (["a=1/a=2/x"], "two of its folders are named after the same column"),
        (["a=%FF/x"], "a=%FF is not UTF-8"),
        (["a=%0A/x"], "has a line end"),
        (["a=1/b/x"], "a=1/b is no folder of the form key=value"),
        (["a=1/x", "a=1/_delta_log/0.json"], "a=1 is a table of Delta"),
        (["a=1/x.csv", "a=1/x.csv.gz"], "which seem to be the same"),
    ],
)
def test_folders_that_do_not_fit_are_an_error(tmp_path, names, message):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=message):
        find_log(tmp_path)


def test_folders_are_read_in_natural_order(tmp_path):
    for name in ("a=10/x", "a=9/x", "a=09/x", "a=9/day_2", "a=9/day_10", "a=9/_SUCCESS", "_temporary/x", "a=9/.b=1/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [str(Path(file.location).relative_to(tmp_path)) for file in find_log(tmp_path)]
    assert found == ["a=9/day_2", "a=9/day_10", "a=09/x", "a=9/x", "a=10/x"]


def test_folders_of_a_bucket_give_columns(bucket):
    bucket.objects = {f"log/{hive_name(text)}/b=1/x.csv": b"x" for text in TEXTS}
    for log in ("log", "log/cat=*"):
        assert {dict(file.constants)["cat"] for file in find_log(bucket.uri(log))} == {*TEXTS}


def write_by(library, table, folder):
    """Write a table into folders by the values of `cat`, as a program does."""
    if library == "spark":
        session = pytest.importorskip("pyspark.sql").SparkSession.builder.master("local[1]").getOrCreate()
        session.createDataFrame(table.to_pylist()).write.partitionBy("cat").parquet(str(folder))
    elif library == "duckdb":
        pytest.importorskip("duckdb").sql(f"copy \"table\" to '{folder}' (format parquet, partition_by (cat))")
    elif library == "polars":
        polars = pytest.importorskip("polars")
        polars.from_arrow(table).write_parquet(f"{folder}/", partition_by="cat", mkdir=True)
    else:
        pytest.importorskip("pandas")
        table.to_pandas().to_parquet(folder, partition_cols=["cat"])


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb", "spark"])
def test_folders_of_other_programs_are_read(tmp_path, library):
    rows = [row for text in [*TEXTS, None] for row in rows_of(text)]
    write_by(library, pa.Table.from_pylist(rows), tmp_path / "log")
    proposal = describe(str(tmp_path / "log"))
    assert (proposal.guesses[-1].name, proposal.guesses[-1].kind) == ("cat", "string")
    chunks = LogToScore.of([str(tmp_path / "log")], FORMAT).chunks()
    found = Counter(line for chunk in chunks for line in chunk.lines.decode().split("\n")[:-1])
    assert found == Counter(f"{row['click']}\x1f{row['price']:g}\x1f{row['cat'] or ''}" for row in rows)


@given(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), min_size=1), st.text("a=%2 ü/"))
def test_names_are_decoded_once(key, text):
    assert column_in(f"{quote(key, safe='')}={quote(text, safe='=')}") == (key, text)


def test_a_text_with_the_separator_needs_quotes(tmp_path):
    write(tmp_path / hive_name("a,b"), rows_of("a,b"), ".txt", own=False)
    with pytest.raises(ValueError, match="'a,b', which contains the separator ','"):
        prepare(tmp_path, tmp_path / "out", PrepareOptions(data=replace(FORMAT, header=False, quotes=False)))
