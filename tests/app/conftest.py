"""Fixtures that make small models without a prepared folder: schemas of any shape, models with their tables, random
batches, and made-up jobs of several ranks.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.distributed.process_group import MpiGroup
from app.tables.fields import TableField
from app.tables.interface import HostTables, RowGradients, TablesSpec
from app.tables.native import library
from data_prep.prepared.batches import Batch
from data_prep.prepared.schema import FORMAT_VERSION, CategoricalField, NumericField, Schema, Split, VectorField
from tests.app.tables.tables_of_spec import assert_equal_states, native_tables, reference_tables

library.WORTH_THREADS = 0  # Native tables use all threads even for small batches.


@pytest.fixture(scope="session")
def make_schema():
    """Return a function that makes a schema with the given numbers of numeric and categorical fields and the given
    vectors.

    The schema does not say which ids belong to which field.
    """

    def make(num_numeric=3, num_categorical=4, vocabulary_size=60, vector_widths=(2, 1)) -> Schema:
        return Schema(
            format_version=FORMAT_VERSION,
            numeric=tuple(NumericField(f"I{i + 1}", f"I{i + 1}", "log1p", {}) for i in range(num_numeric)),
            categorical=tuple(CategoricalField(f"C{i + 1}", (0, 0), ()) for i in range(num_categorical)),
            vocabulary_size=vocabulary_size,
            ids_dtype="int32",
            block_rows=100,
            splits={"train": Split(0, 0, ())},
            rejected_rows=0,
            options={},
            source={},
            other_files=(),
            vectors=tuple(
                VectorField(f"v{i + 1}", width, "none", (0.0,) * width, (1.0,) * width)
                for i, width in enumerate(vector_widths)
            ),
        )

    return make


@pytest.fixture(scope="session")
def make_parts(cpu, tiny_config):
    """Return a function that makes a model with its tables, optimizers and training step. `backend` names the backend
    of the tables, such as stock or reference.
    """

    def make(backend, schema, *overrides):
        from app.training.assemble import assemble

        return assemble(tiny_config(f"tables.backend={backend}", *overrides), schema, backend)

    return make


@pytest.fixture(scope="session")
def random_batch():
    def make(schema, num_rows, rng) -> Batch:
        """Return a random batch. Small ids are far more frequent than large ones, so many ids occur several times. None
        of them is the id of a numeric field.
        """
        first_id = schema.num_numeric
        span = schema.vocabulary_size - first_id
        ids = first_id + rng.random((num_rows, schema.num_categorical)) ** 3 * span
        numeric = rng.standard_normal((num_rows, schema.num_numeric)).astype(np.float32)
        labels = (rng.random(num_rows) < 0.4).astype(np.float32)
        vectors = 0.1 * rng.standard_normal((num_rows, schema.vector_inputs)).astype(np.float32)
        return Batch(ids.astype(schema.ids_dtype), numeric, labels, vectors=vectors)

    return make


@pytest.fixture(scope="session")
def changed():
    """Return a function that returns a copy of a batch in which one value of an array is changed."""

    def change(batch, array, place, value):
        copy = getattr(batch, array).copy()
        copy[place] = value
        return dataclasses.replace(batch, **{array: copy})

    return change


def bits(array):
    return array.view(np.dtype(f"i{array.dtype.itemsize}"))


@pytest.fixture(scope="session")
def assert_same_bits():
    def check(found, expected):
        """Check that two `ModelState`s have the same arrays, bit for bit. NaN counts as equal to itself."""
        assert found.dense.keys() == expected.dense.keys()
        for name, array in expected.dense.items():
            np.testing.assert_array_equal(bits(found.dense[name]), bits(array), name)
        assert_equal_states(found.tables, expected.tables)

    return check


class ThreadRanks:
    """What the ranks of a made-up job share: a list with a value of each rank, and a barrier at which they meet."""

    def __init__(self, size):
        self.told = [None] * size
        self.meeting = threading.Barrier(size, timeout=10)


class ThreadGroup:
    """A `ProcessGroup` whose ranks are threads of this process. If a rank waits for others that do not come, it gets a
    BrokenBarrierError after ten seconds.

    There are no servers. `calls` lists the calls (name and arguments) that would have been sent to them.
    """

    on_rank0, sharded = MpiGroup.on_rank0, True

    def __init__(self, rank, ranks):
        self.rank, self.size, self._ranks = rank, len(ranks.told), ranks
        self.num_owners = self.size
        self.communicator = self
        self.calls = []

    def gather(self, value):
        self._ranks.told[self.rank] = value
        self._ranks.meeting.wait()
        told = list(self._ranks.told)
        self._ranks.meeting.wait()
        return told

    def bcast(self, value):
        return self.gather(value)[0]

    def rpc(self, name, *arguments):
        self.gather(None)
        self.calls.append((name, *arguments))
        return []


@pytest.fixture
def thread_ranks():
    """Return a function that calls `work(group)` on `size` ranks, which are threads. It returns a list with the result
    of each rank, or the error that the rank raised.
    """

    def run(size, work):
        ranks = ThreadRanks(size)

        def rank_of(rank):
            try:
                return work(ThreadGroup(rank, ranks))
            except Exception as error:
                return error

        with ThreadPoolExecutor(size) as threads:
            return list(threads.map(rank_of, range(size)))

    return run


BACKENDS = {"reference": reference_tables, "native": native_tables}


def require_native() -> None:
    """Skip the test if the native library is missing. In CI fail instead, so that a broken build is noticed."""
    try:
        library.LIBRARY.load()
    except OSError as error:
        if "CI" in os.environ:
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def native_library() -> None:
    require_native()


@pytest.fixture(params=["plain", "avx2", "avx512"])
def isa(request: pytest.FixtureRequest, monkeypatch, native_library, make_spec) -> str:
    """Run the test once for each instruction set: native tables then use it. Skip those that this machine lacks."""
    monkeypatch.setenv("HOST_TABLES_ISA", request.param)
    try:
        native_tables(make_spec())
    except ValueError as error:
        pytest.skip(str(error))
    return request.param


@pytest.fixture(scope="session", params=BACKENDS)
def make_tables(request: pytest.FixtureRequest) -> Callable[..., HostTables]:
    """Run the test once for each backend (reference and native). Return the function that makes its tables, one of
    `tests/app/tables/tables_of_spec.py`.
    """
    if request.param == "native":
        require_native()
    return BACKENDS[request.param]


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., TablesSpec]:
    def make(
        vocabulary_size=50, embedding_dim=5, num_fields=3, l2_coef=1e-3, wide=None, deep=None, **others
    ) -> TablesSpec:
        return TablesSpec(
            vocabulary_size=vocabulary_size,
            embedding_dim=embedding_dim,
            fields=tuple(TableField(f"C{field + 1}") for field in range(num_fields)),
            seed=7,
            initial_scale=0.01,
            l2_coef=l2_coef,
            wide_optimizer=wide or FtrlOptions(),
            deep_optimizer=deep or LazyAdamOptions(),
            **others,
        )

    return make


@pytest.fixture(scope="session")
def random_ids() -> Callable[..., np.ndarray]:
    def make(spec, batch, rng, dtype=np.int32) -> np.ndarray:
        """Return random ids [batch, C]. Small ids are far more frequent than large ones."""
        drawn = rng.random((batch, len(spec.field_names))) ** 3 * spec.vocabulary_size
        return drawn.astype(dtype)

    return make


@pytest.fixture(scope="session")
def random_gradients() -> Callable[..., RowGradients]:
    def make(spec, batch, rng, scale=1.0) -> RowGradients:
        deep_shape = (batch, len(spec.field_names) * spec.embedding_dim)
        deep, wide = rng.standard_normal(deep_shape, np.float32), rng.standard_normal(batch, np.float32)
        return RowGradients(deep, wide, scale)

    return make


@pytest.fixture(scope="session")
def run_steps(random_ids, random_gradients) -> Callable[..., None]:
    def run(tables, num_steps=6, seed=3, batch=20) -> None:
        """Take steps on random batches."""
        rng = np.random.default_rng(seed)
        for _ in range(num_steps):
            ids = random_ids(tables.spec, batch, rng)
            tables.update(tables.unique(ids), random_gradients(tables.spec, batch, rng, scale=0.3))

    return run


@pytest.fixture(scope="session")
def assert_same_state() -> Callable[..., None]:
    def check(tables: HostTables, expected: HostTables) -> None:
        """Check that two tables have taken the same number of steps, and have the same touched rows with the same
        bits.
        """
        assert tables.step == expected.step
        assert_equal_states(tables.state(), expected.state())

    return check
