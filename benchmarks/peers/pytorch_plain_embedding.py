"""The PyTorch peer's step with `nn.Embedding(sparse=True)` as PyTorch users write it: no unique ids made ahead.

    python -m benchmarks.peers.pytorch_plain_embedding pytorch_plain WORKLOAD     (see benchmarks.training.train_step)

The same function as `pytorch_wide_deep`, which makes ids unique ahead and hands coalesced gradients to the optimizers.
Here autograd makes one gradient row a looked-up position, and `coalesce` sorts and sums them.

Letters: B batch, F looked-up fields, D embedding width.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from app.batches import Batch
from benchmarks.harness.contender import serve
from benchmarks.harness.workload import contender_arguments, steps_on_prefetched_batches
from benchmarks.peers.pytorch_wide_deep import Prepared, PyTorchStep


class PlainEmbeddingStep(PyTorchStep):
    """`PyTorchStep` whose lookups and their gradients are `functional.embedding`'s."""

    def prepare(self, batch: Batch) -> Prepared:
        """Tensors of the batch; `inverse` holds the ids themselves, and there are no unique ones."""
        ids, weights = batch.ids, None
        if not self.fold_numeric:
            ids, weights = self.with_numeric(batch)
        inverse = torch.from_numpy(ids.astype(np.int64))
        nothing = torch.empty(0, dtype=torch.int64)
        return Prepared(nothing, inverse, weights, torch.from_numpy(batch.numeric), torch.from_numpy(batch.labels))

    def __call__(self, _: Batch, batch: Prepared) -> float:
        """Update all parameters; return the deep loss."""
        start = time.perf_counter()
        deep_rows = functional.embedding(batch.inverse, self.deep, sparse=True)  # [B, F, D]
        wide_rows = functional.embedding(batch.inverse, self.wide, sparse=True)[:, :, 0]
        if batch.weights is not None:
            deep_rows, wide_rows = deep_rows * batch.weights[:, :, None], wide_rows * batch.weights
        looked_up = time.perf_counter()
        logits = self.logits(deep_rows.flatten(1), wide_rows.sum(dim=1), batch)
        loss = functional.binary_cross_entropy_with_logits(logits, batch.labels) + self.numeric_l2()
        loss.backward()
        computed = time.perf_counter()
        squared_norm = self.add_l2()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.seconds["lookup"] += looked_up - start
        self.seconds["tower"] += computed - looked_up
        self.seconds["update"] += time.perf_counter() - computed
        return float(loss.detach()) + 0.5 * self.l2_coef * float(squared_norm)

    @torch.no_grad()
    def add_l2(self) -> Tensor:
        """Add the L2 term of the batch's unique rows to the deep table's gradient; their squared norm."""
        assert self.deep.grad is not None
        gradient = self.deep.grad.coalesce()
        rows = self.deep.index_select(0, gradient.indices()[0])
        gradient.values().add_(rows, alpha=self.l2_coef)
        self.deep.grad = gradient
        return torch.linalg.vector_norm(rows).square()


def main() -> None:
    """Build the contender and take steps as told."""
    _, workload = contender_arguments(__doc__, ("pytorch_plain",))
    torch.set_num_threads(workload.threads)
    torch.sparse.check_sparse_tensor_invariants.disable()  # its default too, but then it warns
    step = PlainEmbeddingStep(workload)
    serve(steps_on_prefetched_batches(step, step, workload))


if __name__ == "__main__":
    main()
