"""Lists: rows of several positions pooled into one of the field, against a dictionary of rows."""

import dataclasses

import numpy as np
import pytest

from app.config.optimizer_settings import SgdOptions
from app.distributed.sharded_tables import make_batch_kernels
from app.tables.backends import make_host_tables
from app.tables.fields import TableField
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, WIDE, RowGradients
from tests.app.tables.job_in_threads import JobInThreads
from tests.app.tables.tables_of_spec import assert_equal_states, constant_rates, load_state

FIELDS = (
    TableField("C1"),
    TableField("tags", length=3, mean=True),
    TableField("C2", deep=False),
    TableField("seen", length=2, wide=False),
)
SAME = tuple(field._replace(wide=True, deep=True) for field in FIELDS)
SEEN = {"no deep": {"deep": False}, "no wide": {"wide": False}}
FIELDS_BY_NAME = {"parts": FIELDS, "same": SAME} | {
    name: tuple(field._replace(**seen) for field in SAME) for name, seen in SEEN.items()
}
RATE, SCALE = 0.25, 0.5


def ranks_of_spec(backend, servers):
    return lambda spec: JobInThreads(spec, constant_rates(spec), backend, 2, servers)


def tables_of_spec(backend):
    return lambda spec: make_host_tables(backend, spec, constant_rates(spec), 2)


MAKERS = {
    **{backend: tables_of_spec(backend) for backend in ("native", "reference")},
    "ranks": ranks_of_spec("native", 0),
    "server": ranks_of_spec("reference", 1),
}


def draw_ids(spec, rng, batch=9):
    """Few ids, so that rows come twice in one list and in several fields; lists of any length from 1 on."""
    ids = rng.integers(0, 6, (batch, spec.num_positions)).astype(np.int32)
    for first, length in ((1, 3), (5, 2)):
        values = rng.integers(1, length + 1, batch)
        ids[:, first : first + length][np.arange(length) >= values[:, None]] = -1
    return ids


class Dictionary:
    """The rows by id, and sums over positions one by one, in float64."""

    def __init__(self, spec):
        rows = initial_rows(spec.seed, np.arange(spec.vocabulary_size), spec.embedding_dim, spec.initial_scale)
        self.spec, self.touched = spec, {WIDE: set(), DEEP: set()}
        self.rows = {WIDE: np.zeros((spec.vocabulary_size, 1)), DEEP: rows.astype(np.float64)}

    def positions(self, ids, table):
        """Yield batch row, place among the part's fields, id and weight of each position."""
        fields, start = self.spec.columns_of(table), 0
        for number, field in enumerate(self.spec.fields):
            for row, values in enumerate(ids[:, start : start + field.length]):
                values = [value for value in values if value >= 0]
                for value in values if number in fields else ():
                    yield row, fields.index(number), value, 1 / len(values) if field.mean and field.length > 1 else 1
            start += field.length

    def lookup(self, ids):
        deep = np.zeros((len(ids), len(self.spec.deep_names), self.spec.embedding_dim))
        wide = np.zeros(len(ids))
        for row, field, value, weight in self.positions(ids, DEEP):
            deep[row, field] += weight * self.rows[DEEP][value]
        for row, _, value, weight in self.positions(ids, WIDE):
            wide[row] += weight * self.rows[WIDE][value, 0]
        return deep.reshape(len(ids), np.prod(deep.shape[1:])), wide

    def update(self, ids, gradients):
        deep = gradients.deep.reshape(len(ids), len(self.spec.deep_names), self.spec.embedding_dim)
        for table in (DEEP, WIDE):
            sums = {}
            for row, field, value, weight in self.positions(ids, table):
                gradient = deep[row, field] if table == DEEP else gradients.wide[row]
                sums[value] = sums.get(value, 0) + weight * SCALE * gradient
            l2_coef = self.spec.l2_coef if table == DEEP else 0
            for value, gradient in sums.items():
                self.rows[table][value] -= RATE * (gradient + l2_coef * self.rows[table][value])
                self.touched[table].add(value)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("fields", FIELDS_BY_NAME.values(), ids=FIELDS_BY_NAME)
def test_lists_learn_as_a_dictionary_of_rows_does(native_library, make_spec, maker, fields):
    options = SgdOptions(learning_rate=RATE)
    spec = dataclasses.replace(make_spec(vocabulary_size=7, wide=options, deep=options), fields=fields)
    tables, plain, rng = MAKERS[maker](spec), Dictionary(spec), np.random.default_rng(1)
    for batch in (9, 9, 0, 9):
        ids = draw_ids(spec, rng, batch)
        unique = tables.unique(ids)
        rows, (deep, wide) = tables.lookup(unique), plain.lookup(ids)
        np.testing.assert_allclose(rows.deep, deep, atol=1e-5)
        np.testing.assert_allclose(rows.wide, wide, atol=1e-5)
        distinct = np.unique([value for _, _, value, _ in plain.positions(ids, DEEP)]).astype(int)
        assert rows.squared_norm == pytest.approx(np.square(plain.rows[DEEP][distinct]).sum(), rel=1e-4)
        shape = (len(ids), len(spec.deep_names) * spec.embedding_dim)
        gradients = RowGradients(*(rng.standard_normal(s, np.float32) for s in (shape, len(ids))), SCALE)
        tables.update(unique, gradients)
        plain.update(ids, gradients)
    for table, state in tables.state().items():
        assert set(state.row_ids.tolist()) == plain.touched[table]
        np.testing.assert_allclose(state.arrays["rows"], plain.rows[table][state.row_ids], atol=1e-5)


@pytest.mark.parametrize("maker", ["ranks", "server"])
def test_ranks_save_and_resume_as_one_process_does(native_library, make_spec, maker):
    """Parts, lists, and ids that several fields share; weights and gradients add up exactly in any order."""
    fields = (FIELDS[0], FIELDS[1]._replace(mean=False), FIELDS[2], FIELDS[3]._replace(mean=True))
    spec, rng = dataclasses.replace(make_spec(vocabulary_size=7), fields=fields), np.random.default_rng(5)
    makers = MAKERS["native"], MAKERS[maker]
    together = [make(spec) for make in makers]
    for step in range(1, 5):
        ids, shape = draw_ids(spec, rng), (9, len(spec.deep_names) * spec.embedding_dim)
        gradients = RowGradients(*(rng.integers(-4, 5, s).astype(np.float32) / 8 for s in (shape, 9)), SCALE)
        for tables in together:
            unique = tables.unique(ids)
            tables.lookup(unique)
            tables.update(unique, gradients)
        if step == 2:
            (alone, ranks), resumed = together, [make(spec) for make in makers]
            for tables, source in zip(resumed, (ranks, alone), strict=True):  # each from what the other saved
                snapshot = source.snapshot(changed_only=False)
                load_state(tables, snapshot.tables, step)
                snapshot.release(saved=True)
            together += resumed
    for tables in together[1:]:
        assert tables.step == 4
        assert_equal_states(tables.state(), together[0].state())


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_ranks_number_the_ids_of_lists_by_owner(native_library, make_spec, backend):
    spec = dataclasses.replace(make_spec(vocabulary_size=7), fields=SAME)
    kernels, ids = make_batch_kernels(backend, spec, 2), draw_ids(spec, np.random.default_rng(4))
    unique = kernels.unique(ids)
    by_owner = kernels.reorder(unique, np.argsort(unique.values % 3, kind="stable"))
    np.testing.assert_array_equal(by_owner.values[by_owner.inverse], ids[ids >= 0])
    assert by_owner.lists is unique.lists


@pytest.mark.parametrize("width", [1, 3, 16, 80, 257])
def test_native_has_the_bits_of_the_reference_on_generated_lists(native_library, make_spec, width):
    rng = np.random.default_rng(width)
    lengths = rng.integers(1, 21, 4)
    fields = tuple(TableField(f"C{i}", length=int(n), mean=bool(i % 2)) for i, n in enumerate([*lengths, 20]))
    spec = dataclasses.replace(make_spec(vocabulary_size=5000, embedding_dim=width), fields=fields)

    def draw(spec, rng, batch):
        """Half of the ids one frequent row; lists from one value (as an empty list has) to all."""
        ids = rng.integers(0, spec.vocabulary_size, (batch, spec.num_positions)).astype(np.int32)
        ids[rng.random(ids.shape) < 0.5] = 3
        place = np.concatenate([np.arange(field.length) for field in fields])
        values = [rng.choice([1, field.length, rng.integers(1, field.length + 1)], batch) for field in fields]
        ids[place >= np.repeat(np.stack(values, 1), [field.length for field in fields], axis=1)] = -1
        return ids

    assert_same_bits(spec, draw, [1, 300, 0, 67])  # a thread takes 256 at once


def assert_same_bits(spec, draw, batches):
    """Take steps on the reference and on native tables of one and of two threads."""
    rng = np.random.default_rng(2)
    all_tables = [make_host_tables(*args) for args in backends_and_threads(spec)]
    for batch in batches:
        ids = draw(spec, rng, batch)
        shape = (batch, len(spec.deep_names) * spec.embedding_dim)
        gradients = RowGradients(*(rng.standard_normal(s, np.float32) for s in (shape, batch)), SCALE)
        found = [(tables.unique(ids), tables) for tables in all_tables]
        first, *others = [tables.lookup(unique) for unique, tables in found]
        for rows in others:
            np.testing.assert_array_equal(rows.deep, first.deep)
            np.testing.assert_array_equal(rows.wide, first.wide)
            assert rows.squared_norm == pytest.approx(first.squared_norm, rel=1e-12)
        for unique, tables in found:
            tables.update(unique, gradients)
    for tables in all_tables[1:]:
        assert_equal_states(tables.state(), all_tables[0].state())


def backends_and_threads(spec):
    return [(name, spec, constant_rates(spec), n) for name, n in (("reference", 1), ("native", 1), ("native", 2))]


@pytest.mark.parametrize(
    ("place", "value", "field"), [((1, 1), -1, "tags"), ((0, 0), -1, "C1"), ((2, 3), 7, "tags"), ((0, 6), -2, "seen")]
)
def test_a_bad_id_is_named_with_its_field(make_spec, place, value, field):
    spec = dataclasses.replace(make_spec(vocabulary_size=7), fields=SAME)
    ids = draw_ids(spec, np.random.default_rng(3))
    ids[place] = value
    with pytest.raises(ValueError, match=f"batch row {place[0]}, field {field}: id {value} is outside 0 … 6"):
        MAKERS["reference"](spec).unique(ids)
