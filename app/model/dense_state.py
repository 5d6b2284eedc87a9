"""Hold the parameters of the dense model and the states of their optimizers: initial values, access to their memory,
and the operations on them that take place between steps. Also make the keys of dropout masks.

A model that MindSpore runs has MindSpore's parameters, and a model that native kernels run has `HostParameter`s. This
module imports MindSpore only to write to MindSpore's parameters. The classes named …State hold arrays in host memory,
with which `native_tower` takes steps. The classes in `tower_optimizers` are derived from them: they are MindSpore
graphs with MindSpore's parameters, and have the same operations between steps.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from app.config.config import Config
from app.config.optimizer_settings import AdamOptions, AdamWOptions, FtrlOptions
from app.tables.backends import fields_of_model, num_deep_inputs
from app.tables.initial import initial_rows
from app.tables.optimizers import LEAST_FTRL_RATE, MEAN, RunningMean, ftrl_linear
from common.arrays.hashing import GOLDEN, GOLDEN32, mix32, mix64
from data_prep.prepared.schema import Schema

# Prevents a division by 0 if all gradients are 0. torch.nn.utils.clip_grad_norm_ has the same value.
CLIP_EPSILON = 1e-6

AnyParameter: TypeAlias = Any  # A `HostParameter`, or a `Parameter` of MindSpore.
State: TypeAlias = dict[str, AnyParameter]  # Parameters by name.


class HostParameter:
    """A float32 array in host memory, with the methods of MindSpore's `Parameter` that this project uses."""

    def __init__(self, values: np.ndarray | float) -> None:
        self._values = np.array(values, np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self._values.shape

    def asnumpy(self) -> np.ndarray:
        """Return the array itself, not a copy."""
        return self._values


def write_parameter(parameter: AnyParameter, values: np.ndarray) -> None:
    """Overwrite all values of a parameter, which keeps its memory.

    `set_data` cannot be used, because it moves the parameter to new memory: if a compiled graph updates the parameter
    in a branch such as `if finite`, the graph continues to write to the old memory, and every later update is lost
    (MindSpore 2.10 on CPU).
    """
    if isinstance(parameter, HostParameter) or _on_cpu():
        # Copying in NumPy saves the 0.15 ms that starting an operator takes. A step may write five parameters.
        parameter.asnumpy()[...] = values
    else:
        from mindspore import Tensor, ops

        ops.Assign()(parameter, Tensor(values))


@functools.cache
def _on_cpu() -> bool:
    import mindspore as ms

    return bool(ms.get_current_device().device_target == "CPU")


def initial_tower(config: Config, schema: Schema, folded: bool = True) -> dict[str, np.ndarray]:
    """Return the initial values of a run's tower by parameter name.

    If `folded` is True, the rows of the numeric fields are parameters of the tower. If it is False, they are rows of
    the embedding tables, and the tower has no parameters for numeric fields.
    """
    model, num_numeric = config.model, schema.num_numeric
    num_fields = num_deep_inputs(fields_of_model(schema, model)) + (0 if folded else num_numeric)
    shape = (num_fields, num_numeric if folded else 0, model.embedding_dim, model.hidden_widths)
    return tower_arrays(*shape, config.train.seed, model.initial_row_scale, schema.vector_inputs)


def tower_arrays(
    num_fields: int,
    num_numeric: int,
    embedding_dim: int,
    hidden_widths: tuple[int, ...],
    seed: int,
    initial_scale: float,
    num_vector: int = 0,
) -> dict[str, np.ndarray]:
    """Return the initial values of a tower by parameter name, for C = `num_fields` looked-up fields and M =
    `num_vector` vector inputs.

    Biases are 0. `_initial_matrix` describes the matrices. Numeric rows start with the values of embedding rows. The
    values of all other parameters are the same with and without vectors.
    """
    widths = ((num_numeric + num_fields) * embedding_dim, *hidden_widths, 1)
    matrices = [_initial_matrix(seed, i, widths[i], widths[i + 1]) for i in range(len(widths) - 1)]
    numeric_part, matrices[0] = np.split(matrices[0], [num_numeric * embedding_dim])
    arrays = {"numeric_matrix": numeric_part} | {f"matrix_{i}": matrix for i, matrix in enumerate(matrices)}
    if num_numeric:
        arrays["numeric_rows"] = initial_rows(seed, np.arange(num_numeric), embedding_dim, initial_scale)
    if num_vector:
        arrays["vector_matrix"] = _initial_matrix(seed, len(widths), num_vector, widths[1])
    arrays |= {f"bias_{i}": np.zeros(width, np.float32) for i, width in enumerate(hidden_widths)}
    shapes = tower_shapes(num_fields, num_numeric, embedding_dim, hidden_widths, num_vector)
    return {name: arrays[name].reshape(shape) for name, shape in shapes.items()}


def tower_shapes(
    num_fields: int, num_numeric: int, embedding_dim: int, hidden_widths: tuple[int, ...], num_vector: int = 0
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter of a tower by name. The arguments are those of `tower_arrays`: the numbers of
    looked-up fields, numeric fields and vector inputs, and the widths of embeddings and hidden layers.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    if num_numeric:
        shapes["numeric_rows"] = num_numeric, embedding_dim
        shapes["numeric_matrix"] = num_numeric, embedding_dim, hidden_widths[0]
    if num_vector:
        shapes["vector_matrix"] = num_vector, hidden_widths[0]
    sizes = itertools.pairwise((num_fields * embedding_dim, *hidden_widths, 1))
    shapes |= {f"matrix_{i}": pair for i, pair in enumerate(sizes)}
    return shapes | {f"bias_{i}": (width,) for i, width in enumerate(hidden_widths)}


def _initial_matrix(seed: int, layer: int, fan_in: int, fan_out: int) -> np.ndarray:
    """Return an initial matrix, float32 [fan_in, fan_out], uniform in ±√(6 / (fan_in + fan_out)) (Glorot & Bengio,
    2010).
    """
    limit = np.sqrt(6.0 / (fan_in + fan_out))
    generator = np.random.default_rng([seed % 2**63, layer])
    return generator.uniform(-limit, limit, (fan_in, fan_out)).astype(np.float32)


class FtrlState:
    """The learning rate and the state arrays of FTRL for the dense parameters `weights`, in host memory."""

    def __init__(self, weights: State, options: FtrlOptions) -> None:
        self.names, self.options, self.l1, self.l2 = tuple(weights), options, options.l1, options.l2
        self.learning_rate: AnyParameter = HostParameter(options.learning_rate)
        self.weights: Sequence[AnyParameter] = tuple(weights.values())
        self.accumulators: Sequence[AnyParameter] = filled(self.weights, options.initial_accumulator)
        self.linear: Sequence[AnyParameter] = filled(self.weights, 0.0)

    def fit_linear(self, rate: float) -> None:
        """Compute FTRL's linear terms anew, so that the next step, with the learning rate `rate`, starts from the
        present weights.
        """
        rate = max(rate, float(LEAST_FTRL_RATE))
        for weight, squares, linear in zip(self.weights, self.accumulators, self.linear, strict=True):
            rows, accumulator, before = (array.asnumpy() for array in (weight, squares, linear))
            fitted = ftrl_linear(rows, accumulator, before, np.float32(rate), self.options)
            write_parameter(linear, fitted)

    def change_rate(self, old: float, new: float) -> None:
        """Convert FTRL's linear terms from the learning rate `old` to `new`, so that the weights stay the same.

        Rates below `LEAST_FTRL_RATE` count as `LEAST_FTRL_RATE`. `app.tables.optimizers.ftrl_step` explains why the
        linear terms depend on the learning rate.
        """
        old, new = max(old, float(LEAST_FTRL_RATE)), max(new, float(LEAST_FTRL_RATE))
        for weight, squares, linear in zip(self.weights, self.accumulators, self.linear, strict=True):
            rows, accumulator, before = (array.asnumpy() for array in (weight, squares, linear))
            change = np.sqrt(accumulator) * np.float32(1 / new - 1 / old) * rows
            write_parameter(linear, before - change)

    def named_state(self) -> State:
        """Return the state arrays of this optimizer by names such as `ftrl.linear.wide.bias`."""
        return by_name("ftrl.accumulator", self.names, self.accumulators) | by_name(
            "ftrl.linear", self.names, self.linear
        )


class AdamState:
    """The learning rate and the state arrays of Adam or AdamW for the dense parameters `weights`, in host memory.

    `moments` are all first moments, and then all second moments.
    """

    def __init__(self, weights: State, options: AdamOptions | AdamWOptions, loss_scale: float) -> None:
        self.names, self.name = tuple(weights), options.name
        self.learning_rate: AnyParameter = HostParameter(options.learning_rate)
        self.weights: Sequence[AnyParameter] = tuple(weights.values())
        self.powers: Sequence[AnyParameter] = (HostParameter(1.0), HostParameter(1.0))
        self.moments: Sequence[AnyParameter] = filled([*self.weights, *self.weights], 0.0)
        weight_decay = options.weight_decay if isinstance(options, AdamWOptions) else 0.0
        constants = (options.beta1, options.beta2, options.epsilon, 1 / loss_scale, weight_decay)
        self.constants: AnyParameter = HostParameter(np.array(constants))

    def named_state(self) -> State:
        """Return the state arrays of this optimizer by names such as `adam.first_moment.tower.bias_0`."""
        count = len(self.names)
        return (
            by_name(f"{self.name}.first_moment", self.names, self.moments[:count])
            | by_name(f"{self.name}.second_moment", self.names, self.moments[count:])
            | {f"{self.name}.beta{i}_power": power for i, power in enumerate(self.powers, 1)}
        )


class MeansState:
    """The running means of the weights outside the embedding tables. `app.tables.optimizers.RunningMean` defines the
    formula.
    """

    def __init__(self, weights: State, decay: float) -> None:
        self.names, self.steps = tuple(weights), RunningMean(decay)
        self.rate: AnyParameter = HostParameter(0.0)
        self.weights: Sequence[AnyParameter] = tuple(weights.values())
        self.means: Sequence[AnyParameter] = filled(self.weights, 0.0)

    def set_step(self, step: int) -> None:
        """Set the factor with which the weights after step number `step` (from 1 on) enter the running means."""
        self.steps.reach(step)
        write_parameter(self.rate, self.steps.rates[step])

    def named_state(self) -> State:
        """Return the running means by names such as `mean.wide.bias`."""
        return by_name(MEAN, self.names, self.means)


class OptimizerStates:
    """The states of both dense optimizers, and the running means of the weights (`means`), or None if they are not
    kept.
    """

    def __init__(self, model: Any, config: Config) -> None:
        """Make the states for the parameters of a `NativeModel`. The settings must have FTRL for the wide head, and
        Adam or AdamW for the tower.
        """
        wide, tower, parameters = config.wide_optimizer, config.tower_optimizer, model.named_parameters()
        assert isinstance(wide, FtrlOptions)
        assert isinstance(tower, AdamOptions | AdamWOptions)
        parts: dict[str, State] = {"wide": {}, "tower": {}}
        for name, parameter in parameters.items():
            parts[name.partition(".")[0]][name] = parameter
        self.loss_scale, self.tower_clip_norm = config.loss.loss_scale, config.loss.tower_clip_norm
        self.wide: Any = FtrlState(parts["wide"], wide)
        self.tower: Any = AdamState(parts["tower"], tower, self.loss_scale)
        self.means: Any = MeansState(parameters, config.train.ema_decay) if config.train.ema_decay else None
        self.rates = {"wide": wide.learning_rate, "tower": tower.learning_rate}

    def set_learning_rates(self, wide: float, tower: float) -> None:
        """Set the learning rates of both optimizers for the next steps.

        If the wide rate changes, FTRL's linear terms are converted to the new rate.
        """
        if isinstance(self.wide, FtrlState) and wide != self.rates["wide"]:
            self.wide.change_rate(self.rates["wide"], wide)
        self.resume_learning_rates(wide, tower)

    def set_step(self, step: int) -> None:
        """Pass the number (from 1 on) of the next step to the running means of the weights, if they are kept."""
        if self.means is not None:
            self.means.set_step(step)

    @contextmanager
    def means_as_weights(self) -> Iterator[None]:
        """Replace the weights by their running means inside the `with` block, and restore them afterwards.

        Nothing is replaced if running means are not kept or no step has been taken.
        """
        if self.means is None or not self.means.rate.asnumpy():  # No step has been taken.
            yield
            return
        pairs = list(zip(self.means.weights, self.means.means, strict=True))
        saved = [weight.asnumpy().copy() for weight, _ in pairs]
        try:
            for weight, mean in pairs:
                write_parameter(weight, mean.asnumpy())
            yield
        finally:
            for (weight, _), values in zip(pairs, saved, strict=True):
                write_parameter(weight, values)

    def start_from_weights(self, wide: float, tower: float) -> None:
        """Adapt the optimizers' state to weights that were copied from another model. `wide` and `tower` are the
        learning rates of the wide head and of the tower in the first step.
        """
        if isinstance(self.wide, FtrlState):
            self.wide.fit_linear(wide)
        self.resume_learning_rates(wide, tower)

    def resume_learning_rates(self, wide: float, tower: float) -> None:
        """Set the learning rates of the wide head and of the tower to those of the last step, after optimizer state was
        loaded.

        FTRL's state depends on its learning rate. The loaded state was saved with these rates, so it stays as it is.
        """
        for group, optimizer, rate in (("wide", self.wide, wide), ("tower", self.tower, tower)):
            if rate != self.rates[group]:
                write_parameter(optimizer.learning_rate, np.array(rate, np.float32))
                self.rates[group] = rate

    def named_state(self) -> State:
        """Return the state arrays of optimizers and running means, by names such as `ftrl.linear.wide.bias`."""
        state: State = self.wide.named_state() | self.tower.named_state()
        return state if self.means is None else state | self.means.named_state()


def filled(weights: Sequence[AnyParameter], value: float) -> tuple[HostParameter, ...]:
    """Return a new array for each of the `weights`, of the same shape, in which every value is `value`."""
    return tuple(HostParameter(np.full(weight.shape, value)) for weight in weights)


def by_name(prefix: str, names: tuple[str, ...], states: Sequence[AnyParameter]) -> State:
    """Return a mapping from names such as `adam.first_moment.tower.bias_0` to the `states` of optimizers, one for each
    weight array in `names`: each name is `prefix`, a dot, and the name of the weight array.
    """
    return {f"{prefix}.{name}": state for name, state in zip(names, states, strict=True)}


FACTORS, SHIFT = (np.uint32(0x7FEB352D), np.uint32(0x846CA68B)), 15  # The constants of lowbias32.
BITS = 24  # Number of bits of the random number that decides whether a unit is dropped.


class DropoutNoise:
    """Makes the keys from which the dropout masks of a run are computed. `rate` is the share of units to drop.

    A mask says which units dropout sets to 0. It is a pure function of seed, step, example, layer and unit, where an
    example is given by its index in the batch of all ranks. No random state is kept, and the bits are the same on every
    device. A mask is computed where it is used, from three int32 per layer. `keep_mask` is the definition;
    `app/model/csrc/elementwise.cc` and `app/model/dense_layer.py` compute the same. The hash function is lowbias32
    (Wellons, "Prospecting for Hash Functions", 2018).

    >>> noise = DropoutNoise(seed=1, rate=0.5, num_layers=2).of_step(step=7)
    >>> noise.shape, keep_mask(noise[0], num_rows=4, num_units=8).shape
    ((2, 3), (4, 8))
    """

    def __init__(self, seed: int, rate: float, num_layers: int) -> None:
        self.rate = rate
        self._seed, self._num_layers = seed, num_layers
        self._threshold = round(rate * 2**BITS)

    def of_step(self, step: int, first_row: int = 0) -> np.ndarray:
        """Return the key of each layer's mask for step number `step` (from 1 on), int32 [L, 3].

        The three columns are a random key, the index of this process's first example in the batch of all ranks, and the
        share of units to drop, times 2²⁴.
        """
        if not self._threshold:
            return np.zeros((self._num_layers, 3), np.int32)  # Nothing is dropped, so no keys are needed.
        layers = np.arange(1, self._num_layers + 1, dtype=np.uint64)
        with np.errstate(over="ignore"):  # Products of uint64 wrap around on purpose.
            step_key = mix64(mix64(np.array(self._seed, np.uint64) + GOLDEN) + GOLDEN * np.uint64(step))
            keys = (mix64(step_key + GOLDEN * layers) >> np.uint64(32)).astype(np.uint32).view(np.int32)
        others = np.tile(np.array([first_row, self._threshold], np.int32), (self._num_layers, 1))
        return np.concatenate([keys[:, None], others], axis=1)


def keep_mask(noise: np.ndarray, num_rows: int, num_units: int) -> np.ndarray:
    """Return a mask of the units that stay, bool [B, H].

    `noise` int32 [3] is one row of the result of `DropoutNoise.of_step`.
    """
    key, first_row, threshold = noise.view(np.uint32)
    with np.errstate(over="ignore"):
        rows = mix32(key + (first_row + np.arange(num_rows, dtype=np.uint32)) * GOLDEN32, SHIFT, FACTORS)
        units = mix32(np.arange(1, num_units + 1, dtype=np.uint32) * GOLDEN32, SHIFT, FACTORS)
        numbers: np.ndarray = mix32(rows[:, None] ^ units, SHIFT, FACTORS) >> np.uint32(32 - BITS)
    return numbers >= threshold
