"""Values that lose their ids (expire). `Model` says which values expire; `test_history.py` compares online runs with
it. Other tests run `online` with single options.
"""

import os
import random
import shutil
import time
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from app.checkpoint.read import Checkpoint
from app.checkpoint.retention import compact, step_folders
from app.cli.checkpoint import reshard
from app.online.expiry import IN_ROWS, Expiry, ExpiryOptions
from app.scoring.trained.export_rows import export_rows
from app.scoring.trained.trained_model import open_trained
from data_prep.encoding import growing
from data_prep.encoding.prepared_vocabulary import open_vocabulary
from data_prep.prepared.batches import read_batches, written_order
from data_prep.prepared.schema import read_schema
from tests.app.online.test_online_trainer import metrics_of
from tests.checkpoints import load

SMALL_FIELD = 20  # Fields with at most this many values lose none. The product's number is 256.


@pytest.fixture(scope="module", autouse=True)
def _small_fields():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(growing, "SMALL_FIELD", SMALL_FIELD)
        yield


def checkpoints_of(folder):
    return [Checkpoint.open(path) for path in step_folders(folder.path / "online/checkpoints")]


def counts_of(folder, schema):
    """Return, for each (field, value) of a prepared folder, how often it had occurred when it got its id."""
    tables = [pq.read_table(folder / name).to_pydict() for name in schema.vocabulary_files]
    return {
        (field, value): count
        for of in tables
        for field, value, count in zip(of["field"], of["value"], of["count"], strict=True)
    }


def values_of(folder, schema):
    """Return the id of each (field, value) of a prepared folder, except those that have expired."""
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


class Model:
    """The vocabulary that an online run must have after the parts that were passed to `take`.

    `ids` has the id of each (field, value), and `seen` the moment at which it occurred last. The value "" stands for
    the missing value of its field, which never expires.
    """

    def __init__(self, ids, counts, small_field, min_count):
        """Begin with the ids and counts of a prepared folder, fields in their order. `small_field` is the number of
        values up to which a field loses none.
        """
        self.count = dict(counts)  # How often each value had occurred when it got its id.
        self.ids, self.small_field, self.min_count = dict(ids), small_field, min_count
        self.fields = list(dict.fromkeys(field for field, _ in ids))
        self.first, self.size = min(ids.values()), max(ids.values()) + 1
        self.seen, self.waiting, self.moment = dict.fromkeys(ids, 0), Counter(), 0

    def take(self, cells, moment, after, most_ids=0):
        """Process a part in which the (field, value) pairs `cells` occur. Return the pairs that lose their ids after
        it.

        `moment` is the part's time, in rows or seconds. A value expires if it was not seen for more than `after` (0:
        never), or if more than `most_ids` values could expire (0: no limit), the longest unseen first.
        """
        counts = Counter(cells)
        self.moment = max(moment, self.moment)
        if 0 in self.seen.values():  # When these values were last seen is not known, so count from this part.
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
        gone = expired_of(can, self.seen, self.moment, after, most_ids)
        for cell in gone:
            del self.ids[cell], self.seen[cell]
        return gone

    def renumber(self):
        """Give the remaining values new ids without gaps, in the order of fields and of their old ids."""
        kept = sorted(self.ids, key=lambda cell: (self.fields.index(cell[0]), self.ids[cell]))
        self.ids = {cell: self.first + place for place, cell in enumerate(kept)}
        self.size = self.first + len(kept)


def expired_of(can, seen, moment, after, most_ids):
    """Return which of the values `can`, the longest unseen first, expire at a moment; `seen` is when each occurred."""
    old = {value for value in can if after and moment - seen[value] > after}
    left = [value for value in can if value not in old]
    return old | set(left[: max(len(left) - most_ids, 0)] if most_ids else ())


def _order(cell):
    """Return the place of a value among equally frequent ones: numbers by size, texts by bytes."""
    return int(cell[1]) if cell[0].endswith("_hour") else cell[1].encode()


def assert_prepared_rows_keep_their_values(checkpoint, prepared):
    """Check that the training rows in the prepared folder of a checkpoint, whose ids may have been renumbered, still
    have the values of the original prepared folder `prepared`.
    """
    schema, trained = read_schema(prepared), open_trained(checkpoint)
    ids = values_of(trained.folder, trained.schema)
    names = {id_: cell for cell, id_ in values_of(prepared, schema).items()}
    before, now = (
        next(read_batches(folder, each, "train", written_order(each, "train"), 200)).ids
        for folder, each in ((prepared, schema), (trained.folder, trained.schema))
    )
    ends = np.cumsum([field.max_length for field in schema.categorical])
    for field, end in zip(trained.schema.categorical, ends, strict=True):
        columns = slice(end - field.max_length, end)
        known = [ids.get(names.get(id_), field.oov_ids[0]) for id_ in before[:, columns].reshape(-1).tolist()]
        found = now[:, columns].reshape(-1)
        # A value that expired and came back has a new id, but rows that were stored before have an out-of-vocabulary
        # id.
        is_unknown = (found < 0) | ((found >= field.oov_ids[0]) & (found < field.oov_ids[1]))
        assert (found == np.where(is_unknown, found, known)).all(), field.name


def assert_copies_have_what_is_left(checkpoint, tmp_path):
    """Check that copies of a checkpoint have the same rows, ages and values: a compacted one, one with another number
    of shards, and exported rows.
    """
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


def test_a_part_of_a_clock_that_is_ahead_is_held_aside_before_all_other_values_expire(make_online, parts, caplog):
    folder, expire = make_online("ahead", parts[:2]), ("--expire-after", "1d")
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
    folder = make_online("later", parts[:1])
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
        expected = expired_of(order, touched, moment, options.after, options.most_ids)
        assert expiry.expire(can, counts, options).tolist() == sorted(expected)
        for id_ in expected:
            del touched[id_]
