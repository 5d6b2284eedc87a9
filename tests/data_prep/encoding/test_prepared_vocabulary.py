"""The vocabulary of another folder as a base, and booleans, which are the texts that the log has for them."""

import dataclasses
import json
import random
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.__main__ import main
from data_prep.encoding.encoder import BOOLEAN_TEXTS, texts_among
from data_prep.encoding.from_values import bad_cell, lines_to_chunk, rejected
from data_prep.encoding.prepared_vocabulary import open_encoder, read_base_vocabulary
from data_prep.kernels.parsed import Chunk
from data_prep.options.format_checks import checked_format
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.reader import read_blocks, read_files
from data_prep.prepared.schema import read_schema
from tests.prepared_folders import ALL_TRAINED, field_options


def read_split(folder, split):
    schema = read_schema(folder)
    blocks = list(read_files(folder, [file.name for file in schema.splits[split].files]))
    return [np.concatenate([getattr(block, name) for block in blocks]) for name in ("ids", "numeric")]


@pytest.mark.parametrize("changes", [{}, {"integer_buckets": True, "numeric_transform": "max", "oov_buckets": 5}])
def test_the_same_log_gets_the_same_rows(tmp_path, log_path, small_options, changes):
    options = dataclasses.replace(small_options, **changes)
    prepare(log_path, tmp_path / "first", options)
    again = dataclasses.replace(options, min_count=1000)  # nothing is counted
    prepare(log_path, tmp_path / "second", again, vocabulary_of=tmp_path / "first")
    first, second = read_schema(tmp_path / "first"), read_schema(tmp_path / "second")
    assert (second.numeric, second.categorical, second.source) == (first.numeric, first.categorical, first.source)
    for path in (tmp_path / "first").iterdir():
        if path.name not in ("schema.json", "statistics.json"):  # in which only the first one's values were counted
            assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name


def test_other_columns_are_refused(tmp_path, log_path, prepared, small_options):
    options = dataclasses.replace(small_options, numeric_transform="max", oov_buckets=2)
    with pytest.raises(
        ValueError, match=r"oov_buckets is 2, there 1; prepare.* prepare.oov_buckets=1 prepare.numeric_transform=log1p$"
    ):
        prepare(log_path, tmp_path / "out", options, vocabulary_of=prepared)
    assert not (tmp_path / "out").exists()


def test_fields_that_are_made_otherwise_are_refused(tmp_path):
    columns = {"click": "label", "site": "string", "tags": "list", "seen": "timestamp"}
    data = LogFormat(columns, ",", timestamps={"seen": "%Y-%m-%d"}, shares={"tags": "site"})
    (tmp_path / "log.csv").write_text("1,a,a|b,2024-01-01\n0,b,,2024-01-02\n")
    options = PrepareOptions(data=data, workers=1, min_count=1, **ALL_TRAINED)
    prepare(tmp_path / "log.csv", tmp_path / "out", options)
    for name, value in (
        ("features", {"seen": ("hour",)}),
        ("timezone", {"seen": "Europe/Berlin"}),
        ("shares", {}),
        ("lists", {"tags": ListForm(pool="sum")}),
    ):
        other = dataclasses.replace(options, data=dataclasses.replace(data, **{name: value}))
        with pytest.raises(ValueError, match=f"is for other {name}: "):
            read_base_vocabulary(tmp_path / "out", other)


def vocabulary_of(folder):
    """{(field, value): id}, and all ids as they stand."""
    table = pq.read_table(folder / "vocabulary.parquet").to_pydict()
    return dict(zip(zip(table["field"], table["value"], strict=True), table["id"], strict=True)), table["id"]


def counts_of(lines, num_cells_before=14):
    """Counts of the values of each categorical field."""
    cells = [line.split("\t")[num_cells_before:] for line in lines]
    return [Counter(column) for column in zip(*cells, strict=True)]


@pytest.fixture(name="days")
def days_fixture(tmp_path, make_log, small_options):
    """Three days' logs, their folders' options, and the folders: each extends the one before."""
    options = dataclasses.replace(small_options, numeric_transform="standardize", **ALL_TRAINED)
    texts, folders = [make_log(800, seed=seed) for seed in range(3)], []
    for day, text in enumerate(texts):
        (tmp_path / f"day{day}.txt").write_text(text)
        folders.append(tmp_path / f"day{day}")
        before = {"vocabulary_of": folders[-2], "extend": True} if day else {}
        prepare(tmp_path / f"day{day}.txt", folders[-1], options, **before)
    return [text.splitlines() for text in texts], folders, options


def test_new_values_follow_with_ids_after_all_old_ones(days):
    lines, folders, options = days
    expected, all_ids = vocabulary_of(folders[0])
    for day in (1, 2):
        schema = read_schema(folders[day])
        assert schema.numeric == read_schema(folders[0]).numeric
        next_id = read_schema(folders[day - 1]).vocabulary_size
        for field, counts in zip(schema.categorical, counts_of(lines[day]), strict=True):
            new = [v for v in counts if counts[v] >= options.min_count and (field.name, v) not in expected]
            first_id = next_id
            for value in sorted(new, key=lambda value: (-counts[value], value)):
                expected[field.name, value], next_id = next_id, next_id + 1
            if new:
                assert field.id_ranges[-1] == (first_id, next_id)
        assert max(len(field.id_ranges) for field in schema.categorical) == day + 1
        found, all_ids = vocabulary_of(folders[day])
        assert found == expected
        assert all_ids == sorted(all_ids) == list(range(all_ids[0], schema.vocabulary_size))
        assert schema.vocabulary_size == next_id
        # The rows have these ids.
        ids = read_split(folders[day], "train")[0]
        oov = {field.name: field.oov_ids[0] for field in schema.categorical}
        rows = Counter(
            tuple(
                expected.get((field.name, cell), oov[field.name])
                for field, cell in zip(schema.categorical, line.split("\t")[14:], strict=True)
            )
            for line in lines[day]
        )
        assert Counter(map(tuple, ids.tolist())) == rows


def test_a_log_with_nothing_new_extends_by_nothing(tmp_path, days):
    _, folders, options = days
    before = read_schema(folders[2])
    schema = prepare(
        tmp_path / "day2.txt", tmp_path / "again", options, vocabulary_of=folders[2], extend=True, chunk_bytes=10_000
    )
    assert schema.categorical == before.categorical
    assert vocabulary_of(tmp_path / "again") == vocabulary_of(folders[2])
    assert schema.splits["train"].files == before.splits["train"].files


def test_max_size_holds_for_old_and_new_values_together(tmp_path, days):
    _, folders, options = days
    first = read_schema(folders[0])
    sizes = {field.name: field.num_values for field in first.categorical}
    options = dataclasses.replace(options, fields=field_options(max_size={"C1": sizes["C1"] + 1, "C2": 1}))
    schema = prepare(tmp_path / "day1.txt", tmp_path / "out", options, vocabulary_of=folders[0], extend=True)
    added = {field.name: field.num_values - sizes[field.name] for field in schema.categorical}
    assert (added["C1"], added["C2"]) == (2, 0)  # a missing value has its id besides
    assert max(added.values()) > 2


@pytest.mark.parametrize("extend", [False, True])
def test_a_column_that_is_written_in_another_form_is_reported(tmp_path, caplog, extend):
    """Whole numbers with .0, as pandas writes a column of them to CSV if one is missing, are the same values."""
    format_ = LogFormat(columns={"click": "label", "hour": "string", "site": "string"}, separator=",")
    options = PrepareOptions(data=format_, min_count=2, workers=1, **ALL_TRAINED)
    rows = [(row % 2, row % 3, "abc"[row % 3]) for row in range(30)]
    for name, end in (("one", ""), ("same", ".0"), ("two", "h")):
        text = "".join(f"{click},{hour}{end},{site}\n" for click, hour, site in rows)
        (tmp_path / f"{name}.csv").write_text(f"{text}0,,a\n")
    prepare(tmp_path / "one.csv", tmp_path / "one", options)
    prepare(tmp_path / "same.csv", tmp_path / "same", options, vocabulary_of=tmp_path / "one", extend=extend)
    assert caplog.text == ""  # which has warnings alone
    assert vocabulary_of(tmp_path / "same") == vocabulary_of(tmp_path / "one")
    prepare(tmp_path / "two.csv", tmp_path / "two", options, vocabulary_of=tmp_path / "one", extend=extend)
    assert caplog.text.count("training cells") == 1
    assert "column hour: 30 of 30 training cells have values that " in caplog.text
    assert ("such as '0h', '1h', '2h'" in caplog.text) is extend


def test_other_limits_for_new_values_are_reported(prepared, small_options, caplog):
    """Another min_count, as if the --config of the first preparation were left out."""
    read_base_vocabulary(prepared, small_options, extend=True)
    other = dataclasses.replace(small_options, min_count=10, fields=field_options(max_size={"C3": 7}))
    read_base_vocabulary(prepared, other)  # nothing new gets an id
    assert caplog.text == ""
    read_base_vocabulary(prepared, other, extend=True)
    assert "new values get ids by prepare.min_count=10, max_size in prepare.fields={'C3': 7}, those of " in caplog.text
    assert "if that is not intended, give: 'prepare.min_count=3' 'prepare.fields={}'" in caplog.text


def test_a_hashed_vocabulary_is_not_extended(tmp_path, log_path, small_options):
    options = dataclasses.replace(small_options, vocabulary="hash")
    prepare(log_path, tmp_path / "hashed", options)
    with pytest.raises(ValueError, match=r"--extend adds values .*hashed is hashed .*leave --extend out"):
        prepare(log_path, tmp_path / "out", options, vocabulary_of=tmp_path / "hashed", extend=True)


def test_extend_needs_a_vocabulary(tmp_path, log_path, capsys):
    assert main(["prepare", str(log_path), str(tmp_path / "out"), "--extend"]) == 2
    assert "--extend adds to the vocabulary of a prepared folder; name it: --vocabulary DIR" in capsys.readouterr().err


def test_a_number_in_two_forms_is_a_warning(tmp_path, caplog):
    format_ = LogFormat(columns={"click": "label", "hour": "string", "version": "string"}, separator=",")
    rows = "".join(f"{row % 2},{row % 3}{'.0' * (row > 30)},{row % 3 / 10 + 7}\n" for row in range(60))
    (tmp_path / "log.csv").write_text(rows)
    prepare(tmp_path / "log.csv", tmp_path / "out", PrepareOptions(data=format_, workers=1, min_count=1))
    assert "column hour has 3 numbers in two forms, such as 0 and 0.0" in caplog.text
    assert "version" not in caplog.text


@pytest.mark.parametrize("form", ["{}.0", "9.00719925474{}e+15", "9.00719925474{}E15"])
def test_inexact_ids_of_text_are_refused_in_scoring(tmp_path, caplog, form):
    """A vocabulary of such ids is a warning. 12e7 and the like are texts."""
    format_ = LogFormat({"click": "label", "item": "string", "seen": "list", "size": "float"}, separator=",")
    rows = [f"{row % 2},{form.format(9007199254740992 + row % 3)},a|12e17,{2**60}.0" for row in range(60)]
    (tmp_path / "log.csv").write_text("\n".join(rows))
    prepare(tmp_path / "log.csv", tmp_path / "out", PrepareOptions(data=format_, workers=1, min_count=1))
    assert "column item has 3 values such as " in caplog.text and "column seen" not in caplog.text
    encoder, large = open_encoder(tmp_path / "out"), form.format(2**53)
    chunk = lines_to_chunk([f"{large},a,1.0", "7,a,1.0", f"8,a|{large},2.0"], encoder.log_format)
    parsed, encoded = encoder.encode(chunk)
    assert (len(encoded.ids), parsed.rows.row_numbers.tolist()) == (1, [1])
    assert rejected(chunk, parsed) == {0: "inexact id", 2: "inexact id"}
    for row, name in ((0, "item"), (2, "seen")):
        assert re.match(
            f"column '{name}' of kind .*; whole numbers so large", bad_cell(chunk, row, format_, "inexact id")
        )


def test_ids_beyond_the_exact_floats_are_a_warning(tmp_path, caplog):
    format_ = LogFormat(columns={"click": "label", "item": "string", "size": "float"}, separator=",")
    ids = [2.0**53 + row if row % 5 else None for row in range(60)]
    table = pa.table({"click": [0, 1] * 30, "item": ids, "size": ids})
    pq.write_table(table, tmp_path / "log.parquet")
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    for name in ("log.parquet", "log.jsonl"):
        caplog.clear()
        prepare(tmp_path / name, tmp_path / f"of_{name}", PrepareOptions(data=format_, workers=1))
        assert "column 'item': whole numbers so large are not exact as floats" in caplog.text
        assert "'size'" not in caplog.text


COLUMNS = {"click": "label", "member": "string", "flags": "list", "site": "string"}
PAIRS = list(zip(BOOLEAN_TEXTS[::2], BOOLEAN_TEXTS[1::2], strict=True))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        *(({*pair}, pair) for pair in PAIRS),
        *(({text}, pair) for pair in PAIRS for text in pair),
        ({"TRUE", "unknown"}, ("TRUE", "FALSE")),
        ({"yes", "no", "maybe"}, ("yes", "no")),
        ({"no", "se", "dk"}, ()),  # countries
        ({"t", "f", "s"}, ()),
        ({"0", "1", "2"}, ()),
        ({"0", "1", "TRUE"}, ()),
        ({"true", "TRUE"}, ()),
        ({"Ja", "Nein"}, ()),
        (set(), ()),
    ],
)
def test_the_texts_of_a_vocabulary_are_found_if_there_is_no_doubt(values, expected):
    assert texts_among(values & set(BOOLEAN_TEXTS), len(values)) == expected


def options_of(words, **settings):
    log_format = LogFormat(COLUMNS, ",", clicked=(words[0],), not_clicked=(words[1],))
    settings = {"min_count": 2, "shuffle_window_rows": 1, "workers": 1, "oov_buckets": 3, **ALL_TRAINED, **settings}
    return PrepareOptions(data=log_format, **settings)


def draw(seed=1):
    random_ = random.Random(seed)
    flags = [[random_.random() < 0.5 for _ in range(random_.randint(0, 3))] for _ in range(60)]
    columns = {name: random_.choices([True, False, None], (5, 4, 1), k=60) for name in ("click", "member")}
    columns["click"] = [bool(value) for value in columns["click"]]
    return {**columns, "flags": flags, "site": random_.choices("abc", k=60)}


def write(folder, words, columns):
    """The same rows as lines with these words, and as a Parquet file of booleans."""
    text = {True: words[0], False: words[1], None: ""}
    rows = [
        [text[click], text[member], "|".join(text[flag] for flag in flags), site]
        for click, member, flags, site in zip(*columns.values(), strict=True)
    ]
    (folder / "log.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    pq.write_table(pa.table(columns), folder / "log.parquet")


def rows_of(folder):
    (block,) = read_blocks(folder, read_schema(folder), "train")
    return block.ids.tolist(), block.labels.tolist()


@pytest.mark.parametrize("words", PAIRS)
def test_a_parquet_file_of_booleans_has_the_ids_of_the_text_log(tmp_path, words):
    write(tmp_path, words, draw())
    prepare(tmp_path / "log.csv", tmp_path / "text", options_of(words))
    prepare(tmp_path / "log.parquet", tmp_path / "table", options_of(words), vocabulary_of=tmp_path / "text")
    assert rows_of(tmp_path / "table") == rows_of(tmp_path / "text")
    log_format = open_encoder(tmp_path / "text").log_format
    assert [log_format.texts_of_booleans(name) for name in COLUMNS] == [words, words, words, ()]


@pytest.mark.parametrize("settings", [{}, {"vocabulary": "hash"}, {"min_count": 100}])
def test_a_new_vocabulary_has_1_and_0_and_logs_it(tmp_path, settings):
    write(tmp_path, ("yes", "no"), draw())
    options = options_of(("yes", "no"), **settings)
    prepare(tmp_path / "log.parquet", tmp_path / "table", options)
    encoder = open_encoder(tmp_path / "table")
    assert encoder.log_format.booleans == {"member": ("1", "0"), "flags": ("1", "0"), "site": ()}
    write(tmp_path, ("1", "0"), draw())
    text = (tmp_path / "log.csv").read_text().replace("\n1,", "\nyes,").replace("\n0,", "\nno,")
    text = {"1": "yes", "0": "no"}[text[0]] + text[1:]
    rows = encoder.encode(Chunk(0, 60, text.encode()))[1]
    assert (rows.ids.tolist(), rows.labels.tolist()) == rows_of(tmp_path / "table")
    prepare(tmp_path / "log.parquet", tmp_path / "again", options, vocabulary_of=tmp_path / "table")
    assert rows_of(tmp_path / "again") == rows_of(tmp_path / "table")


def test_texts_that_are_given_are_taken(tmp_path):
    write(tmp_path, ("Ja", "Nein"), draw())
    options = options_of(("Ja", "Nein"))
    prepare(tmp_path / "log.csv", tmp_path / "text", options)
    pq.write_table(pa.table({**draw(), "click": ["Ja"] * 60}), tmp_path / "log.parquet")
    message = r"log.parquet: column 'member' holds booleans, and the vocabulary of .* prepare.data.booleans=\{member: "
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / "log.parquet", tmp_path / "none", options, vocabulary_of=tmp_path / "text")
    booleans = dict.fromkeys(("member", "flags"), ("Ja", "Nein"))
    told = dataclasses.replace(options, data=dataclasses.replace(options.data, booleans=booleans))
    prepare(tmp_path / "log.parquet", tmp_path / "table", told, vocabulary_of=tmp_path / "text")
    assert rows_of(tmp_path / "table")[0] == rows_of(tmp_path / "text")[0]


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (
            "label",
            {"clicked": ("Ja",), "not_clicked": ("Nein",)},
            r"column 'x' of kind label holds booleans; nothing says .* the texts: label x, a click is 'Ja' \(no",
        ),
        ("hex32", {}, "column 'x' of kind hex32 holds booleans"),
        ("timestamp", {}, "column 'x' of kind timestamp holds booleans"),
        ("string", {"booleans": {"x": ()}}, "column 'x' of kind string holds booleans"),
    ],
)
def test_a_boolean_that_stands_for_nothing_is_refused(tmp_path, kind, settings, message):
    columns = {"x": kind, "site": "string"} | ({} if kind == "label" else {"click": "label"})
    pq.write_table(pa.table({"x": [True], "site": ["a"], "click": ["1"]}), tmp_path / "log.parquet")
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / "log.parquet", tmp_path / "out", PrepareOptions(data=LogFormat(columns, ",", **settings)))


@pytest.mark.parametrize(
    ("clicked", "not_clicked", "texts"),
    [
        (("1",), ("-1",), ("1", "-1")),
        (("-1",), ("1",), ("1", "-1")),
        (("1",), "rest", ("1", "0")),
        ("rest", ("no", "?"), ("yes", "no")),
        ("rest", ("-1",), ("1", "-1")),
        (("sale",), "rest", ()),
        (("1",), ("2",), ()),
    ],
)
def test_the_labels_of_booleans_follow_from_the_label_s_cells(clicked, not_clicked, texts):
    log_format = checked_format(LogFormat(COLUMNS, clicked=clicked, not_clicked=not_clicked))
    assert log_format.texts_of_booleans("click") == texts


@pytest.mark.parametrize("kind", ["integer", "float", "weight"])
def test_a_boolean_among_numbers_is_1_or_0(tmp_path, kind):
    log_format = LogFormat({"click": "label", "x": kind, "site": "string"}, ",")
    assert log_format.texts_of_booleans("x") == ("1", "0")


def test_a_column_that_is_boolean_in_some_files_is_refused(tmp_path):
    write(tmp_path, ("True", "False"), draw())
    with pytest.raises(
        ValueError, match=r"log.parquet: column 'member' holds booleans, and in .*log.csv it does not; set"
    ):
        prepare([tmp_path / "log.csv", tmp_path / "log.parquet"], tmp_path / "out", options_of(("True", "False")))


@pytest.mark.parametrize("extend", [False, True])
@pytest.mark.parametrize("vocabulary", ["counted", "hash"])
def test_a_parquet_file_has_whole_numbers_as_the_vocabulary_has_them(tmp_path, extend, vocabulary):
    """The next day of a log, whose first day pandas wrote as CSV: 7.0 beside missing cells."""
    columns = {"click": "label", "code": "string", "codes": "list", "site": "string"}
    codes = [None, *(float(number % 7) for number in range(79))]
    rows = {"click": [0, 1] * 40, "code": codes, "codes": [[each, 8.0] for each in codes], "site": ["a", "b"] * 40}
    texts = ["" if code is None else str(code) for code in codes]
    lines = [
        f"{click},{text},{text}|8.0,{site}\n"
        for click, text, site in zip(rows["click"], texts, rows["site"], strict=True)
    ]
    (tmp_path / "day1.csv").write_text("".join(lines))
    pq.write_table(pa.table(rows), tmp_path / "day2.parquet")
    point_zero = ("code", "codes") if vocabulary == "hash" else ()
    data = LogFormat(columns, ",", point_zero=point_zero)
    options = PrepareOptions(data=data, min_count=1, workers=1, vocabulary=vocabulary)
    prepare(tmp_path / "day1.csv", tmp_path / "day1", options)
    options = dataclasses.replace(options, data=LogFormat(columns, ","))
    how = {"vocabulary_of": tmp_path / "day1", "extend": extend and vocabulary == "counted"}
    prepare(tmp_path / "day2.parquet", tmp_path / "day2", options, **how)
    assert rows_of(tmp_path / "day2") == rows_of(tmp_path / "day1")
    assert read_schema(tmp_path / "day2").vocabulary_size == read_schema(tmp_path / "day1").vocabulary_size
