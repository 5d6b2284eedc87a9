"""A warm start says which rows it takes, and which not, where ids by hash or shared vocabularies differ."""

import logging

import pytest

from app.training.warm_start.source import NONE, row_origins
from tests.app.training.warm_start.pairs import Side, make_rows, prepared

ROWS = make_rows(1)


@pytest.fixture
def origins_of(tmp_path, caplog):
    """Gives both schemas, the origins and the log of a start between two sides."""

    def find(before, after):
        old, new = (prepared(side, ROWS, tmp_path / name) for name, side in (("old", before), ("new", after)))
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="app"):
            origins = row_origins(old.folder, old.schema, new.folder, new.schema)
        fields = [{field.name: field for field in side.schema.categorical} for side in (old, new)]
        return *fields, origins, [record.getMessage() for record in caplog.records]

    return find


@pytest.mark.parametrize("vocabulary", ["counted", "hash"])
def test_rows_by_hash_follow_to_a_multiple(origins_of, vocabulary):
    before, after = Side(("s1", "h1"), oov_buckets=2, vocabulary=vocabulary), Side(("s1", "h1"), oov_buckets=6)
    old, new, origins, log = origins_of(before, after)
    for name in ("s1", "h1"):
        first = old[name].oov_ids[0]
        assert origins[slice(*new[name].oov_ids)].tolist() == [first + j for j in (0, 0, 0, 1, 1, 1)]
    assert log == []


@pytest.mark.parametrize("wanted", [2, 6, 13])
def test_rows_by_hash_start_fresh_if_their_number_is_no_multiple(origins_of, wanted):
    _, new, origins, log = origins_of(
        Side(("s1", "h1"), hash_size={"s1": 4}), Side(("s1", "h1"), hash_size={"s1": wanted})
    )
    assert (origins[slice(*new["s1"].oov_ids)] == NONE).all()
    assert (origins[slice(*new["h1"].oov_ids)] != NONE).all()
    assert (origins[slice(*new["s1"].id_ranges[0])] != NONE).all()  # the missing value
    (line,) = log
    assert line.startswith(f"warning: the {wanted} rows of s1 for values out of vocabulary start fresh: ")
    assert " has 4 (of text)" in line


def test_rows_by_hash_start_fresh_if_the_hash_differs(origins_of):
    """The hash of eight hex digits is not that of their text."""
    _, new, origins, log = origins_of(
        Side(("s1", "h1"), oov_buckets=3), Side(("s1", "h1"), oov_buckets=3, texts=("h1",))
    )
    assert (origins[slice(*new["h1"].oov_ids)] == NONE).all()
    assert (origins[slice(*new["h1"].id_ranges[0])] != NONE).all()
    assert "has 3 (of numbers), whose values are not those of these rows (of text)" in log[0]


def test_fields_that_shared_a_vocabulary_each_take_its_rows(origins_of):
    old, new, origins, log = origins_of(Side(("s1", "s2"), shares={"s2": "s1"}), Side(("s1", "s2")))
    shared = range(*old["s1"].id_ranges[0])
    for name in ("s1", "s2"):
        assert set(origins[slice(*new[name].id_ranges[0])].tolist()) <= {NONE, *shared}
        assert origins[new[name].oov_ids[0]] == old["s1"].oov_ids[0]
    assert log == ["s1, s2 shared the vocabulary s1: each takes its rows"]


@pytest.mark.parametrize(("owner", "other"), [("s1", "s2"), ("s2", "s1")])
def test_of_fields_that_now_share_a_vocabulary_its_owner_wins(origins_of, owner, other):
    old, new, origins, log = origins_of(Side(("s1", "s2")), Side(("s1", "s2"), shares={other: owner}))
    assert origins[new["s1"].oov_ids[0]] == old[owner].oov_ids[0]
    found = origins[slice(*new["s1"].id_ranges[0])]
    of_owner, of_other = (set(range(*old[name].id_ranges[0])) for name in (owner, other))
    assert of_owner <= set(found.tolist())
    assert len(of_other & set(found.tolist())) == len(found) - len(of_owner) - (found == NONE).sum()
    meeting = len(of_owner) + len(of_other) - (found != NONE).sum() + 1
    (line,) = log
    assert line.startswith(f"warning: the fields {owner}, {other} share a vocabulary here: of the {meeting} rows that ")
    assert line.endswith(f" had, those of {owner} are taken")


def test_an_owner_that_is_renamed_keeps_its_rows(origins_of):
    before, after = (Side(("s1", "s2"), shares=shares) for shares in ({"s2": "s1"}, {"s1": "s2"}))
    old, new, origins, log = origins_of(before, after)
    assert origins[slice(*new["s1"].id_ranges[0])].tolist() == list(range(*old["s1"].id_ranges[0]))
    assert log == []
