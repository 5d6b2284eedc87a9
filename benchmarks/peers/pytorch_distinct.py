"""PyTorch's step with the first layer by distinct rows: each multiplied once, by mm, index_select and index_add.

    python -m benchmarks.peers.pytorch_distinct pytorch_distinct WORKLOAD    (see benchmarks.training.train_step)

All else is `pytorch_wide_deep`. Autograd makes the backward pass, in which a gather's gradient is an index_add.

Letters: B batch, F fields, D width of a row, H of the first layer, U distinct rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.harness.contender import serve
from benchmarks.harness.workload import (
    Workload,
    contender_arguments,
    field_starts,
    steps_on_prefetched_batches,
)
from benchmarks.peers.pytorch_wide_deep import Prepared, PyTorchStep, Tower


class DistinctTower(Tower):
    """`Tower` on distinct rows; `starts` [F + 1] are the fields' first ids, which ascend."""

    def first_layer(self, deep_rows: Tensor, batch: Prepared, starts: Tensor) -> Tensor:
        """`deep_rows` [U, D], in the order of ids -> the first layer's sums [B, H]."""
        ends = torch.searchsorted(batch.unique, starts).tolist()
        weights = self.hidden[0].weight.t().split(deep_rows.shape[1])
        hidden = self.hidden[0].bias
        for f, weight in enumerate(weights):
            products = deep_rows[ends[f] : ends[f + 1]] @ weight
            hidden = hidden + products.index_select(0, batch.inverse[:, f] - ends[f])
        return hidden

    def upper_layers(self, hidden: Tensor, numeric: Tensor) -> Tensor:
        """The first layer's sums and `numeric` [B, N] -> [B]."""
        hidden = hidden + numeric @ torch.bmm(self.numeric_rows[:, None], self.numeric_matrix)[:, 0]
        for layer in self.hidden[1:]:
            hidden = layer(functional.relu(hidden))
        logits: Tensor = self.last(functional.relu(hidden))
        return logits[:, 0]


class DistinctStep(PyTorchStep):
    """`PyTorchStep` whose rows stay distinct up to the first layer."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.tower.__class__ = DistinctTower
        self.starts = torch.from_numpy(field_starts().astype(np.int64))

    def expand(self, deep_rows: Tensor, wide_rows: Tensor, batch: Prepared) -> tuple[Tensor, Tensor]:
        """Leave the deep rows as they are."""
        return deep_rows, functional.embedding_bag(batch.inverse, wide_rows, mode="sum").view(-1)

    def logits(self, deep: Tensor, wide: Tensor, batch: Prepared) -> Tensor:
        """Logits [B] float32; only the tower computes in bfloat16."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            hidden = self.tower.first_layer(deep, batch, self.starts)
            tower = self.tower.upper_layers(hidden, batch.numeric)
        return wide + self.bias + (batch.numeric @ self.numeric_weight)[:, 0] + tower.float()


def main() -> None:
    """Build the contender and take steps as told."""
    _, workload = contender_arguments(__doc__, ("pytorch_distinct",))
    torch.set_num_threads(workload.threads)
    torch.sparse.check_sparse_tensor_invariants.disable()  # its default too, but then it warns
    step = DistinctStep(workload)
    serve(steps_on_prefetched_batches(step, step, workload))


if __name__ == "__main__":
    main()
