"""What is compared between ranks before the first step, with the answers of other ranks made up."""

import dataclasses

import pytest

from app.process_group import SingleProcess, is_together
from app.ranks import check_alike, check_one_place, data_of


class Ranks(SingleProcess):
    """Rank 0, and a second rank that answers `other(own answer)`."""

    def __init__(self, other):
        self.other = other

    def gather(self, value):
        return [value, self.other(value)]


def test_ranks_that_are_alike_pass():
    check_alike(Ranks(lambda own: own), {"config": {"train": {"seed": 1}}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: {**own, "config": {"train": {"seed": 2}}}, "rank 1 differs from rank 0: train.seed was 1, is 2"),
        (lambda own: {**own, "data": {"vocabulary": ["b"]}}, r"data.vocabulary was \['a'\], is \['b'\]"),
        (lambda own: {**own, "versions": {**own["versions"], "numpy": "1.0"}}, "versions.numpy was .*, is '1.0'"),
        (lambda own: {**own, "tables": "reference"}, "tables was 'native', is 'reference'"),
    ],
)
def test_a_difference_is_told_on_all_ranks(change, message):
    what = {"config": {"train": {"seed": 1}}, "data": {"vocabulary": ["a"]}, "tables": "native"}
    with pytest.raises(ValueError, match=message) as caught:
        check_alike(Ranks(change), what)
    assert is_together(caught.value)


def test_rows_that_are_only_judged_count_as_well(tiny_schema):
    """Ranks judge them together: with more of them than the others have, one would wait for ever."""
    valid = dataclasses.replace(tiny_schema.splits["valid"], files=())
    other = data_of(dataclasses.replace(tiny_schema, splits={**tiny_schema.splits, "valid": valid}))
    with pytest.raises(ValueError, match=r"rank 1 differs from rank 0: data\.files\.valid was \['xxh3:.*, is \[\];"):
        check_alike(Ranks(lambda own: {**own, "data": other}), {"data": data_of(tiny_schema)})


def test_a_folder_that_another_rank_does_not_see(tmp_path):
    with pytest.raises(OSError, match=r"what rank 0 writes to .* is not seen by rank 1; give checkpoint\.dir="):
        check_one_place(Ranks(lambda own: False), tmp_path / "checkpoints")
    assert list((tmp_path / "checkpoints").iterdir()) == []
    check_one_place(Ranks(lambda own: own), tmp_path / "checkpoints")
