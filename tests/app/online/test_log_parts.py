"""The next part, and those that are held aside: files only, no model."""

import argparse
import dataclasses
import errno
import gzip
import json
import logging
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from app.cli import online as command
from app.online import log_parts
from app.online.log_parts import (
    RECENT,
    GuardBounds,
    Ledger,
    Part,
    PartSource,
    open_source,
    read_part,
    why_miscalibrated,
    why_suspicious,
    why_useless,
)
from common.files import checksum
from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.options.log_format import LogFormat
from data_prep.prepared.examples import Examples
from data_prep.raw_log.storage import FileState, LogFile
from tests.app.online.test_online_trainer import (
    assert_same_end,
    checkpoints_of,
    kill_at_random,
    never_killed,  # noqa: F401 (a fixture)
)
from tests.kills import num_kills


@pytest.fixture
def source(tmp_path):
    return PartSource(str(tmp_path), tmp_path / "released")


def part_of(clicks, rows, name="part-1", lines=None, weights=None, checksum="", state=None, **figures):
    labels = np.zeros(rows, np.float32)
    labels[:clicks] = 1
    empty = np.zeros((rows, 0))
    examples = Examples(empty.astype(np.int32), empty.astype(np.float32), labels, weights)
    file = LogFile(name, name, state or FileState(1, 1))
    return Part(file, checksum, (), examples, lines or rows, "1\ttoo few cells\tx", **figures)


def take_all(source, ledger):
    """Train on what comes, as the trainer does; gives the ledger and the checksums in their order."""
    trained = []
    while (found := source.next_part(ledger)) is not None:
        file, content = found
        ledger = ledger.after(part_of(1, 2, file.name, checksum=content, state=file.state))
        trained.append(content)
    return ledger, trained


def move_in(folder, name, text):
    (folder / ".coming").write_text(text)
    (folder / ".coming").rename(folder / name)


def test_what_has_a_part_s_name_and_is_no_file_is_held(source, tmp_path, caplog):
    ledger = Ledger()
    (tmp_path / "old").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "part-1.parquet").mkdir()
    (tmp_path / "date=2026-11-01").mkdir()
    os.mkfifo(tmp_path / "part-2.csv")
    (tmp_path / "part-3").symlink_to(tmp_path / "gone")
    (tmp_path / "part-4.txt").symlink_to("part-4.txt")
    kinds = {"part-1.parquet": "a folder", "part-2.csv": "a pipe", "part-3": "a link", "part-4.txt": "a link"}
    kinds |= {"date=2026-11-01": "a folder"}
    for _ in range(2):
        assert source.next_part(ledger) is None
        assert source.held.keys() == kinds.keys()
        assert all(f"it is {kind}" in source.held[name] for name, kind in kinds.items())
    assert caplog.text.count("is held aside") == len(kinds)
    assert not source.can_be_released
    for name in kinds:
        (tmp_path / name).rmdir() if kinds[name] == "a folder" else (tmp_path / name).unlink()
        move_in(tmp_path, name, f"rows of {name}")
    assert len(take_all(source, ledger)[1]) == len(kinds)
    assert source.held == {}


@pytest.mark.parametrize("seed", range(20))
def test_no_content_is_trained_on_twice_and_none_is_lost_in_silence(source, tmp_path, seed):
    """Deliveries, repeats, changes, removals and restarts in a random order."""
    chance, ledger, trained = random.Random(seed), Ledger(), []
    for _ in range(60):
        name, text = f"part-{chance.randrange(12)}.txt", f"rows {chance.randrange(15)}"
        action = chance.choice(["deliver", "deliver", "deliver", "remove", "touch", "restart"])
        if action == "deliver":
            move_in(tmp_path, name, text)
        elif action == "remove":
            (tmp_path / name).unlink(missing_ok=True)
        elif action == "touch" and (tmp_path / name).exists():
            os.utime(tmp_path / name, ns=(0, chance.randrange(10**9)))
        elif action == "restart":
            source = PartSource(str(tmp_path), tmp_path / "released")
        ledger, new = take_all(source, ledger)
        trained += new
        for path in tmp_path.iterdir():  # each file that lies there was trained on as it is, or is named
            known = ledger.trained.get(path.name)
            assert (path.name in source.held) != (known is not None and known["checksum"] == checksum(path)), path
    assert max(Counter(trained).values()) == 1
    names = list(ledger.trained)
    assert names == sorted(names, key=lambda name: int(name[5:-4]))


def test_parts_come_in_natural_order_and_other_files_are_logged_once(source, tmp_path, caplog):
    for name in ("part-10.psv", "part-9.txt", "part-2.xlsx", "_SUCCESS", ".hidden", "part-9.txt.truth.parquet"):
        move_in(tmp_path, name, name)
    ledger, _ = take_all(source, Ledger())
    assert list(ledger.trained) == ["part-9.txt", "part-10.psv"]
    move_in(tmp_path, "part-3.json", "{}")
    take_all(source, ledger)
    named = [record.args[0] for record in caplog.records if "not read as parts" in record.msg]
    assert named == ["part-2.xlsx", "part-3.json"]


def test_a_part_that_is_held_is_not_read_again_until_it_changes(source, tmp_path):
    (tmp_path / "part-1.txt").write_text("a")
    file, _ = source.next_part(Ledger())
    source.hold(file, "why not")
    assert source.next_part(Ledger()) is None
    assert source.held == {"part-1.txt": "why not"}
    move_in(tmp_path, "part-1.txt", "other")
    assert source.next_part(Ledger())[0].name == "part-1.txt"
    (tmp_path / "part-1.txt").unlink()
    assert source.next_part(Ledger()) is None
    assert source.held == {}


def test_there_must_be_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        PartSource(str(tmp_path / "nowhere"), tmp_path)


def test_a_part_is_read_with_its_labels_and_the_numbers_of_its_lines(source, tmp_path, tiny_log, tiny_dataset):
    lines = tiny_log.read_bytes().splitlines(keepends=True)[:50]
    lines[7] = b"no row\n"
    (tmp_path / "part-1.txt").write_bytes(b"".join(lines))
    part = read_part(*source.next_part(Ledger()), open_encoder(tiny_dataset, with_labels=True))
    assert part.num_lines == 50
    assert part.row_numbers.tolist() == [number for number in range(50) if number != 7]
    assert part.rows.labels.tolist() == [float(line[:1]) for line in lines if line != lines[7]]
    assert part.first_reject.startswith("part-1.txt:8\t")


GUARD = {"click_rate": 0.2, "bounds": GuardBounds(rejected=0.01), "columns": ("C1", "C2", "I1")}


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (part_of(200, 1000), None),
        (part_of(200, 1000, lines=1011), "11 of its 1,011 lines are bad"),
        (part_of(200, 1000, lines=1010), None),
        (part_of(650, 1000), "its click rate is 0.6500, that of the training rows 0.2000"),
        (part_of(60, 1000), "its click rate is 0.0600"),
        (part_of(1, 20), None),  # chance explains it
        (part_of(7, 10), None),
        (part_of(0, 9), None),
        (part_of(0, 100), None),
        (part_of(0, 1000), "all its labels are equal: it has 0 clicks, and 200.0 are expected"),
        (part_of(3, 3), None),
        (part_of(50, 50), "it has 50 clicks, and 10.0 are expected at the click rate of the training rows, 0.2000"),
    ],
)
def test_a_suspicious_part_is_named_with_the_reason(part, reason):
    found = why_suspicious(part, Ledger(), **GUARD)
    assert found is None if reason is None else reason in found


def test_a_part_without_rows_that_count_is_useless():
    assert "weights of all its rows are 0" in why_useless(part_of(2, 9, weights=np.zeros(9, np.float32)))
    assert "7 of its 7 lines are bad; the first: '1" in why_useless(part_of(0, 0, lines=7))
    for clicks in (0, 1, 9):
        assert why_useless(part_of(clicks, 9)) is None


@pytest.mark.parametrize("rate", [0.001, 0.03, 0.3, 0.97])
@pytest.mark.parametrize("rows", [1, 5, 20])
def test_small_parts_of_a_stream_are_all_good(rows, rate):
    """Their labels are often equal by chance, in all recent parts, too. A large part with equal labels is held."""
    chance, ledger, many = np.random.default_rng(rows), Ledger(), 50_000
    guard = GUARD | {"click_rate": rate}
    for number in range(301):
        num_rows = rows if number < 300 else many
        clicks, missing = chance.binomial(num_rows, [rate, 0.4])
        part = part_of(clicks, num_rows, missing=[missing / num_rows], calibration=num_rows * rate / max(clicks, 0.5))
        assert why_suspicious(part, ledger, **guard) is None
        assert why_miscalibrated(part, ledger, GUARD["bounds"]) is None
        ledger = ledger.after(part)
    for clicks in (0, many):
        assert "all its labels are equal" in why_suspicious(part_of(clicks, many), ledger, **guard)


def test_a_part_that_came_late_is_taken_once_it_is_released_and_only_as_it_was(source, tmp_path):
    released = tmp_path / "released"
    released.mkdir()
    move_in(tmp_path, "part-2", "b")
    ledger, _ = take_all(source, Ledger())
    move_in(tmp_path, "part-1", "a")
    move_in(tmp_path, "part-3", "b")
    assert source.next_part(ledger) is None
    assert source.held.keys() == {"part-1", "part-3"}
    assert source.can_be_released == {"part-1": checksum(tmp_path / "part-1")}
    (released / "part-1").write_text(source.can_be_released["part-1"] + "\n")
    move_in(tmp_path, "part-1", "other")
    assert source.next_part(ledger) is None
    move_in(tmp_path, "part-1", "a")
    for again in (source, PartSource(str(tmp_path), released)):  # after a restart, too
        file, content = again.next_part(ledger)
        assert (file.name, again.held.get("part-1")) == ("part-1", None)
        assert content == checksum(tmp_path / "part-1")


def test_records_of_parts_that_are_gone_are_kept_for_a_while():
    ledger, there = Ledger(), {"part-1", "part-5"}
    for number in [1, 2, 3, 5, 6, 99, 7, 8, 9]:  # 99 is the last by its name
        ledger = ledger.after(part_of(1, 2, f"part-{number}", checksum=f"{number}"), there, keep=2)
    assert list(ledger.trained) == ["part-1", "part-5", "part-99", "part-8", "part-9"]
    assert ledger.why_late("part-98")
    assert ledger.why_never("part-10", "5") == "it has the content of part-5, which was trained on"
    assert list(Ledger().after(part_of(1, 2, "a")).after(part_of(1, 2, "b"), {"b"}).trained) == ["a", "b"]


@pytest.mark.parametrize(
    ("missing", "unknown", "reason"),
    [
        ([0.1, 0.0, 0.4], [0.1, 0.5], None),
        ([0.1, 0.0, 0.64], [0.1, 0.5], None),  # 0.4 was seen, 0.2 more is allowed, the rest is chance
        ([0.1, 0.0, 0.7], [0.1, 0.5], "70.0% of the values of I1 are missing, in the last parts at most 40.0%"),
        ([0.1, 0.3, 0.0], [0.1, 0.5], "30.0% of the values of C2 are missing, in the last parts at most 0.0%"),
        ([0.1, 0.0, 0.4], [0.55, 0.5], "55.0% of the values of C1 have no id, in the last parts at most 10.0%"),
        ([0.1, 0.0, 0.4], [0.1, 0.84], None),
    ],
)
def test_a_share_of_a_column_that_jumps_is_named(missing, unknown, reason):
    usual = [([0.1, 0.0, 0.1], [0.1, 0.2]), ([0.0, 0.0, 0.4], [0.0, 0.5])]
    ledger = Ledger()
    for number, shares in enumerate(usual):
        last = part_of(20, 100, f"part-{number}", missing=shares[0], unknown=shares[1])
        assert why_suspicious(last, Ledger(), **GUARD) is None  # of the first part nothing is known
        ledger = ledger.after(last)
    part = part_of(200, 1000, missing=missing, unknown=unknown)
    found = why_suspicious(part, Ledger(**json.loads(json.dumps(dataclasses.asdict(ledger)))), **GUARD)
    assert found is None if reason is None else reason in found
    assert why_suspicious(part_of(1, 4, missing=missing, unknown=unknown), ledger, **GUARD) is None


def test_a_ledger_of_an_earlier_release_has_no_shares():
    ledger = Ledger({}, [{"lines": 10, "rows": 10.0, "clicks": 2.0}])
    part = part_of(200, 1000, missing=[0.9] * 3, unknown=[0.9] * 2, calibration=9.0)
    assert why_suspicious(part, ledger, **GUARD) is None
    assert why_miscalibrated(part, ledger, GUARD["bounds"]) is None


@pytest.mark.parametrize(
    ("clicks", "calibration", "is_held"),
    [(200, 1.0, False), (200, 2.1, False), (200, 2.5, True), (200, 0.5, True), (1, 3, False)],
)
def test_a_part_on_which_the_model_is_far_off_is_named(clicks, calibration, is_held):
    ledger = Ledger()
    for number, usual in enumerate([1.1, 9.0, 1.1]):
        ledger = ledger.after(part_of(200, 1000, f"part-{number}", calibration=usual))
    part = part_of(clicks, 1000, calibration=calibration)
    reason = why_miscalibrated(part, ledger, GUARD["bounds"])
    assert (reason is not None) == is_held
    assert why_miscalibrated(part, dataclasses.replace(ledger, withheld="worse"), GUARD["bounds"]) is None
    assert not is_held or f"the model expects {calibration:.3f} times its clicks, of the last parts 1.100" in reason


def test_the_last_parts_decide_which_click_rate_is_usual():
    ledger = Ledger()
    for number in range(RECENT + 5):
        ledger = ledger.after(part_of(50, 1000, f"part-{number}"))
    assert len(ledger.recent) == RECENT
    assert "that of the last parts 0.0500" in why_suspicious(part_of(200, 1000), ledger, **GUARD)
    assert why_suspicious(part_of(100, 1000), ledger, **GUARD) is None
    assert Ledger(**dataclasses.asdict(ledger)) == ledger


def test_a_part_waits_for_its_labels_and_those_after_it_with_it(tmp_path, monkeypatch):
    now = 1_000_000.0
    monkeypatch.setattr(log_parts.time, "time", lambda: now)
    source = PartSource(str(tmp_path), tmp_path / "released", delay_seconds=7200)
    for name, age in (("part-1", 7300), ("part-2", 7100), ("part-3", 9000)):
        move_in(tmp_path, name, name)
        os.utime(tmp_path / name, (now - age, now - age))
    ledger, trained = take_all(source, Ledger())
    assert (list(ledger.trained), source.waiting, source.held) == (["part-1"], "part-2", {})
    now += 150
    ledger, trained = take_all(source, ledger)
    assert (list(ledger.trained), len(trained), source.waiting) == (["part-1", "part-2", "part-3"], 2, "")


def test_without_a_delay_a_file_of_a_clock_that_is_ahead_is_taken(tmp_path):
    move_in(tmp_path, "part-1", "1")
    os.utime(tmp_path / "part-1", (2**33, 2**33))
    for delay, waiting in ((1.0, "part-1"), (0.0, "")):
        source = PartSource(str(tmp_path), tmp_path / "released", delay)
        assert (source.next_part(Ledger()) is None, source.waiting) == (bool(waiting), waiting)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1.5h", 5400), ("2d", 172_800), ("3m", 180)])
def test_delays(text, seconds):
    assert command._seconds(text) == seconds
    with pytest.raises(argparse.ArgumentTypeError, match="expected a number and one of s, m, h, d"):
        command._seconds(text[:-1])


def test_a_listing_that_missed_a_part_is_made_again(source, tmp_path, monkeypatch):
    """Names that appear while a folder is listed may be in the list or not, in any order."""
    for name in ("part-1", "part-2"):
        move_in(tmp_path, name, name)
    listings = [[str(tmp_path / "part-2")]]
    files_in = log_parts.files_in
    monkeypatch.setattr(log_parts, "files_in", lambda folder: listings.pop() if listings else files_in(folder))
    assert source.next_part(Ledger())[0].name == "part-1"


def test_a_part_that_is_removed_or_cannot_be_read_ends_nothing(source, tmp_path, monkeypatch, caplog):
    for number in range(1, 6):
        move_in(tmp_path, f"part-{number}", f"{number}")
    open_stream, slept, clock = log_parts.open_stream, [], [0.0]
    io_error = OSError(errno.EIO, "Input/output error")
    errors = {
        "part-1": [FileNotFoundError(2, "gone")],
        "part-2": [PermissionError(13, "Permission denied")],
        "part-3": [io_error] * (2 * len(log_parts.READ_PAUSES)),
        "part-4": [io_error] * 2,  # a network that was away for a moment
    }

    def fail(location):
        if left := errors.get(Path(location).name):
            raise left.pop()
        return open_stream(location)

    monkeypatch.setattr(log_parts, "open_stream", fail)
    monkeypatch.setattr(log_parts.time, "sleep", slept.append)
    monkeypatch.setattr(log_parts.time, "monotonic", lambda: clock[0])
    file, checksum = source.next_part(Ledger())
    assert file.name == "part-4"  # after those that cannot be read
    assert slept == [*log_parts.READ_PAUSES, *log_parts.READ_PAUSES[:2]]
    again = "; it is tried again every 60 s"
    reasons = {
        "part-2": f"it cannot be read: Permission denied; let this user read it{again}",
        "part-3": f"it cannot be read: {io_error.strerror}{again}",
    }
    assert source.held == reasons
    ledger = Ledger().after(part_of(1, 2, file.name, checksum=checksum, state=file.state))
    del errors["part-1"], errors["part-2"]
    assert source.next_part(ledger)[0].name == "part-5"
    assert source.held == reasons | {"part-1": source.held["part-1"]}  # it is back, too late
    clock[0] += 60
    assert source.next_part(ledger)[0].name == "part-5"
    assert len(slept) == len(log_parts.READ_PAUSES) + 2  # not again
    assert source.held["part-3"] == reasons["part-3"] and "it comes before part-4" in source.held["part-2"]
    assert sum("part-3 is held aside" in record.message for record in caplog.records) == 1
    assert source.can_be_released.keys() == {"part-1", "part-2"}
    errors.clear()
    clock[0] += 60
    source.next_part(ledger)
    assert source.can_be_released.keys() == {"part-1", "part-2", "part-3"}


def cut_parquet(path, lines):
    pq.write_table(pa.table({"x": range(1000)}), path)
    path.write_bytes(path.read_bytes()[:-20])


def other_columns(path, lines):
    pq.write_table(pa.table({"x": range(1000)}), path)


def cut_gzip(path, lines):
    path.write_bytes(gzip.compress(b"".join(lines))[:-40])


@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        ("part-1.parquet", cut_parquet, "part-1.parquet"),
        ("part-1.parquet", other_columns, "lacks columns of .*found x"),
        ("part-1.txt.gz", cut_gzip, "is damaged or was not downloaded to its end"),
        ("part-1.txt", lambda path, lines: path.write_bytes(b""), "it has no lines"),
    ],
)
def test_a_part_that_is_not_whole_or_of_another_log_is_named(
    source, tmp_path, tiny_log, tiny_dataset, name, make, reason
):
    make(tmp_path / name, tiny_log.read_bytes().splitlines(keepends=True)[:500])
    with pytest.raises(ValueError, match=reason):
        read_part(*source.next_part(Ledger()), open_encoder(tiny_dataset, with_labels=True))


def test_a_part_that_changes_while_it_is_read_is_named(source, tmp_path, tiny_log, tiny_dataset):
    path = tmp_path / "part-1.txt"
    lines = tiny_log.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:50]))
    encoder = open_encoder(tiny_dataset, with_labels=True)
    file, content = source.next_part(Ledger())
    encode = encoder.encode

    def write_meanwhile(chunk):
        with path.open("ab") as more:
            more.writelines(lines[50:60])
        return encode(chunk)

    encoder.encode = write_meanwhile
    with pytest.raises(ValueError, match="it changed while it was read"):
        read_part(file, content, encoder)


def test_a_part_that_is_there_is_known_by_its_state_alone(source, tmp_path):
    """The state is that of a checkpoint's manifest: plain values, any of which makes another state if it changes."""
    (tmp_path / "part-1.txt").write_text("x")
    file, checksum = source.next_part(Ledger())
    state = json.loads(json.dumps(dataclasses.asdict(file.state)))
    known = Ledger({file.name: {"checksum": checksum, "state": state}})
    assert known.has(file)
    for name in state:
        changed = dataclasses.replace(file, state=dataclasses.replace(file.state, **{name: state[name] + 1}))
        assert not known.has(changed)


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
