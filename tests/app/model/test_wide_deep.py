"""The dense model in NumPy, and numeric fields folded into it against looking them up."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mindspore import Tensor

from app.model.dense_state import write_parameter
from app.model.graph import AllFinite, cross_entropy
from app.model.native_tower import LIBRARY, l2_loss
from app.model.wide_deep import make_model
from app.tables.interface import DEEP, WIDE
from app.training.assemble import fold_numeric
from tests.app.model.tensors import variable
from tests.app.tables.tables_of_spec import load_state


def formula_in_numpy(p, deep_rows, wide_rows, numbers, labels, shares):
    """Return logits, and gradients of Σ share · cross-entropy by name, in float64.

    `p` are the parameters. Each x_f · E_f of the formula of app/model/wide_deep.py is written out.
    """
    rows, matrix = p.get("tower.numeric_rows", np.zeros((0, 1))), p.get("tower.numeric_matrix", np.zeros((0, 1, 1)))
    numeric, vectors = np.split(numbers.astype(np.float64), [len(rows)], axis=1)
    inputs = np.concatenate([(numeric[:, :, None] * rows).reshape(len(numeric), -1), deep_rows, vectors], axis=1)
    last = sum("bias_" in name for name in p)
    blocks = {"tower.numeric_matrix": matrix.reshape(-1, p["tower.matrix_0"].shape[1])[: rows.size]}
    blocks |= {name: p[name] for name in ("tower.matrix_0", "tower.vector_matrix") if name in p}
    matrices = [np.concatenate(list(blocks.values())), *(p[f"tower.matrix_{i + 1}"] for i in range(last))]
    hidden = [inputs]
    for i in range(last):
        hidden.append(np.maximum(hidden[i] @ matrices[i] + p[f"tower.bias_{i}"], 0))
    of_numeric = numeric @ p["wide.numeric_weight"][:, 0] if rows.size else 0.0
    logits = wide_rows + of_numeric + p["wide.bias"] + (hidden[last] @ matrices[last])[:, 0]

    of_logits = shares * (1 / (1 + np.exp(-logits)) - labels)
    gradients = {"wide rows": of_logits, "wide.bias": of_logits.sum()[None]}
    gradients["wide.numeric_weight"] = (numeric.T @ of_logits)[:, None]
    of_layer, gradients[f"tower.matrix_{last}"] = of_logits[:, None], hidden[last].T @ of_logits[:, None]
    for i in reversed(range(last)):
        of_layer = (of_layer @ matrices[i + 1].T) * (hidden[i + 1] > 0)
        gradients |= {f"tower.bias_{i}": of_layer.sum(0), f"tower.matrix_{i}": hidden[i].T @ of_layer}
    ends = np.cumsum([len(block) for block in blocks.values()])
    gradients |= dict(zip(blocks, np.split(gradients["tower.matrix_0"], ends[:-1]), strict=True))
    gradients["tower.numeric_matrix"] = gradients["tower.numeric_matrix"].reshape(matrix.shape)
    of_inputs = of_layer @ matrices[0].T
    of_numeric_inputs, gradients["deep rows"], _ = np.split(of_inputs, [rows.size, rows.size + deep_rows.shape[1]], 1)
    gradients["tower.numeric_rows"] = np.einsum(
        "nf,nfd->fd", numeric, of_numeric_inputs.reshape(len(numeric), *rows.shape)
    )
    return logits, gradients


@given(
    num_numeric=st.integers(0, 3),
    num_categorical=st.integers(1, 4),
    vector_widths=st.lists(st.integers(1, 70), max_size=3),
    embedding_dim=st.integers(1, 9),
    hidden_widths=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    num_rows=st.integers(1, 90),
    seed=st.integers(0, 1000),
)
@example(0, 1, [1, 200], 1, [3], 70, 0)  # weights of the vectors in more than one block of rows
@settings(max_examples=20)
def test_the_model_and_its_gradients_are_the_formula(
    make_parts,
    make_schema,
    tiny_config,
    num_numeric,
    num_categorical,
    vector_widths,
    embedding_dim,
    hidden_widths,
    num_rows,
    seed,
):
    schema, rng = make_schema(num_numeric, num_categorical, vector_widths=vector_widths), np.random.default_rng(seed)
    words = f"model.embedding_dim={embedding_dim}", f"model.hidden_widths={hidden_widths}", "loss.l2_coef=0"
    parts = make_parts("reference", schema, f"train.batch_size={num_rows}", *words)
    for parameter in parts.model.named_parameters().values():
        scale = np.float32(1 / np.sqrt(parameter.shape[0]))
        write_parameter(parameter, scale * rng.standard_normal(parameter.shape, np.float32))
    before = {
        name: parameter.asnumpy().astype(np.float64) for name, parameter in parts.model.named_parameters().items()
    }
    shapes = (num_categorical * embedding_dim,), (), (num_numeric + schema.vector_inputs,)
    rows = [rng.standard_normal((num_rows, *shape), np.float32) for shape in shapes]
    labels, shares = rng.integers(0, 2, num_rows).astype(np.float32), rng.random(num_rows, np.float32) / num_rows
    logits, expected = formula_in_numpy(before, *rows, labels, shares)
    if seed == 0:  # MindSpore's graph is compiled anew for each model, which is slow.
        model = make_model(tiny_config(*words), schema)
        for name, parameter in model.named_parameters().items():
            write_parameter(parameter, before[name].astype(np.float32))
        found = model(*map(Tensor, rows)).asnumpy()
    else:
        found = parts.step._logits(*rows)
    np.testing.assert_allclose(found, logits, atol=1e-5 * np.abs(logits).max())
    step = parts.step.graph
    _, _, finite, deep, wide = step(*rows, labels, shares, np.zeros((len(hidden_widths), 3), np.int32))
    assert finite
    gradients = {name: values / step._loss_scale for name, values in step._gradients.items()}
    gradients |= {"deep rows": deep / step._loss_scale, "wide rows": wide / step._loss_scale}
    # The difference of a click probability from its label is rounded to 6e-8, however small it is.
    rounding = 1e-7 * shares.sum()
    for name, values in gradients.items():
        atol = 1e-5 * np.abs(expected[name]).max() + rounding
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=atol, err_msg=name)


def test_the_first_weights_are_a_function_of_the_seed(cpu, tiny_config, make_schema):
    def weights(*overrides, names=("matrix_0", "numeric_rows", "vector_matrix"), **schema):
        named = make_model(tiny_config(*overrides), make_schema(**schema)).named_parameters()
        return np.concatenate([named[f"tower.{name}"].asnumpy().reshape(-1) for name in names])

    np.testing.assert_array_equal(weights(), weights())
    of_others = weights(names=("matrix_0", "numeric_rows"))
    np.testing.assert_array_equal(weights(names=("matrix_0", "numeric_rows"), vector_widths=()), of_others)
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
    for name, parameter in folded.model.named_parameters().items():
        write_parameter(parameter, arrays[name])
    load_state(folded.step.tables, state.tables, step=1)
    scores = [parts.step.score(batch, parts.step.prepare(batch)) for parts in both_ways]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-6)


def test_cross_entropy_is_the_weighted_sum_of_its_formula(cpu):
    """Logits far from 0 included, where exp overflows; an example of weight 0 counts nothing, whatever it holds."""
    logits = np.array([-200, -3, 0, 0.5, 200, 5], np.float32)
    labels = np.array([0, 1, 1, 0, 0, 1], np.float32)
    weights = np.array([0.2, 0.2, 0.2, 0.2, 0.2, 0], np.float32)
    wide = logits.astype(np.float64)
    expected = (weights * (np.logaddexp(0, wide) - labels * wide)).sum()
    found = cross_entropy(Tensor(logits), Tensor(labels), Tensor(weights)).asnumpy()
    assert found == pytest.approx(expected, rel=1e-6)


def test_l2_loss_halves_the_squared_norm():
    assert l2_loss(6.0, 0.5) == 1.5


@pytest.mark.parametrize("native", [True, False])
def test_all_finite_by_kernel_and_by_operators(cpu, monkeypatch, native):
    if not native:
        monkeypatch.setenv("DENSE_LAYER_LIBRARY", "none")
        monkeypatch.setattr(LIBRARY, "_loaded", None)
    elif not LIBRARY.is_available():
        pytest.skip("the library is not built")
    check = AllFinite(8.0)
    for value, fine in ((1.0, True), (-7.9, True), (8.5, False), (-np.inf, False), (np.nan, False)):
        arrays = variable((np.zeros((3, 4), np.float32), np.full(1, value, np.float32)))
        assert bool(check(arrays, Tensor(True))) == fine, value
        assert not bool(check(arrays, Tensor(False)))
