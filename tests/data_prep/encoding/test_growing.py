"""A vocabulary that grows part by part has the ids that `prepare --vocabulary --extend` gives, part after part."""

import dataclasses
import itertools
import random
import shutil
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from app.scoring.trained.write_bundle import make_rows
from common.files import checksum
from data_prep.encoding.encoder import LOOKUP_FILE
from data_prep.encoding.growing import GrowingVocabulary, open_to_grow
from data_prep.encoding.prepared_vocabulary import open_encoder, open_vocabulary, write_additions, write_lookup
from data_prep.kernels.parsed import Chunk
from data_prep.options.log_format import LogFormat, VectorForm
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.prepared.data_files import damaged_files, schema_at
from data_prep.prepared.examples import concatenate
from data_prep.prepared.schema import VOCABULARY_FILE, read_schema
from tests.prepared_folders import ALL_TRAINED, field_options

FORMAT = LogFormat(
    columns={
        "click": "label",
        "hex": "hex32",
        "site": "string",
        "from": "string",
        "tags": "list",
        "n": "integer",
        "v": "vector",
    },
    vectors={"v": VectorForm(2)},
    separator=",",
    label="optional",
    shares={"from": "site"},
)
OPTIONS = PrepareOptions(
    data=FORMAT,
    min_count=2,
    oov_buckets=3,
    integer_buckets=True,
    crosses=(("hex", "site"),),
    fields=field_options(max_size={"tags": 9}),
    workers=1,
    **ALL_TRAINED,
)


def lines_of(chance, num_rows, day):
    """Rows whose values are born and die with the days. Some have no label."""
    rows = []
    for _ in range(num_rows):
        site, origin = (chance.choice(["", f"s{day + chance.randrange(6)}", f"é{chance.randrange(90)}"]) for _ in "ab")
        value = chance.choice(["", f"{day * 3 + chance.randrange(8):08x}"])
        tags = "|".join(f"t{day + chance.randrange(9)}" for _ in range(chance.randrange(4)))
        label, number = chance.choice(["0", "1", "0", "1", ""]), chance.choice(["", 2 ** chance.randrange(20)])
        vector = f"{len(rows) / 7} {day}" if len(rows) % 3 else ""
        rows.append(f"{label},{value},{site},{origin},{tags},{number},{vector}")
    return ("\n".join(rows) + "\n").encode()


def parsed(encoder, text):
    """The rows of a text, in chunks of odd sizes."""
    lines = text.splitlines(keepends=True)
    cuts = [0, len(lines) // 3, len(lines)]
    chunks = [Chunk(0, end - start, b"".join(lines[start:end])) for start, end in itertools.pairwise(cuts)]
    return [encoder.encode(chunk)[0].rows for chunk in chunks]


def add_values(growing, text):
    """Let a vocabulary grow by a text. Return how many values it has more, having compared the ids of its rows."""
    pieces = parsed(growing.encoder, text)
    rows = concatenate([growing.encoder.encode_rows(piece) for piece in pieces])
    num_new, rows = growing.add_values_of(pieces, rows)
    expected = concatenate([growing.encoder.encode_rows(piece) for piece in pieces])
    np.testing.assert_array_equal(rows.ids, expected.ids)
    np.testing.assert_array_equal(rows.vectors, expected.vectors)
    return num_new


def ids_of(folder, names=("vocabulary.parquet",)):
    tables = [pq.read_table(folder / name).to_pydict() for name in names]
    return {
        (field, value): (id_, count)
        for table in tables
        for field, value, id_, count in zip(table["field"], table["value"], table["id"], table["count"], strict=True)
    }


def same_additions(grown, tmp_path, known, encoder, size, values):
    """Check that the values after so many ids do not depend on whether all are read. Return the checksum of all."""
    _, _, vocabulary = open_vocabulary(grown)
    folders = [tmp_path / "all-read", tmp_path / "some-read"]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    written = write_lookup(vocabulary, folders[0], known, values)
    first = grown / VOCABULARY_FILE
    hidden = first.rename(tmp_path / "hidden")  # the time that it takes must not grow with the vocabulary
    assert write_additions(vocabulary, folders[1], encoder, size, values) == written
    rows = make_rows(vocabulary, FORMAT, 50, seed=1, since=size)
    hidden.rename(first)
    new = ids_of(grown, vocabulary.schema.vocabulary_files[1:])
    for name in ("hex", "site"):
        later = {value for (field, value), (id_, _) in new.items() if field == name and id_ >= size}
        assert len(later & set(rows[name].to_pylist())) >= len(later) / 4
    assert len({(folder / LOOKUP_FILE).read_bytes() for folder in folders}) == 1
    assert write_lookup(vocabulary, folders[0])["values"] == written["values"]
    return written["values"]


@pytest.mark.parametrize("seed", range(6))
def test_ids_are_those_of_a_vocabulary_that_each_part_extends(tmp_path, seed):
    chance = random.Random(seed)
    texts = [lines_of(chance, 200 if day == 0 else chance.randrange(1, 80), day) for day in range(6)]
    (tmp_path / "log-0").write_bytes(texts[0])
    prepare(tmp_path / "log-0", tmp_path / "day-0", OPTIONS)
    open_to_grow(tmp_path / "day-0", tmp_path / "grown", None)
    growing, before = GrowingVocabulary(tmp_path / "grown"), {}
    values = write_lookup(open_vocabulary(growing.folder)[2], tmp_path)["values"]
    for day, text in enumerate(texts[1:], 1):
        (tmp_path / f"log-{day}").write_bytes(text)
        folder = tmp_path / f"day-{day}"
        expected = prepare(
            tmp_path / f"log-{day}", folder, OPTIONS, vocabulary_of=tmp_path / f"day-{day - 1}", extend=True
        )
        before = {path.name: path.read_bytes() for path in growing.folder.glob("vocab*")}
        if chance.random() < 0.5:  # a restart
            growing = GrowingVocabulary(tmp_path / "grown")
        size, known, encoder = growing.schema.vocabulary_size, growing.schema.categorical, growing.encoder
        assert add_values(growing, text) == expected.vocabulary_size - size
        values = same_additions(growing.folder, tmp_path, known, encoder, size, values)
        schema = read_schema(growing.folder)
        assert schema == growing.schema
        assert schema.vocabulary_size == expected.vocabulary_size
        for field, known in zip(schema.categorical, expected.categorical, strict=True):
            ranges = [each for each in known.id_ranges if each[0] < each[1]]
            assert dataclasses.replace(field, id_ranges=()) == dataclasses.replace(known, id_ranges=())
            assert (
                np.concatenate([np.arange(*each) for each in field.id_ranges]).tolist()
                == np.concatenate([np.arange(*each) for each in ranges]).tolist()
            )
        entries = ids_of(growing.folder, schema.vocabulary_files)
        assert entries == ids_of(folder)
        counts = growing.counts_of_ids()
        assert all(counts[id_] == count for id_, count in entries.values())
        assert {name: (growing.folder / name).read_bytes() for name in before} == before  # nothing is written again
        assert list(damaged_files(growing.folder, schema, "vocabulary")) == []
        lines = Chunk(0, text.count(b"\n"), text)
        _, found = growing.encoder.encode(lines)
        for encoder in (open_encoder(folder, True), open_encoder(growing.folder, True)):
            np.testing.assert_array_equal(found.ids, encoder.encode(lines)[1].ids)
    assert len(before) > 2


@pytest.mark.parametrize("seed", range(4))
def test_values_get_ids_in_the_part_in_which_they_are_frequent_over_all_parts(tmp_path, seed):
    """Against exact counts of what has no id, which a part that is held aside does not change."""
    chance, options = random.Random(seed), dataclasses.replace(OPTIONS, min_count=5, crosses=(), fields={})
    (tmp_path / "log").write_bytes(lines_of(chance, 100, 0))
    prepare(tmp_path / "log", tmp_path / "first", options)
    open_to_grow(tmp_path / "first", tmp_path / "grown", None)
    earlier = 1 << 20
    growing, counts, num_late = GrowingVocabulary(tmp_path / "grown", earlier), Counter(), 0
    for day in range(8):
        known = set(ids_of(growing.folder, growing.schema.vocabulary_files))
        if chance.random() < 0.4:  # its values are noted, but it ends before they are added
            pieces = parsed(growing.encoder, lines_of(chance, 50, day))
            growing._new_fields(pieces, [growing.encoder.encode_rows(piece).ids for piece in pieces])
        text = lines_of(chance, 30, day)
        of_part = Counter()
        for line in filter(lambda line: line[0] != ",", text.decode().splitlines()):  # only rows with a label
            _, value, site, origin, tags, _, _ = line.split(",")
            of_part.update({("hex", value): 1})
            of_part.update([("site", site), ("site", origin), *(("tags", tag) for tag in tags.split("|"))])
        pending = Counter({key: count for key, count in of_part.items() if key[1] and key not in known})
        expected = {key for key, count in pending.items() if count + counts[key] >= options.min_count}
        num_late += sum(pending[key] < options.min_count for key in expected)
        size = growing.schema.vocabulary_size
        add_values(growing, text)
        found = ids_of(growing.folder, growing.schema.vocabulary_files)
        assert {key for key in set(found) - known if key[0] != "n_bucket"} == expected
        for key in expected:
            assert found[key][1] == pending[key] + counts[key]
            assert found[key][0] >= size
        counts += pending
    assert num_late > 3


def grown_twice(tmp_path):
    chance = random.Random(3)
    (tmp_path / "log").write_bytes(lines_of(chance, 200, 0))
    prepare(tmp_path / "log", tmp_path / "day-0", OPTIONS)
    schemas = [open_to_grow(tmp_path / "day-0", tmp_path / "grown", None)]
    growing = GrowingVocabulary(tmp_path / "grown")
    texts = [lines_of(chance, 80, day) for day in (4, 8)]
    for text in texts:
        add_values(growing, text)
        schemas.append(growing.schema)
    return schemas, texts


def test_an_earlier_moment_is_the_same_schema_with_fewer_ids(tmp_path):
    schemas, texts = grown_twice(tmp_path)
    for schema in schemas:
        assert schema_at(schemas[-1], {"vocabulary_size": schema.vocabulary_size}) == schema
        assert schema_at(schema, {"vocabulary_size": schemas[-1].vocabulary_size}) == schema
    lines = Chunk(0, texts[1].count(b"\n"), texts[1])
    early = open_encoder(tmp_path / "grown", True, schemas[0]).encode(lines)[1].ids
    np.testing.assert_array_equal(early, open_encoder(tmp_path / "day-0", True).encode(lines)[1].ids)


def test_what_was_added_after_a_moment_is_forgotten_and_added_again_with_the_same_bytes(tmp_path):
    schemas, texts = grown_twice(tmp_path)
    grown = tmp_path / "grown"
    expected = {path.name: checksum(path) for path in grown.iterdir()}
    for start in (0, 1):
        open_to_grow(grown, grown, {"vocabulary_size": schemas[start].vocabulary_size})
        growing = GrowingVocabulary(grown)
        assert growing.schema == schemas[start]
        for text in texts[start:]:
            add_values(growing, text)
        assert add_values(growing, texts[1]) == 0  # nothing in it is new
        assert {path.name: checksum(path) for path in grown.iterdir()} == expected


def test_a_grown_folder_is_a_base_for_a_preparation_and_its_data_may_move(tmp_path):
    schemas, texts = grown_twice(tmp_path)
    grown, moved = tmp_path / "grown", tmp_path / "moved"
    shutil.move(tmp_path / "day-0", moved)
    open_to_grow(moved, grown, {"vocabulary_size": schemas[2].vocabulary_size})
    assert read_schema(grown) == schemas[2]
    assert list(damaged_files(grown, schemas[2])) == []
    (tmp_path / "next").write_bytes(texts[1])
    copied = prepare(tmp_path / "next", tmp_path / "out", OPTIONS, vocabulary_of=grown)
    assert copied.vocabulary_size == schemas[2].vocabulary_size
    assert ids_of(tmp_path / "out") == ids_of(grown, schemas[2].vocabulary_files)
    (tmp_path / "later").write_bytes(lines_of(random.Random(9), 80, 20))
    extended = prepare(tmp_path / "later", tmp_path / "more", OPTIONS, vocabulary_of=grown, extend=True)
    assert extended.vocabulary_size > schemas[2].vocabulary_size
    assert ids_of(grown, schemas[2].vocabulary_files).items() <= ids_of(tmp_path / "more").items()


def test_shares_of_missing_cells_and_of_values_without_ids(tmp_path):
    schemas, texts = grown_twice(tmp_path)
    growing = GrowingVocabulary(tmp_path / "grown")
    text = texts[0] + lines_of(random.Random(8), 60, 9)
    rows = parsed(growing.encoder, text)
    ids = np.concatenate([growing.encoder.encode_rows(piece).ids for piece in rows])
    missing, unknown = growing.shares(rows, ids)
    cells = [line.split(",") for line in text.decode().splitlines()]
    known = ids_of(growing.folder, schemas[2].vocabulary_files)
    assert growing.columns == ["hex", "site", "from", "tags", "n_bucket", "hex*site", "n"]
    by_name = dict(zip(growing.columns, missing, strict=True))
    for place, name in ((1, "hex"), (2, "site"), (3, "from"), (4, "tags"), (5, "n_bucket"), (5, "n")):
        assert by_name[name] == round(sum(not row[place] for row in cells) / len(cells), 4), name
    without = dict(zip(growing.columns, unknown, strict=False))
    for place, name, owner in ((1, "hex", "hex"), (2, "site", "site"), (3, "from", "site")):
        expected = sum((owner, row[place]) not in known for row in cells) / len(cells)
        assert without[name] == round(expected, 4), name
    firsts = [row[4].split("|")[0] for row in cells]
    assert without["tags"] == round(sum(("tags", first) not in known for first in firsts) / len(cells), 4)
    assert max(unknown) > 0
