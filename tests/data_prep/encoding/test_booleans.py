"""A boolean is the text that the log has for it, or an error that names its column."""

import dataclasses
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.encoding.encoder import BOOLEAN_TEXTS, texts_among
from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.kernels.parsed import Chunk
from data_prep.options.format_checks import checked_format
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import read_schema
from tests.prepared_folders import ALL_TRAINED

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
