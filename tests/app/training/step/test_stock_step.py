"""MindSpore's host ops against the reference, and where they are placed."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.config.optimizer_settings import FtrlOptions
from app.model.dense_state import write_parameter
from app.tables.interface import DEEP, WIDE, RowGradients
from app.training.step.stock_step import MAX_VOCABULARY, StockTables, describe_placement, placed_ops
from tests.app.tables.tables_of_spec import constant_rates, load_state, reference_tables


def stock_tables(spec, **others):
    return StockTables(spec, constant_rates(spec), **others)


pytestmark = pytest.mark.usefixtures("cpu")


def update(tables, ids, gradients):
    """Take a step of the bare ops with the inputs of `StockGraph`: gradients by position, scaled, the L2 term once."""
    from mindspore import Tensor

    spec, unique = tables.spec, tables.unique(ids)
    rows = tables.parameters.deep_rows.asnumpy()[unique.ids.reshape(-1)]
    deep = gradients.deep.reshape(rows.shape) * np.float32(gradients.scale)
    deep += np.float32(spec.l2_coef) * rows * unique.first_seen
    wide = np.repeat(gradients.wide * np.float32(gradients.scale), unique.shape[1])[:, None]
    rate = Tensor(np.float32(tables.deep_rate(tables.step + 1)))
    tables.parameters.update(Tensor(unique.ids.reshape(-1)), Tensor(deep), Tensor(wide), rate)
    tables.mark_updated(unique.values)
    tables.step += 1


def assert_close(found, expected, relative_to_scale):
    for table, saved in expected.items():
        np.testing.assert_array_equal(found[table].row_ids, saved.row_ids)
        for name, array in saved.arrays.items():
            tolerance = relative_to_scale * np.abs(array).max(initial=0)
            np.testing.assert_allclose(
                found[table].arrays[name], array, rtol=0, atol=tolerance, err_msg=f"{table} {name}"
            )


@given(
    vocabulary_size=st.sampled_from([1, 2, 30, 3000]),
    embedding_dim=st.sampled_from([1, 3, 8, 80]),
    num_fields=st.integers(1, 5),
    batch=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60)
def test_a_step_is_the_reference_s(
    make_spec, random_ids, random_gradients, vocabulary_size, embedding_dim, num_fields, batch, seed
):
    """Two steps, each from equal state, with ids twice in a batch: to 1e-6 of each array's scale, as the ops may sum
    the gradients of an id in another order."""
    spec, rng = make_spec(vocabulary_size, embedding_dim, num_fields), np.random.default_rng(seed)
    stock, reference = stock_tables(spec), reference_tables(spec)
    for step in range(2):
        load_state(stock, reference.state(), step)
        ids, gradients = random_ids(spec, batch, rng), random_gradients(spec, batch, rng, scale=0.5)
        update(stock, ids, gradients)
        reference.update(reference.unique(ids), gradients)
        assert_close(stock.state(), reference.state(), relative_to_scale=2e-6)


def test_ids_where_each_stands_first(make_spec):
    unique = stock_tables(make_spec()).unique(np.array([[4, 9, 4], [9, 9, 0]], np.int64))
    assert unique.ids.dtype == np.int32
    assert unique.first_seen.reshape(2, 3).tolist() == [[1, 1, 0], [0, 0, 1]]
    np.testing.assert_array_equal(unique.values[unique.inverse], unique.ids.reshape(-1))


def test_looked_up_numeric_fields_come_before_the_others(make_spec):
    unique = stock_tables(make_spec(num_fields=4), num_looked_up_numeric=2).unique(np.array([[7, 8], [9, 7]]))
    assert unique.ids.tolist() == [[0, 1, 7, 8], [0, 1, 9, 7]]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[0, 1, 2], [3, 50, 4]], "batch row 1, field C2: id 50 is outside 0 … 49"),
        ([[0, 1, -1]], "batch row 0, field C3: id -1 is outside"),
        ([[0, 2**32, 1]], f"batch row 0, field C2: id {2**32} is outside"),
    ],
)
def test_bad_ids_are_refused_before_the_ops_pass_them_over(make_spec, ids, message):
    with pytest.raises(ValueError, match=message):
        stock_tables(make_spec()).unique(np.array(ids))


def test_a_loaded_state_is_given_back_and_forgets_what_was_there(make_spec, random_ids, random_gradients):
    spec, rng = make_spec(), np.random.default_rng(3)
    reference, stock = reference_tables(spec), stock_tables(spec)
    reference.update(reference.unique(random_ids(spec, 5, rng)), random_gradients(spec, 5, rng))
    update(stock, random_ids(spec, 9, rng), random_gradients(spec, 9, rng))
    load_state(stock, reference.state(), 1)
    assert_close(stock.state(), reference.state(), relative_to_scale=0)
    load_state(stock, {}, 0)
    fresh = stock_tables(spec)
    for table in (WIDE, DEEP):
        for name, parameter in stock._parameters(table).items():
            np.testing.assert_array_equal(parameter.asnumpy(), fresh._parameters(table)[name].asnumpy())
    assert stock.state()[DEEP].row_ids.size == 0


def test_a_state_that_does_not_fit_changes_nothing(make_spec, random_gradients):
    stock = stock_tables(make_spec())
    update(stock, np.array([[1, 2, 3]], np.int32), random_gradients(stock.spec, 1, np.random.default_rng(0)))
    larger = reference_tables(make_spec(vocabulary_size=90))
    ones = RowGradients(np.ones((1, 15), np.float32), np.ones(1, np.float32))
    larger.update(larger.unique(np.array([[80, 2, 3]])), ones)
    before = stock.state()
    with pytest.raises(ValueError, match="from 2 to 80, outside 0 … 49"):
        load_state(stock, larger.state(), 7)
    assert_close(stock.state(), before, relative_to_scale=0)
    assert stock.step == 1


def test_vocabularies_beyond_int32_are_refused(make_spec):
    with pytest.raises(ValueError, match=r"the vocabulary of 2147483648 .* use tables\.backend=native"):
        stock_tables(make_spec(vocabulary_size=MAX_VOCABULARY))


@pytest.mark.parametrize("target", ["CPU", "GPU", "Ascend"])
def test_every_table_op_is_on_the_host_whatever_the_target(target, monkeypatch):
    """The attribute is set without asking for the target, so a machine without it can tell as well."""
    import mindspore as ms

    asked = []
    device = SimpleNamespace(device_target=target)
    monkeypatch.setattr(ms, "get_current_device", lambda: asked.append(target) or device)
    placed = placed_ops(FtrlOptions())
    assert asked == []
    assert [primitive.attrs["primitive_target"] for primitive in vars(placed).values()] == ["CPU"] * 4
    assert describe_placement(placed) == [
        "wide_lookup: EmbeddingLookup on CPU, primitive_target=CPU",
        "deep_lookup: EmbeddingLookup on CPU, primitive_target=CPU",
        "wide_update: FusedSparseFtrl on CPU, primitive_target=CPU",
        "deep_update: FusedSparseLazyAdam on CPU, primitive_target=CPU",
    ]


def test_a_written_parameter_keeps_its_memory(make_spec):
    stock = stock_tables(make_spec())
    values = np.ones((50, 5), np.float32)
    write_parameter(stock.parameters.deep_rows, values)
    update(stock, np.array([[1, 2, 3]], np.int32), RowGradients(np.ones((1, 15), np.float32), np.ones(1, np.float32)))
    assert (values == 1).all()
    assert (stock.parameters.deep_rows.asnumpy()[1:4] != 1).all()
