"""The split tower is the whole tower: one step to 1e-6 of the scale, 20 steps' losses to 1e-5."""

import functools

import numpy as np
import pytest

BATCH, FIELDS, DIM, HIDDEN = 16, 4, 8, (16, 8)


@pytest.fixture(scope="module")
def write_whole_tower(cpu, tmp_path_factory):
    """Make a folder with a tower's parameters, 20 batches, and what one rank makes of them."""
    return functools.cache(lambda num_numeric: make_whole_tower(num_numeric, tmp_path_factory.mktemp("whole_tower")))


def make_whole_tower(num_numeric, folder):
    from app.model.dense_layer import DenseLayer, MatMul
    from app.model.wide_deep import NumericFields, Tower, tower_arrays
    from tests.ranks.programs.tower_ranks import NUM_STEPS, Step, named_parameters, train

    rng = np.random.default_rng(3)
    whole = tower_arrays(FIELDS, num_numeric, DIM, HIDDEN, seed=5, initial_scale=0.3)
    tower = Tower(NumericFields(whole), whole, [DenseLayer() for _ in HIDDEN], MatMul())
    batches = {
        "rows": rng.standard_normal((NUM_STEPS, BATCH, FIELDS * DIM)).astype(np.float32),
        "numeric": rng.standard_normal((NUM_STEPS, BATCH, num_numeric)).astype(np.float32),
        "labels": (rng.random((NUM_STEPS, BATCH)) < 0.4).astype(np.float32),
    }
    losses, row_gradient = train(Step(tower, None), batches, slice(None))
    final = {f"final_{name}": parameter.asnumpy().copy() for name, parameter in named_parameters(tower).items()}
    named = {f"whole_{name}": array for name, array in whole.items()}
    np.savez(folder / "whole.npz", losses=losses, row_gradient=row_gradient, **batches, **named, **final)
    return folder


@pytest.mark.parametrize(
    ("num_ranks", "num_numeric", "cases"),
    [
        (
            2,
            3,
            [
                "1",
                "2",
                "2;optimizer shards",
                "1;matrix_0=((1, 2), (2, 1))",
                "1;matrix_0=((1, 1), (1, 2));matrix_1=((1, 2), (2, 1))",
            ],
        ),
        (
            4,
            3,
            [
                "2;matrix_0=((1, 2), (2, 1));matrix_1=((1, 1), (1, 2))",
                "1;matrix_0=((2, 1), (1, 2));matrix_2=((1, 4), (4, 1))",
            ],
        ),
        (2, 0, ["1;matrix_0=((1, 1), (1, 2));matrix_1=((1, 2), (2, 1))"]),
        (
            8,
            3,
            ["1;matrix_0=((2, 4), (4, 1))", "2;matrix_0=((1, 2), (2, 2));matrix_1=((2, 1), (1, 1));optimizer shards"],
        ),
    ],
)
def test_any_split_gives_the_whole_towers_numbers(write_whole_tower, run_ranks, num_ranks, num_numeric, cases):
    status, printed = run_ranks(num_ranks, "tower_ranks.py", write_whole_tower(num_numeric), *cases, timeout=900)
    assert status == 0, printed
    assert f"equal {len(cases)}" in printed
