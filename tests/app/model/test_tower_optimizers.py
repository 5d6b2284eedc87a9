"""The optimizers of the dense parameters by hand, clipped gradients, and learning rates that change by step."""

import numpy as np
import pytest

from app.config.optimizer_settings import FtrlOptions
from app.model.native_tower import LIBRARY
from app.tables.optimizers import LEAST_FTRL_RATE, ftrl_step
from tests.app.model.tensors import variable

LOSS_SCALE = 8.0


@pytest.fixture
def make_optimizers(cpu, tiny_config, make_schema):
    """A small model's parameters by name, and their optimizers under a loss scale of 8.

    The wide head's is gradient descent, as FTRL would be half of each graph.
    """
    from app.model.tower_optimizers import DenseOptimizers
    from app.model.wide_deep import make_model

    def make(*overrides):
        words = ("model.hidden_widths=[3]", "wide_optimizer.name=sgd", f"loss.loss_scale={LOSS_SCALE}")
        config = tiny_config(*words, *overrides)
        model = make_model(config, make_schema())
        return model.named_parameters(), DenseOptimizers(model, config)

    return make


@pytest.fixture
def optimize(make_optimizers):
    """Two steps on the parameters of a small model, each gradient being ±2 everywhere."""

    def run(*overrides, gradients=(2.0, -2.0), rates=None):
        named, optimizers = make_optimizers(*overrides)
        values = [{name: parameter.asnumpy().copy() for name, parameter in named.items()}]
        for step, gradient in enumerate(gradients):
            if rates is not None:
                optimizers.set_learning_rates(*rates[step])
            optimizers(variable(np.full(p.shape, gradient * LOSS_SCALE, np.float32) for p in named.values()))
            values.append({name: parameter.asnumpy().copy() for name, parameter in named.items()})
        return values

    return run


def test_sgd_by_hand(optimize):
    before, one, two = optimize("tower_optimizer={name: sgd, learning_rate: 0.25}", "wide_optimizer.learning_rate=0.1")
    for name, values in before.items():
        rate = 0.25 if name.startswith("tower") else 0.1
        np.testing.assert_allclose(one[name], values - rate * 2, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(two[name], values, atol=1e-6, err_msg=name)


def test_adagrad_by_hand(optimize):
    """Accumulators 5 + 4 = 9, then 13: changes 0.5 · 2 / (3 + 1) and -0.5 · 2 / (√13 + 1)."""
    options = "{name: adagrad, learning_rate: 0.5, initial_accumulator: 5.0, epsilon: 1.0}"
    before, one, two = optimize(f"tower_optimizer={options}", f"wide_optimizer={options}")
    for name, values in before.items():
        np.testing.assert_allclose(one[name], values - 0.25, rtol=1e-6, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(two[name], one[name] + 1 / (13**0.5 + 1), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("kernel", "name", "beta1", "beta2", "decay"),
    [
        (True, "adamw", 0.9, 0.999, 0),
        (True, "adamw", 0.9, 0.999, 0.5),
        (True, "adam", 0, 0.5, 0),
        (True, "adamw", 0, 0, 0),
        (False, "adam", 0, 0, 0),
    ],
)
def test_adam_by_hand(optimize, monkeypatch, kernel, name, beta1, beta2, decay):
    """MindSpore's Adam refuses a decay of a moment of 0, with a message of its own."""
    if not kernel:
        monkeypatch.setattr("app.model.dense_layer.dense_adam", lambda: None)
    of_weights = f", weight_decay: {decay}" if name == "adamw" else ""
    options = f"{{name: {name}, learning_rate: 0.1, beta1: {beta1}, beta2: {beta2}{of_weights}}}"
    first, second, (expected, *later) = 0.0, 0.0, optimize(f"tower_optimizer={options}", gradients=(2.0, -1.0))
    for step, (gradient, found) in enumerate(zip((2.0, -1.0), later, strict=True), start=1):
        first, second = beta1 * first + (1 - beta1) * gradient, beta2 * second + (1 - beta2) * gradient**2
        change = 0.1 * np.sqrt(1 - beta2**step) / (1 - beta1**step) * first / (np.sqrt(second) + 1e-8)
        for key in (key for key in found if key.startswith("tower")):
            expected[key] = expected[key] * (1 - 0.1 * decay) - change
            np.testing.assert_allclose(found[key], expected[key], rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("options", ["{name: adam}", "{name: adamw, weight_decay: 0.3}"])
def test_the_kernel_s_adam_is_the_operators_bit_by_bit(make_optimizers, monkeypatch, options):
    """Three steps on gradients from tiny to large, clipped."""

    def states():
        words = ("model.hidden_widths=[35,12]", f"tower_optimizer={options}", "loss.tower_clip_norm=100")
        named, optimizers = make_optimizers(*words)
        generator = np.random.default_rng(0)
        for rate in (0.01, 0.01, 0.02):
            optimizers.set_learning_rates(0.1, rate)
            shapes = [parameter.shape for parameter in named.values()]
            gradients = [generator.standard_normal(s) * 10.0 ** generator.integers(-4, 5, s) for s in shapes]
            optimizers(variable(map(np.float32, gradients)))
        return {name: each.asnumpy().copy() for name, each in (named | optimizers.named_state()).items()}

    native = states()
    monkeypatch.setenv("DENSE_LAYER_LIBRARY", "none")
    monkeypatch.setattr(LIBRARY, "_loaded", None)
    for name, values in states().items():
        np.testing.assert_array_equal(native[name], values, err_msg=name)


def test_the_tower_s_gradients_are_shortened_together(optimize):
    """All of the tower's values have gradient 2: their norm is 2 √n, and 3 is left of it. The wide head's stay."""
    options = ("tower_optimizer={name: sgd, learning_rate: 1.0}", "wide_optimizer={name: sgd, learning_rate: 1.0}")
    before, one, _ = optimize(*options, "loss.tower_clip_norm=3")
    num_values = sum(values.size for name, values in before.items() if name.startswith("tower"))
    for name, values in before.items():
        change = 3 / np.sqrt(num_values) if name.startswith("tower") else 2
        np.testing.assert_allclose(one[name], values - change, rtol=1e-5, atol=1e-6, err_msg=name)
    before, one, _ = optimize(*options, "loss.tower_clip_norm=1e6")
    for name, values in before.items():
        np.testing.assert_allclose(one[name], values - 2, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["adam", "adamw", "adagrad", "sgd"])
def test_a_changed_learning_rate_counts_from_the_next_step(optimize, name):
    fixed = optimize(f"tower_optimizer.name={name}", gradients=(2.0,) * 2, rates=((0.1, 0.01), (0.1, 0.01)))
    fallen = optimize(f"tower_optimizer.name={name}", gradients=(2.0,) * 2, rates=((0.1, 0.01), (0.1, 0.001)))
    changes = [run[2]["tower.matrix_1"] - run[1]["tower.matrix_1"] for run in (fixed, fallen)]
    np.testing.assert_array_equal(fallen[1]["tower.matrix_1"], fixed[1]["tower.matrix_1"])
    np.testing.assert_allclose(changes[1], changes[0] / 10, rtol=1e-2, atol=1e-6)


def test_a_fallen_rate_leaves_the_wide_head_s_weights_as_they_are(optimize):
    """A step without a gradient moves nothing, though FTRL's linear terms have the learning rate in them."""
    options = "wide_optimizer={name: ftrl, l1: 0.0, l2: 0.5, learning_rate: 0.1}"
    _, one, two = optimize(options, gradients=(2.0, 0.0), rates=((0.1, 0.01), (0.01, 0.01)))
    assert np.abs(one["wide.bias"]).min() > 0.01
    for name in ("wide.bias", "wide.numeric_weight"):
        np.testing.assert_allclose(two[name], one[name], rtol=1e-5)


@pytest.mark.parametrize("gradients", [(-2.0, -0.5, 3.0), (2.0, 0.5, -3.0), (0.25, 0.1, -0.2)])
def test_the_wide_head_s_ftrl_is_that_of_the_table(optimize, gradients):
    """Weights above 0 too: MindSpore's operator adds l1 to them on a CPU."""
    options = FtrlOptions(learning_rate=0.5, l1=0.5, l2=0.25, initial_accumulator=0.5)
    words = "{name: ftrl, learning_rate: 0.5, l1: 0.5, l2: 0.25, initial_accumulator: 0.5}"
    before, *after = optimize(f"wide_optimizer={words}", gradients=gradients)
    for name in ("wide.bias", "wide.numeric_weight"):
        rows = before[name].copy()
        states = (rows, np.full_like(rows, 0.5), np.zeros_like(rows))
        for gradient, found in zip(gradients, after, strict=True):
            ftrl_step(states, np.full_like(rows, gradient), options, 0.5)
            np.testing.assert_allclose(found[name], rows, rtol=1e-6, atol=1e-7, err_msg=name)


def test_a_learning_rate_near_0_leaves_the_wide_head_as_it_is(optimize):
    rates = ((0.1, 0.01), (float(LEAST_FTRL_RATE) / 4, 0.01), (1e-45, 0.01))
    _, one, *near_0 = optimize("wide_optimizer={name: ftrl, l1: 0.125}", gradients=(2.0, 2.0, -2.0), rates=rates)
    for name in ("wide.bias", "wide.numeric_weight"):
        assert np.abs(one[name]).min() > 0.01
        for found in near_0:
            np.testing.assert_array_equal(found[name], one[name])


@pytest.mark.parametrize(
    "options", ["{name: adam}", "{name: adamw, weight_decay: 0.3}", "{name: sgd}", "{name: adagrad}"]
)
def test_running_means_are_those_of_the_weights_after_each_step(make_optimizers, options):
    from mindspore import Tensor, nn, ops

    class InBranch(nn.Cell):
        """The optimizers as the step's graph has them."""

        def __init__(self, optimizers):
            super().__init__()
            self.optimizers = optimizers

        def construct(self, finite, *gradients):
            result = gradients[0].reshape(-1)[:1]
            if finite:
                result = ops.depend(result, self.optimizers(gradients))
            return result

    decay = 0.75
    words = ("model.hidden_widths=[5,3]", f"tower_optimizer={options}", "wide_optimizer.name=ftrl")
    named, optimizers = make_optimizers(*words, f"train.ema_decay={decay}")
    graph, generator = InBranch(optimizers), np.random.default_rng(0)
    sums = dict.fromkeys(named, 0.0)
    for step, finite in enumerate((True, True, False, True), start=1):
        taken = step - (step > 2)  # the third is skipped and taken again
        optimizers.set_step(taken)
        gradients = [np.float32(generator.standard_normal(p.shape) * LOSS_SCALE) for p in named.values()]
        graph(Tensor(finite), *map(Tensor, gradients))
        state = optimizers.named_state()
        for name, parameter in named.items():
            if finite:
                sums[name] = decay * sums[name] + (1 - decay) * parameter.asnumpy().astype(np.float64)
            mean = state[f"mean.{name}"].asnumpy()
            expected = sums[name] / (1 - decay ** (2 if not finite else taken))
            np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-7, err_msg=f"{name} {step}")
    weights = {name: parameter.asnumpy().copy() for name, parameter in named.items()}
    with optimizers.means_as_weights():
        for name, parameter in named.items():
            np.testing.assert_array_equal(parameter.asnumpy(), optimizers.named_state()[f"mean.{name}"].asnumpy())
    for name, parameter in named.items():
        np.testing.assert_array_equal(parameter.asnumpy(), weights[name])
        assert not np.array_equal(weights[name], optimizers.named_state()[f"mean.{name}"].asnumpy()), name
