"""Columns of lists, and columns that share a vocabulary: values, positions, another folder's vocabulary, errors."""

import dataclasses
import json

import numpy as np
import pytest

from data_prep.checks.inspect import inspect
from data_prep.encoding.from_values import mappings_to_chunk
from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.kernels.parsed import Chunk
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import read_schema
from data_prep.report.data_report import write_report
from tests.prepared_folders import vocabulary_of

OPTIONS = PrepareOptions(
    data=LogFormat(
        columns={"click": "label", "item": "string", "genres": "list", "history": "list"},
        separator=",",
        lists={"genres": ListForm(max_length=3, pool="sum"), "history": ListForm(separator=" ", max_length=2)},
        shares={"history": "item"},
    ),
    min_count=1,
    train_fraction=1,
    valid_fraction=0,
    test_fraction=0,
    workers=1,
)
LINES = ["1,a,x|y,b a", "0,b,x|x|y|z,", "1,,|,a a a", "0,c,||z|,d"]


@pytest.fixture(name="folder")
def folder_fixture(tmp_path):
    (tmp_path / "log.csv").write_text("\n".join(LINES) + "\n")
    prepare(tmp_path / "log.csv", tmp_path / "out", OPTIONS)
    return tmp_path / "out"


def test_each_value_has_a_position_and_duplicates_stay(folder):
    schema = read_schema(folder)
    assert [(f.name, f.max_length, f.pool) for f in schema.categorical] == [
        ("item", 1, "mean"),
        ("genres", 3, "sum"),
        ("history", 2, "mean"),
    ]
    values = {id_: value for (_, value), (_, id_) in vocabulary_of(folder).items()} | {-1: "-"}
    ids = np.concatenate([block.ids for block in read_blocks(folder, schema, "train")])
    rows = {"".join(values[id_] or "?" for id_ in row.tolist()) for row in ids}
    assert rows == {"axy-ba", "bxxy?-", "??--aa", "cz--d-"}


def test_columns_that_share_a_vocabulary_are_counted_together(folder):
    schema, vocabulary = read_schema(folder), vocabulary_of(folder)
    counts = {value: count for (field, value), (count, _) in vocabulary.items() if field == "item"}
    assert counts == {"a": 4, "b": 2, "c": 1, "d": 1, "": 2}
    assert {field for field, _ in vocabulary} == {"item", "genres"}
    item, _, history = schema.categorical
    assert (item.oov_ids, item.id_ranges) == (history.oov_ids, history.id_ranges)
    assert schema.vocabulary_size == 2 + 5 + 4  # two ids out of vocabulary; x, y, z and missing of genres


def test_what_is_cut_is_counted_and_shown(folder, capsys):
    profile = json.loads((folder / "statistics.json").read_text())["categorical"]
    assert [profile[name].get("cut") for name in ("item", "genres", "history")] == [None, 1, 1]
    assert [profile[name]["missing"] for name in ("item", "genres", "history")] == [1, 1, 1]
    inspect(folder)
    expected = "genres: 1 of 4 training rows have more than 3 values; the others were left out"
    assert expected in capsys.readouterr().out
    assert expected in write_report(folder).read_text()


def test_raw_rows_get_the_same_positions_and_may_be_python_lists(folder):
    encoder = open_encoder(folder)
    _, rows = encoder.encode(Chunk(0, len(LINES), "\n".join([*LINES, ""]).encode()))
    oov = read_schema(folder).categorical[0].oov_ids[0]
    mappings = [
        {"item": "a", "genres": ["x", "y"], "history": ["b", "a"]},
        {"item": "b", "genres": "x|x|y|z", "history": []},
        {"item": None, "genres": None, "history": ["a", "a", "a"]},
        {"item": "c", "genres": ["z"], "history": ["new"]},
    ]
    _, mapped = encoder.encode(mappings_to_chunk(mappings, OPTIONS.data))
    assert np.array_equal(mapped.ids[:3], rows.ids[:3])
    assert mapped.ids[3].tolist() == [*rows.ids[3, :4].tolist(), oov, -1]


def test_a_value_with_the_separator_in_it_is_an_error():
    with pytest.raises(
        TypeError,
        match=r"row 0, column 'genres' of kind list: 'x\|y' has the separator '\|' of the list's values in it",
    ):
        mappings_to_chunk([{"item": "a", "genres": ["x|y"], "history": []}], OPTIONS.data)


def test_a_shared_vocabulary_is_extended_once(tmp_path, folder):
    (tmp_path / "next.csv").write_text("1,new,x,a old\n0,old,w,new\n")
    schema = prepare(tmp_path / "next.csv", tmp_path / "next", OPTIONS, vocabulary_of=folder, extend=True)
    old, new = vocabulary_of(folder), vocabulary_of(tmp_path / "next")
    assert old.items() <= new.items()
    assert {key: count for key, (count, _) in new.items() if key not in old} == {
        ("item", "new"): 2,
        ("item", "old"): 2,
        ("genres", "w"): 1,
    }
    assert schema.categorical[0].id_ranges == schema.categorical[2].id_ranges

    other = dataclasses.replace(OPTIONS.data, lists={**OPTIONS.data.lists, "genres": ListForm(max_length=4)})
    with pytest.raises(ValueError, match=r"other lists: {'genres': \(3, 'sum'\), .* there, {'genres': \(4, 'mean'\)"):
        prepare(tmp_path / "next.csv", tmp_path / "x", dataclasses.replace(OPTIONS, data=other), vocabulary_of=folder)


def test_a_description_in_yaml(tmp_path):
    (tmp_path / "my.yaml").write_text(
        "columns: {click: label, item: string, genres: list}\n"
        "lists: {genres: {max_length: 3}}\nshares: {genres: item}\nseparator: ','\n"
    )
    data = read_options(data_path=tmp_path / "my.yaml").data
    assert (data.list_form("genres"), data.shares) == (ListForm(max_length=3), {"genres": "item"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("lists: {item: {}}", r"lists: 'item' is no column of kind list; write columns: {item: list}"),
        ("lists: {genres: {separator: ','}}", r"values of 'genres' are between ',', and so are the columns"),
        ("lists: {genres: {separator: '||'}}", r"a list's separator must be one ASCII character .* found '\|\|'"),
        ("lists: {genres: {max_length: 0}}", r"max_length must be between 1 and 1000; found 0"),
        ("lists: {genres: {pool: max}}", r"'prepare.data.lists.genres.pool' must be one of mean, sum; found 'max'"),
        ("lists: {genres: 3}", r"'prepare.data.lists.genres' must be a section with keys; found int 3"),
        ("shares: {genres: color}", r"shares: genres: color: 'color' is no column; only string and list columns share"),
        ("shares: {genres: click}", r"'click' is of kind label; only string and list"),
        (
            "shares: {ad: item}",
            "'ad' is of kind hex32; only string and list columns share; give both the kind string",
        ),
        ("shares: {item: genres, genres: item}", r"'genres' has no vocabulary of its own"),
    ],
)
def test_bad_descriptions_say_what_to_write(tmp_path, change, message):
    (tmp_path / "my.yaml").write_text(
        f"separator: ','\ncolumns: {{click: label, item: string, genres: list, ad: hex32}}\n{change}"
    )
    with pytest.raises(ValueError, match=message):
        read_options(data_path=tmp_path / "my.yaml")
