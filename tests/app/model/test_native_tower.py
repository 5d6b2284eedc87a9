"""The dense model as native kernels against MindSpore's graph of it, which is its definition."""

import os

import numpy as np
import pytest

from app.config.device import GRAPH
from app.model.dense_state import write_parameter
from app.model.native_tower import LIBRARY, NativeStep
from tests.app.model.tensors import take_step
from tests.app.tables.tables_of_spec import load_model

BATCH_SIZE = 24
CASES = {  # two or three settings a case that meet at no place of the code, as each case is four graphs to compile
    "plain": (),
    "no numeric fields, one layer, smoothed labels": (
        "num_numeric=0",
        "model.hidden_widths=[5]",
        "loss.label_smoothing=0.2",
    ),
    "three layers, dropout, L2": ("model.hidden_widths=[33, 17, 8]", "model.dropout=0.4", "loss.l2_coef=0.3"),
    "no loss scale, clipped, mean": ("loss.loss_scale=1.0", "loss.tower_clip_norm=0.01", "train.ema_decay=0.9"),
    "adamw, falling rates": (
        "tower_optimizer={name: adamw, weight_decay: 0.1, schedule: {name: cosine, decay_steps: 5}}",
        "wide_optimizer.schedule={name: cosine, decay_steps: 5, final_factor: 0.1}",
    ),
    "bfloat16": ("device.precision=bfloat16",),
}


@pytest.fixture(scope="module", autouse=True)
def built():
    if not LIBRARY.is_available() and "CI" not in os.environ:
        pytest.skip("the dense layer is not built; run `make native`")


@pytest.fixture(scope="module", params=CASES)
def both(request, make_parts, make_schema):
    """A schema, and the same model as native kernels and as a graph."""
    overrides = [word for word in CASES[request.param] if "=" in word and not word.startswith("num_")]
    schema = make_schema(num_numeric=0 if "num_numeric=0" in CASES[request.param] else 3)
    words = (f"train.batch_size={BATCH_SIZE}", "model.initial_row_scale=0.1", *overrides)
    native = make_parts("reference", schema, *words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(GRAPH, "1")
        graph = make_parts("reference", schema, *words)
    assert (native.step.is_native, graph.step.is_native) == (True, False)
    return request.param, schema, native, graph


def test_a_step_is_the_graph_s(both, random_batch):
    """From the same state, single steps agree to float32's roundings: of Adam's first steps, where a gradient near 0
    is divided by its own size, the weights themselves say little, so moments and losses are compared."""
    case, schema, native, graph = both
    rng = np.random.default_rng(3)
    coarse = 30 if case == "bfloat16" else 1  # inputs that lie between two bfloat16 are rounded either way
    for step, size in enumerate((BATCH_SIZE, BATCH_SIZE, 7, BATCH_SIZE)):
        load_model(graph, native.state(), step)
        batch = random_batch(schema, size, rng)
        losses = [take_step(parts, batch) for parts in (native, graph)]
        assert losses[0].wide_loss == pytest.approx(losses[1].wide_loss, rel=2e-6 * coarse)
        assert losses[0].deep_loss == pytest.approx(losses[1].deep_loss, rel=2e-6 * coarse)
        found, expected = native.state(), graph.state()
        for name, values in expected.dense.items():
            if ".tower." in name or "ftrl" in name:
                scale = np.abs(values).max(initial=1e-12)
                np.testing.assert_allclose(found.dense[name] / scale, values / scale, atol=5e-5 * coarse, err_msg=name)
        np.testing.assert_allclose(
            native.step.score(batch, native.step.prepare(batch)),
            graph.step.score(batch, graph.step.prepare(batch)),
            atol=2e-3 * coarse,
        )


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.batch_norm=true",),
        ("model.activation=gelu",),
        ("model.first_layer=distinct",),
        ("tower_optimizer.name=sgd",),
        ("wide_optimizer.name=adagrad",),
    ],
)
def test_what_the_kernels_do_not_cover_runs_as_a_graph(make_parts, make_schema, overrides):
    parts = make_parts("reference", make_schema(), f"train.batch_size={BATCH_SIZE}", *overrides)
    assert not parts.step.is_native
    assert not isinstance(parts.step.graph, NativeStep)


def test_threads_change_no_bit(make_parts, make_schema, random_batch, assert_same_bits):
    schema, states = make_schema(), []
    for threads in (1, 2, 3):
        parts = make_parts("native", schema, "train.batch_size=200", f"device.threads={threads}")
        rng = np.random.default_rng(8)
        for _ in range(3):
            take_step(parts, random_batch(schema, 200, rng))
        states.append(parts.state())
    assert_same_bits(states[1], states[0])
    assert_same_bits(states[2], states[0])


@pytest.mark.parametrize("both", ["plain"], indirect=True)
def test_what_is_written_to_a_parameter_s_memory_a_graph_reads(both, random_batch):
    """MindSpore does not promise it; the native step and `write_parameter` rest on it."""
    _, schema, _, parts = both
    batch = random_batch(schema, BATCH_SIZE, np.random.default_rng(2))
    take_step(parts, batch)
    before = parts.step.score(batch, parts.step.prepare(batch))
    bias = parts.model.named_parameters()["wide.bias"]
    address = bias.asnumpy().ctypes.data
    write_parameter(bias, bias.asnumpy() + np.float32(0.5))
    np.testing.assert_allclose(parts.step.score(batch, parts.step.prepare(batch)), before + 0.5, atol=1e-6)
    take_step(parts, batch)
    assert bias.asnumpy().ctypes.data == address


class TwoEqualRanks:
    """The sums over two ranks that have the same gradients. Values that are started must not change any more."""

    num_ranks = 2

    def allocate(self, shapes):
        self.arrays, self.started = [np.zeros(shape, np.float32) for shape in shapes], []
        return self.arrays

    def start(self, num_values):
        self.started.append(self.arrays[0].reshape(-1)[:num_values].copy())

    def finish(self):
        for values in self.started:
            np.testing.assert_array_equal(self.arrays[0].reshape(-1)[: len(values)], values)
        self.started.clear()
        for array in self.arrays:
            array *= 2

    def gather(self, values):
        return np.stack([values] * 2)


def test_ranks_start_their_sums_early_and_refuse_those_that_overflow(make_parts, make_schema, tiny_config):
    words = "train.batch_size=1", "loss.loss_scale=2e17", "loss.l2_coef=0", "device.precision=float32"
    ranks, parts, config = TwoEqualRanks(), make_parts("reference", make_schema(), *words), tiny_config(*words)
    steps = parts.step.graph, NativeStep(parts.model, parts.optimizers, config, config.loss, ranks)
    shape = steps[0]._shape
    deep, numeric = (np.ones((1, n), np.float32) for n in (shape.num_inputs, shape.num_numeric + shape.num_vector))
    zero, noise = np.zeros(1, np.float32), np.zeros((len(config.model.hidden_widths), 3), np.int32)
    inputs = deep, zero, numeric, zero, zero + 1, noise
    assert [step(*inputs)[2] for step in steps] == [True, True]
    assert len(ranks.started) > 1
    steps[1]._finish_sum(ranks)
    for name, gradient in steps[0]._gradients.items():
        np.testing.assert_array_equal(steps[1]._gradients[name], 2 * gradient, err_msg=name)
    for parameter in parts.model.named_parameters().values():
        write_parameter(parameter, np.zeros(parameter.shape, np.float32))
    numeric[0, 0] = 1.2e21  # The gradient of its wide weight is 1.2e38, and that of two ranks above 2 ** 127.
    assert [step(*inputs)[2] for step in steps] == [True, False]
