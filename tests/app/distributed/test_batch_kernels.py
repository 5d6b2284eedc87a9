import numpy as np
import pytest

from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.distributed.batch_kernels import make_batch_kernels
from app.tables.fields import TableField
from app.tables.interface import TablesSpec

ROWS = 300


@pytest.fixture(params=[(3, 16), (26, 80), (1, 5), (2, 300)], ids=lambda shape: f"C{shape[0]} D{shape[1]}")
def spec(request, needs_native):
    needs_native()
    num_fields, dim = request.param
    names = tuple(TableField(f"C{i}") for i in range(num_fields))
    return TablesSpec(ROWS, dim, names, 1, 0.01, 0.0, FtrlOptions(), LazyAdamOptions())


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("num_rows", [0, 1, 77])
def test_native_kernels_give_the_bits_of_the_definition(spec, num_threads, num_rows):
    rng = np.random.default_rng(num_rows)
    num_fields, dim = len(spec.field_names), spec.embedding_dim
    ids = (rng.random((num_rows, num_fields)) ** 3 * ROWS).astype(np.int32)
    deep = rng.standard_normal((num_rows, num_fields * dim)).astype(np.float32)
    wide = rng.standard_normal(num_rows).astype(np.float32)
    rows = {row: rng.standard_normal(dim + 1).astype(np.float32) for row in range(ROWS)}
    results = []
    for backend in ("reference", "native"):
        kernels = make_batch_kernels(backend, spec, num_threads)
        unique = kernels.unique(ids)
        by_owner = kernels.reorder(unique, np.argsort(unique.values % 3, kind="stable"))
        np.testing.assert_array_equal(by_owner.values[by_owner.inverse].reshape(ids.shape), ids)
        assert (np.diff(by_owner.values % 3) >= 0).all()
        table = np.array([rows[row] for row in by_owner.values], np.float32).reshape(-1, dim + 1)
        expanded = kernels.expand(by_owner, np.ascontiguousarray(table[:, :-1]), np.ascontiguousarray(table[:, -1]))
        sums = kernels.sum_by_id(by_owner, deep, wide)
        order = np.argsort(by_owner.values)
        results.append([*(array.copy() for array in expanded), *(array[order] for array in sums)])
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)
