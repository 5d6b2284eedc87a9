"""Crosses of hex values, text and buckets: values, ids, missing cells, another folder's vocabulary, errors."""

import dataclasses
import re

import numpy as np
import pytest

from data_prep.checks.inspect import inspect
from data_prep.encoding.prepared_vocabulary import open_encoder
from data_prep.kernels import native, numpy_kernels
from data_prep.kernels.parsed import Chunk
from data_prep.kernels.strings import Strings
from data_prep.options.log_format import LogFormat
from data_prep.options.options_file import read_options
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.chunk_tasks import ChunkCounter
from data_prep.pipeline.prepare import prepare
from data_prep.pipeline.split import make_split
from data_prep.prepared.reader import read_blocks
from data_prep.prepared.schema import read_schema
from data_prep.report.data_report import write_report
from data_prep.statistics.statistics import LogStatistics, read_statistics
from tests.prepared_folders import field_options, vocabulary_of

OPTIONS = PrepareOptions(
    data=LogFormat(columns={"click": "label", "n": "integer", "h": "hex32", "s": "string"}, separator=",", quotes=True),
    crosses=(("h", "s"), ("s", "n_bucket", "h")),
    integer_buckets=True,
    min_count=1,
    train_fraction=1,
    valid_fraction=0,
    test_fraction=0,
    workers=1,
)
LINES = ["1,40,0000000a,x", "0,,0000000a,x", "1,40,,x", '0,40,0000000a,"a*b,\\c"', "1,7,0000000b,"]


@pytest.fixture(name="folder")
def folder_fixture(tmp_path):
    (tmp_path / "log.csv").write_text("\n".join(LINES) + "\n")
    prepare(tmp_path / "log.csv", tmp_path / "out", OPTIONS)
    return tmp_path / "out"


def values_of(folder, name):
    return {value: entry for (field, value), entry in vocabulary_of(folder).items() if field == name}


def rows_of(folder):
    return np.concatenate([block.ids for block in read_blocks(folder, read_schema(folder), "train")])


def test_values_are_written_as_a_human_reads_them(folder):
    assert {value: count for value, (count, _) in values_of(folder, "h*s").items()} == {
        "0000000a*x": 2,
        "": 2,
        r"0000000a*a\*b,\\c": 1,
    }
    assert {value: count for value, (count, _) in values_of(folder, "s*n_bucket*h").items()} == {
        "": 3,
        "x*13*0000000a": 1,
        r"a\*b,\\c*13*0000000a": 1,
    }


def test_rows_have_the_ids_of_their_crosses_in_training_and_scoring(folder):
    schema = read_schema(folder)
    assert [(field.name, field.cross) for field in schema.categorical] == [
        ("h", ()),
        ("s", ()),
        ("n_bucket", ()),
        ("h*s", ("h", "s")),
        ("s*n_bucket*h", ("s", "n_bucket", "h")),
    ]
    pairs, triples = values_of(folder, "h*s"), values_of(folder, "s*n_bucket*h")
    expected = [
        (pairs["0000000a*x"][1], triples["x*13*0000000a"][1]),
        (pairs["0000000a*x"][1], triples[""][1]),
        (pairs[""][1], triples[""][1]),
        (pairs[r"0000000a*a\*b,\\c"][1], triples[r"a\*b,\\c*13*0000000a"][1]),
        (pairs[""][1], triples[""][1]),
    ]
    assert sorted(map(tuple, rows_of(folder)[:, 3:].tolist())) == sorted(expected)
    lines = [*LINES, "1,40,0000000a,new"]
    _, rows = open_encoder(folder).encode(Chunk(0, len(lines), "\n".join([*lines, ""]).encode()))
    out = (schema.categorical[3].oov_ids[0], schema.categorical[4].oov_ids[0])
    assert list(map(tuple, rows.ids[:, 3:].tolist())) == [*expected, out]


def test_the_report_and_inspect__them(folder, capsys):
    inspect(folder)
    assert "s*n_bucket*h" in capsys.readouterr().out
    assert "s*n_bucket*h" in write_report(folder).read_text()


def test_a_vocabulary_with_crosses_is_extended_and_other_crosses_are_refused(tmp_path, folder):
    (tmp_path / "next.csv").write_text("1,40,0000000b,x\n0,40,0000000a,x\n")
    schema = prepare(tmp_path / "next.csv", tmp_path / "next", OPTIONS, vocabulary_of=folder, extend=True)
    old, new = values_of(folder, "h*s"), values_of(tmp_path / "next", "h*s")
    assert {value: new[value] for value in old} == old
    assert new.keys() - old.keys() == {"0000000b*x"}
    assert schema.categorical[3].cross == ("h", "s")
    assert new["0000000b*x"][1] >= read_schema(folder).vocabulary_size
    other = dataclasses.replace(OPTIONS, crosses=(("h", "s"),))
    with pytest.raises(ValueError, match=r"other columns: prepare.crosses is \[\['h', 's'\]\], there .*'n_bucket'"):
        prepare(tmp_path / "next.csv", tmp_path / "x", other, vocabulary_of=folder)


def test_the_limits_of_fields_hold_for_crosses(tmp_path, folder):
    for name, limit in (("max_size", 1), ("min_count", 2)):
        options = dataclasses.replace(OPTIONS, fields=field_options(**{name: {"h*s": limit}}))
        prepare(tmp_path / "log.csv", tmp_path / name, options)
        assert values_of(tmp_path / name, "h*s").keys() == {"", "0000000a*x"}
        assert len(values_of(tmp_path / name, "s*n_bucket*h")) == 3


def test_crosses_without_a_bound_of_their_size_may_not_grow_without_one(tmp_path, folder, monkeypatch):
    monkeypatch.setattr("data_prep.options.prepare_options.MOST_OF_A_CROSS", 1)
    with pytest.raises(
        ValueError, match=r'h\*s has at least 2 .* Set it: .*prepare.fields={"h\*s": {max_size: 1000000}}'
    ):
        prepare(tmp_path / "log.csv", tmp_path / "x", OPTIONS)
    bounded = dataclasses.replace(OPTIONS, fields=field_options(max_size={"h*s": 2, "s*n_bucket*h": 2}))
    assert prepare(tmp_path / "log.csv", tmp_path / "x", bounded).categorical[3].num_values == 3


def test_a_cross_may_be_hashed_beside_counted_fields(tmp_path, folder):
    options = dataclasses.replace(OPTIONS, fields=field_options(hash_size={"h*s": 1000}))
    schema = prepare(tmp_path / "log.csv", tmp_path / "hashed", options)
    assert [field.oov_ids[1] - field.oov_ids[0] for field in schema.categorical] == [1, 1, 1, 1000, 1]
    assert values_of(tmp_path / "hashed", "h*s").keys() == {""}
    assert values_of(tmp_path / "hashed", "h").keys() == values_of(folder, "h").keys()
    assert read_statistics(tmp_path / "hashed").categorical["h*s"].values == ()  # not counted
    lines = [*LINES, "0,,0000000a,new"]
    _, rows = open_encoder(tmp_path / "hashed").encode(Chunk(0, len(lines), "\n".join([*lines, ""]).encode()))
    ids, missing = rows.ids[:, 3].tolist(), values_of(tmp_path / "hashed", "h*s")[""][1]
    assert ids[0] == ids[1] and ids[2] == ids[4] == missing and len({*ids}) == 4
    assert sorted(rows_of(tmp_path / "hashed")[:, 3]) == sorted(ids[:-1])
    (tmp_path / "next.csv").write_text("1,40,0000000b,x\n0,40,0000000b,y\n")
    more = prepare(tmp_path / "next.csv", tmp_path / "more", options, vocabulary_of=tmp_path / "hashed", extend=True)
    assert more.categorical[3].num_values == 1 and more.categorical[1].num_values > schema.categorical[1].num_values
    with pytest.raises(ValueError, match=r"hash_size in prepare.fields is \{\}, there \{'h\*s': 1000\}"):
        prepare(tmp_path / "next.csv", tmp_path / "x", OPTIONS, vocabulary_of=tmp_path / "hashed")


@pytest.mark.parametrize("counts_bytes", [1, 1 << 30])
def test_a_cross_is_refused_while_it_is_counted(tmp_path, monkeypatch, counts_bytes):
    monkeypatch.setattr("data_prep.options.prepare_options.MOST_OF_A_CROSS", 3)
    monkeypatch.setattr("data_prep.statistics.value_counts._WAITING_STRINGS", 1)
    counter = ChunkCounter(make_split(OPTIONS, lambda: 0, lambda _: []), dataclasses.replace(OPTIONS, min_count=2))
    statistics = LogStatistics(counter.options, tmp_path, counts_bytes)
    often, seldom = ["1,40,0000000a,x", *LINES[3:4]], [f"1,40,{number:08x},x" for number in range(9)]
    statistics.add(counter.count(chunk_of([*often, *often, *seldom])))  # two values are frequent
    with pytest.raises(ValueError, match=r"cross h\*s has at least 11 values in at least 2 training rows"):
        statistics.add(counter.count(chunk_of([*seldom, *seldom, *often, *often])))


def chunk_of(lines):
    return Chunk(0, len(lines), "\n".join([*lines, ""]).encode())


@pytest.mark.parametrize(
    ("crosses", "message"),
    [
        ("[[C1]]", r"crosses: \[C1\] has 1 fields; write two to 4 of them, such as \[\[C1, C2\], \[C1, C3\]\]"),
        ("[[C1, C2, C3, C4, C5]]", r"has 5 fields; write two to 4"),
        ("[[C1, C27]]", r"\[C1, C27\]: 'C27' is no categorical field; did you mean 'C"),
        (
            "[[C1, I3]]",
            r"'I3' is no categorical field; cross the buckets of its numbers: I3_bucket",
        ),
        ("[[C1, label]]", r"'label' is no categorical field; known here: C1, "),
        ("[[C1, C1]]", r"\[C1, C1\] names a field twice"),
        ("[[C1, C2], [C2, C1]]", r"\[C2, C1\] is listed twice"),
        ("[C1, C2]", r"crosses: \[C1\] has 1 fields; write two to 4 of them, such as \[\[C1, C2\], \[C1, C3\]\]"),
        ("[[C1, C2]] layout=zoo", r"layout zoo .* takes no prepare.crosses"),
    ],
)
def test_bad_crosses_say_what_to_write(crosses, message):
    settings = re.split(r" (?=\w+=)", f"crosses={crosses}")
    with pytest.raises(ValueError, match=message):
        read_options(overrides=[f"prepare.{setting}" for setting in settings])


@pytest.mark.skipif(not native.is_available(), reason="the native log kernels are not built")
def test_native_joins_are_numpys():
    random = np.random.default_rng(1)
    words = [b"", b"*", b"\\", b"\\*", b"a", b"**b\\\\", "Zürich".encode(), b"x" * 40]
    for num_rows in (0, 1, 300):
        parts = [Strings.of([words[i] for i in random.integers(0, len(words), num_rows)]) for _ in range(3)]
        present = random.random(num_rows) < 0.7
        found = [kernels.join_strings(parts, present) for kernels in (native, numpy_kernels)]
        assert found[0].tolist() == found[1].tolist()
        by_text = {}
        for *cells, here, text in zip(*(part.tolist() for part in parts), present, found[0].tolist(), strict=True):
            assert by_text.setdefault(text, cells) == cells or not here  # different cells, different texts
            assert here or text == b""
