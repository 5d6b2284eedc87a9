"""Rounding of bfloat16 rows: to one of two neighbours, in the right proportion, whatever the value."""

import mindspore  # noqa: F401 (It registers a dtype of its own under the name bfloat16.)
import numpy as np
import pytest

from app.config.optimizer_settings import AdagradOptions, LazyAdamOptions, SgdOptions
from app.tables.initial import initial_rows
from app.tables.interface import DEEP, RowGradients
from app.tables.rounding import BFLOAT16, LARGEST, nearest, rounded, rounding_key
from tests.app.tables.tables_of_spec import load_state


def stored(values, row_ids=None, step=1, number=0):
    """`values` [U, width] as the array `number` of their rows has them."""
    names = [f"array_{place}" for place in range(number + 1)]
    states = dict.fromkeys(names, values)
    row_ids = np.arange(len(values)) if row_ids is None else row_ids
    return rounded(states, row_ids, dict.fromkeys(names, BFLOAT16), rounding_key(7, step))[names[-1]]


def test_a_value_goes_up_as_often_as_it_lies_up():
    """250,000 roundings each: four standard deviations of the share are below 0.004."""
    below, above = np.float32(1), np.float32(1 + 2.0**-7)
    for share in (0.0, 1 / 65536, 0.1, 0.5, 0.9):
        value = below + np.float32(share) * (above - below)
        found = stored(np.full((5000, 50), value, np.float32)).astype(np.float32)
        assert set(np.unique(found)) <= {below, above}
        assert abs((found == above).mean() - share) < 0.004
        assert not (found == above).any() or share


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_what_is_rounded_depends_on_row_column_step_and_array_alone(number):
    values = np.full((400, 60), 1 + 2.0**-8, np.float32)  # in the middle
    is_up = stored(values, number=number).astype(np.float32) > values
    some = np.random.default_rng(0).permutation(400)[:100]
    np.testing.assert_array_equal(stored(values[:100], some, number=number).astype(np.float32) > 1.004, is_up[some])
    others = [stored(values, step=2, number=number), stored(values, np.arange(400, 800), number=number)]
    others += [stored(values, number=other) for other in range(4) if other != number]
    for other in (*(found.astype(np.float32) > values for found in others), np.roll(is_up, 1, 0), np.roll(is_up, 1, 1)):
        assert abs((is_up == other).mean() - 0.5) < 0.02  # four standard deviations are 0.013


def test_no_finite_value_becomes_infinite_and_none_loses_its_sign():
    largest = np.finfo(np.float32).max
    tiny = np.float32(1e-45)
    values = np.array([largest, -largest, LARGEST, tiny, -tiny, 0.0, -0.0], np.float32)
    found = stored(np.tile(values, (500, 1))).astype(np.float32)
    assert (np.abs(found[:, :3]) == LARGEST).all()
    assert (np.signbit(found) == np.signbit(values)).all()
    assert (found[:, 5:] == 0).all()
    assert np.isnan(stored(np.full((100, 9), np.nan, np.float32)).astype(np.float32)).all()
    assert nearest(values, "bfloat16").astype(np.float32)[:3].tolist() == [LARGEST, -LARGEST, LARGEST]
    infinite = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert not np.isfinite(nearest(infinite, "bfloat16").astype(np.float32)).any()  # for a check to find


def test_a_bfloat16_is_written_as_it_is():
    every = np.arange(2**16, dtype=np.uint16).view(BFLOAT16).reshape(256, 256)
    finite = np.isfinite(every.astype(np.float32))
    found = stored(every.astype(np.float32))
    np.testing.assert_array_equal(found.view(np.uint16)[finite], every.view(np.uint16)[finite])


def test_initial_rows_are_the_nearest_bfloat16():
    exact = initial_rows(3, np.arange(500), 17, 0.01)
    found = initial_rows(3, np.arange(500), 17, 0.01, "bfloat16")
    np.testing.assert_array_equal(found, exact.astype(BFLOAT16).astype(np.float32))


@pytest.mark.parametrize("deep", [LazyAdamOptions(), AdagradOptions(), SgdOptions(learning_rate=1e-3)])
def test_steps_too_small_for_bfloat16_move_rows_as_in_float32(make_tables, make_spec, deep):
    """1,000 steps in one direction, each far below half a unit of the rows' last place: they add up."""
    ends = {}
    for dtype in ("float32", "bfloat16"):
        tables = make_tables(make_spec(40, 8, num_fields=1, l2_coef=0.0, deep=deep, dtype=dtype))
        rows = np.full((40, 8), 1.0, np.float32)
        with tables.loading(0) as place:
            place(DEEP, np.arange(40))("rows", nearest(rows, tables.spec.dtype))
        ids = np.arange(40)[:, None]
        gradients = RowGradients(np.full((40, 8), 0.5, np.float32), np.zeros(40, np.float32))
        for _ in range(200):
            tables.update(tables.unique(ids), gradients)
        ends[dtype] = tables.lookup(tables.unique(ids)).deep
    way = 1 - ends["float32"].mean()
    assert way > 0.01
    assert abs(ends["bfloat16"].mean() - ends["float32"].mean()) < 0.05 * way


def test_a_row_takes_half_the_bytes(make_spec):
    spec = {
        (dim, dtype): make_spec(embedding_dim=dim, dtype=dtype) for dim in (8, 80) for dtype in ("float32", "bfloat16")
    }
    size = {key: each.row_bytes() for key, each in spec.items()}
    assert (size[80, "float32"], size[80, "bfloat16"]) == (972, 492)
    assert (size[8, "float32"], size[8, "bfloat16"]) == (108, 60)


def test_a_table_of_the_other_dtype_is_refused(make_tables, make_spec, run_steps):
    tables, other = make_tables(make_spec(dtype="bfloat16")), make_tables(make_spec())
    run_steps(tables)
    with pytest.raises(ValueError, match=r"deep rows must be float32 \[\d+, 5\], found bfloat16"):
        load_state(other, tables.state(), tables.step)
