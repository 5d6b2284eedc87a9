"""The Wide&Deep step of `pytorch_wide_deep`, with the deep table in FBGEMM's table-batched embeddings.

`SplitTableBatchedEmbeddingBagsCodegen` sums the gradients of a row and takes the step of row-wise Adagrad in one call,
inside the backward pass. It keeps one number of state for each row, as this project's `rowwise_adagrad` does. It has no
L2 term on the distinct rows of a batch, so the L2 term of the table is left out.

All fields share one table, because their ids have one range. Each field is a feature whose bags have one id.

Letters: B batch, C categorical fields, D embedding width.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    BoundsCheckMode,
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor
from torch.nn import functional

from app.config.config import ModelOptions
from app.config.optimizer_settings import RowwiseAdagradOptions
from benchmarks.harness.workload import NUM_NUMERIC, Workload
from benchmarks.peers.pytorch_wide_deep import PeerSettings, Prepared, PyTorchStep
from benchmarks.training.kernels import NUM_FIELDS
from data_prep.prepared.batches import Batch


@dataclass(frozen=True)
class FbgemmPrepared(Prepared):
    """A batch in the form that the step takes. It also has the ids field by field [C * B] and the start of each bag."""

    by_field: Tensor
    offsets: Tensor


class FbgemmStep(PyTorchStep):
    """A training step of Wide&Deep whose deep table is FBGEMM's. Numeric fields are folded into the first layer."""

    def __init__(
        self,
        workload: Workload,
        num_fields: int = NUM_FIELDS,
        num_numeric: int = NUM_NUMERIC,
        settings: PeerSettings | None = None,
    ) -> None:
        settings = settings or PeerSettings()
        super().__init__(workload, num_fields, num_numeric, replace(settings, whole_table=False))
        self.optimizers = self.optimizers[1:]  # FBGEMM takes the place of SparseAdam.
        del self.deep
        self.table: Any = SplitTableBatchedEmbeddingBagsCodegen(
            [(workload.vocabulary_size, workload.embedding_dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            feature_table_map=[0] * num_fields,
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=settings.learning_rate,
            eps=RowwiseAdagradOptions().epsilon,
            device=torch.device("cpu"),
            bounds_check_mode=BoundsCheckMode.NONE,  # This project checks its ids in the thread that reads ahead.
        )
        scale = ModelOptions().initial_row_scale
        self.table.init_embedding_weights_uniform(-scale, scale)

    def prepare(self, batch: Batch, will_change: bool = False) -> FbgemmPrepared:
        by_field = torch.from_numpy(batch.ids).T.reshape(-1).long()
        return FbgemmPrepared(
            **vars(super().prepare(batch)), by_field=by_field, offsets=torch.arange(batch.ids.size + 1)
        )

    def __call__(self, _: Batch, batch: FbgemmPrepared) -> float:  # type: ignore[override]
        start = time.perf_counter()
        pooled = self.table(batch.by_field, batch.offsets)  # [B, C * D]
        deep = pooled.detach().requires_grad_()
        wide_rows = self.wide.detach().index_select(0, batch.unique).requires_grad_()
        wide = functional.embedding_bag(batch.inverse, wide_rows, mode="sum").view(-1)
        looked_up = time.perf_counter()
        loss = functional.binary_cross_entropy_with_logits(self.logits(deep, wide, batch), batch.labels)
        loss = loss + self.numeric_l2()
        loss.backward()
        computed = time.perf_counter()
        pooled.backward(deep.grad)
        self.wide.grad = self.table_gradient(batch.unique, wide_rows.grad, self.wide)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.seconds["lookup"] += looked_up - start
        self.seconds["tower"] += computed - looked_up
        self.seconds["update"] += time.perf_counter() - computed
        return float(loss.detach())
