"""MindSpore's stock host operators, each in a graph of its own, called as its Wide&Deep tutorial calls them."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.tables.initial import initial_rows
from app.tables.interface import TablesSpec


def on_host(primitive: ops.Primitive) -> ops.Primitive:
    """`primitive` placed on the CPU, whatever the device target."""
    primitive.add_prim_attr("primitive_target", "CPU")
    return primitive


def _initial_deep(spec: TablesSpec) -> Parameter:
    rows = initial_rows(spec.seed, np.arange(spec.vocabulary_size), spec.embedding_dim, spec.initial_scale)
    return Parameter(Tensor(rows), name="rows")


def _constant(shape: tuple[int, int], value: float, name: str) -> Parameter:
    return Parameter(Tensor(np.full(shape, value, np.float32)), name=name)


class StockLookup(nn.Cell):
    """`EmbeddingLookup`: ids [B * C] -> rows [B * C, D]."""

    def __init__(self, spec: TablesSpec) -> None:
        super().__init__()
        self.rows = _initial_deep(spec)
        self.lookup = on_host(ops.EmbeddingLookup())

    def construct(self, ids: Tensor) -> Tensor:
        return self.lookup(self.rows, ids, 0)


class StockLazyAdam(nn.Cell):
    """`FusedSparseLazyAdam` of gradients [B * C, D] and ids [B * C], without L2 or a check for finite gradients."""

    def __init__(self, spec: TablesSpec) -> None:
        super().__init__()
        shape, options = (spec.vocabulary_size, spec.embedding_dim), spec.deep_optimizer
        assert isinstance(options, LazyAdamOptions)
        self.rows = _initial_deep(spec)
        self.first_moment = _constant(shape, 0, "first_moment")
        self.second_moment = _constant(shape, 0, "second_moment")
        self.update = on_host(ops.FusedSparseLazyAdam())
        self.powers = (Tensor(options.beta1, ms.float32), Tensor(options.beta2, ms.float32))
        settings = (options.learning_rate, options.beta1, options.beta2, options.epsilon)
        self.settings = tuple(Tensor(value, ms.float32) for value in settings)

    def construct(self, gradients: Tensor, ids: Tensor) -> tuple:
        rate, beta1, beta2, epsilon = self.settings
        power1, power2 = self.powers
        return self.update(
            self.rows,
            self.first_moment,
            self.second_moment,
            power1,
            power2,
            rate,
            beta1,
            beta2,
            epsilon,
            gradients,
            ids,
        )


class StockFtrl(nn.Cell):
    """`FusedSparseFtrl`: gradients [B * C, 1], ids [B * C]."""

    def __init__(self, spec: TablesSpec) -> None:
        super().__init__()
        shape, options = (spec.vocabulary_size, 1), spec.wide_optimizer
        assert isinstance(options, FtrlOptions)
        self.rows = _constant(shape, 0, "rows")
        self.accumulator = _constant(shape, options.initial_accumulator, "accumulator")
        self.linear = _constant(shape, 0, "linear")
        self.update = on_host(
            ops.FusedSparseFtrl(lr=options.learning_rate, l1=options.l1, l2=options.l2, lr_power=-0.5)
        )

    def construct(self, gradients: Tensor, ids: Tensor) -> tuple:
        return self.update(self.rows, self.accumulator, self.linear, gradients, ids)
