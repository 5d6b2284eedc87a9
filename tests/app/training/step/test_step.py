"""Whole training steps: finite or nothing, short batches, and `stock` against `reference`."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.model.dense_state import write_parameter
from app.tables.interface import DEEP, WIDE
from tests.app.model.tensors import take_step
from tests.app.tables.tables_of_spec import load_model

BATCH_SIZE = 16
WARM_STEPS = 2  # so that moments and accumulators are not at their first values
STEPS = {  # the first without a graph
    "reference": ("reference",),
    "reference, distinct rows": ("reference", "model.first_layer=distinct"),
    "stock": ("stock",),
    "stock, numeric fields looked up": ("stock", "model.fold_numeric=false"),
}


@pytest.fixture(scope="module")
def shared_parts(make_parts, make_schema):
    """Make parts at their initial state. The same words give the same parts, as compiling their graphs takes most of
    the time."""
    made = {}

    def make(backend, *overrides, batch_size=BATCH_SIZE):
        key = (backend, *overrides, batch_size)
        if key not in made:
            parts = make_parts(backend, make_schema(), f"train.batch_size={batch_size}", *overrides)
            made[key] = parts, parts.state()
        parts, state = made[key]
        load_model(parts, state, 0)
        return parts

    return make


@pytest.fixture(scope="module", params=STEPS)
def trained(request, shared_parts, make_schema, random_batch):
    """Parts after two steps, with a batch and the state to return to."""
    schema, rng = make_schema(), np.random.default_rng(1)
    parts = shared_parts(*STEPS[request.param])
    for _ in range(WARM_STEPS):
        take_step(parts, random_batch(schema, BATCH_SIZE, rng))
    return parts, random_batch(schema, BATCH_SIZE, rng), parts.state()


@pytest.fixture
def ready(trained):
    """The parts at the state after two steps, whatever a test before did; and a batch."""
    parts, batch, state = trained
    load_model(parts, state, WARM_STEPS)
    return parts, batch


def set_table_value(tables, table, row_id, value):
    """Behind the interface's back, which would refuse a value that is not finite."""
    if hasattr(tables, "parameters"):
        parameter = getattr(tables.parameters, f"{table}_rows")
        array = parameter.asnumpy().copy()
        array[row_id, -1] = value
        write_parameter(parameter, array)
    else:
        tables._arrays[table]["rows"][row_id, -1] = value


def set_parameter_value(parameter, value):
    array = parameter.asnumpy().copy()
    array.reshape(-1)[-1] = value
    write_parameter(parameter, array)


@pytest.fixture
def assert_refused(assert_same_bits):
    def check(parts, batch, message):
        before, steps_before = parts.state(), parts.step.tables.step
        with pytest.raises(FloatingPointError, match=f"{message}.*; no table and no parameter was changed"):
            take_step(parts, batch)
        assert_same_bits(parts.state(), before)
        assert parts.step.tables.step == steps_before

    return check


BAD_VALUES = pytest.mark.parametrize("value", [np.nan, -np.inf], ids=str)


@pytest.mark.parametrize(("table", "value"), [(DEEP, np.nan), (DEEP, -np.inf), (WIDE, np.inf)])
def test_a_bad_row_changes_nothing(ready, assert_refused, table, value):
    parts, batch = ready
    row_id = batch.ids[5, 2]
    set_table_value(parts.step.tables, table, row_id, value)
    row, field = np.argwhere(batch.ids == row_id)[0]
    assert_refused(parts, batch, rf"the {table} row of batch row {row}, field C{field + 1} \(id {row_id}\) is {value}")


def test_a_bad_row_of_an_id_twice_in_a_batch_row_is_named(ready, assert_refused, changed):
    """Two rows of inf and -inf would even sum to NaN."""
    parts, batch = ready
    batch = changed(batch, "ids", (3, slice(None)), [50, 51, 50, 52])
    set_table_value(parts.step.tables, WIDE, 51, np.inf)
    row, field = np.argwhere(batch.ids == 51)[0]
    assert_refused(parts, batch, rf"the wide row of batch row {row}, field C{field + 1} \(id 51\) is inf")


@BAD_VALUES
def test_a_bad_numeric_input_changes_nothing(ready, assert_refused, changed, value):
    parts, batch = ready
    batch = changed(batch, "numeric", (7, 1), value)
    assert_refused(parts, batch, f"the numeric input of batch row 7, field I2 is {value}")


def test_a_bad_label_changes_nothing(ready, assert_refused, changed):
    parts, batch = ready
    assert_refused(parts, changed(batch, "labels", 4, np.nan), "the label of batch row 4 is nan")


@BAD_VALUES
def test_every_bad_parameter_changes_nothing(trained, assert_refused, value):
    """A bad weight matrix or bias is found: ReLU turns NaN into 0, so the loss may stay finite."""
    parts, batch, state = trained
    names = list(parts.model.named_parameters())
    assert {"wide.bias", "tower.matrix_0", "tower.matrix_1", "tower.matrix_2", "tower.bias_1"} <= set(names)
    for name in names:
        load_model(parts, state, WARM_STEPS)
        set_parameter_value(parts.model.named_parameters()[name], value)
        assert_refused(parts, batch, rf"the parameter {name}\[.*\] is {value}")


def test_a_refused_step_changes_nothing_in_later_training(ready, changed, assert_same_bits, trained):
    """And training from a saved state is as without a stop."""
    parts, batch = ready
    expected = take_step(parts, batch)
    after = parts.state()
    load_model(parts, trained[2], WARM_STEPS)
    with pytest.raises(FloatingPointError):
        take_step(parts, changed(batch, "numeric", (0, 0), np.nan))
    assert take_step(parts, batch) == expected
    assert_same_bits(parts.state(), after)


@pytest.mark.parametrize(("last_weight", "found"), [(1e20, "(inf|nan)"), (None, r"\d")], ids=["it", "its square"])
@pytest.mark.parametrize("step", STEPS)
def test_a_gradient_that_overflows_changes_nothing(
    step, shared_parts, make_schema, random_batch, assert_refused, last_weight, found
):
    """A scaled gradient of the logits that float32 holds, and which the last matrix takes beyond it, or whose square
    optimizers would add up to infinity, so that the checkpoint could not be loaded."""
    schema, rng = make_schema(), np.random.default_rng(1)
    backend, *overrides = STEPS[step]
    parts = shared_parts(backend, "loss.loss_scale=1e24", *overrides)
    if last_weight:
        last = parts.model.named_parameters()["tower.matrix_2"]
        write_parameter(last, np.full(last.shape, last_weight, np.float32))
    batch = random_batch(schema, BATCH_SIZE, rng)
    place = r"the gradient of the deep row of batch row \d+, field \w+ \(id \d+\)"
    assert_refused(parts, batch, f"{place} is -?{found}")


def test_a_loss_that_overflows_says_what_to_try(make_parts, make_schema, random_batch, assert_refused):
    """No row and no parameter is to blame."""
    schema, rng = make_schema(), np.random.default_rng(1)
    parts = make_parts("reference", schema, f"train.batch_size={BATCH_SIZE}", "loss.loss_scale=1e38")
    batch = random_batch(schema, BATCH_SIZE, rng)
    batch = dataclasses.replace(batch, labels=np.zeros_like(batch.labels))
    write_parameter(parts.model.named_parameters()["wide.bias"], np.array([30], np.float32))
    assert_refused(parts, batch, "try a lower loss.loss_scale or learning rate")


@pytest.mark.parametrize("step", STEPS)
def test_filling_up_a_short_batch_changes_nothing(step, shared_parts, make_schema, random_batch):
    """A step over 5 rows is the same whether its graph takes 5 rows or 16.

    Not to the bit: the matrix products add the 11 rows of zeros in another order. 1e-6 of the arrays' scale.
    """
    schema, rng = make_schema(), np.random.default_rng(1)
    backend, *overrides = STEPS[step]
    parts = [shared_parts(backend, *overrides, batch_size=size) for size in (5, BATCH_SIZE)]
    for _ in range(3):
        batch = random_batch(schema, 5, rng)
        losses = [take_step(p, batch) for p in parts]
        assert dataclasses.astuple(losses[1]) == pytest.approx(dataclasses.astuple(losses[0]), rel=1e-6)
        scores = [p.step.score(batch, p.step.prepare(batch)) for p in parts]
        assert scores[1].shape == (5,)
        np.testing.assert_allclose(scores[1], scores[0], atol=1e-6)
    assert_close(parts[1].state(), parts[0].state(), relative_to_scale=3e-6)


@pytest.mark.parametrize("step", STEPS)
def test_a_batch_without_rows_touches_no_row(step, shared_parts, make_schema, random_batch, assert_same_bits):
    """Neither the one that would come first nor those of the batch before; such steps count, and training continues."""
    schema, rng = make_schema(), np.random.default_rng(1)
    backend, *overrides = STEPS[step]
    parts = shared_parts(backend, *overrides)
    for num_rows in (0, BATCH_SIZE):
        before = parts.state()
        assert take_step(parts, random_batch(schema, 0, rng)).wide_loss == 0
        assert_same_bits(dataclasses.replace(parts.state(), dense=before.dense), before)
        take_step(parts, random_batch(schema, num_rows, rng))
    assert parts.step.tables.step == 4
    assert len(parts.state().tables[DEEP].row_ids)


def assert_close(found, expected, relative_to_scale, least_scale=0.0, rounding_of_sums=0.0):
    """Two `ModelState`s, each array to a share of its largest value, or of `least_scale` if that is larger.

    FTRL's linear terms and the weights that follow from them, the bias too, may be the small rest of a sum: they may
    also differ by `rounding_of_sums`.
    """
    assert found.dense.keys() == expected.dense.keys()
    pairs = {name: (found.dense[name], array) for name, array in expected.dense.items()}
    for table, saved in expected.tables.items():
        np.testing.assert_array_equal(found.tables[table].row_ids, saved.row_ids)
        pairs |= {f"{table} {name}": (found.tables[table].arrays[name], array) for name, array in saved.arrays.items()}
    weights_of_ftrl = ("wide.bias", "wide.numeric_weight")
    for name, (array, expected_array) in pairs.items():
        tolerance = relative_to_scale * np.abs(expected_array).max(initial=least_scale)
        tolerance += rounding_of_sums if "linear" in name or name in weights_of_ftrl else 0.0
        np.testing.assert_allclose(array, expected_array, rtol=0, atol=tolerance, err_msg=name)


def test_scoring_changes_nothing(ready, assert_same_bits):
    parts, batch = ready
    before = parts.state()
    assert parts.step.score(batch, parts.step.prepare(batch)).shape == (BATCH_SIZE,)
    assert_same_bits(parts.state(), before)


def test_rows_that_no_batch_touched_stay_bit_equal(ready):
    parts, batch = ready
    before = parts.state()
    take_step(parts, batch)
    after = parts.state()
    for table, saved in before.tables.items():
        others = np.setdiff1d(saved.row_ids, [*batch.ids.reshape(-1), *range(3)])
        assert len(others)
        places_before = np.searchsorted(saved.row_ids, others)
        places_after = np.searchsorted(after.tables[table].row_ids, others)
        for name, array in saved.arrays.items():
            np.testing.assert_array_equal(after.tables[table].arrays[name][places_after], array[places_before])


@given(
    num_numeric=st.integers(0, 3),
    num_categorical=st.integers(1, 4),
    embedding_dim=st.integers(1, 9),
    num_rows=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
@example(num_numeric=0, num_categorical=1, embedding_dim=1, num_rows=2, seed=1)  # the bias's terms nearly cancel
@settings(max_examples=2)  # each shape is two graphs to compile
def test_a_step_of_stock_is_the_reference_s(
    make_parts, make_schema, random_batch, num_numeric, num_categorical, embedding_dim, num_rows, seed
):
    """From equal state, with ids twice in a batch: rows and moments to 1e-6 of their scale, the order of sums apart.

    The terms of a sum over the batch, such as the bias's gradient, are below 1 in all. So each addition rounds by half
    an ulp of numbers below 1 at most, however small the rest.
    """
    schema, rng = make_schema(num_numeric, num_categorical, vocabulary_size=30), np.random.default_rng(seed)
    overrides = (f"train.batch_size={num_rows}", f"model.embedding_dim={embedding_dim}", "model.initial_row_scale=0.5")
    stock, reference = (make_parts(backend, schema, *overrides) for backend in ("stock", "reference"))
    for step in range(2):
        load_model(stock, reference.state(), step)
        batch = random_batch(schema, num_rows, rng)
        losses = [take_step(parts, batch) for parts in (stock, reference)]
        assert dataclasses.astuple(losses[0]) == pytest.approx(dataclasses.astuple(losses[1]), rel=1e-6)
        assert_close(stock.state(), reference.state(), 1e-6, least_scale=1e-3, rounding_of_sums=num_rows * 2.0**-25)


@pytest.mark.parametrize("backend", ["reference", "stock"])
def test_learning_rates_fall_without_another_compilation(
    backend, make_parts, make_schema, random_batch, assert_same_bits
):
    """From step 3 on two rates are halved: the same bits as of a run that starts there with half of them."""
    schema, rng = make_schema(), np.random.default_rng(1)
    fall = "schedule={name: step, every_steps: 2, drop_factor: 0.5}"
    groups = {"deep": 3.5e-4, "tower": 3.5e-4}
    size = f"train.batch_size={BATCH_SIZE}"
    falling = make_parts(backend, schema, size, *(f"{group}_optimizer.{fall}" for group in groups))
    halves = (f"{group}_optimizer.learning_rate={rate / 2}" for group, rate in groups.items())
    halved = make_parts(backend, schema, size, *halves)
    for _ in range(2):
        take_step(falling, random_batch(schema, BATCH_SIZE, rng))
    load_model(halved, falling.state(), 2)
    for _ in range(2):
        batch = random_batch(schema, BATCH_SIZE, rng)
        assert take_step(falling, batch) == take_step(halved, batch)
    assert_same_bits(falling.state(), halved.state())
    graph = getattr(falling.step.graph, "cell", falling.step.graph)
    assert falling.step.is_native or len(graph.compile_cache) == 1


@pytest.mark.parametrize("backend", ["reference", "stock"])
def test_dropout_is_a_function_of_the_step_and_leaves_scores_alone(
    backend, shared_parts, make_schema, random_batch, assert_same_bits
):
    schema, rng = make_schema(), np.random.default_rng(1)
    dropping, plain = shared_parts(backend, "model.dropout=0.5"), shared_parts(backend)
    batches = [random_batch(schema, BATCH_SIZE, rng) for _ in range(3)]
    state = dropping.state()
    scores = [parts.step.score(batches[0], parts.step.prepare(batches[0])) for parts in (dropping, plain)]
    np.testing.assert_array_equal(*scores)
    losses = [take_step(dropping, batch) for batch in batches]
    assert losses[0] != take_step(plain, batches[0])
    after = dropping.state()
    load_model(dropping, state, 0)
    assert [take_step(dropping, batch) for batch in batches] == losses
    assert_same_bits(dropping.state(), after)


def test_label_smoothing_draws_labels_toward_a_half(shared_parts, make_schema, random_batch):
    batch = random_batch(make_schema(), BATCH_SIZE, np.random.default_rng(1))
    drawn = dataclasses.replace(batch, labels=np.float32(0.9) * batch.labels + np.float32(0.05))
    smoothing, plain = shared_parts("reference", "loss.label_smoothing=0.1"), shared_parts("reference")
    found, expected = take_step(smoothing, batch), take_step(plain, drawn)
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(expected), rel=1e-6)


def test_a_state_resumes_in_the_middle_of_a_schedule(make_parts, make_schema, random_batch, assert_same_bits):
    """The wide head's FTRL too, whose linear terms change where the rate does."""
    schema, rng = make_schema(), np.random.default_rng(1)
    schedule = "schedule={name: step, every_steps: 2, drop_factor: 0.5, warmup_steps: 3}"
    overrides = (f"train.batch_size={BATCH_SIZE}", f"wide_optimizer.{schedule}", f"deep_optimizer.{schedule}")
    whole, resumed = (make_parts("reference", schema, *overrides, "deep_optimizer.name=adam") for _ in range(2))
    batches = [random_batch(schema, BATCH_SIZE, rng) for _ in range(6)]
    for batch in batches[:3]:
        take_step(whole, batch)
    load_model(resumed, whole.state(), 3)
    for batch in batches[3:]:
        assert take_step(resumed, batch) == take_step(whole, batch)
    assert_same_bits(resumed.state(), whole.state())
