"""Versions of a Delta table as parts: each is trained on once, with the bits of the same rows in files."""

import json
import logging
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from app.online.log_parts import Ledger
from app.online.table_versions import open_source
from data_prep.options.log_format import LogFormat
from tests.app.online.test_log_parts import take_all
from tests.app.online.test_online_trainer import (
    assert_same_end,
    checkpoints_of,
    kill_at_random,
    never_killed,  # noqa: F401 (a fixture)
)
from tests.kills import num_kills


def rows_of(part):
    """The rows of a file in Criteo's format as a table."""
    rows = [[cell or None for cell in line.split("\t")] for line in part.read_text().splitlines()]
    columns = dict(zip(LogFormat().columns, zip(*rows, strict=True), strict=True))
    of_kind = {"integer": pa.int64(), "label": pa.int32()}
    types = {name: of_kind.get(kind, pa.string()) for name, kind in LogFormat().columns.items()}
    return pa.table({name: pa.array(column).cast(types[name]) for name, column in columns.items()})


def append(folder, *numbers):
    write_deltalake(folder, pa.table({"number": numbers}), mode="append")


def compact(folder):
    DeltaTable(folder).optimize.compact()


def vacuum(folder):
    DeltaTable(folder).vacuum(0, dry_run=False, enforce_retention_duration=False)


def entry(folder, version):
    return Path(folder, "_delta_log", f"{version:020}.json")


def taken(source):
    """Names of the versions that are trained on, and those that are held aside with their reasons."""
    ledger, _ = take_all(source, Ledger())
    return list(ledger.trained), source.held


def test_versions_have_the_bits_of_files(make_online, never_killed, parts, caplog):  # noqa: F811
    folder = make_online("table")
    for part in parts[:2]:
        write_deltalake(folder.source, rows_of(part), mode="append")
    compact(folder.source)
    assert folder.run() == 0
    DeltaTable(folder.source).delete("I1 = 1")
    write_deltalake(folder.source, rows_of(parts[2]), mode="append")
    assert folder.run() == folder.run() == 5
    assert_same_end(folder, never_killed)
    newest = checkpoints_of(folder)["step-00000009"]
    assert list(newest.online["trained"]) == ["version-0", "version-1", "version-4"]
    held = json.loads((folder.path / "online/status.json").read_text())["held"]
    assert list(held) == ["version-3"] and "removes or replaces rows" in held["version-3"]
    for part in parts[3:]:
        write_deltalake(folder.source, rows_of(part), mode="append")
    compact(folder.source)
    vacuum(folder.source)
    assert folder.run() == 2
    assert "version 5 of the Delta table" in caplog.text and "has lost data files" in caplog.text
    assert len(checkpoints_of(folder)) == 4


def test_each_version_that_appends_is_taken_in_order(tmp_path, caplog):
    table = tmp_path / "table"
    for number in range(12):
        append(table, number, number)
    compact(table)
    write_deltalake(table, pa.table({"number": [7]}), mode="overwrite")
    append(table, 13)
    DeltaTable(table).restore(11)
    source = open_source(str(table), tmp_path, 0.0, {})
    with caplog.at_level(logging.INFO):
        names, held = taken(source)
    assert names == [f"version-{number}" for number in [*range(12), 14]] and list(held) == ["version-13", "version-15"]
    assert "version 12 of" in caplog.text and "changes no rows" in caplog.text
    assert [file.lake.version for file in source.data_files()] == [14]


def test_parts_begin_after_the_prepared_version(tmp_path):
    for number in range(3):
        append(tmp_path / "table", number)
    for table, names in ((tmp_path / "table", ["version-2"]), (tmp_path / "other", [f"version-{n}" for n in range(3)])):
        source = open_source(f"file://{tmp_path}/table", tmp_path, 0.0, {"table": str(table), "version": 1})
        assert taken(source) == (names, {})


@pytest.mark.parametrize("is_gone", ["the first entry", "an entry", "a data file"])
def test_what_is_gone_stops_the_run(tmp_path, is_gone):
    table = tmp_path / "table"
    for number in range(4):
        append(table, number)
    source = open_source(str(table), tmp_path, 0.0, {})
    ledger = Ledger()
    if is_gone != "the first entry":
        file, content = source.next_part(ledger)
        ledger = Ledger(trained={file.name: {"checksum": content, "state": vars(file.state)}})
    if is_gone == "a data file":
        added = json.loads(entry(table, 1).read_text().splitlines()[-1])["add"]["path"]
        (table / added).unlink()
    else:
        entry(table, 0 if is_gone == "the first entry" else 1).unlink()
    what = "has lost data files" if is_gone == "a data file" else "has no entry any more"
    with pytest.raises(ValueError, match=rf"version \d of the Delta table {table} {what}.*begin another online run"):
        source.next_part(ledger)


def test_a_cleaned_log_before_the_trained_versions_is_no_gap(tmp_path):
    table = tmp_path / "table"
    for number in range(4):
        append(table, number)
    DeltaTable(table).create_checkpoint()
    entry(table, 0).unlink()
    entry(table, 1).unlink()
    append(table, 5)
    source = open_source(str(table), tmp_path, 0.0, {"table": str(table), "version": 2})
    assert taken(source) == (["version-3", "version-4"], {})


@pytest.mark.kills
def test_kills_and_compactions_repeat_no_version(make_online, never_killed, parts, command_environment):  # noqa: F811
    folder = make_online("killed-table")
    for part in parts[:3]:
        write_deltalake(folder.source, rows_of(part), mode="append")

    def rewrite():
        DeltaTable(folder.source).optimize.z_order(["I1"])

    kill_at_random(folder, never_killed, command_environment, num_kills("online"), rewrite)
    assert DeltaTable(folder.source).version() > 3
