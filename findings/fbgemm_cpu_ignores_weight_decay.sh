#!/usr/bin/env bash
# fbgemm-gpu-cpu 1.8.0: embedding tables on the CPU ignore weight_decay and max_norm without an error or a warning. The
# documentation says that EXACT_ROWWISE_ADAGRAD supports L2 and decoupled weight decay. On the CPU the weights after
# three steps are bit for bit the same with and without decay, and those of row-wise Adagrad without decay in float64.
# L2 decay should have changed them by up to 0.07. The options eps and gradient_clipping do have an effect.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 fbgemm-gpu-cpu==1.8.0 numpy==2.4.6
cd "$work"
cat > program.py <<'PROGRAM'
import warnings

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
    WeightDecayMode,
)

RATE, DECAY, STEPS = 0.1, 0.5, 3
start = np.arange(12, dtype=np.float32).reshape(3, 4)
factors = np.array([1.0, 2.0, 3.0, 4.0])  # The gradient of each row.


def by_fbgemm(**options):
    options = {"eps": 1e-8} | options
    where = EmbeddingLocation.HOST, ComputeDevice.CPU
    optimizer = EmbOptimType.EXACT_ROWWISE_ADAGRAD
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(*start.shape, *where)], optimizer=optimizer, learning_rate=RATE, **options
    )
    (weights,) = table.split_embedding_weights()
    weights.data.copy_(torch.from_numpy(start))
    for _ in range(STEPS):
        (table(torch.arange(3), torch.arange(4)) * torch.from_numpy(factors)).sum().backward()
    return weights.detach().numpy()


def by_formula(decay):
    """Take the steps of row-wise Adagrad in float64, with L2 weight decay."""
    weights, squares = start.astype(np.float64), np.zeros((3, 1))
    for _ in range(STEPS):
        gradient = factors + decay * weights
        squares += (gradient**2).mean(1, keepdims=True)
        weights -= RATE * gradient / (np.sqrt(squares) + 1e-8)
    return weights


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    plain = by_fbgemm()
    found = {
        "L2 decay": by_fbgemm(weight_decay=DECAY, weight_decay_mode=WeightDecayMode.L2),
        "decoupled decay": by_fbgemm(weight_decay=DECAY, weight_decay_mode=WeightDecayMode.DECOUPLE),
        "max_norm": by_fbgemm(max_norm=1.0),
    }
others = by_fbgemm(eps=1.0), by_fbgemm(gradient_clipping=True, max_gradient=0.5)
for name, weights in found.items():
    print(f"{name:16}largest change {np.abs(weights - plain).max()}, norms of rows {np.linalg.norm(weights, axis=1)}")
    assert np.array_equal(weights, plain) and np.linalg.norm(weights, axis=1).max() > 1
should = np.abs(by_formula(DECAY) - by_formula(0.0)).max()
print(f"row-wise Adagrad in float64: largest change by L2 decay {should:.3f}; warnings: {len(caught)}")
assert np.allclose(plain, by_formula(0.0), atol=1e-5) and should > 0.05 and not caught
assert not any(np.allclose(each, plain, atol=1e-3) for each in others)
PROGRAM
venv/bin/python program.py 2> errors.txt || { cat errors.txt >&2; exit 1; }
