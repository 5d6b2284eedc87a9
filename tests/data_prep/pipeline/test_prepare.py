"""Check what `prepare` writes, refuses and replaces. `kernels/test_third_voice.py` has a plain reader to compare."""

import dataclasses
import gzip
import itertools
import re

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import xxhash

from data_prep.encoding.vocabulary import VocabularyWriter
from data_prep.kernels.numpy_kernels import bucket
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.chunk_tasks import ChunkCounter
from data_prep.pipeline.prepare import prepare
from data_prep.pipeline.split import RowsToSplit, make_split
from data_prep.prepared.data_files import block_sizes, row_numbers_file
from data_prep.prepared.reader import read_files
from data_prep.prepared.schema import read_schema
from tests.prepared_folders import contents


def read_split(folder, split):
    """ids [n, C], numeric [n, N], labels [n] of a whole split."""
    schema = read_schema(folder)
    blocks = list(read_files(folder, [file.name for file in schema.splits[split].files]))
    assert [len(block.labels) for block in blocks] == block_sizes(schema, split)
    return [np.concatenate([getattr(block, name) for block in blocks]) for name in ("ids", "numeric", "labels")]


def test_another_seed_splits_and_orders_otherwise(tmp_path, prepared, log_path, small_options):
    prepare(log_path, tmp_path / "other", dataclasses.replace(small_options, seed=2))
    name = row_numbers_file("test")
    assert not np.array_equal(np.load(tmp_path / "other" / name), np.load(prepared / name))


def test_the_training_rows_are_not_in_the_logs_order(prepared, log_path, small_options):
    lines = [line.split("\t") for line in log_path.read_text().splitlines()]
    split = make_split(small_options, lambda: len(lines), None).assign(RowsToSplit(np.arange(len(lines))))
    _, numeric, _ = read_split(prepared, "train")
    in_order = np.array([float(lines[row][2] == "") for row in np.flatnonzero(split == 0)], np.float32)
    assert not np.array_equal(numeric[:, 14], in_order)
    # Each window of 500 keeps its rows.
    for first in range(0, len(in_order), 500):
        assert numeric[first : first + 500, 14].sum() == in_order[first : first + 500].sum()


def test_parts_give_the_rows_of_the_whole_and_name_bad_lines(tmp_path, prepared, log_path, small_options):
    lines = log_path.read_bytes().splitlines(keepends=True)
    parts = [lines[:1000], [b"bad\n", *lines[1000:1001], b"worse"], lines[1001:]]
    (tmp_path / "part-2.txt").write_bytes(b"".join(parts[0]))
    (tmp_path / "part-10.txt.gz").write_bytes(gzip.compress(b"".join(parts[1])))
    (tmp_path / "part-11.txt").write_bytes(b"".join(parts[2]))
    schema = prepare(tmp_path, tmp_path / "out", dataclasses.replace(small_options, workers=2), chunk_bytes=50_000)
    assert (tmp_path / "out" / "rejects.tsv").read_text() == (
        "part-10.txt.gz:1\tcolumns\tbad\npart-10.txt.gz:3\tcolumns\tworse\n"
    )
    assert [file["lines"] for file in schema.source["files"]] == [1000, 3, 1999]
    assert (schema.source["lines"], schema.rejected_rows) == (3_002, 2)

    (tmp_path / "parts").mkdir()
    for number, first in enumerate(range(0, 3000, 700)):
        (tmp_path / "parts" / f"day_{number + 8}").write_bytes(b"".join(lines[first : first + 700]))
    prepare(tmp_path / "parts", tmp_path / "again", small_options)
    there, here = contents(tmp_path / "again"), contents(prepared)
    assert there.pop("schema.json") != here.pop("schema.json")  # it names the files
    assert there == here


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


def test_the_schema_says_where_a_synthetic_logs_truth_is(tmp_path, make_log, small_options):
    (tmp_path / "log.txt").write_text(make_log(100))
    assert prepare(tmp_path / "log.txt", tmp_path / "a", small_options).source["truth"] is None
    (tmp_path / "log.txt.truth.parquet").touch()
    source = prepare(tmp_path / "log.txt", tmp_path / "b", small_options).source
    assert source["truth"] == str(tmp_path / "log.txt.truth.parquet")


def vocabulary_of(folder):
    return pq.read_table(folder / "vocabulary.parquet").to_pandas()


def test_hashed_values_need_one_reading(tmp_path, prepared, log_path, small_options, monkeypatch):
    monkeypatch.setattr(ChunkCounter, "count", None)
    options = dataclasses.replace(small_options, vocabulary="hash", oov_buckets=50)
    text = log_path.read_text()
    (tmp_path / "train.txt").write_text("bad line\n" + text)
    schema = prepare(tmp_path / "train.txt", tmp_path / "out", options)
    assert (schema.source["lines"], schema.rejected_rows) == (3_001, 1)
    assert (tmp_path / "out" / "rejects.tsv").read_text() == "1\tcolumns\tbad line\n"
    assert schema.vocabulary_size == 26 + 26 * 50 + 26

    lines = [line.split("\t") for line in text.splitlines()]
    ids = read_split(tmp_path / "out", "test")[0]
    rows = np.load(tmp_path / "out" / row_numbers_file("test")) - 1
    for field in range(26):
        cells = [lines[row][14 + field] for row in rows]
        hashed = bucket(np.array([int(cell or "0", 16) for cell in cells], np.uint32), 50)
        first_oov, missing_id = 26 + 50 * field, 26 + 26 * 50 + field
        expected = [first_oov + h if cell else missing_id for cell, h in zip(cells, hashed, strict=True)]
        assert ids[:, field].tolist() == expected
    split = make_split(options, lambda: 0, None).assign(RowsToSplit(np.arange(1, 3_001)))
    missing = [sum(lines[row][14 + field] == "" for row in np.flatnonzero(split == 0)) for field in range(26)]
    assert vocabulary_of(tmp_path / "out")["count"].tolist() == missing


def test_whole_files_are_a_split(tmp_path, log_path, small_options):
    lines = log_path.read_bytes().splitlines(keepends=True)
    bounds = [0, 1000, 1600, 2700, 3000]
    for day, (first, end) in enumerate(itertools.pairwise(bounds)):
        (tmp_path / f"day_{day}.txt").write_bytes(b"".join(lines[first:end]))
    options = dataclasses.replace(
        small_options, split="files", valid_files=("day_3.txt",), test_files=("day_1*",), workers=2
    )
    schema = prepare(tmp_path, tmp_path / "out", options, chunk_bytes=30_000)
    assert [split.rows for split in schema.splits.values()] == [2100, 300, 600]
    assert np.load(tmp_path / "out" / row_numbers_file("test")).tolist() == list(range(1000, 1600))
    train = np.array([*range(1000), *range(1600, 2700)], np.int64)
    assert schema.splits["train"].membership == f"xxh3:{xxhash.xxh3_64(train.tobytes()).hexdigest()}"


def test_the_schema_says_which_rows_a_split_has(prepared):
    schema = read_schema(prepared)
    for name in ("valid", "test"):
        row_numbers = np.load(prepared / row_numbers_file(name))
        assert schema.splits[name].membership == f"xxh3:{xxhash.xxh3_64(row_numbers.tobytes()).hexdigest()}"
    everything = set(range(3_000))
    for name in ("valid", "test"):
        everything -= set(np.load(prepared / row_numbers_file(name)).tolist())
    train = np.array(sorted(everything), np.int64)
    assert schema.splits["train"].membership == f"xxh3:{xxhash.xxh3_64(train.tobytes()).hexdigest()}"
