"""The FBGEMM peer trains its table by row-wise Adagrad, as this project defines it."""

import importlib.util

import numpy as np
import pytest

from app.config.optimizer_settings import RowwiseAdagradOptions
from benchmarks.harness.workload import Workload, make_batches

if any(importlib.util.find_spec(package) is None for package in ("torch", "fbgemm_gpu")):
    pytest.skip("FBGEMM is not installed; `make bench` installs it", allow_module_level=True)


def test_fbgemm_takes_rowwise_adagrad_steps():
    import torch

    from benchmarks.peers.fbgemm_wide_deep import FbgemmStep

    workload = Workload(batch_size=16, vocabulary_size=50, embedding_dim=8, hidden_widths=(32, 16), threads=1)
    step, batch = FbgemmStep(workload), make_batches(workload)[0]
    before = step.table.split_embedding_weights()[0].clone()
    prepared, ids = step.prepare(batch), torch.from_numpy(batch.ids).long()

    rows = before.clone().requires_grad_()
    logits = step.logits(rows[ids].flatten(1), torch.zeros(len(ids)), prepared)
    torch.nn.functional.binary_cross_entropy_with_logits(logits, prepared.labels).backward()
    step(batch, prepared)

    root = rows.grad.square().mean(1, keepdim=True).sqrt()
    expected = before - step.settings.learning_rate * rows.grad / (root + RowwiseAdagradOptions().epsilon)
    after = step.table.split_embedding_weights()[0]
    assert not torch.equal(after, before)
    np.testing.assert_allclose(after.detach().numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-7)
