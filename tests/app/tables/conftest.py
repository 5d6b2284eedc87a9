"""Small tables and batches for the tests of the table backends."""

import os
from collections.abc import Callable

import numpy as np
import pytest

from app.config.optimizers import FtrlOptions, LazyAdamOptions
from app.tables.interface import HostTables, RowGradients, TablesSpec
from app.tables.native import library
from app.tables.native.tables import NativeTables
from app.tables.reference import ReferenceTables

BACKENDS = {"reference": ReferenceTables, "native": NativeTables}


def require_native() -> None:
    """Without the library its tests are skipped; in CI that would hide a broken build."""
    try:
        library.load()
    except OSError as error:
        if "CI" in os.environ:
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def native_library() -> None:
    require_native()


@pytest.fixture(scope="session", params=BACKENDS)
def make_tables(request: pytest.FixtureRequest) -> Callable[[TablesSpec], HostTables]:
    """The class of each table backend in turn."""
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
            field_names=tuple(f"C{field + 1}" for field in range(num_fields)),
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
        """[batch, C] ids; small ones are far more frequent than large ones."""
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
def assert_same_state() -> Callable[..., None]:
    def check(tables: HostTables, expected: HostTables) -> None:
        """Same step, same touched rows, same bits."""
        assert tables.step == expected.step
        found_state, expected_state = tables.state(), expected.state()
        assert found_state.keys() == expected_state.keys()
        for table, saved in expected_state.items():
            np.testing.assert_array_equal(found_state[table].row_ids, saved.row_ids)
            for name, array in saved.arrays.items():
                found = found_state[table].arrays[name]
                np.testing.assert_array_equal(found.view(np.int32), array.view(np.int32), f"{table} {name}")

    return check
