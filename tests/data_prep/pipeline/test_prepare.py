"""Check what `prepare` writes, refuses and replaces. `kernels/test_third_voice.py` has a plain reader to compare."""

import dataclasses
import datetime
import decimal
import gzip
import itertools
import json
import logging
import random
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.files import lock_folder
from data_prep.encoding.rows_to_score import arrow_table
from data_prep.encoding.vocabulary import VocabularyWriter
from data_prep.execution.pieces import Pieces
from data_prep.execution.prepared_folder import OtherRun, partial_folder
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline import prepare as pipeline
from data_prep.pipeline.chunk_tasks import ChunkCounter
from data_prep.pipeline.prepare import prepare, prepare_table
from data_prep.prepared.data_files import row_numbers_file
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import SPLITS, read_schema
from data_prep.raw_log.formats import binary_kind
from tests.prepared_folders import contents
from tests.programs import run_python

ALL_TEST = {"train_fraction": 0, "valid_fraction": 0, "test_fraction": 1}


@pytest.mark.parametrize(
    ("num_good", "bad", "settings", "message"),
    [
        (100, "bad {}\n" * 7, {}, r"7 of 107 lines .*columns 7.*max_reject_fraction=0.01"),
        (100, "bad {}\n" * 7, {"vocabulary": "hash"}, r"7 of 107 lines .*columns 7"),  # in the only pass
        (0, "", {}, r"train.txt is empty; expected lines"),
        (0, "\n\n", {}, r"2 of 2 lines .* are bad \(columns 2\)"),
        (5, "", ALL_TEST, "none of 5 lines is a training row"),
    ],
)
def test_a_useless_log_is_an_error_and_leaves_nothing(tmp_path, make_log, num_good, bad, settings, message):
    (tmp_path / "train.txt").write_text(make_log(num_good) + bad.format(*range(7)))
    with pytest.raises(ValueError, match=message) as error:
        prepare(tmp_path, tmp_path / "out", PrepareOptions(workers=1, **settings))
    if bad.startswith("bad"):
        shown = [line for line in str(error.value).splitlines() if "\tcolumns\t" in line]
        assert shown == [f"{101 + i}\tcolumns\tbad {i}" for i in range(5)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.txt"]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ('0,"12,5 EUR",2014-01-02,a', "'price' of kind float, found '12,5 EUR'"),
        ("0,12.5,02.01.2014,a", "'seen' of kind timestamp in the form %Y-%m-%d, found '02.01.2014'"),
    ],
)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_cell_is_named_that_the_first_bad_line_is_rejected_for(tmp_path, cells, message, form):
    columns = {"click": "label", "price": "float", "seen": "timestamp", "site": "string"}
    log_format = LogFormat(columns, ",", header=True, quotes=True, timestamps={"seen": "%Y-%m-%d"})
    path = tmp_path / "log.csv"
    path.write_text(f"{','.join(columns)}\n0,1,2014-01-02,a\n" + f"{cells}\n" * 9)
    if form == "parquet":
        texts = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()))
        pq.write_table(pyarrow.csv.read_csv(path, convert_options=texts), tmp_path / "log.parquet")
        path = tmp_path / "log.parquet"
    with pytest.raises(ValueError, match=f"In the first one it is column {re.escape(message)}$"):
        prepare(path, tmp_path / "out", PrepareOptions(data=log_format, workers=1))


def test_a_truncated_gzip_leaves_nothing(tmp_path, log_path):
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(log_path.read_bytes())[:-1000])
    with pytest.raises(ValueError, match="damaged or was not downloaded to its end"):
        prepare(tmp_path, tmp_path / "out", PrepareOptions(workers=1), chunk_bytes=10_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.txt.gz"]


def test_a_log_that_grows_meanwhile_is_an_error(tmp_path, make_log, small_options, monkeypatch):
    path = tmp_path / "train.txt"
    path.write_text(make_log(500))
    finish = VocabularyWriter.finish

    def finish_and_grow(writer):
        finish(writer)
        path.write_text(make_log(501))

    monkeypatch.setattr(VocabularyWriter, "finish", finish_and_grow)
    with pytest.raises(ValueError, match="changed or vanished while it was read"):
        prepare(path, tmp_path / "out", small_options)
    assert not (tmp_path / "out").exists()


def test_an_error_while_writing_leaves_what_was_there(tmp_path, log_path, small_options, monkeypatch):
    prepare(log_path, tmp_path / "out", small_options)
    before = contents(tmp_path / "out")

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(VocabularyWriter, "add", no_space)
    with pytest.raises(OSError, match="no space left"):
        prepare(log_path, tmp_path / "out", dataclasses.replace(small_options, seed=2), overwrite=True)
    assert contents(tmp_path / "out") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.partial"]


def test_a_prepared_folder_is_replaced_only_when_asked(tmp_path, log_path, small_options):
    prepare(log_path, tmp_path / "out", small_options)
    with pytest.raises(FileExistsError, match=r"holds prepared data; replace it with --overwrite"):
        prepare(log_path, tmp_path / "out", small_options)
    prepare(log_path, tmp_path / "out", dataclasses.replace(small_options, seed=2), overwrite=True)
    assert read_schema(tmp_path / "out").options["seed"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_is_not_prepared_data_is_never_replaced(tmp_path, log_path, small_options):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(FileExistsError, match="is not a prepared folder"):
        prepare(log_path, tmp_path / "photos", small_options, overwrite=True)
    assert (tmp_path / "photos" / "cat.jpg").exists()


def test_hashed_values_need_one_reading(tmp_path, log_path, small_options, monkeypatch):
    monkeypatch.setattr(ChunkCounter, "count", None)
    options = dataclasses.replace(small_options, vocabulary="hash", oov_buckets=50)
    schema = prepare(log_path, tmp_path / "out", options)
    assert (schema.source["lines"], schema.vocabulary_size) == (3_000, 26 + 26 * 50 + 26)


def test_the_schema_says_where_a_synthetic_logs_truth_is(tmp_path, make_log, small_options):
    (tmp_path / "log.txt").write_text(make_log(100))
    assert prepare(tmp_path / "log.txt", tmp_path / "a", small_options).source["truth"] is None
    (tmp_path / "log.txt.truth.parquet").touch()
    source = prepare(tmp_path / "log.txt", tmp_path / "b", small_options).source
    assert source["truth"] == str(tmp_path / "log.txt.truth.parquet")


NUM_ROWS = 2_000


@pytest.fixture(scope="module")
def options(pytestconfig):
    words = ["min_count=3", "shuffle_window_rows=500", "workers=1", "max_reject_fraction=0.5"]
    words = [f"prepare.{word}" for word in words]
    return read_options(None, words, pytestconfig.rootpath / "configs" / "data" / "avazu.yaml")


@pytest.fixture(scope="module")
def avazu_log(tmp_path_factory, make_avazu):
    path = tmp_path_factory.mktemp("avazu") / "train.csv"
    path.write_text(make_avazu(NUM_ROWS))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory, avazu_log, options):
    folder = tmp_path_factory.mktemp("prepared") / "avazu"
    prepare(avazu_log, folder, options)
    return folder


def ids_of(folder, schema, split="test"):
    return np.concatenate([block.ids for block in read_blocks(folder, schema, split)])


def test_a_vocabulary_of_other_fields_is_refused(tmp_path, folder, avazu_log, options):
    columns = {name: kind for name, kind in options.data.columns.items() if name != "C21"}
    other = dataclasses.replace(options, data=dataclasses.replace(options.data, columns={**columns, "C22": "string"}))
    with pytest.raises(ValueError, match=r"other fields: only there C21 \(string\); only here C22 \(string\)\. Give"):
        prepare(avazu_log, tmp_path / "x", other, vocabulary_of=folder)


def test_each_file_needs_the_same_header(tmp_path, avazu_log, options):
    lines = avazu_log.read_text().splitlines()
    (tmp_path / "part-0.csv").write_text("\n".join(lines[:600]))
    for first_line, message in (
        (lines[0].replace("hour", "Hour"), "not found: hour; not expected: Hour;"),
        (",".join(reversed(lines[0].split(","))), "with others: ignored in that file columns are taken by name"),
        (lines[600], "each file of the log needs the line of names"),
    ):
        (tmp_path / "part-1.csv").write_text("\n".join([first_line, *lines[600:1200]]))
        with pytest.raises(ValueError, match=rf"part-1.csv: its first line names .*{message}"):
            prepare(sorted(tmp_path.glob("part-*.csv")), tmp_path / "new", options)


def test_a_log_of_another_form_says_which(tmp_path, avazu_log, options, small_options):
    with pytest.raises(
        ValueError, match=r"(?s)2,001 of 2,001 lines .*24 columns between ',', expected 40 columns .*--data my.yaml"
    ):
        prepare(avazu_log, tmp_path / "out", small_options)


def test_the_zoos_layout_takes_a_log_without_numeric_fields(tmp_path, folder, avazu_log, options):
    words = {"layout": "zoo"}
    schema = prepare(avazu_log, tmp_path / "zoo", dataclasses.replace(options, **words))
    blocks = list(read_blocks(tmp_path / "zoo", schema, "test"))
    assert {block.numeric.shape[1] for block in blocks} == {0}
    expected = ids_of(folder, read_schema(folder))
    assert np.array_equal(np.concatenate([block.ids for block in blocks]), expected)


def test_no_pandas_is_imported(tmp_path, avazu_log, pytestconfig):
    """Importing it takes a fifth of a second and 60 MB wherever it is installed."""
    script = (
        "import sys; from data_prep.__main__ import main; "
        f"status = main(['prepare', {str(avazu_log)!r}, {str(tmp_path / 'out')!r}, "
        "'--data', 'configs/data/avazu.yaml', 'prepare.min_count=1', 'prepare.workers=1']); "
        "assert (status, 'pandas' in sys.modules) == (0, False)"
    )
    run_python("-c", script, cwd=pytestconfig.rootpath)


cells = st.sampled_from([b"", b"0", b"-7", b"12345", b"9999999999"])
values = st.sampled_from([b"", b"0000000a", b"ffffffff", b"12ab34cd"]) | st.integers(0, 40).map(lambda i: b"%08x" % i)


@st.composite
def good_lines(draw):
    """A line drawn from few cells, so that values come often and seldom."""
    numbers, hexes = draw(st.lists(cells, min_size=3, max_size=3)), draw(st.lists(values, min_size=4, max_size=4))
    cycle = [b"01"[draw(st.booleans()) :][:1], *itertools.islice(itertools.cycle(numbers), 13)]
    return b"\t".join([*cycle, *itertools.islice(itertools.cycle(hexes), 26)])


bad_lines = st.sampled_from([b"", b"2\t1", b"\0", b"\xff\xfe", b"1\t" * 39, b"0\t" * 40, b"x" * 70_000]) | st.binary(
    max_size=30
).map(lambda line: line.replace(b"\n", b" "))
logs = st.builds(
    lambda lines, ends, last: (
        b"".join(line + end for line, end in zip(lines, itertools.cycle(ends), strict=False)) + last
    ),
    st.lists(st.one_of(good_lines(), good_lines(), good_lines(), bad_lines), min_size=30, max_size=120),
    st.lists(st.sampled_from([b"\n", b"\r\n"]), min_size=1, max_size=3),
    st.sampled_from([b"", b"a line without end"]),
)
all_options = st.builds(
    PrepareOptions,
    vocabulary=st.sampled_from(["counted", "counted", "hash"]),
    min_count=st.sampled_from([1, 2, 5]),
    oov_buckets=st.sampled_from([1, 3]),
    split=st.sampled_from(["hash", "chronological", "stratified"]),
    numeric_transform=st.sampled_from(["log1p", "max", "standardize", "log1p_standardize", "piecewise"]),
    integer_buckets=st.booleans(),
    shuffle_window_rows=st.sampled_from([7, 50, 1000]),
    max_reject_fraction=st.just(1.0),
    workers=st.just(1),
)


def prepare_or_error(log_path, output, options, **named):
    """The folder's bytes, or why there is none (no training row)."""
    try:
        prepare(log_path, output, options, **named)
    except ValueError as error:
        return str(error)
    return contents(output)


class Ended(BaseException):
    """In place of a kill."""


def prepare_with_ends(log_path, output, options, ends, **named):
    """The same by runs that end before they write as many pieces as `ends` says each, until one is through."""
    write = Pieces.write
    for end in [*ends, 10**9]:
        calls = itertools.count()

        def write_or_end(*words, calls=calls, end=end):
            if next(calls) == end:
                raise Ended
            write(*words)

        Pieces.write = write_or_end
        try:
            return prepare_or_error(log_path, output, options, **named)
        except Ended:
            pass
        finally:
            Pieces.write = write
    raise AssertionError("the last run is not ended")


@settings(max_examples=12)
@given(logs, all_options, st.sampled_from([100, 2_000]), st.lists(st.integers(0, 25), max_size=4))
@example(b"PK\x03\x04" + b"0\t\n" * 30, PrepareOptions(workers=1), 100, [])  # begins as a zip file does
def test_every_line_is_a_row_or_a_reject_however_it_is_cut_and_ended(tmp_path_factory, log, options, chunk_bytes, ends):
    folder = tmp_path_factory.mktemp("same")
    (folder / "train.txt").write_bytes(log)
    files = {"file_rows": 2 * options.block_rows}
    whole = prepare_or_error(folder / "train.txt", folder / "whole", options, **files)
    numpy = dataclasses.replace(options, kernels="numpy")
    cut = prepare_with_ends(folder / "train.txt", folder / "cut", numpy, ends, chunk_bytes=chunk_bytes, **files)
    assert cut == whole
    if isinstance(whole, str):
        assert "is no text" in whole if binary_kind(log) else "is a training row" in whole
        assert not (folder / "whole").exists()
        return
    num_lines = log.count(b"\n") + (not log.endswith(b"\n"))
    schema = prepare(folder / "train.txt", folder / "again", options, **files)
    assert schema.source["lines"] == num_lines
    assert sum(split.rows for split in schema.splits.values()) + schema.rejected_rows == num_lines
    rejects = whole["rejects.tsv"].split(b"\n")[:-1]
    rejected = {int(line.split(b"\t")[0]) - 1 for line in rejects}
    assert len(rejects) == len(rejected) == schema.rejected_rows
    others = [np.load(folder / "whole" / row_numbers_file(split)) for split in SPLITS if split != "train"]
    kept = set(np.concatenate(others).tolist())
    assert not kept & rejected
    assert kept | rejected <= set(range(num_lines))


DAY = datetime.datetime(2025, 3, 1, 17, 30, 5)
# By type of a pandas column: the kinds of which it may be, and its cells by numbers 0 to 29; of 29 missing, if it can.
COLUMNS = {
    "text": (("string", "ignored", "id"), lambda n: [None if i == 29 else f"Zürich, {i % 7}" for i in n]),
    "category": (("string", "id"), lambda n: pd.Categorical([None if i == 29 else f"c{i % 5}" for i in n])),
    "boolean": (("string", "integer"), lambda n: [i % 3 == 0 for i in n]),
    "whole": (("integer", "float", "string", "hex32"), list),
    "Int64": (("integer", "string"), lambda n: pd.array([None if i == 29 else i - 3 for i in n], "Int64")),
    "float": (("float", "string"), lambda n: [np.nan if i == 29 else i / 8 for i in n]),
    "float32": (("float",), lambda n: np.array([np.nan if i == 29 else i / 7 for i in n], np.float32)),
    "hex": (("hex32", "string"), lambda n: [f"{i * 2654435761 % 2**32:08x}" for i in n]),
    "decimal": (("float", "string"), lambda n: [decimal.Decimal(i) / 4 for i in n]),
    "times": (("timestamp",), lambda n: [DAY - datetime.timedelta(hours=i) for i in n]),
    "seconds": (("timestamp",), lambda n: np.array([DAY - datetime.timedelta(hours=i) for i in n], "datetime64[s]")),
    "zoned": (("timestamp",), lambda n: pd.to_datetime([DAY - datetime.timedelta(hours=i) for i in n], utc=True)),
    "date": (("timestamp", "string"), lambda n: [(DAY - datetime.timedelta(days=i)).date() for i in n]),
    "list": (("list",), lambda n: [None if i == 29 else [f"v{j}" for j in range(i % 4)] for i in n]),
}


def drawn_frame(seed, num_rows=200):
    """A table of columns of drawn types under an index in no order, and the format that describes it."""
    random_ = random.Random(seed)
    types = random_.sample(sorted(COLUMNS), random_.randint(3, 9))
    kinds = {name: random_.choice(COLUMNS[name][0]) for name in types}
    if not set(kinds.values()) & {"string", "hex32", "list", "timestamp"}:
        types, kinds = [*types, "text"], {**kinds, "text": "string"}
    cells = {name: COLUMNS[name][1]([random_.randrange(30) for _ in range(num_rows)]) for name in types}
    frame = pd.DataFrame({**cells, "label": [random_.random() < 0.3 for _ in range(num_rows)]})
    frame.index = random_.sample(range(num_rows), num_rows)
    lists = {name: ListForm() for name, kind in kinds.items() if kind == "list"}
    timestamps = {name: "milliseconds" for name, kind in kinds.items() if kind == "timestamp"}
    return frame, LogFormat({**kinds, "label": "label"}, lists=lists, timestamps=timestamps)


def options_of(log_format):
    return PrepareOptions(data=log_format, min_count=1, workers=1, shuffle_window_rows=100)


def contents_but_the_source(folder):
    """The bytes of each file, and the schema without the name and the checksum of the log, and its own of them."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    schema = json.loads(files.pop("schema.json"))
    for name in ("name", "size_bytes", "checksum", "files"):
        del schema["source"][name]
    del schema["checksum"]
    return files, schema


@pytest.mark.parametrize("seed", range(5))
def test_a_table_is_prepared_to_the_bytes_of_its_parquet_file(tmp_path, seed):
    frame, log_format = drawn_frame(seed)
    frame.to_parquet(tmp_path / "frame.parquet")
    options = options_of(log_format)
    prepare(tmp_path / "frame.parquet", tmp_path / "of_file", options)
    prepare_table(arrow_table(frame), tmp_path / "of_table", options)
    assert contents_but_the_source(tmp_path / "of_table") == contents_but_the_source(tmp_path / "of_file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frame.parquet", "of_file", "of_table"]


def test_a_table_of_polars_is_prepared_as_that_of_pandas(tmp_path):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = pd.DataFrame({name: COLUMNS[name][1](list(range(29)) * 10) for name in ("text", "whole", "times", "list")})
    frame["label"] = frame["whole"] % 3 == 0
    kinds = {"text": "string", "whole": "integer", "times": "timestamp", "list": "list", "label": "label"}
    options = options_of(LogFormat(kinds, timestamps={"times": "milliseconds"}))
    prepare_table(arrow_table(frame), tmp_path / "pandas", options)
    prepare_table(arrow_table(polars.from_pandas(frame)), tmp_path / "polars", options)
    assert contents_but_the_source(tmp_path / "polars") == contents_but_the_source(tmp_path / "pandas")


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """A table whose preparation was interrupted before its rows were written, and its options."""
    frame, log_format = drawn_frame(1)
    table, options = arrow_table(frame), options_of(log_format)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_splits", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare_table(table, tmp_path / "out", options)
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]
    return table, options


def test_the_same_call_resumes_and_keeps_the_first_pass(tmp_path, interrupted, caplog):
    table, options = interrupted
    caplog.set_level(logging.INFO)
    prepare_table(table, tmp_path / "out", options)
    assert "resuming" in caplog.text
    prepare_table(table, tmp_path / "whole", options)
    assert contents_but_the_source(tmp_path / "out") == contents_but_the_source(tmp_path / "whole")


def test_another_table_of_the_same_size_is_not_resumed(tmp_path, interrupted):
    table, options = interrupted
    labels = table["label"].to_pylist()
    other = table.set_column(table.schema.names.index("label"), "label", pa.array([labels[-1], *labels[:-1]]))
    with pytest.raises(OtherRun, match="unfinished and of another command: input was"):
        prepare_table(other, tmp_path / "out", options)
    (tmp_path / f"out.table-{'0' * 16}").mkdir()  # of a run that was killed
    (tmp_path / "out.table-of-mine").mkdir()
    prepare_table(other, tmp_path / "out", options, restart=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.table-of-mine"]


def test_an_error_leaves_no_file(tmp_path):
    frame, log_format = drawn_frame(2)
    with pytest.raises(ValueError, match=r"the table lacks columns .*: label; found"):
        prepare_table(arrow_table(frame.drop(columns="label")), tmp_path / "out", options_of(log_format))
    with pytest.raises(ValueError, match=r"200 of 200 lines .* are bad"):
        prepare_table(arrow_table(frame.assign(label="maybe")), tmp_path / "out", options_of(log_format))
    assert list(tmp_path.iterdir()) == []


def test_the_file_stays_for_another_process_that_prepares_the_same(tmp_path):
    frame, log_format = drawn_frame(3)
    partial = partial_folder(tmp_path / "out")
    partial.mkdir()
    with lock_folder(partial), pytest.raises(ValueError, match="another process prepares"):
        prepare_table(arrow_table(frame), tmp_path / "out", options_of(log_format))
    (path,) = tmp_path.glob("out.table-*/table.parquet")
    assert path.stat().st_mtime_ns == 0
