"""Every optimizer on every backend has the reference's bits, and resumes from a state."""

import numpy as np
import pytest

from app.config.optimizer_settings import FtrlOptions
from app.tables.native import library
from tests.app.tables.tables_of_spec import DEEP_OPTIMIZERS, WIDE_OPTIMIZERS, native_tables, reference_tables

by_name = {"ids": lambda options: options.name}
DEEP_AND_DTYPE = [(deep, "float32") for deep in DEEP_OPTIMIZERS]
DEEP_AND_DTYPE += [(deep, "bfloat16") for deep in DEEP_OPTIMIZERS if deep.name != "ftrl"]  # which validate refuses
of_deep_and_dtype = pytest.mark.parametrize(
    ("deep", "dtype"), DEEP_AND_DTYPE, ids=[f"{deep.name}-{dtype}" for deep, dtype in DEEP_AND_DTYPE]
)
every_wide = pytest.mark.parametrize("wide", WIDE_OPTIMIZERS, **by_name)


def falling(step):
    return 0.1 / step


@of_deep_and_dtype
@pytest.mark.parametrize(
    ("embedding_dim", "ema_decay"), [(1, 0.9), (3, 0.0), (8, 0.0), (16, 0.9), (80, 0.0), (80, 0.9), (300, 0.0)]
)
def test_native_deep_rows_have_the_reference_s_bits(
    isa, make_spec, run_steps, assert_same_state, deep, embedding_dim, ema_decay, dtype
):
    """A kernel that fused, reordered or divided differently on one instruction set or thread would show here."""
    spec = make_spec(300, embedding_dim, deep=deep, ema_decay=ema_decay, dtype=dtype)
    reference, ids, norms = reference_tables(spec, deep=falling), np.arange(300).reshape(-1, 3), set()
    run_steps(reference)
    expected = reference.lookup(reference.unique(ids), means=ema_decay > 0)
    for num_threads in (1, 3):
        tables = native_tables(spec, num_threads, deep=falling)
        assert tables.instruction_set == isa
        run_steps(tables)
        assert_same_state(tables, reference)
        rows = tables.lookup(tables.unique(ids), means=ema_decay > 0)
        np.testing.assert_array_equal(rows.deep, expected.deep)
        np.testing.assert_array_equal(rows.wide, expected.wide)
        norms.add(rows.squared_norm)
    assert len(norms) == 1


@pytest.mark.parametrize(("deep", "dtype"), [(deep, dtype) for deep, dtype in DEEP_AND_DTYPE if deep.name != "adam"])
@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_native_tables_take_steps_without_a_kernel(
    native_library, make_spec, run_steps, assert_same_state, monkeypatch, deep, ema_decay, dtype
):
    """An optimizer needs no more than its definition in NumPy; its kernel may come later."""
    monkeypatch.setattr(library, "OPTIMIZER_NUMBERS", {})
    options = {"l2_coef": 0.1, "ema_decay": ema_decay, "dtype": dtype}
    spec = make_spec(300, 20, deep=deep, wide=FtrlOptions(), **options)
    tables, reference = native_tables(spec, num_threads=2, deep=falling), reference_tables(spec, deep=falling)
    for each in (tables, reference):
        run_steps(each)
        snapshot = each.snapshot(changed_only=False)
        saved = {table: rows.read("rows", slice(None)).copy() for table, rows in snapshot.tables.items()}
        run_steps(each, seed=4)
        for table, rows in snapshot.tables.items():
            np.testing.assert_array_equal(rows.read("rows", slice(None)), saved[table])
        snapshot.release(saved=True)
    assert_same_state(tables, reference)


@every_wide
def test_native_wide_rows_have_the_reference_s_bits(isa, make_spec, run_steps, assert_same_state, wide):
    spec = make_spec(300, 2, wide=wide)
    tables, reference = native_tables(spec, num_threads=2, wide=falling), reference_tables(spec, wide=falling)
    for each in (tables, reference):
        run_steps(each)
    assert_same_state(tables, reference)


@of_deep_and_dtype
def test_a_frequent_id_is_split_among_threads_with_the_same_bits(
    native_library, make_spec, random_gradients, assert_same_state, deep, dtype
):
    spec = make_spec(embedding_dim=40, num_fields=2, deep=deep, dtype=dtype)
    tables, reference = native_tables(spec, num_threads=3), reference_tables(spec)
    for seed in range(2):
        gradients = random_gradients(spec, 1000, np.random.default_rng(seed))
        for t in (tables, reference):
            t.update(t.unique(np.full((1000, 2), 7)), gradients)
    assert_same_state(tables, reference)
