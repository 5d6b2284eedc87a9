"""The two stages of the tower as cells, and their losses on a micro-batch.

    first stage: rows ─► first layers ─► hidden, wide logit, label, weight ─── message ──► last stage: layers ─► loss
                 rows' gradients ◄─ the layers once more ◄─── gradient of hidden and wide logit ◄──────────────┘

The first stage keeps only the inputs of a micro-batch: its backward pass recomputes the layers' values.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from app.config.config import LossOptions
from app.model.dense_layer import Total
from app.model.graph import cross_entropy, l2_loss, smoothed
from app.model.wide_deep import Tower, WideDeep, WideHead

NUM_DATA = 2  # columns at the message's end that are data: label and weight


class FirstStage(nn.Cell):
    """The wide head and the first layers. Only a tower that `drops` units reads `noise`."""

    def __init__(self, wide: WideHead, tower: Tower, drops: bool) -> None:
        super().__init__()
        self.wide, self.tower, self.drops = wide, tower, drops

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
        masks = None
        if self.drops:
            masks = noise
        columns = (self.wide(wide_rows, numeric), labels, example_weights)
        return ops.concat((self.tower(deep_rows, numeric, masks), ops.stack(columns, 1)), 1)


class LastStage(nn.Cell):
    """The layers after the first stage. Their model has no wide head. `drops` as in `FirstStage`."""

    def __init__(self, model: WideDeep, drops: bool) -> None:
        super().__init__()
        self.model, self.drops = model, drops

    def construct(self, message: Tensor, noise: Tensor | None) -> Tensor:
        """Message [n, H + 3] -> logits [n]."""
        masks = None
        if self.drops:
            masks = noise
        width = message.shape[1] - 1 - NUM_DATA
        return self.model(message[:, :width], message[:, width], message, masks)


class FirstLoss(nn.Cell):
    """Σ message · its gradient, plus this micro-batch's L2 term: its gradient is that of the first stage."""

    def __init__(self, stage: FirstStage, options: LossOptions) -> None:
        super().__init__()
        self.stage, self.total = stage, Total()
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
        message = self.stage(deep_rows, wide_rows, numeric, labels, example_weights, noise)
        l2 = l2_loss(self.stage.tower.numeric_fields.squared_norm(), self.l2_coef)
        product = self.total(message[:, : gradient.shape[1]] * gradient)
        return product + l2 * self.loss_scale, l2, Tensor(0.0, ms.float32)


class LastLoss(nn.Cell):
    """The scaled loss of a micro-batch from its message."""

    def __init__(self, stage: LastStage, options: LossOptions) -> None:
        super().__init__()
        self.stage = stage
        self.loss_scale, self.label_smoothing = options.loss_scale, options.label_smoothing

    def construct(self, message: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """-> scaled loss, deep loss, wide loss."""
        width = message.shape[1] - NUM_DATA
        labels, weights = ops.stop_gradient(message[:, width]), ops.stop_gradient(message[:, width + 1])
        if self.label_smoothing:
            labels = smoothed(labels, self.label_smoothing)
        loss = cross_entropy(self.stage(message, noise), labels, weights)
        return loss * self.loss_scale, loss, loss


class GivenSquaredNorm(nn.Cell):
    """`app.model.tower_optimizers.SquaredNorm` over both stages: a parameter that is written before each step."""

    def __init__(self) -> None:
        super().__init__()
        self.value = Parameter(Tensor(np.zeros(1, np.float32)), name="squared_norm", requires_grad=False)

    def construct(self, gradients: tuple[Tensor, ...]) -> Tensor:
        """-> [1]."""
        return self.value
