import dataclasses
import functools
import math
import os

import numpy as np
import pytest

from app.model.dense_layer import EPSILON, LIBRARY
from app.model.dense_state import DropoutNoise, keep_mask
from app.model.wide_deep import hidden_layers
from data_prep.prepared.schema import Split
from tests.app.model.tensors import SHAPES, draw, take_step
from tests.app.tables.tables_of_spec import load_model

try:
    LIBRARY.load()
except OSError as error:
    if os.environ.get("CI"):
        raise
    pytest.skip(str(error), allow_module_level=True)

import mindspore as ms
from mindspore import Tensor, nn

from app.model.dense_layer import ACTIVATIONS, DenseLayer, NativeLayer
from app.model.dense_state import write_parameter
from tests.app.model.tensors import to_bfloat16


class WeightedSum(nn.Cell):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def construct(self, inputs, weights, numeric, numeric_weights, output_gradient, noise=None):
        outputs = self.layer(inputs, weights, numeric, numeric_weights, noise)
        return (outputs * output_gradient).sum(), outputs


class Gradient(nn.Cell):
    def __init__(self, layer):
        super().__init__()
        self.gradient = ms.value_and_grad(WeightedSum(layer), grad_position=(0, 1, 3), has_aux=True)

    def construct(self, *inputs):
        return self.gradient(*inputs)


@functools.cache  # a graph is compiled for each shape, which takes most of the time
def gradient_of(layer, *words):
    return Gradient(layer(*words))


def run(layer, arrays, noise=None):
    """Outputs and gradients of a layer, which is its class and the words of its making."""
    others = () if noise is None else (Tensor(noise),)
    (_, outputs), gradients = gradient_of(*layer)(*map(Tensor, arrays), *others)
    return [array.asnumpy() for array in (outputs, *gradients)]


def expected(arrays, rounded):
    """The layer and its gradients in float64; `rounded` is done to the inputs of the large products."""
    x, w, n, f, dy = arrays
    wide = np.float64
    z = rounded(x).astype(wide) @ rounded(w).astype(wide) + n.astype(wide) @ f.astype(wide)
    dz = rounded(np.where(z > 0, dy, 0).astype(np.float32)).astype(wide)
    return [np.maximum(z, 0), dz @ rounded(w).T, rounded(x).T @ dz, rounded(n).T @ dz]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.usefixtures("cpu")
def test_native_layer_is_the_layer(shape, bfloat16):
    """Sums of up to 1,300 float32 products, to 2e-6 of the largest; bfloat16 rounds the inputs and nothing else."""
    arrays = draw(shape)
    native, exact = run((NativeLayer, 2, bfloat16), arrays), expected(arrays, to_bfloat16 if bfloat16 else np.asarray)
    # A unit whose sum lies at the ReLU's edge may fall to either side; these inputs have none that close.
    for want, *found in zip(exact, native, native if bfloat16 else run((DenseLayer,), arrays), strict=True):
        for got in found:
            assert np.abs(got - want).max() <= 2e-6 * (np.abs(want).max() or 1)


@pytest.mark.parametrize(("shape", "bfloat16"), list(zip(SHAPES, (True, False, True, False), strict=True)))
@pytest.mark.usefixtures("cpu")
def test_dropout_is_a_mask_and_a_factor(shape, bfloat16):
    """Outputs and the gradients that come in are multiplied by 0 or 1 / (1 - rate): on kernels and operators alike."""
    arrays, noise = draw(shape), DropoutNoise(3, 0.25, 1).of_step(5, first_row=7)[0]
    factors = np.where(keep_mask(noise, shape[0], shape[2]), np.float32(1 / 0.75), np.float32(0))
    masked = [*arrays[:4], arrays[4] * factors]
    plain = run((NativeLayer, 2, bfloat16), masked)
    dropped = run((NativeLayer, 2, bfloat16), arrays, noise)
    np.testing.assert_array_equal(dropped[0], plain[0] * factors)
    for got, want in zip(dropped[1:], plain[1:], strict=True):
        np.testing.assert_array_equal(got, want)
    if not bfloat16:
        for got, want in zip(run((DenseLayer,), arrays, noise), dropped, strict=True):
            assert np.abs(got - want).max() <= 2e-6 * (np.abs(want).max() or 1)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.usefixtures("cpu")
def test_activations(name):
    """Their values at five places, by hand where a formula is short."""
    formulas = {
        "relu": lambda z: np.maximum(z, 0),
        "leaky_relu": lambda z: np.where(z > 0, z, 0.01 * z),
        "tanh": np.tanh,
        "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
        "silu": lambda z: z / (1 + np.exp(-z)),
        "gelu": lambda z: 0.5 * z * (1 + np.array([math.erf(v / 2**0.5) for v in z[:, 0]])[:, None]),
    }
    z = np.array([[-3], [-0.5], [0], [0.5], [3]], np.float32)
    one, nothing = np.ones((1, 1), np.float32), np.zeros((5, 1), np.float32)
    outputs = DenseLayer(activation=name)(Tensor(z), Tensor(one), Tensor(nothing), Tensor(one)).asnumpy()
    np.testing.assert_allclose(outputs, formulas[name](z), atol=1e-5 if name != "gelu" else 1e-3)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.usefixtures("cpu")
def test_nan_reaches_a_weight_gradient(place):
    """ReLU turns NaN into 0, so the flag of a step relies on this."""
    arrays = draw((700, 40, 20, 3))
    arrays[place][0, 0] = np.nan
    gradients = run((NativeLayer, 2, False), arrays)[1:]
    poisoned_parameter = place in (1, 3)  # a parameter's own check sees that one
    assert poisoned_parameter or any(not np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.usefixtures("cpu")
def test_a_kept_view_is_where_the_parameter_lies_now():
    """MindSpore may move a parameter: what was kept of its old memory is then neither read nor written."""
    parameter = ms.Parameter(Tensor(np.zeros(3, np.float32)), name="moved")
    old = parameter.asnumpy()
    parameter.set_data(Tensor(np.arange(3, dtype=np.float32)))
    np.testing.assert_array_equal(parameter.asnumpy(), [0, 1, 2])
    write_parameter(parameter, np.full(3, 5, np.float32))
    np.testing.assert_array_equal(parameter.asnumpy(), [5, 5, 5])
    np.testing.assert_array_equal(old, np.zeros(3) if old.ctypes.data != parameter.data_ptr() else [5, 5, 5])


SIZES = ("train.batch_size=16", "model.hidden_widths=[6, 5]", "model.batch_norm=true", "model.initial_row_scale=0.5")


@pytest.fixture(scope="module")
def trained(make_parts, make_schema, random_batch):
    """Parts after two steps, with a short batch and the state to go back to."""
    schema, rng = make_schema(), np.random.default_rng(1)
    parts = make_parts("reference", schema, *SIZES)
    for _ in range(2):
        take_step(parts, random_batch(schema, 16, rng))
    return parts, random_batch(schema, 11, rng), parts.state()


@pytest.fixture
def ready(trained):
    parts, batch, state = trained
    load_model(parts, state, 2)
    return parts, batch


def towers_in_numpy(parts, batch, statistics):
    """Logits [n] in float64, and each layer's mean and variance; `statistics` gives those to normalize with."""
    p = {name: array.astype(np.float64) for name, array in parts.state().dense.items()}
    rows = parts.step.tables.lookup(parts.step.prepare(batch))
    inputs = (batch.numeric[:, :, None] * p["tower.numeric_rows"]).reshape(batch.num_rows, -1)
    hidden = np.concatenate([inputs, rows.deep], axis=1)
    matrices = [np.concatenate([p["tower.numeric_matrix"].reshape(inputs.shape[1], -1), p["tower.matrix_0"]])]
    matrices += [p["tower.matrix_1"], p["tower.matrix_2"]]
    found = []
    for i in range(2):
        sums = hidden @ matrices[i] + p[f"tower.bias_{i}"]
        sums += 0 if i else batch.vectors @ p["tower.vector_matrix"]
        found.append(of_the_batch(p, i, sums, batch.weights))
        mean, variance = statistics(p, i, sums, batch.weights)
        normal = (sums - mean) / np.sqrt(variance + EPSILON)
        hidden = np.maximum(normal * p[f"tower.norm_scale_{i}"] + p[f"tower.norm_shift_{i}"], 0)
    wide = rows.wide + batch.numeric @ p["wide.numeric_weight"][:, 0] + p["wide.bias"]
    return wide + (hidden @ matrices[2])[:, 0], found


def of_the_batch(p, i, sums, weights):
    mean = np.average(sums, 0, weights)
    return mean, np.average(np.square(sums - mean), 0, weights)


def running(p, i, sums, weights):
    return p[f"tower.running_mean_{i}"], p[f"tower.running_variance_{i}"]


@pytest.mark.parametrize("num_rows", [1, 3, 16])
@pytest.mark.parametrize("has_weights", [False, True])
def test_a_batch_normalizes_with_its_rows_and_counts_by_them(ready, make_schema, random_batch, num_rows, has_weights):
    """The running statistics move by 0.1 · rows / 16, so one row, which has no variance, hardly changes them."""
    parts, rng = ready[0], np.random.default_rng(num_rows)
    batch, weights = random_batch(make_schema(), num_rows, rng), np.ones(num_rows)
    if has_weights:
        weights = rng.choice(np.float32([0.5, 1, 20]), num_rows)
        batch = dataclasses.replace(batch, weights=weights, mean_weight=3.0)
    logits, found = towers_in_numpy(parts, batch, of_the_batch)
    expected = weights @ (np.logaddexp(0, logits) - batch.labels * logits) / num_rows / batch.mean_weight
    before = parts.state().dense
    assert take_step(parts, batch).wide_loss == pytest.approx(expected, rel=1e-4)
    after = parts.state().dense
    for i, statistics in enumerate(found):
        for name, value in zip((f"tower.running_mean_{i}", f"tower.running_variance_{i}"), statistics, strict=True):
            moved = before[name] + 0.1 * num_rows / 16 * (value - before[name])
            np.testing.assert_allclose(after[name], moved, rtol=1e-4, atol=1e-6)
        assert num_rows == 1 or (after[f"tower.norm_scale_{i}"] != before[f"tower.norm_scale_{i}"]).any()


def test_a_full_batch_is_one_of_the_data_s_share(tiny_config, make_schema):
    """Where half of the rows count, eight of sixteen are a full batch."""
    schema = dataclasses.replace(make_schema(), splits={"train": Split(100, 9, (), unlabelled=50)})
    assert [layer.norm.full_rows for layer in hidden_layers(tiny_config(*SIZES), schema)] == [8, 8]


def test_a_batch_without_weight_leaves_the_running_statistics(ready, make_schema, random_batch):
    parts, batch = ready
    before = parts.state().dense
    take_step(parts, random_batch(make_schema(), 0, np.random.default_rng(1)))
    after = parts.state().dense
    assert (after["tower.matrix_0"] != before["tower.matrix_0"]).any()  # Adam's momentum
    for name in parts.model.named_statistics():
        np.testing.assert_array_equal(after[name], before[name])
    take_step(parts, batch)
    assert (parts.state().dense["tower.running_mean_0"] != before["tower.running_mean_0"]).any()


def test_scoring_normalizes_with_the_running_statistics_and_changes_nothing(ready, assert_same_bits):
    parts, batch = ready
    before = parts.state()
    scores = parts.step.score(batch, parts.step.prepare(batch))
    np.testing.assert_allclose(scores, towers_in_numpy(parts, batch, running)[0], rtol=1e-4, atol=1e-5)
    assert_same_bits(parts.state(), before)


def test_a_refused_step_leaves_the_statistics(ready, changed, assert_same_bits):
    parts, batch = ready
    before = parts.state()
    with pytest.raises(FloatingPointError):
        take_step(parts, changed(batch, "numeric", (3, 1), np.nan))
    assert_same_bits(parts.state(), before)


def test_training_from_a_saved_state_is_as_without_a_stop(ready, make_parts, make_schema, assert_same_bits):
    parts, batch = ready
    resumed = make_parts("reference", make_schema(), *SIZES)
    load_model(resumed, parts.state(), 2)
    for _ in range(2):
        assert dataclasses.astuple(take_step(resumed, batch)) == dataclasses.astuple(take_step(parts, batch))
    assert_same_bits(resumed.state(), parts.state())


RATE = 0.25


def test_the_share_of_dropped_units_is_the_rate():
    mask = keep_mask(DropoutNoise(1, RATE, 3).of_step(7)[1], 2000, 500)
    assert mask.mean() == pytest.approx(1 - RATE, abs=5 * (RATE * (1 - RATE) / mask.size) ** 0.5)
    for axis, size in ((0, 2000), (1, 500)):
        assert np.abs(mask.mean(axis) - 0.75).max() < 5 * (RATE * (1 - RATE) / size) ** 0.5


def test_seed_step_and_layer_give_other_masks_and_nothing_else_does():
    def mask(seed=1, step=7, layer=0):
        return keep_mask(DropoutNoise(seed, 0.5, 2).of_step(step)[layer], 400, 100)

    np.testing.assert_array_equal(mask(), mask())
    for other in (mask(seed=2), mask(step=8), mask(layer=1)):
        assert np.mean(mask() == other) == pytest.approx(0.5, abs=0.02)


def test_a_rank_s_rows_have_their_place_in_the_global_batch():
    whole = keep_mask(DropoutNoise(1, RATE, 1).of_step(3)[0], 90, 40)
    slices = [keep_mask(DropoutNoise(1, RATE, 1).of_step(3, first)[0], 30, 40) for first in (0, 30, 60)]
    np.testing.assert_array_equal(np.concatenate(slices), whole)


def test_no_unit_is_dropped_at_rate_0():
    assert keep_mask(DropoutNoise(1, 0.0, 1).of_step(1)[0], 50, 50).all()


@pytest.mark.usefixtures("cpu")
def test_operators_drop_the_same_units():
    import mindspore as ms
    from mindspore import Tensor, nn, ops

    from app.model.dense_layer import dropout_multiplier

    class Multiplier(nn.Cell):
        def construct(self, noise: ms.Tensor) -> ms.Tensor:
            return dropout_multiplier(noise, noise[1] + ops.arange(300, dtype=ms.int32), ops.arange(70, dtype=ms.int32))

    noise, multiplier = DropoutNoise(2**62, RATE, 2).of_step(10**6, first_row=2**31 - 5), Multiplier()
    for layer in noise:
        found = multiplier(Tensor(layer)).asnumpy()
        np.testing.assert_array_equal(found, np.where(keep_mask(layer, 300, 70), np.float32(1 / 0.75), np.float32(0)))
