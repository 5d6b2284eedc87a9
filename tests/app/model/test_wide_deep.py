"""The dense model in NumPy, and numeric fields folded into it against looking them up."""

import numpy as np
import pytest
from mindspore import Tensor

from app.model import dense_layer
from app.model.wide_deep import make_model
from app.tables.checks import load_state
from app.tables.interface import DEEP, WIDE
from app.training.assemble import fold_numeric


def logits_in_numpy(named_parameters, deep_rows, wide_rows, numeric):
    """The formula of app/model/wide_deep.py, in float64, with each x_f · E_f written out."""
    p = {name: parameter.asnumpy().astype(np.float64) for name, parameter in named_parameters.items()}
    rows, matrix = p["tower.numeric_rows"], p["tower.numeric_matrix"]
    inputs = np.concatenate([(numeric[:, :, None] * rows).reshape(len(numeric), -1), deep_rows], axis=1)
    hidden = inputs @ np.concatenate([matrix.reshape(-1, matrix.shape[-1]), p["tower.matrix_0"]])
    for i in range(2):
        hidden = np.maximum(hidden + p[f"tower.bias_{i}"], 0) @ p[f"tower.matrix_{i + 1}"]
    return wide_rows + (numeric @ p["wide.numeric_weight"])[:, 0] + p["wide.bias"] + hidden[:, 0]


def test_the_model_is_its_formula(cpu, tiny_config, make_schema):
    schema, config, rng = make_schema(), tiny_config(), np.random.default_rng(0)
    model = make_model(config, schema)
    for parameter in model.named_parameters().values():
        dense_layer.write_parameter(parameter, rng.standard_normal(parameter.shape).astype(np.float32))
    shapes = ((9, 4 * config.model.embedding_dim), (9,), (9, 3))
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    expected = logits_in_numpy(model.named_parameters(), *inputs)
    found = model(*map(Tensor, inputs)).asnumpy()
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_the_first_weights_are_a_function_of_the_seed(cpu, tiny_config, make_schema):
    def weights(*overrides):
        named = make_model(tiny_config(*overrides), make_schema()).named_parameters()
        return np.concatenate([named[name].asnumpy().reshape(-1) for name in ("tower.matrix_0", "tower.numeric_rows")])

    np.testing.assert_array_equal(weights(), weights())
    assert np.mean(weights() == weights("train.seed=2")) < 0.01


@pytest.fixture(scope="module")
def both_ways(make_parts, make_schema):
    """Numeric fields folded and looked up, from the same seed; a moment far from 0 shows gradients best."""
    schema = make_schema()
    overrides = ("train.batch_size=32", "model.initial_row_scale=0.3", "loss.l2_coef=1e-3")
    return [make_parts("stock", schema, *overrides, f"model.fold_numeric={fold}") for fold in ("true", "false")]


def assert_equal_to_scale(found, expected, relative_to_scale):
    np.testing.assert_allclose(found, expected, rtol=0, atol=relative_to_scale * np.abs(expected).max())


def test_folded_numeric_fields_are_the_same_function_with_the_same_gradients(both_ways, make_schema, random_batch):
    """First moments after one step are gradients · 0.1, accumulators 1 + gradient².

    1e-5 of their scale: folding sums D products before the batch instead of after, each sum rounding for itself.
    """
    folded, unfolded = both_ways
    schema, rng = make_schema(), np.random.default_rng(2)
    batch = random_batch(schema, 32, rng)
    scores = [parts.step.score(batch, parts.step.prepare(batch)) for parts in both_ways]
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-6)

    losses = [parts.step(batch, parts.step.prepare(batch)) for parts in both_ways]
    assert losses[1].wide_loss == pytest.approx(losses[0].wide_loss, rel=1e-6)
    assert losses[1].deep_loss == pytest.approx(losses[0].deep_loss, rel=1e-6)

    one, other = folded.state(), unfolded.state()
    n, dim = schema.num_numeric, folded.step.tables.spec.embedding_dim
    deep, wide = other.tables[DEEP].arrays, other.tables[WIDE].arrays
    assert other.tables[DEEP].row_ids[:n].tolist() == list(range(n))
    pairs = {
        "adam.first_moment.tower.numeric_rows": deep["first_moment"][:n],
        "ftrl.accumulator.wide.numeric_weight": wide["accumulator"][:n],
        "ftrl.linear.wide.numeric_weight": wide["linear"][:n],
    }
    first = other.dense["adam.first_moment.tower.matrix_0"]
    pairs["adam.first_moment.tower.numeric_matrix"] = first[: n * dim].reshape(n, dim, -1)
    pairs["adam.first_moment.tower.matrix_0"] = first[n * dim :]
    for name, array in pairs.items():
        assert np.abs(array).max() > 0
        assert_equal_to_scale(one.dense[name], array, 1e-5)
    # MindSpore's Adam corrects by float32 powers of beta: 1 - 0.999 has lost four digits, 3e-5 of the first step.
    rate = folded.step.tables.spec.deep_optimizer.learning_rate
    np.testing.assert_allclose(one.dense["tower.numeric_rows"], deep["rows"][:n], rtol=0, atol=1e-3 * rate)
    assert_equal_to_scale(one.dense["wide.numeric_weight"], wide["rows"][:n], 1e-5)


def test_folding_a_looked_up_state_keeps_the_function(both_ways, make_schema, random_batch):
    """Evaluation folds checkpoints of models that looked their numeric fields up."""
    folded, unfolded = both_ways
    schema, batch = make_schema(), random_batch(make_schema(), 32, np.random.default_rng(4))
    state = unfolded.state()
    arrays = fold_numeric(state, unfolded.step.tables.spec, schema.num_numeric)
    named = folded.model.named_parameters()
    for name, parameter in named.items():
        dense_layer.write_parameter(parameter, arrays[name])
    load_state(folded.step.tables, state.tables, step=1)
    scores = [parts.step.score(batch, parts.step.prepare(batch)) for parts in both_ways]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-6)
