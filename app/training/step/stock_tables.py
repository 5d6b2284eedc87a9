"""Look up and update the tables with MindSpore's own host operators, in one graph with the tower.

MindSpore's Wide&Deep tutorial does the same, so the backend stock is the baseline for comparisons.

`EmbeddingLookup`, `FusedSparseFtrl` and `FusedSparseLazyAdam` run on the CPU because of the attribute
`primitive_target`, whatever the device target. MindSpore 2.10 announces the removal of the two optimizers. They take
int32 ids and a fixed FTRL rate. `EmbeddingLookup` returns zeros for a bad id and the optimizers silently ignore it, so
ids are checked on the host first.

With `fold_numeric=false`, numeric fields are looked up like all others, as in the tutorial: the numeric field number f
looks up row f and multiplies it by x_f.
"""

from __future__ import annotations

from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from app.config.device import deprecations_silenced
from app.config.optimizer_settings import FtrlOptions, LazyAdamOptions
from app.model.dense_state import write_parameter
from app.tables.checks import check_ids
from app.tables.interface import DEEP, STATE_ARRAYS, TableRates, TablesSpec, TableState, UniqueIds
from app.tables.reference import Arrays, WholeTables, initial_arrays

HOST = "CPU"
MAX_VOCABULARY = 2**31


@dataclass(frozen=True)
class PlacedOps:
    """The four table operators: two lookups and two optimizers. An attribute pins each of them to the host."""

    wide_lookup: ops.Primitive
    deep_lookup: ops.Primitive
    wide_update: ops.Primitive
    deep_update: ops.Primitive


def placed_ops(ftrl: FtrlOptions) -> PlacedOps:
    """Return MindSpore's operators that look up and update the tables, pinned to the host for any device target.

    FTRL's operator takes its learning rate at construction, so the learning rate cannot change later. Raise ValueError
    if this version of MindSpore has one of the operators no longer.
    """
    for name in ("EmbeddingLookup", "FusedSparseFtrl", "FusedSparseLazyAdam"):
        if not hasattr(ops, name):
            raise ValueError(
                f"tables.backend=stock needs mindspore.ops.{name}, which MindSpore {ms.__version__} does not have "
                "(2.10 is the last version that it was tested with); choose tables.backend=native"
            )
    with deprecations_silenced():
        placed = PlacedOps(
            wide_lookup=ops.EmbeddingLookup(),
            deep_lookup=ops.EmbeddingLookup(),
            wide_update=ops.FusedSparseFtrl(lr=ftrl.learning_rate, l1=ftrl.l1, l2=ftrl.l2, lr_power=-0.5),
            deep_update=ops.FusedSparseLazyAdam(),
        )
    for primitive in vars(placed).values():
        primitive.add_prim_attr("primitive_target", HOST)
    return placed


def describe_placement(placed: PlacedOps) -> list[str]:
    """Return a line about each table operator: its role, its name, where it runs, and the attribute that says so."""
    return [
        f"{role}: {primitive.name} on {primitive.attrs['primitive_target']}, "
        f"primitive_target={primitive.attrs['primitive_target']}"
        for role, primitive in vars(placed).items()
    ]


class TableParameters(nn.Cell):
    """Both complete tables and their optimizer states as MindSpore parameters, with the host operators on them."""

    def __init__(self, spec: TablesSpec) -> None:
        super().__init__()
        assert isinstance(spec.wide_optimizer, FtrlOptions)
        assert isinstance(spec.deep_optimizer, LazyAdamOptions)
        for table, arrays in initial_arrays(spec).items():
            for name, array in arrays.items():
                setattr(self, f"{table}_{name}", Parameter(Tensor(array), name=f"{table}.{name}"))
        placed = placed_ops(spec.wide_optimizer)
        self.wide_lookup, self.deep_lookup = placed.wide_lookup, placed.deep_lookup
        self.wide_update, self.deep_update = placed.wide_update, placed.deep_update
        adam = spec.deep_optimizer
        self.betas_and_epsilon = tuple(Tensor(x, ms.float32) for x in (adam.beta1, adam.beta2, adam.epsilon))
        self.no_power = Tensor(0.0, ms.float32)

    def construct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Look up `ids` [B, F]. Return deep rows [B, F, D] and wide rows [B, F, 1]."""
        return self.deep_lookup(self.deep_rows, ids, 0), self.wide_lookup(self.wide_rows, ids, 0)

    def update(self, ids: Tensor, deep_gradients: Tensor, wide_gradients: Tensor, deep_rate: Tensor) -> tuple:
        """Update both tables for `ids` [B * F] with gradients [B * F, D] and [B * F, 1]. Gradients of equal ids are
        summed.

        `deep_rate` includes Adam's bias correction. The operator gets 0 for the powers of beta1 and beta2, which
        switches off its own correction, because its float32 `1 - beta2` would lose four digits in the first steps.
        """
        beta1, beta2, epsilon = self.betas_and_epsilon
        wide = self.wide_update(self.wide_rows, self.wide_accumulator, self.wide_linear, wide_gradients, ids)
        deep = self.deep_update(
            self.deep_rows,
            self.deep_first_moment,
            self.deep_second_moment,
            self.no_power,
            self.no_power,
            deep_rate,
            beta1,
            beta2,
            epsilon,
            deep_gradients,
            ids,
        )
        return wide, deep


@dataclass(frozen=True)
class StockIds(UniqueIds):
    """The ids of a batch in the form that MindSpore's graph of a training step takes.

    `ids` is int32 [B, F]. `first_seen` [B * F, 1] is 1 at the first position of each id in the batch, and otherwise 0.
    """

    ids: np.ndarray
    first_seen: np.ndarray


class StockTables(WholeTables):
    """The wide and the deep table as MindSpore parameters. Lookup and update happen inside `StockGraph`, a step's
    graph.

    `num_looked_up_numeric` is N if numeric fields have embedding rows (`model.fold_numeric=false`), and otherwise 0.
    """

    def __init__(self, spec: TablesSpec, learning_rates: TableRates, num_looked_up_numeric: int = 0) -> None:
        if spec.vocabulary_size >= MAX_VOCABULARY:
            raise ValueError(
                f"tables.backend=stock takes int32 ids: the vocabulary of {spec.vocabulary_size} is above "
                f"{MAX_VOCABULARY - 1}; use tables.backend=native"
            )
        super().__init__(spec)
        self._learning_rates = learning_rates
        self.num_looked_up_numeric = num_looked_up_numeric
        self.parameters = TableParameters(spec)

    def deep_rate(self, step: int) -> float:
        """Return the deep table's learning rate at step number `step`, multiplied by LazyAdam's bias corrections."""
        options = self.spec.deep_optimizer
        assert isinstance(options, LazyAdamOptions)
        return self._learning_rates[DEEP](step) * options.correction(step)

    def unique(self, ids: np.ndarray) -> StockIds:
        """Return the ids of a batch in the form that MindSpore's graph takes.

        `ids` [B, C] are the ids of the categorical fields. The ids of numeric fields are put before them if numeric
        fields have embedding rows. Raise ValueError for a wrong dtype or shape, or for an id outside 0 … V-1.
        """
        numeric_ids = np.broadcast_to(
            np.arange(self.num_looked_up_numeric, dtype=ids.dtype), (len(ids), self.num_looked_up_numeric)
        )
        ids = np.concatenate([numeric_ids, ids], axis=1)
        check_ids(ids, self.spec)
        values, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        first_seen = np.zeros((ids.size, 1), np.float32)
        first_seen[first] = 1
        return StockIds((ids.shape[0], ids.shape[1]), values, inverse.reshape(-1), ids.astype(np.int32), first_seen)

    def copied_rows(self, row_ids: np.ndarray) -> dict[str, TableState]:
        return {
            table: TableState(
                row_ids, {name: parameter.asnumpy()[row_ids] for name, parameter in self._parameters(table).items()}
            )
            for table in STATE_ARRAYS
        }

    def take_arrays(self, arrays: Arrays) -> None:
        for table, by_name in arrays.items():
            for name, parameter in self._parameters(table).items():
                write_parameter(parameter, by_name[name])

    def _parameters(self, table: str) -> dict[str, Parameter]:
        return {name: getattr(self.parameters, f"{table}_{name}") for name in STATE_ARRAYS[table]}
