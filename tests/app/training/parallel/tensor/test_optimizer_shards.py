"""Shards of one rank are the whole optimizer: what is gathered in a step's graph are the weights after the step."""

import numpy as np
import pytest

from app.config.optimizer_settings import AdagradOptions, AdamOptions, AdamWOptions, SgdOptions
from tests.app.model.tensors import variable


@pytest.mark.parametrize("options", [AdamOptions(), AdamWOptions(weight_decay=0.1), AdagradOptions(), SgdOptions()])
def test_one_rank_with_shards_steps_as_the_whole_optimizer(cpu, options):
    from mindspore import Parameter, Tensor
    from mpi4py import MPI

    from app.model.tower_optimizers import make_optimizer
    from app.training.parallel.tensor.optimizer_shards import OptimizerShards, share_of

    rng = np.random.default_rng(1)
    shapes = {"weight": (3, 5), "bias": (5,)}
    first = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    whole, sharded = ({name: Parameter(Tensor(array), name=name) for name, array in first.items()} for _ in range(2))
    optimizer = make_optimizer(whole, options, 4.0)
    shards = OptimizerShards(
        sharded, dict.fromkeys(shapes, MPI.COMM_SELF), lambda weights: make_optimizer(weights, options, 4.0)
    )
    for _ in range(3):
        gradients = [rng.standard_normal(shape).astype(np.float32) for shape in shapes.values()]
        optimizer(variable(gradients))
        shards(variable(share_of(gradient, MPI.COMM_SELF) for gradient in gradients))
        for name, array in first.items():
            stepped = whole[name].asnumpy()
            assert (stepped != array).all()
            np.testing.assert_allclose(sharded[name].asnumpy(), stepped, rtol=1e-6)
