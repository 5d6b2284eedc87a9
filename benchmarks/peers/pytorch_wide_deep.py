"""The same Wide&Deep step in PyTorch: same model, losses, batches and ids.

Written to be as fast as PyTorch's own parts allow, without kernels of our own:

- NumPy makes unique ids ahead, beside the step before. torch.unique takes six times as long.
- Each unique row is looked up once and then expanded. So autograd sums the gradients of a row, and the optimizer gets a
  sparse gradient that is coalesced already. `nn.Embedding(sparse=True)` leaves 416,000 rows for SparseAdam to sort and
  sum.
- The L2 term's gradient is added to the unique rows' gradient.
- Unfolded numeric fields weigh their rows inside `embedding_bag`, without a pass of their own.
- SparseAdam trains the deep table, fused Adam the tower. Autocast is around the tower only.

The contender matmuls_pytorch multiplies the tower's matrices alone, in the step's precision and in memory allocated
before. MindSpore multiplies bfloat16 on a CPU only with AMX; PyTorch does with AVX512_BF16 too.

PyTorch has no FTRL. Adagrad stands for it: without l1 and l2, FTRL takes Adagrad's steps. There is no
finite check.

Letters: B batch, F looked-up fields, N numeric fields, D embedding width, U unique ids, H width of a layer.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from app.config.config import LossOptions, ModelOptions
from app.config.optimizer_settings import AdamOptions, FtrlOptions
from benchmarks.harness.contender import Parts
from benchmarks.harness.workload import NUM_NUMERIC, Workload, steps_on_prefetched_batches, tower_widths
from benchmarks.training.kernels import NUM_FIELDS
from data_prep.prepared.batches import Batch


class Tower(nn.Module):
    """The tower of `app.model.wide_deep` in PyTorch.

    With `num_numeric`, numeric fields are folded into its first layer.
    """

    def __init__(self, num_fields: int, num_numeric: int, embedding_dim: int, hidden_widths: tuple[int, ...]) -> None:
        super().__init__()
        widths = (num_fields * embedding_dim, *hidden_widths)
        self.hidden = nn.ModuleList(
            nn.Linear(inputs, outputs) for inputs, outputs in zip(widths, hidden_widths, strict=False)
        )
        self.last = nn.Linear(hidden_widths[-1], 1, bias=False)
        self.num_numeric = num_numeric
        if num_numeric:
            self.numeric_rows = nn.Parameter(torch.empty(num_numeric, embedding_dim).uniform_(-0.01, 0.01))
            matrix = torch.empty(num_numeric, embedding_dim, hidden_widths[0])
            self.numeric_matrix = nn.Parameter(matrix.uniform_(-0.04, 0.04))

    def forward(self, deep_rows: Tensor, numeric: Tensor) -> Tensor:
        """Return the logits [B] for `deep_rows` [B, F * D] and `numeric` [B, N]."""
        hidden = self.hidden[0](deep_rows)
        if self.num_numeric:
            folded = torch.bmm(self.numeric_rows[:, None], self.numeric_matrix)[:, 0]  # [N, H]
            hidden = hidden + numeric @ folded
        for layer in self.hidden[1:]:
            hidden = layer(functional.relu(hidden))
        logits: Tensor = self.last(functional.relu(hidden))
        return logits[:, 0]


@dataclass(frozen=True)
class PeerSettings:
    """Tuned settings of the peer. The defaults are the project's own.

    `whole_table` trains both tables by `torch.optim.Adam` over all rows with weight decay (what BARS's Wide&Deep does),
    instead of SparseAdam and Adagrad. `wide_l2_coef` is the wide table's decay then.
    """

    learning_rate: float = AdamOptions().learning_rate
    l2_coef: float = LossOptions().l2_coef
    wide_learning_rate: float = FtrlOptions().learning_rate
    wide_initial_accumulator: float = FtrlOptions().initial_accumulator
    whole_table: bool = False
    wide_l2_coef: float = 0.0
    # True computes Adam in one kernel. None is PyTorch's default, one operator after the other.
    fused: bool | None = True


@dataclass(frozen=True)
class Prepared:
    """A batch in the form that the step takes.

    `unique` [U] are its distinct ids and `inverse` [B, F] their indices, int64. `weights` [B, F] are given if numeric
    fields are not folded.
    """

    unique: Tensor
    inverse: Tensor
    weights: Tensor | None
    numeric: Tensor
    labels: Tensor


class PyTorchStep:
    """A training step of Wide&Deep in PyTorch, with its tables, its tower and their optimizers."""

    def __init__(
        self,
        workload: Workload,
        num_fields: int = NUM_FIELDS,
        num_numeric: int = NUM_NUMERIC,
        settings: PeerSettings | None = None,
    ) -> None:
        self.settings = settings or PeerSettings()
        self.l2_coef = self.settings.l2_coef
        self.fold_numeric = workload.fold_numeric
        self.bfloat16 = workload.precision == "bfloat16"
        num_folded = num_numeric if workload.fold_numeric else 0
        scale = ModelOptions().initial_row_scale
        self.deep = nn.Parameter(torch.empty(workload.vocabulary_size, workload.embedding_dim).uniform_(-scale, scale))
        self.wide = nn.Parameter(torch.zeros(workload.vocabulary_size, 1))
        self.bias, self.numeric_weight = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(num_folded, 1))
        num_looked_up = num_fields + num_numeric - num_folded
        self.tower = Tower(num_looked_up, num_folded, workload.embedding_dim, workload.hidden_widths)
        self.optimizers = self._make_optimizers()
        self.seconds = {"lookup": 0.0, "tower": 0.0, "update": 0.0}

    def _make_optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        settings, wide_head = self.settings, [self.bias, self.numeric_weight]
        rate, betas, epsilon = settings.learning_rate, (AdamOptions().beta1, AdamOptions().beta2), AdamOptions().epsilon
        tower = torch.optim.Adam(self.tower.parameters(), rate, betas, epsilon, fused=settings.fused)
        if settings.whole_table:
            tables = [
                {"params": [self.deep], "weight_decay": settings.l2_coef},
                {"params": [self.wide], "weight_decay": settings.wide_l2_coef},
                {"params": wide_head},
            ]
            return torch.optim.Adam(tables, rate, betas, epsilon, fused=settings.fused), tower
        adagrad = torch.optim.Adagrad(
            [self.wide, *wide_head],
            settings.wide_learning_rate,
            initial_accumulator_value=settings.wide_initial_accumulator,
        )
        return torch.optim.SparseAdam([self.deep], rate, betas, epsilon), adagrad, tower

    @staticmethod
    def with_numeric(batch: Batch) -> tuple[np.ndarray, Tensor]:
        """Return ids and weights, both [B, F], of a batch whose numeric fields are looked up like the other fields."""
        num_rows, num_numeric = batch.numeric.shape
        numeric_ids = np.broadcast_to(np.arange(num_numeric, dtype=batch.ids.dtype), (num_rows, num_numeric))
        weights = np.concatenate([batch.numeric, np.ones(batch.ids.shape, np.float32)], axis=1)
        return np.concatenate([numeric_ids, batch.ids], axis=1), torch.from_numpy(weights)

    def prepare(self, batch: Batch, will_change: bool = False) -> Prepared:
        ids, weights = batch.ids, None
        if not self.fold_numeric:
            ids, weights = self.with_numeric(batch)
        unique, inverse = np.unique(ids, return_inverse=True)
        return Prepared(
            torch.from_numpy(unique.astype(np.int64)),
            torch.from_numpy(inverse.reshape(ids.shape)),
            weights,
            torch.from_numpy(batch.numeric),
            torch.from_numpy(batch.labels),
        )

    def __call__(self, _: Batch, batch: Prepared) -> float:
        start = time.perf_counter()
        deep_rows = self.deep.detach().index_select(0, batch.unique).requires_grad_()
        wide_rows = self.wide.detach().index_select(0, batch.unique).requires_grad_()
        deep, wide = self.expand(deep_rows, wide_rows, batch)
        looked_up = time.perf_counter()
        loss = functional.binary_cross_entropy_with_logits(self.logits(deep, wide, batch), batch.labels)
        loss = loss + self.numeric_l2()
        loss.backward()
        computed = time.perf_counter()
        with torch.no_grad():
            squared_norm = torch.linalg.vector_norm(deep_rows).square()
            if not self.settings.whole_table:
                deep_rows.grad.add_(deep_rows, alpha=self.l2_coef)
        self.deep.grad = self.table_gradient(batch.unique, deep_rows.grad, self.deep)
        self.wide.grad = self.table_gradient(batch.unique, wide_rows.grad, self.wide)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.seconds["lookup"] += looked_up - start
        self.seconds["tower"] += computed - looked_up
        self.seconds["update"] += time.perf_counter() - computed
        return float(loss.detach()) + 0.5 * self.l2_coef * float(squared_norm)

    @torch.no_grad()
    def score(self, batch: Prepared) -> np.ndarray:
        deep, wide = self.expand(
            self.deep.index_select(0, batch.unique), self.wide.index_select(0, batch.unique), batch
        )
        return np.asarray(self.logits(deep, wide, batch).numpy())

    def table_gradient(self, unique: Tensor, gradient: Tensor, table: Tensor) -> Tensor:
        """Return the gradient of a whole table, given the gradient of its rows `unique`, whose ids ascend."""
        if self.settings.whole_table:
            return torch.zeros_like(table).index_copy_(0, unique, gradient)
        return torch.sparse_coo_tensor(unique[None], gradient, table.shape, is_coalesced=True, check_invariants=False)

    def expand(self, deep_rows: Tensor, wide_rows: Tensor, batch: Prepared) -> tuple[Tensor, Tensor]:
        """Return the rows of the batch, given its unique deep rows [U, D] and wide rows [U, 1].

        The deep rows are [B, F * D]. The wide rows are summed over the fields, [B].
        """
        num_rows = len(batch.inverse)
        wide = functional.embedding_bag(batch.inverse, wide_rows, mode="sum", per_sample_weights=batch.weights)
        if batch.weights is None:
            deep = deep_rows.index_select(0, batch.inverse.view(-1))
        else:
            bags = batch.inverse.view(-1, 1)  # one row each
            weights = batch.weights.view(-1, 1)
            deep = functional.embedding_bag(bags, deep_rows, mode="sum", per_sample_weights=weights)
        return deep.view(num_rows, -1), wide.view(-1)

    def logits(self, deep: Tensor, wide: Tensor, batch: Prepared) -> Tensor:
        """Return the logits [B] of a batch in float32. Only the tower computes in bfloat16."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            tower = self.tower(deep, batch.numeric)
        wide = wide + self.bias
        if self.fold_numeric:
            wide = wide + (batch.numeric @ self.numeric_weight)[:, 0]
        return wide + tower.float()

    def numeric_l2(self) -> Tensor | float:
        """Return the L2 term of the numeric fields' rows if they are folded, else 0.

        Rows that are not folded are among the unique rows, whose L2 term is added elsewhere.
        """
        if self.fold_numeric:
            return 0.5 * self.l2_coef * self.tower.numeric_rows.square().sum()
        return 0.0


def make_products(workload: Workload) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return (left, right, result) of the three matrix products of each layer: y = x W, dx = dy Wᵀ and dW = xᵀ dy."""
    dtype = torch.bfloat16 if workload.precision == "bfloat16" else torch.float32
    widths = tower_widths(workload)
    activations = [torch.rand(workload.batch_size, width, dtype=dtype) for width in widths]
    products = []
    for inputs, outputs in itertools.pairwise(activations):
        matrix = torch.rand(inputs.shape[1], outputs.shape[1], dtype=dtype)
        for left, right in ((inputs, matrix), (outputs, matrix.T), (inputs.T, outputs)):
            products.append((left, right, torch.empty(left.shape[0], right.shape[1], dtype=dtype)))
    return products


def matmul_steps(workload: Workload) -> Callable[[int], Parts]:
    """Return a function that computes only the tower's forward and backward matrix products, `count` times."""
    products = make_products(workload)

    def take_steps(count: int) -> Parts:
        for _ in range(count):
            for left, right, result in products:
                torch.mm(left, right, out=result)
        return {}

    return take_steps


def use_threads(count: int) -> None:
    torch.set_num_threads(count)
    # These checks are off by default too, but PyTorch warns if this is not said.
    torch.sparse.check_sparse_tensor_invariants.disable()


def contender(kind: str, workload: Workload) -> Callable[[int], Parts]:
    """Return a function that takes `count` steps: those of pytorch, or only the products of matmuls_pytorch."""
    use_threads(workload.threads)
    if kind == "matmuls_pytorch":
        return matmul_steps(workload)
    step = PyTorchStep(workload)
    return steps_on_prefetched_batches(step, step, workload)
