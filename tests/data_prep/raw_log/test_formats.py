"""Every format of the table is described, prepared and scored as the same rows in Parquet."""

import dataclasses
import re

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from data_prep.checks.propose import describe
from data_prep.encoding.rows_to_score import LogToScore, ending_of
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.raw_log import formats
from data_prep.raw_log.log_files import find_log, is_part
from tests.prepared_folders import contents

ROWS = 400
TABLE = pa.table(
    {
        "click": [number % 3 == 0 for number in range(ROWS)],
        "site": pa.array([f"s{number % 7}" for number in range(ROWS)]).dictionary_encode(),
        "price": [None if number % 5 == 0 else number / 8 for number in range(ROWS)],
    }
)
FORMAT = LogFormat({"click": "label", "site": "string", "price": "float"}, separator=",")
OPTIONS = PrepareOptions(min_count=1, workers=1, data=FORMAT)
WRITERS = {
    ".parquet": pq.write_table,
    ".jsonl": lambda table, path: table.to_pandas().to_json(path, orient="records", lines=True),
    ".feather": lambda table, path: pyarrow.feather.write_feather(table, path, chunksize=150),
    ".arrow": lambda table, path: pyarrow.feather.write_feather(table, path, "uncompressed"),
}


def written(folder, ending, table=TABLE):
    folder.mkdir()
    WRITERS[ending](table, folder / f"log{ending}")
    return folder / f"log{ending}"


@pytest.fixture(scope="module")
def of_parquet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parquet")
    path = written(folder / "log", ".parquet")
    prepare(path, folder / "prepared", OPTIONS)
    return path, folder / "prepared"


def lines_to_score(path):
    return b"".join(chunk.lines for chunk in LogToScore.of([str(path)], FORMAT).chunks())


def test_the_writers_cover_every_table():
    tables = {each.module for each in formats.FORMATS if each.is_table}
    assert tables == {formats.format_of(f"log{ending}").module for ending in WRITERS}


@pytest.mark.parametrize("ending", WRITERS)
def test_a_format_gives_the_rows_of_parquet(tmp_path, of_parquet, ending):
    parquet, prepared = of_parquet
    path = written(tmp_path / "log", ending)
    prepare(path.parent, tmp_path / "out", dataclasses.replace(OPTIONS, workers=2), chunk_bytes=1000)
    there, here = contents(prepared), contents(tmp_path / "out")
    assert there.pop("schema.json") and here.pop("schema.json")  # They name the file.
    assert here == there
    assert lines_to_score(path) == lines_to_score(parquet)
    settings = [describe(str(each), num_rows=300).settings for each in (path, parquet)]
    assert settings[0] == settings[1]


@pytest.mark.parametrize("ending", [".parquet", ".feather", ".arrow"])
@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_a_damaged_file_is_an_error(tmp_path, ending, damage):
    path = written(tmp_path / "log", ending)
    path.write_bytes({"cut": path.read_bytes()[:-100], "text": b"1,2,3\n" * 9, "empty": b""}[damage])
    name = formats.format_of(str(path)).name
    for read in (lambda: prepare(path, tmp_path / "out", OPTIONS), lambda: describe(str(path))):
        with pytest.raises(ValueError, match=rf"log{ending} is damaged or not a {name} file \("):
            read()


def test_flipped_bits_of_feather_never_crash(tmp_path):
    path = written(tmp_path / "log", ".arrow")
    content = path.read_bytes()
    random = np.random.default_rng(1)
    for _ in range(50):
        damaged = np.frombuffer(content, np.uint8).copy()
        damaged[random.integers(8, len(damaged), 20)] ^= random.integers(1, 256, 20, np.uint8)
        path.write_bytes(damaged.tobytes())
        try:
            with formats.format_of(str(path)).reader().open_reader(find_log(path)[0], FORMAT) as reader:
                for task, _ in reader.chunks(1000):
                    task.load()
        except ValueError as error:
            assert "log.arrow" in str(error)


def test_the_first_bytes_tell_the_ending(tmp_path):
    for ending in WRITERS:
        start = written(tmp_path / ending[1:], ending).read_bytes()[:100]
        assert formats.format_of(f"x{ending_of(start)}") == formats.format_of(f"x{ending}")
        if not formats.format_of(f"x{ending}").has_lines:
            assert re.search(rf"rename it to end in {ending_of(start)}", formats.binary_kind(start))
    assert [ending_of(start) for start in (b"1,2\n", b"\x1f\x8b\x08", b"")] == [".txt", ".gz", ".txt"]


def test_only_files_with_lines_are_unpacked():
    names = {"log.jsonl.gz": "json_lines", "log.parquet.gz": "text_lines", "log.csv.zst": "text_lines"}
    names |= {"s3://bucket/log.feather?region=x": "feather", "log.json": "json_lines", "train": "text_lines"}
    assert {name: formats.format_of(name).module for name in names} == names
    assert [is_part(name) for name in ("a.feather", "a.json", "a.parquet.gz", "a.jsonl.gz")] == [
        True,
        False,
        False,
        True,
    ]
