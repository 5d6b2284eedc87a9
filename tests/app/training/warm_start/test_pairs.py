"""Two runs that differ in drawn things meet correctly, or are refused.

What is expected follows from how each side encodes a row of the log, and from the fields' names; never from an id.
"""

import dataclasses
import logging

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app.checkpoint.manifest import read_manifest
from app.run.identity import check_same_inputs, difference, identity
from app.tables.backends import make_host_tables
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, WIDE
from app.training.learning_rates import LearningRates
from app.training.warm_start.source import check_source, open_source
from app.training.warm_start.take_over import dense_layouts, move_dense, take_rows
from tests.app.training.warm_start.pairs import DIM, KINDS, SAME_ROWS, STEP, Prepared, make_rows, pairs, prepared

FUZZED = not settings.default.derandomize  # by the profiles of tests/conftest.py
DRAWN = settings(
    max_examples=200 if FUZZED else 12,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink] if FUZZED else [Phase.generate],  # the fixed ones fail at once
)
seeds = st.integers(0, 2**32)


@pytest.fixture(autouse=True)
def nothing_is_synced(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@dataclasses.dataclass
class Start:
    """A source, its model, and a new run that began with it."""

    before: Prepared
    after: Prepared
    dense: dict
    tables: dict
    fresh: dict
    path: object
    config: object

    def take(self, owners: int = 1) -> tuple[dict, dict]:
        """The new run's dense arrays and tables, of so many owners of rows."""
        check_source(self.config, self.after.schema)
        source = open_source(self.config, self.after.schema, self.after.folder)
        states = []
        for owner in range(owners):
            rates, spec = LearningRates(self.config.optimizers), self.after.spec
            tables = make_host_tables("reference", spec, rates.of_tables(), 1)
            loading = tables.loading if owners == 1 else owned_by(tables.loading, owner, owners)
            take_rows(loading, spec, rates, self.config, self.after.schema, source)
            assert rates.steps_before == (STEP if self.config.train.init_optimizer else 0)
            states.append(tables.state())
        before = dense_layouts(source.schema, source.fields, self.config.model)
        here = dense_layouts(self.after.schema, tuple(self.after.fields.values()), self.config.model)
        fresh = {n: a for n, a in self.fresh.items() if self.config.train.init_optimizer or not n.startswith("adam.")}
        found = {name: array for name, array in source.state.dense.items() if name in self.dense}
        return move_dense(found, fresh, before, here), joined(states)


def owned_by(loading, owner, owners):
    """`loading` of tables that keep the rows of one owner."""
    from contextlib import contextmanager

    @contextmanager
    def own(step):
        with loading(step) as place:

            def place_own(table, ids):
                mine = ids % owners == owner
                write = place(table, ids[mine])
                return lambda name, values, start: write(
                    name, values[mine[start : start + len(values)]], mine[:start].sum()
                )

            yield place_own

    return own


def joined(states):
    """The tables whose rows several owners have."""
    found = {}
    for table, first in states[0].items():
        ids = np.concatenate([state[table].row_ids for state in states])
        order = np.argsort(ids)
        arrays = {n: np.concatenate([state[table].arrays[n] for state in states])[order] for n in first.arrays}
        found[table] = dataclasses.replace(first, row_ids=ids[order], arrays=arrays)
    return found


def begin(folder, before, after, rows, rng, with_optimizer=False) -> Start:
    folders = [prepared(side, rows, folder / name) for name, side in (("before", before), ("after", after))]
    dense, tables = folders[0].random_dense(rng), folders[0].random_tables(rng)
    path = folders[0].write(folder / "checkpoints", dense, tables)
    train = dataclasses.replace(after.config.train, init_from=str(path), init_optimizer=with_optimizer)
    config = dataclasses.replace(after.config, train=train)
    return Start(*folders, dense, tables, folders[1].random_dense(rng), path, config)


def log_loss(logits, rows):
    clicks = np.array([row["click"] == "1" for row in rows])
    return np.logaddexp(0, np.where(clicks, -logits, logits)).mean()


@DRAWN
@given(pairs(SAME_ROWS), seeds, st.booleans())
def test_the_score_is_the_source_s_whatever_the_order_of_columns(tmp_path_factory, pair, seed, with_optimizer):
    before, after, _ = pair
    folder, rows = tmp_path_factory.mktemp("same"), make_rows(seed)
    start = begin(folder, before, after, rows, np.random.default_rng(seed), with_optimizer)
    dense, tables = start.take()
    others = rows + make_rows(seed + 1)  # values that neither side has seen
    found, expected = start.after.logits(dense, tables, others), start.before.logits(start.dense, start.tables, others)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert abs(log_loss(found, others) - log_loss(expected, others)) < 1e-6


@DRAWN
@given(pairs(), seeds, st.booleans(), st.integers(1, 3))
def test_rows_and_blocks_follow_names_and_values(tmp_path_factory, caplog, pair, seed, with_optimizer, owners):
    before, after, _ = pair
    folder, rows = tmp_path_factory.mktemp("pair"), make_rows(seed)
    start = begin(folder, before, after, rows, np.random.default_rng(seed), with_optimizer)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        dense, tables = start.take(owners)
    check_blocks(start, dense, with_optimizer)
    check_rows(start, tables, seed, with_optimizer)
    check_words(start, open_source(start.config, start.after.schema, start.after.folder).rescaled)


def blocks_of(folder: Prepared, arrays) -> dict:
    """Return each field's weights, by array and name."""
    numeric = [column.name for column in folder.schema.numeric]
    inputs = [f"deep {field.name}" for field in folder.fields.values() if field.deep]
    if not folder.side.fold_numeric:
        inputs = [*(f"numeric {name}" for name in numeric), *inputs]
    found = {}
    for name, array in arrays.items():
        if name.endswith("matrix_0"):
            for place, of_field in enumerate(inputs):
                found[name, of_field] = array[place * DIM : (place + 1) * DIM]
        elif name.endswith("vector_matrix"):
            ends = np.cumsum([vector.inputs for vector in folder.schema.vectors])
            blocks = zip(folder.schema.vectors, np.split(array, ends[:-1]), strict=True)
            found |= {(name, vector.name): block for vector, block in blocks}
        elif "numeric" in name:
            assert len(array) == len(numeric)
            found |= {(name, column): values for column, values in zip(numeric, array, strict=True)}
        else:
            found[name, ""] = array
    return found


def check_blocks(start, dense, with_optimizer):
    there, fresh, found = (
        blocks_of(folder, arrays)
        for folder, arrays in ((start.before, start.dense), (start.after, start.fresh), (start.after, dense))
    )
    expected = {key for key in fresh if with_optimizer or not key[0].startswith("adam.")}
    assert {key for key in found if with_optimizer or not key[0].startswith("adam.")} == expected
    for key in expected:
        np.testing.assert_array_equal(found[key], there.get(key, fresh[key]), err_msg=str(key))


def vocabulary_group(folder, name):
    """The fields that have the ids of this one, the vocabulary's own first."""
    oov_ids, shares = {f.name: f.oov_ids for f in folder.schema.categorical}, folder.side.options.data.shares
    return sorted((other for other in oov_ids if oov_ids[other] == oov_ids[name]), key=lambda other: other in shares)


class Ids:
    """The ids of a side for rows each of which has one value in all its columns."""

    def __init__(self, folder, rows):
        self.schema, self.ids, self.positions = folder.schema, folder.encode(rows).ids, folder.positions
        self.oov_ids = {field.name: range(*field.oov_ids) for field in self.schema.categorical}
        columns = {column.name: column for column in folder.side.options.categorical_columns}
        self.is_text = {name: column.is_text for name, column in columns.items()}

    def id_of(self, name, row):
        return int(self.ids[row, self.positions[name].start])

    def is_known(self, name, row):
        return self.id_of(name, row) not in self.oov_ids[name]


NO_CHECK = -1  # the value's own row cannot be told


def origin_of(start, there, here, name, row):
    """The old id of the row that field `name` has here for the value of a row; None for a fresh one."""
    group = [other for other in vocabulary_group(start.after, name) if other in there.positions]
    if here.is_known(name, row):
        known = [other for other in group if there.is_known(other, row)]
        return there.id_of(known[0], row) if known else None
    for other in group:
        is_multiple = len(here.oov_ids[name]) % len(there.oov_ids[other]) == 0
        if is_multiple and here.is_text[name] == there.is_text[other]:
            return NO_CHECK if there.is_known(other, row) else there.id_of(other, row)
    return None


def rows_with_one_value(seed):
    """Rows whose cells of text are all the same word, known or not."""
    rows = make_rows(seed, 30)
    for number, row in enumerate(rows):
        word = "abcdefghijklmnopqrstuvwxyz"[number : number + 1]
        for name in KINDS:
            if KINDS[name] in ("string", "list"):
                row[name] = word
            elif KINDS[name] == "hex32":
                row[name] = word and f"{ord(word) * 2654435761 % 2**32:08x}"
    return rows


def is_taken(start, table, name):
    """Return whether a field of the group sees this part now, and did so before unless it is new."""
    there, here = start.before.fields, start.after.fields
    group = vocabulary_group(start.after, name)
    return any(getattr(here[g], table) and getattr(there.get(g, here[g]), table) for g in group)


def check_rows(start, tables, seed, with_optimizer):
    rows = rows_with_one_value(seed)
    there, here = Ids(start.before, rows), Ids(start.after, rows)
    for table in (WIDE, DEEP):
        arrays = ["rows", *(["accumulator"] if table == WIDE else ["first_moment", "second_moment"]) * with_optimizer]
        old = {name: start.before.rows_of(table, start.tables[table], name) for name in arrays}
        new = {name: start.after.rows_of(table, tables[table], name) for name in arrays}
        initial = initial_rows(
            start.after.side.model_seed, np.arange(len(new["rows"])), DIM, start.after.side.initial_scale
        )
        fresh = initial if table == DEEP else np.zeros_like(new["rows"])
        touched = set(start.tables[table].row_ids.tolist())
        for name, of_field in start.after.fields.items():
            for row in range(len(rows)) if getattr(of_field, table) else ():
                origin, place = origin_of(start, there, here, name, row), here.id_of(name, row)
                origin = origin if is_taken(start, table, name) else None
                if origin == NO_CHECK:
                    continue
                expected = fresh[place] if origin is None else old["rows"][origin]
                np.testing.assert_array_equal(new["rows"][place], expected, f"{table} {name} {rows[row]}")
                for array in arrays[1:] if origin in touched else ():
                    np.testing.assert_array_equal(new[array][place], old[array][origin], f"{table} {array} {name}")
        check_numeric_rows(start, old["rows"], new["rows"], fresh)


def check_numeric_rows(start, old, new, fresh):
    there, here = ([c.name for c in folder.schema.numeric] for folder in (start.before, start.after))
    for place, name in enumerate(here) if not start.after.side.fold_numeric else ():
        np.testing.assert_array_equal(new[place], old[there.index(name)] if name in there else fresh[place], name)


def check_words(start, text):
    """The log names what was scaled otherwise."""
    scales = [
        {column.name: (column.transform, column.parameters, column.quantiles) for column in folder.schema.numeric}
        for folder in (start.before, start.after)
    ]
    differ = {name for name in scales[0].keys() & scales[1].keys() if scales[0][name] != scales[1][name]}
    pools = [{field.name: field.pool for field in folder.schema.categorical} for folder in (start.before, start.after)]
    differ |= {name for name in pools[0].keys() & pools[1].keys() if pools[0][name] != pools[1][name]}
    vectors = [
        {of.name: (of.scale, *(of.mean, of.deviation) * (of.scale == "standardize")) for of in folder.schema.vectors}
        for folder in (start.before, start.after)
    ]
    differ |= {name for name in vectors[0].keys() & vectors[1].keys() if vectors[0][name] != vectors[1][name]}
    assert set(text) == differ


@DRAWN
@given(pairs(), seeds)
def test_data_that_is_not_refused_has_the_ids_and_numbers_of_training(tmp_path_factory, pair, seed):
    """Evaluate, export and a resumed run rely on it."""
    before, after, _ = pair
    folder, rows = tmp_path_factory.mktemp("inputs"), make_rows(seed)
    start = begin(folder, before, after, rows, np.random.default_rng(seed))
    manifest = read_manifest(start.path)
    others = rows + make_rows(seed + 1)
    encoded = [folder.encode(others) for folder in (start.before, start.after)]
    same = all(np.array_equal(*(getattr(e, name) for e in encoded)) for name in ("ids", "numeric", "vectors"))
    here = identity(before.config, start.after.schema)
    if not difference({"config": manifest.config, "data": manifest.data}, here):
        assert same
    try:
        check_same_inputs(manifest, start.after.schema, start.after.folder)
    except ValueError as error:
        assert "does not fit the checkpoint" in str(error)
    else:
        assert same
