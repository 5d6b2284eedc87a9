"""Crosses with a list: combinations of values, the ones that are kept, vocabularies, what is shown, errors."""

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
from data_prep.kernels.strings import combinations, shorten
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import read_schema
from tests.prepared_folders import contents, field_options, vocabulary_of

OPTIONS = PrepareOptions(
    data=LogFormat(
        columns={"click": "label", "user": "string", "ad": "hex32", "genres": "list", "seen": "list"},
        separator=",",
        lists={"genres": ListForm(max_length=3, pool="sum"), "seen": ListForm(separator=" ", max_length=2)},
        shares={"seen": "user"},
    ),
    crosses=(("user", "genres"), ("genres", "ad", "seen")),
    min_count=1,
    train_fraction=1,
    valid_fraction=0,
    test_fraction=0,
    workers=1,
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


def test_a_row_has_each_combination_of_its_values_in_training_and_scoring(folder):
    schema = read_schema(folder)
    assert [(f.name, f.cross, f.max_length, f.pool) for f in schema.categorical[4:]] == [
        ("user*genres", ("user", "genres"), 3, "sum"),
        ("genres*ad*seen", ("genres", "ad", "seen"), 6, "mean"),
    ]
    trained = np.concatenate([block.ids for block in read_blocks(folder, schema, "train")])
    _, scored = open_encoder(folder).encode(lines_to_chunk(LINES, OPTIONS.data))
    assert values_of(folder, scored.ids) == (PAIRS, TRIPLES)
    assert sorted(trained.tolist()) == sorted(scored.ids.tolist())
    after_values = scored.ids[:, 7:] == -1
    assert (np.diff(after_values[:, :3].astype(int)) >= 0).all() and (
        np.diff(after_values[:, 3:].astype(int)) >= 0
    ).all()


def test_combinations_are_counted_as_a_list_s_values_are(folder):
    counts = {value: count for (field, value), (count, _) in vocabulary_of(folder).items() if field == "user*genres"}
    assert counts == {"ü*x": 3, "ü*y": 2, r"ü*\*": 1, "w*z": 1, "": 2}
    profile = json.loads((folder / "statistics.json").read_text())["categorical"]
    assert [profile[name]["missing"] for name in ("user*genres", "genres*ad*seen")] == [2, 3]


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
    schema = prepare(folder.parent / "log.csv", tmp_path / "out", options)
    assert schema.categorical[5].max_length == 3
    _, rows = open_encoder(tmp_path / "out").encode(lines_to_chunk(LINES, OPTIONS.data))
    # The longest list is cut, of equally long ones the last: 2 * 1 * 2 becomes 2 * 1 * 1.
    assert values_of(tmp_path / "out", rows.ids)[1] == [["x*0000000a*p", "y*0000000a*p"], *TRIPLES[1:]]
    inspect(tmp_path / "out")
    printed = capsys.readouterr().out
    assert "genres*ad*seen: 1 of 6 training rows have more than 3 values; the others were left out" in printed
    assert "user*genres: " not in printed  # cut by its list alone


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


def test_limits_and_hashes_of_fields_hold(folder, tmp_path):
    fields = field_options(min_count={"user*genres": 2}, hash_size={"genres*ad*seen": 50})
    limited = dataclasses.replace(OPTIONS, fields=fields)
    schema = prepare(folder.parent / "log.csv", tmp_path / "out", limited)
    assert {value for field, value in vocabulary_of(tmp_path / "out") if field == "user*genres"} == {"", "ü*x", "ü*y"}
    _, rows = open_encoder(tmp_path / "out").encode(lines_to_chunk(LINES, OPTIONS.data))
    first, end = schema.categorical[5].oov_ids
    hashed = [row[row >= 0].tolist() for row in rows.ids[:, 10:]]
    assert end - first == 50 and [len(row) for row in hashed] == [len(row) for row in TRIPLES]
    by_value = {}
    for ids, values in zip(hashed, TRIPLES, strict=True):
        for id_, value in zip(ids, values, strict=True):
            assert by_value.setdefault(value, id_) == id_ and (first <= id_ < end) == bool(value)
    assert len({*by_value.values()}) > 4


def test_pre_check_shows_what_the_cross_would_be(folder, capsys):
    pre_check(folder.parent / "log.csv", log_format=OPTIONS.data, categorical=OPTIONS.categorical_columns)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["user*genres", "22.22%", "4"] in lines  # two rows are missing, seven values in the others
    assert ["genres*ad*seen", "27.27%", "6"] in lines


def test_a_folder_without_such_crosses_does_not_name_their_setting(tmp_path):
    plain = dataclasses.replace(OPTIONS, crosses=(("user", "ad"),))
    assert "field_max_length" not in plain.decisive()
    assert dataclasses.replace(OPTIONS, fields=field_options(max_length={"user*genres": 2})).decisive()[
        "field_max_length"
    ]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            'fields={"user*ad": {max_length: 3}}',
            r"fields: max_length of 'user\*ad', which is no cross with a list; known here: user\*genres. "
            r"The length of a list itself is max_length in prepare.data.lists",
        ),
        ("fields={genres: {max_length: 3}}", r"fields: max_length of 'genres', which is no cross with a list"),
        (
            'fields={"user*genres": {max_length: 0}}',
            r"prepare.fields.user\*genres.max_length must be in \[1, 1000\]; found 0",
        ),
        ('fields={"user*genres": {max_length: 1001}}', r"must be in \[1, 1000\]; found 1001"),
        ("crosses=[[genres,genres]]", r"crosses: \[genres, genres\] names a field twice"),
        ("layout=zoo", r"layout zoo has one id a field, of a vocabulary of its own; genres of kind list"),
    ],
)
def test_bad_settings_say_what_to_write(tmp_path, setting, message):
    (tmp_path / "my.yaml").write_text(
        "separator: ','\ncolumns: {click: label, user: string, ad: hex32, genres: list}\n"
    )
    words = ["prepare.crosses=[[user,genres],[user,ad]]", f"prepare.{setting}"]
    with pytest.raises(ValueError, match=message):
        read_options(data_path=tmp_path / "my.yaml", overrides=words)
