"""Folders of Delta, Iceberg, Hudi and Paimon tables are recognized wherever one points into them."""

import pytest

from app.online.log_parts import open_source
from data_prep.checks.propose import describe
from data_prep.encoding.rows_to_score import LogToScore
from data_prep.options.log_format import LogFormat
from data_prep.pipeline.prepare import prepare
from data_prep.raw_log import log_files
from data_prep.raw_log.lake.lake_tables import _READERS
from data_prep.raw_log.log_files import find_log
from tests.data_prep.raw_log.test_storage import bucket_fixture  # noqa: F401 (a fixture)

TABLES = {  # kind: a file that shows it, and a data file
    "Delta": ("_delta_log/00000000000000000000.json", "date=2026-11-01/part-0.parquet"),
    "Iceberg": ("metadata/v1.metadata.json", "data/date=2026-11-01/a.parquet"),
    "Hudi": (".hoodie/hoodie.properties", "eu/a.parquet"),
    "Paimon": ("snapshot/snapshot-1", "bucket-0/data-1.parquet"),
}
INPUTS = ["{data}", "{folder}", "{folder}/*.parquet", "{top}/*/*.parquet", "{top}/*"]


def write_table(folder, kind):
    for name in (*TABLES[kind], "schema/schema-0"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def inputs_of(kind):
    data = TABLES[kind][1]
    names = {"data": data, "folder": data.rpartition("/")[0], "top": data.partition("/")[0]}
    return [each.format(**names) for each in INPUTS]


@pytest.mark.parametrize("kind", TABLES)
def test_no_way_into_a_table_is_taken(tmp_path, kind):
    table = write_table(tmp_path / "lake" / "table", kind)
    (tmp_path / "link").symlink_to(table / TABLES[kind][1])
    paths = [f"{table}/{each}" for each in inputs_of(kind)]
    is_read = kind in _READERS
    paths += [f"{tmp_path}/lake/*/*/*", f"{tmp_path}/link", *([] if is_read else [f"file://{table}", str(table)])]
    advice = f"Give the table's folder as the only input: {table}" if is_read else "Export the live rows"
    for path in paths:
        with pytest.raises(ValueError, match=rf"{table} is a table of {kind} \(it has .*{advice}"):
            find_log(path)


@pytest.mark.parametrize("kind", TABLES)
def test_tables_in_a_bucket_are_refused(bucket, kind):
    bucket.objects = dict.fromkeys((f"lake/t/{each}" for each in (*TABLES[kind], "schema/schema-0")), b"x")
    data = TABLES[kind][1]
    for path in (f"lake/t/{data}", f"lake/t/{data.rpartition('/')[0]}/*.parquet"):
        with pytest.raises(ValueError, match=rf"lake/t\?\S* is a table of {kind}"):
            find_log(bucket.uri(path))


def test_all_commands_refuse_a_table(tmp_path):
    table = str(write_table(tmp_path / "table", "Hudi"))
    for use in (
        describe,
        lambda log: prepare(log, tmp_path / "out"),
        lambda log: LogToScore.of([log], LogFormat()),
        lambda log: open_source(log, tmp_path, 0.0, {}),
    ):
        with pytest.raises(ValueError, match="is a table of Hudi"):
            use(table)


@pytest.mark.parametrize("name", ["metadata/notes.json", "schema/schema-0", "snapshot/day-1", "delta_log/0.json"])
def test_similar_folders_are_read(tmp_path, name):
    for file in (name, "part-0.csv"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert [file.name for file in find_log(tmp_path)] == ["part-0.csv"]


def test_each_folder_is_looked_at_once(tmp_path, monkeypatch):
    looked_at = []
    monkeypatch.setattr(log_files, "table_at", lambda folder: looked_at.append(folder))
    parts = [tmp_path / f"part-{number}.csv" for number in range(3)]
    for part in parts:
        part.write_text("1,2\n")
    assert len(find_log(parts)) == 3
    assert looked_at.count(str(tmp_path)) == 1
    assert len(looked_at) == len(set(looked_at))
