#!/usr/bin/env bash
# MindSpore 2.10.0, nn.FTRL on the CPU: the L1 penalty makes positive weights larger. The documented formula is
# w = (sign(z) * l1 - z) / quadratic if |z| > l1, otherwise 0. For z < -l1, which gives a positive weight, the dense
# operator adds l1 instead of subtracting it. The sparse operators SparseApplyFtrl and FusedSparseFtrl of the same release
# agree with the formula on the same weights and gradients, and so does the dense one if l1 is 0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    mindspore==2.10.0 scipy==1.17.1 protobuf==7.36.2 numpy==1.26.4
cd "$work"
cat > program.py <<'PROGRAM'
import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.ops import operations

RATE, ACCUMULATOR = 0.1, 0.1
mindspore.set_context(device_target="CPU")
random = np.random.default_rng(0)
weights, gradients = (random.normal(size=(100, 4)).astype(np.float32) for _ in range(2))


def parameters(*values):
    return [Parameter(Tensor(value.copy()), name=f"p{number}") for number, value in enumerate(values)]


def dense(l1):
    (weight,) = parameters(weights)
    nn.FTRL([weight], initial_accum=ACCUMULATOR, learning_rate=RATE, l1=l1)((Tensor(gradients),))
    return weight.asnumpy()


def sparse(operator, l1):
    weight, accumulator, linear = parameters(weights, np.full_like(weights, ACCUMULATOR), np.zeros_like(weights))
    indices = Tensor(np.arange(len(weights), dtype=np.int32))
    operator(lr=RATE, l1=l1, l2=0.0, lr_power=-0.5)(weight, accumulator, linear, Tensor(gradients), indices)
    return weight.asnumpy()


def formula(l1):
    """Take the documented step in float64. Return the weights, z and the quadratic term."""
    start, gradient = weights.astype(np.float64), gradients.astype(np.float64)
    sum_of_squares = ACCUMULATOR + gradient**2
    z = gradient - (np.sqrt(sum_of_squares) - np.sqrt(ACCUMULATOR)) / RATE * start
    quadratic = np.sqrt(sum_of_squares) / RATE
    return np.where(np.abs(z) > l1, (np.sign(z) * l1 - z) / quadratic, 0.0), z, quadratic


for l1 in (0.0, 0.5):
    right, z, quadratic = formula(l1)
    for name, found in (
        ("nn.FTRL", dense(l1)),
        ("SparseApplyFtrl", sparse(operations.SparseApplyFtrl, l1)),
        ("FusedSparseFtrl", sparse(operations.FusedSparseFtrl, l1)),
    ):
        differs = np.abs(found - right) > 1e-4
        print(f"l1={l1}: {name:16}differs from the formula in {differs.sum()} of {(z < -l1).sum()} positive weights")
        if name == "nn.FTRL" and l1:
            assert np.array_equal(differs, z < -l1)
            assert np.allclose(found[differs], ((l1 - z) / quadratic)[differs], atol=1e-4)
        else:
            assert not differs.any()
    assert (right > 0).sum() == (z < -l1).sum() > 100
PROGRAM
venv/bin/python -W ignore program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
