"""The operators of the stock tables on the host, each in a graph of its own.

Gradients [B * C, D] or [B * C, 1] and ids [B * C] are those of all positions: the operators sum those of the same id.
"""

from __future__ import annotations

from mindspore import Tensor, nn

from app.training.step.stock_step import TableParameters


class StockOperator(nn.Cell):
    """One of MindSpore's operators on tables, in a graph of its own, as it is timed."""

    def __init__(self, tables: TableParameters) -> None:
        super().__init__()
        self.tables = tables


class StockLookup(StockOperator):
    """The operator `EmbeddingLookup`, which looks up rows [B * C, D] for ids [B * C]."""

    def construct(self, ids: Tensor) -> Tensor:
        return self.tables.deep_lookup(self.tables.deep_rows, ids, 0)


class StockLazyAdam(StockOperator):
    """The operator `FusedSparseLazyAdam`, without L2 and without a check that gradients are finite."""

    def construct(self, gradients: Tensor, ids: Tensor, rate: Tensor) -> tuple:
        tables, power = self.tables, self.tables.no_power
        beta1, beta2, epsilon = tables.betas_and_epsilon
        state = tables.deep_rows, tables.deep_first_moment, tables.deep_second_moment
        return tables.deep_update(*state, power, power, rate, beta1, beta2, epsilon, gradients, ids)


class StockFtrl(StockOperator):
    """`FusedSparseFtrl`."""

    def construct(self, gradients: Tensor, ids: Tensor) -> tuple:
        tables = self.tables
        return tables.wide_update(tables.wide_rows, tables.wide_accumulator, tables.wide_linear, gradients, ids)
