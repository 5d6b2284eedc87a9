"""The comparison of ranks before the first step, with made-up answers of other ranks."""

import dataclasses
from types import SimpleNamespace

import pytest

from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions, SgdOptions
from app.distributed import sharded_tables
from app.distributed.process_group import ProcessGroup, is_collective
from app.distributed.sharded_tables import Operation, make_row_shard
from app.run.rank import check_alike, check_one_place, data_of
from app.tables.fields import TableField
from app.tables.interface import TablesSpec
from common.process import checksum_of_sources
from tests.app.tables.tables_of_spec import constant_rates


class Ranks(ProcessGroup):
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
        (lambda own: {**own, "program": "0123"}, "program was 'sha256:[0-9a-f]{16}', is '0123'; all ranks need"),
        (lambda own: {**own, "tables": "reference"}, "tables was 'native', is 'reference'"),
    ],
)
def test_a_difference_is_raised_on_all_ranks(change, message):
    what = {"config": {"train": {"seed": 1}}, "data": {"vocabulary": ["a"]}, "tables": "native"}
    with pytest.raises(ValueError, match=message) as caught:
        check_alike(Ranks(change), what)
    assert is_collective(caught.value)


def test_rows_that_are_only_evaluated_count_as_well(tiny_schema):
    """Ranks evaluate them together: one with more rows than the others would wait for ever."""
    valid = dataclasses.replace(tiny_schema.splits["valid"], files=())
    other = data_of(dataclasses.replace(tiny_schema, splits={**tiny_schema.splits, "valid": valid}))
    with pytest.raises(ValueError, match=r"rank 1 differs from rank 0: data\.files\.valid was \['xxh3:.*, is \[\];"):
        check_alike(Ranks(lambda own: {**own, "data": other}), {"data": data_of(tiny_schema)})


def test_a_folder_that_another_rank_does_not_see(tmp_path):
    with pytest.raises(OSError, match=r"what rank 0 writes to .* is not seen by rank 1; give checkpoint\.dir="):
        check_one_place(Ranks(lambda own: False), tmp_path / "checkpoints")
    assert list((tmp_path / "checkpoints").iterdir()) == []
    check_one_place(Ranks(lambda own: own), tmp_path / "checkpoints")


def test_the_program_is_known_by_its_sources(tmp_path):
    """A release that does the same steps otherwise has the same settings, data and library versions."""
    file = tmp_path / "app" / "csrc" / "kernel.cc"
    file.parent.mkdir(parents=True)
    found = set()
    for text in ("a + b", "b + a"):
        file.write_text(text)
        found.add(checksum_of_sources(tmp_path, ("app",)))
    (tmp_path / "app" / "notes.txt").write_text("no source")
    found.add(checksum_of_sources(tmp_path, ("app",)))
    assert len(found) == 2


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"embedding_dim": 8}, "the tables of rank 1 differ from those of rank 0: embedding_dim was 4, is 8"),
        ({"deep_optimizer": SgdOptions()}, "deep_optimizer was .*lazy_adam.*, is .*sgd"),
        ({"vocabulary_size": 7}, "vocabulary_size was 50, is 7"),
    ],
)
def test_tables_of_other_shapes_or_optimizers_are_refused(other, message):
    spec = TablesSpec(50, 4, (TableField("C1"),), 7, 0.01, 1e-3, FtrlOptions(), LazyAdamOptions())
    there = dataclasses.asdict(dataclasses.replace(spec, **other))
    world = SimpleNamespace(rank=0, size=2, allgather=lambda own: [own, {**own, **there, "fields": own["fields"]}])
    with pytest.raises(ValueError, match=message):
        make_row_shard("reference", spec, constant_rates(spec), world, num_owners=2, num_threads=1)
    world.allgather = lambda own: [own, own]
    owned = make_row_shard("reference", spec, constant_rates(spec), world, num_owners=2, num_threads=1)
    assert owned.tables is not None


class Answers:
    """A communicator whose other ranks say [operation, ids, scale, shard]."""

    def __init__(self, *others):
        self.size = 1 + len(others)
        self._others = others

    def Ialltoall(self, sent, received):
        received[:] = [sent[0], *self._others]
        return SimpleNamespace(Wait=lambda: None, Test=lambda: True)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ((Operation.LOOKUP, 3, 0.5, 0), "rank 0 does UPDATE with scale 0.5 in shard 0, rank 2 does LOOKUP"),
        ((Operation.UPDATE, 3, 0.25, 0), "rank 2 does UPDATE with scale 0.25 in shard 0"),
        ((Operation.UPDATE, 3, 0.5, 1), "rank 2 does UPDATE with scale 0.5 in shard 1"),
    ],
)
def test_ranks_that_are_not_in_step_end_the_job(other, message):
    with pytest.raises(ValueError, match=message) as caught:
        sharded_tables.start(Answers((Operation.UPDATE, 1, 0.5, 0), other), Operation.UPDATE, scale=0.5)
    assert not is_collective(caught.value)


def test_a_server_does_what_all_others_do():
    header = sharded_tables.start(Answers((Operation.UPDATE, 1, 0.5, 1), (Operation.UPDATE, 2, 0.5, 1)), Operation.NONE)
    assert (header.operation, header.counts.tolist(), header.scale) == (Operation.UPDATE, [0, 1, 2], 0.5)
    assert header.shard == 1
