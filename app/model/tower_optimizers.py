"""Define the optimizers of the dense parameters: one for the wide head, one for the tower.

Adam is MindSpore's. Its epsilon is added to the root of the second moment without bias correction, as in TensorFlow.
The other optimizers are composed of MindSpore's operators. All gradients are passed in multiplied by the loss scale.
"""

from __future__ import annotations

import sys

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from app.config.config import Config
from app.config.optimizer_settings import (
    AdagradOptions,
    AdamOptions,
    AdamWOptions,
    FtrlOptions,
    SgdOptions,
    TowerOptimizer,
    WideOptimizer,
)
from app.model import dense_layer
from app.model.dense_layer import Total
from app.model.dense_state import CLIP_EPSILON, AdamState, FtrlState, MeansState, OptimizerStates, State, by_name
from app.model.wide_deep import WideDeep
from app.tables.optimizers import LEAST_FTRL_RATE, MEAN, RunningMean

# The functions `ops.assign` and `ops.scatter_update` do the same, but MindSpore 2.10 announces their removal.
ASSIGN, SCATTER_UPDATE = ops.Assign(), ops.ScatterUpdate()


class Ftrl(FtrlState, nn.Cell):
    """FTRL for dense parameters, with the formula of `app.tables.optimizers.ftrl_step`."""

    def __init__(self, weights: State, options: FtrlOptions, loss_scale: float) -> None:
        nn.Cell.__init__(self)
        self.names, self.options, self.loss_scale = tuple(weights), options, loss_scale
        self.l1, self.l2 = options.l1, options.l2
        self.weights = ParameterTuple(weights.values())
        self.accumulators = _filled("accumulator", weights, options.initial_accumulator)
        self.linear = _filled("linear", weights, 0.0)
        self.places = tuple(Tensor(np.arange(weight.shape[0], dtype=np.int32)) for weight in weights.values())
        self.learning_rate = _rate(options.learning_rate)

    def construct(self, gradients: tuple[Tensor, ...]) -> object:
        """Take one FTRL step on all weights. `gradients` has one array for each weight array, in the same order.

        If the learning rate is below `LEAST_FTRL_RATE`, nothing changes.
        """
        updates: tuple = ()
        moves = self.learning_rate >= LEAST_FTRL_RATE
        rate = ops.maximum(self.learning_rate, LEAST_FTRL_RATE)
        for i, weight in enumerate(self.weights):
            gradient = gradients[i] / self.loss_scale
            accumulator = self.accumulators[i] + gradient * gradient
            root = ops.sqrt(accumulator)
            linear = self.linear[i] + gradient - (root - ops.sqrt(self.accumulators[i])) / rate * weight
            shrunk = (ops.sign(linear) * self.l1 - linear) / (root / rate + 2 * self.l2)
            new = ops.select(ops.abs(linear) > self.l1, shrunk, ops.zeros_like(shrunk))
            # `ASSIGN` cannot be used instead: in one graph with `EmbeddingLookup`, which the backend `stock` has,
            # it crashes MindSpore 2.10's compiler.
            updates += (
                SCATTER_UPDATE(
                    self.accumulators[i], self.places[i], ops.select(moves, accumulator, self.accumulators[i])
                ),
                SCATTER_UPDATE(self.linear[i], self.places[i], ops.select(moves, linear, self.linear[i])),
                SCATTER_UPDATE(weight, self.places[i], ops.select(moves, new, weight)),
            )
        return updates


# Used in place of a decay rate of 0, which MindSpore's Adam does not accept. It becomes 0 in float32.
ALMOST_0 = sys.float_info.min


class Adam(AdamState, nn.Cell):
    """MindSpore's Adam, or its C++ equivalent. For AdamW, weights are first multiplied by 1 - learning_rate ·
    weight_decay.
    """

    def __init__(self, weights: State, options: AdamOptions | AdamWOptions, loss_scale: float) -> None:
        nn.Cell.__init__(self)
        self.names, self.name = tuple(weights), options.name
        self.weight_decay = options.weight_decay if isinstance(options, AdamWOptions) else 0.0
        self.optimizer = nn.Adam(
            list(weights.values()),
            learning_rate=options.learning_rate,
            beta1=options.beta1 or ALMOST_0,
            beta2=options.beta2 or ALMOST_0,
            eps=options.epsilon,
            loss_scale=loss_scale,
        )
        self.learning_rate = self.optimizer.learning_rate
        self.weights = ParameterTuple(weights.values())
        self.powers = ParameterTuple([self.optimizer.beta1_power, self.optimizer.beta2_power])
        self.moments = ParameterTuple([*self.optimizer.moment1, *self.optimizer.moment2])
        self.native = dense_layer.dense_adam()
        constants = (options.beta1, options.beta2, options.epsilon, 1 / loss_scale, self.weight_decay)
        self.constants = Tensor(np.array(constants, np.float32))

    def construct(self, gradients: tuple[Tensor, ...]) -> object:
        if self.native is not None:
            return self.native(
                self.constants, self.learning_rate, *self.powers, *self.weights, *self.moments, *gradients
            )
        if self.weight_decay:
            keep = 1 - self.learning_rate * self.weight_decay
            for weight in self.weights:
                gradients = ops.depend(gradients, ASSIGN(weight, weight * keep))
        return self.optimizer(gradients)


class Adagrad(nn.Cell):
    """Adagrad as in `torch.optim.Adagrad`: accumulator += g², weight -= rate · g / (√accumulator + epsilon)."""

    def __init__(self, weights: State, options: AdagradOptions, loss_scale: float) -> None:
        super().__init__()
        self.names, self.loss_scale, self.epsilon = tuple(weights), loss_scale, options.epsilon
        self.weights = ParameterTuple(weights.values())
        self.accumulators = _filled("accumulator", weights, options.initial_accumulator)
        self.learning_rate = _rate(options.learning_rate)

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple:
        updates: tuple = ()
        for i, weight in enumerate(self.weights):
            gradient = gradients[i] / self.loss_scale
            accumulator = self.accumulators[i] + gradient * gradient
            new = weight - self.learning_rate * gradient / (ops.sqrt(accumulator) + self.epsilon)
            updates += (ASSIGN(self.accumulators[i], accumulator), ASSIGN(weight, new))
        return updates

    def named_state(self) -> State:
        return by_name("adagrad.accumulator", self.names, self.accumulators)


class Sgd(nn.Cell):
    """Stochastic gradient descent without momentum."""

    def __init__(self, weights: State, options: SgdOptions, loss_scale: float) -> None:
        super().__init__()
        self.loss_scale = loss_scale
        self.weights = ParameterTuple(weights.values())
        self.learning_rate = _rate(options.learning_rate)

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple:
        updates: tuple = ()
        for i, weight in enumerate(self.weights):
            new = weight - self.learning_rate * gradients[i] / self.loss_scale
            updates += (ASSIGN(weight, new),)
        return updates

    def named_state(self) -> State:
        return {}


class DenseMeans(MeansState, nn.Cell):
    """The running means of the weights outside the embedding tables. `app.tables.optimizers.RunningMean` defines the
    formula.
    """

    def __init__(self, weights: State, decay: float) -> None:
        nn.Cell.__init__(self)
        self.names, self.steps = tuple(weights), RunningMean(decay)
        self.weights, self.means = ParameterTuple(weights.values()), _filled(MEAN, weights, 0.0)
        self.rate = Parameter(Tensor(np.float32(0)), name="mean_rate", requires_grad=False)

    def construct(self, updated: tuple) -> tuple:
        """Move the running means toward the present weights.

        `updated` is the result of the weights' update. Because it is an argument, MindSpore updates the weights before
        the means.
        """
        updates: tuple = ()
        for i, weight in enumerate(self.weights):
            new = ops.depend(weight, updated)
            updates += (ASSIGN(self.means[i], self.means[i] + self.rate * (new - self.means[i])),)
        return updates


class DenseOptimizers(OptimizerStates, nn.Cell):
    """The optimizers of the wide head and of the tower, which change the model's parameters.

    A step also updates the running statistics of batch normalization. If `tower_clip_norm` is above 0, the tower's
    gradients are first scaled down so that their total norm is at most this bound. If `ema_decay` is above 0, running
    means of the weights are kept (`DenseMeans`).
    """

    def __init__(self, model: WideDeep, config: Config) -> None:
        nn.Cell.__init__(self)
        wide, tower, loss_scale = config.wide_optimizer, config.tower_optimizer, config.loss.loss_scale
        parameters = list(model.named_parameters().items())
        self.num_wide = len(model.wide.named_parameters())
        self.wide = make_optimizer(dict(parameters[: self.num_wide]), wide, loss_scale)
        self.tower = make_optimizer(dict(parameters[self.num_wide :]), tower, loss_scale)
        self.loss_scale, self.tower_clip_norm = loss_scale, config.loss.tower_clip_norm
        self.total = Total()
        self.norms = nn.CellList(model.tower.norms())
        self.means = DenseMeans(dict(parameters), config.train.ema_decay) if config.train.ema_decay else None
        self.rates = {"wide": wide.learning_rate, "tower": tower.learning_rate}

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple:
        """Take one step on all parameters. Return a tuple for `ops.depend`, which makes other operations wait for it.

        `gradients` are those of the wide head's parameters, then those of the tower's, multiplied by the loss scale.
        """
        tower = gradients[self.num_wide :]
        if self.tower_clip_norm:
            tower = self.clipped(tower)
        updates: tuple = (self.wide(gradients[: self.num_wide]), self.tower(tower))
        for norm in self.norms:
            updates = (*updates, norm.update())
        if self.means is not None:
            updates = (*updates, self.means(updates))
        return updates

    def clipped(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the tower's gradients multiplied by min(1, tower_clip_norm / norm).

        The norm is that of all these gradients together, after division by the loss scale.
        """
        squares = 0.0
        for gradient in gradients:
            squares = squares + self.total(ops.square(gradient / self.loss_scale))
        norm = ops.sqrt(squares)
        factor = ops.minimum(self.tower_clip_norm / (norm + CLIP_EPSILON), 1.0)
        clipped: tuple = ()
        for gradient in gradients:
            clipped += (gradient * factor,)
        return clipped


def make_optimizer(weights: State, options: WideOptimizer | TowerOptimizer, loss_scale: float) -> nn.Cell:
    """Return a new MindSpore cell that updates `weights` by the optimizer with the settings `options`."""
    match options:
        case FtrlOptions():
            return Ftrl(weights, options, loss_scale)
        case AdamOptions() | AdamWOptions():
            return Adam(weights, options, loss_scale)
        case AdagradOptions():
            return Adagrad(weights, options, loss_scale)
        case SgdOptions():
            return Sgd(weights, options, loss_scale)


def _rate(learning_rate: float) -> Parameter:
    return Parameter(Tensor(np.float32(learning_rate)), name="learning_rate", requires_grad=False)


def _filled(prefix: str, weights: State, value: float) -> ParameterTuple:
    arrays = {name: np.full(weight.shape, value, np.float32) for name, weight in weights.items()}
    return ParameterTuple(
        Parameter(Tensor(array), name=f"{prefix}.{name}", requires_grad=False) for name, array in arrays.items()
    )
