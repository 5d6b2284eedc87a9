"""Files of a log, also in folders such as `date=2026-11-01`, whose names give columns in files of every format."""

import itertools
import json
import logging
import os
import random
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


def names(inputs):
    return [file.name for file in find_log(inputs)]


def touch(folder, *files):
    for file in files:
        (folder / file).touch()


def test_criteos_log_that_is_missing_says_how_to_get_it(tmp_path):
    for name in ("data/dac.tar.gz", "train.txt"):
        with pytest.raises(FileNotFoundError, match=r"Criteo AI Lab.*make synthesize"):
            find_log(tmp_path / name)


def test_a_missing_log_of_ones_own_says_what_is_there(tmp_path):
    def refused(path):
        with pytest.raises(FileNotFoundError) as error:
            find_log(path)
        assert "Criteo" not in str(error.value)
        return str(error.value)

    assert "holds no log: expected train.txt" in refused(tmp_path) and "or part files" in refused(tmp_path)
    assert refused(tmp_path).endswith("found nothing")
    assert f"there is no folder {tmp_path / 'logs'}" in refused(tmp_path / "logs" / "clicks.csv")
    touch(tmp_path, "clicks.csv", ".hidden", "users.xlsx")
    assert f"did you mean {tmp_path / 'clicks.csv'}?" in refused(tmp_path / "click.csv")
    assert f"the folder {tmp_path} holds clicks.csv, users.xlsx" in refused(tmp_path / "2024-05-01.parquet")


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz", "dac.tar.gz"])
def test_a_folder_with_one_log_is_that_log(tmp_path, name):
    for file in (name, "test.txt", "readme.txt", f"{name}.truth.parquet"):
        (tmp_path / file).touch()
    assert [file.location for file in find_log(tmp_path)] == [str(tmp_path / name)]


def test_a_folder_with_several_logs_is_an_error(tmp_path):
    for name in ("train.txt", "dac.tar.gz"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"several logs \(dac.tar.gz, train.txt\)"):
        find_log(tmp_path)


def test_part_files_come_in_their_natural_order(tmp_path):
    days = [f"day_{day}.gz" for day in range(24)]
    for day in random.Random(1).sample(days, 24):
        (tmp_path / day).touch()
    touch(tmp_path, "README.md", "readme", "_SUCCESS", ".day_1.gz.crc", "day_0.gz.truth.parquet", "model.bin")
    assert names(tmp_path) == days
    assert names(str(tmp_path / "day_[0-9].gz")) == days[:10]
    assert names([tmp_path / "day_7.gz", tmp_path / "day_3.gz"]) == ["day_7.gz", "day_3.gz"]
    assert names(f"file://{tmp_path}/day_23.gz") == ["day_23.gz"]


@pytest.mark.parametrize("taken", [["train.txt"], ["day_0.gz", "day_1.gz"]])
def test_files_of_a_folder_that_are_skipped_are_named(tmp_path, caplog, taken):
    touch(tmp_path, *taken, "_SUCCESS", ".hidden", *(f"old{number}.bak" for number in range(11)))
    with caplog.at_level("INFO"):
        assert names(tmp_path) == taken
    assert caplog.messages == [
        f"these files of the folder {tmp_path} are not read as parts of the log: old0.bak, old1.bak, old2.bak, "
        "old3.bak, old4.bak and 6 more; to read one, give it as the input"
    ]
    caplog.clear()
    with caplog.at_level("INFO"):
        find_log(tmp_path / taken[0])
    assert caplog.messages == []


def test_a_part_of_a_folder_that_is_packed_in_another_way_is_said_to_be_so(tmp_path, caplog):
    touch(tmp_path, "day_1.csv.gz", "day_2.csv.xz", "notes.doc", "old.bak.zip")
    with caplog.at_level("INFO"):
        assert names(tmp_path) == ["day_1.csv.gz"]
    assert caplog.messages[0].endswith("give it as the input, packed by gzip or zstd instead: day_2.csv.xz")


def test_files_of_the_same_name_are_distinguished_by_their_folder(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        touch(tmp_path / folder, "part-0")
    assert names(str(tmp_path / "*" / "part-0")) == [str(tmp_path / folder / "part-0") for folder in "ab"]


def test_what_would_count_rows_twice_is_an_error(tmp_path):
    touch(tmp_path, "day_0", "day_0.gz", "day_1.gz")
    with pytest.raises(ValueError, match=r"holds day_0 and day_0.gz, which seem to be the same"):
        find_log(tmp_path)
    with pytest.raises(ValueError, match=r"names .*day_1.gz twice"):
        find_log([tmp_path / "day_1.gz", str(tmp_path / "*.gz")])
    (tmp_path / "link").symlink_to("day_0")
    for same in (f"{tmp_path}/./day_0", tmp_path / "link"):
        with pytest.raises(ValueError, match=r"names .*day_0 twice"):
            find_log([tmp_path / "day_0", same])


def test_pattern_without_a_file_is_quoted(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file matches .*day_\*\.gz \(quote the pattern"):
        find_log(str(tmp_path / "day_*.gz"))


def test_what_can_be_read_only_once_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "stream")
    for stream in (tmp_path / "stream", "/dev/null", "-"):
        with pytest.raises(ValueError, match="is a stream or a device, which can be read only once"):
            find_log(stream)


def test_a_link_that_leads_nowhere_is_an_error(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(FileNotFoundError, match="loop is a link that leads nowhere"):
        find_log(tmp_path / "loop")


@pytest.mark.parametrize("name", [b"day\xff", b"day\t1", b"day\n1"])
def test_a_name_that_rejects_tsv_cannot_have_is_an_error(tmp_path, name):
    (tmp_path / os.fsdecode(name)).touch()
    with pytest.raises(ValueError, match=r"the name of .*; rename the file"):
        find_log(tmp_path / os.fsdecode(name))


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
