"""The dense part of Wide&Deep: looked-up rows in, one logit an example out.

    logit = (Σ_f wide row_f + x · w) + tower([deep row_f …, x_f · E_f …]) + b

It knows nothing of tables, hosts, devices or optimizers. The N numeric fields belong to it: field f
looks up nothing but the constant row E_f, so its share of the first layer, x_f · E_f · W_f, is computed as
x @ (E_f · W_f): N products an example instead of N · D, the same function.

Letters: B batch, C looked-up fields, N numeric fields, D embedding width, H width of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from app.model.batch_norm import BatchNorm, NormalizedLayer
from app.model.dense_layer import DenseLayer, MatMul
from app.model.recompute import Recomputed
from app.tables.initial import initial_rows


class WideHead(nn.Cell):
    """The wide part's dense share: one weight a numeric field, and the bias b. All start at 0."""

    def __init__(self, num_numeric: int) -> None:
        super().__init__()
        self.num_numeric = num_numeric
        self.matmul = MatMul()
        self.bias = Parameter(Tensor(np.zeros(1, np.float32)), name="bias")
        if num_numeric:
            self.numeric_weight = Parameter(Tensor(np.zeros((num_numeric, 1), np.float32)), name="numeric_weight")

    def construct(self, wide_rows: Tensor, numeric: Tensor) -> Tensor:
        """`wide_rows` [B] (summed over fields), `numeric` [B, N] -> [B]."""
        logit = wide_rows + self.bias
        if self.num_numeric:
            logit = logit + self.matmul(numeric, self.numeric_weight).reshape(-1)
        return logit


class SumRows(nn.Cell):
    """The sum of each batch row's wide rows, from MindSpore's operators."""

    def construct(self, wide_rows: Tensor, index: Tensor) -> Tensor:
        """`wide_rows` [U], `index` int32 [B, C] -> [B]."""
        return ops.ReduceSum()(ops.gather(wide_rows, index, 0), 1)


class NumericFields(nn.Cell):
    """The constant rows E_f of the N numeric fields, and their part of the first layer's matrix."""

    def __init__(self, rows: np.ndarray, matrix: np.ndarray) -> None:
        """Initial values: `rows` [N, D], `matrix` [N, D, H]; N may be 0, then there are no parameters."""
        super().__init__()
        self.num = len(rows)
        self.matmul_each = ops.BatchMatMul()  # `ops.matmul` has no gradient for N = D = 1
        if self.num:
            self.numeric_rows = Parameter(Tensor(rows), name="numeric_rows")
            self.numeric_matrix = Parameter(Tensor(matrix), name="numeric_matrix")

    def construct(self, numeric: Tensor, ones: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first layer's inputs for numeric fields and bias, [B, N + 1], and their rows [N + 1, H].

        The bias [1, H] counts as one more numeric field, which is always 1: `ones` [B, 1].
        """
        if self.num == 0:
            return ones, bias
        return ops.concat((numeric, ones), 1), ops.concat((self.folded(), bias), 0)

    def folded(self) -> Tensor:
        """Return each field's share of the first layer, E_f · W_f, [N, H]; N is not 0."""
        # [N, 1, D] x [N, D, H], once a batch and not once an example
        return self.matmul_each(self.numeric_rows.expand_dims(1), self.numeric_matrix).squeeze(1)

    def squared_norm(self) -> Tensor:
        """Return Σ‖E_f‖²: the fields' rows are rows of every batch, so they share its L2 term."""
        if self.num:
            return ops.ReduceSum()(ops.square(self.numeric_rows))
        return Tensor(0.0, ms.float32)

    def named_parameters(self) -> dict[str, Parameter]:
        """Return the parameters by their names in `WideDeep.named_parameters`."""
        if self.num == 0:
            return {}
        return {"tower.numeric_rows": self.numeric_rows, "tower.numeric_matrix": self.numeric_matrix}


class Tower(nn.Cell):
    """Dense layers with an activation between; the last gives one number an example and has no bias (b is that)."""

    def __init__(
        self,
        num_fields: int,
        num_numeric: int,
        embedding_dim: int,
        hidden_widths: tuple[int, ...],
        seed: int,
        initial_scale: float,
        make_layer: Callable[[], nn.Cell] = DenseLayer,
        batch_norm: bool = False,
        recompute: Sequence[tuple[int, int]] = (),
        distinct_layer: nn.Cell | None = None,
        as_graph: bool = True,
    ) -> None:
        """`recompute`: runs of hidden layers, (first, after the last), whose values the backward pass recomputes.

        `distinct_layer` is the first layer on distinct rows; without it they are copied to their positions before.
        Unless `as_graph`, `app.model.native_tower` may run the layers.
        """
        super().__init__()
        self.as_graph = as_graph
        self.matmul = MatMul()
        widths = ((num_numeric + num_fields) * embedding_dim, *hidden_widths, 1)
        matrices = [_initial_matrix(seed, i, widths[i], widths[i + 1]) for i in range(len(widths) - 1)]
        numeric_part, matrices[0] = np.split(matrices[0], [num_numeric * embedding_dim])
        numeric_rows = initial_rows(seed, np.arange(num_numeric), embedding_dim, initial_scale)
        numeric_matrix = numeric_part.reshape(num_numeric, embedding_dim, widths[1])
        self.numeric_fields = NumericFields(numeric_rows, numeric_matrix)
        self.matrices = ParameterTuple(
            [Parameter(Tensor(matrix), name=f"matrix_{i}") for i, matrix in enumerate(matrices)]
        )
        self.biases = ParameterTuple(
            [Parameter(Tensor(np.zeros(width, np.float32)), name=f"bias_{i}") for i, width in enumerate(hidden_widths)]
        )
        self.num_hidden = len(hidden_widths)
        self.batch_norm = batch_norm
        layers = [make_layer() for _ in hidden_widths]  # parallel modes need a cell for each
        if batch_norm:
            layers = [NormalizedLayer(layers[i], width, str(i)) for i, width in enumerate(hidden_widths)]
        self.layers = nn.CellList(layers)
        self.recomputed = nn.CellList([Recomputed(layers[first:stop]) for first, stop in recompute])
        self.steps = _steps(self.num_hidden, recompute)
        self.distinct_layer = distinct_layer

    def construct(
        self,
        deep_rows: Tensor,
        numeric: Tensor,
        noise: Tensor | None = None,
        example_weights: Tensor | None = None,
        index: Tensor | None = None,
        fields: Tensor | None = None,
    ) -> Tensor:
        """`deep_rows` [B, C * D], `numeric` [B, N] -> [B]; with `noise` int32 [hidden layers, 3] units are dropped.

        In training batch normalization weighs rows by `example_weights` [B]. With `index` int32 [B, C] `deep_rows` are
        distinct rows [U, D], and `fields` says where those of each field are, as in csrc/distinct_layer.h.
        """
        num_rows = deep_rows.shape[0]
        if index is not None:
            num_rows = index.shape[0]
        ones = ops.ones((num_rows, 1), ms.float32)
        inputs, rows = self.numeric_fields(numeric, ones, self.biases[0].expand_dims(0))
        hidden, mask = deep_rows, None
        if noise is not None:
            mask = noise[0]
        if index is not None and self.distinct_layer is None:
            hidden = ops.gather(deep_rows, index.reshape(-1), 0).reshape(num_rows, -1)
        for first, stop, number in self.steps:
            if first > 0:
                inputs, rows = ones, self.biases[first].expand_dims(0)
            if first == 0 and index is not None and self.distinct_layer is not None:
                hidden = self.distinct_layer(hidden, self.matrices[0], inputs, rows, index, fields, mask)
            elif number < 0:
                hidden = self.hidden(first, hidden, inputs, rows, noise, example_weights)
            else:
                hidden = self.hidden_again(number, first, stop, hidden, inputs, rows, noise)
        return self.matmul(hidden, self.matrices[self.num_hidden]).reshape(-1)

    def hidden(
        self,
        i: int,
        values: Tensor,
        inputs: Tensor,
        rows: Tensor,
        noise: Tensor | None,
        example_weights: Tensor | None,
    ) -> Tensor:
        """Apply hidden layer i."""
        mask = None
        if noise is not None:
            mask = noise[i]
        if self.batch_norm:
            return self.layers[i](values, self.matrices[i], inputs, rows, mask, example_weights)
        return self.layers[i](values, self.matrices[i], inputs, rows, mask)

    def hidden_again(
        self, number: int, first: int, stop: int, values: Tensor, inputs: Tensor, rows: Tensor, noise: Tensor | None
    ) -> Tensor:
        """Apply the hidden layers from `first` to `stop` - 1, whose values are not kept."""
        weights: tuple[Tensor, ...] = (self.matrices[first], rows)
        for i in range(first + 1, stop):
            weights = (*weights, self.matrices[i], self.biases[i].expand_dims(0))
        masks = None
        if noise is not None:
            masks = noise[first:stop]
        return self.recomputed[number](values, inputs, weights, masks)

    def norms(self) -> list[BatchNorm]:
        """Return the normalizations of the hidden layers."""
        return [layer.norm for layer in self.layers] if self.batch_norm else []

    def numeric_rows_squared_norm(self) -> Tensor:
        return self.numeric_fields.squared_norm()


class WideDeep(nn.Cell):
    """Wide head and tower; the two groups follow different optimizers."""

    def __init__(self, tower: Tower, sum_wide: nn.Cell | None = None) -> None:
        """`sum_wide` sums distinct wide rows over the fields of each batch row."""
        super().__init__()
        self.wide = WideHead(tower.numeric_fields.num)
        self.tower = tower
        self.sum_wide = sum_wide or SumRows()

    def construct(
        self,
        deep_rows: Tensor,
        wide_rows: Tensor,
        numeric: Tensor,
        noise: Tensor | None = None,
        example_weights: Tensor | None = None,
        index: Tensor | None = None,
        fields: Tensor | None = None,
    ) -> Tensor:
        """`deep_rows` [B, C * D], `wide_rows` [B], `numeric` [B, N] -> logits [B]; for the others see `Tower`.

        With `index` both are distinct rows, [U, D] and [U].
        """
        if index is not None:
            wide_rows = self.sum_wide(wide_rows, index)
        return self.wide(wide_rows, numeric) + self.tower(deep_rows, numeric, noise, example_weights, index, fields)

    def named_parameters(self) -> dict[str, Parameter]:
        """Return all parameters by names of our own: MindSpore's depend on the cell around them."""
        wide, tower = self.wide, self.tower
        named = {"wide.bias": wide.bias}
        if wide.num_numeric:
            named["wide.numeric_weight"] = wide.numeric_weight
        named |= tower.numeric_fields.named_parameters()
        named |= {f"tower.matrix_{i}": matrix for i, matrix in enumerate(tower.matrices)}
        named |= {f"tower.bias_{i}": bias for i, bias in enumerate(tower.biases)}
        for i, norm in enumerate(tower.norms()):
            named |= {f"tower.norm_scale_{i}": norm.scale, f"tower.norm_shift_{i}": norm.shift}
        return named

    def named_statistics(self) -> dict[str, Parameter]:
        """Return the running statistics of batch normalization by names of our own."""
        named: dict[str, Parameter] = {}
        for i, norm in enumerate(self.tower.norms()):
            named |= {f"tower.running_mean_{i}": norm.mean, f"tower.running_variance_{i}": norm.variance}
        return named


def _steps(num_hidden: int, runs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Return the hidden layers in order: first, after the last, and the number of their recomputed run, or -1."""
    inside = {i for first, stop in runs for i in range(first, stop)}
    steps = [(i, i + 1, -1) for i in range(num_hidden) if i not in inside]
    return tuple(sorted(steps + [(first, stop, number) for number, (first, stop) in enumerate(runs)]))


def _initial_matrix(seed: int, layer: int, fan_in: int, fan_out: int) -> np.ndarray:
    """[fan_in, fan_out] float32, uniform in ±sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio, 2010)."""
    limit = np.sqrt(6.0 / (fan_in + fan_out))
    generator = np.random.default_rng([seed % 2**63, layer])
    return generator.uniform(-limit, limit, (fan_in, fan_out)).astype(np.float32)
