"""The two stages of the tower as cells, and their losses on a micro-batch.

    first stage: rows ─► first layers ─► hidden, wide logit, label, weight ─── message ──► last stage: layers ─► loss
                 rows' gradients ◄─ the layers once more ◄─── gradient of hidden and wide logit ◄──────────────┘

The first stage keeps only the inputs of a micro-batch: its backward pass recomputes the layers' values.

Letters: n rows of a micro-batch, C fields, N numeric, D width, H width of the message's hidden layer.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from app.config.config import LossOptions
from app.model.batch_norm import BatchNorm
from app.model.dense_layer import MatMul, Total
from app.model.graph import cross_entropy, l2_loss, smoothed
from app.model.wide_deep import Tower, WideDeep

NUM_DATA = 2  # columns at the message's end that are data: label and weight


class Stage(nn.Cell):
    """Base of both stages: some of the hidden layers with their parameters."""

    def __init__(self, tower: Tower, first: int, stop: int) -> None:
        super().__init__()
        self.first, self.num_layers = first, stop - first
        self.layers = nn.CellList([tower.layers[i] for i in range(first, stop)])
        self.biases = ParameterTuple([tower.biases[i] for i in range(first, stop)])

    def hidden(self, i: int, matrix: Parameter, values: Tensor, noise: Tensor | None) -> Tensor:
        """Apply the stage's layer i, which has no numeric inputs."""
        ones = ops.ones((values.shape[0], 1), ms.float32)
        mask = None
        if noise is not None:
            mask = noise[self.first + i]
        return self.layers[i](values, matrix, ones, self.biases[i].expand_dims(0), mask)


class FirstStage(Stage):
    """The wide head and the first layers."""

    def __init__(self, whole: WideDeep, stop: int) -> None:
        tower = whole.tower
        super().__init__(tower, 0, stop)
        self.wide = whole.wide
        self.numeric_fields = tower.numeric_fields
        self.matrices = ParameterTuple([tower.matrices[i] for i in range(stop)])

    def construct(
        self,
        deep_rows: Tensor,
        wide_rows: Tensor,
        numeric: Tensor,
        labels: Tensor,
        example_weights: Tensor,
        noise: Tensor | None,
    ) -> Tensor:
        """-> message [n, H + 3]."""
        ones = ops.ones((deep_rows.shape[0], 1), ms.float32)
        inputs, rows = self.numeric_fields(numeric, ones, self.biases[0].expand_dims(0))
        mask = None
        if noise is not None:
            mask = noise[0]
        hidden = self.layers[0](deep_rows, self.matrices[0], inputs, rows, mask)
        for i in range(1, self.num_layers):
            hidden = self.hidden(i, self.matrices[i], hidden, noise)
        columns = (self.wide(wide_rows, numeric), labels, example_weights)
        return ops.concat((hidden, ops.stack(columns, 1)), 1)


class LastStage(Stage):
    """The layers after the first stage."""

    def __init__(self, whole: WideDeep, first: int) -> None:
        tower = whole.tower
        super().__init__(tower, first, len(tower.layers))
        self.matrices = ParameterTuple([tower.matrices[i] for i in range(first, len(tower.layers) + 1)])
        self.matmul = MatMul()

    def construct(self, message: Tensor, noise: Tensor | None) -> Tensor:
        """Message [n, H + 3] -> logits [n]."""
        width = message.shape[1] - 1 - NUM_DATA
        values = message[:, :width]
        for i in range(self.num_layers):
            values = self.hidden(i, self.matrices[i], values, noise)
        return self.matmul(values, self.matrices[self.num_layers]).reshape(-1) + message[:, width]


class FirstLoss(nn.Cell):
    """Σ message · its gradient, plus this micro-batch's L2 term: its gradient is that of the first stage."""

    def __init__(self, stage: FirstStage, options: LossOptions, drops: bool) -> None:
        super().__init__()
        self.stage, self.drops, self.total = stage, drops, Total()
        self.l2_coef, self.loss_scale = options.l2_coef, options.loss_scale

    def construct(
        self,
        deep_rows: Tensor,
        wide_rows: Tensor,
        numeric: Tensor,
        labels: Tensor,
        example_weights: Tensor,
        noise: Tensor,
        gradient: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`gradient` [n, H + 1] -> that sum, and the deep and wide loss that this stage adds."""
        masks = None
        if self.drops:
            masks = noise
        message = self.stage(deep_rows, wide_rows, numeric, labels, example_weights, masks)
        l2 = l2_loss(self.stage.numeric_fields.squared_norm(), self.l2_coef)
        product = self.total(message[:, : gradient.shape[1]] * gradient)
        return product + l2 * self.loss_scale, l2, Tensor(0.0, ms.float32)


class LastLoss(nn.Cell):
    """The scaled loss of a micro-batch from its message."""

    def __init__(self, stage: LastStage, options: LossOptions, drops: bool) -> None:
        super().__init__()
        self.stage, self.drops = stage, drops
        self.loss_scale, self.label_smoothing = options.loss_scale, options.label_smoothing

    def construct(self, message: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """-> scaled loss, deep loss, wide loss."""
        masks = None
        if self.drops:
            masks = noise
        width = message.shape[1] - NUM_DATA
        labels, weights = ops.stop_gradient(message[:, width]), ops.stop_gradient(message[:, width + 1])
        if self.label_smoothing:
            labels = smoothed(labels, self.label_smoothing)
        loss = cross_entropy(self.stage(message, masks), labels, weights)
        return loss * self.loss_scale, loss, loss


class GivenSquaredNorm(nn.Cell):
    """`app.model.tower_optimizers.SquaredNorm` over both stages: a parameter that is written before each step."""

    def __init__(self) -> None:
        super().__init__()
        self.value = Parameter(Tensor(np.zeros(1, np.float32)), name="squared_norm", requires_grad=False)

    def construct(self, gradients: tuple[Tensor, ...]) -> Tensor:
        """-> [1]."""
        return self.value


class NoWideHead(nn.Cell):
    """Placeholder for the wide head on the last stage."""

    def __init__(self, num_numeric: int) -> None:
        super().__init__()
        self.num_numeric = num_numeric


class StageModel:
    """This rank's stage with the interface of `WideDeep`; parameters have the whole model's names."""

    def __init__(self, stage: FirstStage | LastStage, named: dict[str, Parameter], num_numeric: int) -> None:
        self.tower = StageTower(stage)
        self.wide = stage.wide if isinstance(stage, FirstStage) else NoWideHead(num_numeric)
        self._named = named

    def named_parameters(self) -> dict[str, Parameter]:
        return self._named

    def named_statistics(self) -> dict[str, Parameter]:
        """Return none: a pipeline has no batch normalization."""
        return {}


class StageTower:
    """This rank's stage with the interface of `Tower`."""

    def __init__(self, stage: FirstStage | LastStage) -> None:
        self.stage = stage

    def norms(self) -> list[BatchNorm]:
        """Return none: a pipeline has no batch normalization."""
        return []
