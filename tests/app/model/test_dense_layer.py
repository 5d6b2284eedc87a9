import functools
import math
import os

import numpy as np
import pytest

from app.model.native_layer import LIBRARY

try:
    LIBRARY.load()
except OSError as error:
    if os.environ.get("CI"):
        raise
    pytest.skip(str(error), allow_module_level=True)

import mindspore as ms
from mindspore import Tensor, nn

from app.model.dense_layer import ACTIVATIONS, DenseLayer
from app.model.dense_state import DropoutNoise, keep_mask, write_parameter
from app.model.native_layer import NativeLayer
from tests.app.model.tensors import to_bfloat16

# One row; fewer rows than a task; several tasks with a short last one, and widths that no block divides.
SHAPES = [(1, 1, 1, 1), (5, 7, 3, 2), (1300, 50, 33, 1), (700, 300, 130, 27)]


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


def draw(shape, seed=0):
    rows, width_in, width_out, numeric = shape
    generator = np.random.default_rng(seed)
    shapes = ((rows, width_in), (width_in, width_out), (rows, numeric), (numeric, width_out), (rows, width_out))
    return [generator.standard_normal(s).astype(np.float32) for s in shapes]


def run(layer, arrays, noise=None):
    """Outputs and gradients of a layer, which is its class and the words of its making."""
    others = () if noise is None else (Tensor(noise),)
    (_, outputs), gradients = gradient_of(*layer)(*map(Tensor, arrays), *others)
    return [array.asnumpy() for array in (outputs, *gradients)]


def expected(arrays, rounded=lambda values: values):
    """The layer and its gradients in float64; `rounded` is done to the inputs of the large products."""
    x, w, n, f, dy = arrays
    wide = np.float64
    z = rounded(x).astype(wide) @ rounded(w).astype(wide) + n.astype(wide) @ f.astype(wide)
    dz = rounded(np.where(z > 0, dy, 0).astype(np.float32)).astype(wide)
    return [np.maximum(z, 0), dz @ rounded(w).T, rounded(x).T @ dz, rounded(n).T @ dz]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("cpu")
def test_native_layer_is_the_layer(shape):
    arrays = draw(shape)
    native, plain = run((NativeLayer, 2, False), arrays), run((DenseLayer,), arrays)
    for got, same, want in zip(native, plain, expected(arrays), strict=True):
        # Sums of up to 1,300 float32 products, relative to the largest one.
        scale = np.abs(want).max() or 1
        assert np.abs(got - want).max() <= 2e-6 * scale
        assert np.abs(got - same).max() <= 2e-6 * scale


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("cpu")
def test_bfloat16_rounds_the_inputs_and_nothing_else(shape):
    arrays = draw(shape)
    # A unit whose sum lies at the ReLU's edge may fall to either side; these inputs have none that close.
    for got, want in zip(run((NativeLayer, 2, True), arrays), expected(arrays, to_bfloat16), strict=True):
        assert np.abs(got - want).max() <= 2e-6 * (np.abs(want).max() or 1)


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.usefixtures("cpu")
def test_bits_do_not_depend_on_threads(bfloat16):
    arrays = draw((1300, 300, 130, 27))
    # The number of threads is set as a layer is made, and no other test makes these.
    one, three = (run((NativeLayer, threads, bfloat16), arrays) for threads in (1, 3))
    for left, right in zip(one, three, strict=True):
        np.testing.assert_array_equal(left, right)


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
