"""Crosses besides what `kernels/test_third_voice.py` compares: other forms of rows, other vocabularies, errors."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.checks.inspect import inspect
from data_prep.checks.pre_check import pre_check
from data_prep.encoding.from_values import lines_to_chunk, mappings_to_chunk
from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.encoding.rows_to_score import table_to_chunk
from data_prep.kernels.parsed import Chunk
from data_prep.kernels.strings import combinations, shorten
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.chunk_tasks import ChunkCounter
from data_prep.pipeline.prepare import prepare
from data_prep.pipeline.split import make_split
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import read_schema
from data_prep.report import write_report
from data_prep.statistics.statistics import LogStatistics
from tests.prepared_folders import ALL_TRAINED, contents, field_options, vocabulary_of

OPTIONS = PrepareOptions(
    data=LogFormat(
        columns={"click": "label", "user": "string", "ad": "hex32", "genres": "list", "seen": "list"},
        separator=",",
        lists={"genres": ListForm(max_length=3, pool="sum"), "seen": ListForm(separator=" ", max_length=2)},
        shares={"seen": "user"},
    ),
    crosses=(("user", "genres"), ("genres", "ad", "seen")),
    min_count=1,
    workers=1,
    **ALL_TRAINED,
)
LINES = [
    "1,ü,0000000a,x|y,p q",
    "0,ü,0000000b,x|x|*|z,p",  # a list that is longer, with a value twice
    "1,,0000000a,x,p",
    "0,ü,,y,q",
    "1,w,0000000a,||,p q",
    "0,w,0000000a,z,",
]
PAIRS = [["ü*x", "ü*y"], ["ü*x", "ü*x", r"ü*\*"], [""], ["ü*y"], [""], ["w*z"]]
TRIPLES = [
    ["x*0000000a*p", "x*0000000a*q", "y*0000000a*p", "y*0000000a*q"],
    ["x*0000000b*p", "x*0000000b*p", r"\**0000000b*p"],
    ["x*0000000a*p"],
    *[[""]] * 3,
]


@pytest.fixture(name="folder", scope="module")
def folder_fixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crossed_lists")
    (folder / "log.csv").write_text("\n".join(LINES) + "\n")
    prepare(folder / "log.csv", folder / "out", OPTIONS)
    return folder / "out"


def values_of(folder, ids):
    """The values of two crosses in each row, from ids [n, P]."""
    texts = {id_: (field, value) for (field, value), (_, id_) in vocabulary_of(folder).items()}
    pairs, triples = (
        [[texts.get(id_, (name, None))[1] for id_ in row if id_ >= 0] for row in ids[:, columns].tolist()]
        for name, columns in (("user*genres", slice(7, 10)), ("genres*ad*seen", slice(10, 16)))
    )
    return pairs, triples


def test_the_schema_describes_lists_and_crosses(folder):
    assert [(field.name, field.cross, field.max_length, field.pool) for field in read_schema(folder).categorical] == [
        ("user", (), 1, "mean"),
        ("ad", (), 1, "mean"),
        ("genres", (), 3, "sum"),
        ("seen", (), 2, "mean"),
        ("user*genres", ("user", "genres"), 3, "sum"),
        ("genres*ad*seen", ("genres", "ad", "seen"), 6, "mean"),
    ]


def test_every_form_of_a_row_has_the_same_combinations(folder, tmp_path):
    encoder, forms = open_encoder(folder), []
    cells = [[cell or None for cell in line.split(",")] for line in LINES]
    rows = [dict(zip(OPTIONS.data.columns, row, strict=True)) for row in cells]
    split = [
        {**row, "genres": (row["genres"] or "").split("|"), "seen": row["seen"] and row["seen"].split(" ")}
        for row in rows
    ]
    forms += [lines_to_chunk(LINES, OPTIONS.data), mappings_to_chunk(rows, OPTIONS.data)]
    forms += [mappings_to_chunk(split, OPTIONS.data)]
    forms += [table_to_chunk(pa.Table.from_pylist(of_rows), OPTIONS.data) for of_rows in (rows, split)]
    for chunk in forms:
        assert values_of(folder, encoder.encode(chunk)[1].ids) == (PAIRS, TRIPLES)
    for name, of_rows in (("texts", rows), ("lists", split)):
        pq.write_table(pa.Table.from_pylist(of_rows), tmp_path / f"{name}.parquet")
        prepare(tmp_path / f"{name}.parquet", tmp_path / name, OPTIONS)
        found, expected = contents(tmp_path / name), contents(folder)
        assert found["vocabulary.parquet"] == expected["vocabulary.parquet"]
        assert found["train-00000.mindrecord"] == expected["train-00000.mindrecord"]


def test_the_first_values_of_each_list_are_combined_where_there_are_too_many(folder, tmp_path, capsys):
    options = dataclasses.replace(OPTIONS, fields=field_options(max_length={"genres*ad*seen": 3}))
    assert prepare(folder.parent / "log.csv", tmp_path / "out", options).categorical[5].max_length == 3
    _, rows = open_encoder(tmp_path / "out").encode(lines_to_chunk(LINES, OPTIONS.data))
    # The longest list is cut, of equally long ones the last: 2 * 1 * 2 becomes 2 * 1 * 1.
    assert values_of(tmp_path / "out", rows.ids)[1] == [["x*0000000a*p", "y*0000000a*p"], *TRIPLES[1:]]
    inspect(tmp_path / "out")
    printed = capsys.readouterr().out
    assert "genres*ad*seen: 1 of 6 training rows have more than 3 values; the others were left out" in printed
    assert "user*genres: " not in printed  # cut by its list alone
    assert "user*genres" in write_report(tmp_path / "out").read_text()


@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_no_more_combinations_are_kept_than_asked_for_and_no_fewer_than_need_be(most):
    lengths = np.random.default_rng(most).integers(0, 14, (3, 500))
    kept = shorten(lengths, most)
    assert (kept <= lengths).all() and (kept.prod(axis=0) <= most).all()
    assert np.array_equal(kept[:, lengths.prod(axis=0) <= most], lengths[:, lengths.prod(axis=0) <= most])
    cut = np.flatnonzero(lengths.prod(axis=0) > most)
    for row in cut:  # one value more of the list that was cut last would be too many
        assert any(np.prod(kept[:, row] + step) > most for step in np.eye(3, dtype=int)[kept[:, row] < lengths[:, row]])
    rows, places = combinations(kept)
    assert np.array_equal(np.bincount(rows, minlength=500), kept.prod(axis=0))
    assert (places < kept[:, rows]).all() and len({*zip(rows, *places, strict=True)}) == len(rows)


def test_a_cross_of_lists_has_as_many_combinations_as_its_lists_or_a_hundred():
    def length(genres, seen, **options):
        lists = {"genres": ListForm(max_length=genres), "seen": ListForm(" ", max_length=seen)}
        data = dataclasses.replace(OPTIONS.data, lists=lists)
        return dataclasses.replace(OPTIONS, data=data, **options).categorical_columns[-1].max_length

    assert [length(9, 11), length(9, 12), length(120, 2), length(1, 1)] == [99, 100, 120, 1]
    assert length(9, 11, fields=field_options(max_length={"genres*ad*seen": 1_000})) == 1_000


def test_vocabularies_are_copied_and_extended(folder, tmp_path):
    (tmp_path / "next.csv").write_text("1,ü,0000000a,x|new,p\n0,w,0000000a,z|z,q\n")
    log = tmp_path / "next.csv"
    copied = prepare(log, tmp_path / "copied", OPTIONS, vocabulary_of=folder)
    rows = np.concatenate([block.ids for block in read_blocks(tmp_path / "copied", copied, "train")])
    assert sorted(values_of(folder, rows)[0], key=str) == [["w*z", "w*z"], ["ü*x", None]]
    old, extended = vocabulary_of(folder), prepare(log, tmp_path / "new", OPTIONS, vocabulary_of=folder, extend=True)
    new = vocabulary_of(tmp_path / "new")
    assert old.items() <= new.items() and ("user*genres", "ü*new") in new.keys() - old.keys()
    assert len(extended.categorical[4].id_ranges) == 2
    other = dataclasses.replace(OPTIONS, fields=field_options(max_length={"genres*ad*seen": 2}))
    with pytest.raises(
        ValueError, match=r"max_length in prepare.fields is {'genres\*ad\*seen': 2}, there {}. Give the options that"
    ):
        prepare(log, tmp_path / "x", other, vocabulary_of=folder)
    other = dataclasses.replace(OPTIONS, crosses=(("user", "genres"),))
    with pytest.raises(ValueError, match=r"prepare.crosses is \[\['user', 'genres'\]\], there .*'ad', 'seen'"):
        prepare(log, tmp_path / "x", other, vocabulary_of=folder)


def test_a_hashed_cross_is_neither_counted_nor_extended(folder, tmp_path):
    options = dataclasses.replace(OPTIONS, fields=field_options(hash_size={"user*genres": 1000}))
    first = prepare(folder.parent / "log.csv", tmp_path / "hashed", options)
    statistics = json.loads((tmp_path / "hashed" / "statistics.json").read_text())["categorical"]
    assert statistics["user*genres"]["values"] == []
    (tmp_path / "next.csv").write_text("1,new,0000000b,x,p\n0,newer,0000000a,new,q\n")
    more = prepare(tmp_path / "next.csv", tmp_path / "more", options, vocabulary_of=tmp_path / "hashed", extend=True)
    sizes = [(schema.categorical[4].num_values, schema.categorical[0].num_values) for schema in (first, more)]
    assert sizes[0][0] == sizes[1][0] == 1 and sizes[0][1] < sizes[1][1]
    with pytest.raises(ValueError, match=r"hash_size in prepare.fields is \{\}, there \{'user\*genres': 1000\}"):
        prepare(tmp_path / "next.csv", tmp_path / "x", OPTIONS, vocabulary_of=tmp_path / "hashed")


def test_a_cross_may_not_grow_without_a_bound(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.options.prepare_options.MOST_OF_A_CROSS", 1)
    message = r'user\*genres has at least 4 .* Set it: .*prepare.fields={"user\*genres": {max_size: 1000000}}'
    with pytest.raises(ValueError, match=message):
        prepare(folder.parent / "log.csv", tmp_path / "x", OPTIONS)
    bounded = dataclasses.replace(OPTIONS, fields=field_options(max_size={"user*genres": 2, "genres*ad*seen": 2}))
    assert prepare(folder.parent / "log.csv", tmp_path / "x", bounded).categorical[4].num_values == 3


@pytest.mark.parametrize("counts_bytes", [1, 1 << 30])
def test_a_cross_is_refused_while_it_is_counted(tmp_path, monkeypatch, counts_bytes):
    monkeypatch.setattr("data_prep.options.prepare_options.MOST_OF_A_CROSS", 3)
    monkeypatch.setattr("data_prep.statistics.value_counts._WAITING_STRINGS", 1)
    options = dataclasses.replace(OPTIONS, crosses=(("user", "ad"),), min_count=2)
    counter = ChunkCounter(make_split(options, lambda: 0, lambda _: []), options)
    statistics = LogStatistics(options, tmp_path, counts_bytes)
    often, seldom = ["1,u,0000000a,,", "1,v,0000000a,,"], [f"1,u,{number:08x},," for number in range(9)]

    def chunk_of(lines):
        return Chunk(0, len(lines), "\n".join([*lines, ""]).encode())

    statistics.add(counter.count(chunk_of([*often, *often, *seldom])))  # two values are frequent
    with pytest.raises(ValueError, match=r"cross user\*ad has at least 11 values in at least 2 training rows"):
        statistics.add(counter.count(chunk_of([*seldom, *seldom, *often, *often])))


def test_pre_check_shows_what_the_cross_would_be(folder, capsys):
    pre_check(folder.parent / "log.csv", log_format=OPTIONS.data, categorical=OPTIONS.categorical_columns)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["user*genres", "22.22%", "4"] in lines  # two rows are missing, seven values in the others
    assert ["genres*ad*seen", "27.27%", "6"] in lines


def test_a_folder_without_such_crosses_does_not_name_their_setting(tmp_path):
    assert "field_max_length" not in dataclasses.replace(OPTIONS, crosses=(("user", "ad"),)).decisive()
    assert dataclasses.replace(OPTIONS, fields=field_options(max_length={"user*genres": 2})).decisive()[
        "field_max_length"
    ]
