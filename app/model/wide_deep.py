"""Define the dense part of Wide&Deep, which computes one logit per example from looked-up rows.

    logit = (Σ_f wide row_f + x · w) + tower([deep row_f …, x_f · E_f …, v]) + b

The cells know nothing of tables, hosts, devices or optimizers. `make_model` chooses the cells by a run's settings.

The model gives each of the N numeric fields f a constant row E_f, which it multiplies by the field's number x_f. So the
field's part of the first layer, x_f · E_f · W_f, can be computed as x @ (E_f · W_f). That takes N products per example
and unit instead of N · D, for the same function. The M vector inputs v enter the first layer as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from app.config.config import Config
from app.model.dense_layer import BatchNorm, MatMul, NativeSumRows, NormalizedLayer, dense_layer, distinct_layer
from app.model.dense_state import initial_tower
from data_prep.prepared.schema import Schema


class WideHead(nn.Cell):
    """The dense parameters of the wide part: one weight per numeric field, and the bias b. All start at 0."""

    def __init__(self, num_numeric: int) -> None:
        super().__init__()
        self.num_numeric = num_numeric
        self.matmul = MatMul()
        self.bias = Parameter(Tensor(np.zeros(1, np.float32)), name="bias")
        if num_numeric:
            self.numeric_weight = Parameter(Tensor(np.zeros((num_numeric, 1), np.float32)), name="numeric_weight")

    def construct(self, wide_rows: Tensor, numeric: Tensor) -> Tensor:
        """Return the wide part's logits [B].

        `wide_rows` [B] has, for each batch row, the sum of its fields' wide weights. `numeric` [B, N + M] has the N
        numbers of numeric fields, and then M vector components, which the wide part ignores.
        """
        logit = wide_rows + self.bias
        if self.num_numeric:
            if numeric.shape[1] > self.num_numeric:
                numeric = numeric[:, : self.num_numeric]
            logit = logit + self.matmul(numeric, self.numeric_weight).reshape(-1)
        return logit

    def named_parameters(self) -> dict[str, Parameter]:
        """Return the parameters by name."""
        return {"bias": self.bias} | ({"numeric_weight": self.numeric_weight} if self.num_numeric else {})


class SumRows(nn.Cell):
    """Adds up, for each batch row, the wide table's weights of its fields' values. MindSpore's operators compute the
    sum from the batch's distinct rows.
    """

    def construct(self, wide_rows: Tensor, index: Tensor) -> Tensor:
        """Return the sum of the wide rows of each batch row, [B]. `wide_rows` [U] are the batch's distinct rows.
        `index` int32 [B, C] has, for each batch row and field, the index of its row in `wide_rows`.
        """
        return ops.ReduceSum()(ops.gather(wide_rows, index, 0), 1)


class NumericFields(nn.Cell):
    """The inputs of the first layer that need no table rows: numeric fields and vectors.

    For each numeric field f, the parameters are an embedding row E_f, and the block W_f of the first layer's matrix by
    which this row is multiplied. For the M components of all vectors, there is one block of this matrix, [M, H].
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        """`arrays` are the tower's initial values by the names that `tower_arrays` gives them. If they include no
        values for numeric fields, the model has no numeric fields (N = 0), and likewise for vectors (M = 0).
        """
        super().__init__()
        self.num, self.num_vector = (len(arrays.get(name, ())) for name in ("numeric_rows", "vector_matrix"))
        self.matmul_each = ops.BatchMatMul()  # `ops.matmul` has no gradient for N = D = 1.
        if self.num:
            self.numeric_rows = Parameter(Tensor(arrays["numeric_rows"]), name="numeric_rows")
            self.numeric_matrix = Parameter(Tensor(arrays["numeric_matrix"]), name="numeric_matrix")
        if self.num_vector:
            self.vector_matrix = Parameter(Tensor(arrays["vector_matrix"]), name="vector_matrix")

    def construct(self, numeric: Tensor, ones: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return additional inputs of the first layer, [B, N + M + 1], and their weights, [N + M + 1, H].

        The inputs are the last N + M columns of `numeric` and the column `ones` [B, 1]. The array `numeric` has more
        columns if numeric fields have embedding rows in the tables; then N is 0. The weights of the N numeric inputs
        are the result of `folded`. The weights of the ones are the layer's `bias` [1, H].
        """
        if self.num == 0 and self.num_vector == 0:
            return ones, bias
        weights: tuple[Tensor, ...] = (bias,)
        if self.num_vector:
            weights = (self.vector_matrix, *weights)
        if self.num:
            weights = (self.folded(), *weights)
        columns = self.num + self.num_vector
        if numeric.shape[1] > columns:
            numeric = numeric[:, -columns:]
        return ops.concat((numeric, ones), 1), ops.concat(weights, 0)

    def folded(self) -> Tensor:
        """Return each numeric field's constant row, multiplied by its block of the first layer's matrix: E_f · W_f, [N,
        H].

        N must not be 0.
        """
        # E_f has width D, and the first layer H units. The product does not depend on the examples, so it is computed
        # once per batch.
        return self.matmul_each(self.numeric_rows.expand_dims(1), self.numeric_matrix).squeeze(1)

    def squared_norm(self) -> Tensor:
        """Return Σ‖E_f‖² for the L2 term of the loss. Every example uses these rows, so every batch counts all."""
        if self.num:
            return ops.ReduceSum()(ops.square(self.numeric_rows))
        return Tensor(0.0, ms.float32)

    def named_parameters(self) -> dict[str, Parameter]:
        """Return the parameters of the numeric fields and vectors, by the names that `tower_arrays` gives them."""
        names = ["numeric_rows", "numeric_matrix"] * bool(self.num) + ["vector_matrix"] * bool(self.num_vector)
        return {name: getattr(self, name) for name in names}


class Tower(nn.Cell):
    """The deep part of the model: hidden layers with an activation function, and a last layer.

    The last layer gives one number per example. It has no bias, because the model adds b. In a program that splits the
    tower over ranks, each rank has only a block of each parameter.
    """

    def __init__(
        self,
        numeric_fields: NumericFields,
        arrays: Mapping[str, np.ndarray],
        layers: Sequence[nn.Cell],
        output: nn.Cell,
        distinct_layer: nn.Cell | None = None,
    ) -> None:
        """Make the tower from initial values and cells for its layers.

        `arrays` are the initial values by the names that `tower_arrays` gives them. `layers` are the cells of the
        hidden layers, and `output` is the cell of the last layer, a matrix product. `distinct_layer` computes the first
        layer from a batch's distinct rows. Without it, distinct rows are first copied to all their places in the batch.
        """
        super().__init__()
        self.num_hidden, self.numeric_fields, self.output = len(layers), numeric_fields, output
        matrices, biases = ([name for name in arrays if name.startswith(kind)] for kind in ("matrix_", "bias_"))
        self.matrices = ParameterTuple([Parameter(Tensor(arrays[name]), name=name) for name in matrices])
        self.biases = ParameterTuple([Parameter(Tensor(arrays[name]), name=name) for name in biases])
        self.names = *matrices, *biases
        self.layers = nn.CellList(layers)
        self.batch_norm = bool(self.norms())
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
        """Return the tower's logits [B].

        `deep_rows` is [B, C * D], `numeric` [B, N + M]. With `noise`, int32 [hidden layers of the whole tower, 3],
        units are dropped. In training, `example_weights` [B] are given, and batch normalization weighs rows by them.
        With `index` int32 [B, C], `deep_rows` are distinct rows [U, D], and `fields` tells which rows belong to each
        field, see csrc/distinct_layer.h.
        """
        num_rows = deep_rows.shape[0]
        if index is not None:
            num_rows = index.shape[0]
        ones = ops.ones((num_rows, 1), ms.float32)
        hidden = deep_rows
        if index is not None and self.distinct_layer is None:
            hidden = ops.gather(deep_rows, index.reshape(-1), 0).reshape(num_rows, -1)
        for i in range(self.num_hidden):
            inputs, rows = ones, self.biases[i].expand_dims(0)
            if i == 0:
                inputs, rows = self.numeric_fields(numeric, ones, rows)
            mask = None
            if noise is not None:
                mask = noise[i]
            if i == 0 and index is not None and self.distinct_layer is not None:
                hidden = self.distinct_layer(hidden, self.matrices[0], inputs, rows, index, fields, mask)
            elif self.batch_norm:
                hidden = self.layers[i](hidden, self.matrices[i], inputs, rows, mask, example_weights)
            else:
                hidden = self.layers[i](hidden, self.matrices[i], inputs, rows, mask)
        return self.output(hidden, self.matrices[self.num_hidden]).reshape(-1)

    def norms(self) -> list[BatchNorm]:
        """Return the batch normalization of each hidden layer, or [] if the layers have none."""
        return [layer.norm for layer in self.layers if isinstance(layer, NormalizedLayer)]

    def named_parameters(self) -> dict[str, Parameter]:
        """Return the tower's parameters by the names of `tower_arrays`, then those of batch normalization."""
        parameters = self.numeric_fields.named_parameters()
        parameters |= dict(zip(self.names, [*self.matrices, *self.biases], strict=True))
        for i, norm in enumerate(self.norms()):
            parameters |= {f"norm_scale_{i}": norm.scale, f"norm_shift_{i}": norm.shift}
        return parameters


class WideDeep(nn.Cell):
    """The model outside the embedding tables: the wide head (numeric weights and bias) and the tower (hidden layers).
    Each has its own optimizer.
    """

    def __init__(self, tower: Tower, wide: WideHead, sum_wide: nn.Cell | None = None) -> None:
        """Make the model from its parts. `sum_wide` is a cell that adds up the wide table's weights of each batch row,
        given the batch's distinct rows.
        """
        super().__init__()
        self.wide = wide
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
        """Return the model's logits [B], wide and deep part together.

        `deep_rows` is [B, C * D], `wide_rows` [B], `numeric` [B, N + M]. With `index` [B, C], both kinds of rows are
        the batch's distinct rows, [U, D] and [U], and `index` says which of them each batch row and field looks up. The
        other arguments are those of `Tower.construct`, such as dropout's noise.
        """
        if index is not None:
            wide_rows = self.sum_wide(wide_rows, index)
        return self.wide(wide_rows, numeric) + self.tower(deep_rows, numeric, noise, example_weights, index, fields)

    def named_parameters(self) -> dict[str, Parameter]:
        """Return all parameters by the names that they have in checkpoints. MindSpore's own names are not used, because
        they depend on the cell that contains the model.
        """
        parameters = {f"wide.{name}": parameter for name, parameter in self.wide.named_parameters().items()}
        return parameters | {f"tower.{name}": parameter for name, parameter in self.tower.named_parameters().items()}

    def named_statistics(self) -> dict[str, Parameter]:
        """Return the running statistics of batch normalization by the names that they have in checkpoints."""
        statistics: dict[str, Parameter] = {}
        for i, norm in enumerate(self.tower.norms()):
            statistics |= {f"tower.running_mean_{i}": norm.mean, f"tower.running_variance_{i}": norm.variance}
        return statistics


def make_model(config: Config, schema: Schema, folded: bool = True) -> WideDeep:
    """Make and return the dense part of a run's model, with its initial values.

    If `folded` is True, the embedding rows of numeric fields are parameters of the tower. Otherwise they are looked up
    in the tables, as the rows of categorical fields are.
    """
    model = config.model
    arrays = initial_tower(config, schema, folded)
    is_distinct = model.first_layer == "distinct"
    first = distinct_layer(config.device, model.activation, plain=not model.batch_norm) if is_distinct else None
    numeric_fields = NumericFields(arrays)
    tower = Tower(numeric_fields, arrays, hidden_layers(config, schema), MatMul(), distinct_layer=first)
    return WideDeep(tower, WideHead(numeric_fields.num), None if first is None else NativeSumRows())


def hidden_layers(config: Config, schema: Schema) -> list[nn.Cell]:
    """Make and return a MindSpore cell for each hidden layer of the tower, as the settings and the device require.

    The weights of the layers are parameters of `Tower`, which passes them to the cells. A cell owns only the parameters
    of batch normalization.
    """
    model = config.model
    make_layer = dense_layer(config.device, model.activation, plain=not model.batch_norm)
    # Equal layers get a cell each, because programs that split the tower over ranks need a cell for each layer.
    layers = [make_layer() for _ in model.hidden_widths]
    if model.batch_norm:
        full_rows = config.train.batch_size * schema.splits["train"].counting_share
        norms = [BatchNorm(width, str(i), full_rows) for i, width in enumerate(model.hidden_widths)]
        layers = [NormalizedLayer(layer, norm) for layer, norm in zip(layers, norms, strict=True)]
    return layers
