"""Define the MindSpore graph of a training step: forward and backward pass, a check that all values are finite, and
the dense optimizers.

The inputs of each graph are those of `LossCell.construct`. Only models with dropout use the input `noise`, which is a
result of `app.model.dense_state.DropoutNoise.of_step`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from app.config.config import LossOptions
from app.model import dense_layer
from app.model.dense_layer import Total
from app.model.native_tower import HostGraph, l2_loss
from app.model.tower_optimizers import DenseOptimizers
from app.model.wide_deep import WideDeep
from app.tables.checks import LARGEST_GRADIENT


def scalars(deep_loss: Tensor, wide_loss: Tensor, finite: Tensor) -> Tensor:
    """Return [3] float32: deep loss, wide loss, and 1 if a value is not finite, else 0. Several ranks (processes) add
    up the arrays that they get.
    """
    bad = 1.0 - finite.astype(ms.float32)
    return ops.concat((deep_loss.reshape(1), wide_loss.reshape(1), bad.reshape(1)))


class AllFinite(nn.Cell):
    """Checks that all values of some arrays are finite and smaller in absolute value than `limit`, a power of 2."""

    def __init__(self, limit: float = math.inf) -> None:
        super().__init__()
        self.native, self.limit = dense_layer.all_finite(), Tensor([limit], ms.float32)
        # In float32, this factor times a value of at least `limit` is infinite, and then a sum is not finite. `Total`
        # sums by a product with a vector of this factor in place of ones, so the comparison with `limit` takes no extra
        # time.
        self.total = Total(1.0 if limit == math.inf else 2.0**128 / limit)

    def construct(self, arrays: tuple[Tensor, ...], finite: Tensor) -> Tensor:
        """Return a bool scalar: True if `finite` is True and all values of `arrays` pass the check.

        The arrays are floats of any shapes. `finite` is the result of earlier checks.
        """
        if self.native is not None:
            return ops.logical_and(finite, self.native(self.limit, *arrays)[0] > 0.0)
        for values in arrays:
            # The sum of an array is finite only if each of its values is.
            finite = ops.logical_and(finite, ops.isfinite(self.total(values)))
        return finite


class LossCell(nn.Cell):
    """Computes the two losses of a batch, and the loss to differentiate, which is the deep loss times the loss scale.

    The deep loss includes the L2 term of the numeric fields' rows, which are parameters of the tower. The host adds the
    L2 term of the embedding tables' rows later.
    """

    def __init__(self, model: WideDeep, options: LossOptions, drops: bool) -> None:
        super().__init__()
        self.model = model
        self.drops, self.normalizes = drops, model.tower.batch_norm
        self.label_smoothing = options.label_smoothing
        self.l2_coef = options.l2_coef
        self.loss_scale = options.loss_scale

    def construct(
        self,
        deep_rows: Tensor,
        wide_rows: Tensor,
        numeric: Tensor,
        labels: Tensor,
        example_weights: Tensor,
        noise: Tensor,
        index: Tensor | None = None,
        fields: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss to differentiate, the deep loss and the wide loss, as scalars.

        With `index`, `deep_rows` [U, D] and `wide_rows` [U] are the batch's distinct rows, and `index` [B, C] says
        which of them each batch row and field looks up.
        """
        masks, rows_that_count = None, None
        if self.drops:
            masks = noise
        if self.normalizes:
            rows_that_count = example_weights
        logits = self.model(deep_rows, wide_rows, numeric, masks, rows_that_count, index, fields)
        if self.label_smoothing:
            labels = smoothed(labels, self.label_smoothing)
        wide_loss = cross_entropy(logits, labels, example_weights)
        deep_loss = wide_loss + l2_loss(self.model.tower.numeric_fields.squared_norm(), self.l2_coef)
        return deep_loss * self.loss_scale, deep_loss, wide_loss


class ForwardBackward(nn.Cell):
    """Computes the gradients of a loss with respect to deep rows, wide rows and parameters, and whether all values are
    finite.
    """

    def __init__(self, loss: nn.Cell, parameters: Iterable[Parameter]) -> None:
        """`loss` takes the deep rows and the wide rows as its first two arguments. It returns three scalars: the loss
        to differentiate, the deep loss, and the wide loss.
        """
        super().__init__()
        self.parameters = ParameterTuple(parameters)
        self.gradient = ms.value_and_grad(loss, (0, 1), weights=self.parameters, has_aux=True)
        self.all_finite, self.all_in_bounds = AllFinite(), AllFinite(float(LARGEST_GRADIENT))

    def construct(self, *inputs: Tensor) -> tuple:
        """Return the losses (deep, wide), a flag that all values are finite, the gradients of deep and wide rows, and
        the gradients of the parameters.

        The flag also covers the parameters themselves. All gradients are multiplied by the loss scale.
        """
        (scaled, deep_loss, wide_loss), (of_rows, of_parameters) = self.gradient(*inputs)
        finite = self.all_finite(of_parameters + self.parameters, ops.isfinite(scaled))
        finite = self.all_in_bounds(of_rows, finite)
        return (deep_loss, wide_loss), finite, of_rows, of_parameters


class DeviceGraph(nn.Cell):
    """A MindSpore graph of everything in a training step but the tables: forward pass, backward pass and dense
    optimizers.
    """

    def __init__(self, forward_backward: ForwardBackward, optimizers: DenseOptimizers) -> None:
        super().__init__()
        self.forward_backward = forward_backward
        self.optimizers = optimizers

    def construct(self, *inputs: Tensor) -> tuple:
        """Return deep loss, wide loss, the finite flag, and the gradients of the deep and the wide rows.

        If a value is not finite, the flag is False and no parameter is updated. Gradients are multiplied by the loss
        scale.
        """
        (deep_loss, wide_loss), finite, row_gradients, dense_gradients = self.forward_backward(*inputs)
        if finite:
            deep_loss = ops.depend(deep_loss, self.optimizers(dense_gradients))
        return deep_loss, wide_loss, finite, row_gradients[0], row_gradients[1]


class OnDevice(HostGraph):
    """A `HostGraph` that copies NumPy arrays to the device, runs `cell` there, and copies the outputs back.

    `cell` is a MindSpore cell, or a callable such as `SummedGraph` that runs cells and sums their gradients over the
    ranks (processes).
    """

    def __init__(self, cell: Callable[..., Any]) -> None:
        self.cell = cell

    def __call__(self, *arrays: np.ndarray, **named: np.ndarray) -> Any:
        tensors = {name: Tensor.from_numpy(values) for name, values in named.items()}
        outputs = self.cell(*map(Tensor.from_numpy, arrays), **tensors)
        return tuple(output.asnumpy() for output in outputs) if isinstance(outputs, tuple) else outputs.asnumpy()


class Gradients(nn.Cell):
    """A MindSpore graph with the forward and the backward pass only. Ranks (processes) then sum the dense gradients
    outside the graph.
    """

    def __init__(self, gradient: ForwardBackward) -> None:
        super().__init__()
        self.gradient = gradient

    def construct(self, *inputs: Tensor) -> tuple:
        """Return the gradients of deep and wide rows, the result of `scalars` [3], and the gradient of each parameter.

        The gradients of rows belong to this rank's batch. The caller sums the other results over the ranks.
        """
        (deep_loss, wide_loss), finite, of_rows, of_parameters = self.gradient(*inputs)
        return (*of_rows, scalars(deep_loss, wide_loss, finite), *of_parameters)


class Optimizers(nn.Cell):
    """A MindSpore graph with the dense optimizers only, for gradients that ranks (processes) have summed outside the
    graph.
    """

    def __init__(self, optimizers: DenseOptimizers) -> None:
        super().__init__()
        self.optimizers = optimizers

    def construct(self, *gradients: Tensor) -> Tensor:
        """Update the parameters. `gradients` are those of all dense parameters, multiplied by the loss scale.

        Return a value that is available once the update has finished.
        """
        return ops.depend(gradients[0].reshape(-1)[:1], self.optimizers(gradients))


def cross_entropy(logits: Tensor, labels: Tensor, example_weights: Tensor) -> Tensor:
    """Return Σ weight · binary cross-entropy over the examples of a batch. All arguments are [B].

    `example_weights` are the result of `data_prep.prepared.batches.Batch.shares`: the weight of a row divided by the
    number of rows of the batch on all ranks and by the mean weight of the training rows. Rows that pad a short batch
    have weight 0.
    """
    return ops.binary_cross_entropy_with_logits(logits, labels, example_weights, ops.ones_like(logits), reduction="sum")


def smoothed(labels: Tensor, label_smoothing: float) -> Tensor:
    """Return the `labels` moved toward ½ by s = `label_smoothing`: (1 - s) · label + s / 2 (Szegedy et al., 2016)."""
    return labels * (1 - label_smoothing) + 0.5 * label_smoothing
