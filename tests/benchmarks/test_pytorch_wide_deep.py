"""The PyTorch peer is the same model: losses and gradients of one step are those of `reference`."""

import copy
import dataclasses
import importlib.util

import numpy as np
import pytest

from app.checkpoint.write import ModelState
from app.tables.interface import DEEP, WIDE, TableState
from app.tables.reference import initial_arrays
from benchmarks.harness.workload import NUM_NUMERIC, make_batches
from tests.app.tables.tables_of_spec import load_model

if importlib.util.find_spec("torch") is None:  # it takes seconds to import: not while tests are collected
    pytest.skip("PyTorch is not installed; `make bench` installs it", allow_module_level=True)

# Sums in another order, forward and backward through three layers; of the gradient's largest element.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def workload():
    from benchmarks.harness.workload import Workload

    return Workload(batch_size=16, vocabulary_size=500, embedding_dim=8, hidden_widths=(32, 16), threads=2)


@pytest.fixture(scope="module")
def parts(cpu, workload):
    from app.training.assemble import assemble
    from benchmarks.training.mindspore_contender import make_config, make_schema

    return assemble(make_config(workload, "reference"), make_schema(workload), "reference")


@pytest.fixture(scope="module")
def initial_dense(parts):
    """Asked for before any step is taken."""
    return parts.state().dense


@pytest.fixture
def start(parts, initial_dense, workload):
    """A state before the first step whose wide weights are not 0, so that the wide part counts."""
    row_ids, rng = np.arange(workload.vocabulary_size), np.random.default_rng(2)
    initial = initial_arrays(parts.step.tables.spec)
    tables = {table: TableState(row_ids, arrays) for table, arrays in initial.items()}
    tables[WIDE].arrays["rows"][:] = rng.normal(0, 0.1, (len(row_ids), 1))
    dense = copy.deepcopy(initial_dense)
    dense["wide.numeric_weight"][:] = rng.normal(0, 0.1, dense["wide.numeric_weight"].shape)
    return ModelState(dense, tables)


@pytest.fixture
def batch(workload):
    """Its ids are none of those that unfolded numeric fields take."""
    made = make_batches(workload)[0]
    return dataclasses.replace(made, ids=NUM_NUMERIC + made.ids % (workload.vocabulary_size - NUM_NUMERIC))


def make_peer(workload, state):
    """The peer at the weights of `state`; unfolded numeric fields take the tables' rows 0 … N-1."""
    import torch

    from benchmarks.peers.pytorch_wide_deep import PyTorchStep

    peer, dense = PyTorchStep(workload), state.dense
    first = dense["tower.matrix_0"]
    with torch.no_grad():
        peer.deep.copy_(torch.from_numpy(state.tables[DEEP].arrays["rows"]))
        peer.wide.copy_(torch.from_numpy(state.tables[WIDE].arrays["rows"]))
        if workload.fold_numeric:
            peer.numeric_weight.copy_(torch.from_numpy(dense["wide.numeric_weight"]))
            peer.tower.numeric_rows.copy_(torch.from_numpy(dense["tower.numeric_rows"]))
            peer.tower.numeric_matrix.copy_(torch.from_numpy(dense["tower.numeric_matrix"]))
        else:
            peer.wide[:NUM_NUMERIC] = torch.from_numpy(dense["wide.numeric_weight"])
            peer.deep[:NUM_NUMERIC] = torch.from_numpy(dense["tower.numeric_rows"])
            first = np.concatenate([dense["tower.numeric_matrix"].reshape(-1, first.shape[1]), first])
        for i, layer in enumerate((*peer.tower.hidden, peer.tower.last)):
            layer.weight.copy_(torch.from_numpy(first.T if i == 0 else dense[f"tower.matrix_{i}"].T))
        for i, layer in enumerate(peer.tower.hidden):
            layer.bias.copy_(torch.from_numpy(dense[f"tower.bias_{i}"]))
    return peer


def take_step(parts, state, batch):
    """The project's step from `state`: its losses and the state after it."""
    load_model(parts, state, 0)
    return parts.step(batch, parts.step.prepare(batch)), parts.state()


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("fold_numeric", [True, False], ids=["folded", "looked up"])
def test_one_step_is_that_of_reference(parts, start, workload, batch, fold_numeric):
    peer = make_peer(dataclasses.replace(workload, fold_numeric=fold_numeric), start)
    loss = peer(batch, peer.prepare(batch))
    losses, after = take_step(parts, start, batch)
    assert loss == pytest.approx(losses.deep_loss, rel=TOLERANCE)

    # A first moment after one step is (1 - beta1) times the gradient, where the weights would show its sign only.
    sparse_adam, _, adam = (optimizer.state for optimizer in peer.optimizers)
    deep = after.tables[DEEP].arrays["first_moment"]
    assert_close(sparse_adam[peer.deep]["exp_avg"].numpy()[NUM_NUMERIC:], deep[NUM_NUMERIC:])
    for i, layer in enumerate(peer.tower.hidden):
        assert_close(adam[layer.bias]["exp_avg"].numpy(), after.dense[f"adam.first_moment.tower.bias_{i}"])
    last = after.dense[f"adam.first_moment.tower.matrix_{len(peer.tower.hidden)}"]
    assert_close(adam[peer.tower.last.weight]["exp_avg"].numpy().T, last)
    numeric_rows = (
        adam[peer.tower.numeric_rows]["exp_avg"] if fold_numeric else sparse_adam[peer.deep]["exp_avg"][:NUM_NUMERIC]
    )
    assert_close(numeric_rows.numpy(), after.dense["adam.first_moment.tower.numeric_rows"])


@pytest.mark.parametrize("fold_numeric", [True, False], ids=["folded", "looked up"])
def test_adagrad_takes_the_steps_of_ftrl_from_0(parts, start, workload, batch, fold_numeric):
    start.tables[WIDE].arrays["rows"][:] = 0
    start.dense["wide.numeric_weight"][:] = 0
    peer = make_peer(dataclasses.replace(workload, fold_numeric=fold_numeric), start)
    peer(batch, peer.prepare(batch))
    _, after = take_step(parts, start, batch)
    assert_close(peer.wide.detach().numpy()[NUM_NUMERIC:], after.tables[WIDE].arrays["rows"][NUM_NUMERIC:])
    numeric = peer.numeric_weight if fold_numeric else peer.wide[:NUM_NUMERIC]
    assert_close(numeric.detach().numpy(), after.dense["wide.numeric_weight"])
    assert_close(peer.bias.detach().numpy(), after.dense["wide.bias"])


def test_whole_tables_follow_adam_with_weight_decay(workload, batch):
    import torch

    from benchmarks.peers.pytorch_wide_deep import PeerSettings, PyTorchStep

    torch.manual_seed(1)
    peer = PyTorchStep(workload, settings=PeerSettings(1e-3, l2_coef=0.1, whole_table=True))
    before = peer.deep.detach().numpy().copy()
    prepared = peer.prepare(batch)
    peer(batch, prepared)
    untouched = np.setdiff1d(np.arange(workload.vocabulary_size), prepared.unique.numpy())
    # Adam's first step is its rate in the gradient's direction, here that of L2 alone: toward 0.
    moved = peer.deep.detach().numpy()[untouched] - before[untouched]
    np.testing.assert_allclose(moved, -1e-3 * np.sign(before[untouched]), rtol=1e-2)
