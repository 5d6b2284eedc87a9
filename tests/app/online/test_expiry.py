"""Values that lose their ids: an online run, killed anywhere or not, has the ids and rows of a small model of it."""

import itertools
import os
import random
import shutil
import time
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from app.checkpoint import write
from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import compact, step_folders
from app.cli.checkpoint import reshard
from app.online import online_trainer
from app.online.expiry import IN_ROWS, Expiry, ExpiryOptions
from app.online.online_trainer import OnlineTrainer
from app.online.publish import Publisher
from app.scoring.bundle_folder import read_chain
from app.scoring.bundle_writer import fold
from app.scoring.predictor import Predictor
from app.trained import export_bundle
from app.trained.export_rows import export_rows
from app.trained.trained_model import open_trained
from data_prep.encoding import growing
from data_prep.encoding.base import read_base_vocabulary
from data_prep.encoding.growing import GrowingVocabulary
from data_prep.encoding.prepared_vocabulary import open_vocabulary
from data_prep.prepared.schema import read_schema
from tests.app.online.test_online_trainer import Killed, assert_same_end, fails_at, metrics_of
from tests.checkpoints import load

AFTER, FULL_EVERY, MIN_COUNT = 450, 3, 2
SMALL_FIELD = 20  # in place of 256
SETTINGS = ("--expire-after", AFTER)
GIVEN_ANEW = "step-00000009"  # the checkpoint whose ids are


@pytest.fixture(scope="module", autouse=True)
def _small_fields():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(growing, "SMALL_FIELD", SMALL_FIELD)
        monkeypatch.setattr(online_trainer, "FULL_EVERY", FULL_EVERY)
        yield


@pytest.fixture(scope="module")
def never_killed(make_online, parts):
    folder = make_online("expiring")
    for part in parts:
        folder.deliver(part)
    assert folder.run(*SETTINGS) == 0
    return folder


def checkpoints_of(folder):
    return [Checkpoint.open(path) for path in step_folders(folder.path / "online/checkpoints")]


def counts_of(folder, schema):
    """How often each (field, value) of a prepared folder had come when it got its id."""
    tables = [pq.read_table(folder / name).to_pydict() for name in schema.vocabulary_files]
    return {
        (field, value): count
        for of in tables
        for field, value, count in zip(of["field"], of["value"], of["count"], strict=True)
    }


def values_of(folder, schema):
    """The id of each (field, value) of a prepared folder that has one."""
    _, _, vocabulary = open_vocabulary(folder, schema)
    tables = [pq.read_table(folder / name).to_pydict() for name in schema.vocabulary_files]
    ids = [
        ((field, value), id_)
        for of in tables
        for field, value, id_ in zip(of["field"], of["value"], of["id"], strict=True)
        if id_ not in set(vocabulary.expired.tolist())
    ]
    assert len(dict(ids)) == len(ids) == len({id_ for _, id_ in ids})
    return dict(ids)


def cells_of(part, schema):
    """The (field, value) of each row of a part, of its categorical columns that are hex digits."""
    for line in part.read_text().splitlines():
        cells = line.split("\t")
        yield [(f"C{place + 1}", cell) for place, cell in enumerate(cells[14:]) if cell]


class Model:
    """The vocabulary that an online run must leave: the id of each (field, value), and when that was last seen.

    A value "" is the missing one of its field, which keeps its id.
    """

    def __init__(self, ids, counts, small_field=SMALL_FIELD, min_count=MIN_COUNT):
        """Begin with these ids and counts, of all fields in their order, and all that `prepare` gave."""
        self.count = dict(counts)  # when it got its id
        self.ids, self.small_field, self.min_count = dict(ids), small_field, min_count
        self.fields = list(dict.fromkeys(field for field, _ in ids))
        self.first, self.size = min(ids.values()), max(ids.values()) + 1
        self.seen, self.waiting, self.moment = dict.fromkeys(ids, 0), Counter(), 0

    def take(self, cells, moment, after, most_ids=0):
        """Take a part with these occurrences of values, and return which values lose their ids after it."""
        counts = Counter(cells)
        self.moment = max(moment, self.moment)
        if 0 in self.seen.values():  # nothing is known of the time before
            self.seen = {cell: at or self.moment for cell, at in self.seen.items()}
        pending = {cell: self.waiting[cell] + count for cell, count in counts.items() if cell not in self.ids}
        new = [cell for cell, count in pending.items() if count >= self.min_count]
        new.sort(key=lambda cell: (self.fields.index(cell[0]), -pending[cell], _order(cell)))
        self.waiting |= {cell: count for cell, count in pending.items() if count < self.min_count}
        given = {cell: self.size + place for place, cell in enumerate(new)}
        self.count |= {cell: pending[cell] for cell in new}
        self.ids, self.size = self.ids | given, self.size + len(new)
        self.seen |= dict.fromkeys(counts.keys() & self.ids.keys(), self.moment)
        sizes = Counter(field for field, value in self.ids if value)
        can = [cell for cell in self.ids if cell[1] and sizes[cell[0]] > self.small_field]
        can.sort(key=lambda cell: (self.seen[cell], self.count[cell], -self.ids[cell]))
        old = {cell for cell in can if after and self.moment - self.seen[cell] > after}
        left = [cell for cell in can if cell not in old]
        gone = old | set(left[: max(len(left) - most_ids, 0)] if most_ids else ())
        for cell in gone:
            del self.ids[cell], self.seen[cell]
        return gone

    def renumber(self):
        """Give ids anew, without gaps."""
        kept = sorted(self.ids, key=lambda cell: (self.fields.index(cell[0]), self.ids[cell]))
        self.ids = {cell: self.first + place for place, cell in enumerate(kept)}
        self.size = self.first + len(kept)


def _order(cell):
    """Return the place of a value among equally frequent ones: numbers by size, texts by bytes."""
    return int(cell[1]) if cell[0].endswith("_hour") else cell[1].encode()


def test_ids_are_those_of_values_that_came_often_and_lately(never_killed, parts, tiny_dataset, tiny_schema):
    model = Model(values_of(tiny_dataset, tiny_schema), counts_of(tiny_dataset, tiny_schema))
    numbers, kept_for_long, num_rows = [len(model.ids)], set(), 0
    for number, (part, checkpoint) in enumerate(zip(parts, checkpoints_of(never_killed)[1:], strict=True), 1):
        rows = list(cells_of(part, tiny_schema))
        num_rows += len(rows)
        model.take(itertools.chain(*rows), num_rows, AFTER)
        if number % FULL_EVERY == 0:
            model.renumber()
        trained = open_trained(checkpoint)
        assert values_of(trained.folder, trained.schema) == model.ids
        numbers.append(len(model.ids))
        # A value has a row from the part in which it got its id on, until it loses it.
        checkpoint.verify()
        table = checkpoint.state().tables["deep"]
        with_row = set(table.row_ids[table.row_ids >= model.first].tolist())
        assert with_row <= set(model.ids.values())
        recent = {id_ for cell, id_ in model.ids.items() if cell[1] and model.seen[cell] > len(rows)}
        assert recent <= with_row
        kept_for_long |= {cell for cell, at in model.seen.items() if cell[1] and model.moment - at > AFTER}
    assert kept_for_long  # of small fields
    assert min(numbers) < numbers[0] / 1.5
    assert [line["ids_in_use"] for line in metrics_of(never_killed)] == numbers[1:]
    assert sum(line["expired_values"] > 0 for line in metrics_of(never_killed)) >= 2
    # Ids are given again after a full checkpoint alone, and then there are no gaps.
    schema = open_trained(checkpoints_of(never_killed)[3]).schema
    assert checkpoints_of(never_killed)[3].path.name == GIVEN_ANEW
    assert (schema.num_expired, len({field.id_ranges for field in schema.categorical})) == (0, 26)
    assert schema.vocabulary_size < tiny_schema.vocabulary_size


def test_every_bundle_and_its_fold_score_as_a_whole_one(never_killed, parts, tmp_path):
    lines = [line for part in parts for line in part.read_text().splitlines()]
    deltas = 0
    for checkpoint in checkpoints_of(never_killed):
        bundle = never_killed.path / "bundles" / checkpoint.path.name
        whole = tmp_path / checkpoint.path.name
        assert never_killed.app("export", checkpoint.path, whole) == 0
        expected = Predictor.open(whole).logits(lines)
        np.testing.assert_array_equal(Predictor.open(bundle).logits(lines), expected)
        Predictor.open(bundle).verify()
        if len(read_chain(bundle)) > 1:
            fold(bundle, tmp_path / "folded", overwrite=True)
            np.testing.assert_array_equal(Predictor.open(tmp_path / "folded").logits(lines), expected)
            deltas += Predictor.open(bundle).encoder.expired.size > 0
    assert deltas
    names = [
        path.name for path, _ in read_chain(never_killed.path / "bundles" / checkpoints_of(never_killed)[-1].path.name)
    ]
    assert names[0] == GIVEN_ANEW
    newer = next(path for path in (never_killed.path / "bundles").iterdir() if (path / "expired.npy").exists())
    assert '"format_version": 4' in (newer / "manifest.json").read_text()


def test_a_service_that_folds_meanwhile_changes_no_score(never_killed, parts, tmp_path):
    """A delta that names values as gone follows the fold of the deltas before it."""
    folder = shutil.copytree(never_killed.path / "bundles", tmp_path / "bundles")
    newest = folder / checkpoints_of(never_killed)[-1].path.name
    lines = parts[0].read_text().splitlines()
    expected = Predictor.open(newest).logits(lines)
    before = read_chain(newest)[-2][0]
    fold(before, folder / "folded")
    shutil.rmtree(before)
    assert [path.name for path, _ in read_chain(newest)] == ["folded", newest.name]
    np.testing.assert_array_equal(Predictor.open(newest).logits(lines), expected)


def assert_copies_have_what_is_left(checkpoint, tmp_path):
    """Reshard a checkpoint, export its rows and compact a copy of its folder: all have its rows, ages and values."""
    _, expected = load(checkpoint.path)
    touched, trained = checkpoint.last_touched(), open_trained(checkpoint)
    copied = shutil.copytree(checkpoint.path.parent, tmp_path / "copied") / checkpoint.path.name
    if Checkpoint.open(copied).older:
        compact(Checkpoint.open(copied), 2)
    assert Checkpoint.open(copied).older == ()
    for other in (reshard(checkpoint.path, tmp_path / "resharded", 3), copied):
        _, found = load(other)
        for table, state in expected.tables.items():
            np.testing.assert_array_equal(found.tables[table].row_ids, state.row_ids)
            for name, values in state.arrays.items():
                np.testing.assert_array_equal(found.tables[table].arrays[name], values)
        np.testing.assert_array_equal(Checkpoint.open(other).last_touched(), touched)
    num_rows = export_rows(checkpoint, "deep", trained.folder, trained.schema, tmp_path / "rows.parquet")
    written = pq.read_table(tmp_path / "rows.parquet").to_pydict()
    assert num_rows == len(expected.tables["deep"].row_ids)
    values = values_of(trained.folder, trained.schema)
    for field, value, row in zip(written["field"], written["value"], written["row"], strict=True):
        assert value is None or values[field, value] == row


def test_reshard_compact_and_export_rows_have_what_is_left(never_killed, tmp_path):
    for checkpoint in checkpoints_of(never_killed):
        (tmp_path / checkpoint.path.name).mkdir()
        assert_copies_have_what_is_left(checkpoint, tmp_path / checkpoint.path.name)


def test_the_rows_of_the_preparation_keep_their_values(never_killed, tiny_dataset, tiny_schema):
    from app.batches import read_batches, written_order

    names, num_known = {id_: cell for cell, id_ in values_of(tiny_dataset, tiny_schema).items()}, 0
    for checkpoint in checkpoints_of(never_killed):
        trained = open_trained(checkpoint)
        ids = values_of(trained.folder, trained.schema)
        before, now = (
            next(read_batches(folder, schema, "test", written_order(schema, "test"), 200)).ids
            for folder, schema in ((tiny_dataset, tiny_schema), (trained.folder, trained.schema))
        )
        num_equal = 0
        for old, new, field in zip(before.T, now.T, trained.schema.categorical, strict=True):
            known = [ids.get(names.get(id_), field.oov_ids[0]) for id_ in old.tolist()]
            # A value that came back is another one for rows that were stored when it was there before.
            assert (new == np.where(new == field.oov_ids[0], new, known)).all()
            num_known += np.count_nonzero(new != field.oov_ids[0])
            num_equal += np.count_nonzero(new == known)
        assert num_equal > 0.98 * old.size * len(trained.schema.categorical)
    assert num_known > 0
    assert never_killed.app("evaluate", "--run", never_killed.path / "online") == 0


def test_a_new_run_takes_no_row_of_a_value_that_is_gone(never_killed, tiny_schema, tiny_dataset):
    from app.training.warm_start.origins import NONE, row_origins

    for checkpoint in checkpoints_of(never_killed):
        trained = open_trained(checkpoint)
        origins = row_origins(trained.folder, trained.schema, tiny_dataset, tiny_schema)
        left = values_of(trained.folder, trained.schema)
        for cell, id_ in values_of(tiny_dataset, tiny_schema).items():
            assert origins[id_] == left.get(cell, NONE)


def test_a_vocabulary_with_gaps_is_no_base_of_a_preparation(never_killed):
    folders = {open_trained(each).folder for each in checkpoints_of(never_killed)}
    for folder in folders:
        schema = read_schema(folder)
        if schema.num_expired:
            _, options, _ = open_vocabulary(folder)
            with pytest.raises(ValueError, match="have lost their ids in an online run"):
                read_base_vocabulary(folder, options)
    assert len(folders) == 2


DEATHS = [  # from the third part on, after which values go and ids are given anew
    (GrowingVocabulary, "expire", 1),
    (growing, "with_expired", 1),  # before schema.json names the ids
    (GrowingVocabulary, "renumbered", 1),
    (growing, "write_schema", 4),  # in the new folder
    (OnlineTrainer, "_save_and_publish", 2),  # before the checkpoint
    (write, "write_manifest", 1),
    (Publisher, "publish", 2),  # after it
    (export_bundle, "finish", 1),
    (GrowingVocabulary, "expire", 1),  # in the next part
    (write, "write_manifest", 1),
    (Publisher, "publish", 2),
]


def test_killed_wherever_ids_go_it_ends_with_the_same_bits(make_online, never_killed, parts):
    folder = make_online("expiring-killed")
    for part in parts:
        folder.deliver(part)
    for owner, name, number in DEATHS:
        with fails_at(owner, name, number, Killed()), pytest.raises(Killed):
            folder.run(*SETTINGS)
    assert folder.run(*SETTINGS) == 0
    assert_same_end(folder, never_killed)
    for name in ("online/prepared", f"online/prepared-{GIVEN_ANEW[5:]}"):
        assert read_schema(folder.path / name) == read_schema(never_killed.path / name)


def test_a_part_of_a_clock_that_is_ahead_is_held_aside_before_all_other_values_expire(make_online, parts, caplog):
    folder, expire = make_online("ahead"), ("--expire-after", "1d")
    for part in parts[:2]:
        folder.deliver(part)
    in_a_month = time.time() + 30 * 86400
    os.utime(folder.source / parts[1].name, (in_a_month, in_a_month))
    assert folder.run(*expire) == 5
    assert "ahead of this machine's clock, and by it values that it does not have would lose" in caplog.text
    os.utime(folder.source / parts[1].name)
    assert folder.run(*expire) == 0
    assert [line["expired_values"] for line in metrics_of(folder) if "expired_values" in line] == [0, 0]
    folder.deliver(parts[2])
    os.utime(folder.source / parts[2].name, (in_a_month, in_a_month))
    assert folder.run("--expire-after", "1000d") == 0  # far less than a tenth of that
    assert '"lag_seconds": 0.0' in (folder.path / "online/metrics.jsonl").read_text().splitlines()[-1]


def test_ages_stay_in_their_unit_and_a_run_can_begin_to_expire(make_online, parts, caplog):
    folder = make_online("later")
    folder.deliver(parts[0])
    assert folder.run() == 0
    folder.deliver(parts[1])
    assert folder.run("--most-ids", "3000") == 0
    line = metrics_of(folder)[-1]
    assert line["expired_values"] > 0
    never_expire = 26 + 13 + 26 * SMALL_FIELD  # missing cells and booleans, and values of small fields
    assert 3000 <= line["ids_in_use"] <= 3000 + never_expire
    assert checkpoints_of(folder)[-1].older == ()  # with the ages of all
    assert folder.run("--expire-after", "1d") == 2
    assert "this run has the ages of its values in rows" in caplog.text
    folder.deliver(parts[2])
    assert folder.run() == 0  # ages are kept, and nothing goes
    assert metrics_of(folder)[-1]["expired_values"] == 0
    assert checkpoints_of(folder)[-1].last_touched() is not None


@pytest.mark.parametrize("seed", range(20))
def test_which_ids_go_is_what_a_plain_list_says(seed):
    chance = random.Random(seed)
    num_ids = chance.randrange(1, 30)
    expiry, moment, touched = Expiry(num_ids, None), 0, None
    for _ in range(10):
        options = ExpiryOptions(chance.choice([0, 5, 20]), IN_ROWS, chance.choice([0, 3, 12]))
        num_ids += chance.randrange(4)
        moment += chance.randrange(1, 8)
        ids = [chance.randrange(-1, num_ids) for _ in range(chance.randrange(12))]
        touched = dict.fromkeys(range(len(expiry._touched)), moment) if touched is None else touched
        known = expiry._touched.size
        touched |= dict.fromkeys([*range(known, num_ids), *(id_ for id_ in ids if id_ >= 0)], moment)
        expiry.touch(np.array(ids, int), num_ids, moment)
        can = np.array([chance.random() < 0.8 for _ in range(num_ids)])
        counts = np.array([chance.randrange(4) for _ in range(num_ids)])
        order = sorted((id_ for id_ in touched if can[id_]), key=lambda id_: (touched[id_], counts[id_], -id_))
        expected = {id_ for id_ in order if options.after and moment - touched[id_] > options.after}
        left = [id_ for id_ in order if id_ not in expected]
        if options.most_ids:
            expected |= set(left[: max(len(left) - options.most_ids, 0)])
        assert expiry.expire(can, counts, options).tolist() == sorted(expected)
        for id_ in expected:
            del touched[id_]
