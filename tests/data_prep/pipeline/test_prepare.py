"""Check what `prepare` writes, refuses and replaces. `kernels/test_third_voice.py` has a plain reader to compare."""

import dataclasses
import gzip
import re

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from data_prep.encoding.vocabulary import VocabularyWriter
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.chunk_tasks import ChunkCounter
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.schema import read_schema
from tests.prepared_folders import contents

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
